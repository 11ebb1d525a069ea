#pragma once

// The op catalog: one row per op. Shape, dtype, placement rules, documentation and the clients'
// functions derive from the row. docs/hacking.md adds an op as an example.

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/op.h"

namespace tessera {

// Which rules an op follows for shape and placement.
enum class OpFamily : uint8_t {
  kCreation,      // no operands; attributes shape, dtype, mesh, placements
  kElementwise,   // broadcasts its operands; the row's scalar op
  kReduction,     // over attributes.dims
  kArgReduction,  // over one dim, which must not be sharded (it is redistributed first)
  kContraction,   // index notation
  kView,          // copies nothing unless a sharded dim is cut
  kPlace,         // writes pieces over a base
  kAlong,         // along one dim, which is whole on every worker: scans and sorts
  kIndexed,       // reads or writes one dim, which is whole on every worker, at indices
  kAttention,     // of queries on whole keys
  kGrouped,       // products by groups, whose sizes are values
  kFourier,       // transforms along one dim, which is whole on every worker (fourier_op.h)
  kMatrices,      // of whole matrices, the last two dims (linalg_op.h)
  kWindows,       // over windows of the last dims (window_op.h)
  kComposite,     // a graph of other rows
  kRedistribute,
};

enum class DTypeRule : uint8_t {
  kAttribute,       // attributes.dtype
  kPromote,         // the operands' promotion
  kPromoteNumeric,  // promotion; bool is an error that says so
  kFloating,        // promotion, integers and bool become f64 (div, exp, sqrt, mean)
  kBool,            // operands promoted for the comparison, the result is bool
  kPredicate,       // promotion, bool becomes u8; the result is bool (isnan)
  kBits,            // promotion, to bool or an integer (bitwise ops)
  kInteger,         // promotion, to an integer (shifts)
  kLogical,         // every operand becomes bool, and so does the result (logical_and, any)
  kWhere,           // operand 0 bool, promotion of the others
  kSum,             // bool and i32 become i64 (the array API's default integer)
  kPart,            // promotion, bool is an error; of complex numbers the result is their parts' dtype (abs, real)
  kParts,           // promotion to f32 or f64; the result is complex numbers of two of them
  kIndex,           // i64
  kSame,            // operand 0's
};

// Which pending sums an op may leave pending (docs/architecture.md).
enum class PartialRule : uint8_t {
  kNone,      // operands are reduced first
  kLinear,    // P(sum), P(avg) pass: neg, + and - of the same kind, widening casts
  kScale,     // mul: one operand Partial, the other a scalar or Replicate there; div: numerator only
  kMonotone,  // increasing functions keep P(max) and P(min)
  kExtreme,   // maximum/minimum of the same kind
  kMove,      // moves of data keep any Partial
};

class GraphBuilder;
// Adds the graph of a call to the builder (graph_builder.h).
using CompositeFunction = void (*)(GraphBuilder&);

struct OpRow {
  OpId id;
  std::string_view name;  // the public name: "add"
  OpFamily family;
  int min_operands;
  int max_operands;
  std::string_view notation;          // matmul "mk,kn->mn"; "" otherwise (an einsum's is its call's)
  std::optional<ScalarOp> scalar_op;  // elementwise
  std::optional<ReduceOp> reduce_op;  // reductions (mean: sum, then divided by the global count)
  DTypeRule dtype_rule;
  PartialRule partial_rule;
  std::string_view signature;  // "add(x1, x2, /)"
  std::string_view doc;        // one or two sentences, array-API wording
  // "ts.add(ts.asarray([1, 2]), 10).tolist() => [11, 12]": help() shows it and a test runs it, in a session on four
  // workers with `mesh = session.init_device_mesh((4,))`; "" of a row that isn't a public function.
  std::string_view example = "";
  // "momentum: how much of the buffer stays.", a line each: the arguments that no other function has. help() knows x,
  // axis, dtype and others that many functions have (client/python/tessera/_help.py).
  std::string_view arguments = "";
  CompositeFunction composite = nullptr;  // kComposite
  bool is_map = false;  // of a composite: its graph has ops on each element alone, so segments fuse it
};

absl::Span<const OpRow> Catalog();
// InvalidArgument for an unknown number.
absl::StatusOr<const OpRow*> FindOp(OpId id);
absl::StatusOr<const OpRow*> FindOpByName(std::string_view name);
// For messages; "unknown op" for an unknown number.
std::string_view NameOf(OpId id);

}  // namespace tessera
