#include "schemas/ops/attributes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

template <typename T>
struct KindOfType;
#define TESSERA_KIND(type, kind)                                \
  template <>                                                   \
  struct KindOfType<type> {                                     \
    static constexpr AttributeKind kKind = AttributeKind::kind; \
  }
TESSERA_KIND(bool, kFlag);
TESSERA_KIND(int64_t, kInteger);
TESSERA_KIND(double, kNumber);
TESSERA_KIND(DType, kDType);
TESSERA_KIND(std::string, kText);
TESSERA_KIND(std::vector<int64_t>, kIntegers);
TESSERA_KIND(Shape, kShape);
TESSERA_KIND(Mesh, kMesh);
TESSERA_KIND(Placements, kPlacements);
TESSERA_KIND(std::vector<Placements>, kPlacementsEach);
TESSERA_KIND(std::vector<IndexItem>, kIndex);
#undef TESSERA_KIND

constexpr std::array kTable = {
#define TESSERA_ATTRIBUTE_ROW(name, id, type) AttributeRow{#name, KindOfType<type>::kKind},
    TESSERA_ATTRIBUTES(TESSERA_ATTRIBUTE_ROW)
#undef TESSERA_ATTRIBUTE_ROW
};

template <typename T>
int64_t HeapBytesOf(const T& value) {
  if constexpr (std::is_same_v<T, Mesh>) {
    return value.SharedBytes();
  } else if constexpr (std::is_same_v<T, std::vector<Placements>>) {
    int64_t bytes = 0;
    for (const Placements& each : value) bytes += HeapBytesOf(each) + static_cast<int64_t>(sizeof(each));
    return bytes;
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    return 0;
  } else {
    return static_cast<int64_t>(value.size() * sizeof(*value.data()));
  }
}

bool IsLikeAbsent(const AttributeValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return !*flag;
  if (const auto* text = std::get_if<std::string>(&value)) return text->empty();
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) return integers->empty();
  if (const auto* each = std::get_if<std::vector<Placements>>(&value)) return each->empty();
  if (const auto* index = std::get_if<std::vector<IndexItem>>(&value)) return index->empty();
  return false;
}

struct ValueText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return StrCat(value); }
  std::string operator()(double value) const { return ToText(Scalar::Float(value)); }
  std::string operator()(DType value) const { return std::string(ToText(value)); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const std::vector<int64_t>& value) const { return ToText(absl::MakeConstSpan(value)); }
  std::string operator()(const Shape& value) const { return ToText(absl::MakeConstSpan(value)); }
  std::string operator()(const Mesh& value) const { return ToText(value); }
  std::string operator()(const Placements& value) const { return ToText(value); }
  std::string operator()(const std::vector<Placements>& value) const {
    std::string text = "[";
    for (const Placements& each : value) StrAppend(&text, text.size() > 1 ? ", " : "", ToText(each));
    return text + "]";
  }
  std::string operator()(const std::vector<IndexItem>& value) const { return StrCat("[", ToText(value), "]"); }
};

// Attributes that a reader knows without their names.
bool IsNamed(AttributeId id) {
  switch (id) {
    case AttributeId::kNotation:
    case AttributeId::kShape:
    case AttributeId::kIndex:
    case AttributeId::kMesh:
    case AttributeId::kPlacements:
    case AttributeId::kPlacementsEach: return false;
    default: return true;
  }
}

}  // namespace

absl::Span<const AttributeRow> AttributeTable() { return kTable; }

absl::StatusOr<AttributeId> FindAttribute(uint64_t number) {
  if (number < kTable.size()) return static_cast<AttributeId>(number);
  return absl::InvalidArgumentError(StrCat("unknown attribute number ", number));
}

absl::StatusOr<AttributeId> FindAttributeByName(std::string_view name) {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].name == name) return static_cast<AttributeId>(i);
  }
  return absl::InvalidArgumentError(StrCat("unknown attribute \"", Printable(name, 40), "\""));
}

const AttributeValue* Attributes::Find(AttributeId id) const {
  for (const Entry& entry : entries_) {
    if (entry.id == id) return &entry.value;
  }
  return nullptr;
}

