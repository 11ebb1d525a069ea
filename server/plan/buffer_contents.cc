#include "server/plan/buffer_contents.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/widening.h"
#include "server/plan/movement/same_shards.h"
#include "server/plan/movement/sub_mesh.h"

namespace tessera {
namespace {

template <typename... Ts>
absl::Status Wrong(const Ts&... pieces) {
  return absl::InternalError(StrCat(pieces...));
}

// Whether no two elements of the largest shard lie at one place, in that each dim steps over all that the dims of
// smaller strides span: as every array does that is dims cut, ordered or turned round.
bool AreElementsApart(const PlanValue& value) {
  const Shape extents = MaxShardShape(value.spec);
  if (NumElements(extents) == 0) return true;
  std::vector<std::pair<Wide, Wide>> dims;  // stride, extent
  for (size_t d = 0; d < extents.size(); ++d) {
    const Wide stride = value.strides[d];
    if (extents[d] > 1) dims.emplace_back(stride < 0 ? -stride : stride, extents[d]);
  }
  std::sort(dims.begin(), dims.end());
  Wide span = 1;
  for (const auto& [stride, extent] : dims) {
    if (stride < span) return false;
    span += stride * (extent - 1);
  }
  return true;
}

// Whether there is nothing between the elements of the largest shard.
bool IsDense(const PlanValue& value) {
  const Reach reach = ReachOf(value);
  return AreElementsApart(value) && reach.highest - reach.lowest + 1 == MaxShardElements(value.spec);
}

// By dim, where in the largest shard of a dense value the element lies that is `offset` from the first.
std::optional<Shape> StartIn(const PlanValue& value, Wide offset) {
  const Shape extents = MaxShardShape(value.spec);
  std::vector<size_t> dims;  // the largest steps first
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] > 1) dims.push_back(d);
  }
  const auto step = [&value](size_t d) { return std::abs(value.strides[d]); };
  std::sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return step(a) > step(b); });
  // From the lowest address on, where dims that are turned round end.
  offset -= ReachOf(value).lowest - value.offset;
  Shape start(extents.size(), 0);
  for (const size_t d : dims) {
    const Wide index = offset / step(d);
    if (offset < 0 || index >= extents[d]) return std::nullopt;
    start[d] = value.strides[d] > 0 ? static_cast<int64_t>(index) : extents[d] - 1 - static_cast<int64_t>(index);
    offset -= index * step(d);
  }
  return offset == 0 ? std::optional(std::move(start)) : std::nullopt;
}

// Elements of a worker's shard; one for all that a stride of 0 repeats.
int64_t PlacesOn(const PlanValue& value, WorkerIndex worker) {
  const Mesh& mesh = value.spec.mesh;
  const Shape extents = BoxShape(LocalBox(value.spec, mesh.PositionAt(*mesh.FindWorker(worker))));
  int64_t places = NumElements(extents) == 0 ? 0 : 1;
  for (size_t d = 0; d < extents.size() && places > 0; ++d) places *= value.strides[d] == 0 ? 1 : extents[d];
  return places;
}

}  // namespace

Reach ReachOf(const PlanValue& value) {
  const Shape extents = MaxShardShape(value.spec);
  if (NumElements(extents) == 0) return {0, -1};
  Reach reach = {Wide{value.offset}, Wide{value.offset}};
  for (size_t d = 0; d < extents.size(); ++d) {
    const Wide span = Wide{extents[d] - 1} * value.strides[d];
    (span < 0 ? reach.lowest : reach.highest) += span;
  }
  return reach;
}

BufferContents::BufferContents(const Plan& plan)
    : plan_(plan),
      states_(plan.buffers.size()),
      seen_generations_(plan.values.size(), -1),
      is_written_(plan.values.size(), false),
      is_part_(plan.values.size(), false) {
  for (const int input : plan.inputs) states_[BufferOf(input)].is_complete = true;
  for (const int output : plan.outputs) {
    State& state = states_[BufferOf(output)];
    if (state.output < 0) state.output = output;
  }
}

