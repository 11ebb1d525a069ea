#include "tests/bench/limits/chains.h"

#include <algorithm>

#include "tests/bench/limits/processes.h"

namespace tessera::bench {
namespace {

float Input(size_t element) { return static_cast<float>(element % 97) - 40.0f; }

float Chain(float x) { return std::max((x * 2.0f + 1.0f) * 0.5f - 3.0f, 0.0f) * 1.5f; }

}  // namespace

nlohmann::json MeasureChain(const ChainCase& work) {
  auto* const input = reinterpret_cast<float*>(SharedBytes(work.elements * sizeof(float)));
  auto* const output = reinterpret_cast<float*>(SharedBytes(work.elements * sizeof(float)));
  for (size_t i = 0; i < work.elements; ++i) input[i] = Input(i);
  const auto run = [&](Team& team) {
    const auto self = static_cast<size_t>(team.self()), size = static_cast<size_t>(team.size());
    const size_t stop = work.elements * (self + 1) / size;
    for (size_t i = work.elements * self / size; i < stop; ++i) output[i] = Chain(input[i]);
  };
  nlohmann::json variants;
  variants["loop"] = MeasureSeconds({work.processes, work.repetitions, {}, run, Asked::kNever});
  for (size_t i = 0; i < work.elements; ++i) CheckValues(output[i] == Chain(Input(i)), "chain");
  return {{"variants", variants}, {"bytes", work.elements * sizeof(float)}};
}

}  // namespace tessera::bench
