#pragma once

// Drains: workers that admins take out of a pool. A drain goes by steps, one for each time that it is asked about:
//
//   looking   all tensors are looked through, some thousands a step, for those that are on this worker alone
//   waiting   nothing more is issued to the worker, and it ends what it was told; tensors were looked through again
//   ending    it was told to end
//   done      it is gone
//
// Where something would be lost the drain is refused, with whose it is and how much, unless its admin takes the loss;
// and where the worker has not ended what it was told within stop_timeout. Then all is as it was.
//
// Law: nobody's op fails because of a drain that is refused. A drain that nobody asks about for kForgottenUs is given
// up, so that no client that went away leaves a worker closed.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

inline constexpr size_t kMaxDrainOwners = 100;      // docs/limits.md: max_drain_owners
inline constexpr int64_t kForgottenUs = 5'000'000;  // docs/limits.md: drain_forgotten

struct DrainState {
  enum class Phase : uint8_t { kLooking = 0, kWaiting = 1, kEnding = 2, kDone = 3, kRefused = 4 };
  struct Loss {
    SessionId session;  // none: a publication, whose name is `name`
    std::string tenant;
    std::string name;
    uint64_t tensors = 0;
    int64_t bytes = 0;
  };
  Phase phase = Phase::kLooking;
  uint64_t tensors = 0;
  int64_t bytes = 0;
  std::vector<Loss> losses;  // those with the most bytes first
  int64_t outstanding = 0;
  std::string why;
};

// Whether the tensor would fail if the worker were lost.
bool IsLostWith(const TensorEntry& tensor, WorkerIndex worker);

class Drains {
 public:
  enum class Losses : uint8_t { kRefused, kTaken };
  using Apply = std::function<void(Event)>;
  // `apply` gives an event to the machine.
  Drains(const StateMachine& machine, int64_t patience_us, Apply apply)
      : machine_(machine), patience_us_(patience_us), apply_(std::move(apply)) {}

  // NotFound where no such worker lives, and no drain has just ended it.
  absl::StatusOr<DrainState> Step(WorkerIndex worker, Losses losses, const std::string& reason, int64_t now_us);
  // Gives up what nobody has asked about.
  void Look(int64_t now_us);
  // Drops the drains of a former process: nobody asks about them any more.
  void GiveUpFormer();

 private:
  struct Drain {
    uint64_t incarnation = 0;
    int64_t asked_us = 0;
    bool is_held = false;  // nothing is issued to the worker
    int64_t held_us = 0;
    Admits before = Admits::kEveryone;
    bool is_looked_through = false;
    bool is_told = false;
    SessionId at_session;  // the next tensor to look at is behind this one
    HandleId at_handle;
    std::optional<std::string> at_publication;  // sessions are done: the next publication is behind this one
    std::map<std::pair<SessionId, std::string>, DrainState::Loss> losses;  // by session, or by publication
  };
  // All tensors are looked at, or as many as a step has time for.
  void LookThrough(WorkerIndex worker, Drain& drain);
  DrainState Describe(WorkerIndex worker, const Drain& drain) const;
  void Release(WorkerIndex worker, Drain& drain);
  DrainState Refuse(WorkerIndex worker, std::string why);

  const StateMachine& machine_;
  const int64_t patience_us_;
  const Apply apply_;
  std::map<WorkerIndex, Drain> drains_;
};

}  // namespace tessera
