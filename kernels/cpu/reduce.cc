// Reductions over dims by one fixed tree, whatever the strides: the reduced elements of an output, in
// row-major order of the reduced dims, are cut into blocks of 128; a block is reduced in 16 lanes
// (reduce_loops.h); the blocks are combined pairwise, as a binary counter carries. Two walks give the same
// tree: along the reduced dims for one output (`Row`), or across a tile of outputs (`Column`).

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "kernels/cpu/evaluate.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce_loops.h"
#include "kernels/cpu/stores.h"
#include "kernels/cpu/strided.h"
#include "kernels/operands.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::cpu {
namespace {

// A row of a tile of outputs: long, so that memory is read in long runs, and short enough for the tiles of a tree to
// stay in the second-level cache. Elements that are converted or computed come in blocks.
constexpr int64_t kTileBytes = 16384;
constexpr int64_t kMaxTileOutputs = 4096;
// Elements of a row that are brought, converted or computed at once: whole blocks of the tree.
constexpr int64_t kRowElements = kBlockElements;
static_assert(kRowElements % kTreeBlock == 0);

// The reduction of one call: `kept` walks outputs (operands: the inputs, and last the output), `reduced` the inputs.
struct ReduceLayout {
  ReduceOp op = ReduceOp::kSum;
  LoopNest kept;
  LoopNest reduced;
  absl::Span<const KernelInput> inputs;
  DType value_dtype = DType::kF32;  // of what is reduced: the input's, or the map's
  DType dtype = DType::kF32;        // in which everything is accumulated
  DType output_dtype = DType::kF32;
  void* output = nullptr;
  Evaluator* map = nullptr;                // of the inputs; null when the one input is reduced as it is
  const Expression* expression = nullptr;  // the map's
};

// Elements as they are accumulated, dense: the elements [start, start + count) of `nest`, whose other nest stands at
// `flat`. Elements that aren't dense in memory or not of their dtype are brought to `brought`, which holds a block.
class Source {
 public:
  Source(const ReduceLayout& l, const LoopNest& nest, const LoopNest& other)
      : l_(l), nest_(nest), other_(other), operands_(l.inputs.size()) {
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Strides& strides = nest.strides[i];
      operands_[i].is_element =
          l.map != nullptr && std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s == 0; });
    }
  }

  void MoveTo(int64_t flat) {
    for (size_t i = 0; i < operands_.size(); ++i) {
      operands_[i].base = PlaceOf(other_, i, flat).offset;
      operands_[i].filled = nullptr;
    }
  }
  // Whether Load gives elements in place as far as they are dense.
  bool is_direct() const { return l_.map == nullptr && l_.value_dtype == l_.dtype; }

  absl::StatusOr<const void*> Load(int64_t start, int64_t count, void* brought) {
    if (l_.map == nullptr)
      return Converted(Elements(0, start, count, is_direct() ? brought : raw_.data()), count, brought);
    void* const out = l_.value_dtype == l_.dtype ? brought : static_cast<void*>(raw_.data());
    auto values = l_.map->Evaluate(
        count,
        [&](const ExpressionNode& node, std::byte* scratch) {
          return Elements(static_cast<size_t>(node.a), start, count, scratch);
        },
        out);
    if (!values.ok()) return values.status();
    return Converted(*values, count, brought);
  }

 private:
  struct Operand {
    int64_t base = 0;
    bool is_element = false;       // of a map: one beside all of the nest's, as a row's mean is
    const void* filled = nullptr;  // the leaf's own memory, full of it
  };

  const void* Elements(size_t input, int64_t start, int64_t count, void* scratch) {
    const KernelInput& from = l_.inputs[input];
    Operand& operand = operands_[input];
    if (operand.is_element) {
      if (operand.filled == scratch) return scratch;
      operand.filled = scratch;
      start = 0;
      count = std::min(nest_.size, kBlockElements);
    }
    const int64_t bytes = SizeBytes(from.dtype);
    const std::byte* data = static_cast<const std::byte*>(from.is_zero ? &kZeroElement : from.data);
    return OperandBlockBytes(nest_, input, bytes, data + operand.base * bytes, start, count, scratch);
  }
  const void* Converted(const void* values, int64_t count, void* brought) const {
    if (l_.value_dtype == l_.dtype) return values;
    CastBlock(l_.value_dtype, l_.dtype, values, count, brought);
    return brought;
  }

  const ReduceLayout& l_;
  const LoopNest& nest_;
  const LoopNest& other_;
  absl::InlinedVector<Operand, 4> operands_;
  alignas(64) std::array<AnyElement, kBlockElements> raw_;
};

