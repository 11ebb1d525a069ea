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
  return port_.onSignal(SIGUSR2).then([this](siginfo_t&&) { return Check(); }).then([this](bool may_begin) {
    return may_begin ? kj::Promise<void>(kj::READY_NOW) : WhenToBegin();
  });
}

kj::Promise<bool> Upgrade::Check() {
  spdlog::info("an upgrade is asked for: whether {} can go on with {}", relaunch_.program(), folder_);
  absl::StatusOr<Relaunch::Run> run = relaunch_.Start({"--inspect", folder_});
  if (run.ok()) return AwaitEnd(std::make_shared<Relaunch::Run>(*run));
  Answer(StrCat("refused: ", std::string(run.status().message())));
  return false;
}

kj::Promise<bool> Upgrade::AwaitEnd(std::shared_ptr<Relaunch::Run> run) {
  return timer_.afterDelay(kLook).then([this, run = std::move(run)]() mutable -> kj::Promise<bool> {
    const std::optional<absl::Status> end = Relaunch::EndOf(*run);
    if (!end.has_value()) return AwaitEnd(std::move(run));
    if (end->ok()) return true;
    const std::string why(end->message());
    spdlog::error("no upgrade: {} can't go on with {}: {}", relaunch_.program(), folder_, why);
    Answer(StrCat("refused: ", relaunch_.program(), " can't go on with ", folder_, ": ", why));
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
