// A tenant with 10,000 sessions: its limit holds, a neighbour's op stays quick, and memory goes back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "schemas/types/str_cat.h"
#include "tests/system/hostile/wire_client.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int kSessions = 10'000;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kTenants[] = R"(
[[tenant]]
name = "a"
sessions = 10000
queued = 1000
[[tenant]]
name = "b"
queued = 1000
)";

class ManySessionsTest : public WireTest {
 protected:
  void SetUp() override {
    const std::string path = testing::TempDir() + "/many_sessions.toml";
    std::ofstream(path) << kTenants << kTokensOfTenants;
    coordinator_flags_ = {"--tenants=" + path, "--max-sessions=20000", "--max-sessions-per-uid=20000"};
    lease_s_ = 3600;  // longer than it takes to open them all
    WireTest::SetUp();
  }

  // Sessions of tenant a whose clients are gone: each has its lease.
  void OpenThemAll() {
    for (int i = 0; i < kSessions; ++i) {
      Wire wire(io_, address_);
      numbers_.push_back(Open(wire, wire::PROTOCOL_VERSION, "a-token").getWelcome().getSessionId());
    }
  }
  void CloseThemAll() {
    const std::string admins = cluster_->admin_address();
    Wire wire(io_, address_);
    auto admin = Open(wire, wire::PROTOCOL_VERSION, admins.substr(admins.find("#token=") + 7));
    auto request = admin.getSession().evictTenantRequest();
    request.setTenant("a");
    EXPECT_EQ(request.send().wait(io_.waitScope).getSessions(), kSessions);
    numbers_.clear();
  }
  // How long tenant b waits for an op, at the median, in ms.
  double OpMs() {
    token_ = "b-token";
    Opened opened = Open();
    std::vector<double> taken;
    for (uint64_t i = 0; i < 51; ++i) {
      const auto began = std::chrono::steady_clock::now();
      Submit(opened, 1,
             [&](unsigned, wire::Record::Builder record) { Full(record, 1 + i, *Mesh::Make({2}, {}, {}), Shape{8}); });
      for (int waited = 0; waited < 5000 && opened.client->batches_done <= i; ++waited) Pause(1);
      taken.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
    }
    EXPECT_EQ(opened.client->batches_done, 51u);
    pid_ = opened.pid;
    std::nth_element(taken.begin(), taken.begin() + 25, taken.end());
    return taken[25];
  }

  std::vector<uint64_t> numbers_;
  int pid_ = 0;
};

TEST_F(ManySessionsTest, ItsLimitHoldsANeighboursOpStaysQuickAndMemoryGoesBack) {
  const double quiet_ms = OpMs();
  const int64_t before = ResidentBytesOf(pid_);
  OpenThemAll();
  const int64_t held = ResidentBytesOf(pid_);
  const absl::Status refused = StatusOf([&]() {
    Wire wire(io_, address_);
    Open(wire, wire::PROTOCOL_VERSION, "a-token");
  });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("10000 sessions of tenant \"a\" are open, its sessions is 10000"));
  EXPECT_LT(OpMs(), quiet_ms + 20);
  // Some 10 KiB each.
  EXPECT_LT(held - before, 256 * kMiB);
  CloseThemAll();
  OpenThemAll();
  EXPECT_LT(ResidentBytesOf(pid_), held + (held - before) / 4 + 16 * kMiB)
      << "the first ones' memory is not used again";
  CloseThemAll();
  EXPECT_LT(OpMs(), quiet_ms + 20);
}

}  // namespace
}  // namespace tessera