// Results from the k-th output on.
void StoreResults(const ReduceLayout& l, int64_t k, int64_t count, void* results) {
  const size_t output = l.inputs.size();
  if (l.dtype == DType::kBool) {
    uint8_t* bools = static_cast<uint8_t*>(results);
    for (int64_t i = 0; i < count; ++i) bools[i] = bools[i] != 0;
  }
  if (l.output_dtype == l.dtype) {
    return StoreBlockBytes(l.kept, output, SizeBytes(l.dtype), l.output, k, count, results);
  }
  std::array<uint64_t, kMaxTileOutputs> rounded;
  CastBlock(l.dtype, l.output_dtype, results, count, rounded.data());
  StoreBlockBytes(l.kept, output, SizeBytes(l.output_dtype), l.output, k, count, rounded.data());
}

// Rows that are dense, one after the other at one stride. Rows of one element are copied as columns.
bool AreRowsInPlace(const ReduceLayout& l) {
  return l.map == nullptr && l.value_dtype == l.dtype && l.reduced.extents.size() == 1 && l.reduced.size > 1 &&
         l.reduced.strides[0][0] == 1 && l.kept.extents.size() == 1 && !l.inputs[0].is_zero;
}

void ReduceRowsInPlace(const ReduceLayout& l, int64_t k, int64_t end) {
  alignas(64) std::array<AnyElement, kTreeBlock> results;
  const int64_t bytes = SizeBytes(l.dtype), stride = l.kept.strides[0][0];
  for (; k < end; k += kTreeBlock) {
    const int64_t rows = std::min(kTreeBlock, end - k);
    const std::byte* first = static_cast<const std::byte*>(l.inputs[0].data) + k * stride * bytes;
    ReduceRows(l.op, l.dtype, first, rows, stride, l.reduced.size, results.data());
    StoreResults(l, k, rows, results.data());
  }
}

// The inputs of (row - element)^2, which a variance sums up: the row, dense, and the element.
struct SquaresOfRow {
  size_t row = 0, element = 0;
};
std::optional<SquaresOfRow> SquaresOf(const ReduceLayout& l) {
  const bool is_sum = l.op == ReduceOp::kSum && l.value_dtype == l.dtype && l.reduced.extents.size() == 1 &&
                      (l.dtype == DType::kF32 || l.dtype == DType::kF64);
  if (!is_sum || l.expression == nullptr) return std::nullopt;
  const auto& nodes = l.expression->nodes;
  const auto node = [&nodes](int32_t n) -> const ExpressionNode& { return nodes[static_cast<size_t>(n)]; };
  const ExpressionNode& square = nodes.back();
  if (square.op != ScalarOp::kMul || !(node(square.a) == node(square.b))) return std::nullopt;
  const ExpressionNode& difference = node(square.a);
  if (difference.op != ScalarOp::kSub) return std::nullopt;
  const ExpressionNode &row = node(difference.a), &element = node(difference.b);
  if (row.op != ScalarOp::kInput || element.op != ScalarOp::kInput) return std::nullopt;
  const SquaresOfRow found = {static_cast<size_t>(row.a), static_cast<size_t>(element.a)};
  const bool lie_so = !l.inputs[found.row].is_zero && !l.inputs[found.element].is_zero &&
                      l.reduced.strides[found.row][0] == 1 && l.reduced.strides[found.element][0] == 0;
  return lie_so ? std::optional(found) : std::nullopt;
}

void ReduceSquares(const ReduceLayout& l, const SquaresOfRow& inputs, int64_t k, int64_t end) {
  const int64_t bytes = SizeBytes(l.dtype);
  const auto at = [&](size_t input) {
    return static_cast<const std::byte*>(l.inputs[input].data) + PlaceOf(l.kept, input, k).offset * bytes;
  };
  for (; k < end; ++k) {
    const std::byte *row = at(inputs.row), *element = at(inputs.element);
    RowTree tree;
    for (int64_t r = 0; r < l.reduced.size; r += kRowElements) {
      PushSquaredDifferences(l.dtype, row + r * bytes, std::min(kRowElements, l.reduced.size - r), element, &tree);
    }
    AnyElement result;
    FinishRow(l.op, l.dtype, tree, &result);
    StoreResults(l, k, 1, &result);
  }
}

