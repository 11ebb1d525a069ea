#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "client/cli/command.h"
#include "client/cluster.h"
#include "client/server_program.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kMemoryBytes = 16 << 20;  // the text says it too

// One thing that was tried; the things behind one that failed aren't tried.
struct Finding {
  const char* check;
  absl::Status status;
};

// Starts a small cluster, and sends a number there and back.
class Examination {
 public:
  explicit Examination(DeviceKind device) : device_(device) {}
  const std::vector<Finding>& Run() {
    Try("start", &Examination::Start);
    Try("connect", &Examination::Connect);
    Try("upload", &Examination::Upload);
    Try("download", &Examination::Download);
    return findings_;
  }

 private:
  void Try(const char* check, absl::Status (Examination::*run)()) {
    if (findings_.empty() || findings_.back().status.ok()) findings_.push_back({check, (this->*run)()});
  }

  absl::Status Start() {
    ClusterOptions options;
    options.workers = 1;
    options.device = device_;
    options.memory_bytes = kMemoryBytes;
    options.start_timeout_s = device_ == DeviceKind::kCuda ? 60 : 20;  // contexts take seconds on a GPU in use
    TESSERA_ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(options));
    return absl::OkStatus();
  }

  absl::Status Connect() {
    TESSERA_ASSIGN_OR_RETURN(session_, cluster_->Connect());
    return absl::OkStatus();
  }

  absl::Status Upload() {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, session_->DefaultMesh());
    TESSERA_ASSIGN_OR_RETURN(
        tensor_, session_->DistributeTensor(MakeHostView(DType::kF32, {}, &value_), mesh, {Placement::Replicate()}));
    return session_->Sync();
  }

  absl::Status Download() {
    TESSERA_ASSIGN_OR_RETURN(const HostArray back, tensor_->FullTensor());
    if (std::memcmp(back.memory->data(), &value_, sizeof(value_)) == 0) return absl::OkStatus();
    return absl::InternalError("a number came back changed");
  }

  const DeviceKind device_;
  const float value_ = 42;
  std::vector<Finding> findings_;
  // An object stands before its users: they end in the reverse order.
  std::optional<LocalCluster> cluster_;
  std::optional<Session> session_;
  std::optional<Tensor> tensor_;
};

nlohmann::ordered_json FindingsJson(const std::string& device, const std::vector<Finding>& findings) {
  const absl::Status& last = findings.back().status;
  nlohmann::ordered_json json = {{"ok", last.ok()}, {"device", device}, {"workers", 1}, {"memory_bytes", kMemoryBytes}};
  json["checks"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["checks"].push_back({{"check", finding.check}, {"ok", finding.status.ok()}});
  }
  json["error"] = nullptr;
  if (!last.ok()) json["error"] = std::string(last.message());
  return json;
}

// Where it isn't asked whether a GPU works, what stands in the way of a worker with one.
void TellOfGpus() {
  Examination gpu(DeviceKind::kCuda);
  const absl::Status& status = gpu.Run().back().status;
  if (status.ok()) {
    std::printf("a worker with a GPU works, too (--device cuda)\n");
    return;
  }
  // It may end with a worker's log: the line that says why.
  std::string message(StdView(status.message()));
  message.erase(0, std::min(message.find("cuda: "), message.size()));
  message.erase(std::min(message.find('\n'), message.size()));
  std::printf("no worker with a GPU: %s\n", message.c_str());
}

// Tells of the processes that decode files, beside workers (client/python/tessera/_confined.py).
void TellOfDecoders() {
  const long landlock = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  const bool has_filters = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr) != 0 && errno == EFAULT;
  if (landlock > 0 && has_filters) {
    std::printf("decoders of files are confined to the folders that are served (Landlock %ld)\n", landlock);
  } else {
    std::printf("workers decode no files without --decoder-unconfined: this kernel has no %s\n",
                landlock > 0 ? "seccomp filters" : "Landlock");
  }
}

struct DoctorOptions {
  std::string device = "cpu";
  bool as_json = false;
  bool asks_ready = false;
  int workers = 0;  // that are to be there; 0: any
  AddressOption address;
  std::string state;
};

// Whether a pool that runs can be used: for the probes of an engine, and for scripts that wait.
int Ready(const DoctorOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  const absl::StatusOr<ClusterReport> report = session->Status();
  if (!report.ok()) return Failed(report.status());
  int alive = 0;
  for (const WorkerReport& worker : report->workers) alive += worker.state == WorkerState::kAlive ? 1 : 0;
  const int wanted = std::max(1, options.workers);
  if (options.as_json) {
    std::printf("%s\n",
                nlohmann::ordered_json{{"ok", alive >= wanted}, {"workers", alive}, {"wanted", wanted}}.dump().c_str());
  } else {
    std::printf("%s: %d of %d workers are there\n", alive >= wanted ? "ready" : "not ready", alive, wanted);
  }
  return alive >= wanted ? 0 : 1;
}

// The coordinator reads its folders.
int InspectState(const std::string& folder) {
  const absl::StatusOr<std::string> program = FindServerProgram("coordinator");
  if (!program.ok()) return Failed(program.status());
  std::fflush(stdout);
  execl(program->c_str(), program->c_str(), "--inspect", folder.c_str(), static_cast<char*>(nullptr));
  return Failed(absl::UnavailableError(StrCat("can't start ", *program, ": ", std::strerror(errno))));
}

int Doctor(const DoctorOptions& options) {
  if (!options.state.empty()) return InspectState(options.state);
  const bool as_json = options.as_json;
  if (!as_json) std::printf("starting one %s worker of 16 MiB ...\n", options.device.c_str());
  std::fflush(stdout);
  Examination examination(ParseDeviceKind(options.device).value_or(DeviceKind::kCpu));
  const std::vector<Finding>& findings = examination.Run();
  if (as_json) {
    // A message has the end of a log in it, which may be anything.
    std::printf(
        "%s\n",
        FindingsJson(options.device, findings).dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  if (!findings.back().status.ok()) return Failed(findings.back().status);
  if (as_json) return 0;
  std::printf("ok: coordinator, worker, shared memory, upload and download work on this host\n");
  TellOfDecoders();
  if (options.device == "cpu") TellOfGpus();
  return 0;
}

}  // namespace

Command AddDoctorCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Whether a cluster works on this host");
  auto options = std::make_shared<DoctorOptions>();
  command->add_option("--device", options->device, "of the worker that is tried")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_flag(
      "--json", options->as_json,
      "one JSON object on stdout: ok, device, workers, memory_bytes, checks (start, connect, upload, download, to "
      "the first that fails) and error (null or its message)");
  command->add_option(
      "--state", options->state,
      "say what stands in a coordinator's state folder, and what a start would read of it; nothing else "
      "is tried, nothing is changed");
  CLI::Option* const ready =
      command->add_flag("--ready", options->asks_ready, "start nothing: whether the pool at --address can be used");
  command->add_option("--workers", options->workers, "how many workers must be there (default: 1)")
      ->needs(ready)
      ->check(CLI::Range(1, 65536));
  options->address.AddTo(*command);
  command->footer(
      "Examples:\n  tessera doctor\n  tessera doctor --ready --workers 4 --address tls://node1:7421#token=HEX\n  "
      "tessera doctor --json\n  tessera doctor --device cuda\n  tessera doctor --state /var/lib/tessera\nThe exit "
      "status is "
      "0 if "
      "all works, else 1.");
  return {command, [options] { return options->asks_ready ? Ready(*options) : Doctor(*options); }};
}

}  // namespace tessera
