#include "client/cli/plan_command.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "nlohmann/json.hpp"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"

namespace tessera {
namespace {

constexpr std::string_view kNotation = "notation=";
constexpr std::string_view kEinsumUsage = "einsum takes its notation in quotes: einsum('ij,jk->ik', SPEC, SPEC)";

struct PlanRequest {
  OpCall call;
  std::vector<PlanOperand> operands;
};

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n\r") - first + 1);
}

bool IsQuote(char c) { return c == '"' || c == '\''; }

// Cuts at commas outside of all brackets and quotes; a notation without quotes goes on to the letters behind its arrow.
std::vector<std::string_view> SplitArguments(std::string_view text) {
  std::vector<std::string_view> arguments;
  int depth = 0;
  size_t start = 0;
  char quote = '\0';
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (quote == '\0' ? IsQuote(c) : c == quote) quote = quote == '\0' ? c : '\0';
    if (quote != '\0' && i < text.size()) continue;
    depth += c == '(' || c == '[' ? 1 : c == ')' || c == ']' ? -1 : 0;
    if (c != ',' || (depth != 0 && i < text.size())) continue;
    const std::string_view argument = Trim(text.substr(start, i - start));
    const bool is_notation = argument.substr(0, kNotation.size()) == kNotation;
    if (is_notation && i < text.size() && argument.find("->") == std::string_view::npos && !IsQuote(argument.back()))
      continue;
    if (!argument.empty()) arguments.push_back(argument);
    start = i + 1;
  }
  return arguments;
}

// The letters of "ij,jk" that stand in one operand alone, in the alphabet's order: the output that NumPy takes.
std::string ImplicitOutput(std::string_view operands) {
  std::map<char, int> times;
  for (const char letter : operands) times[letter] += 1;
  std::string output;
  for (const auto& [letter, count] : times) {
    if (absl::ascii_isalpha(static_cast<unsigned char>(letter)) && count == 1) output += letter;
  }
  return output;
}

// `text` may be in quotes.
absl::Status SetNotation(const OpRow& row, std::string_view text, Attributes& attributes) {
  if (row.id != OpId::kEinsum) {
    return absl::InvalidArgumentError(StrCat("plan: ", row.name, " takes no notation; einsum does"));
  }
  if (!attributes.Get(attribute::notation).empty())
    return absl::InvalidArgumentError("plan: einsum takes one notation, not two");
  if (!text.empty() && IsQuote(text.front())) {
    if (text.size() < 2 || text.find(text.front(), 1) != text.size() - 1) {
      return absl::InvalidArgumentError(
          StrCat("plan: expected a notation and a comma behind it, not ", Printable(text, 60)));
    }
    text = text.substr(1, text.size() - 2);
  }
  if (Trim(text).empty()) return absl::InvalidArgumentError("plan: the notation of einsum is empty");
  const bool has_output = text.find("->") != std::string_view::npos;
  attributes.Set(attribute::notation, has_output ? std::string(text) : StrCat(text, "->", ImplicitOutput(text)));
  return absl::OkStatus();
}

// placements=[[S(1)], [R]] are those of each tensor.
absl::Status SetAttribute(const OpRow& row, std::string_view name, std::string_view value, Attributes& attributes) {
  if (name == "notation") return SetNotation(row, value, attributes);
  if (name == "placements" && value.substr(0, 2) == "[[") name = NameOf(AttributeId::kPlacementsEach);
  const absl::StatusOr<AttributeId> id = FindAttributeByName(name);
  if (!id.ok())
    return absl::InvalidArgumentError(StrCat("plan: no attribute \"", Printable(name), "\" of ", row.signature));
  absl::StatusOr<AttributeValue> parsed = ParseAttribute(*id, value);
  if (!parsed.ok()) return absl::InvalidArgumentError(StrCat("plan: ", StdView(parsed.status().message())));
  attributes.Set(*id, *std::move(parsed));
  return absl::OkStatus();
}

absl::Status AddArgument(std::string_view text, const OpRow& row, PlanRequest& request) {
  if (IsQuote(text.front())) return SetNotation(row, text, request.call.attributes);
  const size_t equals = text.find('=');
  const std::string_view name = Trim(text.substr(0, equals));
  // `workers=` of a mesh stands inside a spec.
  if (equals != std::string_view::npos && name.find_first_of("([ ") == std::string_view::npos) {
    return SetAttribute(row, name, Trim(text.substr(equals + 1)), request.call.attributes);
  }
  const absl::StatusOr<Scalar> number = ParseScalar(text);
  if (number.ok() && row.max_operands == 0) {
    request.call.scalars.push_back(*number);
  } else if (number.ok()) {
    request.operands.emplace_back(*number);
  } else if (row.id == OpId::kEinsum && text.find('[') == std::string_view::npos) {
    return absl::InvalidArgumentError(StrCat("plan: \"", Printable(text, 60), "\" is no spec; ", kEinsumUsage));
  } else {
    TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, ParseTensorSpec(text));
    request.operands.emplace_back(OperandLayout{std::move(spec), {}});
  }
  return absl::OkStatus();
}

