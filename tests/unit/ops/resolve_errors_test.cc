#include "gtest/gtest.h"
#include "schemas/ops/op_ids.h"
#include "tests/unit/ops/resolve_testing.h"

namespace tessera {
namespace {

struct ErrorCase {
  OpId op;
  std::vector<std::string> operands;
  const char* message;
};

TEST(Errors, NameTheOpBothValuesAndTheTensors) {
  const ErrorCase cases[] = {
      {OpId::kMatmul,
       {"f32[128,64] @ mesh(2) [R]", "f32[32,16] @ mesh(2) [R]"},
       "matmul: inner dims differ: a is f32[128,64], b is f32[32,16]"},
      {OpId::kMatmul,
       {"f32[] @ mesh(2) [R]", "f32[4,2] @ mesh(2) [R]"},
       "matmul: operands need a dim: a is f32[], b is f32[4,2]"},
      {OpId::kMatmul,
       {"f32[2,4,3] @ mesh(2) [R]", "f32[3,3,2] @ mesh(2) [R]"},
       "matmul: batch dims don't broadcast: a is f32[2,4,3], b is f32[3,3,2]"},
      {OpId::kMatmul,
       {"bool[4,4] @ mesh(2) [R]", "bool[4,4] @ mesh(2) [R]"},
       "matmul: needs a numeric dtype: a is bool[4,4], b is bool[4,4]"},
      {OpId::kMatmul, {"f32[4,4] @ mesh(2) [R]", "2"}, "matmul: a number can't stand here: a is f32[4,4], b is 2"},
      {OpId::kAdd,
       {"f32[2,3] @ mesh(2) [R]", "f32[4] @ mesh(2) [R]"},
       "add: shapes don't broadcast: a is f32[2,3], b is f32[4]"},
      {OpId::kAdd,
       {"bool[2] @ mesh(2) [R]", "bool[2] @ mesh(2) [R]"},
       "add: needs a numeric dtype: a is bool[2], b is bool[2]"},
      {OpId::kAdd,
       {"i32[2] @ mesh(2) [R]", "4294967296"},
       "add: 4294967296 doesn't fit dtype i32: a is i32[2], b is "
       "4294967296"},
      {OpId::kAdd,
       {"f8e4m3[2] @ mesh(2) [R]", "2"},
       "add: takes no f8e4m3, which is made, moved, cast and multiplied (matmul) alone; cast by astype before or "
       "behind: "
       "a is f8e4m3[2], b is 2"},
      {OpId::kMatmul,
       {"f8e4m3[2,2] @ mesh(2) [R]", "f16[2,2] @ mesh(2) [R]"},
       "matmul: dtypes f8e4m3 and f16 have no common dtype: a is f8e4m3[2,2], b is f16[2,2]"},
      {OpId::kLess,
       {"c64[2] @ mesh(2) [R]", "2"},
       "less: needs a real dtype, complex numbers have no order: a is c64[2], b is 2"},
      {OpId::kMax, {"c128[2] @ mesh(2) [R]"}, "max: needs a real dtype, complex numbers have no order: x is c128[2]"},
      {OpId::kAdd, {"f32[2] @ mesh(2) [R]"}, "add: takes 2 operands, not 1"},
      {OpId::kAdd, {"1", "2"}, "add: needs a tensor among its operands: a is 1, b is 2"},
      {OpId::kWhere,
       {"f32[2] @ mesh(2) [R]", "1", "2"},
       "where: the dtype of the condition must be bool: condition is f32[2], x1 is 1, x2 is 2"},
      {OpId::kWhere,
       {"true", "f32[2] @ mesh(2) [R]", "2"},
       "where: the dtype of the condition must be bool: condition is true, x1 is f32[2], x2 is 2"},
      {static_cast<OpId>(99), {"f32[2] @ mesh(2) [R]"}, "unknown op number 99"},
      {OpId::kAsType, {"f32[2] @ mesh(2) [R]"}, "astype: needs a dtype"},
  };
  for (const ErrorCase& c : cases) {
    const absl::Status status = Resolve(c.op, c.operands).status();
    EXPECT_EQ(status.message(), c.message);
    EXPECT_EQ(status.code(), std::string(c.message).find("reserved") == std::string::npos
                                 ? absl::StatusCode::kInvalidArgument
                                 : absl::StatusCode::kUnimplemented)
        << c.message;
  }
}

TEST(Errors, DTypeAndIndexErrorsCarryTheirPayloads) {
  const auto payload = [](OpId op, std::vector<std::string> operands, Attributes attributes = {}) {
    const absl::Status status = Resolve(op, operands, attributes).status();
    if (status.GetPayload(kDTypeErrorPayload).has_value()) return "dtype";
    return status.GetPayload(kIndexErrorPayload).has_value() ? "index" : "none";
  };
  EXPECT_STREQ(payload(OpId::kNeg, {"bool[2] @ mesh(2) [R]"}), "dtype");
  EXPECT_STREQ(payload(OpId::kMatmul, {"bool[4,4] @ mesh(2) [R]", "bool[4,4] @ mesh(2) [R]"}), "dtype");
  EXPECT_STREQ(payload(OpId::kSum, {"f32[2] @ mesh(2) [R]"}, Dims({1})), "index");
  EXPECT_STREQ(payload(OpId::kArgMax, {"f32[2] @ mesh(2) [R]"}, Dims({-1})), "index");
  EXPECT_STREQ(payload(OpId::kMatmul, {"f32[4,3] @ mesh(2) [R]", "f32[4,4] @ mesh(2) [R]"}), "none");
}

TEST(Errors, BroadcastsThatOverflow) {
  EXPECT_FALSE(Resolve(OpId::kAdd, {"f32[1073741824,1] @ mesh(2) [R]", "f32[1,4294967296] @ mesh(2) [R]"}).ok());
  EXPECT_FALSE(
      Resolve(OpId::kMatmul, {"f32[1099511627776,1] @ mesh(2) [R]", "f32[1,1099511627776] @ mesh(2) [R]"}).ok());
}

TEST(Errors, DimsOfReductions) {
  EXPECT_EQ(Output(OpId::kSum, {"f32[2,3] @ mesh(2) [R]"}, Dims({1, 0})),
            "sum: dims must increase, got [1,0]: x is f32[2,3]");
  EXPECT_EQ(Output(OpId::kSum, {"f32[2,3] @ mesh(2) [R]"}, Dims({0, 0})),
            "sum: dims must increase, got [0,0]: x is f32[2,3]");
  EXPECT_EQ(Output(OpId::kSum, {"f32[2,3] @ mesh(2) [R]"}, Dims({3})),
            "sum: dim 3 is out of range for rank 2: x is f32[2,3]");
}

}  // namespace
}  // namespace tessera
