// A client's batch, on any bytes: the codec answers every record with a value or a BadRecord, and the
// state machine takes what came out, runs it on two workers and is left clean when the session closes.
// The same bytes are read as what the two ends of the worker link send each other.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <capnp/message.h>

#include "schemas/types/status_macros.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/plan/rpc/instance_codec.h"
#include "tests/fuzz/capnp_words.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

void SubmitBatch(capnp::MessageReader& reader) {
  absl::StatusOr<std::vector<Record>> records = DecodeRecords(reader.getRoot<wire::Batch>());
  if (!records.ok()) return;
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const Mesh mesh = *Mesh::Make({2}, {}, {});
  cluster.Submit(session, {FullRecord(mesh, {8, 6}, {Placement::Shard(0)}, 1),
                           FullRecord(mesh, {6, 4}, {Placement::Replicate()}, 2)});
  cluster.Submit(session, *std::move(records));
  cluster.CompleteAll();
  cluster.Advance(1'000);
  cluster.CompleteAll();
  cluster.Apply(SessionClosedEvent{session});
  cluster.CompleteAll();
  TESSERA_CHECK(cluster.machine().sessions().empty());
  TESSERA_CHECK(cluster.machine().unsettled_ops() == 0);
}

void DecodeWorkerLink(capnp::MessageReader& reader) {
  const auto messages = reader.getRoot<wire::WorkerMessages>().getMessages();
  for (unsigned i = 0; i < messages.size() && i < 64; ++i) DecodeWorkerMessage(messages[i]).status().IgnoreError();
  DecodeCompletion(reader.getRoot<wire::Completion>()).status().IgnoreError();
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const std::vector<capnp::word> words = WordsOf(data, size);
  if (words.empty()) return 0;
  ReadAs(words, SubmitBatch);
  ReadAs(words, DecodeWorkerLink);
  return 0;
}
