#include "schemas/codec/values.h"

#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <capnp/message.h>

#include "schemas/link/exception.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ValuesCodecTest, SpecsRoundTrip) {
  for (const char* text : {"f32[8192,1024] @ mesh(dp:2,tp:4) [S(0), R]", "bool[] @ mesh(3) [R]",
                           "i64[0,7] @ mesh(x:2; workers=3,1) [S(1)]", "f64[5] @ mesh(2,2) [P(sum), S(0)]"}) {
    const TensorSpec spec = *ParseTensorSpec(text);
    capnp::MallocMessageBuilder message;
    auto builder = message.initRoot<wire::TensorSpec>();
    EncodeTensorSpec(spec, builder);
    auto decoded = DecodeTensorSpec(builder.asReader());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, spec);
  }
}

TEST(ValuesCodecTest, HostileSpecsAreRefused) {
  capnp::MallocMessageBuilder message;
  auto spec = message.initRoot<wire::TensorSpec>();
  spec.setDtype(200);
  EXPECT_FALSE(DecodeTensorSpec(spec.asReader()).ok());
  spec.setDtype(11);
  auto shape = spec.initShape(2);
  shape.set(0, int64_t{1} << 62);
  shape.set(1, 8);
  spec.initMesh().initShape(1).set(0, 1);
  spec.initPlacements(1);
  EXPECT_FALSE(DecodeTensorSpec(spec.asReader()).ok());  // 2^65 elements
  spec.initShape(1).set(0, -1);
  EXPECT_FALSE(DecodeTensorSpec(spec.asReader()).ok());
  spec.initShape(1).set(0, 4);
  spec.initMesh().initShape(1).set(0, int64_t{1} << 40);
  EXPECT_FALSE(DecodeTensorSpec(spec.asReader()).ok());  // a mesh of 2^40
  spec.initMesh().initShape(1).set(0, 2);
  auto placement = spec.initPlacements(1)[0];
  placement.setKind(wire::Placement::Kind::SHARD);
  placement.setDim(1);
  EXPECT_FALSE(DecodeTensorSpec(spec.asReader()).ok());  // no such dim
  placement.setDim(0);
  EXPECT_TRUE(DecodeTensorSpec(spec.asReader()).ok());
  auto sizes = placement.initSizes(2);
  EXPECT_EQ(DecodeTensorSpec(spec.asReader()).status().code(), absl::StatusCode::kInvalidArgument);  // 0 and 0 of 4
  sizes.set(0, 1);
  sizes.set(1, 3);
  EXPECT_EQ(ToText(DecodeTensorSpec(spec.asReader())->placements), "[S(0;1,3)]");
  placement.initSizes(70000);
  EXPECT_EQ(DecodeTensorSpec(spec.asReader()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ValuesCodecTest, StridesAreOnePerDimAndBounded) {
  const TensorSpec spec = *ParseTensorSpec("f64[8,4] @ mesh(2) [S(0)]");
  capnp::MallocMessageBuilder message;
  const auto decode = [&](std::vector<int64_t> strides) {
    auto list = message.getOrphanage().newOrphan<capnp::List<int64_t>>(static_cast<unsigned>(strides.size()));
    for (unsigned i = 0; i < strides.size(); ++i) list.get().set(i, strides[i]);
    return DecodeStrides(spec, list.getReader());
  };
  EXPECT_EQ(*decode({-1, 4}), (Strides{-1, 4}));
  EXPECT_TRUE(decode({})->empty());
  EXPECT_FALSE(decode({4}).ok());
  EXPECT_FALSE(decode({int64_t{1} << 59, 1}).ok());
  EXPECT_FALSE(decode({1, std::numeric_limits<int64_t>::min()}).ok());
}

TEST(ValuesCodecTest, CallsRoundTrip) {
  OpCall call;
  call.op = OpId::kSlice;
  call.scalars = {Scalar::Float(2.5), Scalar::Int(-3, ScalarStrength::kStrong), Scalar::Bool(true),
                  Scalar::Complex({1, -2}), Scalar::Complex({0.1, 3}).As(DType::kC64)};
  call.attributes.Set(attribute::dims, {1, 0});
  call.attributes.Set(attribute::keepdims, true);
  call.attributes.Set(attribute::index, {{IndexItem::Kind::kSlice, 5, 3, -2}, {IndexItem::Kind::kNewAxis, 0, 0, 1}});
  call.attributes.Set(attribute::dtype, DType::kF64);
  call.attributes.Set(attribute::shape, Shape{3, 4});
  call.attributes.Set(attribute::mesh, *Mesh::Make({2}, {}, {}));
  call.attributes.Set(attribute::placements, Placements{Placement::Partial(ReduceOp::kMax)});
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<wire::OpCall>();
  EncodeOpCall(call, builder);
  auto decoded = DecodeOpCall(builder.asReader());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->op, call.op);
  EXPECT_EQ(decoded->attributes, call.attributes);
  EXPECT_EQ(decoded->scalars, call.scalars);
}

TEST(ValuesCodecTest, PlacementsOfEachTensorRoundTripAndAreBounded) {
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::placements_each,
                      {{Placement::Partial(ReduceOp::kMax)}, {}, {Placement::Shard(-1), Placement::Replicate()}});
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<wire::OpCall>();
  EncodeOpCall(call, builder);
  auto decoded = DecodeOpCall(builder.asReader());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->attributes, call.attributes);
  builder.getAttributes()[0].initPlacementsEach(65);
  EXPECT_THAT(std::string(DecodeOpCall(builder.asReader()).status().message()), HasSubstr("65 entries"));
  builder.getAttributes()[0].initPlacementsEach(2).init(1, 9);
  EXPECT_EQ(DecodeOpCall(builder.asReader()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ValuesCodecTest, AnAttributeIsKnownOfItsKindAndGivenOnce) {
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<wire::OpCall>();
  const auto message_of = [&] { return std::string(DecodeOpCall(builder.asReader()).status().message()); };
  auto attributes = builder.initAttributes(2);
  attributes[0].setId(static_cast<uint16_t>(AttributeId::kKeepdims));
  attributes[0].setFlag(true);
  attributes[1].setId(static_cast<uint16_t>(AttributeId::kEps));
  attributes[1].setNumber(0.5);
  const auto decoded = DecodeOpCall(builder.asReader());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->attributes.Get(attribute::keepdims));
  EXPECT_EQ(*decoded->attributes.Get(attribute::eps), 0.5);
  attributes[1].setText("0.5");
  EXPECT_THAT(message_of(), HasSubstr("attribute eps is of another kind"));
  attributes[1].setId(static_cast<uint16_t>(AttributeId::kKeepdims));
  EXPECT_THAT(message_of(), HasSubstr("attribute keepdims is given twice"));
  attributes[1].setId(60000);
  EXPECT_THAT(message_of(), HasSubstr("unknown attribute number 60000"));
}

TEST(ValuesCodecTest, StatusesRoundTripWithTheirPayloads) {
  const absl::Status status = DTypeError("add: no common dtype of i64 and u64");
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<wire::Status>();
  EncodeStatus(status, builder);
  const absl::Status decoded = DecodeStatus(builder.asReader());
  EXPECT_EQ(decoded, status);
  EXPECT_TRUE(decoded.GetPayload(kDTypeErrorPayload).has_value());
}

TEST(ExceptionTest, StatusesSurviveAnRpc) {
  for (const absl::Status& status : {absl::NotFoundError("no tensor: with colons: in it"), DTypeError("bad dtype"),
                                     absl::UnavailableError("gone")}) {
    EXPECT_EQ(FromException(ToException(status)), status);
  }
  const kj::Exception lost(kj::Exception::Type::DISCONNECTED, "file", 1, kj::heapString("peer disconnected"));
  EXPECT_EQ(FromException(lost).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(FromException(lost).message()), HasSubstr("peer disconnected"));
}

}  // namespace
}  // namespace tessera
