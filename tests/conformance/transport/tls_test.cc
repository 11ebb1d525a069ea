#include "server/transport/tls/tls_transport.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/certificates.h"
#include "server/transport/routed/routed_transport.h"
#include "server/transport/socket/socket_transport.h"
#include "server/transport/stream/frames.h"
#include "tests/conformance/transport/transport_conformance.h"

namespace tessera::testing {
namespace {

// Certificates of a CA, as files.
class Folder {
 public:
  Folder() : authority_(*MakeAuthority("a test's CA", 2)) {
    EXPECT_NE(mkdtemp(name_.data()), nullptr);
    Write("ca.crt", authority_.certificate);
  }
  ~Folder() { std::filesystem::remove_all(name_); }

  LeafRequest Leaf() const {
    const std::time_t now = std::time(nullptr);
    return {"tessera-worker", {"127.0.0.1", "localhost"}, LeafUse::kServerAndClient, now - 60, now + 3600};
  }
  // Options of a worker with such a certificate, who trusts this CA.
  TlsOptions With(const LeafRequest& leaf) { return With(*SignLeaf(authority_, leaf)); }
  TlsOptions With(const SignedKey& leaf) {
    const std::string name = absl::StrCat("leaf", ++count_);
    TlsOptions options;
    options.listen_host = "127.0.0.1";
    options.certificate = Write(name + ".crt", leaf.certificate);
    options.key = Write(name + ".key", leaf.key);
    options.ca = name_ + "/ca.crt";
    return options;
  }
  TlsOptions Right() { return With(Leaf()); }
  std::string Write(const std::string& file, const std::string& text) {
    std::ofstream(name_ + "/" + file) << text;
    return name_ + "/" + file;
  }

 private:
  std::string name_ = "/tmp/tessera-tls-XXXXXX";
  const SignedKey authority_;
  int count_ = 0;
};

void ConnectBoth(MessageTransport& a, MessageTransport& b) {
  EXPECT_TRUE(a.Connect(WorkerIndex(1), b.Address()).ok());
  EXPECT_TRUE(b.Connect(WorkerIndex(0), a.Address()).ok());
}

class TlsGroup : public TransportGroup {
 public:
  explicit TlsGroup(int count) {
    const TlsOptions options = folder_.Right();
    for (int i = 0; i < count; ++i) transports_.push_back(*TlsTransport::Make(WorkerIndex(i), options));
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        EXPECT_TRUE(at(i).Connect(WorkerIndex(j), at(j).Address()).ok());
      }
    }
  }
  MessageTransport& at(int worker) override { return *transports_[static_cast<size_t>(worker)]; }
  void Kill(int worker) override { transports_[static_cast<size_t>(worker)] = nullptr; }
  void Break() override {
    for (int fd = 3; fd < 1024; ++fd) {
      sockaddr_storage address{};
      socklen_t length = sizeof(address);
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
      if (address.ss_family == AF_INET) shutdown(fd, SHUT_RDWR);
    }
  }

 private:
  Folder folder_;
  std::vector<std::unique_ptr<TlsTransport>> transports_;
};

INSTANTIATE_TEST_SUITE_P(Tls, TransportConformance,
                         ::testing::Values(TransportFactory{
                             "tls", [](int count) { return std::make_unique<TlsGroup>(count); }}),
                         [](const auto& info) { return info.param.name; });

// A message from worker 0 to worker 1; how its sending ended.
absl::Status Pass(MessageTransport& a, MessageTransport& b, uint64_t ordinal) {
  std::byte byte{1}, got{0};
  Outcome sent, received;
  b.Receive(WorkerIndex(0), {.ordinal = ordinal, .phase = 1}, {&got, 1}, received.Callback());
  a.Send(WorkerIndex(1), {.ordinal = ordinal, .phase = 1}, {&byte, 1}, sent.Callback());
  absl::Status status = sent.Wait();
  if (status.ok()) status = received.Wait();
  b.MarkDead(WorkerIndex(0));
  (void)received.Wait();
  return status;
}

// The error of a message between two workers with these options, the lower of which connects; "" where it passes.
std::string WhyNot(const TlsOptions& dialer, const TlsOptions& listener, std::string (*change)(std::string) = nullptr) {
  auto a = *TlsTransport::Make(WorkerIndex(0), dialer);
  auto b = *TlsTransport::Make(WorkerIndex(1), listener);
  const std::string address = b->Address();
  EXPECT_TRUE(a->Connect(WorkerIndex(1), change == nullptr ? address : change(address)).ok());
  EXPECT_TRUE(b->Connect(WorkerIndex(0), a->Address()).ok());
  const absl::Status status = Pass(*a, *b, 1);
  if (status.ok()) return "";
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GT(a->refused() + b->refused(), 0U);
  return std::string(status.message());
}

