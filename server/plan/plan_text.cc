#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"
#include "server/plan/plan.h"

namespace tessera {
namespace {

constexpr std::string_view kBufferKinds[] = {"input", "temporary", "output", "transit"};
constexpr std::string_view kRoles[] = {"move", "reduce", "spread", "share"};
constexpr int kMaxParsedIndex = 1 << 20;  // docs/limits.md: max_parsed_index

template <typename Values>
std::string ListText(const Values& values, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) StrAppend(&text, i > 0 ? separator : "", values[i]);
  return text;
}

Strides DefaultStrides(const TensorSpec& spec) { return RowMajorStrides(MaxShardShape(spec)); }

constexpr std::string_view kIn = "in ", kOut = "out", kInOut = "inout", kTemporary = "tmp";

// By value: the word that its line begins with.
std::vector<std::string_view> WordsOf(const Plan& plan) {
  std::vector<std::string_view> words(plan.values.size(), kTemporary);
  const auto is_value = [&words](int id) { return id >= 0 && static_cast<size_t>(id) < words.size(); };
  for (const int id : plan.inputs) {
    if (is_value(id)) words[static_cast<size_t>(id)] = kIn;
  }
  for (const int id : plan.outputs) {
    if (!is_value(id)) continue;
    std::string_view& word = words[static_cast<size_t>(id)];
    word = word == kIn || word == kInOut ? kInOut : kOut;
  }
  return words;
}

std::string ValueLine(std::string_view word, size_t id, const PlanValue& value) {
  std::string text = StrCat("  ", word, " %", id, " : ", ToText(value.spec), " in b", value.buffer);
  if (value.offset != 0) StrAppend(&text, " offset ", value.offset);
  if (value.strides != DefaultStrides(value.spec)) StrAppend(&text, " strides [", ListText(value.strides, ","), "]");
  return text + "\n";
}

std::string DimLines(const Exchange& exchange) {
  std::string text;
  for (size_t d = 0; d < exchange.dims.size(); ++d) {
    const DimOverlay& dim = exchange.dims[d];
    StrAppend(&text, "    dim ", d, dim.source_step != 1 ? StrCat(" step ", dim.source_step) : "", ":");
    for (size_t i = 0; i < dim.entries.size(); ++i) {
      const OverlayEntry& e = dim.entries[i];
      StrAppend(&text, i > 0 ? ", " : " ", "[", e.start, ":", e.start + e.size, ") ", e.source_shard, "+",
                e.source_offset, " -> ", e.destination_shard, "+", e.destination_offset);
    }
    text += "\n";
  }
  return text;
}

std::string ContractText(const ContractStep& step) {
  std::string text = StrCat("  contract ", ToText(LocalOp(step.op)), " %", step.operands[0].value, ", %",
                            step.operands[1].value, " ", ToText(step.store), " %", step.output, "\n");
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const std::optional<Exchange>& pieces = step.operands[i].pieces;
    if (pieces.has_value())
      StrAppend(&text, "    pieces ", i, " ", ToText(step.operands[i].name), " as ", ToText(pieces->destination), "\n",
                DimLines(*pieces));
  }
  return text;
}

std::string ExchangeText(const Plan& plan, const ExchangeStep& step) {
  const Exchange& exchange = step.exchange;
  std::string text = StrCat("  ", ToText(step.start), ToText(step.name), " %", step.source, " -> %", step.destination,
                            " ", kRoles[static_cast<size_t>(exchange.role)]);
  if (exchange.reduces()) StrAppend(&text, "(", ToText(exchange.reduce_op), ")");
  if (step.exchange.delivery == Delivery::kPush) text += " pushed";
  if (exchange.far_takers == FarTakers::kOne && exchange.role != ExchangeRole::kHostGather) text += " once";
  if (exchange.far_takers == FarTakers::kRelays) text += " relayed";
  if (exchange.is_by_rounds()) {
    StrAppend(&text, " digit ", exchange.rounds.digit, " of ", ListText(exchange.rounds.factors, "x"));
  }
  if (exchange.source != plan.values[static_cast<size_t>(step.source)].spec) {
    StrAppend(&text, " of ", ToText(exchange.source));
  }
  text += "\n";
  return text + DimLines(exchange);
}

