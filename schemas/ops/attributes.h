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

// The names are in attribute_ids.h.
enum class AttributeId : uint16_t;
// An attribute whose values are of type T.
template <typename T>
struct AttributeKey {
  AttributeId id;
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
    // Numbers are compared by their bits: a NaN equals itself, so that a key with one is found again, and 0.0 differs
    // from -0.0, which an op may tell apart.
    bool operator==(const Entry& other) const;
  };

  // The attributes that were given, in the order of their ids, each once.
  absl::Span<const Entry> entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  const AttributeValue* Find(AttributeId id) const;
  // The value is of the attribute's kind. A value that says as much as its absence (false, an empty list or text) is
  // left out, so that equal calls have equal attributes; but for dtype, shape, mesh, placements and numbers.
  void Set(AttributeId id, AttributeValue value);
  void Clear(AttributeId id);

  // a.Get(attribute::dims), a.Set(attribute::dims, {0}). Flags, lists and texts that were not given are false and
  // empty; the others are null.
  template <typename T>
  View<T> Get(AttributeKey<T> key) const {
    const AttributeValue* found = Find(key.id);
    if constexpr (std::is_same_v<T, bool>) {
      return found != nullptr && std::get<bool>(*found);
    } else if constexpr (kIsEmptyWhenAbsent<T>) {
      static const T kNone;
      return found == nullptr ? kNone : std::get<T>(*found);
    } else {
      return found == nullptr ? nullptr : &std::get<T>(*found);
    }
  }
  template <typename T>
  void Set(AttributeKey<T> key, std::type_identity_t<T> value) {
    Set(key.id, AttributeValue(std::move(value)));
  }
  template <typename T>
  void Clear(AttributeKey<T> key) {
    Clear(key.id);
  }

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
  absl::InlinedVector<Entry, 1> entries_;
};

// A value of the attribute from what stands behind "name=" in a text; InvalidArgument that names it.
absl::StatusOr<AttributeValue> ParseAttribute(AttributeId id, std::string_view text);
// "dims=[0], keepdims=true": for plans, logs and errors.
std::string ToText(const Attributes& attributes);
// "start+size*step" of slices, the element of integers, "None": "0, 2+3, None".
std::string ToText(const std::vector<IndexItem>& index);

}  // namespace tessera
