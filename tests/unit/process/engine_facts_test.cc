#include "server/process/engine_facts.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGib = int64_t{1} << 30;

// A host as its files say it.
class EngineFactsTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\n");
  }
  void Write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  EngineFacts Find() {
    return FindEngineFacts(root_.string(), [this](const char* name) { return variables_[name]; });
  }

  fs::path root_;
  std::map<std::string, std::string> variables_;
};

TEST_F(EngineFactsTest, AHostWithoutAnEngineHasAllOfItsMemory) {
  const EngineFacts facts = Find();
  EXPECT_EQ(facts.memory_bytes, 16 * kGib);
  EXPECT_EQ(facts.memory_from, "the host");
  EXPECT_EQ(facts.cpus, 0);
}

TEST_F(EngineFactsTest, TheSmallestLimitOfTheGroupsAboveTheProcessCounts) {
  Write("proc/self/cgroup", "0::/pool/job\n");
  Write("sys/fs/cgroup/pool/job/memory.max", "max\n");
  Write("sys/fs/cgroup/pool/memory.max", "4294967296\n");
  Write("sys/fs/cgroup/pool/cpu.max", "150000 100000\n");
  const EngineFacts facts = Find();
  EXPECT_EQ(facts.memory_bytes, 4 * kGib);
  EXPECT_EQ(facts.memory_from, "/sys/fs/cgroup/pool/memory.max");
  EXPECT_EQ(facts.cpus, 1.5);
  EXPECT_EQ(facts.cpus_from, "/sys/fs/cgroup/pool/cpu.max");
}

TEST_F(EngineFactsTest, GroupsOfVersionOneAreReadToo) {
  Write("proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n");
  Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const EngineFacts facts = Find();
  EXPECT_EQ(facts.memory_bytes, 2 * kGib);
  EXPECT_EQ(facts.cpus, 3);
}

TEST_F(EngineFactsTest, SlurmSaysWhatAJobHas) {
  variables_ = {{"SLURM_MEM_PER_NODE", "1024"}, {"SLURM_CPUS_PER_TASK", "2"}, {"SLURMD_NODENAME", "n7"}};
  const EngineFacts facts = Find();
  EXPECT_EQ(facts.memory_bytes, kGib);
  EXPECT_EQ(facts.memory_from, "SLURM_MEM_PER_NODE");
  EXPECT_EQ(facts.cpus, 2);
  EXPECT_EQ(facts.node, "n7");
}

TEST_F(EngineFactsTest, AShareIsOfTheLimitAndWorkersShareItEvenly) {
  const EngineFacts facts = Find();
  EXPECT_EQ(*ReadMemory("0.5", facts, 2), 4 * kGib);
  EXPECT_EQ(*ReadMemory("25%", facts, 1), 4 * kGib);
  EXPECT_EQ(*ReadMemory("3GiB", facts, 2), 3 * kGib);
  EXPECT_EQ(*ReadMemory("1", facts, 1), 1) << "a byte";
}

TEST_F(EngineFactsTest, AWrongMemoryIsRefusedWithTheLimitAndWhoSaysIt) {
  const EngineFacts facts = Find();
  for (const char* text : {"0", "-1", "1.5", "0%", "101%", "many", "", "1e400", "nan"}) {
    EXPECT_EQ(ReadMemory(text, facts, 1).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  const absl::Status more = ReadMemory("17GiB", facts, 1).status();
  EXPECT_EQ(more.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(more.message().find("17179869184"), absl::string_view::npos) << more;
  EXPECT_NE(more.message().find("the host"), absl::string_view::npos) << more;
}

TEST_F(EngineFactsTest, ANumberComesFromAVariableOrTheHostsName) {
  variables_ = {{"SLURM_PROCID", "3"}, {"WORD", "three"}};
  const Variable variable = [this](const char* name) { return variables_[name]; };
  EXPECT_EQ(*IndexFrom("SLURM_PROCID", "", variable), 3);
  EXPECT_EQ(*IndexFrom("hostname-ordinal", "tessera-worker-12", variable), 12);
  EXPECT_EQ(*IndexFrom("hostname-ordinal", "tessera-worker-4.tessera.svc", variable), 4);
  EXPECT_EQ(*IndexFrom("hostname-ordinal*8+3", "tessera-worker-2", variable), 19);
  EXPECT_EQ(*IndexFrom("hostname-ordinal*1+0", "tessera-worker-2", variable), 2);
  for (const char* source : {"hostname-ordinal*8", "hostname-ordinal*8+8", "hostname-ordinal*0+0", "hostname-ordinal+1",
                             "hostname-ordinal*8+-1", "hostname-ordinal*x+1", "hostname-ordinals"}) {
    EXPECT_EQ(IndexFrom(source, "node-1", variable).status().code(), absl::StatusCode::kInvalidArgument) << source;
  }
  for (const char* host : {"node", "node-", "node-x", "node-1x", ""}) {
    EXPECT_EQ(IndexFrom("hostname-ordinal", host, variable).status().code(), absl::StatusCode::kInvalidArgument)
        << host;
  }
  for (const char* source : {"WORD", "NONE", ""}) {
    EXPECT_EQ(IndexFrom(source, "node-1", variable).status().code(), absl::StatusCode::kInvalidArgument) << source;
  }
}

}  // namespace
}  // namespace tessera
