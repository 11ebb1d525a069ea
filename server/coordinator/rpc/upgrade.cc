#include "server/coordinator/rpc/upgrade.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr auto kLook = 5 * kj::MILLISECONDS;

}  // namespace

kj::Promise<void> Upgrade::WhenToBegin() {
  if (folder_.empty()) return kj::NEVER_DONE;
  auto asked = kj::newPromiseAndFulfiller<void>();
  begin_ = kj::mv(asked.fulfiller);
  return port_.onSignal(SIGUSR2)
      .ignoreResult()
      .exclusiveJoin(kj::mv(asked.promise))
      .then([this]() { return Check(); })
      .then([this](bool may_begin) { return may_begin ? kj::Promise<void>(kj::READY_NOW) : WhenToBegin(); });
}

absl::Status Upgrade::Begin() {
  if (folder_.empty()) {
    return absl::FailedPreconditionError(
        "upgrade: this coordinator has no state folder (--state), so another process could not go on with its pool");
  }
  if (state_.phase == UpgradeState::Phase::kLooking) return absl::OkStatus();
  if (begin_.get() == nullptr || !begin_->isWaiting()) {
    return absl::UnavailableError("upgrade: the one before is just ending; ask again");
  }
  state_.phase = UpgradeState::Phase::kLooking;
  begin_->fulfill();
  return absl::OkStatus();
}

void Upgrade::Refuse(const std::string& why) {
  state_.phase = UpgradeState::Phase::kRefused;
  state_.why = why;
  Answer(StrCat("refused: ", why));
}

kj::Promise<bool> Upgrade::Check() {
  state_.phase = UpgradeState::Phase::kLooking;
  spdlog::info("an upgrade is asked for: whether {} can go on with {}", relaunch_.program(), folder_);
  absl::StatusOr<Relaunch::Run> run = relaunch_.Start({"--inspect", folder_});
  if (run.ok()) return AwaitEnd(std::make_shared<Relaunch::Run>(*run));
  Refuse(std::string(run.status().message()));
  return false;
}

kj::Promise<bool> Upgrade::AwaitEnd(std::shared_ptr<Relaunch::Run> run) {
  return timer_.afterDelay(kLook).then([this, run = std::move(run)]() mutable -> kj::Promise<bool> {
    const std::optional<absl::Status> end = Relaunch::EndOf(*run);
    if (!end.has_value()) return AwaitEnd(std::move(run));
    if (end->ok()) return true;
    const std::string why(end->message());
    spdlog::error("no upgrade: {} can't go on with {}: {}", relaunch_.program(), folder_, why);
    Refuse(StrCat(relaunch_.program(), " can't go on with ", folder_, ": ", why));
    return false;
  });
}

absl::Status Upgrade::Become(const std::string& tokens) const {
  Answer(StrCat("begun: process ", getpid()));
  spdlog::info("going on as {}", relaunch_.program());
  const absl::Status failed = relaunch_.Become(tokens);
  Answer(StrCat("refused: ", std::string(failed.message())));
  return failed;
}

void Upgrade::TellServing(const std::string& who) const {
  if (folder_.empty() || access(AnswerPath().c_str(), F_OK) != 0) return;
  std::string begun;
  std::ifstream(AnswerPath()) >> begun;
  if (begun == "begun:") Answer(StrCat("done: ", who, ", process ", getpid()));
}

// Whole, whenever it is read.
void Upgrade::Answer(const std::string& text) const {
  const std::string begun = AnswerPath() + ".begun";
  std::ofstream(begun) << text << "\n";
  if (std::rename(begun.c_str(), AnswerPath().c_str()) != 0) spdlog::error("can't write {}", AnswerPath());
}

}  // namespace tessera
