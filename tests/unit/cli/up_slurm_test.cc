#include "client/cli/up_slurm.h"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_join.h"

namespace tessera {
namespace {

Environment Of(std::map<std::string, std::string> variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
}

const SlurmRequest kRequest{2, "cpu", "/bin/tessera", "/bin/tessera-worker", "tls://n1:20002", "sha256:ab", "", {}};

TEST(UpSlurm, AStepHasTheWorkersOfAllNodes) {
  const auto step =
      PlanSlurmStep(Of({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "3"}, {"SLURM_CPUS_ON_NODE", "8"}}), kRequest);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->nodes, 3);
  EXPECT_EQ(step->workers, 6);
  EXPECT_EQ(absl::StrJoin(step->arguments, " "),
            "srun --nodes=3 --ntasks=6 --ntasks-per-node=2 --cpus-per-task=4 --overlap --kill-on-bad-exit=0 "
            "--job-name=tessera-workers /bin/tessera keep -- /bin/tessera-worker --join=tls://n1:20002 "
            "--ca-pin=sha256:ab --index-from=SLURM_PROCID --workers-on-host=2 --memory=0.8");
}

TEST(UpSlurm, AWorkerForEachNumaDomainIsBoundToIt) {
  SlurmRequest request = kRequest;
  const auto bound = [&request]() {
    const auto step = PlanSlurmStep(Of({{"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_GPUS_ON_NODE", "1"}}), request);
    const std::string text = absl::StrJoin(step->arguments, " ");
    const bool is_bound = text.find(" --cpu-bind=ldoms --mem-bind=local --overlap") != std::string::npos;
    EXPECT_EQ(is_bound, text.find("-bind") != std::string::npos);
    return is_bound;
  };
  EXPECT_FALSE(bound()) << "two workers a node are two, whatever the domains";
  request.workers_on_node = 0;
  EXPECT_TRUE(bound());
  request.device = "cuda";
  EXPECT_FALSE(bound()) << "Slurm binds tasks to the cores near their GPUs itself";
}

TEST(UpSlurm, AWorkerForEachGpuThatSlurmGave) {
  SlurmRequest request = kRequest;
  request.workers_on_node = 0;
  request.device = "cuda";
  const auto step = PlanSlurmStep(Of({{"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_GPUS_ON_NODE", "4"}}), request);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->workers, 8);
  const auto none = PlanSlurmStep(Of({{"SLURM_JOB_NUM_NODES", "2"}}), request);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(none.status().message().find("--gpus-per-node"), absl::string_view::npos) << none.status();
}

TEST(UpSlurm, NumbersThatAreMissingAreNamed) {
  const auto step = PlanSlurmStep(Of({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "two"}}), kRequest);
  EXPECT_EQ(step.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(step.status().message().find("SLURM_JOB_NUM_NODES is \"two\""), absl::string_view::npos) << step.status();
}

TEST(UpSlurm, ATaskOfAStepIsInNoAllocationOfItsOwn) {
  EXPECT_FALSE(IsInAllocation(Of({})));
  EXPECT_TRUE(IsInAllocation(Of({{"SLURM_JOB_ID", "5"}})));
  EXPECT_TRUE(IsInAllocation(Of({{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "4294967291"}}))) << "of the batch script";
  EXPECT_FALSE(IsInAllocation(Of({{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "0"}})));
}

TEST(UpSlurm, JobsOfOneNodeHavePortsOfTheirOwn) {
  EXPECT_EQ(PortOfJob(Of({{"SLURM_JOB_ID", "0"}})), 20'000);
  EXPECT_EQ(PortOfJob(Of({{"SLURM_JOB_ID", "7"}})), 20'014) << "the next one is of its workers";
  EXPECT_LT(PortOfJob(Of({{"SLURM_JOB_ID", "4999"}})) + 1, 30'001);
}

}  // namespace
}  // namespace tessera
