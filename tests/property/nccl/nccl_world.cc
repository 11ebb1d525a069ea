#include "tests/property/nccl/nccl_world.h"

#include <cstdlib>
#include <utility>

#include "gtest/gtest.h"

#include "server/device/cuda/cuda_platform.h"
#include "server/transport/collectives.h"
#include "server/transport/nccl/nccl_transport.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

class CountedCollectives final : public Collectives {
 public:
  CountedCollectives(CallCounts& entered, Collectives& to) : entered_(entered), to_(to) {}
  void Announce(CollectiveKey key, std::vector<WorkerIndex> workers) override { to_.Announce(key, std::move(workers)); }
  void Enter(CollectiveKey key, std::vector<CollectivePart> parts, Done done) override {
    for (const CollectivePart& part : parts) ++entered_[static_cast<size_t>(part.kind)];
    to_.Enter(key, std::move(parts), std::move(done));
  }
  void Refuse(CollectiveKey key) override { to_.Refuse(key); }

 private:
  CallCounts& entered_;
  Collectives& to_;
};

class CountedTransport final : public MessageTransport {
 public:
  CountedTransport(CallCounts& entered, std::unique_ptr<MessageTransport> to)
      : to_(std::move(to)), collectives_(entered, *to_->collectives()) {}
  std::string Address() const override { return to_->Address(); }
  absl::Status Connect(WorkerIndex peer, std::string_view address) override { return to_->Connect(peer, address); }
  bool TakesDeviceMemory(WorkerIndex peer) override { return to_->TakesDeviceMemory(peer); }
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override {
    to_->Send(peer, tag, bytes, std::move(done));
  }
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override {
    to_->Receive(peer, tag, bytes, std::move(done));
  }
  Collectives* collectives() override { return &collectives_; }
  void MarkDead(WorkerIndex peer) override { to_->MarkDead(peer); }

 private:
  const std::unique_ptr<MessageTransport> to_;
  CountedCollectives collectives_;
};

}  // namespace

WorldOptions NcclCallsOptions(int workers, CallCounts& entered) {
  WorldOptions options = NcclWorldOptions(workers);
  options.makes_calls = true;
  options.wraps = [&entered, make = options.wraps](int worker, std::unique_ptr<MessageTransport> control) {
    return std::make_unique<CountedTransport>(entered, make(worker, std::move(control)));
  };
  return options;
}

WorldOptions NcclWorldOptions(int workers, const std::vector<int32_t>& hosts) {
  if (TestDriver::Get().is_emulated()) setenv("TESSERA_NCCL", "tests/emulator/cuda/nccl/libnccl.so.2", 0);
  WorldOptions options;
  options.workers = workers;
  options.reach = Reach::kMessages;
  options.hosts = hosts;
  options.platform = [](int worker) -> std::unique_ptr<Platform> {
    auto platform =
        MakeCudaPlatform({.gpu = 0, .worker = worker, .lost = [](const absl::Status& why) { ADD_FAILURE() << why; }});
    EXPECT_TRUE(platform.ok()) << platform.status();
    return *std::move(platform);
  };
  options.wraps = [](int worker, std::unique_ptr<MessageTransport> control) -> std::unique_ptr<MessageTransport> {
    auto transport = MakeNcclTransport({.self = WorkerIndex(worker), .gpu = 0}, std::move(control));
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  };
  return options;
}

}  // namespace tessera::testing
