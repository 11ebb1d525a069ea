// The speed of a bare TLS stream of KJ over loopback: the limit beside which transfers of other hosts are measured.
//   tls_stream_bench CERTIFICATES BYTES REPETITIONS      # prints JSON: seconds of each repetition, up and down

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <kj/async-io.h>

#include "schemas/link/dialer.h"
#include "schemas/link/tls.h"

namespace tessera {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

kj::Promise<void> Write(kj::AsyncIoStream& stream, kj::ArrayPtr<const kj::byte> chunk, size_t left) {
  if (left == 0) return kj::READY_NOW;
  const size_t count = std::min(left, chunk.size());
  return stream.write(chunk.begin(), count).then([&stream, chunk, left, count]() {
    return Write(stream, chunk, left - count);
  });
}

kj::Promise<void> Read(kj::AsyncIoStream& stream, kj::ArrayPtr<kj::byte> chunk, size_t left) {
  if (left == 0) return kj::READY_NOW;
  const size_t count = std::min(left, chunk.size());
  return stream.read(chunk.begin(), count).then([&stream, chunk, left, count]() {
    return Read(stream, chunk, left - count);
  });
}

// Takes all, answers with a byte, and sends all; as often as it is asked to.
void Serve(const TlsFiles& files, size_t bytes, int repetitions, std::promise<unsigned>& port) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  auto tls = MakeTls("bench", files, TlsSide::kServer);
  auto receiver = io.provider->getNetwork().parseAddress("localhost:0").wait(io.waitScope)->listen();
  port.set_value(receiver->getPort());
  auto stream = (*tls)->wrapServer(receiver->accept().wait(io.waitScope)).wait(io.waitScope);
  auto chunk = kj::heapArray<kj::byte>(kChunk);
  for (int i = 0; i < repetitions; ++i) {
    Read(*stream, chunk, bytes).wait(io.waitScope);
    stream->write("!", 1).wait(io.waitScope);
    Write(*stream, chunk, bytes).wait(io.waitScope);
  }
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string Joined(const std::vector<double>& seconds) {
  std::string text;
  for (const double one : seconds) text += (text.empty() ? "" : ", ") + std::to_string(one);
  return text;
}

int Run(const std::string& folder, size_t bytes, int repetitions) {
  std::promise<unsigned> port;
  std::thread server([&]() { Serve({folder + "/server.crt", folder + "/server.key", ""}, bytes, repetitions, port); });
  kj::AsyncIoContext io = kj::setupAsyncIo();
  const auto address = ParseAddress("bench", "tls://localhost:" + std::to_string(port.get_future().get()));
  const auto dialer = Dialer::Make("bench", *address, DialedServer::kWorker, {"", "", folder + "/ca.crt"}, io);
  auto stream = (*dialer)->Connect().wait(io.waitScope);
  auto chunk = kj::heapArray<kj::byte>(kChunk);
  std::memset(chunk.begin(), 1, chunk.size());
  std::vector<double> up, down;
  for (int i = 0; i < repetitions; ++i) {
    auto start = std::chrono::steady_clock::now();
    Write(*stream, chunk, bytes).wait(io.waitScope);
    stream->read(chunk.begin(), 1).wait(io.waitScope);
    up.push_back(SecondsSince(start));
    start = std::chrono::steady_clock::now();
    Read(*stream, chunk, bytes).wait(io.waitScope);
    down.push_back(SecondsSince(start));
  }
  server.join();
  std::printf("{\"up\": [%s], \"down\": [%s]}\n", Joined(up).c_str(), Joined(down).c_str());
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: tls_stream_bench CERTIFICATES BYTES REPETITIONS\n");
    return 2;
  }
  return tessera::Run(argv[1], std::strtoull(argv[2], nullptr, 10), std::atoi(argv[3]));
}
