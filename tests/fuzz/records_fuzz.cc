// A client's batch, on any bytes: the codec answers every record with a value or a BadRecord, and the
// state machine takes what came out, runs it on two workers and is left clean when the session closes.
// The same bytes are read as what the two ends of the worker link send each other.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "schemas/types/status_macros.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/plan/rpc/instance_codec.h"
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

template <typename Read>
void ReadAs(const std::vector<capnp::word>& words, const Read& read) {
  try {
    capnp::FlatArrayMessageReader reader(kj::ArrayPtr<const capnp::word>(words.data(), words.size()));
    read(reader);
  } catch (const kj::Exception& e) {  // malformed pointers and texts: the RPC edge ends the call with it
    TESSERA_CHECK(e.getDescription().size() > 0);
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  std::vector<capnp::word> words(size / sizeof(capnp::word));
  if (words.empty()) return 0;
  std::memcpy(static_cast<void*>(words.data()), data, words.size() * sizeof(capnp::word));
  ReadAs(words, SubmitBatch);
  ReadAs(words, DecodeWorkerLink);
  return 0;
}
