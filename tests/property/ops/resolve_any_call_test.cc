// Whatever a client may call: a resolution is an error or valid, and nothing ends the process.

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"
#include "tests/support/any_call.h"

namespace tessera {
namespace {

// How many calls resolved.
int CallOnce(const OpRow& row, AnyCalls& calls) {
  const AnyCall any = calls.Draw(row);
  const absl::StatusOr<OpResolution> resolution = ResolveOp(any.call, any.operands);
  if (!resolution.ok()) {
    EXPECT_NE(resolution.status().code(), absl::StatusCode::kInternal) << resolution.status();
    EXPECT_FALSE(resolution.status().message().empty());
    return 0;
  }
  for (const TensorSpec& output : resolution->outputs) {
    const absl::StatusOr<TensorSpec> valid =
        TensorSpec::Make("output", output.dtype, output.shape, output.mesh, output.placements);
    EXPECT_TRUE(valid.ok()) << ToText(output) << ": " << valid.status();
  }
  return 1;
}

TEST(ResolveAnyCall, IsAnErrorOrValid) {
  int resolved = 0;
  for (const OpRow& row : Catalog()) {
    SCOPED_TRACE(row.name);
    AnyCalls calls(SeedOfCalls() * 1000 + static_cast<uint64_t>(row.id));
    for (int i = RoundsOfCalls(300); i > 0; --i) resolved += CallOnce(row, calls);
  }
  EXPECT_GT(resolved, 1000);
}

TEST(ResolveAnyCall, AComplexValueOfMoreDimsIsRefused) {
  const Mesh mesh = *ParseMesh("mesh(2)");
  OpCall call;
  call.op = OpId::kAssign;
  call.attributes.Set(attribute::index, {{IndexItem::Kind::kInteger, 0, 0, 1}, {IndexItem::Kind::kSlice, 0, 2, 1}});
  const std::vector<OperandSpec> operands = {*TensorSpec::Make("x", DType::kF32, Shape{1, 2}, mesh, Placements(1)),
                                             *TensorSpec::Make("v", DType::kC64, Shape{1, 1, 2}, mesh, Placements(1))};
  EXPECT_EQ(ResolveOp(call, operands).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
