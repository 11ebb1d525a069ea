#pragma once

// FairPlaces: a number of places, as open files or connections, that sessions share. No session has more than is left
// for others: one that takes without end gets at most a half, two get a third each, and n leave one part of n + 1.
//
//   FairPlaces files("max_open_files", 5000);
//   TESSERA_ASSIGN_OR_RETURN(FairPlaces::Place place, files.Take(SessionId(7), "file x.npy"));   // until `place` goes
//
// Any thread may call it. It outlives its places.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/ids.h"

namespace tessera {

class FairPlaces {
 public:
  // `limit` is its name in docs/limits.md.
  FairPlaces(std::string limit, int64_t count) : limit_(std::move(limit)), count_(count) {}

  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept : all_(std::exchange(other.all_, nullptr)), session_(other.session_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(all_, other.all_);
      std::swap(session_, other.session_);
      return *this;
    }
    ~Place() {
      if (all_ != nullptr) all_->Give(session_);
    }

   private:
    friend class FairPlaces;
    Place(FairPlaces* all, SessionId session) : all_(all), session_(session) {}
    FairPlaces* all_ = nullptr;
    SessionId session_;
  };
  // ResourceExhausted, with the limit's name and the numbers, where the session has as many as are left.
  absl::StatusOr<Place> Take(SessionId session, std::string_view what);
  int64_t taken();

 private:
  void Give(SessionId session);
  const std::string limit_;
  const int64_t count_;
  std::mutex mutex_;
  int64_t taken_ = 0;  // both guarded by mutex_
  std::map<SessionId, int64_t> of_sessions_;
};

}  // namespace tessera
