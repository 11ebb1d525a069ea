// Writes the C++ functions of the op catalog at build time, one for each row, with typed attributes:
//
//   generate_ops header     catalog_ops.h
//   generate_ops source     catalog_ops.cc

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/signature.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct Field {
  std::string type, name, value;  // of the options
  std::string apply;              // the statement that gives it to the call
};

struct Function {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<std::string> statements;
  std::vector<Field> options;
  std::string result;
  std::string call;
};

// "take_along_axis" -> "TakeAlongAxis".
std::string FunctionName(std::string_view name) {
  std::string out;
  bool upper = true;
  for (const char c : name) {
    if (c != '_') out += upper && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    upper = c == '_';
  }
  return out;
}

std::string_view TypeOf(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kFlag: return "bool";
    case AttributeKind::kInteger: return "int64_t";
    case AttributeKind::kNumber: return "double";
    case AttributeKind::kDType: return "DType";
    case AttributeKind::kText: return "std::string";
    case AttributeKind::kIntegers: return "std::vector<int64_t>";
    case AttributeKind::kShape: return "Shape";
    case AttributeKind::kMesh: return "Mesh";
    case AttributeKind::kPlacements: return "Placements";
    case AttributeKind::kPlacementsEach: return "std::vector<Placements>";
    case AttributeKind::kIndex: return "std::vector<IndexItem>";
  }
  return "";
}

// A default in the row's text, as C++; "" for None.
std::string ValueOf(AttributeKind kind, std::string_view text) {
  if (text == "None") return "";
  if (kind == AttributeKind::kFlag) return text == "True" ? "true" : "false";
  if (kind == AttributeKind::kText) {
    if (text.front() == '\'') text = text.substr(1, text.size() - 2);
    return StrCat("\"", text, "\"");
  }
  if (kind == AttributeKind::kIntegers) return StrCat("std::vector<int64_t>{", text, "}");
  return std::string(text);
}

std::string NumberOf(std::string_view text) {
  if (text == "None") return "";
  if (text == "True" || text == "False") return StrCat("Scalar::Bool(", text == "True" ? "true" : "false", ")");
  return StrCat(text.find_first_of(".e") == text.npos ? "Scalar::Int(" : "Scalar::Float(", text, ")");
}

std::string EnumOf(AttributeId id) { return StrCat("static_cast<AttributeId>(", static_cast<int>(id), ")"); }

// Several results, or as many as there are operands.
bool HasSeveralResults(OpId id) {
  const OpId several[] = {OpId::kQr,      OpId::kSlogdet, OpId::kSvd,          OpId::kEigh,
                          OpId::kUnstack, OpId::kLstsq,   OpId::kRedistribute, OpId::kMatrixFunction,
                          OpId::kEig,     OpId::kLu,      OpId::kLuUnpack};
  return std::find(std::begin(several), std::end(several), id) != std::end(several);
}

void AddAttribute(const OpRow& row, const Parameter& p, AttributeId id, Function& out) {
  const AttributeKind kind = KindOf(id);
  const std::string name(p.name);
  const bool is_order = row.id == OpId::kTranspose;
  std::string apply;
  if (id == AttributeId::kDims && !is_order) {
    apply = StrCat("call.SetAxes($, CatalogCall::Absent::", row.id == OpId::kRoll ? "kNone" : "kAllDims", ");");
  } else if (is_order) {
    apply = "call.SetOrder($);";
  } else {
    apply = StrCat("call.Set<", TypeOf(kind), ">(", EnumOf(id), ", $);");
  }
  const auto with = [&apply](const std::string& value) {
    std::string text = apply;
    return text.replace(text.find('$'), 1, value);
  };
  if (p.default_text.empty()) {
    const bool is_small = kind == AttributeKind::kFlag || kind == AttributeKind::kInteger ||
                          kind == AttributeKind::kNumber || kind == AttributeKind::kDType;
    out.parameters.push_back(is_small ? StrCat(TypeOf(kind), " ", name) : StrCat("const ", TypeOf(kind), "& ", name));
    out.statements.push_back(with(name));
    return;
  }
  out.options.push_back({StrCat("std::optional<", TypeOf(kind), ">"), name, ValueOf(kind, p.default_text),
                         with(StrCat("options.", name))});
}

void AddNumber(const Parameter& p, Function& out) {
  const std::string name(p.name);
  if (p.default_text.empty()) {
    out.parameters.push_back(StrCat("const Scalar& ", name));
    out.statements.push_back(StrCat("call.AddNumber(", name, ");"));
    return;
  }
  out.options.push_back(
      {"std::optional<Scalar>", name, NumberOf(p.default_text), StrCat("call.AddNumber(options.", name, ");")});
}

void AddParameters(const OpRow& row, const Signature& signature, Function& out) {
  for (const Parameter& p : signature.parameters) {
    const std::string name(p.name);
    if (name == "async_op") continue;
    if (name == "device_mesh") {
      AddAttribute(row, p, AttributeId::kMesh, out);
    } else if (p.role == Parameter::Role::kOperands) {
      out.parameters.push_back(StrCat("absl::Span<const Operand> ", name));
      out.statements.push_back(StrCat("call.Add(", name, ");"));
    } else if (p.role == Parameter::Role::kOperand) {
      out.parameters.push_back(p.default_text.empty()
                                   ? StrCat("const Operand& ", name)
                                   : StrCat("const std::optional<Operand>& ", name, " = std::nullopt"));
      out.statements.push_back(StrCat("call.Add(", name, ");"));
    } else if (p.role == Parameter::Role::kAttribute) {
      AddAttribute(row, p, p.attribute, out);
    } else {
      AddNumber(p, out);
    }
  }
}

