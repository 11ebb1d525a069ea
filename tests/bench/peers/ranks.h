#pragma once

// Tools that the programs of peers share: a loop that times one thing on all ranks, and JSON on stdout of rank 0:
// {"variants": {NAME: [seconds ...]}}. Built with mpicxx by tests/bench/suite/peers.py, not by Bazel, so that the build
// needs no MPI.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::bench {

using Variants = std::map<std::string, std::vector<double>>;

inline int Rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

inline int Ranks() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

// Seconds of each repetition after two that aren't timed, on every rank: from a barrier to when the last
// rank has ended.
inline std::vector<double> MeasureSeconds(int repetitions, const std::function<void()>& run) {
  constexpr int kWarmUps = 2;
  std::vector<double> seconds;
  for (int r = 0; r < kWarmUps + repetitions; ++r) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    run();
    const double own = MPI_Wtime() - start;
    double longest = 0;
    MPI_Allreduce(&own, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (r >= kWarmUps) seconds.push_back(longest);
  }
  return seconds;
}

inline void CheckValues(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong values: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

inline void PrintVariants(const Variants& variants) {
  if (Rank() != 0) return;
  std::printf("{\"variants\": {");
  const char* between = "";
  for (const auto& [name, samples] : variants) {
    std::printf("%s\"%s\": [", between, name.c_str());
    for (size_t i = 0; i < samples.size(); ++i) std::printf("%s%.9f", i == 0 ? "" : ", ", samples[i]);
    std::printf("]");
    between = ", ";
  }
  std::printf("}}\n");
}

}  // namespace tessera::bench
