// From text to code: names become registers, labels places. A function that is called is written in the place of each
// call: PTX of nvcc has no recursion.

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/code.h"
#include "tests/emulator/cuda/ptx/ptx.h"
#include "tests/emulator/cuda/ptx/statements.h"

namespace tessera::ptx {
namespace {

using Parts = std::vector<std::string>;

bool Has(const Parts& parts, std::string_view part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}
bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }
int BytesOf(std::string_view type) { return type == "pred" ? 1 : std::atoi(std::string(type.substr(1)).c_str()) / 8; }
ValueClass ClassOf(std::string_view type) {
  return type[0] == 'f' ? ValueClass::kFloat : type[0] == 's' ? ValueClass::kSigned : ValueClass::kUnsigned;
}

// ".param .align 8 .b8 name[80]", ".shared .align 4 .f32 tile[1056]", ".global .b32 table[2] = {1, 2}".
struct Declaration {
  std::string name;
  int64_t align = 1;
  int64_t bytes = 0;
  int element_bytes = 1;
  bool is_unsized = false;
  std::vector<uint64_t> values;
};
Declaration DeclarationOf(std::string_view text) {
  Declaration d;
  const size_t equals = std::min(text.find('='), text.size());
  if (equals < text.size()) {
    std::string_view list = Trim(text.substr(equals + 1));
    if (!list.empty() && list.front() == '{') list = list.substr(1, list.size() - 2);
    for (const std::string& value : SplitOperands(list)) d.values.push_back(std::strtoull(value.c_str(), nullptr, 0));
  }
  std::string_view name;
  Parts words;
  for (std::string& word : Split(Trim(text.substr(0, equals)), ' ')) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  int64_t align = 0;
  for (size_t w = 0; w + 1 < words.size(); ++w) {
    if (words[w] == ".align") {
      align = std::atoll(words[w + 1].c_str());
    } else if (words[w].size() > 2 && words[w][0] == '.' && std::isdigit(static_cast<unsigned char>(words[w].back()))) {
      d.element_bytes = BytesOf(std::string_view(words[w]).substr(1));
    }
  }
  name = words.back();
  int64_t count = 1;
  if (const size_t bracket = name.find('['); bracket != std::string_view::npos) {
    count = std::atoll(std::string(name.substr(bracket + 1)).c_str());
    d.is_unsized = name.substr(bracket) == "[]";
    name = name.substr(0, bracket);
  }
  d.name = std::string(name);
  d.bytes = d.is_unsized ? 0 : count * d.element_bytes;
  d.align = align == 0 ? d.element_bytes : align;
  return d;
}

// ".visible .entry name(...)" or ".func (...) name(...)".
struct Signature {
  std::string name;
  std::vector<std::string> results, parameters;  // declarations
};
Signature SignatureOf(std::string_view header) {
  Signature s;
  const bool is_entry = header.find(".entry") != std::string_view::npos;
  std::string_view rest = Trim(header.substr(header.find(is_entry ? ".entry" : ".func") + (is_entry ? 6 : 5)));
  const auto list = [&rest] {
    const size_t close = rest.find(')');
    std::vector<std::string> declarations = SplitOperands(rest.substr(1, close - 1));
    rest = Trim(rest.substr(close + 1));
    return declarations;
  };
  if (!rest.empty() && rest[0] == '(') s.results = list();
  const size_t open = std::min(rest.find('('), rest.size());
  s.name = std::string(Trim(rest.substr(0, open)));
  rest = rest.substr(open);
  if (!rest.empty()) s.parameters = list();
  return s;
}

struct Symbol {
  int32_t slot = kNoRegister;
  Space space = Space::kGeneric;
};
struct Function {
  Signature signature;
  const Item* item = nullptr;
};
// The symbols that all kernels of a module share.
struct Globals {
  std::map<std::string, Function, std::less<>> functions;
  std::map<std::string, std::shared_ptr<Variable>, std::less<>> variables;
  std::map<std::string, Declaration, std::less<>> shared;
};

constexpr std::string_view kSpecials[kSpecialRegisters] = {
    "%tid.x",   "%tid.y",   "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z", "%ctaid.x",
    "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"};
constexpr size_t kMaxCallDepth = 8;

class KernelParser {
 public:
  KernelParser(const Globals& globals, Kernel* kernel, Code* code) : globals_(globals), kernel_(kernel), code_(code) {}

