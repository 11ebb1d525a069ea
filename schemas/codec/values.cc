#include "schemas/codec/values.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/graph_text.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr uint32_t kMaxIndexItems = 64;
constexpr uint32_t kMaxScalars = 64;
constexpr uint32_t kMaxNotationChars = 128;  // docs/limits.md: max_notation_chars
constexpr uint32_t kMaxPayloads = 8;

absl::Status TooMany(std::string_view field, uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(field, ": ", count, " entries, the limit is ", limit));
}

template <typename Result>
Result Copy(capnp::List<int64_t>::Reader reader) {
  Result values;
  values.reserve(reader.size());
  for (int64_t value : reader) values.push_back(value);
  return values;
}

absl::StatusOr<Shape> DecodeShape(std::string_view field, capnp::List<int64_t>::Reader reader) {
  if (reader.size() > kMaxRank) return TooMany(field, reader.size(), kMaxRank);
  return Copy<Shape>(reader);
}

template <typename List>
void FillList(const List& values, capnp::List<int64_t>::Builder builder) {
  for (size_t i = 0; i < values.size(); ++i) builder.set(static_cast<unsigned>(i), values[i]);
}

void EncodePlacement(const Placement& placement, wire::Placement::Builder builder) {
  switch (placement.kind()) {
    case Placement::Kind::kReplicate: builder.setKind(wire::Placement::Kind::REPLICATE); break;
    case Placement::Kind::kShard:
      builder.setKind(wire::Placement::Kind::SHARD);
      builder.setDim(placement.dim());
      if (placement.has_sizes()) {
        FillList(placement.sizes(), builder.initSizes(static_cast<unsigned>(placement.sizes().size())));
      }
      break;
    case Placement::Kind::kPartial:
      builder.setKind(wire::Placement::Kind::PARTIAL);
      builder.setReduceOp(static_cast<uint8_t>(placement.reduce_op()));
      break;
  }
}

void EncodePlacements(const Placements& placements, capnp::List<wire::Placement>::Builder builder) {
  for (size_t i = 0; i < placements.size(); ++i) EncodePlacement(placements[i], builder[static_cast<unsigned>(i)]);
}

absl::StatusOr<Placement> DecodePlacement(wire::Placement::Reader reader) {
  switch (reader.getKind()) {
    case wire::Placement::Kind::REPLICATE: return Placement::Replicate();
    case wire::Placement::Kind::SHARD:
      if (reader.getSizes().size() > kMaxMeshSize) return TooMany("sizes", reader.getSizes().size(), kMaxMeshSize);
      return Placement::Shard(reader.getDim(), Copy<std::vector<int64_t>>(reader.getSizes()));
    case wire::Placement::Kind::PARTIAL:
      if (reader.getReduceOp() > static_cast<uint8_t>(kLastReduceOp)) {
        return absl::InvalidArgumentError(StrCat("unknown reduce op number ", reader.getReduceOp()));
      }
      return Placement::Partial(static_cast<ReduceOp>(reader.getReduceOp()));
  }
  return absl::InvalidArgumentError(StrCat("unknown placement kind ", static_cast<int>(reader.getKind())));
}

absl::StatusOr<Placements> DecodePlacements(capnp::List<wire::Placement>::Reader reader) {
  if (reader.size() > kMaxMeshDims) return TooMany("placements", reader.size(), kMaxMeshDims);
  Placements placements;
  placements.reserve(reader.size());
  for (auto item : reader) {
    TESSERA_ASSIGN_OR_RETURN(Placement placement, DecodePlacement(item));
    placements.push_back(placement);
  }
  return placements;
}

absl::StatusOr<std::vector<IndexItem>> DecodeIndex(capnp::List<wire::IndexItem>::Reader reader) {
  if (reader.size() > kMaxIndexItems) return TooMany("index", reader.size(), kMaxIndexItems);
  std::vector<IndexItem> index;
  for (auto item : reader) {
    if (item.getKind() > static_cast<uint8_t>(IndexItem::Kind::kNewAxis)) {
      return absl::InvalidArgumentError(StrCat("unknown index item kind ", item.getKind()));
    }
    index.push_back({static_cast<IndexItem::Kind>(item.getKind()), item.getStart(), item.getSize(), item.getStep()});
  }
  return index;
}

}  // namespace

std::string TextOf(capnp::Text::Reader text) { return std::string(text.cStr(), text.size()); }

