// map(expression, inputs): block by block, so that the values of the nodes stay in the first-level cache. Joined maps
// (kernels/joined_maps.h) take turns at each block.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "kernels/cpu/evaluate.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"
#include "kernels/joined_maps.h"

namespace tessera::cpu {
namespace {

class MapRunner {
 public:
  // number: Evaluator's.
  MapRunner(const Expression& expression, const KernelCall& call, size_t number = 0)
      : call_(call), evaluator_(expression, call.scalars, number), filled_(call.inputs.size(), nullptr) {}

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
  const LoopNest& nest() const { return nest_; }
  const KernelCall& call() const { return call_; }

  absl::Status RunBlock(int64_t start, int64_t count) {
    const size_t output = call_.inputs.size();
    const int64_t bytes = SizeBytes(call_.output_dtype);
    alignas(64) std::array<AnyElement, kBlockElements> scratch;
    void* place = OutputBlockBytes(nest_, output, bytes, call_.output, start, count, scratch.data());
    auto values = evaluator_.Evaluate(
        count,
        [&](const ExpressionNode& node, std::byte* to) {
          return node.op == ScalarOp::kIndex ? Indexes(node, start, count, to) : Elements(node, start, count, to);
        },
        place);
    if (!values.ok()) return values.status();
    if (*values != place || place == static_cast<void*>(scratch.data())) {
      StoreBlockBytes(nest_, output, bytes, call_.output, start, count, *values);
    }
    return absl::OkStatus();
  }

