// tessera ops: the op catalog, without any server.

#include <cstdio>

#include <nlohmann/json.hpp>

#include "client/cli/command.h"
#include "schemas/ops/catalog.h"

namespace tessera {
namespace {

// Of all rows, or of those whose name or documentation has the word.
int ShowOps(const std::string& word, bool as_json) {
  nlohmann::json rows = nlohmann::json::array();
  std::vector<std::vector<std::string>> table = {{"OP", "WHAT IT DOES"}};
  for (const OpRow& row : Catalog()) {
    if (row.signature.find(word) == row.signature.npos && row.doc.find(word) == row.doc.npos) continue;
    rows.push_back({{"name", row.name}, {"signature", row.signature}, {"doc", row.doc}});
    table.push_back({std::string(row.signature), std::string(row.doc)});
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
  auto word = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  command->add_option("word", *word, "only ops that have this in their signature or documentation");
  command->add_flag("--json", *as_json, "one JSON array on stdout");
  return {command, [word, as_json] { return ShowOps(*word, *as_json); }};
}

}  // namespace tessera