absl::Status ReduceByRow(const ReduceLayout& l, int64_t k, int64_t end) {
  alignas(64) std::array<AnyElement, kRowElements> brought;
  Source source(l, l.reduced, l.kept);
  for (; k < end; ++k) {
    source.MoveTo(k);
    RowTree tree;
    for (int64_t r = 0; r < l.reduced.size; r += kRowElements) {
      const int64_t n = std::min(kRowElements, l.reduced.size - r);
      auto row = source.Load(r, n, brought.data());
      if (!row.ok()) return row.status();
      PushRow(l.op, l.dtype, *row, n, &tree);
    }
    AnyElement result;
    FinishRow(l.op, l.dtype, tree, &result);
    StoreResults(l, k, 1, &result);
  }
  return absl::OkStatus();
}

// A tile of outputs side by side.
class ColumnReducer {
 public:
  explicit ColumnReducer(const ReduceLayout& l)
      : l_(l), bytes_(SizeBytes(l.dtype)), width_(kTileBytes / bytes_), source_(l, l.kept, l.reduced) {
    width_ = std::min(width_, source_.is_direct() ? kMaxTileOutputs : kBlockElements);
    static thread_local std::vector<std::byte> scratch;
    // Rows of a lane, the lanes' tree, and the blocks' counter.
    scratch.resize((kRows + kLaneLevels + kCountedLevels) * kTileBytes + kLineBytes);
    rows_ = scratch.data() + BytesToLine(scratch.data());
    lanes_ = rows_ + kRows * kTileBytes;
    levels_ = lanes_ + kLaneLevels * kTileBytes;
  }

