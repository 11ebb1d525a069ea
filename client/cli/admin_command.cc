// tessera evict, cordon, uncordon, drain: what an admin does to a pool while all goes on.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "client/cli/command.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kDrainPause{20};

struct EvictOptions {
  AddressOption address;
  std::string tenant, reason;
};

int Evict(const EvictOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  const absl::StatusOr<uint32_t> count = session->EvictTenant(options.tenant, options.reason);
  if (!count.ok()) return Failed(count.status());
  std::printf("tenant %s: %u sessions are ended\n", Printable(options.tenant).c_str(), *count);
  return 0;
}

struct CordonOptions {
  AddressOption address;
  int32_t worker = 0;
};

int SetCordon(const CordonOptions& options, Session::Cordon cordon) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  if (absl::Status status = session->CordonWorker(WorkerIndex(options.worker), cordon); !status.ok()) {
    return Failed(status);
  }
  const char* const what = cordon == Session::Cordon::kOn
                               ? "is cordoned: sessions that begin from now on may not use it; the others may"
                               : "may be used by all sessions";
  std::printf("worker %d %s\n", options.worker, what);
  return 0;
}

struct DrainOptions {
  AddressOption address;
  int32_t worker = 0;
  bool lose = false;
};

void ShowLosses(const DrainStep& step) {
  if (step.losses.empty()) return;
  std::vector<std::vector<std::string>> rows = {{"SESSION", "TENANT", "NAME", "TENSORS", "BYTES"}};
  for (const DrainStep::Loss& loss : step.losses) {
    rows.push_back({loss.session == 0 ? "publication" : StrCat(loss.session), loss.tenant,
                    loss.name.empty() ? "-" : loss.name, StrCat(loss.tensors), ShowBytes(loss.bytes)});
  }
  std::printf("%s%llu tensors, %s\n", ShowTable(rows).c_str(), static_cast<unsigned long long>(step.tensors),
              ShowBytes(step.bytes).c_str());
}

int Drain(const DrainOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  const auto losses = options.lose ? Session::Losses::kTaken : Session::Losses::kRefused;
  DrainStep last;  // that said what is lost
  for (;;) {
    const absl::StatusOr<DrainStep> step = session->DrainWorker(WorkerIndex(options.worker), losses);
    if (!step.ok()) return Failed(step.status());
    if (step->phase == DrainStep::Phase::kRefused) {
      ShowLosses(*step);
      return Failed(absl::FailedPreconditionError(
          StrCat("drain: ", step->why, step->losses.empty() ? "" : "; move or drop them, or take the loss by --lose")));
    }
    if (step->phase == DrainStep::Phase::kDone) break;
    if (step->phase == DrainStep::Phase::kEnding) last = *step;
    std::this_thread::sleep_for(kDrainPause);
  }
  ShowLosses(last);
  std::printf("worker %d is drained, and its process has ended\n", options.worker);
  return 0;
}

CLI::Option* AddWorker(CLI::App& command, int32_t& worker) {
  return command.add_option("worker", worker, "its number, as `tessera status` shows it")
      ->required()
      ->check(CLI::NonNegativeNumber);
}

Command AddCordon(CLI::App& app, const char* name, const char* what, Session::Cordon cordon) {
  CLI::App* command = app.add_subcommand(name, what);
  auto options = std::make_shared<CordonOptions>();
  options->address.AddTo(*command);
  AddWorker(*command, options->worker);
  command->footer(StrCat("Example:\n  TESSERA_ADMIN_TOKEN=... tessera ", name, " 3"));
  return {command, [options, cordon] { return SetCordon(*options, cordon); }};
}

}  // namespace

Command AddEvictCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("evict", "End all sessions of a tenant and free what they have; needs the admin's token");
  auto options = std::make_shared<EvictOptions>();
  options->address.AddTo(*command);
  command->add_option("tenant", options->tenant, "its name, as `tessera tenants` shows it")->required();
  command->add_option("--reason", options->reason, "what its clients' errors, the log and the audit say");
  command->footer("Example:\n  TESSERA_ADMIN_TOKEN=... tessera evict vision --reason \"the pool is needed\"");
  return {command, [options] { return Evict(*options); }};
}

Command AddCordonCommand(CLI::App& app) {
  return AddCordon(app, "cordon", "Keep a worker from sessions that begin from now on; needs the admin's token",
                   Session::Cordon::kOn);
}

Command AddUncordonCommand(CLI::App& app) {
  return AddCordon(app, "uncordon", "Give a cordoned worker to all sessions again; needs the admin's token",
                   Session::Cordon::kOff);
}

Command AddDrainCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("drain",
                         "Shut a worker down when it has ended what it was told; needs the admin's token.\n"
                         "Refused while some tensor is on that worker alone");
  auto options = std::make_shared<DrainOptions>();
  options->address.AddTo(*command);
  AddWorker(*command, options->worker);
  command->add_flag("--lose", options->lose, "tensors that are there alone may be lost");
  command->footer("Examples:\n  TESSERA_ADMIN_TOKEN=... tessera drain 3\n  tessera drain 3 --lose");
  return {command, [options] { return Drain(*options); }};
}

}  // namespace tessera
