// Writes what follows from the op catalog at build time:
//
//   generate_functions python     the functions of the package, one for each row (run by tessera/_ops.py's `run`)
//   generate_functions stubs      their .pyi
//   generate_functions markdown   docs/ops.md

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "schemas/ops/graph_text.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/signature.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr char kRandomNumbers[] = R"(
## Random numbers

A number follows from a seed, the number of the call and the index `i` of its element in the whole tensor, in row-major order; so it is the
same on every mesh and placement, on CPUs and GPUs, and no worker keeps a state. Philox 4x32-10 (Salmon, Moraes, Dror, Shaw,
SC 2011) with the seed as its key makes four words of 32 bits of each counter; the call's number is the counter's upper half.

| | uniform number i in [0, 1) | normal number i |
|---|---|---|
| f32, f16, bf16 | the upper 24, 11 or 8 bits of word i mod 4 of counter i / 4 | of i and i + 1, i even: u and v are their words; made in f32 and rounded once |
| f64 | the upper 53 bits of words 2 (i mod 2) and 2 (i mod 2) + 1 of counter i / 2 | of i and i + 1, i even: u is words 0 and 1 of counter i / 2, v words 2 and 3 |

Box and Muller's pair of normal numbers is sqrt(-2 ln u) cos(2 pi v) and sqrt(-2 ln u) sin(2 pi v), of u and v as fractions of 1
(`schemas/ops/normal_law.h`). All other distributions are made of uniform and normal numbers.
)";

// Rows that are no function of their own: said by operators, methods, or functions that do more than the row.
bool HasFunction(const OpRow& row) {
  switch (row.family) {
    case OpFamily::kRedistribute:
    case OpFamily::kMatrices:
    case OpFamily::kWindows:
    case OpFamily::kPlace: return false;
    default: break;
  }
  if (row.max_operands == 0 || row.id == kGraphOp) return false;
  for (const OpId id :
       {OpId::kDropout, OpId::kAttention, OpId::kAttentionGradients, OpId::kAttentionLogarithms,
        OpId::kAttentionGradientsOfResult, OpId::kEinsum, OpId::kSlice, OpId::kAssign, OpId::kTranspose, OpId::kReshape,
        OpId::kRelabel, OpId::kAsType, OpId::kArgMin, OpId::kArgMax, OpId::kConv, OpId::kMaxPool, OpId::kAvgPool}) {
    if (row.id == id) return false;
  }
  return ParseSignature(row).ok();
}

