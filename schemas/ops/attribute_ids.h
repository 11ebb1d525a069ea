#pragma once

// The attributes by name, each with the type of its value. A source file that names one includes this header; a header
// passes them on by attributes.h.
//
//   call.attributes.Set(attribute::dims, {0});
//   for (const int64_t dim : call.attributes.Get(attribute::dims)) ...

#include <cstdint>
#include <string>
#include <vector>

#include "schemas/ops/attributes.h"

namespace tessera {

// APPLY(name, kName, type of the value). The numbers, from 0 in this order, are on the wire: append only.
//   dtype            creation (required), astype, redistribute(dtype=), sum(dtype=)
//   shape            creation, reshape (no -1 here: the client resolves it)
//   mesh             creation, redistribute; elementwise: where the result is to be
//   placements       creation (absent: auto), redistribute; elementwise: of the result
//   placements_each  redistribute of several tensors: of each, in place of `placements`
//   dims             reductions: dims, normalised, increasing; permute_dims: the permutation; others: the dims they
//                    go along
//   keepdims         reductions
//   relabel          redistribute: the mesh's workers in the order that moves least
//   index            slice: one per input dim, kNewAxis between
//   notation         einsum: "bij,bjk->bik" (contraction.h)
//   mode             what the op says that it is; place: none, input or scalar
//   starts, step     place: where its pieces go (resolve_place.cc)
//   lengths, norm    Fourier transforms: lengths along dims, and what the result is divided by
//   upper, full_matrices, hermitian, rtol, unit_diagonal, transposed  linear algebra
//   kernel_size, stride, padding, dilation, groups, ceil_mode, count_include_pad  windows
//   p                a probability
//   precision        matmul, einsum: of f32 factors, full or tf32
#define TESSERA_ATTRIBUTES(APPLY)                                  \
  APPLY(notation, kNotation, std::string)                          \
  APPLY(shape, kShape, Shape)                                      \
  APPLY(index, kIndex, std::vector<IndexItem>)                     \
  APPLY(dims, kDims, std::vector<int64_t>)                         \
  APPLY(keepdims, kKeepdims, bool)                                 \
  APPLY(mesh, kMesh, Mesh)                                         \
  APPLY(placements, kPlacements, Placements)                       \
  APPLY(placements_each, kPlacementsEach, std::vector<Placements>) \
  APPLY(dtype, kDType, DType)                                      \
  APPLY(relabel, kRelabel, bool)                                   \
  APPLY(correction, kCorrection, double)                           \
  APPLY(k, kK, int64_t)                                            \
  APPLY(mode, kMode, std::string)                                  \
  APPLY(descending, kDescending, bool)                             \
  APPLY(stable, kStable, bool)                                     \
  APPLY(side, kSide, std::string)                                  \
  APPLY(eps, kEps, double)                                         \
  APPLY(include_initial, kIncludeInitial, bool)                    \
  APPLY(shift, kShift, std::vector<int64_t>)                       \
  APPLY(repeats, kRepeats, std::vector<int64_t>)                   \
  APPLY(approximate, kApproximate, std::string)                    \
  APPLY(num_classes, kNumClasses, int64_t)                         \
  APPLY(label_smoothing, kLabelSmoothing, double)                  \
  APPLY(ignore_index, kIgnoreIndex, int64_t)                       \
  APPLY(reduction, kReduction, std::string)                        \
  APPLY(is_causal, kIsCausal, bool)                                \
  APPLY(upper, kUpper, bool)                                       \
  APPLY(pad_width, kPadWidth, std::vector<int64_t>)                \
  APPLY(groups, kGroups, int64_t)                                  \
  APPLY(stride, kStride, std::vector<int64_t>)                     \
  APPLY(padding, kPadding, std::vector<int64_t>)                   \
  APPLY(dilation, kDilation, std::vector<int64_t>)                 \
  APPLY(ord, kOrd, std::string)                                    \
  APPLY(starts, kStarts, std::vector<int64_t>)                     \
  APPLY(step, kStep, std::vector<int64_t>)                         \
  APPLY(lengths, kLengths, std::vector<int64_t>)                   \
  APPLY(norm, kNorm, std::string)                                  \
  APPLY(full_matrices, kFullMatrices, bool)                        \
  APPLY(hermitian, kHermitian, bool)                               \
  APPLY(rtol, kRtol, double)                                       \
  APPLY(p, kP, double)                                             \
  APPLY(kernel_size, kKernelSize, std::vector<int64_t>)            \
  APPLY(ceil_mode, kCeilMode, bool)                                \
  APPLY(count_include_pad, kCountIncludePad, bool)                 \
  APPLY(transposed, kTransposed, bool)                             \
  APPLY(unit_diagonal, kUnitDiagonal, bool)                        \
  APPLY(precision, kPrecision, std::string)

enum class AttributeId : uint16_t {
#define TESSERA_ATTRIBUTE_ID(name, id, type) id,
  TESSERA_ATTRIBUTES(TESSERA_ATTRIBUTE_ID)
#undef TESSERA_ATTRIBUTE_ID
};

namespace attribute {
#define TESSERA_ATTRIBUTE_KEY(name, id, type) inline constexpr AttributeKey<type> name{AttributeId::id};
TESSERA_ATTRIBUTES(TESSERA_ATTRIBUTE_KEY)
#undef TESSERA_ATTRIBUTE_KEY
}  // namespace attribute

}  // namespace tessera
