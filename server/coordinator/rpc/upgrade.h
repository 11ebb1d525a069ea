#pragma once

// Upgrade: a coordinator with a state folder becomes its program's newest version in place, when `tessera upgrade`
// asks for it: by SIGUSR2 on its own host (--state FOLDER), or as an admin from anywhere (Begin). The program as it is
// on the disk first says whether it can go on with the folder; one that can't, as an older one, leaves all as it is.
// Then the process writes a snapshot and runs the program in its own place (relaunch.h). Workers wait (--outlive), and
// clients' sessions say "reconnecting".
//
// The answer is the file FOLDER/upgrade: "refused: WHY", "begun: ...", or "done: ..." of the process that goes on. An
// admin asks for `state` until its epoch is larger.

#include <memory>
#include <string>

#include <kj/async-unix.h>
#include <kj/timer.h>

#include "absl/status/status.h"
#include "schemas/types/book.h"
#include "server/process/relaunch.h"

namespace tessera {

class Upgrade {
 public:
  // Without a folder there is no upgrade. SIGUSR2 is captured (kj::UnixEventPort::captureSignal) before.
  Upgrade(const Relaunch& relaunch, std::string folder, kj::UnixEventPort& port, kj::Timer& timer)
      : relaunch_(relaunch), folder_(std::move(folder)), port_(port), timer_(timer) {}

  // When one was asked for, and the program on the disk can go on with the folder. Until then the coordinator serves.
  kj::Promise<void> WhenToBegin();
  // As the signal does, where none is under way. FailedPrecondition without a folder.
  absl::Status Begin();
  // The phase of the last one that was asked for, and why it was refused.
  const UpgradeState& state() const { return state_; }
  // The last thing that the process does. Returns only where the program can't be run.
  absl::Status Become(const std::string& tokens) const;
  // A process that serves says so, where it was started by an upgrade.
  void TellServing(const std::string& who) const;

 private:
  kj::Promise<bool> Check();
  kj::Promise<bool> AwaitEnd(std::shared_ptr<Relaunch::Run> run);
  void Refuse(const std::string& why);
  void Answer(const std::string& text) const;
  std::string AnswerPath() const { return folder_ + "/upgrade"; }

  const Relaunch& relaunch_;
  const std::string folder_;
  kj::UnixEventPort& port_;
  kj::Timer& timer_;
  UpgradeState state_;
  kj::Own<kj::PromiseFulfiller<void>> begin_;  // while nothing is under way
};

}  // namespace tessera