void EncodeStatus(const absl::Status& status, wire::Status::Builder builder) {
  builder.setCode(static_cast<uint16_t>(status.raw_code()));
  if (status.ok()) return;
  builder.setMessage(kj::StringPtr(std::string(status.message()).c_str()));
  std::vector<std::string> names;
  status.ForEachPayload([&](absl::string_view name, const absl::Cord&) { names.emplace_back(name); });
  auto payloads = builder.initPayloads(static_cast<unsigned>(names.size()));
  for (size_t i = 0; i < names.size(); ++i) payloads.set(static_cast<unsigned>(i), names[i].c_str());
}

absl::Status DecodeStatus(wire::Status::Reader reader) {
  if (reader.getCode() == 0) return absl::OkStatus();
  absl::StatusCode code = reader.getCode() <= static_cast<uint16_t>(absl::StatusCode::kUnauthenticated)
                              ? static_cast<absl::StatusCode>(reader.getCode())
                              : absl::StatusCode::kUnknown;
  absl::Status status(code, absl::string_view(reader.getMessage().cStr(), reader.getMessage().size()));
  uint32_t count = 0;
  for (auto name : reader.getPayloads()) {
    if (++count > kMaxPayloads) break;
    status.SetPayload(absl::string_view(name.cStr(), name.size()), absl::Cord(""));
  }
  return status;
}

void EncodeMesh(const Mesh& mesh, wire::Mesh::Builder builder) {
  FillList(mesh.shape(), builder.initShape(static_cast<unsigned>(mesh.shape().size())));
  auto names = builder.initNames(static_cast<unsigned>(mesh.names().size()));
  for (size_t i = 0; i < mesh.names().size(); ++i) names.set(static_cast<unsigned>(i), mesh.names()[i].c_str());
  const auto& workers = mesh.workers();
  bool counted = true;
  for (size_t i = 0; i < workers.size(); ++i) counted = counted && workers[i].value == static_cast<int32_t>(i);
  if (counted) return;
  auto list = builder.initWorkers(static_cast<unsigned>(workers.size()));
  for (size_t i = 0; i < workers.size(); ++i) list.set(static_cast<unsigned>(i), workers[i].value);
}

absl::StatusOr<Mesh> DecodeMesh(wire::Mesh::Reader reader) {
  if (reader.getShape().size() > kMaxMeshDims) return TooMany("mesh shape", reader.getShape().size(), kMaxMeshDims);
  if (reader.getNames().size() > kMaxMeshDims) return TooMany("mesh names", reader.getNames().size(), kMaxMeshDims);
  if (reader.getWorkers().size() > kMaxMeshSize)
    return TooMany("mesh workers", reader.getWorkers().size(), kMaxMeshSize);
  const auto shape = Copy<std::vector<int64_t>>(reader.getShape());
  std::vector<std::string> names;
  for (auto name : reader.getNames()) names.emplace_back(name.cStr(), name.size());
  std::vector<WorkerIndex> workers;
  workers.reserve(reader.getWorkers().size());
  for (int32_t worker : reader.getWorkers()) workers.emplace_back(worker);
  return Mesh::Make(shape, names, workers);
}

void EncodeTensorSpec(const TensorSpec& spec, wire::TensorSpec::Builder builder) {
  builder.setDtype(static_cast<uint8_t>(spec.dtype));
  FillList(spec.shape, builder.initShape(static_cast<unsigned>(spec.shape.size())));
  EncodeMesh(spec.mesh, builder.initMesh());
  EncodePlacements(spec.placements, builder.initPlacements(static_cast<unsigned>(spec.placements.size())));
}

absl::StatusOr<TensorSpec> DecodeTensorSpec(wire::TensorSpec::Reader reader) {
  TESSERA_ASSIGN_OR_RETURN(DType dtype, DTypeFromWire(reader.getDtype()));
  TESSERA_ASSIGN_OR_RETURN(Shape shape, DecodeShape("shape", reader.getShape()));
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, DecodeMesh(reader.getMesh()));
  TESSERA_ASSIGN_OR_RETURN(Placements placements, DecodePlacements(reader.getPlacements()));
  return TensorSpec::Make("tensor spec", dtype, shape, mesh, placements);
}

