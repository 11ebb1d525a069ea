// Bytes that a client of HTTP may send to a coordinator (--listen-http), on any bytes: each connection ends with it,
// each answer is one of HTTP with a status that the server has, and who asks properly behind it is answered.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include <kj/async-io.h>

#include "schemas/types/status_macros.h"
#include "server/coordinator/rpc/http_loop.h"

namespace tessera {
namespace {

constexpr auto kPatience = 20 * kj::SECONDS;  // of a machine that is busy
constexpr int kBetweenLooks = 64;             // inputs between two proper requests
constexpr size_t kEnough = 4 << 20;           // of an answer: a stream of events has no end in the time of an input

// The coordinator's loop is this thread's: it turns while an answer is awaited.
class Served {
 public:
  Served() : io_(kj::setupAsyncIo()) {
    // Start waits for the thread, which asks nothing of this loop before it listens.
    auto http = HttpLoop::Start({.address = "127.0.0.1:0", .tls = {}}, kj::getCurrentThreadExecutor(), []() {
      HttpSnapshot snapshot;
      snapshot.metrics.version = "fuzz";
      return snapshot;
    });
    TESSERA_CHECK(http.ok());
    http_ = *std::move(http);
    address_ = io_.provider->getNetwork().parseAddress(http_->address().c_str()).wait(io_.waitScope);
  }

  // All that comes back until the server has closed its side.
  std::string Ask(kj::ArrayPtr<const kj::byte> bytes) {
    std::string answer;
    auto connection = address_->connect().wait(io_.waitScope);
    auto& stream = *connection;
    auto told = stream.write(bytes.begin(), bytes.size())
                    .then([&stream]() { stream.shutdownWrite(); })
                    .catch_([](kj::Exception&&) {})  // it was refused before all of it had come
                    .eagerlyEvaluate(nullptr);
    auto heard = Read(stream, answer).catch_([](kj::Exception&&) {});
    bool is_late = false;
    auto late = io_.provider->getTimer().afterDelay(kPatience).then([&is_late]() { is_late = true; });
    heard.exclusiveJoin(kj::mv(late)).wait(io_.waitScope);
    TESSERA_CHECK(!is_late);
    return answer;
  }

 private:
  kj::Promise<void> Read(kj::AsyncInputStream& stream, std::string& answer) {
    return stream.tryRead(part_.data(), 1, part_.size())
        .then([this, &stream, &answer](size_t count) -> kj::Promise<void> {
          answer.append(part_.data(), count);
          return count == 0 || answer.size() > kEnough ? kj::Promise<void>(kj::READY_NOW) : Read(stream, answer);
        });
  }

  kj::AsyncIoContext io_;
  std::unique_ptr<HttpLoop> http_;
  kj::Own<kj::NetworkAddress> address_;
  std::array<char, 1 << 14> part_{};
};

void CheckAnswer(const std::string& answer) {
  if (answer.empty()) return;
  static const std::set<std::string> kStatuses = {"200", "400", "404", "405", "411", "413", "431", "500", "501", "503"};
  TESSERA_CHECK(answer.size() > 12 && answer.compare(0, 9, "HTTP/1.1 ") == 0);
  TESSERA_CHECK(kStatuses.contains(answer.substr(9, 3)));
}

kj::ArrayPtr<const kj::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  static Served& served = *new Served;
  static int inputs = 0;
  CheckAnswer(served.Ask({data, size}));
  if (++inputs % kBetweenLooks != 1) return 0;
  const std::string proper = served.Ask(BytesOf("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  TESSERA_CHECK(proper.compare(0, 15, "HTTP/1.1 200 OK") == 0 && proper.ends_with("\r\n\r\nok\n"));
  return 0;
}