std::string LocalText(const LocalStep& step) {
  std::string text = StrCat("  ", ToText(step.start), "local ", ToText(step.op));
  for (size_t i = 0; i < step.inputs.size(); ++i) StrAppend(&text, i > 0 ? ", %" : " %", step.inputs[i]);
  StrAppend(&text, " ", ToText(step.store), " %", step.output);
  if (!step.scalars.empty()) StrAppend(&text, " scalars [", ListText(step.scalars, ","), "]");
  if (!step.counted_once.empty()) {
    std::vector<std::string> lists;
    for (const std::vector<int>& dims : step.counted_once) lists.push_back(StrCat("[", ListText(dims, ","), "]"));
    StrAppend(&text, " counted_once [", ListText(lists, ","), "]");
  }
  return text + "\n";
}

std::string Quoted(std::string_view keyword, const std::string& text) {
  return StrCat("  ", keyword, " \"", absl::CEscape(text), "\"\n");
}

std::string DoubleText(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

// The first line without its end, which is taken off `text`.
std::string_view TakeLine(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return line;
}

class PlanParser {
 public:
  absl::StatusOr<Plan> Parse(std::string_view text) {
    bool open = false;
    bool closed = false;
    while (!text.empty()) {
      const std::string_view line = TakeLine(text);
      Scanner scanner(line);
      if (scanner.AtEnd()) continue;
      if (closed) return scanner.Error("nothing after }");
      if (!open) {
        TESSERA_RETURN_IF_ERROR(scanner.Take("plan"));
        TESSERA_RETURN_IF_ERROR(scanner.Take("{"));
        open = true;
      } else if (scanner.TryTake("}")) {
        closed = true;
      } else {
        TESSERA_RETURN_IF_ERROR(Line(scanner));
      }
      TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
    }
    if (!closed) return absl::InvalidArgumentError("plan: expected plan { ... }");
    return std::move(plan_);
  }

 private:
  static absl::StatusOr<int> TakeIndex(Scanner& scanner) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t value, scanner.TakeInteger());
    if (value < 0 || value > kMaxParsedIndex) return scanner.Error("a small number");
    return static_cast<int>(value);
  }

  absl::StatusOr<int> TakeValue(Scanner& scanner) const {
    TESSERA_RETURN_IF_ERROR(scanner.Take("%"));
    TESSERA_ASSIGN_OR_RETURN(const int value, TakeIndex(scanner));
    if (value >= static_cast<int>(plan_.values.size())) return scanner.Error("a value that was declared");
    return value;
  }

  template <typename T>
  static absl::StatusOr<std::vector<T>> TakeIntegers(Scanner& scanner) {
    std::vector<T> values;
    TESSERA_RETURN_IF_ERROR(scanner.Take("["));
    if (scanner.TryTake("]")) return values;
    do {
      TESSERA_ASSIGN_OR_RETURN(const int64_t value, scanner.TakeInteger());
      if (!std::in_range<T>(value)) return scanner.Error("a smaller number before here");
      values.push_back(static_cast<T>(value));
    } while (scanner.TryTake(","));
    TESSERA_RETURN_IF_ERROR(scanner.Take("]"));
    return values;
  }

  // The rest of the line, from its next character that is not white space.
  static std::string_view Rest(Scanner& scanner) {
    scanner.TryTake("");
    return scanner.rest();
  }

  // The text up to the last `end` of the line, or all of it when `end` is empty.
  static absl::StatusOr<std::string> TakeUpTo(Scanner& scanner, std::string_view end) {
    const std::string_view rest = Rest(scanner);
    const size_t at = end.empty() ? rest.size() : rest.rfind(end);
    if (at == std::string_view::npos) return scanner.Error(end);
    std::string taken(rest.substr(0, at));
    TESSERA_RETURN_IF_ERROR(scanner.Take(taken));
    return taken;
  }

  static absl::StatusOr<std::string> TakeQuoted(Scanner& scanner) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("\""));
    const std::string_view rest = scanner.rest();  // white space counts here
    const size_t end = rest.rfind('"');
    std::string text;
    if (end == std::string_view::npos || !absl::CUnescape(AbslView(rest.substr(0, end)), &text)) {
      return scanner.Error("a quoted text");
    }
    TESSERA_RETURN_IF_ERROR(scanner.Take(Rest(scanner)));
    return text;
  }

  absl::Status Line(Scanner& scanner) {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view word, scanner.TakeIdentifier());
    if (word == "in" || word == "out" || word == "inout" || word == "tmp") return ValueLine(word, scanner);
    if (word == "local") return LocalLine(StepStart::kNewPhase, scanner);
    if (word == "contract") return ContractLine(scanner);
    if (word == "pieces") return PiecesLine(scanner);
    if (word == "dim") return DimLine(scanner);
    if (word == "inputs" || word == "outputs") {
      TESSERA_ASSIGN_OR_RETURN((word == "inputs" ? plan_.inputs : plan_.outputs), TakeIntegers<int>(scanner));
      return absl::OkStatus();
    }
    if (word == "hosts") return HostsLine(scanner);
    if (word == "donate") {
      Donation& donation = plan_.donations.emplace_back();
      TESSERA_ASSIGN_OR_RETURN(donation.input, TakeIndex(scanner));
      TESSERA_RETURN_IF_ERROR(scanner.Take("->"));
      TESSERA_ASSIGN_OR_RETURN(donation.output, TakeIndex(scanner));
      return absl::OkStatus();
    }
    if (word == "scalars") {
      TESSERA_ASSIGN_OR_RETURN(plan_.scalar_count, TakeIndex(scanner));
      return absl::OkStatus();
    }
    if (word == "flops") return FlopsLine(scanner);
    if (word == "grid") {
      TESSERA_ASSIGN_OR_RETURN(plan_.grid, TakeQuoted(scanner));
      return absl::OkStatus();
    }
    if (word == "implicit" || word == "runner_up") {
      TESSERA_ASSIGN_OR_RETURN(std::string line, TakeQuoted(scanner));
      (word == "implicit" ? plan_.implicit : plan_.runners_up).push_back(std::move(line));
      return absl::OkStatus();
    }
    if (word == StrCat("b", plan_.buffers.size())) return BufferLine(scanner);
    if (word == "with") {
      TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
      if (name == "local") return LocalLine(StepStart::kWithPrevious, scanner);
      return ExchangeLine(name, StepStart::kWithPrevious, scanner);
    }
    return ExchangeLine(word, StepStart::kNewPhase, scanner);
  }

  absl::Status HostsLine(Scanner& scanner) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> hosts, TakeIntegers<int32_t>(scanner));
    plan_.hosts = WorkerHosts(hosts);
    return absl::OkStatus();
  }

  absl::Status FlopsLine(Scanner& scanner) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text, TakeUpTo(scanner, ""));
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, plan_.flops);
    if (result.ec != std::errc() || result.ptr != end) return scanner.Error("a number before here");
    return absl::OkStatus();
  }

  absl::Status BufferLine(Scanner& scanner) {
    PlanBuffer buffer;
    TESSERA_RETURN_IF_ERROR(scanner.Take(":"));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view kind, scanner.TakeIdentifier());
    const auto* const found = std::find(std::begin(kBufferKinds), std::end(kBufferKinds), kind);
    if (found == std::end(kBufferKinds)) return scanner.Error("input, temporary, output or transit");
    buffer.kind = static_cast<PlanBuffer::Kind>(found - std::begin(kBufferKinds));
    TESSERA_ASSIGN_OR_RETURN(buffer.bytes, scanner.TakeInteger());
    TESSERA_RETURN_IF_ERROR(scanner.Take("bytes on"));
    TESSERA_ASSIGN_OR_RETURN(const std::string mesh, TakeUpTo(scanner, ""));
    TESSERA_ASSIGN_OR_RETURN(buffer.mesh, ParseMesh(mesh));
    plan_.buffers.push_back(std::move(buffer));
    return absl::OkStatus();
  }

  absl::Status ValueLine(std::string_view word, Scanner& scanner) {
    PlanValue value;
    TESSERA_RETURN_IF_ERROR(scanner.Take("%"));
    TESSERA_ASSIGN_OR_RETURN(const int id, TakeIndex(scanner));
    if (id != static_cast<int>(plan_.values.size())) return scanner.Error("values numbered from 0");
    TESSERA_RETURN_IF_ERROR(scanner.Take(":"));
    TESSERA_ASSIGN_OR_RETURN(const std::string spec, TakeUpTo(scanner, " in b"));
    TESSERA_ASSIGN_OR_RETURN(value.spec, ParseTensorSpec(spec));
    TESSERA_RETURN_IF_ERROR(scanner.Take("in b"));
    TESSERA_ASSIGN_OR_RETURN(value.buffer, TakeIndex(scanner));
    if (value.buffer >= static_cast<int>(plan_.buffers.size())) return scanner.Error("a buffer that was declared");
    if (scanner.TryTake("offset")) {
      TESSERA_ASSIGN_OR_RETURN(value.offset, scanner.TakeInteger());
    }
    value.strides = DefaultStrides(value.spec);
    if (scanner.TryTake("strides")) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, TakeIntegers<int64_t>(scanner));
      if (strides.size() != value.spec.shape.size()) return scanner.Error("one stride per dim");
      value.strides.assign(strides.begin(), strides.end());
    }
    if (word == "in" || word == "inout") plan_.inputs.push_back(id);
    if (word == "out" || word == "inout") plan_.outputs.push_back(id);
    plan_.values.push_back(std::move(value));
    return absl::OkStatus();
  }

  static absl::StatusOr<LocalOp> TakeLocalOp(Scanner& scanner) {
    // The op's text ends where its parentheses close.
    const std::string_view rest = Rest(scanner);
    size_t end = 0;
    for (int depth = 0; end < rest.size();) {
      const char c = rest[end++];
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      if (c == ')' && depth == 0) break;
    }
    TESSERA_ASSIGN_OR_RETURN(LocalOp op, ParseLocalOp(rest.substr(0, end)));
    TESSERA_RETURN_IF_ERROR(scanner.Take(rest.substr(0, end)));
    return op;
  }

  absl::Status ContractLine(Scanner& scanner) {
    ContractStep step;
    TESSERA_ASSIGN_OR_RETURN(const LocalOp op, TakeLocalOp(scanner));
    if (!std::holds_alternative<MatmulOp>(op)) return scanner.Error("a matmul before here");
    step.op = std::get<MatmulOp>(op);
    TESSERA_ASSIGN_OR_RETURN(step.operands[0].value, TakeValue(scanner));
    TESSERA_RETURN_IF_ERROR(scanner.Take(","));
    TESSERA_ASSIGN_OR_RETURN(step.operands[1].value, TakeValue(scanner));
    if (scanner.TryTake("+")) step.store = KernelStore::kAdd;
    TESSERA_RETURN_IF_ERROR(scanner.Take("->"));
    TESSERA_ASSIGN_OR_RETURN(step.output, TakeValue(scanner));
    plan_.steps.emplace_back(std::move(step));
    return absl::OkStatus();
  }

  // Where an operand of the contraction above lies; its dims follow.
  absl::Status PiecesLine(Scanner& scanner) {
    auto* step = plan_.steps.empty() ? nullptr : std::get_if<ContractStep>(&plan_.steps.back());
    TESSERA_ASSIGN_OR_RETURN(const int number, TakeIndex(scanner));
    if (step == nullptr || number > 1 || step->operands[1].pieces.has_value() ||
        step->operands[static_cast<size_t>(number)].pieces.has_value()) {
      return scanner.Error("pieces 0, pieces 1 under a contraction");
    }
    ContractOperand& operand = step->operands[static_cast<size_t>(number)];
    TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
    TESSERA_ASSIGN_OR_RETURN(operand.name, ParseCollective(name, scanner));
    TESSERA_RETURN_IF_ERROR(scanner.Take("as"));
    TESSERA_ASSIGN_OR_RETURN(const std::string spec, TakeUpTo(scanner, ""));
    Exchange& pieces = operand.pieces.emplace();
    pieces.source = plan_.values[static_cast<size_t>(operand.value)].spec;
    pieces.hosts = plan_.hosts;
    TESSERA_ASSIGN_OR_RETURN(pieces.destination, ParseTensorSpec(spec));
    return absl::OkStatus();
  }

  absl::Status LocalLine(StepStart start, Scanner& scanner) {
    LocalStep step;
    step.start = start;
    TESSERA_ASSIGN_OR_RETURN(step.op, TakeLocalOp(scanner));
    if (!scanner.TryTake("->")) {
      do {
        TESSERA_ASSIGN_OR_RETURN(const int input, TakeValue(scanner));
        step.inputs.push_back(input);
      } while (scanner.TryTake(","));
      if (scanner.TryTake("+")) step.store = KernelStore::kAdd;
      TESSERA_RETURN_IF_ERROR(scanner.Take("->"));
    }
    TESSERA_ASSIGN_OR_RETURN(step.output, TakeValue(scanner));
    if (scanner.TryTake("scalars")) {
      TESSERA_ASSIGN_OR_RETURN(step.scalars, TakeIntegers<int>(scanner));
    }
    if (scanner.TryTake("counted_once")) {
      TESSERA_RETURN_IF_ERROR(scanner.Take("["));
      do {
        TESSERA_ASSIGN_OR_RETURN(std::vector<int> dims, TakeIntegers<int>(scanner));
        step.counted_once.push_back(std::move(dims));
      } while (scanner.TryTake(","));
      TESSERA_RETURN_IF_ERROR(scanner.Take("]"));
    }
    plan_.steps.emplace_back(std::move(step));
    return absl::OkStatus();
  }

  static absl::StatusOr<Collective> ParseCollective(std::string_view word, const Scanner& scanner) {
    for (int name = 0; name <= static_cast<int>(Collective::kSlice); ++name) {
      if (ToText(static_cast<Collective>(name)) == word) return static_cast<Collective>(name);
    }
    return scanner.Error("a step");
  }

  static absl::Status TakeRounds(Scanner& scanner, Rounds& rounds) {
    TESSERA_ASSIGN_OR_RETURN(rounds.digit, TakeIndex(scanner));
    TESSERA_RETURN_IF_ERROR(scanner.Take("of"));
    do {
      TESSERA_ASSIGN_OR_RETURN(rounds.factors.emplace_back(), TakeIndex(scanner));
    } while (scanner.TryTake("x"));
    return absl::OkStatus();
  }

  absl::Status ExchangeLine(std::string_view word, StepStart start, Scanner& scanner) {
    ExchangeStep step;
    step.start = start;
    TESSERA_ASSIGN_OR_RETURN(step.name, ParseCollective(word, scanner));
    TESSERA_ASSIGN_OR_RETURN(step.source, TakeValue(scanner));
    TESSERA_RETURN_IF_ERROR(scanner.Take("->"));
    TESSERA_ASSIGN_OR_RETURN(step.destination, TakeValue(scanner));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view role, scanner.TakeIdentifier());
    const auto* const found = std::find(std::begin(kRoles), std::end(kRoles), role);
    if (found == std::end(kRoles)) return scanner.Error("move, reduce, spread or share");
    step.exchange.role = static_cast<ExchangeRole>(found - std::begin(kRoles));
    if (step.exchange.reduces()) {
      TESSERA_RETURN_IF_ERROR(scanner.Take("("));
      TESSERA_ASSIGN_OR_RETURN(const std::string_view op, scanner.TakeIdentifier());
      TESSERA_ASSIGN_OR_RETURN(step.exchange.reduce_op, ParseReduceOp(op));
      TESSERA_RETURN_IF_ERROR(scanner.Take(")"));
    }
    if (scanner.TryTake("pushed")) step.exchange.delivery = Delivery::kPush;
    const bool shares = step.exchange.role == ExchangeRole::kHostGather;
    if (scanner.TryTake("digit")) {
      TESSERA_RETURN_IF_ERROR(TakeRounds(scanner, step.exchange.rounds));
    } else if (scanner.TryTake("relayed")) {
      step.exchange.far_takers = FarTakers::kRelays;
    } else if (shares || scanner.TryTake("once")) {
      step.exchange.far_takers = FarTakers::kOne;
    }
    step.exchange.source = plan_.values[static_cast<size_t>(step.source)].spec;
    step.exchange.destination = plan_.values[static_cast<size_t>(step.destination)].spec;
    if (scanner.TryTake("of")) {
      TESSERA_ASSIGN_OR_RETURN(const std::string spec, TakeUpTo(scanner, ""));
      TESSERA_ASSIGN_OR_RETURN(step.exchange.source, ParseTensorSpec(spec));
    }
    step.exchange.hosts = HostsAmong(plan_.hosts, step.exchange.source.mesh, step.exchange.destination.mesh);
    plan_.steps.emplace_back(std::move(step));
    return absl::OkStatus();
  }

  // The exchange that the last lines began: a step's, or the last pieces of a contraction.
  Exchange* LastExchange() {
    if (plan_.steps.empty()) return nullptr;
    if (auto* step = std::get_if<ExchangeStep>(&plan_.steps.back())) return &step->exchange;
    auto* contract = std::get_if<ContractStep>(&plan_.steps.back());
    if (contract == nullptr) return nullptr;
    for (size_t i = contract->operands.size(); i-- > 0;) {
      if (contract->operands[i].pieces.has_value()) return &*contract->operands[i].pieces;
    }
    return nullptr;
  }

  absl::Status DimLine(Scanner& scanner) {
    Exchange* const opened = LastExchange();
    if (opened == nullptr) return scanner.Error("a dim under an exchange");
    Exchange& exchange = *opened;
    TESSERA_ASSIGN_OR_RETURN(const int dim, TakeIndex(scanner));
    if (dim != static_cast<int>(exchange.dims.size())) return scanner.Error("dims numbered from 0");
    DimOverlay overlay;
    if (scanner.TryTake("step")) {
      TESSERA_ASSIGN_OR_RETURN(overlay.source_step, scanner.TakeInteger());
    }
    TESSERA_RETURN_IF_ERROR(scanner.Take(":"));
    while (!scanner.AtEnd()) {
      if (!overlay.entries.empty()) TESSERA_RETURN_IF_ERROR(scanner.Take(","));
      OverlayEntry& e = overlay.entries.emplace_back();
      TESSERA_RETURN_IF_ERROR(scanner.Take("["));
      TESSERA_ASSIGN_OR_RETURN(e.start, scanner.TakeInteger());
      TESSERA_RETURN_IF_ERROR(scanner.Take(":"));
      TESSERA_ASSIGN_OR_RETURN(const int64_t stop, scanner.TakeInteger());
      if (__builtin_sub_overflow(stop, e.start, &e.size)) return scanner.Error("a range");
      TESSERA_RETURN_IF_ERROR(scanner.Take(")"));
      TESSERA_ASSIGN_OR_RETURN(e.source_shard, TakeIndex(scanner));
      TESSERA_RETURN_IF_ERROR(scanner.Take("+"));
      TESSERA_ASSIGN_OR_RETURN(e.source_offset, scanner.TakeInteger());
      TESSERA_RETURN_IF_ERROR(scanner.Take("->"));
      TESSERA_ASSIGN_OR_RETURN(e.destination_shard, TakeIndex(scanner));
      TESSERA_RETURN_IF_ERROR(scanner.Take("+"));
      TESSERA_ASSIGN_OR_RETURN(e.destination_offset, scanner.TakeInteger());
    }
    exchange.dims.push_back(std::move(overlay));
    return absl::OkStatus();
  }

  Plan plan_;
};

}  // namespace

