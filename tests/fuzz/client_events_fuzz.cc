// A coordinator's messages to a client, on any bytes: events, the welcome, and the answers to status and explain.

#include <capnp/message.h>

#include "client/connection/encode.h"
#include "tests/fuzz/capnp_words.h"

namespace tessera {
namespace {

constexpr unsigned kMaxEvents = 64;

void DecodeLink(capnp::MessageReader& reader) {
  const auto message = reader.getRoot<wire::ToClient>();
  if (!message.isEvents()) return;
  for (unsigned i = 0; i < message.getEvents().size() && i < kMaxEvents; ++i) DecodeEvent(message.getEvents()[i]);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const std::vector<capnp::word> words = WordsOf(data, size);
  if (words.empty()) return 0;
  ReadAs(words, DecodeLink);
  ReadAs(words, [](capnp::MessageReader& reader) { DecodeWelcome(reader.getRoot<wire::Welcome>()); });
  ReadAs(words, [](capnp::MessageReader& reader) {
    DecodeClusterStatus(reader.getRoot<wire::ClusterStatus>()).status().IgnoreError();
  });
  ReadAs(words,
         [](capnp::MessageReader& reader) { DecodePlanText(reader.getRoot<wire::PlanText>()).status().IgnoreError(); });
  return 0;
}
