#include "client/cli/run_plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "schemas/host/cores.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kMaxRanksPerNode = 1024;  // docs/limits.md: max_ranks_per_node
constexpr int kMaxNodes = 1024;         // docs/limits.md: max_nodes

// "run: WHAT is "TEXT", it must be a number in [1, 1024]".
absl::StatusOr<int> ParseCount(std::string_view what, std::string_view text) {
  int count = 0;
  if (absl::SimpleAtoi(AbslView(text), &count) && count >= 1 && count <= kMaxRanksPerNode) return count;
  return absl::InvalidArgumentError(
      StrCat("run: ", what, " is \"", Printable(text, 40), "\", it must be a number in [1, ", kMaxRanksPerNode, "]"));
}

absl::Status CheckRange(std::string_view what, int value, int lowest, int highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("run: ", what, " is ", value, ", it must be in [", lowest, ", ", highest, "]"));
}

bool IsFile(const std::string& path) {
  struct stat file {};
  return stat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode);
}

// A program that may be run: a path, or a name that is looked for in PATH.
absl::Status CheckProgram(const std::string& program) {
  if (program.find('/') == std::string::npos) {
    const char* const path = std::getenv("PATH");
    for (const auto& folder : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
      const std::string place = StrCat(StdView(folder.empty() ? "." : folder), "/", program);
      if (IsFile(place) && access(place.c_str(), X_OK) == 0) return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        StrCat("run: the program ", Printable(program, 500), " is not in PATH",
               IsFile(program) ? " (the file of this folder is ./" + Printable(program, 500) + ")" : ""));
  }
  if (!IsFile(program)) {
    return absl::InvalidArgumentError(StrCat("run: there is no program ", Printable(program, 500)));
  }
  if (access(program.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("run: ", Printable(program, 500), " is not executable (chmod +x makes it so)"));
}

// Whether the words name a script by the rules of the flags.
absl::Status CheckWords(const RunOptions& options) {
  if (options.is_module && options.is_program) {
    return absl::InvalidArgumentError("run: -m and --no-python exclude each other");
  }
  if (options.words.empty()) return absl::InvalidArgumentError("run: no script is given");
  const std::string& script = options.words[0];
  if (absl::StartsWith(script, "-")) {
    return absl::InvalidArgumentError(StrCat("run: unknown option \"", Printable(script, 40),
                                             "\" (options of the script stand behind it; see tessera run --help)"));
  }
  if (options.is_module || options.is_program || absl::EndsWith(script, ".py")) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("run: ", Printable(script, 500),
                                           " does not end in .py; --no-python runs a program as it is, -m a module"));
}

// Whether the script is on this host, which runs it.
absl::Status CheckScript(const RunOptions& options) {
  if (options.is_module) return absl::OkStatus();
  if (options.is_program) return CheckProgram(options.words[0]);
  if (access(options.words[0].c_str(), R_OK) == 0 && IsFile(options.words[0])) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("run: there is no script ", Printable(options.words[0], 500)));
}

std::vector<std::string> CommandOf(const RunOptions& options) {
  std::vector<std::string> command;
  if (!options.is_program) {
    const char* const python = std::getenv("TESSERA_PYTHON");
    command = {python != nullptr && *python != '\0' ? python : "python3", "-u"};
    if (options.is_module) command.push_back("-m");
  }
  command.insert(command.end(), options.words.begin(), options.words.end());
  return command;
}

absl::Status CheckNumbers(const RunOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckRange("--max-restarts", options.max_restarts, 0, 1'000'000));
  TESSERA_RETURN_IF_ERROR(CheckRange("--restart-count", options.restart_count, 0, options.max_restarts));
  TESSERA_RETURN_IF_ERROR(CheckRange("--master-port", options.master_port, 0, 65535));
  TESSERA_RETURN_IF_ERROR(CheckRange("--workers", options.workers, 0, 1024));
  if (options.grace_s >= 0 && options.grace_s <= 86400) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("run: --grace is ", options.grace_s, ", it must be in [0, 86400] seconds"));
}

absl::Status CheckNodes(const RunOptions& options, bool has_address) {
  TESSERA_RETURN_IF_ERROR(CheckRange("--nnodes", options.nnodes, 1, kMaxNodes));
  if (options.node_rank < 0 || options.node_rank >= options.nnodes) {
    return absl::InvalidArgumentError(StrCat("run: --node-rank is ", options.node_rank, ", with --nnodes ",
                                             options.nnodes, " it must be in [0, ", options.nnodes - 1, "]"));
  }
  if (has_address && (options.workers != 0 || !options.memory.empty())) {
    return absl::InvalidArgumentError(
        "run: --workers and --memory are of a cluster that the run starts, and an address names another one");
  }
  if (options.nnodes == 1 && options.hosts.empty()) return absl::OkStatus();
  if (!has_address) {
    return absl::InvalidArgumentError(
        "run: several hosts need a coordinator that all of them reach: give --address, or set TESSERA_ADDRESS");
  }
  if (!options.hosts.empty() && (options.nnodes != 1 || options.node_rank != 0)) {
    return absl::InvalidArgumentError("run: --hosts counts the nodes; --nnodes and --node-rank are for runs without");
  }
  if (!options.hosts.empty()) return absl::OkStatus();
  if (options.master_addr.empty() || options.master_port == 0) {
    return absl::InvalidArgumentError(
        "run: with --nnodes, each node needs the same --master-addr and --master-port, of the first node");
  }
  if (options.max_restarts > 0 && !options.control_stdin) {
    return absl::InvalidArgumentError("run: nodes that are started one by one don't restart together: use --hosts");
  }
  return absl::OkStatus();
}

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

