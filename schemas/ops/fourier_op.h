#pragma once

// FourierOp: discrete Fourier transforms along one dim, NumPy's: of `length` elements x[0..n),
//
//   forward   X[k] = sum of x[j] exp(-2 pi i j k / n)    backward   x[j] = sum of X[k] exp(+2 pi i j k / n)
//
// scaled as `scale` says. The input is cut to what a transform takes, or continued with zeros.
//
//   kind           input              output          elements taken, given
//   forward        real or complex    complex         n, n
//   backward       real or complex    complex         n, n
//   real_forward   real               complex         n, n / 2 + 1: the others are the conjugates of these
//   real_backward  real or complex    real            n / 2 + 1, n: of what a real signal's transform has there
//
// The output's dtype is of the precision of the input's; f16 and bf16 are of f32's.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "schemas/types/dtype.h"
#include "schemas/types/shape.h"

namespace tessera {

class Scanner;

enum class FourierKind : uint8_t { kForward = 0, kBackward = 1, kRealForward = 2, kRealBackward = 3 };
// The divisor of the sums: none, the root of the length, the length.
enum class FourierScale : uint8_t { kNone = 0, kByRoot = 1, kByLength = 2 };
inline constexpr std::array<std::string_view, 4> kFourierKindNames = {"forward", "backward", "real_forward",
                                                                      "real_backward"};
inline constexpr std::array<std::string_view, 3> kFourierScaleNames = {"none", "by_root", "by_length"};
inline constexpr int64_t kMaxFourierLength = int64_t{1} << 28;  // docs/limits.md: max_fourier_length

struct FourierOp {
  FourierKind kind = FourierKind::kForward;
  int64_t dim = 0;
  int64_t length = 1;
  FourierScale scale = FourierScale::kNone;
  int64_t taken() const { return kind == FourierKind::kRealBackward ? length / 2 + 1 : length; }
  int64_t given() const { return kind == FourierKind::kRealForward ? length / 2 + 1 : length; }
  bool operator==(const FourierOp&) const = default;
};

// The dtype of the output; an error of dtypes for an input that the kind doesn't take.
absl::StatusOr<DType> FourierResult(FourierKind kind, DType input);
// "fourier(forward; dim=1; length=8; by_length)": the scale is last, and left out where it is none.
std::string ToText(const FourierOp& op);
absl::StatusOr<FourierOp> ParseFourierOp(Scanner& scanner);
absl::Status ValidateFourierOp(const FourierOp& op, int inputs, int scalars);

}  // namespace tessera