TEST(TlsTransport, AWrongCertificateIsRefusedByNameOnEitherSide) {
  Folder folder, elsewhere;
  const TlsOptions right = folder.Right();
  EXPECT_EQ(WhyNot(right, folder.Right()), "");
  LeafRequest expired = folder.Leaf(), early = folder.Leaf(), server = folder.Leaf(), only_server = folder.Leaf();
  expired.ends_at = std::time(nullptr) - 1;
  early.starts_at = std::time(nullptr) + 600;
  server.unit = "tessera-server";
  only_server.use = LeafUse::kServer;
  TlsOptions of_another_ca = elsewhere.Right();
  of_another_ca.ca = right.ca;
  const SignedKey own = *MakeAuthority("worker 1", 1);
  const struct {
    TlsOptions options;
    std::string as_listener, as_dialer;
  } kWrong[] = {
      {folder.With(expired), "certificate has expired", "certificate expired"},
      {folder.With(early), "certificate is not yet valid", "bad certificate"},
      {folder.With(server), "its organizational unit is not tessera-worker", "refused it"},
      {folder.With(only_server), "", "unsupported certificate"},
      {of_another_ca, "unable to get local issuer certificate", "unknown ca"},
      {folder.With(own), "self-signed certificate", "unknown ca"},
  };
  for (const auto& [options, as_listener, as_dialer] : kWrong) {
    const std::string listener = WhyNot(right, options), dialer = WhyNot(options, right);
    EXPECT_EQ(listener.empty(), as_listener.empty()) << listener;
    EXPECT_NE(listener.find(as_listener), std::string::npos) << as_listener << ": " << listener;
    EXPECT_NE(dialer.find(as_dialer), std::string::npos) << as_dialer << ": " << dialer;
    EXPECT_NE(dialer.find("worker 1: no connection: "), std::string::npos) << dialer;
  }
}

TEST(TlsTransport, AHostThatTheCertificateDoesNotNameIsRefused) {
  Folder folder;
  LeafRequest named = folder.Leaf(), numbered = folder.Leaf();
  named.hosts = {"localhost", "other.example"};
  numbered.hosts = {"127.0.0.2"};
  const auto as_localhost = [](std::string address) {
    return absl::StrReplaceAll(address, {{"127.0.0.1", "localhost"}});
  };
  EXPECT_EQ(WhyNot(folder.Right(), folder.With(named), as_localhost), "");
  for (const auto& leaf : {named, numbered}) {
    const std::string why = WhyNot(folder.Right(), folder.With(leaf));
    EXPECT_NE(why.find("IP address mismatch, it is not for 127.0.0.1"), std::string::npos) << why;
  }
  const std::string why = WhyNot(folder.Right(), folder.With(numbered), as_localhost);
  EXPECT_NE(why.find("hostname mismatch, it is not for localhost"), std::string::npos) << why;
  const std::string unknown = WhyNot(folder.Right(), folder.Right(), [](std::string address) {
    return absl::StrReplaceAll(address, {{"127.0.0.1", "no-such-host.invalid"}});
  });
  EXPECT_NE(unknown.find("host no-such-host.invalid: "), std::string::npos) << unknown;
}

