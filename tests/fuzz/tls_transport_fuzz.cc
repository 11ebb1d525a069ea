// Bytes that a worker with a right certificate that has gone mad may send to another's transport over TLS, after the
// handshake: the inputs are those of socket_transport_fuzz. The transport serves its other peer.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <openssl/ssl.h>
#include <spdlog/spdlog.h>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/certificates.h"
#include "schemas/types/status_macros.h"
#include "server/transport/tls/tls_transport.h"
#include "tests/fuzz/stream_transport_world.h"

namespace tessera::fuzz {
namespace {

int Dial(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TESSERA_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

TlsOptions MakeFiles() {
  std::string folder = "/tmp/tessera-fuzz-XXXXXX";
  TESSERA_CHECK(mkdtemp(folder.data()) != nullptr);
  const SignedKey authority = *MakeAuthority("a fuzzer's CA", 2);
  const std::time_t now = std::time(nullptr);
  LeafRequest request{"tessera-worker", {"127.0.0.1"}, LeafUse::kServerAndClient, now - 60, now + 86400};
  const SignedKey leaf = *SignLeaf(authority, request);
  TlsOptions options;
  options.listen_host = "127.0.0.1";
  for (const auto& [field, name, text] : {std::tuple(&TlsOptions::ca, "/ca.crt", authority.certificate),
                                          {&TlsOptions::certificate, "/worker.crt", leaf.certificate},
                                          {&TlsOptions::key, "/worker.key", leaf.key}}) {
    options.*field = folder + name;
    std::ofstream(options.*field) << text;
  }
  return options;
}

size_t Say(SSL_CTX* context, int port, absl::Span<const uint8_t> said) {
  const int fd = Dial(port);
  SSL* const session = SSL_new(context);
  SSL_set_fd(session, fd);
  TESSERA_CHECK(SSL_connect(session) == 1);
  size_t done = 0, answered = 0;
  if (!said.empty()) (void)SSL_write_ex(session, said.data(), said.size(), &done);
  SSL_shutdown(session);
  shutdown(fd, SHUT_WR);
  char bytes[256];
  for (size_t count = 0; SSL_read_ex(session, bytes, sizeof(bytes), &count) == 1;) answered += count;
  SSL_free(session);
  close(fd);
  return answered;
}

World* MakeWorld() {
  spdlog::set_level(spdlog::level::off);
  auto& world = *new World;
  const TlsOptions options = MakeFiles();
  world.good = *TlsTransport::Make(WorkerIndex(0), options);
  world.tested = *TlsTransport::Make(WorkerIndex(2), options);
  TESSERA_CHECK(world.good->Connect(WorkerIndex(2), world.tested->Address()).ok());
  TESSERA_CHECK(world.tested->Connect(WorkerIndex(0), world.good->Address()).ok());
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  TESSERA_CHECK(SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str()) == 1);
  TESSERA_CHECK(SSL_CTX_use_PrivateKey_file(context, options.key.c_str(), SSL_FILETYPE_PEM) == 1);
  const std::vector<std::string> words = absl::StrSplit(world.tested->Address(), ' ');
  world.say = [context, port = std::stoi(words[2])](absl::Span<const uint8_t> said) {
    return Say(context, port, said);
  };
  world.key_of = [](const std::string& address) {
    const std::vector<std::string> parts = absl::StrSplit(address, ' ');
    return static_cast<uint64_t>(std::stoull(parts[3], nullptr, 16));
  };
  world.address_with = [](uint64_t key) { return absl::StrFormat("tls 127.0.0.1 1 %016x", key); };
  return &world;
}

}  // namespace
}  // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tessera::fuzz::World& world = *tessera::fuzz::MakeWorld();
  tessera::fuzz::Play(world, data, size);
  return 0;
}
