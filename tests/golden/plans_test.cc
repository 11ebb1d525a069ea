// Each file of plans/ holds a request in its first line, then what `tessera plan` prints, then the plan.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/plan_command.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/plan/plan.h"

namespace tessera {
namespace {

constexpr char kFolder[] = "tests/golden/plans";

bool Rewrites() { return std::getenv("TESSERA_REWRITE_GOLDEN") != nullptr; }

// The checkout's folder under `bazel run`, else the test's own copy.
std::filesystem::path Folder() {
  const char* checkout = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  return Rewrites() && checkout != nullptr ? std::filesystem::path(checkout) / kFolder : std::filesystem::path(kFolder);
}

std::vector<std::string> Files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path().stem().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class GoldenPlan : public testing::TestWithParam<std::string> {};

TEST_P(GoldenPlan, IsPlannedAsWritten) {
  const std::filesystem::path path = Folder() / (GetParam() + ".txt");
  const std::string golden = ReadFile(path);
  const std::string request = golden.substr(0, golden.find('\n'));
  const absl::StatusOr<std::string> text = PlanCommandText(request, PlanOutput::kText);
  const absl::StatusOr<std::string> json = PlanCommandText(request, PlanOutput::kJson);
  ASSERT_TRUE(text.ok() && json.ok()) << request << ": " << text.status();
  const std::string plan = nlohmann::json::parse(*json)["plan"];
  const std::string now = request + "\n\n" + *text + "\n" + plan;
  if (Rewrites()) {
    std::ofstream(path) << now;
  } else {
    EXPECT_EQ(golden, now);
  }
  const absl::StatusOr<Plan> parsed = ParsePlan(plan);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ToText(*parsed), plan);
}

INSTANTIATE_TEST_SUITE_P(Plans, GoldenPlan, testing::ValuesIn(Files()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace tessera
