// Messages over TLS on the loopback interface beside a bare OpenSSL stream of the same bytes, and messages over unix
// sockets beside a bare unix socket: seconds of each run, in turns. Both ends are threads of this process.
//
//   transport_bench [--quick]     {"bytes": ..., "seconds": {"tls": [...], "bare_tls": [...], ...}}

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <openssl/ssl.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "client/cli/certificates.h"
#include "schemas/types/status_macros.h"
#include "server/transport/socket/socket_transport.h"
#include "server/transport/tls/tls_transport.h"

namespace tessera {
namespace {

constexpr size_t kMessageBytes = size_t{1} << 20;  // a chunk of a program's messages
constexpr size_t kWindow = 4;

double Seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---- messages

class Pair {
 public:
  Pair(std::unique_ptr<MessageTransport> a, std::unique_ptr<MessageTransport> b) : a_(std::move(a)), b_(std::move(b)) {
    TESSERA_CHECK(a_->Connect(WorkerIndex(1), b_->Address()).ok());
    TESSERA_CHECK(b_->Connect(WorkerIndex(0), a_->Address()).ok());
  }

  // From worker 0 to worker 1, with a window of messages under way on either side.
  void Pass(size_t count, absl::Span<const std::byte> from, absl::Span<std::byte> to) {
    ++ordinal_;
    std::thread sending([&] {
      Drive(count, [&](uint32_t chunk, MessageTransport::Done done) {
        const size_t at = chunk % kWindow * kMessageBytes;
        a_->Send(WorkerIndex(1), {ordinal_, 1, chunk}, from.subspan(at, kMessageBytes), std::move(done));
      });
    });
    Drive(count, [&](uint32_t chunk, MessageTransport::Done done) {
      const size_t at = chunk % kWindow * kMessageBytes;
      b_->Receive(WorkerIndex(0), {ordinal_, 1, chunk}, to.subspan(at, kMessageBytes), std::move(done));
    });
    sending.join();
  }

 private:
  using Start = std::function<void(uint32_t chunk, MessageTransport::Done done)>;
  void Drive(size_t count, const Start& start) {
    std::mutex mutex;
    std::condition_variable changed;
    size_t under_way = 0;
    std::unique_lock lock(mutex);
    for (uint32_t chunk = 0; chunk < count; ++chunk) {
      changed.wait(lock, [&] { return under_way < kWindow; });
      ++under_way;
      lock.unlock();
      start(chunk, [&](absl::Status status) {
        TESSERA_CHECK(status.ok());
        const std::lock_guard ended(mutex);
        --under_way;
        changed.notify_one();
      });
      lock.lock();
    }
    changed.wait(lock, [&] { return under_way == 0; });
  }

  const std::unique_ptr<MessageTransport> a_, b_;
  uint64_t ordinal_ = 0;
};

// ---- bare streams

std::pair<int, int> TcpPair() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
            near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  TESSERA_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener, 1) == 0);
  TESSERA_CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  TESSERA_CHECK(connect(near, reinterpret_cast<sockaddr*>(&address), length) == 0);
  const int far = accept(listener, nullptr, nullptr);
  close(listener);
  const int on = 1;
  for (const int fd : {near, far}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return {near, far};
}

// Two sessions on one connection, with the files of the worker.
struct BareTls {
  explicit BareTls(const TlsOptions& files) : context(SSL_CTX_new(TLS_method())) {
    TESSERA_CHECK(SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) == 1);
    TESSERA_CHECK(SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1);
    TESSERA_CHECK(SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1);
    const auto [a, b] = TcpPair();
    near = SSL_new(context);
    far = SSL_new(context);
    SSL_set_fd(near, a);
    SSL_set_fd(far, b);
    std::thread accepting([this] { TESSERA_CHECK(SSL_accept(far) == 1); });
    TESSERA_CHECK(SSL_connect(near) == 1);
    accepting.join();
  }
  void Pass(size_t count, absl::Span<const std::byte> from, absl::Span<std::byte> to) {
    std::thread sending([&] {
      for (size_t i = 0; i < count; ++i) {
        const int bytes = static_cast<int>(kMessageBytes);
        TESSERA_CHECK(SSL_write(near, from.data() + i % kWindow * kMessageBytes, bytes) == bytes);
      }
    });
    for (size_t done = 0; done < count * kMessageBytes;) {
      const size_t at = done % (kWindow * kMessageBytes);
      const int got = SSL_read(far, to.data() + at, static_cast<int>(kMessageBytes - done % kMessageBytes));
      TESSERA_CHECK(got > 0);
      done += static_cast<size_t>(got);
    }
    sending.join();
  }
  SSL_CTX* context;
  SSL *near = nullptr, *far = nullptr;
};

