#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "server/transport/ucx/ucx_transport.h"

#include "tests/conformance/transport/transport_conformance.h"

namespace tessera::testing {
namespace {

class UcxGroup : public TransportGroup {
 public:
  explicit UcxGroup(int count) {
    for (int i = 0; i < count; ++i) {
      auto made = UcxTransport::Make(WorkerIndex(i), {});
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
    std::vector<int> connections;  // all that there are now, and none that takes the place of one
    for (int fd = 3; fd < 1024; ++fd) {
      sockaddr_storage address{};
      socklen_t length = sizeof(address);
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
      if (address.ss_family == AF_INET || address.ss_family == AF_INET6) connections.push_back(dup(fd));
    }
    EXPECT_FALSE(connections.empty());
    for (const int fd : connections) {
      shutdown(fd, SHUT_RDWR);
      close(fd);
    }
  }

 private:
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

}  // namespace
}  // namespace tessera::testing
