#pragma once

// RunPlan: what `tessera run` was asked to do, checked. RunOptions is what the command line says; PlanRun turns it into
// a plan, or says in one line what is wrong with it. It looks at files and starts nothing.
//
// Law: a plan is either for the ranks of this host (hosts is empty, shape is whole but for the port) or for several
// hosts, each of which gets a command of its own (NodeCommand).

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/rank_environment.h"

namespace tessera {

struct RunOptions {
  std::string nproc = "1";
  std::string hosts;
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr;
  int master_port = 0;
  int max_restarts = 0;
  int restart_count = 0;  // of a node that a run on several hosts starts
  std::string run_id;
  double grace_s = 10;
  int workers = 0;
  std::string memory;
  bool is_module = false;
  bool is_program = false;
  bool no_prefix = false;
  bool tee = false;
  bool control_stdin = false;
  std::string log_dir;
  std::vector<std::string> words;  // the script and its arguments
};

struct Host {
  std::string name;
  int ranks = 1;
};

struct RunPlan {
  RunShape shape;  // master_port 0: a free one for each attempt
  std::vector<Host> hosts;
  std::vector<std::string> command;  // of each rank: the program and its arguments
};

// "a,b:4": the number of ranks that a host has behind ":", else `ranks`. InvalidArgument for no name or a bad number.
absl::StatusOr<std::vector<Host>> ParseHosts(std::string_view text, int ranks);

// The ranks of each of `nodes` nodes: "4" is for each; "2,4" has one number for each; "auto" and "cpu" are the cores of
// this host, of one node alone.
absl::StatusOr<std::vector<int>> ParseNodeSizes(std::string_view text, int nodes);

// InvalidArgument in one line, as all errors of the command line. `has_address`: whether a coordinator is named.
absl::StatusOr<RunPlan> PlanRun(const RunOptions& options, bool has_address);

// The command for a shell on the host of this node. `program` is this program's path, there, too; `folder` the folder
// to run it in; `shape` has the attempt's port and restart.
std::string NodeCommand(const RunOptions& options, const RunShape& shape, const std::string& program,
                        const std::string& folder);

}  // namespace tessera