absl::StatusOr<std::vector<Host>> ParseHosts(std::string_view text, int ranks) {
  std::vector<Host> hosts;
  for (const auto& piece : absl::StrSplit(AbslView(text), ',')) {
    const std::string_view host = StdView(piece);
    const size_t colon = host.rfind(':');
    Host parsed{std::string(host.substr(0, colon)), ranks};
    // ssh would take a name with a dash in front as an option.
    if (parsed.name.empty() || parsed.name[0] == '-') {
      return absl::InvalidArgumentError(
          StrCat("run: --hosts has \"", Printable(host, 40), "\", it must be names like host1,host2:4"));
    }
    if (colon != std::string_view::npos) {
      TESSERA_ASSIGN_OR_RETURN(parsed.ranks, ParseCount(StrCat("--hosts: the ranks of ", Printable(parsed.name, 60)),
                                                        host.substr(colon + 1)));
    }
    hosts.push_back(std::move(parsed));
  }
  if (hosts.size() > kMaxNodes) {
    return absl::InvalidArgumentError(StrCat("run: --hosts has ", hosts.size(), " hosts, at most ", kMaxNodes));
  }
  return hosts;
}

absl::StatusOr<std::vector<int>> ParseNodeSizes(std::string_view text, int nodes) {
  const auto count = static_cast<size_t>(nodes);
  if (text == "auto" || text == "cpu") {
    if (nodes > 1) return absl::InvalidArgumentError("run: --nproc must be a number where there are several nodes");
    return std::vector<int>{std::min(UsableCores(), kMaxRanksPerNode)};
  }
  if (text.find(',') == std::string_view::npos) {
    TESSERA_ASSIGN_OR_RETURN(const int ranks, ParseCount("--nproc", text));
    return std::vector<int>(count, ranks);
  }
  std::vector<int> sizes;
  for (const auto& piece : absl::StrSplit(AbslView(text), ',')) {
    TESSERA_ASSIGN_OR_RETURN(const int ranks, ParseCount("--nproc", StdView(piece)));
    sizes.push_back(ranks);
  }
  if (sizes.size() == count) return sizes;
  return absl::InvalidArgumentError(StrCat("run: --nproc has ", sizes.size(), " numbers, --nnodes is ", nodes));
}

absl::StatusOr<RunPlan> PlanRun(const RunOptions& options, bool has_address) {
  RunPlan plan;
  TESSERA_RETURN_IF_ERROR(CheckNumbers(options));
  TESSERA_RETURN_IF_ERROR(CheckNodes(options, has_address));
  if (options.hosts.empty()) {
    TESSERA_ASSIGN_OR_RETURN(plan.shape.node_sizes, ParseNodeSizes(options.nproc, options.nnodes));
    plan.shape.node = options.node_rank;
  } else {
    // Cores of this host say nothing of another one's.
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int> sizes, ParseNodeSizes(options.nproc, 2));
    if (sizes[0] != sizes[1]) return absl::InvalidArgumentError("run: --nproc has one number with --hosts");
    TESSERA_ASSIGN_OR_RETURN(plan.hosts, ParseHosts(options.hosts, sizes[0]));
    plan.shape.node_sizes.clear();
    for (const Host& host : plan.hosts) plan.shape.node_sizes.push_back(host.ranks);
  }
  TESSERA_RETURN_IF_ERROR(CheckWords(options));
  if (plan.hosts.empty()) TESSERA_RETURN_IF_ERROR(CheckScript(options));
  plan.command = CommandOf(options);
  plan.shape.master_port = options.master_port;
  plan.shape.max_restarts = options.max_restarts;
  plan.shape.restart = options.restart_count;
  plan.shape.master_addr = !options.master_addr.empty() ? options.master_addr : "127.0.0.1";
  if (options.master_addr.empty() && !plan.hosts.empty()) {
    plan.shape.master_addr = plan.hosts[0].name.substr(plan.hosts[0].name.find('@') + 1);  // without the user
  }
  plan.shape.run_id = options.run_id;
  // Nodes that are started one by one have nothing else in common.
  if (options.run_id.empty() && options.nnodes > 1) {
    plan.shape.run_id = StrCat(plan.shape.master_addr, ":", plan.shape.master_port);
  }
  return plan;
}

std::string NodeCommand(const RunOptions& options, const RunShape& shape, const std::string& program,
                        const std::string& folder) {
  std::string sizes;
  for (const int size : shape.node_sizes) StrAppend(&sizes, sizes.empty() ? "" : ",", size);
  std::vector<std::string> words = {program,
                                    "run",
                                    "--control-stdin",
                                    StrCat("--nnodes=", shape.node_sizes.size()),
                                    StrCat("--node-rank=", shape.node),
                                    StrCat("--nproc=", sizes),
                                    StrCat("--master-addr=", shape.master_addr),
                                    StrCat("--master-port=", shape.master_port),
                                    StrCat("--max-restarts=", shape.max_restarts),
                                    StrCat("--restart-count=", shape.restart),
                                    StrCat("--run-id=", shape.run_id),
                                    StrCat("--grace=", options.grace_s)};
  if (!options.log_dir.empty()) words.push_back("--log-dir=" + options.log_dir);
  if (options.tee) words.push_back("--tee");
  if (options.no_prefix) words.push_back("--no-prefix");
  if (options.is_module) words.push_back("-m");
  if (options.is_program) words.push_back("--no-python");
  words.insert(words.end(), options.words.begin(), options.words.end());
  std::string command = "cd " + Quoted(folder) + " && exec";
  for (const std::string& word : words) command += " " + Quoted(word);
  return command;
}

}  // namespace tessera
