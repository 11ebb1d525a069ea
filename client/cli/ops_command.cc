// tessera ops: the op catalog, without any server.

#include <cstdio>

#include <nlohmann/json.hpp>

#include "client/cli/command.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/types/device_kind.h"

namespace tessera {
namespace {

struct OpsOptions {
  std::string word;
  std::string device = "cpu";
  bool as_json = false;
};

// Shows all rows, or those whose name or documentation has the word; and for a GPU, where each is computed.
int ShowOps(const OpsOptions& options) {
  const auto& [word, device, as_json] = options;
  const bool is_gpu = device == ToText(DeviceKind::kCuda);
  nlohmann::json rows = nlohmann::json::array();
  std::vector<std::vector<std::string>> table = {{"OP", is_gpu ? "COMPUTED BY" : "WHAT IT DOES"}};
  for (const OpRow& row : Catalog()) {
    if (row.signature.find(word) == row.signature.npos && row.doc.find(word) == row.doc.npos) continue;
    rows.push_back({{"name", row.name}, {"signature", row.signature}, {"doc", row.doc}});
    if (is_gpu) rows.back()["computed_by"] = PlaceOnGpu(row);
    table.push_back({std::string(row.signature), std::string(is_gpu ? PlaceOnGpu(row) : row.doc)});
  }
  if (as_json) {
    std::printf("%s\n", rows.dump(2).c_str());
    return 0;
  }
  if (rows.empty()) return Failed(absl::NotFoundError("no op of the catalog has \"" + word + "\""));
  std::printf("%s", ShowTable(std::move(table)).c_str());
  return 0;
}

}  // namespace

Command AddOpsCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("ops", "the op catalog: what each op takes and does; needs no server");
  auto options = std::make_shared<OpsOptions>();
  command->add_option("word", options->word, "only ops that have this in their signature or documentation");
  command
      ->add_option("--device", options->device,
                   "cuda: by a kernel of the GPU, or by the worker's host, for each op (default: cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_flag("--json", options->as_json, "one JSON array on stdout");
  return {command, [options] { return ShowOps(*options); }};
}

}  // namespace tessera
