// The functions that are made from the op catalog: each row has one, and calls what the row says.

#include "client/catalog_ops.h"

#include <memory>

#include "client/session_impl.h"
#include "gtest/gtest.h"
#include "schemas/types/tensor_spec.h"
#include "tests/unit/client/fake_gateway.h"

namespace tessera {
namespace {

class CatalogOps : public ::testing::Test {
 protected:
  static std::shared_ptr<SessionImpl> Open(FakeGateway& fake) {
    ConnectionOptions options;
    options.address = fake.address();
    options.timeout_s = 0.3;
    return *SessionImpl::Open(options, 60);
  }

  Tensor Make(std::string_view spec) { return Tensor(session_->Adopt(next_++, *ParseTensorSpec(spec), "")); }
  static std::string TextOf(const absl::StatusOr<Tensor>& tensor) {
    return tensor.ok() ? ToText(tensor->spec()) : tensor.status().ToString();
  }

  // Its destructor may throw, a fixture's may not.
  const std::unique_ptr<FakeGateway> fake_ = std::make_unique<FakeGateway>(FakeOptions{});
  std::shared_ptr<SessionImpl> session_ = Open(*fake_);
  uint64_t next_ = 1'000'000;
};

TEST_F(CatalogOps, EachRowHasAFunction) {
  std::vector<OpId> rows;
  for (const OpRow& row : Catalog()) rows.push_back(row.id);
  const std::vector<OpId> made(ops::Rows().begin(), ops::Rows().end());
  EXPECT_EQ(made, rows);
}

TEST_F(CatalogOps, AttributesAreTypedAndHaveTheRowsDefaults) {
  const Tensor x = Make("f32[8,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(TextOf(ops::Softmax(x)), "f32[8,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(TextOf(ops::Sum(x)), "f32[] @ mesh(2) [P(sum)]");
  ops::SumOptions rows;
  rows.axis = {-1};
  rows.keepdims = true;
  EXPECT_EQ(TextOf(ops::Sum(x, rows)), "f32[8,1] @ mesh(2) [S(0)]");
  EXPECT_EQ(TextOf(ops::Argsort(x)), "i64[8,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(TextOf(ops::Astype(x, DType::kF64)), "f64[8,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(TextOf(ops::PermuteDims(x, {1, 0})), "f32[6,8] @ mesh(2) [S(1)]");
  EXPECT_EQ(TextOf(ops::Add(x, 1)), "f32[8,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(
      TextOf(ops::Slice(x, {{IndexItem::Kind::kInteger, 1, 1, 1}, {IndexItem::Kind::kSlice, 0, 6, 1}})).substr(0, 6),
      "f32[6]");
  EXPECT_EQ(TextOf(ops::Einsum("ij,kj->ik", x, x)).substr(0, 8), "f32[8,8]");
}

TEST_F(CatalogOps, OperandsThatMayBeLeftOutListsAndSeveralResults) {
  const Tensor x = Make("f32[8,6] @ mesh(2) [S(0)]");
  const Tensor weight = Make("f32[6] @ mesh(2) [R]");
  EXPECT_EQ(TextOf(ops::LayerNorm(x)), "f32[8,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(TextOf(ops::LayerNorm(x, weight, weight)), "f32[8,6] @ mesh(2) [S(0)]");
  const Operand both[] = {x, x};
  ops::ConcatOptions columns;
  columns.axis = {1};
  EXPECT_EQ(TextOf(ops::Concat(both, columns)), "f32[8,12] @ mesh(2) [S(0)]");
  const absl::StatusOr<std::vector<Tensor>> factors = ops::Qr(x);
  ASSERT_TRUE(factors.ok()) << factors.status();
  ASSERT_EQ(factors->size(), 2u);
  EXPECT_EQ((*factors)[1].shape(), (Shape{6, 6}));
  ops::RedistributeOptions to;
  to.placements = Placements{Placement::Replicate()};
  EXPECT_EQ(TextOf(ops::Redistribute(x, to)->front()), "f32[8,6] @ mesh(2) [R]");
}

TEST_F(CatalogOps, ErrorsAreTheRows) {
  const Tensor x = Make("f32[8,6] @ mesh(2) [S(0)]");
  ops::SumOptions far;
  far.axis = {5};
  const absl::StatusOr<Tensor> sum = ops::Sum(x, far);
  EXPECT_NE(sum.status().message().find("sum"), std::string::npos) << sum.status();
  const Tensor y = Make("f32[7] @ mesh(2) [R]");
  EXPECT_NE(ops::Add(x, y).status().message().find("add"), std::string::npos);
}

}  // namespace
}  // namespace tessera
