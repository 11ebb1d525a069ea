// Creation ops: full, arange, eye, rand. An element depends on its global index alone, so every shard
// of every placement holds the same values.

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/random_loops.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/normal_law.h"
#include "schemas/ops/philox.h"

namespace tessera::cpu {
namespace {

absl::Status ExpectScalars(const char* op, const KernelCall& call, size_t scalars, size_t min_rank, size_t max_rank) {
  const size_t rank = call.output_extents.size();
  if (call.scalars.size() != scalars || rank < min_rank || rank > max_rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": takes ", scalars, " scalars, got ", call.scalars.size(), ", for an output of rank ", rank));
  }
  if (min_rank > 0 && call.output_box.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": box of rank ", call.output_box.size(), " for an output of rank ", rank));
  }
  return absl::OkStatus();
}

// Calls row(pointer, index of the row's first element per dim) for every innermost row.
template <typename T, typename Row>
void ForEachOutputRow(const KernelCall& call, Row&& row) {
  const size_t rank = call.output_extents.size();
  if (NumElements(call.output_extents) == 0) return;
  Shape index(rank, 0);
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset += index[d] * call.output_strides[d];
    row(static_cast<T*>(call.output) + offset, index);
    size_t d = rank > 0 ? rank - 1 : 0;
    while (d > 0 && ++index[d - 1] == call.output_extents[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// start + step * index: in f64 for floats, wrapping for integers.
template <typename T>
void Arange(const KernelCall& call, bool is_bool) {
  const int64_t first = call.output_box[0].start;
  const int64_t stride = call.output_strides[0];
  T* out = static_cast<T*>(call.output);
  for (int64_t i = 0; i < call.output_extents[0]; ++i) {
    if constexpr (!std::is_integral_v<T>) {
      out[i * stride] =
          static_cast<T>(call.scalars[0].AsDouble() + call.scalars[1].AsDouble() * static_cast<double>(first + i));
    } else {
      const uint64_t value = static_cast<uint64_t>(call.scalars[0].AsInt()) +
                             static_cast<uint64_t>(call.scalars[1].AsInt()) * static_cast<uint64_t>(first + i);
      out[i * stride] = is_bool ? static_cast<T>(value != 0) : static_cast<T>(value);
    }
  }
}

template <typename T>
void Eye(const KernelCall& call) {
  const int64_t diagonal = call.scalars[0].AsInt();
  ForEachOutputRow<T>(call, [&](T* row, const Shape& index) {
    const int64_t stride = call.output_strides[1];
    const int64_t columns = call.output_extents[1];
    for (int64_t j = 0; j < columns; ++j) row[j * stride] = T{0};
    // The one's column in this shard; a column beyond 64 bits is in no shard.
    int64_t one = 0;
    if (__builtin_add_overflow(call.output_box[0].start + index[0] - call.output_box[1].start, diagonal, &one)) return;
    if (one >= 0 && one < columns) row[one * stride] = T{1};
  });
}

// A draw makes the numbers of a call: Run those that lie side by side, One any other.
template <typename T>
struct UniformDraw {
  uint64_t seed, stream;

  explicit UniformDraw(absl::Span<const Scalar> scalars)
      : seed(static_cast<uint64_t>(scalars[0].AsInt())), stream(static_cast<uint64_t>(scalars[1].AsInt())) {}
  T One(uint64_t number) const {
    if constexpr (std::is_same_v<T, double>) return ToUniformF64(RandomBits64(seed, stream, number));
    if constexpr (std::is_same_v<T, float>) return ToUniformF32(RandomBits32(seed, stream, number));
    if constexpr (std::is_same_v<T, F16>) return ToUniformF16(RandomBits32(seed, stream, number));
    if constexpr (std::is_same_v<T, BF16>) return ToUniformBF16(RandomBits32(seed, stream, number));
  }
  void Run(DType dtype, uint64_t first, int64_t count, T* out) const {
    UniformNumbers(dtype, {seed, stream, first, count}, out);
  }
};
template <typename T>
struct NormalDraw {
  using Made = std::conditional_t<sizeof(T) == 8, double, float>;
  double mean, deviation;
  uint64_t seed, stream;

  explicit NormalDraw(absl::Span<const Scalar> scalars)
      : mean(scalars[0].AsDouble()),
        deviation(scalars[1].AsDouble()),
        seed(static_cast<uint64_t>(scalars[2].AsInt())),
        stream(static_cast<uint64_t>(scalars[3].AsInt())) {}
  T One(uint64_t number) const {
    const auto words = CounterWords(seed, stream, number / NumbersPerCounter(sizeof(T)));
    return static_cast<T>(static_cast<Made>(mean) + static_cast<Made>(deviation) * NormalOf<Made>(words, number));
  }
  void Run(DType dtype, uint64_t first, int64_t count, T* out) const {
    NormalNumbers(dtype, {seed, stream, first, count}, mean, deviation, out);
  }
};

// Elements [start, start + count) of the nest, whose operand 1 is the elements' numbers, from `first` on.
template <typename T, typename Draw>
void RandPart(const KernelCall& call, const Draw& draw, const LoopNest& nest, uint64_t first, int64_t start,
              int64_t count) {
  const int64_t stride = nest.strides[0].back(), step = nest.strides[1].back();
  T block[kBlockElements];
  RowWalk numbers(nest, 1, start);
  ForEachRow(nest, 0, start, count, [&](int64_t offset, int64_t seen, int64_t n) {
    const int64_t place = seen == 0 ? PlaceOf(nest, 1, start).offset : numbers.offset();
    const uint64_t number = first + static_cast<uint64_t>(place);
    numbers.Next();
    T* row = static_cast<T*>(call.output) + offset;
    if (n < kMinRunNumbers || step != 1) {
      for (int64_t i = 0; i < n; ++i) row[i * stride] = draw.One(number + static_cast<uint64_t>(i * step));
    } else if (stride == 1) {
      draw.Run(call.output_dtype, number, n, row);
    } else {
      for (int64_t i = 0; i < n; i += kBlockElements) {
        const int64_t taken = std::min(n - i, kBlockElements);
        draw.Run(call.output_dtype, number + static_cast<uint64_t>(i), taken, block);
        for (int64_t k = 0; k < taken; ++k) row[(i + k) * stride] = block[k];
      }
    }
  });
}

template <typename T, typename Draw>
void RandBy(const Draw& draw, const Shape& global_shape, const KernelCall& call) {
  const Strides numbers = RowMajorStrides(global_shape);
  uint64_t first = 0;
  for (size_t d = 0; d < numbers.size(); ++d) {
    first += static_cast<uint64_t>(call.output_box[d].start) * static_cast<uint64_t>(numbers[d]);
  }
  const LoopNest nest = Coalesce(call.output_extents, {call.output_strides, numbers});
  if (nest.size == 0) return;
  RunParts(PartsFor(nest.size * static_cast<int64_t>(sizeof(T))), [&](int64_t part, int64_t parts) {
    const int64_t start = nest.size / parts * part;
    const int64_t stop = part + 1 == parts ? nest.size : nest.size / parts * (part + 1);
    RandPart<T>(call, draw, nest, first, start, stop - start);
  });
}

template <typename T>
void Rand(const RandOp& op, const KernelCall& call) {
  switch (op.distribution) {
    case Distribution::kUniform: return RandBy<T>(UniformDraw<T>(call.scalars), op.global_shape, call);
    case Distribution::kNormal: return RandBy<T>(NormalDraw<T>(call.scalars), op.global_shape, call);
  }
}

}  // namespace

ElementBits ToElement(const Scalar& scalar, DType dtype) {
  ElementBits element{};
  const Scalar typed = scalar.As(dtype);
  auto put = [&](auto value) { std::memcpy(element.bytes, &value, sizeof(value)); };
  if (dtype == DType::kF8E4M3) put(F8E4M3(typed.AsDouble()));
  if (dtype == DType::kF8E5M2) put(F8E5M2(typed.AsDouble()));
  VisitElement(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, BoolElement>) {
      put(static_cast<uint8_t>(typed.AsBool()));
    } else if constexpr (std::is_integral_v<T>) {
      put(static_cast<T>(typed.AsInt()));
    } else if constexpr (scalar::kIsComplex<T>) {
      put(T(typed.AsComplex()));
    } else {
      put(T(typed.AsDouble()));
    }
    return true;
  });
  return element;
}