  absl::Status Parse(const Function& entry) {
    carry_ = NewRegister(0);
    Scope scope;
    for (const std::string& text : entry.signature.parameters) {
      const Declaration d = DeclarationOf(text);
      int64_t& at = kernel_->parameter_bytes;
      at = (at + d.align - 1) / d.align * d.align;
      scope.symbols[d.name] = {NewRegister(static_cast<uint64_t>(at)), Space::kParameter};
      at += d.bytes;
    }
    TESSERA_RETURN_IF_ERROR(ParseBody(*entry.item, &scope));
    Instruction end;
    end.kind = InstructionKind::kReturn;
    end.line = code_->instructions.empty() ? entry.item->line : code_->instructions.back().line;
    code_->instructions.push_back(end);
    // Dynamic shared memory lies behind what is declared.
    for (const int32_t slot : dynamic_shared_) {
      values_[static_cast<size_t>(slot)] = static_cast<uint64_t>((kernel_->shared_bytes + 15) / 16 * 16);
    }
    if (!dynamic_shared_.empty()) kernel_->shared_bytes = (kernel_->shared_bytes + 15) / 16 * 16;
    FindConstants();
    return absl::OkStatus();
  }

 private:
  struct Scope {
    std::map<std::string, Symbol, std::less<>> symbols;
    std::map<std::string, int32_t, std::less<>> labels;
    std::vector<std::pair<size_t, std::string>> jumps;  // instruction, label
    std::vector<std::pair<size_t, Parts>> tables;       // table, labels
    std::map<std::string, size_t, std::less<>> table_numbers;
    std::vector<size_t> returns;  // of a function that is called
    std::string last_label;
    size_t depth = 0;
    // By scope within the body: what the names stood for that it declares anew.
    std::vector<std::vector<std::pair<std::string, std::optional<Symbol>>>> shadowed;
  };