void Attributes::Set(AttributeId id, AttributeValue value) {
  TESSERA_CHECK(value.index() == static_cast<size_t>(KindOf(id)));
  Clear(id);
  if (IsLikeAbsent(value)) return;
  const auto after = std::find_if(entries_.begin(), entries_.end(), [id](const Entry& entry) { return entry.id > id; });
  entries_.insert(after, Entry{id, std::move(value)});
}

void Attributes::Clear(AttributeId id) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [id](const Entry& entry) { return entry.id == id; });
  if (found != entries_.end()) entries_.erase(found);
}

bool Attributes::Entry::operator==(const Entry& other) const {
  if (id != other.id || value.index() != other.value.index()) return false;
  if (const double* number = std::get_if<double>(&value)) {
    return std::bit_cast<uint64_t>(*number) == std::bit_cast<uint64_t>(std::get<double>(other.value));
  }
  return value == other.value;
}

int64_t Attributes::HeapBytes() const {
  int64_t bytes = static_cast<int64_t>(entries_.size() * sizeof(Entry));
  for (const Entry& entry : entries_) {
    bytes += std::visit([](const auto& value) { return HeapBytesOf(value); }, entry.value);
  }
  return bytes;
}

std::string ToText(const std::vector<IndexItem>& index) {
  std::string text;
  for (const IndexItem& item : index) {
    StrAppend(&text, text.empty() ? "" : ", ");
    switch (item.kind) {
      case IndexItem::Kind::kNewAxis: StrAppend(&text, "None"); break;
      case IndexItem::Kind::kInteger: StrAppend(&text, item.start); break;
      case IndexItem::Kind::kSlice:
        // start, number of elements, step: a stop can't be printed for every negative step.
        StrAppend(&text, item.start, "+", item.size, item.step == 1 ? "" : StrCat("*", item.step));
        break;
    }
  }
  return text;
}

std::string ToText(const Attributes& attributes) {
  std::string text;
  for (const Attributes::Entry& entry : attributes.entries()) {
    StrAppend(&text, text.empty() ? "" : ", ", IsNamed(entry.id) ? StrCat(NameOf(entry.id), "=") : "",
              std::visit(ValueText{}, entry.value));
  }
  return text;
}

absl::StatusOr<AttributeValue> ParseAttribute(AttributeId id, std::string_view text) {
  const auto bad = [&](std::string_view wanted) {
    return absl::InvalidArgumentError(StrCat(NameOf(id), " is ", wanted, ", not ", Printable(text, 40)));
  };
  switch (KindOf(id)) {
    case AttributeKind::kFlag:
      if (text != "true" && text != "false") return bad("true or false");
      return AttributeValue(text == "true");
    case AttributeKind::kInteger: {
      const absl::StatusOr<Scalar> number = ParseScalar(text);
      if (!number.ok() || Kind(RealOf(number->dtype())) == DTypeKind::kFloat) return bad("an integer");
      return AttributeValue(number->AsInt());
    }
    case AttributeKind::kNumber: {
      const absl::StatusOr<Scalar> number = ParseScalar(text);
      if (!number.ok() || Kind(number->dtype()) == DTypeKind::kComplex) return bad("a real number");
      return AttributeValue(number->AsDouble());
    }
    case AttributeKind::kDType: return ParseDType(text);
    case AttributeKind::kText: return AttributeValue(std::string(text));
    case AttributeKind::kIntegers: {
      TESSERA_ASSIGN_OR_RETURN(const Shape values, ParseShape(text));
      return AttributeValue(std::vector<int64_t>(values.begin(), values.end()));
    }
    case AttributeKind::kShape: return ParseShape(text);
    case AttributeKind::kMesh: return ParseMesh(text);
    case AttributeKind::kPlacements: return ParsePlacements(text);
    case AttributeKind::kPlacementsEach: {
      std::vector<Placements> each;
      for (size_t open = text.find('[', 1); open != std::string_view::npos; open = text.find('[', open + 1)) {
        const size_t close = text.find(']', open);
        if (close == std::string_view::npos) return bad("a list of placements");
        TESSERA_ASSIGN_OR_RETURN(each.emplace_back(), ParsePlacements(text.substr(open, close + 1 - open)));
      }
      return AttributeValue(std::move(each));
    }
    case AttributeKind::kIndex: break;
  }
  return bad("nothing that has a text");
}

}  // namespace tessera
