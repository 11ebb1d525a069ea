// tessera-simulate: runs seeds of the simulation; the first one that breaks a law is told with what happened last.

#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "tests/simulation/simulation.h"

namespace {

constexpr size_t kLastLines = 60;

void Print(const std::vector<std::string>& trace, size_t lines) {
  for (size_t i = trace.size() > lines ? trace.size() - lines : 0; i < trace.size(); ++i) puts(trace[i].c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Runs the control plane in simulated time, over seeds, and checks its laws"};
  uint64_t seeds = 1000;
  uint64_t first = 1;
  bool trace = false;
  bool kills_coordinator = false;
  size_t torn_records = 0;
  app.add_option("--seeds", seeds, "how many");
  app.add_option("--first", first, "the first of them");
  app.add_flag("--trace", trace, "print all that happens");
  app.add_flag("--kill-coordinator", kills_coordinator,
               "kill the coordinator at any time, also as it writes an event; another one goes on with its log");
  app.add_option("--torn-records", torn_records,
                 "with --kill-coordinator: in the end one of so many records of the log is torn at each of its bytes");
  bool ends_machine = false;
  app.add_flag(
      "--end-machine", ends_machine,
      "as --kill-coordinator, and half of the times its machine ends: what its log has behind the last sync is lost");
  CLI11_PARSE(app, argc, argv);
  kills_coordinator = kills_coordinator || ends_machine;
  int64_t steps = 0;
  int64_t restarts = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const tessera::SimulationResult result = tessera::Simulate({.seed = seed,
                                                                .kills_coordinator = kills_coordinator,
                                                                .takes_snapshots = kills_coordinator,
                                                                .ends_machine = ends_machine,
                                                                .torn_records = kills_coordinator ? torn_records : 0});
    steps += result.steps;
    restarts += result.restarts;
    if (trace) Print(result.trace, result.trace.size());
    if (result.status.ok()) continue;
    if (!trace) Print(result.trace, kLastLines);
    printf("seed %llu, step %lld: %s\n", static_cast<unsigned long long>(seed), static_cast<long long>(result.steps),
           result.status.ToString().c_str());
    return 1;
  }
  printf("%llu seeds, %lld steps%s: all laws hold\n", static_cast<unsigned long long>(seeds),
         static_cast<long long>(steps),
         kills_coordinator ? (", " + std::to_string(restarts) + " coordinators killed").c_str() : "");
  return 0;
}