std::string ParameterText(const Signature& signature, bool typed) {
  std::string text;
  bool keyword = false;
  for (size_t i = 0; i < signature.parameters.size(); ++i) {
    const Parameter& p = signature.parameters[i];
    if (p.by_keyword_only && !keyword) {
      StrAppend(&text, text.empty() ? "*" : ", *");
      keyword = true;
    }
    StrAppend(&text, text.empty() ? "" : ", ", p.name);
    const bool is_operand = p.role == Parameter::Role::kOperand || p.role == Parameter::Role::kOperands;
    if (typed) StrAppend(&text, is_operand ? ": Any" : ": Any");
    if (!p.default_text.empty()) StrAppend(&text, typed ? " = " : "=", typed ? "..." : p.default_text);
    const bool last_positional =
        p.by_position_only && (i + 1 == signature.parameters.size() || !signature.parameters[i + 1].by_position_only);
    if (last_positional) StrAppend(&text, ", /");
  }
  return text;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void WriteFunction(const OpRow& row, const Signature& signature) {
  std::string operands, arguments;
  for (const Parameter& p : signature.parameters) {
    switch (p.role) {
      case Parameter::Role::kOperand: StrAppend(&operands, p.name, ", "); break;
      case Parameter::Role::kOperands: StrAppend(&operands, "*", p.name, ", "); break;
      case Parameter::Role::kAttribute:
        StrAppend(&arguments, arguments.empty() ? "" : ", ", Quoted(p.name), ": (", Quoted(NameOf(p.attribute)), ", ",
                  p.name, ")");
        break;
      case Parameter::Role::kScalar:
        StrAppend(&arguments, arguments.empty() ? "" : ", ", Quoted(p.name), ": (None, ", p.name, ")");
        break;
      case Parameter::Role::kPlace: break;
    }
  }
  std::printf("@function\ndef %s(%s):\n    %s\n    return run(%d, %s, (%s), {%s})\n\n\n", std::string(row.name).c_str(),
              ParameterText(signature, false).c_str(), Quoted(row.doc).c_str(), static_cast<int>(row.id),
              Quoted(row.name).c_str(), operands.c_str(), arguments.c_str());
}

void WriteStub(const OpRow& row, const Signature& signature) {
  std::printf("def %s(%s) -> Any:\n    %s\n\n", std::string(row.name).c_str(), ParameterText(signature, true).c_str(),
              Quoted(row.doc).c_str());
}

// Rows whose functions are names of tessera.linalg or tessera.fft, and none of tessera itself.
bool IsOfNamespace(const OpRow& row) { return row.id >= OpId::kCholesky && row.id <= OpId::kIrfftn; }

std::string PublicName(const OpRow& row) {
  const std::string_view space = !IsOfNamespace(row) ? "" : row.id < OpId::kFft ? "linalg." : "fft.";
  return StrCat(space, row.name);
}

// The texts of help() that a row says, by the function's public name, and the functions of each element alone.
void WriteHelp() {
  std::printf("EXAMPLES = {");
  for (const OpRow& row : Catalog()) {
    if (row.example.empty()) continue;
    std::printf("\n    %s: %s,", Quoted(PublicName(row)).c_str(), Quoted(row.example).c_str());
  }
  std::printf("\n}\n\nARGUMENTS = {");
  for (const OpRow& row : Catalog()) {
    if (row.arguments.empty()) continue;
    std::printf("\n    %s: {", Quoted(PublicName(row)).c_str());
    std::string_view rest = row.arguments;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      const size_t colon = line.find(": ");
      TESSERA_CHECK(colon != std::string_view::npos && "a line of a row's arguments is \"name: text\"");
      std::printf("%s: %s, ", Quoted(line.substr(0, colon)).c_str(), Quoted(line.substr(colon + 2)).c_str());
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    }
    std::printf("},");
  }
  std::printf("\n}\n\nMAPS = frozenset([");
  for (const OpRow& row : Catalog()) {
    if (row.family == OpFamily::kElementwise || row.is_map) std::printf("\n    %s,", Quoted(PublicName(row)).c_str());
  }
  std::printf("\n])\n\n\n");
}

// The names that `from _tessera_ops import *` gives.
void WriteNames() {
  std::printf("__all__ = [");
  for (const OpRow& row : Catalog()) {
    if (HasFunction(row) && !IsOfNamespace(row)) std::printf("\n    %s,", Quoted(row.name).c_str());
  }
  std::printf("\n]\n\n\n");
}

int Generate(std::string_view what) {
  if (what == "python") {
    std::printf(
        "# Made from the op catalog by generate_functions: one function for each row.\n\n"
        "from tessera._catalog_calls import function, run\n\n");
    WriteNames();
    WriteHelp();
  } else if (what == "stubs") {
    std::printf("# Made from the op catalog by generate_functions.\n\nfrom typing import Any\n\n");
  } else if (what == "markdown") {
    std::printf(
        "# The op catalog\n\nEach op is a row of `schemas/ops`. This page is made from the rows "
        "(`tools/build //client/python:generate_functions && bazel-bin/client/python/generate_functions markdown "
        "> docs/ops.md`).\n\n| op | what it does |\n|---|---|\n");
  } else {
    std::fprintf(stderr, "usage: generate_functions python|stubs|markdown\n");
    return 2;
  }
  for (const OpRow& row : Catalog()) {
    if (what == "markdown") {
      std::string doc;
      for (const char c : row.doc) StrAppend(&doc, c == '|' ? "\\" : "", std::string(1, c));
      std::printf("| `%s` | %s |\n", std::string(row.signature).c_str(), doc.c_str());
    } else if (HasFunction(row)) {
      const absl::StatusOr<Signature> signature = ParseSignature(row);
      if (what == "python") WriteFunction(row, *signature);
      if (what == "stubs") WriteStub(row, *signature);
    }
  }
  if (what == "markdown") std::fputs(kRandomNumbers, stdout);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Generate(argc == 2 ? argv[1] : ""); }
