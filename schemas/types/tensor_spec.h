#pragma once

// TensorSpec: everything that is known of a tensor without its values.
//
//   TensorSpec spec = *ParseTensorSpec("f32[8192,1024] @ mesh(dp:2,tp:4) [S(0), R]");
//   ToText(spec) gives the same text back.
//
// A TensorSpec made by Make or Parse is valid: shape validated, one placement per mesh dim, shard
// dims in range and not negative, no Shard of a rank-0 tensor, no Partial(avg) of integers or bool,
// Partials of one tensor all of one kind.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "schemas/types/dtype.h"
#include "schemas/types/mesh.h"
#include "schemas/types/placement.h"
#include "schemas/types/shape.h"

namespace tessera {

struct TensorSpec {
  DType dtype = DType::kF32;
  Shape shape;
  Mesh mesh;
  Placements placements;

  // Validates and normalises negative shard dims. `op` opens every message.
  static absl::StatusOr<TensorSpec> Make(std::string_view op, DType dtype, absl::Span<const int64_t> shape,
                                         const Mesh& mesh, const Placements& placements);

  int rank() const { return static_cast<int>(shape.size()); }
  bool has_partial() const;
  // kSum when there is none.
  ReduceOp partial_op() const;
  bool operator==(const TensorSpec&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const TensorSpec& s) {
    return H::combine(std::move(h), s.dtype, s.shape, s.mesh, s.placements);
  }
};

// Leaves out explicit sizes that don't fit (layout.h), and those that say what torch.chunk does: equal layouts are
// equal specs.
void DropIdleSizes(TensorSpec& spec);

inline TensorSpec WithDType(TensorSpec spec, DType dtype) {
  spec.dtype = dtype;
  return spec;
}

// "f32[8192,1024]": for messages that don't need the mesh.
std::string ToShortText(const TensorSpec& spec);
std::string ToText(const TensorSpec& spec);
absl::StatusOr<TensorSpec> ParseTensorSpec(std::string_view text);
// Takes one from a longer text.
absl::StatusOr<TensorSpec> ParseTensorSpec(Scanner& scanner);

}  // namespace tessera
