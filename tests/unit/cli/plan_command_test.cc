#include "client/cli/plan_command.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

nlohmann::json Planned(std::string_view request) {
  const absl::StatusOr<std::string> text = PlanCommandText(request, PlanOutput::kJson);
  EXPECT_TRUE(text.ok()) << request << ": " << text.status();
  return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json::object();
}

using Bytes = std::vector<int64_t>;

TEST(PlanCommand, RowsToColumns) {
  const nlohmann::json plan = Planned("f32[8192,8192] @ mesh(x:4) [S(0)] -> [S(1)]");
  EXPECT_EQ(plan["bytes_received"].get<Bytes>(), Bytes(4, int64_t{8192} * 8192 * 4 * 3 / 16));
  EXPECT_EQ(plan["bytes_sent"], plan["bytes_received"]);
  EXPECT_EQ(plan["peak_bytes"].get<Bytes>(), Bytes(4, int64_t{8192} * 8192 * 4 / 2));
  EXPECT_EQ(plan["steps"].get<std::vector<std::string>>(),
            std::vector<std::string>{"all_to_all %0 [S(0)] -> %1 [S(1)]"});
  EXPECT_EQ(plan["output"], "f32[8192,8192] @ mesh(x:4) [S(1)]");
  EXPECT_EQ(plan["placements"], nlohmann::json::array({"S(1)"}));
  EXPECT_GT(plan["predicted_seconds"].get<double>(), 0);
}

TEST(PlanCommand, MatmulOfSpecs) {
  const nlohmann::json plan = Planned("matmul(f32[1797,64] @ mesh(4) [S(0)], f32[64,1797] @ mesh(4) [S(1)])");
  EXPECT_EQ(plan["bytes_received"].get<Bytes>(), (Bytes{344832, 344832, 344832, 345600}));
  EXPECT_EQ(plan["output"], "f32[1797,1797] @ mesh(4) [S(0)]");
}

TEST(PlanCommand, OtherOpsByName) {
  EXPECT_EQ(Planned("sum(f32[8,6] @ mesh(2) [S(0)], dims=[0], keepdims=true)")["output"],
            "f32[1,6] @ mesh(2) [P(sum)]");
  EXPECT_EQ(Planned("sum(f32[8,6] @ mesh(2) [R])")["output"], "f32[] @ mesh(2) [R]");
  EXPECT_EQ(Planned("permute_dims(f32[8,6] @ mesh(2) [S(0)])")["output"], "f32[6,8] @ mesh(2) [S(1)]");
  EXPECT_EQ(Planned("add(f32[8] @ mesh(2) [S(0)], 2)")["bytes_received"].get<Bytes>(), (Bytes{0, 0}));
  EXPECT_EQ(Planned("full(2.5, shape=[4,4], dtype=f32, mesh=mesh(2), placements=[S(1)])")["output"],
            "f32[4,4] @ mesh(2) [S(1)]");
}

TEST(PlanCommand, ANotationNeedsNoQuotes) {
  for (const char* notation : {"notation=ij,jk->ik", "notation=\"ij,jk->ik\""}) {
    const std::string operands = "f32[4,6] @ mesh(2) [S(0)], f32[6,8] @ mesh(2) [R]";
    EXPECT_EQ(Planned("einsum(" + operands + ", " + notation + ")")["output"], "f32[4,8] @ mesh(2) [S(0)]");
    EXPECT_EQ(Planned("einsum(" + std::string(notation) + ", " + operands + ")")["output"],
              "f32[4,8] @ mesh(2) [S(0)]");
  }
}

TEST(PlanCommand, ANotationStandsWherePythonHasIt) {
  const std::string operands = "f64[4,6] @ mesh(2) [S(0)], f64[6,8] @ mesh(2) [R]";
  for (const char* notation : {"'ij,jk->ik'", "\"ij,jk->ik\"", "' ij , jk -> ik '", "'ij,jk'"}) {
    EXPECT_EQ(Planned("einsum(" + std::string(notation) + ", " + operands + ")")["output"],
              "f64[4,8] @ mesh(2) [S(0)]");
    EXPECT_EQ(Planned("einsum(" + operands + ", " + notation + ")")["output"], "f64[4,8] @ mesh(2) [S(0)]");
  }
  EXPECT_EQ(Planned("einsum('ki,kj', f64[4,6] @ mesh(2) [S(0)], f64[4,8] @ mesh(2) [S(0)])")["output"],
            "f64[6,8] @ mesh(2) [P(sum)]");
  EXPECT_EQ(Planned("einsum('ba,ac', f64[4,6] @ mesh(2) [S(0)], f64[6,8] @ mesh(2) [R])")["output"],
            "f64[4,8] @ mesh(2) [S(0)]");
}

