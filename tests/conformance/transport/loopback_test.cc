#include "server/transport/loopback/loopback.h"

#include "tests/conformance/transport/transport_conformance.h"

namespace tessera::testing {
namespace {

class LoopbackGroup : public TransportGroup {
 public:
  explicit LoopbackGroup(int count) {
    for (int i = 0; i < count; ++i) transports_.push_back(hub_.Make(WorkerIndex(i)));
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        EXPECT_TRUE(at(i).Connect(WorkerIndex(j), at(j).Address()).ok());
      }
    }
  }
  MessageTransport& at(int worker) override { return *transports_[static_cast<size_t>(worker)]; }
  void Kill(int worker) override { transports_[static_cast<size_t>(worker)] = nullptr; }
  void Break() override { hub_.Break(); }

 private:
  LoopbackHub hub_;
  std::vector<std::unique_ptr<MessageTransport>> transports_;
};

INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance,
                         ::testing::Values(TransportFactory{
                             "loopback", [](int count) { return std::make_unique<LoopbackGroup>(count); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