void AddDefaultDims(const OpRow& row, PlanRequest& request) {
  if (!request.call.attributes.Get(attribute::dims).empty() || request.operands.empty()) return;
  const auto* layout = std::get_if<OperandLayout>(&request.operands[0]);
  const bool takes_dims = row.family == OpFamily::kReduction || row.id == OpId::kTranspose;
  if (layout == nullptr || !takes_dims) return;
  std::vector<int64_t> dims(layout->spec.shape.size());
  std::iota(dims.begin(), dims.end(), int64_t{0});
  if (row.id == OpId::kTranspose) std::reverse(dims.begin(), dims.end());
  request.call.attributes.Set(attribute::dims, std::move(dims));
}

absl::StatusOr<PlanRequest> ParseCall(std::string_view name, std::string_view arguments) {
  PlanRequest request;
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOpByName(name));
  request.call.op = row->id;
  for (const std::string_view argument : SplitArguments(arguments)) {
    TESSERA_RETURN_IF_ERROR(AddArgument(argument, *row, request));
  }
  if (row->id == OpId::kEinsum && request.call.attributes.Get(attribute::notation).empty()) {
    return absl::InvalidArgumentError(StrCat("plan: no notation: ", kEinsumUsage));
  }
  AddDefaultDims(*row, request);
  return request;
}

// Parses the text after the arrow: placements, a mesh with placements, or a whole spec.
absl::StatusOr<PlanRequest> ParseArrow(std::string_view source, std::string_view destination) {
  PlanRequest request;
  request.call.op = OpId::kRedistribute;
  Attributes& attributes = request.call.attributes;
  TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, ParseTensorSpec(source));
  const size_t placements = destination.rfind('[');
  if (destination.empty() || placements == std::string_view::npos) {
    return absl::InvalidArgumentError("plan: expected placements after ->, such as [S(1)]");
  }
  const std::string_view before = Trim(destination.substr(0, placements));
  if (before.empty() || before.substr(0, 4) == "mesh" || before[0] == '@') {
    TESSERA_ASSIGN_OR_RETURN(Placements wanted, ParsePlacements(destination.substr(placements)));
    attributes.Set(attribute::placements, std::move(wanted));
    const std::string_view mesh = !before.empty() && before[0] == '@' ? Trim(before.substr(1)) : before;
    if (!mesh.empty()) {
      TESSERA_ASSIGN_OR_RETURN(Mesh wanted_mesh, ParseMesh(mesh));
      attributes.Set(attribute::mesh, std::move(wanted_mesh));
    }
  } else {
    TESSERA_ASSIGN_OR_RETURN(const TensorSpec wanted, ParseTensorSpec(destination));
    if (wanted.shape != spec.shape) {
      return absl::InvalidArgumentError(
          StrCat("redistribute: shapes differ: from ", ToText(spec), " to ", ToText(wanted)));
    }
    attributes.Set(attribute::mesh, wanted.mesh);
    attributes.Set(attribute::placements, wanted.placements);
    attributes.Set(attribute::dtype, wanted.dtype);
  }
  request.operands.emplace_back(OperandLayout{std::move(spec), {}});
  return request;
}

absl::StatusOr<PlanRequest> ParseRequest(std::string_view text) {
  // A call first: an arrow may stand in its notation.
  Scanner scanner(text);
  const absl::StatusOr<std::string_view> name = scanner.TakeIdentifier();
  const bool is_call = name.ok() && scanner.TryTake("(");
  if (is_call && Trim(text).back() == ')') {
    const std::string_view rest = scanner.rest();
    return ParseCall(*name, rest.substr(0, rest.rfind(')')));
  }
  const size_t arrow = text.find("->");
  if (!is_call && arrow != std::string_view::npos) {
    return ParseArrow(Trim(text.substr(0, arrow)), Trim(text.substr(arrow + 2)));
  }
  return absl::InvalidArgumentError(
      StrCat("plan: expected \"SPEC -> PLACEMENTS\" or \"op(SPEC, ...)\", not \"", Printable(text), "\""));
}

// Operands and outputs, on the worker that has the most of them.
int64_t StayingBytes(Plan plan) {
  std::erase_if(plan.buffers, [](const PlanBuffer& buffer) { return buffer.kind == PlanBuffer::Kind::kTemporary; });
  const std::vector<int64_t> bytes = PeakBytes(plan);
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

std::string Seconds(double seconds) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.6g", seconds);
  return text;
}