  absl::Status Run(int64_t k, int64_t end) {
    const int64_t inner = l_.kept.extents.back();
    while (k < end) {
      int64_t width = std::min(width_, end - k);
      // A long row's rest is a tile of its own, so that it is used in place.
      if (inner >= kTreeBlock) width = std::min(width, inner - k % inner);
      if (absl::Status s = Tile(k, width); !s.ok()) return s;
      k += width;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kRows = kTreeBlock / kReduceLanes;
  static constexpr int64_t kLaneLevels = 5;      // of 16 lanes
  static constexpr int64_t kCountedLevels = 48;  // of 2^48 blocks

  absl::Status Tile(int64_t k, int64_t width) {
    uint64_t blocks = 0;
    for (int64_t r = 0; r < l_.reduced.size; r += kTreeBlock) {
      const int64_t n = std::min(kTreeBlock, l_.reduced.size - r);
      if (n == kTreeBlock && AreRowsTogether(width)) {
        NarrowBlock(width, r);
      } else if (absl::Status s = Lanes(k, width, r, n, 0, 1, 0); !s.ok()) {
        return s;
      }
      size_t level = 0;
      for (; ((blocks >> level) & 1) != 0; ++level) Combine(Level(level), lanes_, width);
      std::copy_n(lanes_, width * bytes_, Level(level));
      ++blocks;
    }
    std::byte* result = nullptr;
    for (size_t level = 0; (blocks >> level) != 0; ++level) {
      if (((blocks >> level) & 1) == 0) continue;
      if (result != nullptr) Combine(Level(level), result, width);
      if (result == nullptr) result = Level(level);
    }
    StoreResults(l_, k, width, result);
    return absl::OkStatus();
  }

  // Whether a tile of all outputs has short rows, one behind the other in memory.
  bool AreRowsTogether(int64_t width) const {
    return source_.is_direct() && !l_.inputs[0].is_zero && width == l_.kept.size && l_.kept.extents.size() == 1 &&
           l_.kept.strides[0][0] == 1 && l_.reduced.extents.size() == 1 && l_.reduced.strides[0][0] == width &&
           width * bytes_ * kReduceLanes <= kTileBytes;
  }

  // The block of whole lanes from row `r`: 16 rows are a row of all lanes, whose halves are combined.
  void NarrowBlock(int64_t width, int64_t r) {
    const int64_t all = kReduceLanes * width;
    const std::byte* const first = static_cast<const std::byte*>(l_.inputs[0].data) + r * width * bytes_;
    std::array<const void*, static_cast<size_t>(kRows)> rows;
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = first + static_cast<int64_t>(i) * all * bytes_;
    CombineRows(l_.op, l_.dtype, rows, all, lanes_);
    for (int64_t lanes = kReduceLanes / 2; lanes > 0; lanes /= 2) {
      const std::array<const void*, 2> halves = {lanes_, lanes_ + lanes * width * bytes_};
      CombineRows(l_.op, l_.dtype, halves, lanes * width, lanes_);
    }
  }

  // The lanes `lane`, `lane + step`, ... of the block of `n` rows from `r`, reduced into the place of `depth`.
  absl::Status Lanes(int64_t k, int64_t width, int64_t r, int64_t n, int64_t lane, int64_t step, int64_t depth) {
    if (step == kReduceLanes) return Lane(k, width, r, n, lane, depth);
    if (absl::Status s = Lanes(k, width, r, n, lane, 2 * step, depth); !s.ok()) return s;
    if (lane + step >= std::min(n, kReduceLanes)) return absl::OkStatus();
    if (absl::Status s = Lanes(k, width, r, n, lane + step, 2 * step, depth + 1); !s.ok()) return s;
    const std::array<const void*, 2> halves = {lanes_ + depth * kTileBytes, lanes_ + (depth + 1) * kTileBytes};
    CombineRows(l_.op, l_.dtype, halves, width, lanes_ + depth * kTileBytes);
    return absl::OkStatus();
  }

  absl::Status Lane(int64_t k, int64_t width, int64_t r, int64_t n, int64_t lane, int64_t depth) {
    absl::InlinedVector<const void*, static_cast<size_t>(kRows)> rows;
    for (int64_t i = lane; i < n; i += kReduceLanes) {
      source_.MoveTo(r + i);
      auto row = source_.Load(k, width, rows_ + static_cast<int64_t>(rows.size()) * kTileBytes);
      if (!row.ok()) return row.status();
      rows.push_back(*row);
    }
    CombineRows(l_.op, l_.dtype, rows, width, lanes_ + depth * kTileBytes);
    return absl::OkStatus();
  }

  // later = op(earlier, later)
  void Combine(std::byte* earlier, std::byte* later, int64_t width) {
    const std::array<const void*, 2> both = {earlier, later};
    CombineRows(l_.op, l_.dtype, both, width, later);
  }
  std::byte* Level(size_t level) { return levels_ + static_cast<int64_t>(level) * kTileBytes; }

  const ReduceLayout& l_;
  const int64_t bytes_;
  int64_t width_;
  Source source_;
  std::byte* rows_;
  std::byte* lanes_;
  std::byte* levels_;
};

// The outputs from the k-th on.
absl::Status Reduce(const ReduceLayout& l, int64_t k, int64_t end) {
  if (l.reduced.size == 0) {
    return VisitAccumulated("reduce", l.dtype, [&](auto zero) {
      auto identity = Identity<decltype(zero)>(l.op, l.dtype);
      for (; k < end; ++k) StoreResults(l, k, 1, &identity);
    });
  }
  if (AreRowsInPlace(l)) {
    ReduceRowsInPlace(l, k, end);
    return absl::OkStatus();
  }
  if (const auto squares = SquaresOf(l)) {
    ReduceSquares(l, *squares, k, end);
    return absl::OkStatus();
  }
  // Along the row where the reduced elements are dense, or where there are too few outputs for a tile.
  bool dense_row = l.reduced.extents.back() >= 16;
  for (size_t i = 0; i < l.inputs.size(); ++i) dense_row = dense_row && l.reduced.strides[i].back() <= 1;
  if (dense_row || l.kept.size < 8) return ReduceByRow(l, k, end);
  return ColumnReducer(l).Run(k, end);
}

// Without `map` there is one input, which stands in for it.
absl::Status CheckMap(const ReduceLocalOp& op, const KernelCall& call) {
  if (!op.map.has_value()) {
    if (call.inputs.size() == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("reduce: takes one input, not ", call.inputs.size()));
  }
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  for (const ExpressionNode& node : op.map->nodes) {
    if (node.op != ScalarOp::kInput) continue;
    const KernelInput& input = call.inputs[static_cast<size_t>(node.a)];
    if (input.dtype == node.dtype) continue;
    return absl::InvalidArgumentError(absl::StrCat("reduce: input ", node.a, " is ", std::string(ToText(input.dtype)),
                                                   ", the map reads ", std::string(ToText(node.dtype))));
  }
  return absl::OkStatus();
}

absl::Status CheckReduce(const ReduceLocalOp& op, const KernelCall& call) {
  if (op.op == ReduceOp::kAvg) return absl::InvalidArgumentError("reduce: avg is not a local reduction");
  if (absl::Status s = CheckMap(op, call); !s.ok()) return s;
  if (Kind(call.output_dtype) == DTypeKind::kComplex && op.op != ReduceOp::kSum && op.op != ReduceOp::kProduct) {
    return NoKernelFor("reduce", call.output_dtype);
  }
  const auto rank = static_cast<int64_t>(call.output_extents.size());
  for (int64_t d : op.dims) {
    if (d < 0 || d >= rank) {
      return absl::InvalidArgumentError(absl::StrCat("reduce: dim ", d, " is out of range for rank ", rank));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ReduceLayout> LayOut(const ReduceLocalOp& op, const KernelCall& call, Evaluator* map) {
  const size_t rank = call.output_extents.size(), count = call.inputs.size();
  absl::InlinedVector<char, kMaxRank> is_reduced(rank, 0);
  for (int64_t d : op.dims) is_reduced[static_cast<size_t>(d)] = 1;
  const absl::StatusOr<Shape> extents = ExtentsTogether("reduce", call.inputs, rank);
  if (!extents.ok()) return extents.status();
  Shape kept_extents, reduced_extents;
  absl::InlinedVector<Strides, 4> kept(count + 1), reduced(count);
  for (size_t d = 0; d < rank; ++d) {
    if (!is_reduced[d] && call.output_extents[d] != (*extents)[d]) {
      return absl::InvalidArgumentError(
          absl::StrCat("reduce: extent ", (*extents)[d], " of dim ", d, " becomes ", call.output_extents[d]));
    }
    (is_reduced[d] ? reduced_extents : kept_extents).push_back((*extents)[d]);
    if (!is_reduced[d]) kept[count].push_back(call.output_strides[d]);
  }
  for (size_t i = 0; i < count; ++i) {
    auto strides = BroadcastStrides("reduce", call.inputs[i], *extents);
    if (!strides.ok()) return strides.status();
    for (size_t d = 0; d < rank; ++d) (is_reduced[d] ? reduced : kept)[i].push_back((*strides)[d]);
  }
  return ReduceLayout{.op = op.op,
                      .kept = Coalesce(kept_extents, kept),
                      .reduced = Coalesce(reduced_extents, reduced),
                      .inputs = call.inputs,
                      .value_dtype = op.map.has_value() ? op.map->dtype() : call.inputs[0].dtype,
                      .dtype = AccumulatedIn(call.output_dtype),
                      .output_dtype = call.output_dtype,
                      .output = call.output,
                      .map = map,
                      .expression = op.map.has_value() ? &*op.map : nullptr};
}

class ReduceRunner final : public PieceRunner {
 public:
  ReduceRunner(const ReduceLocalOp& op, const KernelCall& call, size_t number) {
    if (op.map.has_value()) map_.emplace(*op.map, call.scalars, number);
  }
  absl::Status Prepare(const ReduceLocalOp& op, const KernelCall& call) {
    absl::StatusOr<ReduceLayout> layout = LayOut(op, call, map_.has_value() ? &*map_ : nullptr);
    if (layout.ok()) layout_ = *std::move(layout);
    return layout.status();
  }
  absl::Status RunAll() { return Reduce(layout_, 0, layout_.kept.size); }
  absl::Status Run(int64_t start, int64_t count) override { return Reduce(layout_, start, start + count); }

 private:
  std::optional<Evaluator> map_;
  ReduceLayout layout_;
};

}  // namespace

absl::StatusOr<Shape> ExtentsTogether(const char* kernel, absl::Span<const KernelInput> inputs, size_t rank) {
  Shape extents(rank, 1);
  for (const KernelInput& input : inputs) {
    if (input.extents.size() > rank || IsFloat8(input.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(kernel, ": input rank ", input.extents.size(), ", output rank ",
                                                     rank, ", dtype ", std::string(ToText(input.dtype))));
    }
    const size_t missing = rank - input.extents.size();
    for (size_t d = missing; d < rank; ++d) {
      if (input.extents[d - missing] != 1) extents[d] = input.extents[d - missing];
    }
  }
  return extents;
}

absl::Status RunReduce(const ReduceLocalOp& op, const KernelCall& call) {
  if (absl::Status s = CheckReduce(op, call); !s.ok()) return s;
  ReduceRunner runner(op, call, 0);
  if (absl::Status s = runner.Prepare(op, call); !s.ok()) return s;
  return runner.RunAll();
}

absl::StatusOr<std::unique_ptr<PieceRunner>> MakeReduceRunner(const ReduceLocalOp& op, const KernelCall& call,
                                                              size_t number) {
  if (absl::Status s = CheckReduce(op, call); !s.ok()) return s;
  auto runner = std::make_unique<ReduceRunner>(op, call, number);
  if (absl::Status s = runner->Prepare(op, call); !s.ok()) return s;
  return runner;
}

}  // namespace tessera::cpu