absl::StatusOr<Strides> DecodeStrides(const TensorSpec& spec, capnp::List<int64_t>::Reader reader) {
  if (reader.size() > kMaxRank) return TooMany("strides", reader.size(), kMaxRank);
  const Strides strides = Copy<Strides>(reader);
  if (strides.empty()) return strides;
  if (strides.size() != spec.shape.size()) {
    return absl::InvalidArgumentError(StrCat("strides: ", strides.size(), " of ", ToText(spec)));
  }
  __extension__ using Wide = __int128;
  const Shape extents = MaxShardShape(spec);
  Wide reach = SizeBytes(spec.dtype);
  for (size_t d = 0; d < extents.size(); ++d) {
    const Wide stride = strides[d];
    reach += (stride < 0 ? -stride : stride) * std::max<int64_t>(1, extents[d] - 1);
    if (reach > std::numeric_limits<int64_t>::max() / SizeBytes(spec.dtype)) {
      return absl::InvalidArgumentError(StrCat("strides: ", ToText(strides), " of ", ToText(spec), " reach too far"));
    }
  }
  return strides;
}

void EncodeScalar(const Scalar& scalar, wire::Scalar::Builder builder) {
  builder.setDtype(static_cast<uint8_t>(scalar.dtype()));
  builder.setWeak(scalar.strength() == ScalarStrength::kWeak);
  builder.setBits(scalar.bits());
  builder.setImaginaryBits(scalar.imaginary_bits());
}

absl::StatusOr<Scalar> DecodeScalar(wire::Scalar::Reader reader) {
  TESSERA_ASSIGN_OR_RETURN(DType dtype, DTypeFromWire(reader.getDtype()));
  return Scalar::FromBits(dtype, reader.getWeak() ? ScalarStrength::kWeak : ScalarStrength::kStrong, reader.getBits(),
                          reader.getImaginaryBits());
}

namespace {

struct AttributeEncoder {
  wire::Attribute::Builder out;

  void operator()(bool value) { out.setFlag(value); }
  void operator()(int64_t value) { out.setInteger(value); }
  void operator()(double value) { out.setNumber(value); }
  void operator()(DType value) { out.setDtype(static_cast<uint8_t>(value)); }
  void operator()(const std::string& value) { out.setText(value.c_str()); }
  void operator()(const std::vector<int64_t>& value) {
    FillList(value, out.initIntegers(static_cast<unsigned>(value.size())));
  }
  void operator()(const Shape& value) { FillList(value, out.initIntegers(static_cast<unsigned>(value.size()))); }
  void operator()(const Mesh& value) { EncodeMesh(value, out.initMesh()); }
  void operator()(const Placements& value) {
    EncodePlacements(value, out.initPlacements(static_cast<unsigned>(value.size())));
  }
  void operator()(const std::vector<Placements>& value) {
    auto each = out.initPlacementsEach(static_cast<unsigned>(value.size()));
    for (unsigned i = 0; i < each.size(); ++i) {
      EncodePlacements(value[i], each.init(i, static_cast<unsigned>(value[i].size())));
    }
  }
  void operator()(const std::vector<IndexItem>& value) {
    auto index = out.initIndex(static_cast<unsigned>(value.size()));
    for (unsigned i = 0; i < index.size(); ++i) {
      index[i].setKind(static_cast<uint8_t>(value[i].kind));
      index[i].setStart(value[i].start);
      index[i].setSize(value[i].size);
      index[i].setStep(value[i].step);
    }
  }
};

// Which alternative of the record has a value of the kind.
wire::Attribute::Which WireKindOf(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kFlag: return wire::Attribute::FLAG;
    case AttributeKind::kInteger: return wire::Attribute::INTEGER;
    case AttributeKind::kNumber: return wire::Attribute::NUMBER;
    case AttributeKind::kDType: return wire::Attribute::DTYPE;
    case AttributeKind::kText: return wire::Attribute::TEXT;
    case AttributeKind::kIntegers:
    case AttributeKind::kShape: return wire::Attribute::INTEGERS;
    case AttributeKind::kMesh: return wire::Attribute::MESH;
    case AttributeKind::kPlacements: return wire::Attribute::PLACEMENTS;
    case AttributeKind::kPlacementsEach: return wire::Attribute::PLACEMENTS_EACH;
    case AttributeKind::kIndex: break;
  }
  return wire::Attribute::INDEX;
}

