#include "tests/support/any_call.h"

#include <algorithm>
#include <cstdlib>

#include "schemas/ops/attribute_ids.h"
#include "tests/property/types/small_worlds.h"

namespace tessera {
namespace {

constexpr DType kDTypes[] = {DType::kBool, DType::kI8,  DType::kU8,   DType::kI32, DType::kI64,
                             DType::kU64,  DType::kF32, DType::kBF16, DType::kF64, DType::kC64};
const ReduceOp kPartials[] = {ReduceOp::kSum, ReduceOp::kMax};

}  // namespace

Shape AnyCalls::AnyShape() {
  Shape shape(static_cast<size_t>(Below(5)));
  for (int64_t& extent : shape) extent = Chance(10) ? 0 : 1 + Below(5);
  return shape;
}

TensorSpec AnyCalls::Tensor(const Mesh& mesh) {
  const Shape shape = AnyShape();
  const std::vector<Placements> all = AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), kPartials);
  const Placements& placements = all[static_cast<size_t>(Below(static_cast<int64_t>(all.size())))];
  const DType dtype = kDTypes[Below(std::size(kDTypes))];
  const absl::StatusOr<TensorSpec> spec = TensorSpec::Make("x", dtype, shape, mesh, placements);
  return spec.ok() ? *spec : *TensorSpec::Make("x", dtype, shape, mesh, Placements(placements.size()));
}

int64_t AnyCalls::Integer() {
  if (Chance(3)) return Chance(50) ? INT64_MIN : INT64_MAX;
  return Chance(10) ? Below(1000) - 500 : Below(6) - 1;
}

Scalar AnyCalls::Number() {
  if (Chance(50)) return Scalar::Int(Integer());
  return Scalar::Float(Chance(20) ? -HUGE_VAL : 0.5 * static_cast<double>(Below(9) - 4));
}

std::vector<int64_t> AnyCalls::Integers() {
  std::vector<int64_t> list(static_cast<size_t>(Below(5)));
  for (int64_t& value : list) value = Integer();
  return list;
}

AttributeValue AnyCalls::Value(AttributeId id, const Mesh& mesh) {
  static const char* const kTexts[] = {"",  "sum", "mean", "none", "add",     "max",   "edge",  "reflect", "ij,jk->ik",
                                       "1", "inf", "fro",  "nuc",  "forward", "ortho", "right", "tanh",    "x"};
  switch (KindOf(id)) {
    case AttributeKind::kFlag: return Chance(50);
    case AttributeKind::kInteger: return Integer();
    case AttributeKind::kNumber: return Number().AsDouble();
    case AttributeKind::kDType: return kDTypes[Below(std::size(kDTypes))];
    case AttributeKind::kText: return std::string(kTexts[Below(std::size(kTexts))]);
    case AttributeKind::kIntegers: return Integers();
    case AttributeKind::kShape: return AnyShape();
    case AttributeKind::kMesh: return mesh;
    case AttributeKind::kPlacements: return Tensor(mesh).placements;
    case AttributeKind::kPlacementsEach: return std::vector<Placements>{Tensor(mesh).placements};
    case AttributeKind::kIndex: {
      std::vector<IndexItem> index(static_cast<size_t>(Below(5)));
      for (IndexItem& item : index) {
        item = {static_cast<IndexItem::Kind>(Below(3)), Below(4), Below(4), Chance(20) ? Integer() : 1};
      }
      return index;
    }
  }
  return false;
}

AnyCall AnyCalls::Draw(const OpRow& row) {
  static const std::vector<Mesh> meshes = {*ParseMesh("mesh(2)"), *ParseMesh("mesh(3)"), *ParseMesh("mesh(2,2)")};
  const Mesh& mesh = meshes[static_cast<size_t>(Below(3))];
  AnyCall any;
  any.call.op = row.id;
  for (size_t id = 0; id < AttributeTable().size(); ++id) {
    const AttributeId attribute = static_cast<AttributeId>(id);
    const bool is_named = row.signature.find(NameOf(attribute)) != std::string_view::npos;
    const bool is_common = attribute == AttributeId::kDims || attribute == AttributeId::kMesh ||
                           attribute == AttributeId::kShape || attribute == AttributeId::kDType;
    if (Chance(is_named ? 60 : is_common ? 30 : 2)) any.call.attributes.Set(attribute, Value(attribute, mesh));
  }
  if (Chance(40)) {
    for (int64_t i = Below(7); i > 0; --i) any.call.scalars.push_back(Number());
  }
  const int64_t most = std::min(row.max_operands, 7) - row.min_operands + 1;
  const TensorSpec like = Tensor(mesh);
  for (int64_t i = row.min_operands + Below(std::max<int64_t>(most, 1)); i > 0; --i) {
    if (Chance(12)) {
      any.operands.emplace_back(Number());
    } else {
      any.operands.emplace_back(Chance(50) ? like : Tensor(mesh));
    }
  }
  return any;
}

uint64_t SeedOfCalls() {
  const char* const seed = std::getenv("TESSERA_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

int RoundsOfCalls(int otherwise) {
  const char* const rounds = std::getenv("TESSERA_ROUNDS");
  return rounds == nullptr ? otherwise : std::atoi(rounds);
}

}  // namespace tessera
