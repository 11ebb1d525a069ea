#include "client/cli/run_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Texts = std::vector<std::string>;

bool Has(const Texts& entries, const std::string& entry) {
  return std::find(entries.begin(), entries.end(), entry) != entries.end();
}

TEST(RankEnvironment, CountsThroughTheNodes) {
  RunShape shape;
  shape.node_sizes = {2, 3};
  shape.node = 1;
  shape.run_id = "r";
  shape.master_addr = "a";
  shape.master_port = 29500;
  shape.restart = 1;
  shape.max_restarts = 2;
  EXPECT_EQ(RankEnvironment(shape, 1, "/e.json"),
            (Texts{"RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=5", "LOCAL_WORLD_SIZE=3", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2",
                   "ROLE_RANK=3", "ROLE_WORLD_SIZE=5", "ROLE_NAME=default", "MASTER_ADDR=a", "MASTER_PORT=29500",
                   "TORCHELASTIC_RUN_ID=r", "TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=2",
                   "TORCHELASTIC_USE_AGENT_STORE=False", "TORCHELASTIC_ERROR_FILE=/e.json"}));
}

TEST(RankEnvironment, ItsVariablesStandInForInheritedOnes) {
  Texts merged = MergedEnvironment({"RANK=7", "HOME=/h", "RANKS=1"}, {"RANK=0", "A=1", "A=2=3"});
  std::sort(merged.begin(), merged.end());
  EXPECT_EQ(merged, (Texts{"A=2=3", "HOME=/h", "RANK=0", "RANKS=1"}));
}

TEST(RunPlan, HostsHaveRanksOfTheirOwn) {
  const absl::StatusOr<std::vector<Host>> hosts = ParseHosts("a,me@b:4", 2);
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  ASSERT_EQ(hosts->size(), 2u);
  EXPECT_EQ((*hosts)[0].name, "a");
  EXPECT_EQ((*hosts)[0].ranks, 2);
  EXPECT_EQ((*hosts)[1].name, "me@b");
  EXPECT_EQ((*hosts)[1].ranks, 4);
  for (const char* bad : {"", "a,", ":2", "a:0", "a:x", "a:1025", "-oProxyCommand=x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHosts(bad, 1).status())) << bad;
  }
}

TEST(RunPlan, NodesHaveOneSizeOrEachItsOwn) {
  EXPECT_EQ(*ParseNodeSizes("3", 2), (std::vector<int>{3, 3}));
  EXPECT_EQ(*ParseNodeSizes("3,1", 2), (std::vector<int>{3, 1}));
  EXPECT_GE(ParseNodeSizes("auto", 1)->at(0), 1);
  for (const char* bad : {"", "0", "-1", "1.5", "gpu", "1,2,3", "auto", "1,"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseNodeSizes(bad, 2).status())) << bad;
  }
}

TEST(RunPlan, TheFirstHostIsTheMaster) {
  RunOptions options;
  options.hosts = "me@a,b:3";
  options.nproc = "2";
  options.words = {"train.py", "--lr", "1"};
  const absl::StatusOr<RunPlan> plan = PlanRun(options, true);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->shape.master_addr, "a");
  EXPECT_EQ(plan->shape.node_sizes, (std::vector<int>{2, 3}));
  EXPECT_TRUE(Has(plan->command, "--lr"));
  const absl::Status refused = PlanRun(options, false).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(refused.message().find("--address"), std::string::npos) << refused;
}

TEST(RunPlan, ANodesCommandIsQuotedForItsShell) {
  RunOptions options;
  options.words = {"it's.py", "$HOME"};
  RunShape shape;
  shape.node_sizes = {2, 3};
  shape.node = 1;
  const std::string command = NodeCommand(options, shape, "/bin/tessera", "/a b");
  EXPECT_EQ(command.rfind("cd '/a b' && exec '/bin/tessera' 'run' '--control-stdin' '--nnodes=2' '--node-rank=1'", 0),
            0u)
      << command;
  EXPECT_NE(command.find("'--nproc=2,3'"), std::string::npos) << command;
  EXPECT_NE(command.find(" 'it'\\''s.py' '$HOME'"), std::string::npos) << command;
}

}  // namespace
}  // namespace tessera