// Adds a row that Python writes as an operator or a statement.
void AddIndexed(const OpRow& row, Function& out) {
  out.parameters.push_back("const Operand& x");
  out.statements.push_back("call.Add(x);");
  if (row.id == OpId::kAssign) {
    out.parameters.push_back("const Operand& value");
    out.statements.push_back("call.Add(value);");
  }
  out.parameters.push_back("const std::vector<IndexItem>& index");
  out.statements.push_back(StrCat("call.Set<std::vector<IndexItem>>(", EnumOf(AttributeId::kIndex), ", index);"));
}

Function FunctionOf(const OpRow& row) {
  Function out;
  out.result = HasSeveralResults(row.id) ? "std::vector<Tensor>" : "Tensor";
  out.call = HasSeveralResults(row.id) ? "call.All()" : "call.One()";
  out.name = FunctionName(row.name);
  if (row.max_operands == 0) {
    out.parameters = {"const Session& session", "const Creation& creation", "absl::Span<const Scalar> numbers"};
    out.statements = {"call.Place(creation);", "for (const Scalar& number : numbers) call.AddNumber(number);"};
    out.call = "call.Create(session)";
    return out;
  }
  const absl::StatusOr<Signature> signature = ParseSignature(row);
  if (!signature.ok()) {
    AddIndexed(row, out);
    return out;
  }
  // "*tensors"
  const size_t list = row.signature.find("(*");
  if (list != row.signature.npos && row.signature.substr(list + 2, 1) != ",") {
    out.parameters.push_back("absl::Span<const Operand> operands");
    out.statements.push_back("call.Add(operands);");
  }
  AddParameters(row, *signature, out);
  // Operands that may be left out stand behind what must be said.
  std::stable_partition(out.parameters.begin(), out.parameters.end(),
                        [](const std::string& parameter) { return parameter.find('=') == parameter.npos; });
  if (!out.options.empty()) {
    out.parameters.push_back(StrCat("const ", out.name, "Options& options = {}"));
    for (const Field& field : out.options) out.statements.push_back(field.apply);
  }
  return out;
}

std::string Declared(const Function& function, std::string_view scope) {
  std::string text = StrCat("absl::StatusOr<", function.result, "> ", scope, function.name, "(");
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    std::string_view parameter = function.parameters[i];
    if (!scope.empty()) parameter = parameter.substr(0, parameter.find(" ="));
    StrAppend(&text, i == 0 ? "" : ", ", parameter);
  }
  return text + ")";
}

void WriteHeader() {
  std::printf(
      "#pragma once\n\n"
      "// The op catalog as functions, one for each row: made from the rows by client/generate_ops.cc. What the rows "
      "say "
      "is in\n// docs/ops.md. Each returns at once. A name is Python's in PascalCase; client/op_forms.h has shorter "
      "forms of some.\n//\n"
      "//   absl::StatusOr<Tensor> y = ops::Softmax(x, {.axis = {{1}}});\n\n"
      "#include <optional>\n#include <string>\n#include <vector>\n\n#include \"client/require_cxx20.h\"\n\n"
      "#include \"client/catalog_call.h\"\n#include \"client/op_forms.h\"\n\n"
      "namespace tessera::ops {\n\n"
      "// The rows that have a function here: all of them.\nabsl::Span<const OpId> Rows();\n");
  for (const OpRow& row : Catalog()) {
    const Function function = FunctionOf(row);
    std::printf("\n// %s\n", std::string(row.doc).c_str());
    if (!function.options.empty()) {
      std::printf("struct %sOptions {\n", function.name.c_str());
      // An initializer for each: designated ones of a program warn of those that have none.
      for (const Field& field : function.options) {
        std::printf("  %s %s%s%s;\n", field.type.c_str(), field.name.c_str(), field.value.empty() ? "{}" : " = ",
                    field.value.c_str());
      }
      std::printf("};\n");
    }
    std::printf("%s;\n", Declared(function, "").c_str());
  }
  std::printf("\n}  // namespace tessera::ops\n");
}

void WriteSource() {
  std::printf(
      "// Made from the op catalog by client/generate_ops.cc.\n\n#include \"client/catalog_ops.h\"\n\n"
      "namespace tessera {\n\n");
  std::string rows;
  for (const OpRow& row : Catalog()) {
    const Function function = FunctionOf(row);
    std::printf("%s {\n  CatalogCall call(static_cast<OpId>(%d));\n", Declared(function, "ops::").c_str(),
                static_cast<int>(row.id));
    for (const std::string& statement : function.statements) std::printf("  %s\n", statement.c_str());
    std::printf("  return %s;\n}\n\n", function.call.c_str());
    StrAppend(&rows, rows.empty() ? "" : ", ", "static_cast<OpId>(", static_cast<int>(row.id), ")");
  }
  std::printf(
      "absl::Span<const OpId> ops::Rows() {\n  static constexpr OpId kRows[] = {%s};\n  return kRows;\n}\n\n"
      "}  // namespace tessera\n",
      rows.c_str());
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "header") {
    tessera::WriteHeader();
  } else if (what == "source") {
    tessera::WriteSource();
  } else {
    std::fprintf(stderr, "usage: generate_ops header|source\n");
    return 2;
  }
  return 0;
}
