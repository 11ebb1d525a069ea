// Cumulative sums, products, maxima and minima along a dim, from the first element to the last (in reverse from the
// last to the first), one after the other: along a row for one line, or across a tile of lines side by side.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce_loops.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/scalar_functions.h"

namespace tessera::cpu {
namespace {

using Block = std::array<AnyElement, kBlockElements>;

struct ScanLayout {
  LoopNest lines;  // operands: input, output
  ReduceOp op = ReduceOp::kSum;
  bool is_exclusive = false;
  int64_t extent = 0;
  int64_t input_stride = 0;  // from an element of a line to the next one of the scan
  int64_t output_stride = 0;
  DType input_dtype = DType::kF32;
  DType dtype = DType::kF32;  // in which everything is accumulated
  DType output_dtype = DType::kF32;
  const std::byte* input = nullptr;  // of the scan's first element of the first line
  std::byte* output = nullptr;
  const std::byte* before = nullptr;  // what stands before the first element of each line: operand 2; or null
};

// Elements [start, start + count) of the nest from `base`, as they are accumulated.
const void* Load(const ScanLayout& l, const LoopNest& nest, const std::byte* base, int64_t start, int64_t count,
                 Block& raw, Block& converted) {
  const void* values = OperandBlockBytes(nest, 0, SizeBytes(l.input_dtype), base, start, count, raw.data());
  if (l.input_dtype == l.dtype) return values;
  CastBlock(l.input_dtype, l.dtype, values, count, converted.data());
  return converted.data();
}

void Store(const ScanLayout& l, const LoopNest& nest, std::byte* base, int64_t start, int64_t count,
           const void* values) {
  Block rounded;
  if (l.output_dtype != l.dtype) CastBlock(l.dtype, l.output_dtype, values, count, rounded.data());
  StoreBlockBytes(nest, 1, SizeBytes(l.output_dtype), base, start, count,
                  l.output_dtype != l.dtype ? rounded.data() : values);
}

// Returns what stands before the next element. Inlined into a large function, g++ 12 keeps `sum` in memory, for which
// each step waits.
template <typename T, typename Op>
[[gnu::noinline]] T ScanRow(const T* values, int64_t count, bool is_exclusive, T sum, T* out, Op op) {
  for (int64_t i = 0; i < count; ++i) {
    const T next = op(sum, values[i]);
    out[i] = is_exclusive ? sum : next;
    sum = next;
  }
  return sum;
}

template <typename P>
std::complex<P> ScanTyped(ReduceOp op, const std::complex<P>* values, int64_t count, bool is_exclusive,
                          std::complex<P> running, std::complex<P>* out) {
  using C = std::complex<P>;
  if (op == ReduceOp::kProduct) {
    return ScanRow(values, count, is_exclusive, running, out, [](C a, C b) { return scalar::ComplexMultiply(a, b); });
  }
  return ScanRow(values, count, is_exclusive, running, out, [](C a, C b) { return scalar::ComplexAdd(a, b); });
}

template <typename T>
T ScanTyped(ReduceOp op, const T* values, int64_t count, bool is_exclusive, T running, T* out) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return ScanRow(values, count, is_exclusive, running, out, [](T a, T b) { return scalar::Add(a, b); });
    case ReduceOp::kProduct:
      return ScanRow(values, count, is_exclusive, running, out, [](T a, T b) { return scalar::Multiply(a, b); });
    case ReduceOp::kMin:
      return ScanRow(values, count, is_exclusive, running, out, [](T a, T b) { return scalar::Minimum(a, b); });
    case ReduceOp::kMax:
      return ScanRow(values, count, is_exclusive, running, out, [](T a, T b) { return scalar::Maximum(a, b); });
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor: break;  // ValidateLocalOp refuses them
  }
  return running;
}

template <typename T>
void AlongRows(const ScanLayout& l, T identity) {
  alignas(64) Block raw, converted, result;
  const LoopNest line = Coalesce({l.extent}, {Strides{l.input_stride}, Strides{l.output_stride}});
  for (int64_t k = 0; k < l.lines.size; ++k) {
    const std::byte* from = l.input + PlaceOf(l.lines, 0, k).offset * SizeBytes(l.input_dtype);
    std::byte* to = l.output + PlaceOf(l.lines, 1, k).offset * SizeBytes(l.output_dtype);
    const bool is_seeded = l.before != nullptr;
    T running = is_seeded ? reinterpret_cast<const T*>(l.before)[PlaceOf(l.lines, 2, k).offset] : identity;
    for (int64_t i = 0; i < l.extent; i += kBlockElements) {
      const int64_t n = std::min(kBlockElements, l.extent - i);
      const T* values = static_cast<const T*>(Load(l, line, from, i, n, raw, converted));
      T* const out = reinterpret_cast<T*>(result.data());
      // The first is taken as it is: the identity plus -0 would be 0.
      if (i == 0 && !l.is_exclusive && !is_seeded) {
        running = values[0];
        out[0] = running;
        running = ScanTyped(l.op, values + 1, n - 1, false, running, out + 1);
      } else {
        running = ScanTyped(l.op, values, n, l.is_exclusive, running, out);
      }
      Store(l, line, to, i, n, out);
    }
  }
}

