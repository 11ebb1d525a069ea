#pragma once

// RankEnvironment: the variables by which a rank learns its place in a run. They are torchrun's, so a script that runs
// under torchrun runs under `tessera run` as it is. A pure function: it reads no variable and starts nothing.
//
// Law: the ranks of all nodes are numbered through, node by node. With nodes of 2 and 3 ranks, the second node's local
// rank 1 is rank 3 of 5:
//
//   RankEnvironment({.node_sizes = {2, 3}, .node = 1, ...}, 1, "/tmp/e.json")
//     RANK=3 LOCAL_RANK=1 WORLD_SIZE=5 LOCAL_WORLD_SIZE=3 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ...

#include <string>
#include <vector>

namespace tessera {

// One attempt of a run, as one of its nodes sees it.
struct RunShape {
  std::vector<int> node_sizes = {1};  // ranks of each node; at least one node, each with at least one rank
  int node = 0;                       // this node, an index of node_sizes
  std::string run_id;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int restart = 0;  // 0 in the first attempt
  int max_restarts = 0;

  int WorldSize() const;
  // The rank of this node's first process.
  int FirstRank() const;
  // The number of processes on this node.
  int LocalSize() const { return node_sizes[static_cast<size_t>(node)]; }
};

// Entries "NAME=VALUE". The rank may write why it failed to `error_file`, as torch's @record does.
std::vector<std::string> RankEnvironment(const RunShape& shape, int local_rank, const std::string& error_file);

// `base` with the entries of `changes` in place of those of the same name. A name that is twice in `changes` has its
// last value.
std::vector<std::string> MergedEnvironment(const std::vector<std::string>& base,
                                           const std::vector<std::string>& changes);

}  // namespace tessera
