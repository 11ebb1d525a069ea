#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "server/transport/ucx/ucx_transport.h"

#include "tests/conformance/transport/transport_conformance.h"

namespace tessera::testing {
namespace {

class UcxGroup : public TransportGroup {
 public:
  explicit UcxGroup(int count, const UcxOptions& options = {}) {
    for (int i = 0; i < count; ++i) {
      auto made = UcxTransport::Make(WorkerIndex(i), options);
      EXPECT_TRUE(made.ok()) << made.status();
      transports_.push_back(*std::move(made));
    }
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
    for (const int fd : Connections()) {
      shutdown(fd, SHUT_RDWR);
      close(fd);
    }
  }
  // Nothing that comes on the connections that there are now is taken, and nobody says so: as with a link that is down.
  // Ones that are made later work.
  static void Stall() {
    sock_filter drop_all[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program{1, drop_all};
    for (const int fd : Connections()) {
      EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
      close(fd);
    }
  }

 private:
  // Descriptors of all that there are now, and of none that takes the place of one.
  static std::vector<int> Connections() {
    std::vector<int> connections;
    for (int fd = 3; fd < 1024; ++fd) {
      sockaddr_storage address{};
      socklen_t length = sizeof(address);
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
      if (address.ss_family == AF_INET || address.ss_family == AF_INET6) connections.push_back(dup(fd));
    }
    EXPECT_FALSE(connections.empty());
    return connections;
  }

  std::vector<std::unique_ptr<UcxTransport>> transports_;
};

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         ::testing::Values(TransportFactory{
                             "ucx", [](int count) { return std::make_unique<UcxGroup>(count); }}),
                         [](const auto& info) { return info.param.name; });

// A worker that restarts has another address; messages to and from the new process alone are heard.
TEST(UcxTransport, AReplacedPeerIsReachedAtItsNewAddress) {
  auto a = UcxTransport::Make(WorkerIndex(0), {});
  auto first = UcxTransport::Make(WorkerIndex(1), {});
  ASSERT_TRUE(a.ok() && first.ok());
  ASSERT_TRUE((*a)->Connect(WorkerIndex(1), (*first)->Address()).ok());
  ASSERT_TRUE((*first)->Connect(WorkerIndex(0), (*a)->Address()).ok());
  std::byte old_byte{1}, new_byte{2}, got{0};
  Outcome stale;
  (*first)->Send(WorkerIndex(0), {.ordinal = 1, .phase = 1}, {&old_byte, 1}, stale.Callback());
  ASSERT_TRUE(stale.Wait().ok());
  *first = nullptr;
  (*a)->MarkDead(WorkerIndex(1));
  auto second = UcxTransport::Make(WorkerIndex(1), {});
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE((*a)->Connect(WorkerIndex(1), (*second)->Address()).ok());
  ASSERT_TRUE((*second)->Connect(WorkerIndex(0), (*a)->Address()).ok());
  Outcome received, sent;
  (*a)->Receive(WorkerIndex(1), {.ordinal = 1, .phase = 1}, {&got, 1}, received.Callback());
  (*second)->Send(WorkerIndex(0), {.ordinal = 1, .phase = 1}, {&new_byte, 1}, sent.Callback());
  ASSERT_TRUE(received.Wait().ok()) << received.Wait();
  EXPECT_EQ(got, new_byte);
  EXPECT_TRUE(sent.Wait().ok());
}

// One message, and how both ends heard of it.
struct Passing {
  Passing(TransportGroup& group, int from, int to, uint64_t ordinal, size_t bytes)
      : source(bytes, std::byte{1}), got(bytes) {
    group.at(to).Receive(WorkerIndex(from), {.ordinal = ordinal, .phase = 1}, absl::MakeSpan(got), received.Callback());
    group.at(from).Send(WorkerIndex(to), {.ordinal = ordinal, .phase = 1}, source, sent.Callback());
  }
  bool Arrives() { return received.Wait().ok() && sent.Wait().ok() && got == source; }
  std::vector<std::byte> source, got;
  Outcome sent, received;
};

bool IsStall(const absl::Status& status) {
  return absl::IsUnavailable(status) && status.message().find("(message_stall_timeout)") != absl::string_view::npos;
}

TEST(UcxTransport, AConnectionOnWhichNothingGetsAnywhereFailsByNameAndTheNextMessagePasses) {
  UcxGroup group(2, {.stall_timeout_ms = 300});
  for (uint64_t ordinal = 1; ordinal <= 30; ordinal += 10) {
    ASSERT_TRUE(Passing(group, 0, 1, ordinal, 1000).Arrives());
    ASSERT_TRUE(Passing(group, 1, 0, ordinal, 1000).Arrives());
    UcxGroup::Stall();
    Passing large(group, 0, 1, ordinal + 1, 8 << 20), small(group, 1, 0, ordinal + 1, 1000);
    EXPECT_TRUE(IsStall(large.received.Wait())) << large.received.Wait();
    EXPECT_TRUE(IsStall(small.received.Wait())) << small.received.Wait();
    EXPECT_TRUE(IsStall(large.sent.Wait())) << large.sent.Wait();
    EXPECT_FALSE(absl::IsDeadlineExceeded(small.sent.Wait()));  // the kernel may have taken it
  }
  EXPECT_TRUE(Passing(group, 0, 1, 100, 8 << 20).Arrives());
}

TEST(UcxTransport, APeerThatIsLateIsWaitedForWhileOthersAreServed) {
  UcxGroup group(3, {.stall_timeout_ms = 100});
  std::byte late_byte{5}, got{0};
  std::vector<std::byte> source(4 << 20, std::byte{1}), large_got(source.size());
  Outcome received, sent, large_received, large_sent;
  group.at(0).Receive(WorkerIndex(1), {.ordinal = 1, .phase = 1}, {&got, 1}, received.Callback());
  group.at(0).Send(WorkerIndex(1), {.ordinal = 1, .phase = 2}, source, large_sent.Callback());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  for (uint64_t ordinal = 2; std::chrono::steady_clock::now() < until; ++ordinal) {
    ASSERT_TRUE(Passing(group, 2, 0, ordinal, 10'000).Arrives());
  }
  EXPECT_FALSE(received.is_done());
  group.at(1).Send(WorkerIndex(0), {.ordinal = 1, .phase = 1}, {&late_byte, 1}, sent.Callback());
  group.at(1).Receive(WorkerIndex(0), {.ordinal = 1, .phase = 2}, absl::MakeSpan(large_got), large_received.Callback());
  EXPECT_TRUE(received.Wait().ok()) << received.Wait();
  EXPECT_EQ(got, late_byte);
  EXPECT_TRUE(large_received.Wait().ok() && large_sent.Wait().ok()) << large_received.Wait() << large_sent.Wait();
  EXPECT_EQ(large_got, source);
}

}  // namespace
}  // namespace tessera::testing
