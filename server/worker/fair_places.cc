#include "server/worker/fair_places.h"

#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<FairPlaces::Place> FairPlaces::Take(SessionId session, std::string_view what) {
  const std::lock_guard lock(mutex_);
  const auto found = of_sessions_.find(session);
  const int64_t own = found == of_sessions_.end() ? 0 : found->second;
  if (own + 1 > count_ - taken_) {
    return absl::ResourceExhaustedError(StrCat(what, ": this session has ", own, ", and ", count_ - taken_, " of ",
                                               count_, " are left for all (", limit_, ")"));
  }
  ++of_sessions_[session];
  ++taken_;
  return Place(this, session);
}

void FairPlaces::Give(SessionId session) {
  const std::lock_guard lock(mutex_);
  --taken_;
  const auto found = of_sessions_.find(session);
  if (--found->second == 0) of_sessions_.erase(found);
}

int64_t FairPlaces::taken() {
  const std::lock_guard lock(mutex_);
  return taken_;
}

}  // namespace tessera
