#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "client/cli/command.h"
#include "client/cluster.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kMemoryBytes = 16 << 20;  // the text says it too

// One thing that was tried; what comes behind one that failed isn't tried.
struct Finding {
  const char* check;
  absl::Status status;
};

// Starts a small cluster, and sends a number there and back.
class Examination {
 public:
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
    options.memory_bytes = kMemoryBytes;
    options.start_timeout_s = 20;
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

  const float value_ = 42;
  std::vector<Finding> findings_;
  // What is used stands before who uses it: they end in the reverse order.
  std::optional<LocalCluster> cluster_;
  std::optional<Session> session_;
  std::optional<Tensor> tensor_;
};

nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings) {
  const absl::Status& last = findings.back().status;
  nlohmann::ordered_json json = {{"ok", last.ok()}, {"workers", 1}, {"memory_bytes", kMemoryBytes}};
  json["checks"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["checks"].push_back({{"check", finding.check}, {"ok", finding.status.ok()}});
  }
  json["error"] = nullptr;
  if (!last.ok()) json["error"] = std::string(last.message());
  return json;
}

int Doctor(bool as_json) {
  if (!as_json) std::printf("starting one worker of 16 MiB ...\n");
  std::fflush(stdout);
  Examination examination;
  const std::vector<Finding>& findings = examination.Run();
  if (as_json) {
    // A message has the end of a log in it, which may be anything.
    std::printf("%s\n", FindingsJson(findings).dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  if (!findings.back().status.ok()) return Failed(findings.back().status);
  if (!as_json) std::printf("ok: coordinator, worker, shared memory, upload and download work on this host\n");
  return 0;
}

}  // namespace

Command AddDoctorCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Whether a cluster works on this host");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag(
      "--json", *as_json,
      "one JSON object on stdout: ok, workers, memory_bytes, checks (start, connect, upload, download, to "
      "the first that fails) and error (null or its message)");
  command->footer("Examples:\n  tessera doctor\n  tessera doctor --json\nThe exit status is 0 if all works, else 1.");
  return {command, [as_json] { return Doctor(*as_json); }};
}

}  // namespace tessera