bool BufferContents::IsCovered(int value, int by) const {
  if (value == by || Value(value) == Value(by)) return true;
  if (!HasWorkersOf(Value(by).spec.mesh, Value(value).spec.mesh)) return false;
  const Reach inner = ReachOf(Value(value)), outer = ReachOf(Value(by));
  if (inner.highest < inner.lowest) return true;
  const int64_t inner_bytes = SizeBytes(Value(value).spec.dtype), outer_bytes = SizeBytes(Value(by).spec.dtype);
  if (inner.lowest * inner_bytes < outer.lowest * outer_bytes ||
      (inner.highest + 1) * inner_bytes > (outer.highest + 1) * outer_bytes) {
    return false;
  }
  // Where shards are uneven, some have less than the largest.
  const absl::Span<const WorkerIndex> workers = Value(value).spec.mesh.workers();
  return std::all_of(workers.begin(), workers.end(), [&](WorkerIndex worker) {
    return Wide{PlacesOn(Value(value), worker)} * inner_bytes <= Wide{PlacesOn(Value(by), worker)} * outer_bytes;
  });
}

absl::Status BufferContents::Read(int value) {
  const State& state = states_[BufferOf(value)];
  // A value without elements is never written.
  if (NumElements(Value(value).spec.shape) == 0 && state.generation == 0) return absl::OkStatus();
  if (!state.is_complete) return Wrong("%", value, " is read before it is written");
  int& seen = seen_generations_[static_cast<size_t>(value)];
  if (seen < 0) {
    const bool is_part = !state.parts.empty();
    if (state.held >= 0 && !is_part && !IsCovered(value, state.held)) {
      return Wrong("%", value, " reaches beyond %", state.held, ", which its buffer holds");
    }
    seen = state.generation;
  }
  if (seen != state.generation) return Wrong("%", value, " is read after its buffer was written again");
  return absl::OkStatus();
}

absl::Status BufferContents::ReadByPeers(int value) {
  TESSERA_RETURN_IF_ERROR(Read(value));
  NotePeerReads(value);
  return absl::OkStatus();
}

void BufferContents::NotePeerReads(int value) {
  State& state = states_[BufferOf(value)];
  state.is_read_by_peers = true;
  state.generation_read_by_peers = state.generation;
}

absl::Status BufferContents::CheckApart(int value, absl::Span<const int> reads) const {
  for (const int read : reads) {
    if (BufferOf(read) == BufferOf(value)) return Wrong("%", value, " is written over %", read, ", which is read");
  }
  return absl::OkStatus();
}

absl::Status BufferContents::BeginWrite(int value, absl::Span<const int> reads) {
  State& state = states_[BufferOf(value)];
  const PlanBuffer& buffer = plan_.buffers[BufferOf(value)];
  if (buffer.kind == PlanBuffer::Kind::kInput) return Wrong("%", value, " lies in an input");
  const bool is_seen = seen_generations_[static_cast<size_t>(value)] >= 0;
  const bool is_temporary = buffer.kind == PlanBuffer::Kind::kTemporary && state.output < 0;
  if (is_seen || (state.is_complete && !is_temporary)) return Wrong("%", value, " is written twice");
  TESSERA_RETURN_IF_ERROR(CheckApart(value, reads));
  if (!AreElementsApart(Value(value))) return Wrong("%", value, " is written, and several elements are at one place");
  state.is_narrow = MayHoldNarrow(state, value);
  const bool is_part =
      !state.is_narrow && (!state.parts.empty() || (state.output >= 0 && !IsCovered(state.output, value)));
  const bool is_beside_parts = is_part && !state.parts.empty();
  if (!is_beside_parts && !state.open.empty()) return Wrong("%", value, " is written beside what is written");
  if (is_part) {
    TESSERA_RETURN_IF_ERROR(BeginPart(state, value));
  } else {
    if (!IsDense(Value(value))) return Wrong("%", value, " is written with gaps between its elements");
    ++state.generation;
    state.held = value;
  }
  state.open.push_back(value);
  Replace(state, value);
  return absl::OkStatus();
}

absl::Status BufferContents::BeginWidening(int value, int narrow) {
  State& state = states_[BufferOf(value)];
  const bool is_held = state.is_narrow && state.held == narrow && state.open.empty();
  // Which says what is wrong.
  if (!is_held || !LiesAtEndOf(Value(narrow), Value(value))) return BeginWrite(value, {narrow});
  state.open.push_back(value);
  state.is_narrow = false;
  ++state.generation;
  state.held = value;
  Replace(state, value);
  return absl::OkStatus();
}

bool BufferContents::MayHoldNarrow(const State& state, int value) const {
  if (state.output < 0 || state.generation > 0 || !LiesAtEndOf(Value(value), Value(state.output))) return false;
  // An input's memory is written element by element, as the elements are read.
  return std::none_of(plan_.donations.begin(), plan_.donations.end(), [&](const Donation& donation) {
    return BufferOf(plan_.outputs[static_cast<size_t>(donation.output)]) == BufferOf(value);
  });
}