  absl::Status ParseBody(const Item& item, Scope* scope) {
    for (const Statement& statement : item.statements) {
      TESSERA_RETURN_IF_ERROR(ParseStatement(statement, scope));
      if (error_.empty()) continue;
      return absl::InvalidArgumentError(
          StrCat("ptx: ", kernel_->name, " line ", statement.line, ": ", error_, ": ", statement.text));
    }
    const auto place_of = [&](const std::string& label) -> std::optional<int32_t> {
      const auto found = scope->labels.find(label);
      if (found == scope->labels.end()) return std::nullopt;
      return found->second;
    };
    const auto unknown = [&](const std::string& label) {
      return absl::InvalidArgumentError(StrCat("ptx: ", kernel_->name, ": there is no label ", label));
    };
    for (const auto& [instruction, label] : scope->jumps) {
      Instruction& i = code_->instructions[instruction];
      if (i.kind == InstructionKind::kBranchTable) {
        const auto found = scope->table_numbers.find(label);
        if (found == scope->table_numbers.end()) return unknown(label);
        i.target = static_cast<int32_t>(found->second);
        continue;
      }
      const std::optional<int32_t> place = place_of(label);
      if (!place.has_value()) return unknown(label);
      i.target = *place;
    }
    for (const auto& [table, labels] : scope->tables) {
      for (const std::string& label : labels) {
        const std::optional<int32_t> place = place_of(label);
        if (!place.has_value()) return unknown(label);
        code_->tables[table].push_back(*place);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParseStatement(const Statement& statement, Scope* scope) {
    const std::string& text = statement.text;
    if (text == "{") {
      scope->shadowed.emplace_back();
      return absl::OkStatus();
    }
    if (text == "}") {
      LeaveScope(scope);
      return absl::OkStatus();
    }
    if (text.back() == ':') {
      scope->last_label = text.substr(0, text.size() - 1);
      scope->labels[scope->last_label] = static_cast<int32_t>(code_->instructions.size());
      return absl::OkStatus();
    }
    if (text[0] == '.') {
      Directive(text, scope);
      return absl::OkStatus();
    }
    return ParseInstruction(statement, scope);
  }

  static void LeaveScope(Scope* scope) {
    for (auto& [name, before] : scope->shadowed.back()) {
      if (before.has_value()) {
        scope->symbols[name] = *before;
      } else {
        scope->symbols.erase(name);
      }
    }
    scope->shadowed.pop_back();
  }
  // A register that the body declares is made by its first use; a scope in the body has registers of its own.
  void DeclareRegisters(const std::string& text, Scope* scope) {
    if (scope->shadowed.empty()) return;
    const std::string_view rest = Trim(std::string_view(text).substr(4));
    for (const std::string& declared : Split(rest.substr(std::min(rest.find(' '), rest.size())), ',')) {
      const std::string name(Trim(declared));
      const auto found = scope->symbols.find(name);
      scope->shadowed.back().push_back(
          {name, found == scope->symbols.end() ? std::nullopt : std::optional<Symbol>(found->second)});
      scope->symbols[name] = {NewRegister(0), Space::kGeneric};
    }
  }

  void Directive(const std::string& text, Scope* scope) {
    if (StartsWith(text, ".reg")) return DeclareRegisters(text, scope);
    if (StartsWith(text, ".branchtargets")) {
      scope->table_numbers[scope->last_label] = code_->tables.size();
      scope->tables.push_back({code_->tables.size(), SplitOperands(std::string_view(text).substr(14))});
      code_->tables.emplace_back();
    } else if (StartsWith(text, ".shared")) {
      DeclareShared(DeclarationOf(text), scope);
    } else if (StartsWith(text, ".local") || StartsWith(text, ".param")) {
      const Declaration d = DeclarationOf(text);
      int64_t& at = code_->local_bytes;
      at = (at + d.align - 1) / d.align * d.align;
      scope->symbols[d.name] = {NewRegister(static_cast<uint64_t>(at)), Space::kLocal};
      at += d.bytes;
    }
  }

  Symbol DeclareShared(const Declaration& d, Scope* scope) {
    int64_t& at = kernel_->shared_bytes;
    at = (at + d.align - 1) / d.align * d.align;
    const Symbol symbol = {NewRegister(static_cast<uint64_t>(at)), Space::kShared};
    if (d.is_unsized) dynamic_shared_.push_back(symbol.slot);
    at += d.bytes;
    scope->symbols[d.name] = symbol;
    return symbol;
  }

  int32_t NewRegister(uint64_t value) {
    values_.push_back(value);
    return static_cast<int32_t>(values_.size() - 1);
  }
  // Registers that no instruction writes have values from the start.
  void FindConstants() {
    std::vector<bool> is_written(values_.size());
    is_written[static_cast<size_t>(carry_)] = true;
    for (const Instruction& i : code_->instructions) {
      for (const int32_t slot : i.to) {
        if (slot != kNoRegister) is_written[static_cast<size_t>(slot)] = true;
      }
    }
    for (const auto& [slot, which] : code_->special) is_written[static_cast<size_t>(slot)] = true;
    code_->registers = values_.size();
    for (size_t slot = 0; slot < values_.size(); ++slot) {
      if (!is_written[slot]) code_->constants.push_back({static_cast<int32_t>(slot), values_[slot]});
    }
  }

  // The register of a name or a number.
  Symbol SymbolOf(std::string_view raw, Scope* scope) {
    const std::string name(Trim(raw));
    if (name == "_") return {};
    if (const auto found = scope->symbols.find(name); found != scope->symbols.end()) return found->second;
    return scope->symbols[name] = MakeSymbol(name, scope);
  }
  int32_t Slot(std::string_view raw, Scope* scope) { return SymbolOf(raw, scope).slot; }

  Symbol MakeSymbol(const std::string& name, Scope* scope) {
    for (int s = 0; s < kSpecialRegisters; ++s) {
      if (name != kSpecials[s]) continue;
      const int32_t slot = NewRegister(0);
      code_->special.push_back({slot, s});
      return {slot, Space::kGeneric};
    }
    if (name == "WARP_SZ") return {NewRegister(32), Space::kGeneric};
    if (const auto shared = globals_.shared.find(name); shared != globals_.shared.end()) {
      return DeclareShared(shared->second, scope);
    }
    if (const auto variable = globals_.variables.find(name); variable != globals_.variables.end()) {
      if (std::find(code_->variables.begin(), code_->variables.end(), variable->second) == code_->variables.end()) {
        code_->variables.push_back(variable->second);
      }
      return {NewRegister(variable->second->address), Space::kConstant};
    }
    const bool is_number = std::isdigit(static_cast<unsigned char>(name[0])) != 0 || name[0] == '-';
    if (!is_number && (name[0] != '%' || name.find('.') != std::string::npos)) {
      const bool is_register = std::isalpha(static_cast<unsigned char>(name[0])) != 0 || name[0] == '_';
      if (!is_register) error_ = StrCat("what is ", name);
      return {NewRegister(0), Space::kGeneric};
    }
    if (!is_number) return {NewRegister(0), Space::kGeneric};
    if (StartsWith(name, "0f") || StartsWith(name, "0F") || StartsWith(name, "0d") || StartsWith(name, "0D")) {
      return {NewRegister(std::strtoull(name.c_str() + 2, nullptr, 16)), Space::kGeneric};
    }
    const uint64_t value = name[0] == '-' ? static_cast<uint64_t>(std::strtoll(name.c_str(), nullptr, 0))
                                          : std::strtoull(name.c_str(), nullptr, 0);
    return {NewRegister(value), Space::kGeneric};
  }

  // "{%f1, %f2}" or one.
  template <size_t kSize>
  uint8_t Registers(std::string_view text, Scope* scope, std::array<int32_t, kSize>* slots) {
    if (text.empty() || text[0] != '{') {
      (*slots)[0] = Slot(text, scope);
      return 1;
    }
    uint8_t count = 0;
    for (const std::string& name : Split(text.substr(1, text.size() - 2), ',')) {
      if (count == kSize) error_ = "a vector that is too long";
      if (count < kSize) (*slots)[count++] = Slot(name, scope);
    }
    return count;
  }

  void Address(std::string_view text, Scope* scope, Instruction* i) {
    std::string_view inside = Trim(text.substr(1, text.size() - 2));
    if (const size_t plus = inside.find('+'); plus != std::string_view::npos) {
      i->offset = std::strtoll(std::string(Trim(inside.substr(plus + 1))).c_str(), nullptr, 0);
      inside = Trim(inside.substr(0, plus));
    }
    const Symbol symbol = SymbolOf(inside, scope);
    i->from[4] = symbol.slot;
    if (i->space == Space::kParameter && symbol.space == Space::kLocal) i->space = Space::kLocal;
  }

  absl::Status ParseInstruction(const Statement& statement, Scope* scope) {
    Instruction i;
    i.line = statement.line;
    std::string_view text = statement.text;
    if (text[0] == '@') {
      const size_t end = text.find_first_of(" \t");
      std::string_view guard = text.substr(1, end - 1);
      i.is_guard_negated = guard[0] == '!';
      i.guard = Slot(i.is_guard_negated ? guard.substr(1) : guard, scope);
      text = Trim(text.substr(end));
    }
    const size_t end = std::min(text.find_first_of(" \t"), text.size());
    const Parts parts = Split(text.substr(0, end), '.');
    const std::vector<std::string> operands = SplitOperands(text.substr(end));
    if (parts[0] == "call") return Call(operands, i, scope);
    if (!Control(parts, operands, scope, &i) && !MemoryAccess(parts, operands, scope, &i) &&
        !WarpOperation(parts, operands, scope, &i) && !VectorMove(parts, operands, scope, &i)) {
      Compute(parts, operands, scope, &i);
    }
    code_->instructions.push_back(i);
    return absl::OkStatus();
  }

  bool Control(const Parts& parts, const std::vector<std::string>& operands, Scope* scope, Instruction* i) {
    const std::string& name = parts[0];
    if (name == "bra") {
      i->kind = InstructionKind::kBranch;
      scope->jumps.push_back({code_->instructions.size(), operands[0]});
    } else if (name == "brx") {
      i->kind = InstructionKind::kBranchTable;
      i->from[0] = Slot(operands[0], scope);
      scope->jumps.push_back({code_->instructions.size(), operands[1]});
    } else if (name == "ret" && scope->depth > 0) {
      i->kind = InstructionKind::kBranch;
      scope->returns.push_back(code_->instructions.size());
    } else if (name == "ret" || name == "exit") {
      i->kind = InstructionKind::kReturn;
    } else if (name == "trap") {
      i->kind = InstructionKind::kTrap;
    } else if ((name == "bar" || name == "barrier") && Has(parts, "warp")) {
      i->kind = InstructionKind::kWarpBarrier;
      i->from[0] = Slot(operands[0], scope);
    } else if (name == "bar" || name == "barrier") {
      i->kind = InstructionKind::kBarrier;
      if (!Has(parts, "sync") || operands.size() != 1 || operands[0] != "0") error_ = "a barrier that isn't emulated";
    } else if ((name == "fence" || name == "membar") && IsBetweenBlocks(parts)) {
      i->kind = InstructionKind::kFence;
      code_->orders_blocks = true;
    } else {
      return false;
    }
    return true;
  }

  static bool IsBetweenBlocks(const Parts& fence) {
    return fence[0] == "membar" ? Has(fence, "gl") || Has(fence, "sys")
                                : (Has(fence, "acq_rel") || Has(fence, "sc")) && !Has(fence, "cta");
  }

  // An access in the scope of a block is as a plain one to other blocks.
  static MemoryOrder OrderOf(const Parts& parts, bool is_strong) {
    return !is_strong || Has(parts, "cta") ? MemoryOrder::kPlain
           : Has(parts, "acq_rel")         ? MemoryOrder::kAcquireRelease
           : Has(parts, "acquire")         ? MemoryOrder::kAcquire
           : Has(parts, "release")         ? MemoryOrder::kRelease
                                           : MemoryOrder::kRelaxed;
  }

  bool MemoryAccess(const Parts& parts, const std::vector<std::string>& operands, Scope* scope, Instruction* i) {
    const std::string &name = parts[0], &type = parts.back();
    const bool is_load = name == "ld" || name == "ldu", is_atomic = name == "atom" || name == "red";
    if (!is_load && !is_atomic && name != "st") return false;
    i->bytes = static_cast<uint8_t>(BytesOf(type));
    i->value_class = ClassOf(type);
    i->space = Has(parts, "global")   ? Space::kGlobal
               : Has(parts, "shared") ? Space::kShared
               : Has(parts, "local")  ? Space::kLocal
               : Has(parts, "const")  ? Space::kConstant
               : Has(parts, "param")  ? Space::kParameter
                                      : Space::kGeneric;
    const bool is_strong =
        is_atomic || Has(parts, "acquire") || Has(parts, "release") || Has(parts, "relaxed") || Has(parts, "volatile");
    i->is_synchronizing = is_strong && (i->space == Space::kGlobal || i->space == Space::kGeneric);
    code_->is_synchronizing = code_->is_synchronizing || i->is_synchronizing;
    i->order = OrderOf(parts, is_strong);
    code_->orders_blocks = code_->orders_blocks || (i->is_synchronizing && i->order > MemoryOrder::kRelaxed);
    if (is_load) {
      i->kind = InstructionKind::kLoad;
      i->count = Registers(operands[0], scope, &i->to);
      Address(operands[1], scope, i);
    } else if (!is_atomic) {
      i->kind = InstructionKind::kStore;
      Address(operands[0], scope, i);
      std::array<int32_t, 4> values = {};
      i->count = Registers(operands[1], scope, &values);
      std::copy(values.begin(), values.end(), i->from.begin());
    } else {
      i->kind = InstructionKind::kAtomic;
      const size_t first = name == "atom" ? 1 : 0;
      if (first == 1) i->to[0] = Slot(operands[0], scope);
      Address(operands[first], scope, i);
      for (size_t k = first + 1; k < operands.size(); ++k) i->from[k - first - 1] = Slot(operands[k], scope);
      AtomicOf(parts, i);
    }
    return true;
  }

  void AtomicOf(const Parts& parts, Instruction* i) {
    constexpr std::pair<std::string_view, AtomicOp> kNames[] = {
        {"add", AtomicOp::kAdd}, {"exch", AtomicOp::kExchange}, {"cas", AtomicOp::kCompareAndSwap},
        {"max", AtomicOp::kMax}, {"min", AtomicOp::kMin},       {"or", AtomicOp::kOr},
        {"and", AtomicOp::kAnd}, {"xor", AtomicOp::kXor}};
    for (const auto& [name, op] : kNames) {
      if (!Has(parts, name)) continue;
      i->atomic = op;
      return;
    }
    error_ = "an atomic that isn't emulated";
  }

  bool WarpOperation(const Parts& parts, const std::vector<std::string>& operands, Scope* scope, Instruction* i) {
    const std::string& name = parts[0];
    if (name == "activemask") {
      i->kind = InstructionKind::kActiveMask;
      i->to[0] = Slot(operands[0], scope);
      return true;
    }
    if (name == "vote") {
      i->kind = InstructionKind::kVote;
      i->mode = static_cast<uint8_t>(Has(parts, "any")   ? VoteMode::kAny
                                     : Has(parts, "all") ? VoteMode::kAll
                                                         : VoteMode::kBallot);
      i->to[0] = Slot(operands[0], scope);
      for (size_t k = 0; k < 2; ++k) i->from[k] = Slot(operands[k + 1], scope);
      return true;
    }
    if (name != "shfl") return false;
    i->kind = InstructionKind::kShuffle;
    i->mode = static_cast<uint8_t>(Has(parts, "idx")    ? ShuffleMode::kIndex
                                   : Has(parts, "up")   ? ShuffleMode::kUp
                                   : Has(parts, "down") ? ShuffleMode::kDown
                                                        : ShuffleMode::kButterfly);
    Results(operands[0], scope, i);
    for (size_t k = 0; k < 4; ++k) i->from[k] = Slot(operands[k + 1], scope);
    return true;
  }

  // "%p1" or "%p1|%p2".
  void Results(const std::string& text, Scope* scope, Instruction* i) {
    const Parts results = Split(text, '|');
    for (size_t k = 0; k < results.size() && k < 2; ++k) i->to[k] = Slot(results[k], scope);
  }

  // mov.b64 %rd1, {%r1, %r2} and back.
  bool VectorMove(const Parts& parts, const std::vector<std::string>& operands, Scope* scope, Instruction* i) {
    if (parts[0] != "mov" || operands.size() != 2) return false;
    const bool packs = operands[1][0] == '{', unpacks = operands[0][0] == '{';
    if (!packs && !unpacks) return false;
    std::array<int32_t, 4> values = {kNoRegister, kNoRegister, kNoRegister, kNoRegister};
    i->count = Registers(packs ? operands[1] : operands[0], scope, &values);
    i->mode = static_cast<uint8_t>(8 * BytesOf(parts.back()) / i->count);
    if (packs) {
      std::copy(values.begin(), values.end(), i->from.begin());
      i->to[0] = Slot(operands[0], scope);
    } else {
      i->to = values;
      i->from[0] = Slot(operands[1], scope);
    }
    i->operation = OperationOf({packs ? "pack" : "unpack"}, i);
    return true;
  }

  void Compute(const Parts& parts, const std::vector<std::string>& operands, Scope* scope, Instruction* i) {
    i->operation = OperationOf(parts, i);
    if (i->operation == nullptr) {
      error_ = "not emulated";
      return;
    }
    if (operands.empty()) return;  // a fence of a block
    Results(operands[0], scope, i);
    for (size_t k = 1; k < operands.size() && k <= 4; ++k) {
      const bool is_negated = operands[k][0] == '!';
      if (is_negated) i->saturates = true;
      i->from[k - 1] = Slot(is_negated ? std::string_view(operands[k]).substr(1) : operands[k], scope);
    }
    if (operands.size() < 5) i->from[4] = carry_;
    if (operands.size() > 5) error_ = "too many operands";
  }

  // "(result), name, (a, b)": the function's parameters are the caller's variables.
  absl::Status Call(const std::vector<std::string>& operands, const Instruction& guard, Scope* scope) {
    const auto names_of = [](std::string_view list) { return SplitOperands(list.substr(1, list.size() - 2)); };
    const bool has_result = !operands.empty() && operands[0][0] == '(';
    const size_t name = has_result ? 1 : 0;
    const auto found = name < operands.size() ? globals_.functions.find(operands[name]) : globals_.functions.end();
    if (found == globals_.functions.end() || guard.guard != kNoRegister || scope->depth == kMaxCallDepth) {
      error_ = "a call that isn't emulated";
      return absl::OkStatus();
    }
    const Function& function = found->second;
    Scope inner;
    inner.depth = scope->depth + 1;
    const auto bind = [&](const std::vector<std::string>& declared, std::string_view given) {
      const std::vector<std::string> names = names_of(given);
      for (size_t k = 0; k < declared.size() && k < names.size(); ++k) {
        inner.symbols[DeclarationOf(declared[k]).name] = SymbolOf(names[k], scope);
      }
    };
    if (has_result) bind(function.signature.results, operands[0]);
    if (name + 1 < operands.size()) bind(function.signature.parameters, operands[name + 1]);
    TESSERA_RETURN_IF_ERROR(ParseBody(*function.item, &inner));
    for (const size_t at : inner.returns) {
      code_->instructions[at].target = static_cast<int32_t>(code_->instructions.size());
    }
    return absl::OkStatus();
  }

  const Globals& globals_;
  Kernel* kernel_;
  Code* code_;
  int32_t carry_ = kNoRegister;
  std::vector<uint64_t> values_;  // of registers, as a thread begins
  std::vector<int32_t> dynamic_shared_;
  std::string error_;
};

std::shared_ptr<Variable> MakeVariable(const Declaration& d, uint64_t address) {
  auto variable = std::make_shared<Variable>();
  variable->address = address;
  variable->bytes.resize(static_cast<size_t>(d.bytes));
  for (size_t v = 0; v < d.values.size(); ++v) {
    for (int b = 0; b < d.element_bytes; ++b) {
      variable->bytes[v * static_cast<size_t>(d.element_bytes) + static_cast<size_t>(b)] =
          static_cast<std::byte>(d.values[v] >> (8 * b));
    }
  }
  return variable;
}

}  // namespace

absl::StatusOr<Module> Parse(std::string_view text) {
  const std::vector<Item> items = ItemsOf(text);
  Globals globals;
  std::vector<Function> entries;
  uint64_t address = kConstantWindow;
  for (const Item& item : items) {
    const bool is_entry = item.header.find(".entry") != std::string::npos;
    if (item.has_body && is_entry) {
      entries.push_back({SignatureOf(item.header), &item});
    } else if (item.has_body) {
      Function function = {SignatureOf(item.header), &item};
      std::string name = function.signature.name;
      globals.functions.emplace(std::move(name), std::move(function));
    } else if (item.header.find(".shared") != std::string::npos) {
      Declaration d = DeclarationOf(item.header);
      globals.shared.emplace(d.name, d);
    } else if (item.header.find(".global") != std::string::npos || item.header.find(".const") != std::string::npos) {
      const Declaration d = DeclarationOf(item.header);
      globals.variables[d.name] = MakeVariable(d, address);
      address += static_cast<uint64_t>((d.bytes + 255) / 256 * 256);
    }
  }
  Module module;
  for (const Function& entry : entries) {
    Kernel kernel;
    kernel.name = entry.signature.name;
    auto code = std::make_shared<Code>();
    TESSERA_RETURN_IF_ERROR(KernelParser(globals, &kernel, code.get()).Parse(entry));
    kernel.code = std::move(code);
    std::string name = kernel.name;
    module.kernels.emplace(std::move(name), std::move(kernel));
  }
  return module;
}

std::vector<std::string> PtxOf(absl::Span<const std::byte> fatbin) {
  const std::string_view all(reinterpret_cast<const char*>(fatbin.data()), fatbin.size());
  // nvcc leaves comments out: a text begins with its version.
  constexpr std::string_view kBegin = ".version ";
  std::vector<std::string> texts;
  for (size_t at = all.find(kBegin); at != std::string_view::npos;) {
    const size_t end = std::min(all.find('\0', at), all.size());
    texts.emplace_back(all.substr(at, end - at));
    at = all.find(kBegin, end);
  }
  return texts;
}

}  // namespace tessera::ptx