int Dial(const MessageTransport& transport) {
  const std::vector<std::string> words = absl::StrSplit(transport.Address(), ' ');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(words[2])));
  inet_pton(AF_INET, words[1].c_str(), &address.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Blocks until the other side closes.
void ReadToEnd(int fd) {
  char bytes[256];
  while (read(fd, bytes, sizeof(bytes)) > 0) {
  }
  close(fd);
}

TEST(TlsTransport, PlaintextIsClosedAndCountedAndHalfAHandshakeHoldsUpNobody) {
  Folder folder;
  const TlsOptions options = folder.Right();
  auto a = *TlsTransport::Make(WorkerIndex(0), options), b = *TlsTransport::Make(WorkerIndex(1), options);
  const StreamGreeting greeting{kStreamMagic, 1, 2, 3};
  std::vector<std::string> said = {"GET / HTTP/1.1\r\n\r\n", std::string(100, '\0'), std::string(5000, '\xff')};
  said.emplace_back(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  for (const std::string& plain : said) {
    const uint64_t before = b->refused();
    const int fd = Dial(*b);
    EXPECT_GT(send(fd, plain.data(), plain.size(), MSG_NOSIGNAL), 0);
    ReadToEnd(fd);
    EXPECT_EQ(b->refused(), before + 1);
  }
  // The first bytes of a handshake, whose rest never comes.
  std::vector<int> halves;
  for (int i = 0; i < 20; ++i) {
    halves.push_back(Dial(*b));
    EXPECT_EQ(send(halves.back(), "\x16\x03\x01\x02\x00\x01", 6, MSG_NOSIGNAL), 6);
  }
  ConnectBoth(*a, *b);
  EXPECT_TRUE(Pass(*a, *b, 1).ok());
  for (const int fd : halves) close(fd);
}

TEST(TlsTransport, StrangersWhoSayNothingKeepNoPeerOut) {
  Folder folder;
  const TlsOptions options = folder.Right();
  auto a = *TlsTransport::Make(WorkerIndex(0), options), b = *TlsTransport::Make(WorkerIndex(1), options);
  std::vector<int> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(Dial(*b));  // more than max_tls_guests
  ConnectBoth(*a, *b);
  EXPECT_TRUE(Pass(*a, *b, 1).ok());
  EXPECT_GE(b->refused(), 40U);
  for (const int fd : silent) close(fd);
}

TEST(TlsTransport, WhatCanNotBeUsedIsRefusedWithItsOption) {
  Folder folder;
  const TlsOptions right = folder.Right(), other = folder.Right();
  const std::string nonsense = folder.Write("nonsense", "hello");
  const auto why = [](const TlsOptions& options) {
    const auto made = TlsTransport::Make(WorkerIndex(0), options);
    return made.ok() ? "" : std::string(made.status().message());
  };
  const auto with = [&right](std::string TlsOptions::*field, const std::string& value) {
    TlsOptions options = right;
    options.*field = value;
    return options;
  };
  const struct {
    TlsOptions options;
    std::string said;
  } kWrong[] = {
      {with(&TlsOptions::certificate, ""), "there is no --tls-cert"},
      {with(&TlsOptions::certificate, nonsense), "--tls-cert " + nonsense},
      {with(&TlsOptions::certificate, "/nowhere"), "--tls-cert /nowhere: no certificate in PEM: No such file"},
      {with(&TlsOptions::key, other.key), "--tls-key " + other.key},
      {with(&TlsOptions::ca, nonsense), "--tls-ca " + nonsense},
      {with(&TlsOptions::listen_host, ""), "is no host"},
      {with(&TlsOptions::listen_host, "0.0.0.0"), "--message-advertise"},
      {with(&TlsOptions::listen_host, "192.0.2.1"), "--message-listen 192.0.2.1:0: Cannot assign"},
  };
  for (const auto& [options, said] : kWrong) EXPECT_NE(why(options).find(said), std::string::npos) << why(options);
}

TEST(RoutedTransport, WorkersWhoReachOtherHostsInDifferentWaysAreToldSo) {
  Folder folder;
  const std::string sockets = std::filesystem::path(folder.Right().ca).parent_path().string();
  const auto over_tls = [&](int worker, const std::string& host) {
    return std::make_unique<RoutedTransport>(
        host, *SocketTransport::Make(WorkerIndex(worker), absl::StrCat(sockets, "/", worker)),
        *TlsTransport::Make(WorkerIndex(worker), folder.Right()));
  };
  const auto a = over_tls(0, "here"), b = over_tls(1, "there");
  RoutedTransport other("elsewhere", *SocketTransport::Make(WorkerIndex(2), sockets + "/2"),
                        *SocketTransport::Make(WorkerIndex(2), sockets + "/3"));
  EXPECT_TRUE(a->Connect(WorkerIndex(1), b->Address()).ok() && b->Connect(WorkerIndex(0), a->Address()).ok());
  EXPECT_TRUE(Pass(*a, *b, 1).ok());
  for (const absl::Status& status :
       {a->Connect(WorkerIndex(2), other.Address()), other.Connect(WorkerIndex(0), a->Address())}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    for (const char* part :
         {"here", "elsewhere", "one of them sends messages to other hosts over TLS, the other by UCX"}) {
      EXPECT_NE(status.message().find(part), absl::string_view::npos) << status;
    }
  }
}

TEST(TlsTransport, AddressesAreTakenAsWrittenOrNotAtAll) {
  Folder folder;
  auto transport = *TlsTransport::Make(WorkerIndex(0), folder.Right());
  for (const std::string address :
       {"tls 127.0.0.1 4000 0123456789abcde", "tls 127.0.0.1 4000 0123456789abcdeg", "tls 127.0.0.1 0 0123456789abcdef",
        "tls 127.0.0.1 65536 0123456789abcdef", "tls 127.0.0.1 -1 0123456789abcdef", "tls  4000 0123456789abcdef",
        "tls a\nb 4000 0123456789abcdef", "tls a 4000 0123456789abcdef x", "tcp a 4000 0123456789abcdef"}) {
    EXPECT_EQ(transport->Connect(WorkerIndex(5), address).code(), absl::StatusCode::kInvalidArgument) << address;
  }
  using Place = std::pair<std::string, int>;
  EXPECT_EQ(*ParseHostAndPort("node7"), Place("node7", 0));
  EXPECT_EQ(*ParseHostAndPort("node7:4000"), Place("node7", 4000));
  EXPECT_EQ(*ParseHostAndPort("fd00::7"), Place("fd00::7", 0));
  EXPECT_EQ(*ParseHostAndPort("[fd00::7]:4000"), Place("fd00::7", 4000));
  EXPECT_EQ(*ParseHostAndPort("[fd00::7]"), Place("fd00::7", 0));
  for (const char* text : {"", ":4000", "node7:", "node7:x", "node7:65536", "[fd00::7", "[fd00::7]4000", "a b"}) {
    EXPECT_FALSE(ParseHostAndPort(text).ok()) << text;
  }
}

}  // namespace
}  // namespace tessera::testing
