#pragma once

// Attributes: what shapes an op's result besides its operands, as a list of named values: dims of a sum, the shape of a
// zeros. Which names there are, and of which kind each is, is one table for all ops; which of them an op takes is in
// its row's signature (catalog.h). They go over the wire, into plan keys and into texts as they are, so a row with a
// new attribute changes none of these.
//
//   Attributes a;
//   a.set_dims({0});              // "dims=[0]"
//   a.set_keepdims(true);         // "dims=[0], keepdims=true"
//   a.dtype() == nullptr          // not given
//
// Everything here is part of a plan's key; numbers that change from call to call are scalars of the OpCall.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// One item of a basic index after normalisation against the extent: NumPy's rules.
struct IndexItem {
  enum class Kind : uint8_t { kSlice = 0, kInteger = 1, kNewAxis = 2 };
  Kind kind = Kind::kSlice;
  int64_t start = 0;  // kSlice: first element; kInteger: the element. In range.
  int64_t size = 0;   // kSlice: number of elements in the result
  int64_t step = 1;   // kSlice: not 0, may be negative
  bool operator==(const IndexItem&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const IndexItem& i) {
    return H::combine(std::move(h), i.kind, i.start, i.size, i.step);
  }
};

// The order is that of AttributeValue's alternatives.
enum class AttributeKind : uint8_t {
  kFlag,
  kInteger,
  kNumber,
  kDType,
  kText,
  kIntegers,
  kShape,
  kMesh,
  kPlacements,
  kPlacementsEach,
  kIndex,
};
using AttributeValue = std::variant<bool, int64_t, double, DType, std::string, std::vector<int64_t>, Shape, Mesh,
                                    Placements, std::vector<Placements>, std::vector<IndexItem>>;

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

struct AttributeRow {
  std::string_view name;
  AttributeKind kind;
};
// By AttributeId.
absl::Span<const AttributeRow> AttributeTable();
// InvalidArgument for a number or a name that is none of them.
absl::StatusOr<AttributeId> FindAttribute(uint64_t number);
absl::StatusOr<AttributeId> FindAttributeByName(std::string_view name);
inline std::string_view NameOf(AttributeId id) { return AttributeTable()[static_cast<size_t>(id)].name; }
inline AttributeKind KindOf(AttributeId id) { return AttributeTable()[static_cast<size_t>(id)].kind; }

class Attributes {
  template <typename T>
  static constexpr bool kIsEmptyWhenAbsent =
      std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<int64_t>> ||
      std::is_same_v<T, std::vector<Placements>> || std::is_same_v<T, std::vector<IndexItem>>;
  template <typename T>
  using View =
      std::conditional_t<std::is_same_v<T, bool>, bool, std::conditional_t<kIsEmptyWhenAbsent<T>, const T&, const T*>>;

 public:
  struct Entry {
    AttributeId id;
    AttributeValue value;
    bool operator==(const Entry&) const = default;
  };

  // What was given, in the order of their ids, each once.
  absl::Span<const Entry> entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  const AttributeValue* Find(AttributeId id) const;
  // The value is of the attribute's kind. What says as much as its absence (false, an empty list or text) is left
  // out, so that equal calls have equal attributes; but for dtype, shape, mesh, placements and numbers.
  void Set(AttributeId id, AttributeValue value);
  void Clear(AttributeId id);

  // By name: a.dims(), a.set_dims({0}). Flags, lists and texts that were not given are false and empty; the others are
  // null.
#define TESSERA_ATTRIBUTE_ACCESS(name, id, type)                                          \
  View<type> name() const { return Get<type>(AttributeId::id); }                          \
  void set_##name(type value) { Set(AttributeId::id, AttributeValue(std::move(value))); } \
  void clear_##name() { Clear(AttributeId::id); }
  TESSERA_ATTRIBUTES(TESSERA_ATTRIBUTE_ACCESS)
#undef TESSERA_ATTRIBUTE_ACCESS

  // Bytes outside of this object.
  int64_t HeapBytes() const;

  bool operator==(const Attributes&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Attributes& a) {
    for (const Entry& entry : a.entries_) {
      h = std::visit([&](const auto& value) { return H::combine(std::move(h), entry.id, value); }, entry.value);
    }
    return H::combine(std::move(h), a.entries_.size());
  }

 private:
  template <typename T>
  View<T> Get(AttributeId id) const {
    const AttributeValue* found = Find(id);
    if constexpr (std::is_same_v<T, bool>) {
      return found != nullptr && std::get<bool>(*found);
    } else if constexpr (kIsEmptyWhenAbsent<T>) {
      static const T kNone;
      return found == nullptr ? kNone : std::get<T>(*found);
    } else {
      return found == nullptr ? nullptr : &std::get<T>(*found);
    }
  }

  absl::InlinedVector<Entry, 1> entries_;
};

// A value of the attribute from what stands behind "name=" in a text; InvalidArgument that names it.
absl::StatusOr<AttributeValue> ParseAttribute(AttributeId id, std::string_view text);
// "dims=[0], keepdims=true": for plans, logs and errors.
std::string ToText(const Attributes& attributes);
// "start+size*step" of slices, the element of integers, "None": "0, 2+3, None".
std::string ToText(const std::vector<IndexItem>& index);

}  // namespace tessera
