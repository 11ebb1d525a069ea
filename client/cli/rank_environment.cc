#include "client/cli/rank_environment.h"

#include <numeric>
#include <set>

#include "schemas/types/str_cat.h"

namespace tessera {

int RunShape::WorldSize() const { return std::accumulate(node_sizes.begin(), node_sizes.end(), 0); }

int RunShape::FirstRank() const { return std::accumulate(node_sizes.begin(), node_sizes.begin() + node, 0); }

std::vector<std::string> RankEnvironment(const RunShape& shape, int local_rank, const std::string& error_file) {
  const int rank = shape.FirstRank() + local_rank;
  const int world_size = shape.WorldSize();
  return {
      StrCat("RANK=", rank),
      StrCat("LOCAL_RANK=", local_rank),
      StrCat("WORLD_SIZE=", world_size),
      StrCat("LOCAL_WORLD_SIZE=", shape.LocalSize()),
      StrCat("GROUP_RANK=", shape.node),
      StrCat("GROUP_WORLD_SIZE=", shape.node_sizes.size()),
      StrCat("ROLE_RANK=", rank),
      StrCat("ROLE_WORLD_SIZE=", world_size),
      "ROLE_NAME=default",
      "MASTER_ADDR=" + shape.master_addr,
      StrCat("MASTER_PORT=", shape.master_port),
      "TORCHELASTIC_RUN_ID=" + shape.run_id,
      StrCat("TORCHELASTIC_RESTART_COUNT=", shape.restart),
      StrCat("TORCHELASTIC_MAX_RESTARTS=", shape.max_restarts),
      // The launcher serves no store: rank 0 makes the one at MASTER_PORT.
      "TORCHELASTIC_USE_AGENT_STORE=False",
      "TORCHELASTIC_ERROR_FILE=" + error_file,
  };
}

std::vector<std::string> MergedEnvironment(const std::vector<std::string>& base,
                                           const std::vector<std::string>& changes) {
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  std::set<std::string> changed;
  std::vector<std::string> merged;
  for (auto entry = changes.rbegin(); entry != changes.rend(); ++entry) {
    if (changed.insert(name_of(*entry)).second) merged.push_back(*entry);
  }
  for (const std::string& entry : base) {
    if (changed.count(name_of(entry)) == 0) merged.push_back(entry);
  }
  return merged;
}

}  // namespace tessera