std::string ToText(const Plan& plan) {
  std::string text = "plan {\n";
  if (plan.hosts.several()) StrAppend(&text, "  hosts [", ListText(plan.hosts.list(), ","), "]\n");
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const PlanBuffer& buffer = plan.buffers[i];
    StrAppend(&text, "  b", i, " : ", kBufferKinds[static_cast<size_t>(buffer.kind)], " ", buffer.bytes, " bytes on ",
              ToText(buffer.mesh), "\n");
  }
  const std::vector<std::string_view> words = WordsOf(plan);
  for (size_t i = 0; i < plan.values.size(); ++i) text += ValueLine(words[i], i, plan.values[i]);
  // The lines above say which values are inputs and outputs, in increasing order.
  if (!std::is_sorted(plan.inputs.begin(), plan.inputs.end())) {
    StrAppend(&text, "  inputs [", ListText(plan.inputs, ","), "]\n");
  }
  if (!std::is_sorted(plan.outputs.begin(), plan.outputs.end())) {
    StrAppend(&text, "  outputs [", ListText(plan.outputs, ","), "]\n");
  }
  for (const Step& step : plan.steps) {
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
      text += ExchangeText(plan, *exchange);
    } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
      text += ContractText(*contract);
    } else {
      text += LocalText(std::get<LocalStep>(step));
    }
  }
  for (const Donation& donation : plan.donations) {
    StrAppend(&text, "  donate ", donation.input, " -> ", donation.output, "\n");
  }
  if (plan.scalar_count > 0) StrAppend(&text, "  scalars ", plan.scalar_count, "\n");
  if (plan.flops != 0) StrAppend(&text, "  flops ", DoubleText(plan.flops), "\n");
  for (const std::string& line : plan.implicit) text += Quoted("implicit", line);
  if (!plan.grid.empty()) text += Quoted("grid", plan.grid);
  for (const std::string& line : plan.runners_up) text += Quoted("runner_up", line);
  return text + "}\n";
}

absl::StatusOr<Plan> ParsePlan(std::string_view text) { return PlanParser().Parse(text); }

}  // namespace tessera