template <typename T>
void AcrossLines(const ScanLayout& l, T identity) {
  alignas(64) Block raw, converted, running;
  T* const sums = reinterpret_cast<T*>(running.data());
  for (int64_t k = 0; k < l.lines.size;) {
    const int64_t width = BlockLength(l.lines, k);
    if (l.before != nullptr) {
      for (int64_t c = 0; c < width; ++c) {
        sums[c] = reinterpret_cast<const T*>(l.before)[PlaceOf(l.lines, 2, k + c).offset];
      }
    } else {
      std::fill_n(sums, width, identity);
    }
    for (int64_t i = 0; i < l.extent; ++i) {
      const std::byte* from = l.input + i * l.input_stride * SizeBytes(l.input_dtype);
      std::byte* to = l.output + i * l.output_stride * SizeBytes(l.output_dtype);
      const void* values = Load(l, l.lines, from, k, width, raw, converted);
      if (l.is_exclusive) {
        // The output may be the input: the element is taken before its place is written.
        Block taken;
        if (values != raw.data() && values != converted.data()) {
          std::copy_n(static_cast<const T*>(values), width, reinterpret_cast<T*>(taken.data()));
          values = taken.data();
        }
        Store(l, l.lines, to, k, width, sums);
        const std::array<const void*, 2> rows = {sums, values};
        CombineRows(l.op, l.dtype, rows, width, sums);
        continue;
      }
      if (i == 0 && l.before == nullptr) {
        std::copy_n(static_cast<const T*>(values), width, sums);
      } else {
        const std::array<const void*, 2> rows = {sums, values};
        CombineRows(l.op, l.dtype, rows, width, sums);
      }
      Store(l, l.lines, to, k, width, sums);
    }
    k += width;
  }
}

}  // namespace

absl::Status RunScan(const ScanOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim), rank = call.output_extents.size();
  if (input.extents != call.output_extents || dim >= rank || call.output_dtype == DType::kBool) {
    return absl::InvalidArgumentError(absl::StrCat("scan: along dim ", op.dim, " of ", ToText(input.extents), " to ",
                                                   std::string(ToText(call.output_dtype)),
                                                   ToText(call.output_extents)));
  }
  const bool is_seeded = call.inputs.size() == 2;
  Shape lines = input.extents;
  if (NumElements(lines) == 0) return absl::OkStatus();
  lines[dim] = 1;
  if (is_seeded && (call.inputs[1].extents != lines || call.inputs[1].dtype != AccumulatedIn(call.output_dtype))) {
    return absl::InvalidArgumentError(
        absl::StrCat("scan: begins with ", ToText(call.inputs[1].extents), " of ", ToText(input.extents)));
  }
  const Strides strides = input.is_zero ? Strides(rank, 0) : input.strides;
  const Strides before = is_seeded && !call.inputs[1].is_zero ? call.inputs[1].strides : Strides(rank, 0);
  ScanLayout l{.lines = Coalesce(lines, {strides, call.output_strides, before}),
               .op = op.op,
               .is_exclusive = op.span == ScanSpan::kExclusive,
               .extent = input.extents[dim],
               .input_stride = strides[dim],
               .output_stride = call.output_strides[dim],
               .input_dtype = input.dtype,
               .dtype = AccumulatedIn(call.output_dtype),
               .output_dtype = call.output_dtype,
               .input = static_cast<const std::byte*>(input.is_zero ? &kZeroElement : input.data),
               .output = static_cast<std::byte*>(call.output)};
  if (is_seeded) {
    l.before = static_cast<const std::byte*>(call.inputs[1].is_zero ? static_cast<const void*>(&kZeroElement)
                                                                    : call.inputs[1].data);
  }
  if (op.direction == ScanDirection::kReverse) {
    l.input += (l.extent - 1) * l.input_stride * SizeBytes(l.input_dtype);
    l.output += (l.extent - 1) * l.output_stride * SizeBytes(l.output_dtype);
    l.input_stride = -l.input_stride;
    l.output_stride = -l.output_stride;
  }
  const bool is_row = l.output_stride == 1 || l.output_stride == -1 || l.lines.size < 8;
  if (Kind(l.dtype) == DTypeKind::kComplex && op.op != ReduceOp::kSum && op.op != ReduceOp::kProduct) {
    return NoKernelFor("scan", l.dtype);
  }
  return VisitAccumulated("scan", l.dtype, [&](auto zero) {
    const auto identity = Identity<decltype(zero)>(op.op, l.dtype);
    is_row ? AlongRows(l, identity) : AcrossLines(l, identity);
  });
}

}  // namespace tessera::cpu
