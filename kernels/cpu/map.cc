// map(expression, inputs): block by block, so that the values of the nodes stay in the first-level cache.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "kernels/cpu/evaluate.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/stores.h"
#include "kernels/cpu/strided.h"
#include "kernels/operands.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::cpu {
namespace {

class MapRunner final : public PieceRunner {
 public:
  MapRunner(const Expression& expression, const KernelCall& call, size_t number, Stores stores, FetchAhead* ahead)
      : call_(call),
        stores_(stores),
        evaluator_(expression, call.scalars, number, ahead),
        filled_(call.inputs.size()) {}

  absl::Status Prepare() {
    absl::InlinedVector<Strides, 4> strides;
    for (const KernelInput& input : call_.inputs) {
      auto broadcast = BroadcastStrides("map", input, call_.output_extents);
      if (!broadcast.ok()) return broadcast.status();
      strides.push_back(*std::move(broadcast));
    }
    strides.push_back(call_.output_strides);
    nest_ = Coalesce(call_.output_extents, strides);
    return absl::OkStatus();
  }

  // All of it, with the next block on its way where what is read comes from memory.
  absl::Status RunAll(FetchAhead& ahead, int64_t loops) {
    if (stores_ == Stores::kCached || loops < 2) return Run(0, nest_.size);
    return RunBlocks(0, nest_.size, [&](int64_t next) {
      ahead.Begin(loops);
      if (next < nest_.size) AddAhead(next, ahead);
    });
  }

  absl::Status Run(int64_t start, int64_t count) override {
    return RunBlocks(start, start + count, [](int64_t) {});
  }

 private:
  // The element that an input's scratch memory is full of, by its place.
  struct Filled {
    const std::byte* scratch = nullptr;
    int64_t offset = 0;
  };

  // Before each block `begin(next)`, with where the one after it begins.
  template <typename Begin>
  absl::Status RunBlocks(int64_t start, int64_t end, Begin&& begin) {
    while (start < end) {
      const int64_t n = std::min(BlockLength(nest_, start), end - start);
      begin(start + n);
      if (absl::Status s = RunBlock(start, n); !s.ok()) return s;
      start += n;
    }
    EndStores(stores_);
    return absl::OkStatus();
  }

  // Adds the memory that the block which begins here reads in one piece.
  void AddAhead(int64_t start, FetchAhead& ahead) const {
    const int64_t n = BlockLength(nest_, start);
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      if (call_.inputs[i].is_zero || nest_.strides[i].back() != 1) continue;
      const RowPlace place = PlaceOf(nest_, i, start);
      const int64_t bytes = SizeBytes(call_.inputs[i].dtype);
      ahead.Add(static_cast<const std::byte*>(call_.inputs[i].data) + place.offset * bytes,
                std::min(n, place.left) * bytes);
    }
  }

  absl::Status RunBlock(int64_t start, int64_t count) {
    const size_t output = call_.inputs.size();
    const int64_t bytes = SizeBytes(call_.output_dtype);
    alignas(64) std::array<AnyElement, kBlockElements> scratch;
    void* place = OutputBlockBytes(nest_, output, bytes, call_.output, start, count, scratch.data());
    void* streamed = nullptr;
    if (stores_ == Stores::kStreaming && place != static_cast<void*>(scratch.data())) {
      streamed = std::exchange(place, scratch.data());
    }
    auto values = evaluator_.Evaluate(
        count,
        [&](const ExpressionNode& node, std::byte* to) {
          return node.op == ScalarOp::kIndex ? Indexes(node, start, count, to) : Elements(node, start, count, to);
        },
        place);
    if (!values.ok()) return values.status();
    if (streamed != nullptr) {
      WriteRow(static_cast<std::byte*>(streamed), static_cast<const std::byte*>(*values), count * bytes, stores_);
    } else if (*values != place || place == static_cast<void*>(scratch.data())) {
      StoreBlockBytes(nest_, output, bytes, call_.output, start, count, *values);
    }
    return absl::OkStatus();
  }

