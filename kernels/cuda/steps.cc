#include "kernels/cuda/steps.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "schemas/types/float8.h"

namespace tessera::cuda {

Loops MergedLoops(absl::Span<const int64_t> extents, std::vector<Strides> strides) {
  Loops loops;
  loops.strides.resize(strides.size());
  for (size_t d = 0; d < extents.size(); ++d) {
    loops.size *= extents[d];
    if (extents[d] == 1) continue;
    bool merges = !loops.extents.empty();
    for (size_t o = 0; merges && o < strides.size(); ++o) {
      merges = loops.strides[o].back() == strides[o][d] * extents[d];
    }
    if (merges) {
      loops.extents.back() *= extents[d];
    } else {
      loops.extents.push_back(extents[d]);
    }
    for (size_t o = 0; o < strides.size(); ++o) {
      if (merges) loops.strides[o].pop_back();
      loops.strides[o].push_back(strides[o][d]);
    }
  }
  if (loops.extents.empty()) {
    loops.extents.push_back(1);
    for (Strides& operand : loops.strides) operand.push_back(0);
  }
  return loops;
}

namespace {

template <typename T>
void Put(T value, Element* element) {
  static_assert(sizeof(T) <= sizeof(Element));
  std::memcpy(static_cast<void*>(element), &value, sizeof(T));
}
void PutReal(double value, DType dtype, Element* element) {
  switch (dtype) {
    case DType::kF16: return Put(F16(value).bits, element);
    case DType::kBF16: return Put(BF16(value).bits, element);
    case DType::kF8E4M3: return Put(F8E4M3(value).bits, element);
    case DType::kF8E5M2: return Put(F8E5M2(value).bits, element);
    case DType::kF32: return Put(static_cast<float>(value), element);
    default: return Put(value, element);
  }
}

}  // namespace

Element ToElement(const Scalar& scalar, DType dtype) {
  Element element;
  const Scalar typed = scalar.As(dtype);
  if (dtype == DType::kBool) {
    Put(static_cast<uint8_t>(typed.AsBool()), &element);
  } else if (dtype == DType::kC64) {
    const std::complex<double> value = typed.AsComplex();
    Put(std::array<float, 2>{static_cast<float>(value.real()), static_cast<float>(value.imag())}, &element);
  } else if (dtype == DType::kC128) {
    const std::complex<double> value = typed.AsComplex();
    Put(std::array<double, 2>{value.real(), value.imag()}, &element);
  } else if (Kind(dtype) == DTypeKind::kFloat) {
    PutReal(typed.AsDouble(), dtype, &element);
  } else {
    Put(typed.AsInt(), &element);  // the low bytes
  }
  return element;
}

Element IdentityOf(ReduceOp op, DType dtype) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return ToElement(Scalar::Int(0), dtype);
    case ReduceOp::kProduct: return ToElement(Scalar::Int(1), dtype);
    case ReduceOp::kBand: return ToElement(dtype == DType::kBool ? Scalar::Bool(true) : Scalar::Int(-1), dtype);
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return ToElement(Scalar::Int(0), dtype);
    case ReduceOp::kMin: return ToElement(Scalar::Float(kInfinite), dtype);
    case ReduceOp::kMax:
      if (dtype == DType::kBool) return ToElement(Scalar::Bool(false), dtype);
      return ToElement(Scalar::Float(-kInfinite), dtype);
  }
  return {};
}

std::pair<uint64_t, uint64_t> RangeOf(const void* data, absl::Span<const int64_t> extents,
                                      absl::Span<const int64_t> strides, int64_t element_bytes) {
  int64_t first = 0, last = 0;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 0) return {0, 0};
    (strides[d] < 0 ? first : last) += (extents[d] - 1) * strides[d];
  }
  const auto base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
  return {static_cast<uint64_t>(base + first * element_bytes),
          static_cast<uint64_t>(base + (last + 1) * element_bytes)};
}

Strides StridesOf(const KernelInput& input) { return input.is_zero ? Strides(input.extents.size(), 0) : input.strides; }
const void* DataOf(const KernelInput& input, const Workspace& workspace) {
  return input.is_zero ? reinterpret_cast<const void*>(static_cast<uintptr_t>(workspace.zeros)) : input.data;
}

absl::StatusOr<void*> Pieces::Take(int64_t bytes) {
  const int64_t rounded = Rounded(bytes);
  if (rounded > workspace_.bytes - taken_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("kernel: a workspace of ", workspace_.bytes, " bytes for ", taken_ + rounded));
  }
  void* piece = reinterpret_cast<void*>(static_cast<uintptr_t>(workspace_.address + static_cast<uint64_t>(taken_)));
  taken_ += rounded;
  return piece;
}

}  // namespace tessera::cuda
