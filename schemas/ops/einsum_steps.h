#pragma once

// EinsumSteps: an einsum of any number of operands, taken apart into ops that there are: products of two tensors, sums,
// diagonals and permutations. Clients run the steps with their own tensors.
//
//   PlanEinsum("ij,jk,kl->il", {{{3, 4}, DType::kF32}, ...}, name_of)
//     product of 0 and 1, "ij,jk->ik", in slot 0; product of 0 and 2, "ik,kl->il", in slot 0
//
// The notation is NumPy's: "..." in operands and the output, a letter that stands twice in an operand (its diagonal),
// no "->" (the letters that stand once, sorted), letters of extent 1 that are broadcast. Letters that nobody needs any
// more are summed over as early as that is exact, in the operands' common dtype. Three and more operands are multiplied
// in the order of the fewest multiplications: of all orders up to six operands, else the next pair that leaves least.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/dtype.h"
#include "schemas/types/shape.h"

namespace tessera {

struct EinsumOperand {
  Shape shape;
  DType dtype = DType::kF32;
};

enum class EinsumStepKind : uint8_t {
  kDiagonal = 0,  // permutes by `dims`, then takes the diagonal of the last two dims
  kCast = 1,      // to the common dtype
  kSum = 2,       // over `dims`, in the common dtype; of bools: whether any is true
  kProduct = 3,   // of slots `slot` and `other`, by `notation`
  kPermute = 4,   // by `dims`; last of an einsum of one operand
};

struct EinsumStep {
  EinsumStepKind kind = EinsumStepKind::kProduct;
  int slot = 0;  // of the operand, and then of the result
  int other = 0;
  std::vector<int64_t> dims;
  std::string notation;
};

struct EinsumSteps {
  DType dtype = DType::kF32;
  std::vector<EinsumStep> steps;  // none: the only operand is the result
  int result = 0;                 // its slot
};

// Slots are at first the operands. InvalidArgument for a notation that these operands have no einsum by, DType errors
// of operands without a common dtype; both begin with "einsum: ". `name_of(i)`: operand i's spec, which errors tell.
absl::StatusOr<EinsumSteps> PlanEinsum(std::string_view notation, absl::Span<const EinsumOperand> operands,
                                       absl::FunctionRef<std::string(size_t)> name_of);

// The notation by which the axes `left` of one operand are multiplied with the axes `right` of another one and summed
// over, pair by pair: "abc,bcd->ad". Axes count from 0, or from the end below 0. OutOfRange, or InvalidArgument where
// they are no pairs; both begin with "tensordot: ".
absl::StatusOr<std::string> TensordotNotation(int left_rank, int right_rank, absl::Span<const int64_t> left,
                                              absl::Span<const int64_t> right);

}  // namespace tessera