struct BareUnix {
  BareUnix() { TESSERA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0); }
  void Pass(size_t count, absl::Span<const std::byte> from, absl::Span<std::byte> to) {
    std::thread sending([&] {
      for (size_t done = 0; done < count * kMessageBytes;) {
        const size_t at = done % (kWindow * kMessageBytes);
        const ssize_t sent = send(ends[0], from.data() + at, kMessageBytes - done % kMessageBytes, 0);
        TESSERA_CHECK(sent > 0);
        done += static_cast<size_t>(sent);
      }
    });
    for (size_t done = 0; done < count * kMessageBytes;) {
      const size_t at = done % (kWindow * kMessageBytes);
      const ssize_t got = recv(ends[1], to.data() + at, kMessageBytes - done % kMessageBytes, 0);
      TESSERA_CHECK(got > 0);
      done += static_cast<size_t>(got);
    }
    sending.join();
  }
  int ends[2];
};

TlsOptions MakeFiles(const std::string& folder) {
  const SignedKey authority = *MakeAuthority("a benchmark's CA", 2);
  const std::time_t now = std::time(nullptr);
  const SignedKey leaf =
      *SignLeaf(authority, {"tessera-worker", {"127.0.0.1"}, LeafUse::kServerAndClient, now - 60, now + 86400});
  TlsOptions options;
  options.listen_host = "127.0.0.1";
  options.ca = folder + "/ca.crt";
  options.certificate = folder + "/worker.crt";
  options.key = folder + "/worker.key";
  std::ofstream(options.ca) << authority.certificate;
  std::ofstream(options.certificate) << leaf.certificate;
  std::ofstream(options.key) << leaf.key;
  return options;
}

void Run(size_t bytes, int rounds) {
  std::string folder = "/tmp/tessera-bench-XXXXXX";
  TESSERA_CHECK(mkdtemp(folder.data()) != nullptr);
  const TlsOptions files = MakeFiles(folder);
  Pair tls(*TlsTransport::Make(WorkerIndex(0), files), *TlsTransport::Make(WorkerIndex(1), files));
  Pair sockets(*SocketTransport::Make(WorkerIndex(0), folder + "/0"),
               *SocketTransport::Make(WorkerIndex(1), folder + "/1"));
  BareTls bare_tls(files);
  BareUnix bare_unix;
  std::vector<std::byte> from(kWindow * kMessageBytes), to(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const size_t count = bytes / kMessageBytes;
  nlohmann::json seconds;
  const auto measure = [&](const char* name, auto& what) {
    std::fill(to.begin(), to.end(), std::byte{0});
    seconds[name].push_back(Seconds([&] { what.Pass(count, from, absl::MakeSpan(to)); }));
    TESSERA_CHECK(to == from);
  };
  for (int round = 0; round < rounds; ++round) {
    measure("tls", tls);
    measure("bare_tls", bare_tls);
    measure("sockets", sockets);
    measure("bare_unix", bare_unix);
  }
  std::cout << nlohmann::json{{"bytes", bytes}, {"seconds", seconds}}.dump(2) << "\n";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);  // stdout is for JSON
  const bool is_quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  tessera::Run(size_t{is_quick ? 64U : 1024U} << 20, is_quick ? 3 : 7);
  return 0;
}
