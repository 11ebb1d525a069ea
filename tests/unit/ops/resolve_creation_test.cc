#include <limits>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/unit/ops/resolve_testing.h"

namespace tessera {
namespace {

Attributes Creation(Shape shape, DType dtype, std::string_view mesh) {
  Attributes attributes = ToShape(std::move(shape));
  attributes.Set(attribute::dtype, dtype);
  attributes.Set(attribute::mesh, *ParseMesh(mesh));
  return attributes;
}

Attributes Placed(Attributes attributes, std::string_view placements) {
  attributes.Set(attribute::placements, *ParsePlacements(placements));
  return attributes;
}

TEST(Creation, AutoPlacements) {
  const Scalar one = Scalar::Int(1);
  EXPECT_EQ(Output(OpId::kFull, {}, Creation({4, 4}, DType::kF32, "mesh(2)"), {one}), "f32[4,4] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kFull, {}, Creation({1024, 1024}, DType::kF32, "mesh(2,2)"), {one}),
            "f32[1024,1024] @ mesh(2,2) [S(0), S(1)]");
  EXPECT_EQ(Output(OpId::kFull, {}, Placed(Creation({4, 4}, DType::kF32, "mesh(2)"), "[S(-1)]"), {one}),
            "f32[4,4] @ mesh(2) [S(1)]");
}

TEST(Creation, NumbersHaveTheResultsDType) {
  const OpResolution filled = *Resolve(OpId::kFull, {}, Creation({4}, DType::kI32, "mesh(2)"), {Scalar::Float(3.7)});
  EXPECT_EQ(ToText(filled.scalars[0]), "3:i32");
  const OpResolution counted =
      *Resolve(OpId::kArange, {}, Creation({4}, DType::kF32, "mesh(2)"), {Scalar::Int(1), Scalar::Float(0.1)});
  EXPECT_EQ(ToText(counted.scalars[1]), "0.1:f64") << "rounded at the end, not before it is multiplied";
  EXPECT_EQ(
      ToText(
          *Resolve(OpId::kRand, {}, Creation({4, 6}, DType::kF32, "mesh(2)"), {Scalar::Int(1), Scalar::Int(2)})->local),
      "rand([4,6])");
  const OpResolution normal =
      *Resolve(OpId::kNormal, {}, Creation({4, 6}, DType::kF16, "mesh(2)"),
               {Scalar::Int(3), Scalar::Float(0.1), Scalar::Int(1), Scalar::Int((int64_t{1} << 60) + 1)});
  EXPECT_EQ(ToText(*normal.local), "rand([4,6]; normal)");
  EXPECT_EQ(ToText(normal.scalars[0]), "3.0:f64");
  EXPECT_EQ(ToText(normal.scalars[1]), "0.1:f64") << "rounded in the kernel";
  EXPECT_EQ(normal.scalars[3].AsInt(), (int64_t{1} << 60) + 1);
}

TEST(Creation, Errors) {
  const Scalar one = Scalar::Int(1);
  EXPECT_EQ(Output(OpId::kFull, {}, Placed(Creation({4}, DType::kF32, "mesh(2)"), "[P(sum)]"), {one}),
            "full: nothing can be made as P(sum): placements are [P(sum)]");
  EXPECT_EQ(Output(OpId::kFull, {}, Placed(Creation({4}, DType::kF32, "mesh(2)"), "[R, R]"), {one}),
            "full: 2 placements for a mesh of 1 dims: [R, R] on mesh(2)");
  EXPECT_EQ(Output(OpId::kFull, {}, Placed(Creation({4}, DType::kF32, "mesh(2)"), "[S(1)]"), {one}),
            "full: placement S(1) is out of range for rank 1: the tensor is f32[4]");
  EXPECT_EQ(Output(OpId::kFull, {}, ToShape({4}), {one}), "full: needs a device mesh");
  EXPECT_EQ(Output(OpId::kFull, {}, {}, {one}), "full: needs a shape");
  EXPECT_EQ(Output(OpId::kFull, {}, Creation({4}, DType::kF32, "mesh(2)"), {}), "full: takes 1 numbers, not 0");
  EXPECT_EQ(Output(OpId::kFull, {}, Creation({4}, DType::kF8E4M3, "mesh(2)"), {one}), "f8e4m3[4] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kRand, {}, Creation({4}, DType::kF8E4M3, "mesh(2)"), {one, one}),
            "rand: gives no f8e4m3, which is made, moved, cast and multiplied (matmul) alone; cast by astype before or "
            "behind");
  EXPECT_EQ(Output(OpId::kFull, {}, Creation({4}, DType::kF32, "mesh(2)"), {Scalar::Complex({1, 2})}),
            "full: 1.0+2.0j doesn't fit dtype f32");
  EXPECT_EQ(Output(OpId::kArange, {}, Creation({4}, DType::kC64, "mesh(2)"), {one, one}),
            "arange: needs a real dtype, not c64");
  EXPECT_EQ(Output(OpId::kFull, {}, Creation({-4}, DType::kF32, "mesh(2)"), {one}),
            "full: negative extent -4 in shape [-4]");
  EXPECT_EQ(Output(OpId::kArange, {}, Creation({4, 4}, DType::kF32, "mesh(2)"), {one, one}),
            "arange: the shape must be 1-D, not [4,4]");
  EXPECT_EQ(Output(OpId::kEye, {}, Creation({4}, DType::kF32, "mesh(2)"), {one}),
            "eye: the shape must be 2-D, not [4]");
  EXPECT_EQ(Output(OpId::kRand, {}, Creation({4}, DType::kI32, "mesh(2)"), {one, one}),
            "rand: the dtype must be a float, not i32");
  EXPECT_EQ(Output(OpId::kNormal, {}, Creation({4}, DType::kC64, "mesh(2)"), {one, one, one, one}),
            "normal: the dtype must be a float, not c64");
  EXPECT_EQ(Output(OpId::kNormal, {}, Creation({4}, DType::kF32, "mesh(2)"), {one, one}),
            "normal: takes 4 numbers, not 2");
  Attributes no_mesh = Creation({4}, DType::kF32, "mesh(2)");
  no_mesh.Set(attribute::mesh, Mesh());
  EXPECT_EQ(Output(OpId::kFull, {}, no_mesh, {one}), "full: the device mesh is not set");
}

TEST(Creation, HugeShapesAreRefused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const Scalar one = Scalar::Int(1);
  for (const Shape& shape : {Shape{kMax}, Shape{int64_t{1} << 62, 4}, Shape{int64_t{1} << 31, int64_t{1} << 31, 2}}) {
    EXPECT_EQ(Resolve(OpId::kFull, {}, Creation(shape, DType::kF32, "mesh(2)"), {one}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Output(OpId::kFull, {}, Creation({int64_t{1} << 31, int64_t{1} << 29}, DType::kF32, "mesh(2)"), {one}),
            "f32[2147483648,536870912] @ mesh(2) [S(0)]");
}

TEST(Redistribute, MeshPlacementsAndDType) {
  Attributes attributes;
  attributes.Set(attribute::placements, *ParsePlacements("[R, S(-1)]"));
  EXPECT_EQ(Output(OpId::kRedistribute, {"f32[4,6] @ mesh(2,2) [S(0), P(sum)]"}, attributes),
            "f32[4,6] @ mesh(2,2) [R, S(1)]");
  attributes.Set(attribute::dtype, DType::kF64);
  EXPECT_EQ(Output(OpId::kRedistribute, {"f32[4,6] @ mesh(2,2) [S(0), P(sum)]"}, attributes),
            "f64[4,6] @ mesh(2,2) [R, S(1)]");
  Attributes moved;
  moved.Set(attribute::mesh, *ParseMesh("mesh(2; workers=2,3)"));
  EXPECT_EQ(Output(OpId::kRedistribute, {"f32[4,6] @ mesh(2) [S(0)]"}, moved),
            "f32[4,6] @ mesh(2; workers=2,3) [S(0)]");
  EXPECT_EQ(Output(OpId::kRedistribute, {"f32[4,6] @ mesh(2) [P(sum)]"}, moved), "f32[4,6] @ mesh(2; workers=2,3) [R]");
  EXPECT_EQ(Output(OpId::kRedistribute, {"f32[4,6] @ mesh(2,2) [S(0), S(1)]"}, moved),
            "f32[4,6] @ mesh(2; workers=2,3) [R]");
}

TEST(Redistribute, SeveralTensorsHaveOneOutputEach) {
  const std::vector<std::string> operands = {"f32[4,6] @ mesh(2,2) [S(0), P(sum)]", "i64[8] @ mesh(4) [S(0)]",
                                             "f64[3,3] @ mesh(2; workers=6,7) [R]"};
  const auto outputs = [&operands](const Attributes& attributes) {
    const absl::StatusOr<OpResolution> resolution = Resolve(OpId::kRedistribute, operands, attributes);
    std::vector<std::string> texts;
    if (!resolution.ok()) return std::vector<std::string>{std::string(resolution.status().message())};
    for (size_t i = 0; i < resolution->outputs.size(); ++i) {
      texts.push_back(ToText(resolution->outputs[i]) + (resolution->operands[i].conversion.has_value() ? " cast" : ""));
    }
    return texts;
  };
  Attributes each;
  each.Set(attribute::placements_each,
           {*ParsePlacements("[S(1), R]"), *ParsePlacements("[R]"), *ParsePlacements("[S(-1)]")});
  EXPECT_EQ(outputs(each), (std::vector<std::string>{"f32[4,6] @ mesh(2,2) [S(1), R]", "i64[8] @ mesh(4) [R]",
                                                     "f64[3,3] @ mesh(2; workers=6,7) [S(1)]"}));
  Attributes all;
  all.Set(attribute::mesh, *ParseMesh("mesh(3)"));
  all.Set(attribute::placements, *ParsePlacements("[S(0)]"));
  all.Set(attribute::dtype, DType::kF64);
  EXPECT_EQ(outputs(all), (std::vector<std::string>{"f64[4,6] @ mesh(3) [S(0)] cast", "f64[8] @ mesh(3) [S(0)] cast",
                                                    "f64[3,3] @ mesh(3) [S(0)]"}));
}

TEST(Redistribute, ErrorsNameTheTensorOfSeveral) {
  const std::vector<std::string> operands = {"f32[4,6] @ mesh(2) [S(0)]", "f64[4] @ mesh(2) [P(sum)]"};
  Attributes attributes;
  attributes.Set(attribute::placements, *ParsePlacements("[S(1)]"));
  EXPECT_EQ(Output(OpId::kRedistribute, operands, attributes),
            "redistribute: operand 1: placement S(1) is out of range for rank 1: the tensor is f64[4]: from f64[4] @ "
            "mesh(2) [P(sum)] to mesh(2) [S(1)]");
  EXPECT_TRUE(Resolve(OpId::kRedistribute, operands, attributes).status().GetPayload(kIndexErrorPayload).has_value());
  attributes.Set(attribute::placements, *ParsePlacements("[P(sum)]"));
  EXPECT_EQ(Output(OpId::kRedistribute, operands, attributes),
            "redistribute: operand 0: S(0) to P(sum) on mesh dim 0: nothing else can be redistributed to Partial: from "
            "f32[4,6] @ mesh(2) [S(0)] to f32[4,6] @ mesh(2) [P(sum)]");
  attributes.Set(attribute::placements, *ParsePlacements("[R]"));
  attributes.Set(attribute::relabel, true);
  EXPECT_EQ(Output(OpId::kRedistribute, operands, attributes),
            "redistribute: relabel= is for one tensor, not for 2: a is f32[4,6], b is f64[4]");
  attributes.Set(attribute::relabel, false);
  attributes.Set(attribute::placements_each, {*ParsePlacements("[R]"), *ParsePlacements("[R]")});
  EXPECT_EQ(Output(OpId::kRedistribute, operands, attributes),
            "redistribute: placements for all and placements for each are given: a is f32[4,6], b is f64[4]");
  attributes.Clear(attribute::placements);
  const std::vector<std::string> three = {operands[0], operands[1], operands[0]};
  EXPECT_EQ(Output(OpId::kRedistribute, three, attributes),
            "redistribute: 2 lists of placements for 3 tensors: operand 0 is f32[4,6], operand 1 is f64[4], operand 2 "
            "is f32[4,6]");
  EXPECT_EQ(Output(OpId::kRedistribute, std::vector<std::string>(65, operands[0]), {}),
            "redistribute: takes 1 to 64 operands, not 65");
  EXPECT_EQ(Output(OpId::kRedistribute, {operands[0], "2"}, {}),
            "redistribute: a number can't stand here: a is f32[4,6], b is 2");
}

TEST(Redistribute, Errors) {
  Attributes attributes;
  attributes.Set(attribute::placements, *ParsePlacements("[P(max)]"));
  EXPECT_EQ(Output(OpId::kRedistribute, {"f32[4] @ mesh(2) [P(sum)]"}, attributes),
            "redistribute: P(sum) to P(max) on mesh dim 0: Partials of different kinds: from f32[4] @ mesh(2) [P(sum)] "
            "to f32[4] @ mesh(2) [P(max)]");
  EXPECT_EQ(Output(OpId::kRedistribute, {"f32[4] @ mesh(2) [S(0)]"}, attributes),
            "redistribute: S(0) to P(max) on mesh dim 0: nothing else can be redistributed to Partial: from f32[4] @ "
            "mesh(2) [S(0)] to f32[4] @ mesh(2) [P(max)]");
  attributes.Set(attribute::placements, *ParsePlacements("[P(sum)]"));
  attributes.Set(attribute::dtype, DType::kI32);
  const absl::Status status = Resolve(OpId::kRedistribute, {"f64[4] @ mesh(2) [P(sum)]"}, attributes).status();
  EXPECT_TRUE(status.GetPayload(kDTypeErrorPayload).has_value()) << status;
}

}  // namespace
}  // namespace tessera
