#include "schemas/ops/graph_text.h"

#include <charconv>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kMarks = "|\n";
constexpr std::string_view kReturn = "return";

// The part before the first `mark`, which is taken off with it; all of the text where there is none.
std::string_view TakePart(std::string_view& text, char mark) {
  const size_t end = text.find(mark);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return part;
}

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "0+3*2", "4" or "None", as ToText writes the items of an index.
std::optional<IndexItem> ParseIndexItem(std::string_view text) {
  if (text == "None") return IndexItem{IndexItem::Kind::kNewAxis, 0, 1, 1};
  const bool is_slice = text.find('+') != std::string_view::npos;
  IndexItem item{is_slice ? IndexItem::Kind::kSlice : IndexItem::Kind::kInteger, 0, 1, 1};
  const std::optional<int64_t> start = ParseNumber<int64_t>(TakePart(text, '+'));
  if (!start.has_value()) return std::nullopt;
  item.start = *start;
  if (!is_slice) return item;
  const bool has_step = text.find('*') != std::string_view::npos;
  const std::optional<int64_t> size = ParseNumber<int64_t>(TakePart(text, '*'));
  const std::optional<int64_t> step = has_step ? ParseNumber<int64_t>(text) : 1;
  if (!size.has_value() || !step.has_value() || *size < 0 || *step == 0) return std::nullopt;
  item.size = *size;
  item.step = *step;
  return item;
}

absl::StatusOr<AttributeValue> ParseIndex(std::string_view text) {
  const std::string_view all = text;
  const auto bad = [&] { return absl::InvalidArgumentError(StrCat("index is not ", Printable(all, 40))); };
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return bad();
  text = text.substr(1, text.size() - 2);
  std::vector<IndexItem> index;
  while (!text.empty()) {
    const std::optional<IndexItem> item = ParseIndexItem(TakePart(text, ','));
    if (!item.has_value()) return bad();
    index.push_back(*item);
    if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  }
  return AttributeValue(std::move(index));
}

// "dims=[0]"; the name is always there, unlike in texts for readers.
std::string AttributeText(const Attributes::Entry& entry) {
  Attributes one;
  one.Set(entry.id, entry.value);
  const std::string text = ToText(one), name = StrCat(NameOf(entry.id), "=");
  return text.compare(0, name.size(), name) == 0 ? text : name + text;
}

absl::Status ReadAttribute(std::string_view text, Attributes& attributes) {
  const std::string_view name = TakePart(text, '=');
  TESSERA_ASSIGN_OR_RETURN(const AttributeId id, FindAttributeByName(name));
  if (attributes.Find(id) != nullptr) return absl::InvalidArgumentError(StrCat(name, " is given twice"));
  absl::StatusOr<AttributeValue> value =
      KindOf(id) == AttributeKind::kIndex ? ParseIndex(text) : ParseAttribute(id, text);
  TESSERA_RETURN_IF_ERROR(value.status());
  attributes.Set(id, *std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<int> ReadValue(std::string_view part) {
  const std::optional<int> value = part.empty() || part[0] != '%' ? std::nullopt : ParseNumber<int>(part.substr(1));
  if (value.has_value() && *value >= 0) return *value;
  return absl::InvalidArgumentError(StrCat("no value: ", Printable(part, 40)));
}

absl::Status ReadPart(std::string_view part, GraphLine& line) {
  const std::string_view rest = part.substr(part.empty() ? 0 : 1);
  switch (part.empty() ? '\0' : part[0]) {
    case '$': {
      TESSERA_ASSIGN_OR_RETURN(const Scalar scalar, ParseScalar(rest));
      line.operands.emplace_back(scalar);
      return absl::OkStatus();
    }
    case '#': {
      TESSERA_ASSIGN_OR_RETURN(const Scalar scalar, ParseScalar(rest));
      line.call.scalars.push_back(scalar);
      return absl::OkStatus();
    }
    case '@': return ReadAttribute(rest, line.call.attributes);
    default: break;
  }
  TESSERA_ASSIGN_OR_RETURN(const int value, ReadValue(part));
  line.operands.emplace_back(value);
  return absl::OkStatus();
}

absl::Status ReadLine(std::string_view text, GraphText& graph, bool& is_over) {
  const std::string_view name = TakePart(text, '|');
  is_over = name == kReturn;
  if (is_over) {
    while (!text.empty()) {
      TESSERA_ASSIGN_OR_RETURN(const int output, ReadValue(TakePart(text, '|')));
      graph.outputs.push_back(output);
    }
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOpByName(name));
  if (row->id == kGraphOp) return absl::InvalidArgumentError("a graph within a graph");
  GraphLine& line = graph.lines.emplace_back();
  line.call.op = row->id;
  while (!text.empty()) TESSERA_RETURN_IF_ERROR(ReadPart(TakePart(text, '|'), line));
  return absl::OkStatus();
}

}  // namespace

std::optional<std::string> WriteGraphLine(const GraphLine& line) {
  std::string text(NameOf(line.call.op));
  for (const GraphOperand& operand : line.operands) {
    if (const int* value = std::get_if<int>(&operand)) {
      StrAppend(&text, "|%", *value);
    } else {
      StrAppend(&text, "|$", ToText(std::get<Scalar>(operand)));
    }
  }
  for (const Scalar& scalar : line.call.scalars) StrAppend(&text, "|#", ToText(scalar));
  for (const Attributes::Entry& entry : line.call.attributes.entries()) {
    const std::string attribute = AttributeText(entry);
    if (attribute.find_first_of(kMarks) != std::string::npos) return std::nullopt;
    StrAppend(&text, "|@", attribute);
  }
  text += '\n';
  return text;
}

std::string WriteGraphOutputs(absl::Span<const int> outputs) {
  std::string text(kReturn);
  for (const int output : outputs) StrAppend(&text, "|%", output);
  return text;
}

absl::StatusOr<GraphText> ParseGraphText(std::string_view text) {
  if (text.size() > kMaxGraphTextBytes) {
    return absl::InvalidArgumentError(
        StrCat("its notation has ", text.size(), " bytes; max_graph_text_bytes is ", kMaxGraphTextBytes));
  }
  GraphText graph;
  for (size_t number = 0; !text.empty(); ++number) {
    if (number > kMaxGraphLines) {
      return absl::InvalidArgumentError(StrCat("its notation has more lines than max_graph_lines, ", kMaxGraphLines));
    }
    const std::string_view line = TakePart(text, '\n');
    bool is_over = false;
    const absl::Status status = ReadLine(line, graph, is_over);
    if (!status.ok()) {
      return absl::InvalidArgumentError(StrCat("line ", number, " of its notation, \"", Printable(line, 60),
                                               "\": ", StdView(status.message()).substr(0, 200)));
    }
    if (is_over && text.empty()) return graph;
    if (is_over) return absl::InvalidArgumentError("its notation goes on behind \"return\"");
  }
  return absl::InvalidArgumentError("its notation doesn't end with \"return|%VALUE\"");
}

}  // namespace tessera
