#pragma once

// PeerLives: which process of a peer's number a message is for. Messages are enqueued long before they start, and the
// peer may be dead by then, and started again: the new process never hears of them, and a receive from it would wait
// for as long as it lives.
//
//   message.life = lives.Of(peer);      // as it is enqueued
//   lives.End(peer);                    // the peer is dead
//   if (message.life->load()) ...       // as it starts: its peer has ended
//
// One thread at a time; lives that were handed out are read by any.

#include <atomic>
#include <map>
#include <memory>

#include "schemas/types/ids.h"

namespace tessera {

using PeerLife = std::shared_ptr<const std::atomic<bool>>;  // true once it has ended

class PeerLives {
 public:
  PeerLife Of(WorkerIndex peer) { return At(peer); }
  void End(WorkerIndex peer) {
    At(peer)->store(true);
    lives_.erase(peer);
  }

 private:
  std::shared_ptr<std::atomic<bool>>& At(WorkerIndex peer) {
    std::shared_ptr<std::atomic<bool>>& life = lives_[peer];
    if (life == nullptr) life = std::make_shared<std::atomic<bool>>(false);
    return life;
  }

  std::map<WorkerIndex, std::shared_ptr<std::atomic<bool>>> lives_;
};

}  // namespace tessera
