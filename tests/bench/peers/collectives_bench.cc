// Open MPI's collectives of f32: collectives_bench KIND BYTES REPETITIONS. KIND is all_reduce,
// reduce_scatter, all_gather or all_to_all; BYTES are those of the whole tensor, or of a rank's part of it for
// all_to_all times the ranks.

#include <cstring>

#include "ranks.h"

namespace tessera::bench {
namespace {

float Value(size_t element, int rank) { return static_cast<float>(element % 97 + static_cast<size_t>(rank)); }

std::vector<float> Filled(size_t count, int rank) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(i, rank);
  return values;
}

float SumOfRanks(size_t element) {
  float sum = 0;
  for (int r = 0; r < Ranks(); ++r) sum += Value(element, r);
  return sum;
}

std::vector<double> AllReduce(size_t count, int repetitions) {
  const std::vector<float> input = Filled(count, Rank());
  std::vector<float> output(count);
  auto seconds = MeasureSeconds(repetitions, [&] {
    MPI_Allreduce(input.data(), output.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  CheckValues(output[count / 3] == SumOfRanks(count / 3), "all_reduce");
  return seconds;
}

std::vector<double> ReduceScatter(size_t count, int repetitions) {
  const size_t part = count / static_cast<size_t>(Ranks());
  const std::vector<float> input = Filled(count, Rank());
  std::vector<float> output(part);
  auto seconds = MeasureSeconds(repetitions, [&] {
    MPI_Reduce_scatter_block(input.data(), output.data(), static_cast<int>(part), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  CheckValues(output[5] == SumOfRanks(part * static_cast<size_t>(Rank()) + 5), "reduce_scatter");
  return seconds;
}

std::vector<double> AllGather(size_t count, int repetitions) {
  const size_t part = count / static_cast<size_t>(Ranks());
  const std::vector<float> input = Filled(part, Rank());
  std::vector<float> output(count);
  auto seconds = MeasureSeconds(repetitions, [&] {
    MPI_Allgather(input.data(), static_cast<int>(part), MPI_FLOAT, output.data(), static_cast<int>(part), MPI_FLOAT,
                  MPI_COMM_WORLD);
  });
  CheckValues(output[count - 1] == Value(part - 1, Ranks() - 1), "all_gather");
  return seconds;
}

std::vector<double> AllToAll(size_t count, int repetitions) {
  const size_t ranks = static_cast<size_t>(Ranks()), part = count / ranks / ranks;
  const std::vector<float> input = Filled(part * ranks, Rank());
  std::vector<float> output(part * ranks);
  auto seconds = MeasureSeconds(repetitions, [&] {
    MPI_Alltoall(input.data(), static_cast<int>(part), MPI_FLOAT, output.data(), static_cast<int>(part), MPI_FLOAT,
                 MPI_COMM_WORLD);
  });
  const size_t self = static_cast<size_t>(Rank());
  CheckValues(output[part * (ranks - 1)] == Value(part * self, Ranks() - 1), "all_to_all");
  return seconds;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  MPI_Init(&argc, &argv);
  CheckValues(argc == 4, "usage: collectives_bench KIND BYTES REPETITIONS");
  const std::string kind = argv[1];
  const size_t count = std::strtoull(argv[2], nullptr, 10) / sizeof(float);
  const int repetitions = std::atoi(argv[3]);
  Variants variants;
  if (kind == "all_reduce") variants[kind] = AllReduce(count, repetitions);
  if (kind == "reduce_scatter") variants[kind] = ReduceScatter(count, repetitions);
  if (kind == "all_gather") variants[kind] = AllGather(count, repetitions);
  if (kind == "all_to_all") variants[kind] = AllToAll(count, repetitions);
  CheckValues(!variants.empty(), "no such kind");
  PrintVariants(variants);
  MPI_Finalize();
}