std::string PlanText(const OpPlan& planned, double seconds) {
  const Plan& plan = planned.plan;
  const PlanTraffic traffic = TrafficOf(plan);
  const std::vector<int64_t> peak_bytes = PeakBytes(plan);
  std::string text;
  for (const int output : plan.outputs) {
    StrAppend(&text, "output: ", ToText(plan.values[static_cast<size_t>(output)].spec), "\n");
  }
  const std::vector<std::string> lines = StepLines(plan);
  text += lines.empty() ? "steps: none, the output is a view\n" : "steps:\n";
  for (const std::string& line : lines) StrAppend(&text, "  ", line, "\n");
  for (const std::string& line : plan.implicit) StrAppend(&text, "implicit: ", line, "\n");
  if (!plan.grid.empty()) StrAppend(&text, "chosen: ", plan.grid, "\n");
  for (const std::string& line : plan.runners_up) StrAppend(&text, "runner-up: ", line, "\n");
  StrAppend(&text, traffic.by_worker ? "worker" : "position", " bytes_received bytes_sent peak_bytes\n");
  for (size_t i = 0; i < traffic.received_bytes.size(); ++i) {
    StrAppend(&text, i, " ", traffic.received_bytes[i], " ", traffic.sent_bytes[i], " ", peak_bytes[i], "\n");
  }
  StrAppend(&text, "predicted_seconds ", Seconds(seconds), "\n");
  return text;
}

std::string PlanJson(const OpPlan& planned, double seconds) {
  const Plan& plan = planned.plan;
  const PlanTraffic traffic = TrafficOf(plan);
  const TensorSpec& output = plan.values[static_cast<size_t>(plan.outputs[0])].spec;
  std::vector<std::string> placements;
  for (const Placement& placement : output.placements) placements.push_back(ToText(placement));
  std::vector<std::string> outputs;
  for (const int value : plan.outputs) outputs.push_back(ToText(plan.values[static_cast<size_t>(value)].spec));
  nlohmann::ordered_json json;
  json["steps"] = StepLines(plan);
  json["bytes_received"] = traffic.received_bytes;
  json["bytes_sent"] = traffic.sent_bytes;
  json["peak_bytes"] = PeakBytes(plan);
  json["predicted_seconds"] = seconds;
  json["placements"] = placements;
  json["implicit"] = plan.implicit;
  json["output"] = ToText(output);
  json["outputs"] = outputs;
  json["grid"] = plan.grid;
  json["runners_up"] = plan.runners_up;
  json["plan"] = ToText(plan);
  return json.dump(2) + "\n";
}

// Hosts of so many workers each, for all workers that the request names.
absl::StatusOr<Topology> TopologyOf(const PlanRequest& request, std::optional<int> workers_per_host) {
  Topology topology;
  if (!workers_per_host.has_value()) return topology;
  if (*workers_per_host < 1) {
    return absl::InvalidArgumentError(StrCat("plan: ", *workers_per_host, " workers on each host"));
  }
  int32_t last_worker = 0;
  const auto add = [&last_worker](const Mesh& mesh) {
    for (const WorkerIndex worker : mesh.workers()) last_worker = std::max(last_worker, worker.value);
  };
  for (const PlanOperand& operand : request.operands) {
    if (const auto* layout = std::get_if<OperandLayout>(&operand)) add(layout->spec.mesh);
  }
  if (request.call.attributes.Get(attribute::mesh) != nullptr) add(*request.call.attributes.Get(attribute::mesh));
  for (int32_t worker = 0; worker <= last_worker; ++worker)
    topology.host_of_worker.push_back(worker / *workers_per_host);
  return topology;
}

}  // namespace

absl::StatusOr<std::string> PlanCommandText(std::string_view request, PlanOutput format,
                                            std::optional<int64_t> memory_bytes, std::optional<int> workers_per_host) {
  TESSERA_ASSIGN_OR_RETURN(const PlanRequest parsed, ParseRequest(request));
  TESSERA_ASSIGN_OR_RETURN(const Topology topology, TopologyOf(parsed, workers_per_host));
  TESSERA_ASSIGN_OR_RETURN(OpPlan planned, PlanOp(parsed.call, parsed.operands, topology));
  const absl::Status fits = VerifyPlan(planned.plan, {memory_bytes});
  if (!fits.ok() && !absl::IsResourceExhausted(fits)) return fits;
  if (!fits.ok()) {
    const PlanLimits limits = {std::max<int64_t>(0, *memory_bytes - StayingBytes(planned.plan))};
    TESSERA_ASSIGN_OR_RETURN(planned, PlanOp(parsed.call, parsed.operands, topology, limits));
    TESSERA_RETURN_IF_ERROR(VerifyPlan(planned.plan, {memory_bytes}));
  }
  const double seconds = PredictSeconds(planned.plan, topology);
  return format == PlanOutput::kJson ? PlanJson(planned, seconds) : PlanText(planned, seconds);
}

}  // namespace tessera
