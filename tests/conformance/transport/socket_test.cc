#include "server/transport/socket/socket_transport.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/transport/routed/routed_transport.h"
#include "server/transport/stream/frames.h"
#include "tests/conformance/transport/transport_conformance.h"

namespace tessera::testing {
namespace {

class Folder {
 public:
  Folder() { EXPECT_NE(mkdtemp(name_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(name_); }
  std::string Path(int worker) const { return name_ + "/" + std::to_string(worker); }

 private:
  std::string name_ = "/tmp/tessera-test-XXXXXX";
};

class SocketGroup : public TransportGroup {
 public:
  explicit SocketGroup(int count) {
    for (int i = 0; i < count; ++i) transports_.push_back(*SocketTransport::Make(WorkerIndex(i), folder_.Path(i)));
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
      if (address.ss_family == AF_UNIX) shutdown(fd, SHUT_RDWR);
    }
  }

 private:
  Folder folder_;
  std::vector<std::unique_ptr<SocketTransport>> transports_;
};

INSTANTIATE_TEST_SUITE_P(Socket, TransportConformance,
                         ::testing::Values(TransportFactory{
                             "socket", [](int count) { return std::make_unique<SocketGroup>(count); }}),
                         [](const auto& info) { return info.param.name; });

std::unique_ptr<MessageTransport> OnHost(const Folder& folder, int worker, const std::string& host) {
  auto on_host = *SocketTransport::Make(WorkerIndex(worker), folder.Path(worker));
  return std::make_unique<RoutedTransport>(host, std::move(on_host), nullptr);
}

TEST(RoutedTransport, PeersOfOneHostReachEachOtherAndOneOfAnotherHostIsRefusedByName) {
  const Folder folder;
  auto a = OnHost(folder, 0, "here"), b = OnHost(folder, 1, "here"), c = OnHost(folder, 2, "there");
  ASSERT_TRUE(a->Connect(WorkerIndex(1), b->Address()).ok() && b->Connect(WorkerIndex(0), a->Address()).ok());
  std::byte byte{1}, got{0};
  Outcome sent, received, refused;
  a->Send(WorkerIndex(1), {.ordinal = 1, .phase = 1}, {&byte, 1}, sent.Callback());
  b->Receive(WorkerIndex(0), {.ordinal = 1, .phase = 1}, {&got, 1}, received.Callback());
  EXPECT_TRUE(sent.Wait().ok() && received.Wait().ok());
  EXPECT_EQ(got, byte);
  const absl::Status status = a->Connect(WorkerIndex(2), c->Address());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  for (const char* part : {"worker 2", "here", "there", "--trusted-network"}) {
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << status;
  }
  a->Send(WorkerIndex(2), {.ordinal = 1, .phase = 1}, {&byte, 1}, refused.Callback());
  EXPECT_EQ(refused.Wait().code(), absl::StatusCode::kUnavailable);
  for (const std::string& address : {std::string(), a->Address().substr(0, 30), std::string(300, '\xff')}) {
    EXPECT_EQ(b->Connect(WorkerIndex(5), address).code(), absl::StatusCode::kInvalidArgument);
  }
}

int Dial(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Blocks until the other side closes; how many bytes came before.
size_t ReadToEnd(int fd) {
  char byte = 0;
  size_t count = 0;
  while (read(fd, &byte, 1) > 0) ++count;
  close(fd);
  return count;
}

TEST(SocketTransport, AStrangerWhoDoesNotKnowTheKeyIsClosedUnheard) {
  const Folder folder;
  auto transport = SocketTransport::Make(WorkerIndex(0), folder.Path(0));
  ASSERT_TRUE(transport.ok()) << transport.status();
  struct stat file {};
  ASSERT_EQ(stat(folder.Path(0).c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  for (const StreamGreeting& greeting : {StreamGreeting{kStreamMagic, 1, 2, 3}, StreamGreeting{}}) {
    const int fd = Dial(folder.Path(0));
    ASSERT_EQ(write(fd, &greeting, sizeof(greeting)), static_cast<ssize_t>(sizeof(greeting)));
    EXPECT_EQ(ReadToEnd(fd), 0U);
  }
}

TEST(SocketTransport, AReplacedPeerIsReachedAtItsNewAddress) {
  const Folder folder;
  auto a = *SocketTransport::Make(WorkerIndex(0), folder.Path(0));
  auto old = *SocketTransport::Make(WorkerIndex(1), folder.Path(1));
  ASSERT_TRUE(a->Connect(WorkerIndex(1), old->Address()).ok() && old->Connect(WorkerIndex(0), a->Address()).ok());
  std::byte byte{1}, got{0};
  Outcome sent, received, gone;
  a->Send(WorkerIndex(1), {.ordinal = 1, .phase = 1}, {&byte, 1}, sent.Callback());
  old->Receive(WorkerIndex(0), {.ordinal = 1, .phase = 1}, {&got, 1}, received.Callback());
  ASSERT_TRUE(sent.Wait().ok() && received.Wait().ok());
  old = nullptr;
  a->Send(WorkerIndex(1), {.ordinal = 2, .phase = 1}, {&byte, 1}, gone.Callback());
  auto fresh = *SocketTransport::Make(WorkerIndex(1), folder.Path(2));
  ASSERT_TRUE(a->Connect(WorkerIndex(1), fresh->Address()).ok() && fresh->Connect(WorkerIndex(0), a->Address()).ok());
  EXPECT_NE(gone.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  Outcome sent_again, received_again;
  std::byte two{2};
  a->Send(WorkerIndex(1), {.ordinal = 3, .phase = 1}, {&two, 1}, sent_again.Callback());
  fresh->Receive(WorkerIndex(0), {.ordinal = 3, .phase = 1}, {&got, 1}, received_again.Callback());
  EXPECT_TRUE(sent_again.Wait().ok() && received_again.Wait().ok()) << sent_again.Wait() << received_again.Wait();
  EXPECT_EQ(got, two);
}

TEST(SocketTransport, WhatIsGivenUpAfterTheGreetingIsNotWaitedForByTheOtherSide) {
  const Folder folder;
  auto a = *SocketTransport::Make(WorkerIndex(0), folder.Path(0));
  auto b = *SocketTransport::Make(WorkerIndex(1), folder.Path(1));
  ASSERT_TRUE(a->Connect(WorkerIndex(1), b->Address()).ok());  // greets at once
  std::byte byte{1}, got{0};
  Outcome given_up, received, sent_later, received_later;
  a->Send(WorkerIndex(1), {.ordinal = 1, .phase = 1}, {&byte, 1}, given_up.Callback());
  ASSERT_EQ(given_up.Wait().code(), absl::StatusCode::kUnavailable) << given_up.Wait();  // after reconnect_timeout
  ASSERT_TRUE(b->Connect(WorkerIndex(0), a->Address()).ok());
  b->Receive(WorkerIndex(0), {.ordinal = 1, .phase = 1}, {&got, 1}, received.Callback());
  EXPECT_EQ(received.Wait().code(), absl::StatusCode::kUnavailable) << received.Wait();
  b->Receive(WorkerIndex(0), {.ordinal = 2, .phase = 1}, {&got, 1}, received_later.Callback());
  a->Send(WorkerIndex(1), {.ordinal = 2, .phase = 1}, {&byte, 1}, sent_later.Callback());
  EXPECT_TRUE(sent_later.Wait().ok() && received_later.Wait().ok());
}

TEST(SocketTransport, APeerThatIsKnownOnOneSideOnlyIsWaitedFor) {
  const Folder folder;
  auto a = *SocketTransport::Make(WorkerIndex(0), folder.Path(0));
  auto b = *SocketTransport::Make(WorkerIndex(1), folder.Path(1));
  ASSERT_TRUE(a->Connect(WorkerIndex(1), b->Address()).ok());
  std::vector<std::byte> bytes(1 << 20, std::byte{5}), got(bytes.size());
  Outcome sent, received;
  a->Send(WorkerIndex(1), {.ordinal = 1, .phase = 1}, bytes, sent.Callback());
  EXPECT_FALSE(sent.is_done());
  ASSERT_TRUE(b->Connect(WorkerIndex(0), a->Address()).ok());
  b->Receive(WorkerIndex(0), {.ordinal = 1, .phase = 1}, absl::MakeSpan(got), received.Callback());
  EXPECT_TRUE(sent.Wait().ok() && received.Wait().ok());
  EXPECT_TRUE(got == bytes);
}

}  // namespace
}  // namespace tessera::testing
