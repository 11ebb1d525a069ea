// A client's request to explain, on any bytes: a plan on two workers, or an error.

#include <capnp/message.h>

#include "server/coordinator/rpc/describe.h"
#include "tests/fuzz/capnp_words.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

void Explain(capnp::MessageReader& reader) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const Mesh mesh = *Mesh::Make({2}, {}, {});
  cluster.Submit(session, {FullRecord(mesh, {8, 6}, {Placement::Shard(0)}, 1),
                           FullRecord(mesh, {6, 4}, {Placement::Replicate()}, 2)});
  capnp::MallocMessageBuilder answer;
  DescribePlan(cluster.machine(), session, reader.getRoot<wire::Session::ExplainParams>(),
               answer.initRoot<wire::PlanText>())
      .IgnoreError();
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const std::vector<capnp::word> words = WordsOf(data, size);
  if (!words.empty()) ReadAs(words, Explain);
  return 0;
}
