#pragma once

// Placement: what one mesh dim does to a tensor.
//
//   Placement::Shard(0)  "S(0)"     split along tensor dim 0 as torch.chunk does
//   Placement::Replicate()  "R"     every coordinate holds the same
//   Placement::Partial(ReduceOp::kSum)  "P(sum)"   the value is the sum over the coordinates
//
//   Placement::Shard(0, {3, 1, 5})  "S(0;3,1,5)"   split along tensor dim 0 into these sizes
//
// Explicit sizes are those of all pieces that the dim is cut into up to this mesh dim: one for each coordinate; or,
// where earlier mesh dims shard the same tensor dim, for each of their coordinates together, in row-major order. They
// say where the cuts are whatever the earlier ones would have been.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera {

class Scanner;

// The numbers are on the wire: append only.
// kBand, kBor and kBxor are of each bit of integers, and of bools: they need one of those dtypes. kAvg needs a floating
// one, kMin and kMax a real one.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAvg = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
};
inline constexpr ReduceOp kLastReduceOp = ReduceOp::kBxor;

inline bool IsBitwise(ReduceOp op) { return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor; }
std::string_view ToText(ReduceOp op);  // sum avg min max product band bor bxor
absl::StatusOr<ReduceOp> ParseReduceOp(std::string_view text);

class Placement {
 public:
  enum class Kind : uint8_t { kReplicate = 0, kShard = 1, kPartial = 2 };

  Placement() = default;  // Replicate
  static Placement Replicate() { return Placement(); }
  static Placement Shard(int dim) { return Placement(Kind::kShard, dim, ReduceOp::kSum); }
  // No sizes: as torch.chunk splits.
  static Placement Shard(int dim, std::vector<int64_t> sizes);
  static Placement Partial(ReduceOp op) { return Placement(Kind::kPartial, 0, op); }

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_shard(int dim) const { return is_shard() && dim_ == dim; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  int dim() const { return dim_; }                   // is_shard() only; may be negative before normalisation
  ReduceOp reduce_op() const { return reduce_op_; }  // is_partial() only
  bool has_sizes() const { return sizes_ != nullptr; }
  const std::vector<int64_t>& sizes() const;  // of a Shard; empty without explicit ones
  // The same cuts of another tensor dim. is_shard() only.
  Placement OnDim(int dim) const {
    Placement moved = *this;
    moved.dim_ = dim;
    return moved;
  }

  bool operator==(const Placement& other) const {
    return kind_ == other.kind_ && dim_ == other.dim_ && reduce_op_ == other.reduce_op_ &&
           (sizes_ == other.sizes_ || sizes() == other.sizes());
  }
  template <typename H>
  friend H AbslHashValue(H h, const Placement& p) {
    return H::combine(std::move(h), p.kind_, p.dim_, p.reduce_op_, p.sizes());
  }

 private:
  Placement(Kind kind, int dim, ReduceOp op) : kind_(kind), dim_(dim), reduce_op_(op) {}
  Kind kind_ = Kind::kReplicate;
  int dim_ = 0;
  ReduceOp reduce_op_ = ReduceOp::kSum;
  std::shared_ptr<const std::vector<int64_t>> sizes_;  // null: none
};

using Placements = std::vector<Placement>;

std::string ToText(const Placement& placement);
std::string ToText(const Placements& placements);  // "[S(0), R]"
absl::StatusOr<Placement> ParsePlacement(std::string_view text);
absl::StatusOr<Placements> ParsePlacements(std::string_view text);
// Take one from a longer text.
absl::StatusOr<Placement> ParsePlacement(Scanner& scanner);
absl::StatusOr<Placements> ParsePlacements(Scanner& scanner);

}  // namespace tessera