TEST(PlanCommand, WhatIsWrongWithANotation) {
  const auto why = [](const std::string& arguments) {
    return std::string(PlanCommandText(arguments, PlanOutput::kText).status().message());
  };
  const std::string a = "f64[4,6] @ mesh(2) [S(0)]", b = "f64[6,8] @ mesh(2) [R]";
  const std::string usage = "einsum takes its notation in quotes: einsum('ij,jk->ik', SPEC, SPEC)";
  EXPECT_EQ(why("einsum(" + a + ", " + b + ")"), "plan: no notation: " + usage);
  EXPECT_EQ(why("einsum(ij,jk->ik, " + a + ", " + b + ")"), "plan: \"ij\" is no spec; " + usage);
  EXPECT_EQ(why("einsum('ij,jk->ik', 'ij,jk->ki', " + a + ", " + b + ")"), "plan: einsum takes one notation, not two");
  EXPECT_EQ(why("einsum('', " + a + ", " + b + ")"), "plan: the notation of einsum is empty");
  EXPECT_EQ(why("einsum('ij,jk->ik' " + a + ", " + b + ")").find("plan: expected a notation and a comma behind it"),
            0u);
  EXPECT_EQ(why("einsum('ij,jk->ik, " + a + ", " + b + ")").find("plan: expected a notation and a comma behind it"),
            0u);
  EXPECT_EQ(why("matmul('ij,jk->ik', " + a + ", " + b + ")"), "plan: matmul takes no notation; einsum does");
  EXPECT_EQ(why("matmul(" + a + ", " + b + ", notation=ij,jk->ik)"), "plan: matmul takes no notation; einsum does");
  EXPECT_EQ(why("einsum('ij,jk->iq', " + a + ", " + b + ")"),
            "contraction ij,jk->iq: letter q of the output is in no operand");
  EXPECT_EQ(why("einsum('ij,jk->ik', " + a + ")"), "einsum: takes 2 operands, not 1");
}

TEST(PlanCommand, OtherMeshes) {
  EXPECT_EQ(Planned("f32[4,4] @ mesh(4) [S(0)] -> mesh(2,2) [S(0), S(1)]")["output"],
            "f32[4,4] @ mesh(2,2) [S(0), S(1)]");
  EXPECT_EQ(Planned("f32[4] @ mesh(2) [S(0)] -> mesh(2; workers=2,3) [S(0)]")["bytes_received"].get<Bytes>(),
            (Bytes{0, 0, 8, 8}));
  EXPECT_EQ(Planned("f64[4] @ mesh(2) [S(0)] -> f32[4] @ mesh(2) [R]")["output"], "f32[4] @ mesh(2) [R]");
}

TEST(PlanCommand, TextHasPlainIntegersByPosition) {
  const absl::StatusOr<std::string> text =
      PlanCommandText("f32[1797,1797] @ mesh(4) [S(0)] -> [S(1)]", PlanOutput::kText);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_NE(text->find("\n0 2424600 2424600 "), std::string::npos) << *text;
  EXPECT_NE(text->find("\n3 2413800 2413800 "), std::string::npos) << *text;
}

TEST(PlanCommand, KeepsToTheMemoryThatItIsGiven) {
  // 11 MiB of operands and 768 KiB of product on each worker; the right operand is gathered into 3 MiB more.
  const char* request = "matmul(f64[1024,2048] @ mesh(2) [S(0)], f64[2048,192] @ mesh(2) [P(max)])";
  const auto planned = [request](int64_t mib) { return PlanCommandText(request, PlanOutput::kJson, mib << 20); };
  const absl::StatusOr<std::string> whole = planned(16), split = planned(14), none = planned(11);
  ASSERT_TRUE(whole.ok() && split.ok()) << whole.status() << split.status();
  EXPECT_EQ(*whole, *PlanCommandText(request, PlanOutput::kJson));
  const nlohmann::json parts = nlohmann::json::parse(*split);
  EXPECT_NE(parts["grid"].get<std::string>().find("; in 2 parts over n, of 96 each"), std::string::npos) << parts;
  for (const int64_t bytes : parts["peak_bytes"].get<Bytes>()) EXPECT_LE(bytes, 14 << 20);
  EXPECT_EQ(parts["bytes_received"], nlohmann::json::parse(*whole)["bytes_received"]);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted) << none.status();
}

TEST(PlanCommand, PlansForSeveralHosts) {
  const char* request = "f32[64] @ mesh(16) [P(sum)] -> [R]";
  const auto steps = [request](int workers_per_host) {
    const auto text = PlanCommandText(request, PlanOutput::kJson, std::nullopt, workers_per_host);
    EXPECT_TRUE(text.ok()) << text.status();
    return nlohmann::json::parse(*text)["steps"].get<std::vector<std::string>>();
  };
  EXPECT_EQ(steps(16).size(), 2u);
  EXPECT_EQ(steps(4).back(), "all_gather %1 [R] -> %1 [R]") << "what crossed once is shared";
  EXPECT_EQ(steps(1).front(), "reduce_scatter %0 [P(sum)] -> %1 [R], halving 1 of 2");
  EXPECT_FALSE(PlanCommandText(request, PlanOutput::kText, std::nullopt, 0).ok());
}

TEST(PlanCommand, RefusesWhatItCannotCount) {
  const char* request = "f32[1000000000,1000000000] @ mesh(1) [R] -> mesh(4) [R]";
  const absl::Status status = PlanCommandText(request, PlanOutput::kText).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("too many bytes to count on 4 workers"), absl::string_view::npos) << status;
}

TEST(PlanCommand, RefusesWhatItCannotRead) {
  for (const char* request :
       {"", "f32[4]", "nonsense(f32[4] @ mesh(2) [R])", "f32[4] @ mesh(2) [R] ->", "f32[4] @ mesh(2) [S(3)] -> [R]",
        "f32[4] @ mesh(2) [R] -> [P(sum)]", "sum(f32[4] @ mesh(2) [R], dims=[9])", "sum(f32[4] @ mesh(2) [R], what=1)",
        ")", "add(", "negative(f32[4] @ mesh(2) [S(0)]) -> [R]", "einsum(f32[4] @ mesh(2) [R], notation=i,->",
        "matmul(f32[2,3] @ mesh(2) [R], f32[2,3] @ mesh(2) [R])"}) {
    EXPECT_FALSE(PlanCommandText(request, PlanOutput::kText).ok()) << request;
  }
}

}  // namespace
}  // namespace tessera