void BufferContents::Replace(State& state, int value) {
  seen_generations_[static_cast<size_t>(value)] = state.generation;
  is_written_[static_cast<size_t>(value)] = true;
  state.is_complete = false;
  // A part replaces nothing. On the workers that don't have the value, peers may read on what was there.
  state.replaces_peer_reads = state.parts.empty() && state.is_read_by_peers;
  if (HasWorkersOf(Value(value).spec.mesh, plan_.buffers[BufferOf(value)].mesh)) state.is_read_by_peers = false;
}

absl::StatusOr<Box> BufferContents::BoxOfPart(const PlanValue& part, const PlanValue& whole) const {
  if (part.spec.shape.size() != whole.spec.shape.size() || part.strides != whole.strides) return Wrong("other strides");
  const std::optional<Shape> start = StartIn(whole, Wide{part.offset} - whole.offset);
  if (!start.has_value()) return Wrong("it starts elsewhere");
  // A worker of its buffer's mesh is one of the output's.
  const Position first = whole.spec.mesh.PositionAt(*whole.spec.mesh.FindWorker(part.spec.mesh.workers()[0]));
  TensorSpec expected = whole.spec;
  Box box = WholeBox(whole.spec.shape);
  std::vector<MeshCoordinate> coordinates;
  for (size_t d = 0; d < box.size(); ++d) {
    const int dim = static_cast<int>(d);
    const int64_t size = part.spec.shape[d];
    if (size == whole.spec.shape[d] && (*start)[d] == 0) continue;
    const int64_t shard = ShardIndex(whole.spec, dim, first);
    const Interval interval = DimIntervals(whole.spec, dim)[static_cast<size_t>(shard)];
    if (size <= 0 || size > interval.size() - (*start)[d]) {
      return Wrong("dim ", d, " of shard ", shard, " has ", interval.size(), " elements");
    }
    box[d] = {interval.start + (*start)[d], interval.start + (*start)[d] + size};
    expected.shape[d] = size;
    for (const MeshCoordinate& coordinate : CoordinatesOfShard(whole.spec, dim, shard)) {
      coordinates.push_back(coordinate);
    }
  }
  if (box == WholeBox(whole.spec.shape)) return Wrong("no dim is cut");
  expected = OnSubMesh(std::move(expected), coordinates, SubMesh(whole.spec.mesh, coordinates));
  if (part.spec.dtype != whole.spec.dtype || !HoldSameShards(part.spec, expected)) {
    return Wrong("other shards than ", ToText(expected));
  }
  return box;
}

absl::Status BufferContents::BeginPart(State& state, int value) {
  const auto wrong = [&](std::string_view why) {
    return Wrong("%", value, " is no part of output %", state.output, ": ", why);
  };
  if (!IsDense(Value(state.output))) return wrong("it has gaps, or several elements at one place");
  absl::StatusOr<Box> box = BoxOfPart(Value(value), Value(state.output));
  if (!box.ok()) return wrong(StdView(box.status().message()));
  for (const Box& other : state.parts) {
    if (!IsEmpty(Intersect(*box, other))) return wrong(StrCat(ToText(*box), " and ", ToText(other), " overlap"));
  }
  state.part_elements += NumElements(*box);
  state.parts.push_back(*std::move(box));
  is_part_[static_cast<size_t>(value)] = true;
  state.generation = 1;
  return absl::OkStatus();
}

void BufferContents::EndWrite(int value) {
  State& state = states_[BufferOf(value)];
  std::erase(state.open, value);
  const bool is_whole = state.parts.empty() || state.part_elements == NumElements(Value(state.output).spec.shape);
  state.is_complete = is_whole && state.open.empty();
}

absl::Status BufferContents::Add(int value, absl::Span<const int> reads) const {
  const State& state = states_[BufferOf(value)];
  const size_t at = static_cast<size_t>(value);
  if (!is_written_[at] || seen_generations_[at] != state.generation || !state.open.empty()) {
    return Wrong("%", value, " is added to, and was not written before");
  }
  if (state.generation_read_by_peers == state.generation) {
    return Wrong("%", value, " is added to, and peers may read it");
  }
  return CheckApart(value, reads);
}

absl::Status BufferContents::CheckOutputs() {
  for (const int output : plan_.outputs) {
    const State& state = states_[BufferOf(output)];
    if (NumElements(Value(output).spec.shape) == 0 && state.generation == 0) continue;
    if (!state.is_complete || state.is_narrow) return Wrong("plan: output %", output, " is not written");
    TESSERA_RETURN_IF_ERROR(Read(output));
  }
  return absl::OkStatus();
}

}  // namespace tessera
