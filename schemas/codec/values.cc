#include "schemas/codec/values.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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
  if (reader.getSizes().size() != 0)
    return absl::UnimplementedError("explicit shard sizes S(d;...) are not supported yet");
  switch (reader.getKind()) {
    case wire::Placement::Kind::REPLICATE: return Placement::Replicate();
    case wire::Placement::Kind::SHARD: return Placement::Shard(reader.getDim());
    case wire::Placement::Kind::PARTIAL:
      if (reader.getReduceOp() > static_cast<uint8_t>(ReduceOp::kProduct)) {
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
}

absl::StatusOr<Scalar> DecodeScalar(wire::Scalar::Reader reader) {
  TESSERA_ASSIGN_OR_RETURN(DType dtype, DTypeFromWire(reader.getDtype()));
  return Scalar::FromBits(dtype, reader.getWeak() ? ScalarStrength::kWeak : ScalarStrength::kStrong, reader.getBits());
}

void EncodeOpCall(const OpCall& call, wire::OpCall::Builder builder) {
  const OpAttributes& attributes = call.attributes;
  builder.setOp(static_cast<uint16_t>(call.op));
  if (!call.scalars.empty()) {
    auto scalars = builder.initScalars(static_cast<unsigned>(call.scalars.size()));
    for (size_t i = 0; i < call.scalars.size(); ++i) EncodeScalar(call.scalars[i], scalars[static_cast<unsigned>(i)]);
  }
  if (!attributes.dims.empty())
    FillList(attributes.dims, builder.initDims(static_cast<unsigned>(attributes.dims.size())));
  builder.setKeepdims(attributes.keepdims);
  builder.setRelabel(attributes.relabel);
  if (!attributes.notation.empty()) builder.setNotation(attributes.notation.c_str());
  if (!attributes.index.empty()) {
    auto index = builder.initIndex(static_cast<unsigned>(attributes.index.size()));
    for (size_t i = 0; i < attributes.index.size(); ++i) {
      auto item = index[static_cast<unsigned>(i)];
      item.setKind(static_cast<uint8_t>(attributes.index[i].kind));
      item.setStart(attributes.index[i].start);
      item.setSize(attributes.index[i].size);
      item.setStep(attributes.index[i].step);
    }
  }
  if (attributes.dtype) {
    builder.setHasDtype(true);
    builder.setDtype(static_cast<uint8_t>(*attributes.dtype));
  }
  if (attributes.shape) {
    builder.setHasShape(true);
    FillList(*attributes.shape, builder.initShape(static_cast<unsigned>(attributes.shape->size())));
  }
  if (attributes.mesh) EncodeMesh(*attributes.mesh, builder.initMesh());
  if (attributes.placements) {
    builder.setHasPlacements(true);
    EncodePlacements(*attributes.placements,
                     builder.initPlacements(static_cast<unsigned>(attributes.placements->size())));
  }
  if (!attributes.placements_each.empty()) {
    const unsigned count = static_cast<unsigned>(attributes.placements_each.size());
    auto each = builder.initPlacementsEach(count);
    for (unsigned i = 0; i < count; ++i) {
      const Placements& placements = attributes.placements_each[i];
      EncodePlacements(placements, each.init(i, static_cast<unsigned>(placements.size())));
    }
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
  OpAttributes& attributes = call.attributes;
  TESSERA_ASSIGN_OR_RETURN(Shape dims, DecodeShape("dims", reader.getDims()));
  attributes.dims.assign(dims.begin(), dims.end());
  attributes.keepdims = reader.getKeepdims();
  attributes.relabel = reader.getRelabel();
  if (reader.getNotation().size() > kMaxNotationChars) {
    return TooMany("notation", reader.getNotation().size(), kMaxNotationChars);
  }
  attributes.notation = std::string(reader.getNotation().begin(), reader.getNotation().size());
  TESSERA_ASSIGN_OR_RETURN(attributes.index, DecodeIndex(reader.getIndex()));
  if (reader.getHasDtype()) {
    TESSERA_ASSIGN_OR_RETURN(attributes.dtype, DTypeFromWire(reader.getDtype()));
  }
  if (reader.getHasShape()) {
    TESSERA_ASSIGN_OR_RETURN(attributes.shape, DecodeShape("shape", reader.getShape()));
  }
  if (reader.hasMesh()) {
    TESSERA_ASSIGN_OR_RETURN(attributes.mesh, DecodeMesh(reader.getMesh()));
  }
  if (reader.getHasPlacements()) {
    TESSERA_ASSIGN_OR_RETURN(attributes.placements, DecodePlacements(reader.getPlacements()));
  }
  if (reader.getPlacementsEach().size() > kMaxOperands) {
    return TooMany("placements of each tensor", reader.getPlacementsEach().size(), kMaxOperands);
  }
  for (auto placements : reader.getPlacementsEach()) {
    TESSERA_ASSIGN_OR_RETURN(attributes.placements_each.emplace_back(), DecodePlacements(placements));
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