  // An input that is one element all along a row is brought once for the row's blocks.
  const void* Elements(const ExpressionNode& node, int64_t start, int64_t count, std::byte* scratch) {
    const size_t input = static_cast<size_t>(node.a);
    const KernelInput& from = call_.inputs[input];
    const void* data = from.is_zero ? &kZeroElement : from.data;
    const Strides& strides = nest_.strides[input];
    if (strides.back() != 0 || nest_.size == 1) {
      return OperandBlockBytes(nest_, input, SizeBytes(node.dtype), data, start, count, scratch);
    }
    const bool is_element = std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s == 0; });
    const int64_t row = is_element ? nest_.size : nest_.extents.back(), row_start = start / row * row;
    Filled& filled = filled_[input];
    if (start + count > row_start + row) {
      filled = {};
      return OperandBlockBytes(nest_, input, SizeBytes(node.dtype), data, start, count, scratch);
    }
    const int64_t offset = PlaceOf(nest_, input, row_start).offset;
    if (filled.scratch == scratch && filled.offset == offset) return scratch;
    filled = {scratch, offset};
    return OperandBlockBytes(nest_, input, SizeBytes(node.dtype), data, row_start, std::min(row, kBlockElements),
                             scratch);
  }

  // Counted on from the block's first element, over the output's own extents.
  const void* Indexes(const ExpressionNode& node, int64_t start, int64_t count, std::byte* scratch) const {
    const Shape& extents = call_.output_extents;
    const size_t dim = static_cast<size_t>(node.a);
    int64_t inner = 1;
    for (size_t d = dim + 1; d < extents.size(); ++d) inner *= extents[d];
    int64_t* to = reinterpret_cast<int64_t*>(scratch);
    int64_t index = start / inner % extents[dim], left = inner - start % inner;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = call_.output_box[dim].start + index;
      if (--left > 0) continue;
      left = inner;
      index = index + 1 == extents[dim] ? 0 : index + 1;
    }
    return to;
  }

  const KernelCall& call_;
  const Stores stores_;
  Evaluator evaluator_;
  absl::InlinedVector<Filled, 8> filled_;
  LoopNest nest_;
};

}  // namespace

// An output that is written over an input is in the cache by then.
Stores StoresOf(const KernelCall& call) {
  int64_t touched = NumElements(call.output_extents) * SizeBytes(call.output_dtype);
  for (const KernelInput& input : call.inputs) {
    if (input.is_zero) continue;
    if (input.data == call.output) return Stores::kCached;
    touched += NumElements(input.extents) * SizeBytes(input.dtype);
  }
  return StoresFor(touched);
}

// Whether it is an input as it is, elsewhere in memory: a copy, as of a broadcast view.
static bool IsCopy(const MapOp& op, const KernelCall& call) {
  const std::vector<ExpressionNode>& nodes = op.expression.nodes;
  if (nodes.size() != 1 || nodes[0].op != ScalarOp::kInput) return false;
  const KernelInput& input = call.inputs[static_cast<size_t>(nodes[0].a)];
  return !input.is_zero && input.data != call.output;
}

absl::Status RunMap(const MapOp& op, const KernelCall& call) {
  if (IsCopy(op, call)) {
    const KernelInput& input = call.inputs[static_cast<size_t>(op.expression.nodes[0].a)];
    auto strides = BroadcastStrides("map", input, call.output_extents);
    if (!strides.ok()) return strides.status();
    CopyStrided(call.output_extents, SizeBytes(call.output_dtype), input.data, *strides, call.output,
                call.output_strides);
    return absl::OkStatus();
  }
  if (IsWideningInPlace(op, call)) {
    WidenInPlace(call);
    return absl::OkStatus();
  }
  FetchAhead ahead;
  MapRunner runner(op.expression, call, 0, StoresOf(call), &ahead);
  if (absl::Status s = runner.Prepare(); !s.ok()) return s;
  return runner.RunAll(ahead, CountLoops(op.expression));
}

absl::StatusOr<std::unique_ptr<PieceRunner>> MakeMapRunner(const MapOp& op, const KernelCall& call, size_t number,
                                                           Stores stores, FetchAhead* ahead) {
  if (absl::Status s = CheckOperands(call); !s.ok()) return s;
  if (IsWideningInPlace(op, call)) return absl::UnimplementedError("map: widens in place, in one piece");
  auto runner = std::make_unique<MapRunner>(op.expression, call, number, stores, ahead);
  if (absl::Status s = runner->Prepare(); !s.ok()) return s;
  return runner;
}

}  // namespace tessera::cpu