 private:
  // An input that is one element is the same in every block: it is brought once.
  const void* Elements(const ExpressionNode& node, int64_t start, int64_t count, std::byte* scratch) {
    const size_t input = static_cast<size_t>(node.a);
    if (filled_[input] == scratch) return scratch;
    const KernelInput& from = call_.inputs[input];
    const void* data = from.is_zero ? &kZeroElement : from.data;
    const Strides& strides = nest_.strides[input];
    if (nest_.size > 1 && std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s == 0; })) {
      filled_[input] = scratch;
      count = std::min(nest_.size, kBlockElements);
      start = 0;
    }
    return OperandBlockBytes(nest_, input, SizeBytes(node.dtype), data, start, count, scratch);
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
  Evaluator evaluator_;
  absl::InlinedVector<const void*, 8> filled_;
  LoopNest nest_;
};

absl::Status CheckLeaf(const ExpressionNode& node, const KernelCall& call) {
  if (node.op == ScalarOp::kInput && call.inputs[static_cast<size_t>(node.a)].dtype != node.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("map: input ", node.a, " is ",
                                                   std::string(ToText(call.inputs[static_cast<size_t>(node.a)].dtype)),
                                                   ", the expression reads ", std::string(ToText(node.dtype))));
  }
  if (node.op == ScalarOp::kIndex && (static_cast<size_t>(node.a) >= call.output_extents.size() ||
                                      call.output_box.size() != call.output_extents.size())) {
    return absl::InvalidArgumentError(absl::StrCat("map: reads the index of dim ", node.a, " of an output of rank ",
                                                   call.output_extents.size(), " with a box of rank ",
                                                   call.output_box.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Strides> BroadcastStrides(const char* kernel, const KernelInput& input,
                                         absl::Span<const int64_t> extents) {
  const size_t rank = extents.size();
  if (input.extents.size() > rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": an input of rank ", input.extents.size(), " for an output of rank ", rank));
  }
  Strides strides(rank, 0);
  if (input.is_zero) return strides;
  const size_t missing = rank - input.extents.size();
  for (size_t d = missing; d < rank; ++d) {
    const int64_t extent = input.extents[d - missing];
    if (extent == extents[d]) {
      strides[d] = extent == 1 ? 0 : input.strides[d - missing];
    } else if (extent != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(kernel, ": an input extent of ", extent, " for an output extent of ", extents[d]));
    }
  }
  return strides;
}

namespace {

absl::Status CheckMap(const MapOp& op, const KernelCall& call) {
  absl::Status valid =
      ValidateExpression(op.expression, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
  if (!valid.ok()) return valid;
  for (const ExpressionNode& node : op.expression.nodes) {
    if (absl::Status s = CheckLeaf(node, call); !s.ok()) return s;
  }
  if (op.expression.dtype() != call.output_dtype) {
    return absl::InvalidArgumentError(absl::StrCat("map: the expression gives ",
                                                   std::string(ToText(op.expression.dtype())), ", the output is ",
                                                   std::string(ToText(call.output_dtype))));
  }
  return absl::OkStatus();
}

// Memory that is read from its start to its end.
struct Stream {
  const std::byte* data = nullptr;
  int64_t element_bytes = 0;
};

constexpr int64_t kLineBytes = 64;

void FetchBlock(const Stream& stream, int64_t start, int64_t count) {
  const std::byte* from = stream.data + start * stream.element_bytes;
  for (int64_t at = 0; at < count * stream.element_bytes; at += kLineBytes) __builtin_prefetch(from + at, 0, 2);
}

// Runs one after the other at each block. All have the same blocks. Of `ahead` the next block is on its way meanwhile:
// a block is a page or less, and the hardware, which fetches ahead within a page, is too late where streams are many.
absl::Status RunBlocksOf(absl::Span<MapRunner> runners, absl::Span<const Stream> ahead) {
  const LoopNest& nest = runners[0].nest();
  for (int64_t start = 0; start < nest.size;) {
    const int64_t count = BlockLength(nest, start);
    const int64_t next = start + count, next_count = std::min(kBlockElements, nest.size - next);
    for (size_t k = 0; k < runners.size(); ++k) {
      for (size_t s = k; s < ahead.size(); s += runners.size()) FetchBlock(ahead[s], next, next_count);
      if (absl::Status s = runners[k].RunBlock(start, count); !s.ok()) return s;
    }
    start += count;
  }
  return absl::OkStatus();
}

// An operand whose element i lies at `first` + i * element_bytes, or one element.
struct Row {
  uintptr_t first = 0, end = 0;
  int64_t element_bytes = 0;
  bool is_element = false;
};
enum class Touch : uint8_t { kApart, kSameElements, kOtherwise };

// Those of the inputs and, last, the output; empty where one lies in another way.
absl::InlinedVector<Row, 8> RowsOf(const MapRunner& runner) {
  const KernelCall& call = runner.call();
  const LoopNest& nest = runner.nest();
  absl::InlinedVector<Row, 8> rows;
  for (size_t o = 0; o <= call.inputs.size(); ++o) {
    const bool is_output = o == call.inputs.size();
    const int64_t stride = nest.strides[o][0];
    if (nest.extents.size() != 1 || (stride != 1 && (stride != 0 || is_output))) return {};
    const int64_t bytes = SizeBytes(is_output ? call.output_dtype : call.inputs[o].dtype);
    const auto first = reinterpret_cast<uintptr_t>(is_output ? call.output : call.inputs[o].data);
    const bool is_read = is_output || !call.inputs[o].is_zero;
    const int64_t count = !is_read ? 0 : stride == 0 ? 1 : nest.size;
    rows.push_back({first, first + static_cast<uintptr_t>(count * bytes), bytes, stride == 0});
  }
  return rows;
}

Touch TouchOf(const Row& a, const Row& b) {
  if (a.end <= b.first || b.end <= a.first) return Touch::kApart;
  const bool is_same = a.first == b.first && a.element_bytes == b.element_bytes && !a.is_element && !b.is_element;
  return is_same ? Touch::kSameElements : Touch::kOtherwise;
}

// The law of joined_maps.h, and whether they share an operand: else nothing is saved.
bool CanJoin(absl::Span<const Row> a, absl::Span<const Row> b, bool& shares) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      const Touch touch = TouchOf(a[i], b[j]);
      const bool is_written = i + 1 == a.size() || j + 1 == b.size();
      if (is_written && touch == Touch::kOtherwise) return false;
      shares |= touch == Touch::kSameElements;
    }
  }
  return true;
}

// What RunKernel asks of every call.
bool RanksFit(const KernelCall& call) {
  return call.store == KernelStore::kWrite && call.output_strides.size() == call.output_extents.size() &&
         std::all_of(call.inputs.begin(), call.inputs.end(), [](const KernelInput& input) {
           return input.is_zero || input.strides.size() == input.extents.size();
         });
}

