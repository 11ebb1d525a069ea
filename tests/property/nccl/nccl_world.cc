#include "tests/property/nccl/nccl_world.h"

#include <cstdlib>
#include <utility>

#include "gtest/gtest.h"

#include "server/device/cuda/cuda_platform.h"
#include "server/transport/nccl/nccl_transport.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {

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