// The record is of the attribute's kind.
absl::StatusOr<AttributeValue> DecodeAttributeValue(OpId op, AttributeId id, wire::Attribute::Reader reader) {
  const std::string_view name = NameOf(id);
  switch (KindOf(id)) {
    case AttributeKind::kFlag: return AttributeValue(reader.getFlag());
    case AttributeKind::kInteger: return AttributeValue(reader.getInteger());
    case AttributeKind::kNumber: return AttributeValue(reader.getNumber());
    case AttributeKind::kDType: return DTypeFromWire(reader.getDtype());
    case AttributeKind::kText: {
      const size_t most = op == kGraphOp ? kMaxGraphTextBytes : kMaxNotationChars;
      if (reader.getText().size() > most) return TooMany(name, reader.getText().size(), most);
      return AttributeValue(std::string(reader.getText().begin(), reader.getText().size()));
    }
    case AttributeKind::kIntegers: {
      // Lengths are one for each shard, as a placement's sizes are.
      const uint32_t most = id == attribute::lengths.id ? kMaxMeshSize : kMaxIndexItems;
      if (reader.getIntegers().size() > most) return TooMany(name, reader.getIntegers().size(), most);
      return AttributeValue(Copy<std::vector<int64_t>>(reader.getIntegers()));
    }
    case AttributeKind::kShape: return DecodeShape(name, reader.getIntegers());
    case AttributeKind::kMesh: return DecodeMesh(reader.getMesh());
    case AttributeKind::kPlacements: return DecodePlacements(reader.getPlacements());
    case AttributeKind::kPlacementsEach: {
      if (reader.getPlacementsEach().size() > kMaxOperands) {
        return TooMany("placements of each tensor", reader.getPlacementsEach().size(), kMaxOperands);
      }
      std::vector<Placements> each;
      for (auto placements : reader.getPlacementsEach()) {
        TESSERA_ASSIGN_OR_RETURN(each.emplace_back(), DecodePlacements(placements));
      }
      return AttributeValue(std::move(each));
    }
    case AttributeKind::kIndex: break;
  }
  return DecodeIndex(reader.getIndex());
}

}  // namespace

void EncodeOpCall(const OpCall& call, wire::OpCall::Builder builder) {
  builder.setOp(static_cast<uint16_t>(call.op));
  if (!call.scalars.empty()) {
    auto scalars = builder.initScalars(static_cast<unsigned>(call.scalars.size()));
    for (size_t i = 0; i < call.scalars.size(); ++i) EncodeScalar(call.scalars[i], scalars[static_cast<unsigned>(i)]);
  }
  const absl::Span<const Attributes::Entry> entries = call.attributes.entries();
  if (entries.empty()) return;
  auto attributes = builder.initAttributes(static_cast<unsigned>(entries.size()));
  for (unsigned i = 0; i < attributes.size(); ++i) {
    attributes[i].setId(static_cast<uint16_t>(entries[i].id));
    std::visit(AttributeEncoder{attributes[i]}, entries[i].value);
  }
}

absl::StatusOr<OpCall> DecodeOpCall(wire::OpCall::Reader reader) {
  if (reader.getScalars().size() > kMaxScalars) return TooMany("scalars", reader.getScalars().size(), kMaxScalars);
  OpCall call;
  call.op = static_cast<OpId>(reader.getOp());
  for (auto item : reader.getScalars()) {
    TESSERA_ASSIGN_OR_RETURN(Scalar scalar, DecodeScalar(item));
    call.scalars.push_back(scalar);
  }
  if (reader.getAttributes().size() > AttributeTable().size()) {
    return TooMany("attributes", reader.getAttributes().size(), AttributeTable().size());
  }
  for (auto item : reader.getAttributes()) {
    TESSERA_ASSIGN_OR_RETURN(const AttributeId id, FindAttribute(item.getId()));
    if (call.attributes.Find(id) != nullptr) {
      return absl::InvalidArgumentError(StrCat("attribute ", NameOf(id), " is given twice"));
    }
    if (item.which() != WireKindOf(KindOf(id))) {
      return absl::InvalidArgumentError(StrCat("attribute ", NameOf(id), " is of another kind"));
    }
    TESSERA_ASSIGN_OR_RETURN(AttributeValue value, DecodeAttributeValue(call.op, id, item));
    call.attributes.Set(id, std::move(value));
  }
  return call;
}

Box DecodeBox(capnp::List<int64_t>::Reader starts, capnp::List<int64_t>::Reader stops) {
  Box box;
  const unsigned rank = std::min({starts.size(), stops.size(), static_cast<unsigned>(kMaxRank)});
  for (unsigned d = 0; d < rank; ++d) box.push_back({starts[d], stops[d]});
  return box;
}

}  // namespace tessera