absl::Status RunFill(const FillOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("full", call, 1, 0, kMaxRank); !s.ok()) return s;
  return VisitDType("full", MovedAs(call.output_dtype), [&](auto zero) {
    const ElementBits element = ToElement(call.scalars[0], call.output_dtype);
    CopyStrided(call.output_extents, sizeof(zero), element.bytes, Strides(call.output_extents.size(), 0), call.output,
                call.output_strides);
  });
}

absl::Status RunArange(const ArangeOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("arange", call, 2, 1, 1); !s.ok()) return s;
  if (Kind(call.output_dtype) == DTypeKind::kComplex) return NoKernelFor("arange", call.output_dtype);
  return VisitDType("arange", call.output_dtype, [&](auto zero) {
    if constexpr (!scalar::kIsComplex<decltype(zero)>) {
      Arange<decltype(zero)>(call, call.output_dtype == DType::kBool);
    }
  });
}

absl::Status RunEye(const EyeOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("eye", call, 1, 2, 2); !s.ok()) return s;
  return VisitDType("eye", call.output_dtype, [&](auto zero) { Eye<decltype(zero)>(call); });
}

absl::Status RunRand(const RandOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("rand", call, op.distribution == Distribution::kNormal ? 4 : 2, 0, kMaxRank);
      !s.ok())
    return s;
  const size_t rank = call.output_extents.size();
  if (op.global_shape.size() != rank || call.output_box.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rand: global shape ", ToText(op.global_shape), " for an output ", ToText(call.output_extents)));
  }
  switch (call.output_dtype) {
    case DType::kF16: Rand<F16>(op, call); return absl::OkStatus();
    case DType::kBF16: Rand<BF16>(op, call); return absl::OkStatus();
    case DType::kF32: Rand<float>(op, call); return absl::OkStatus();
    case DType::kF64: Rand<double>(op, call); return absl::OkStatus();
    default: break;
  }
  return absl::UnimplementedError(
      absl::StrCat("rand: no CPU kernel for ", std::string(ToText(call.output_dtype)), "; floats have one"));
}

}  // namespace tessera::cpu
