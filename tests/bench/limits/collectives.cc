#include "tests/bench/limits/collectives.h"

#include <algorithm>
#include <vector>

#include "tests/bench/limits/memory_loops.h"
#include "tests/bench/limits/processes.h"

namespace tessera::bench {
namespace {

constexpr size_t kGrain = 16;  // elements of a cache line

float InputValue(size_t element, int process) {
  return static_cast<float>(element % 97 + static_cast<size_t>(process));
}

// Inputs and outputs of all processes, seen by all.
struct Arrays {
  std::vector<float*> inputs, outputs;
  size_t elements;
  int processes;

  explicit Arrays(const CollectiveCase& work) : elements(work.elements), processes(work.processes) {
    for (int p = 0; p < processes; ++p) {
      inputs.push_back(reinterpret_cast<float*>(SharedBytes(elements * sizeof(float))));
      outputs.push_back(reinterpret_cast<float*>(SharedBytes(elements * sizeof(float))));
    }
  }
  size_t PartBegin(int p) const {
    return std::min(elements, elements / kGrain * static_cast<size_t>(p) / static_cast<size_t>(processes) * kGrain);
  }
  size_t PartSize(int p) const { return (p + 1 == processes ? elements : PartBegin(p + 1)) - PartBegin(p); }
};

void SumPart(const Arrays& arrays, Team& team, std::span<float* const> results, Stores stores) {
  const size_t begin = arrays.PartBegin(team.self());
  std::vector<const float*> terms;
  std::vector<float*> outputs;
  for (float* input : arrays.inputs) terms.push_back(input + begin);
  for (float* output : results) outputs.push_back(output + begin);
  SumTerms(terms, outputs, arrays.PartSize(team.self()), stores);
}

void PushPart(const Arrays& arrays, Team& team, Stores stores) {
  const int self = team.self();
  const size_t begin = arrays.PartBegin(self), bytes = arrays.PartSize(self) * sizeof(float);
  for (int q = 0; q < team.size(); ++q) {
    CopyBytes(reinterpret_cast<std::byte*>(arrays.outputs[static_cast<size_t>((self + q) % team.size())] + begin),
              reinterpret_cast<const std::byte*>(arrays.inputs[static_cast<size_t>(self)] + begin), bytes, stores);
  }
}

void PullParts(const Arrays& arrays, Team& team, Stores stores) {
  const int self = team.self();
  for (int q = 0; q < team.size(); ++q) {
    const int from = (self + q) % team.size();
    const size_t begin = arrays.PartBegin(from);
    CopyBytes(reinterpret_cast<std::byte*>(arrays.outputs[static_cast<size_t>(self)] + begin),
              reinterpret_cast<const std::byte*>(arrays.inputs[static_cast<size_t>(from)] + begin),
              arrays.PartSize(from) * sizeof(float), stores);
  }
}

void CheckOutput(const CollectiveCase& work, const Arrays& arrays, int process) {
  const bool whole = work.kind != "reduce_scatter";
  for (size_t i = 0; i < work.elements; ++i) {
    int part = 0;
    while (part + 1 < work.processes && i >= arrays.PartBegin(part + 1)) ++part;
    if (!whole && part != process) continue;
    float expected = 0;
    if (work.kind == "all_gather") {
      expected = InputValue(i, part);
    } else {
      for (int p = 0; p < work.processes; ++p) expected += InputValue(i, p);
    }
    CheckValues(arrays.outputs[static_cast<size_t>(process)][i] == expected, work.kind.c_str());
  }
}

}  // namespace

nlohmann::json MeasureCollective(const CollectiveCase& work) {
  CheckValues(work.elements % kGrain == 0, "the elements are no multiple of 16");
  const Arrays arrays(work);
  const auto prepare = [&arrays](Team& team) {
    float* input = arrays.inputs[static_cast<size_t>(team.self())];
    for (size_t i = 0; i < arrays.elements; ++i) input[i] = InputValue(i, team.self());
    std::fill_n(arrays.outputs[static_cast<size_t>(team.self())], arrays.elements, -1.0f);
  };
  nlohmann::json variants;
  const auto measure = [&](const std::string& name, auto run) {
    const auto finish = [&run](Team& team) {
      run(team);
      FinishStores();
    };
    variants[name] = MeasureSeconds({work.processes, work.repetitions, prepare, finish, work.asked});
    for (int p = 0; p < work.processes; ++p) CheckOutput(work, arrays, p);
  };
  for (const Stores stores : {Stores::kOrdinary, Stores::kStreaming}) {
    if (work.kind == "all_reduce") {
      measure(ToText(stores), [&](Team& team) { SumPart(arrays, team, arrays.outputs, stores); });
    } else if (work.kind == "reduce_scatter") {
      measure(ToText(stores), [&](Team& team) {
        SumPart(arrays, team, {&arrays.outputs[static_cast<size_t>(team.self())], 1}, stores);
      });
    } else {
      measure(std::string("push_") + ToText(stores), [&](Team& team) { PushPart(arrays, team, stores); });
      measure(std::string("pull_") + ToText(stores), [&](Team& team) { PullParts(arrays, team, stores); });
    }
  }
  return {{"variants", variants}, {"bytes", work.elements * sizeof(float)}};
}

}  // namespace tessera::bench
