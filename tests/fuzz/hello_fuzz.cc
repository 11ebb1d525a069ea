// Hellos of a client and a worker, on any bytes: refused, or within the limits.

#include <capnp/message.h>

#include "server/coordinator/rpc/hello_codec.h"
#include "tests/fuzz/capnp_words.h"

namespace tessera {
namespace {

constexpr double kMaxLeaseS = 3600;

void DecodeClient(capnp::MessageReader& reader) {
  const auto hello = DecodeClientHello(reader.getRoot<wire::ClientHello>(), "", kMaxLeaseS);
  if (!hello.ok()) return;
  if (hello->lease_s.has_value()) TESSERA_CHECK(*hello->lease_s >= 0 && *hello->lease_s <= kMaxLeaseS);
  for (const char c : hello->client) TESSERA_CHECK(c >= ' ' && c <= '~');
}

void DecodeWorker(capnp::MessageReader& reader) {
  const auto hello = DecodeWorkerHello(reader.getRoot<wire::WorkerHello>());
  if (hello.ok()) TESSERA_CHECK(hello->memory_bytes >= 0);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const std::vector<capnp::word> words = WordsOf(data, size);
  if (words.empty()) return 0;
  ReadAs(words, DecodeClient);
  ReadAs(words, DecodeWorker);
  return 0;
}
