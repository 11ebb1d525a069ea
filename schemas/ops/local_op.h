#pragma once

// LocalOp: what one worker computes on its own shards. A plan's `local` step holds one; a kernel runs
// it. All operands are strided; the output's extents are those of the position's shard.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "schemas/ops/expression.h"
#include "schemas/types/placement.h"
#include "schemas/types/shape.h"

namespace tessera {

class Scanner;

// output[i] = expression(inputs[i], scalars). An input's extent is the output's, or 1 (broadcast;
// missing leading dims count as 1).
struct MapOp {
  Expression expression;
  bool operator==(const MapOp&) const = default;
};
// Reduces `dims` of the one input with op sum, product, min or max, in increasing index order by a
// fixed tree. The output has extent 1 there (the plan's value drops them if keepdims is false). An
// empty reduction gives the identity: 0, 1, the largest, the lowest value (inf for floats).
// Elements are converted to the output's dtype and reduced in it; f32 pairwise (blocks of 128).
struct ReduceLocalOp {
  ReduceOp op = ReduceOp::kSum;
  std::vector<int64_t> dims;
  bool operator==(const ReduceLocalOp&) const = default;
};
// Index (i64) of the first extreme along `dim`; the first NaN wins. The output has extent 1 there.
enum class Extreme : uint8_t { kMin = 0, kMax = 1 };
struct ArgReduceOp {
  Extreme extreme = Extreme::kMin;
  int64_t dim = 0;
  bool operator==(const ArgReduceOp&) const = default;
};
// The product of two tensors by index notation; an empty sum gives zeros.
struct MatmulOp {
  Contraction notation;
  bool operator==(const MatmulOp&) const = default;
};
// Creation: the kernel is given the global box of the shard.
struct FillOp {  // scalars {value}
  bool operator==(const FillOp&) const = default;
};
struct ArangeOp {  // scalars {start, step}, f64 or i64: start + step * global index, then rounded
  bool operator==(const ArangeOp&) const = default;
};
struct EyeOp {  // scalars {diagonal}: 1 where column - row == diagonal
  bool operator==(const EyeOp&) const = default;
};
// Uniform in [0, 1), f32 or f64: Philox 4x32-10 keyed by (seed, stream), counter = row-major global
// index of the element. scalars {seed, stream}; `global_shape` gives the index.
struct RandOp {
  Shape global_shape;
  bool operator==(const RandOp&) const = default;
};

using LocalOp = std::variant<MapOp, ReduceLocalOp, ArgReduceOp, MatmulOp, FillOp, ArangeOp, EyeOp, RandOp>;

// What a kernel does with its result; only a matmul can add.
enum class KernelStore : uint8_t { kWrite = 0, kAdd = 1 };

// "map(add:f32(in0:f32, in1:f32))", "reduce(sum; dims=[0])", "argreduce(min; dim=1)", "matmul()"
// (of matrices; else "matmul(bmk,bkn->bmn)"), "rand([4,6])". Round-trips.
std::string ToText(const LocalOp& op);
absl::StatusOr<LocalOp> ParseLocalOp(std::string_view text);
// Takes one from a longer text.
absl::StatusOr<LocalOp> ParseLocalOp(Scanner& scanner);
// For what came over a wire: number of operands, scalars, dims against ranks.
absl::Status ValidateLocalOp(const LocalOp& op, int inputs, int scalars);

}  // namespace tessera
