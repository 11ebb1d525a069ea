#pragma once

// PartRange: a part of a contraction that is split (split.h): a range of one outer letter that lies in one shard of
// the product on its grid and in one of the output. Nobody else than the workers of those shards has to do with it, so
// its specs are on their sub-meshes (server/plan/movement/sub_mesh.h), where the letter is whole.
//
//   product f64[8,6] @ mesh(2,2) [S(0), P(sum)] to output [S(0), S(1)], rows 4 and 5:
//   the product on mesh(1,2; workers=2,3) [R, P(sum)], the output there too, [R, S(1)], from row 0 of the shards on
//   ... columns 3 to 5: the product on all workers, the output on mesh(2,1; workers=1,3) [S(0), R]

#include <cstdint>
#include <string_view>
#include <vector>

#include "schemas/types/tensor_spec.h"
#include "server/plan/movement/sub_mesh.h"

namespace tessera {

struct PartRange {
  char letter = 0;
  int64_t start = 0;
  int64_t size = 0;
  // The mesh coordinates of those who multiply it and of those who get it; none: all. Their meshes, where there are
  // some, and where it starts in their shards.
  std::vector<MeshCoordinate> on_grid;
  std::vector<MeshCoordinate> in_output;
  Mesh grid_mesh;
  Mesh output_mesh;
  int64_t start_on_grid = 0;
  int64_t start_in_output = 0;
};

// The ranges, one for each pair of a product's and an output's shard along the letter that have elements in common; in
// increasing order, the first is the largest. None where there are more than `most` of them. Both specs have the dims
// that `letters` says, the letter among them.
std::vector<PartRange> CommonRanges(const TensorSpec& product, const TensorSpec& output, std::string_view letters,
                                    char letter, int64_t most);

// The ranges cut into pieces of at most so many elements.
std::vector<PartRange> CutRanges(const std::vector<PartRange>& ranges, int64_t most_elements);

// The spec of what the part's workers have of an operand, or of the product. The operand may lack the letter; its mesh
// is the product's.
TensorSpec OnGridIn(const PartRange& range, const TensorSpec& spec, std::string_view letters);
TensorSpec OutputIn(const PartRange& range, const TensorSpec& output, std::string_view letters);

}  // namespace tessera