// The inputs that have many elements, each once.
std::vector<Stream> StreamsOf(const std::vector<absl::InlinedVector<Row, 8>>& rows) {
  std::vector<Stream> streams;
  for (const auto& of_map : rows) {
    for (const Row& row : absl::MakeConstSpan(of_map).subspan(0, of_map.size() - 1)) {
      const auto* data = reinterpret_cast<const std::byte*>(row.first);
      const bool is_known =
          std::any_of(streams.begin(), streams.end(), [&](const Stream& s) { return s.data == data; });
      if (row.end > row.first && !row.is_element && !is_known) streams.push_back({data, row.element_bytes});
    }
  }
  return streams;
}

const MapOp& MapOf(const KernelCall& call) { return std::get<MapOp>(*call.op); }

}  // namespace

absl::Status RunMap(const MapOp& op, const KernelCall& call) {
  if (absl::Status s = CheckMap(op, call); !s.ok()) return s;
  if (IsWideningInPlace(op, call)) {
    WidenInPlace(call);
    return absl::OkStatus();
  }
  MapRunner runner(op.expression, call);
  if (absl::Status s = runner.Prepare(); !s.ok()) return s;
  return RunBlocksOf(absl::MakeSpan(&runner, 1), {});
}

namespace {

// Runs as many of the calls as can be one pass, from the first one on: how many these were, 0 where it is one alone.
absl::StatusOr<size_t> RunPass(absl::Span<const KernelCall* const> calls) {
  std::vector<MapRunner> runners;
  runners.reserve(calls.size());
  std::vector<absl::InlinedVector<Row, 8>> rows;
  for (const KernelCall* call : calls) {
    const MapOp& op = MapOf(*call);
    if (!RanksFit(*call) || !CheckMap(op, *call).ok() || IsWideningInPlace(op, *call)) break;
    runners.emplace_back(op.expression, *call, runners.size());
    if (!runners.back().Prepare().ok()) {
      runners.pop_back();
      break;
    }
    absl::InlinedVector<Row, 8> own = RowsOf(runners.back());
    bool joins = !own.empty() && runners.back().nest().size == runners[0].nest().size, shares = rows.empty();
    for (size_t k = 0; joins && k < rows.size(); ++k) joins = CanJoin(rows[k], own, shares);
    if (!joins || !shares) {
      runners.pop_back();
      break;
    }
    rows.push_back(std::move(own));
  }
  if (runners.size() < 2) return 0;
  if (absl::Status s = RunBlocksOf(absl::MakeSpan(runners), StreamsOf(rows)); !s.ok()) return s;
  return runners.size();
}

}  // namespace
}  // namespace tessera::cpu

namespace tessera {

bool MayJoin(const KernelCall& call, const KernelCall& next) {
  if (call.op == nullptr || next.op == nullptr || !std::holds_alternative<MapOp>(*call.op) ||
      !std::holds_alternative<MapOp>(*next.op) || call.output_extents != next.output_extents) {
    return false;
  }
  return NumElements(call.output_extents) * SizeBytes(call.output_dtype) >= kMinJoinedBytes;
}

absl::StatusOr<int> RunMaps(absl::Span<const KernelCall* const> calls) {
  absl::Status first;
  int passes = 0;
  for (; !calls.empty(); ++passes) {
    size_t done = 0;
    try {
      const size_t most = std::min(calls.size(), kMaxJoinedMaps);
      absl::StatusOr<size_t> ran = most > 1 ? cpu::RunPass(calls.subspan(0, most)) : absl::StatusOr<size_t>(0);
      if (!ran.ok()) return first.ok() ? ran.status() : first;
      done = *ran;
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("kernel: no host memory for joined maps");
    }
    if (done == 0) {
      absl::Status status = RunKernel(*calls[0]);
      if (first.ok()) first = std::move(status);
      done = 1;
    }
    calls.remove_prefix(done);
  }
  if (!first.ok()) return first;
  return passes;
}

}  // namespace tessera
