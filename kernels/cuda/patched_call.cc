#include "kernels/cuda/patched_call.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// Launches follow from remainders by powers of two up to this one: of addresses, and of pieces of a workspace.
constexpr uint64_t kAlignment = 64;

// Two addresses of each operand, and of the workspace's memory behind them; those of one set are 2^40 bytes apart and
// more, which no operand has. No two operands have addresses that differ by the same.
enum class Stand : uint8_t { kFirst, kSecond };
constexpr int64_t kReach = int64_t{1} << 39;
uint64_t StandIn(Stand stand, size_t operand) {
  const uint64_t place = stand == Stand::kFirst ? 0x5A00 + operand : 0x2500 + 3 * operand;
  return (place << 40) + static_cast<uint64_t>(kReach);
}

const void* ToPointer(uint64_t address) { return reinterpret_cast<const void*>(static_cast<uintptr_t>(address)); }

absl::Status Differs(std::string_view what) {
  return absl::UnimplementedError(absl::StrCat("cuda: ", std::string(what), " follows from addresses"));
}

// The call with the given addresses in place of its own.
struct MovedCall {
  MovedCall(const KernelCall& of, absl::Span<const uint64_t> addresses)
      : inputs(of.inputs.begin(), of.inputs.end()),
        more_outputs(of.more_outputs.begin(), of.more_outputs.end()),
        call(of) {
    size_t operand = 0;
    for (KernelInput& input : inputs) input.data = ToPointer(addresses[operand++]);
    call.output = const_cast<void*>(ToPointer(addresses[operand++]));
    for (KernelOutput& output : more_outputs) output.data = const_cast<void*>(ToPointer(addresses[operand++]));
    call.inputs = inputs;
    call.more_outputs = more_outputs;
  }
  MovedCall(const MovedCall&) = delete;

  std::vector<KernelInput> inputs;
  std::vector<KernelOutput> more_outputs;
  KernelCall call;
};

// Operands are the inputs, the output, further outputs.
uint64_t AddressOfOperand(const KernelCall& call, size_t operand) {
  const size_t inputs = call.inputs.size();
  return AddressOf(operand < inputs    ? call.inputs[operand].data
                   : operand == inputs ? call.output
                                       : call.more_outputs[operand - inputs - 1].data);
}

}  // namespace

absl::Status PatchedCall::DescribeOperands(const KernelCall& call) {
  const auto add = [this](uint64_t address, absl::Span<const int64_t> extents, const Strides& strides, DType dtype) {
    Operand& operand = operands_.emplace_back();
    const auto same = std::find(addresses_.begin(), addresses_.end(), address);
    operand.equal_to = static_cast<size_t>(same - addresses_.begin());
    addresses_.push_back(address);
    operand.beyond_aligned = address % kAlignment;
    operand.is_read = true;
    operand.is_anywhere = strides.size() != extents.size();
    if (operand.is_anywhere) return;
    const auto [first, last] = RangeOf(ToPointer(address), extents, strides, SizeBytes(dtype));
    if (first == last) return;
    operand.first = static_cast<int64_t>(first - address);
    operand.last = static_cast<int64_t>(last - address);
  };
  for (const KernelInput& input : call.inputs) {
    if (input.is_zero) {
      operands_.push_back({.equal_to = operands_.size()});
      addresses_.push_back(0);
    } else {
      add(AddressOf(input.data), input.extents, input.strides, input.dtype);
    }
  }
  add(AddressOf(call.output), call.output_extents, call.output_strides, call.output_dtype);
  operands_.back().is_output = true;
  for (const KernelOutput& output : call.more_outputs) {
    add(AddressOf(output.data), output.extents, output.strides, output.dtype);
    operands_.back().is_output = true;
  }
  for (size_t o = 0; o < operands_.size(); ++o) {
    const Operand& operand = operands_[o];
    if (operand.is_read && addresses_[o] == 0) return absl::UnimplementedError("cuda: an operand without an address");
    if (operand.first <= -kReach || operand.last >= kReach) return Differs("an operand of 2^39 bytes");
  }
  return absl::OkStatus();
}

absl::StatusOr<PatchedCall> PatchedCall::Make(const KernelCall& call, int64_t device_items) {
  PatchedCall made;
  TESSERA_RETURN_IF_ERROR(made.DescribeOperands(call));
  const size_t count = made.operands_.size();
  const auto steps_with = [&](Stand stand) -> absl::StatusOr<std::vector<Step>> {
    std::vector<uint64_t> addresses;
    for (const Operand& operand : made.operands_) {
      addresses.push_back(StandIn(stand, operand.equal_to) + operand.beyond_aligned);
    }
    const MovedCall moved(call, addresses);
    made.workspace_bytes_ = WorkspaceBytes(moved.call, device_items);
    return LaunchKernel(moved.call, {.address = StandIn(stand, count),
                                     .bytes = made.workspace_bytes_,
                                     .fault_word = StandIn(stand, count + 2),
                                     .zeros = StandIn(stand, count + 1),
                                     .device_items = device_items});
  };
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Step> other, steps_with(Stand::kSecond));
  TESSERA_ASSIGN_OR_RETURN(made.steps_, steps_with(Stand::kFirst));
  if (other.size() != made.steps_.size()) return Differs("the number of steps");
  for (size_t s = 0; s < other.size(); ++s) TESSERA_RETURN_IF_ERROR(made.Compare(made.steps_[s], other[s]));
  if (made.arguments_.empty() && !made.steps_.empty()) made.scalars_.assign(call.scalars.begin(), call.scalars.end());
  made.addresses_.resize(count + 3);
  return made;
}

absl::Status PatchedCall::Compare(Step& step, const Step& other) {
  if (step.index() != other.index()) return Differs("the kind of a step");
  if (auto* launch = std::get_if<Launch>(&step)) return Compare(*launch, std::get<Launch>(other));
  if (auto* fill = std::get_if<Fill>(&step)) {
    const Fill& with_others = std::get<Fill>(other);
    if (fill->bytes != with_others.bytes || fill->value != with_others.value) return Differs("a fill");
    return CompareWord(&fill->address, &with_others.address);
  }
  auto* product = std::get_if<MatmulProblem>(&step);
  if (product == nullptr) return absl::UnimplementedError("cuda: a step of a library has addresses of its own");
  const auto& with_others = std::get<MatmulProblem>(other);
  if (product->otherwise.size() != with_others.otherwise.size()) return Differs("how a product is computed");
  for (size_t i = 0; i < product->otherwise.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(Compare(product->otherwise[i], with_others.otherwise[i]));
  }
  TESSERA_RETURN_IF_ERROR(CompareWord(&product->left, &with_others.left));
  TESSERA_RETURN_IF_ERROR(CompareWord(&product->right, &with_others.right));
  return CompareWord(&product->output, &with_others.output);
}

absl::Status PatchedCall::Compare(Launch& launch, const Launch& other) {
  const auto source_of = [](const Launch& one) { return one.program == nullptr ? "" : one.program->source; };
  if (launch.entry != other.entry || launch.grid != other.grid || launch.block != other.block ||
      launch.shared_bytes != other.shared_bytes || launch.parameters.size() != other.parameters.size() ||
      launch.parameters.size() % sizeof(uint64_t) != 0 || launch.otherwise.size() != other.otherwise.size() ||
      source_of(launch) != source_of(other)) {
    return Differs(launch.entry);
  }
  for (size_t at = 0; at < launch.parameters.size(); at += sizeof(uint64_t)) {
    TESSERA_RETURN_IF_ERROR(CompareWord(launch.parameters.data() + at, other.parameters.data() + at));
  }
  for (const LaunchArgument& argument : launch.arguments) {
    arguments_.push_back({launch.parameters.data() + argument.offset, argument});
  }
  for (size_t i = 0; i < launch.otherwise.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(Compare(launch.otherwise[i], other.otherwise[i]));
  }
  return absl::OkStatus();
}

absl::Status PatchedCall::CompareWord(void* word, const void* other) {
  uint64_t first = 0, second = 0;
  std::memcpy(&first, word, sizeof(first));
  std::memcpy(&second, other, sizeof(second));
  if (first == second) return absl::OkStatus();
  for (size_t o = 0; o < operands_.size() + 3; ++o) {
    if (first - second != StandIn(Stand::kFirst, o) - StandIn(Stand::kSecond, o)) continue;
    const uint64_t beyond = o < operands_.size() ? operands_[o].beyond_aligned : 0;
    words_.push_back({static_cast<std::byte*>(word), o, first - (StandIn(Stand::kFirst, o) + beyond)});
    return absl::OkStatus();
  }
  return Differs("a parameter");
}

bool PatchedCall::AreApart(const Operand& a, uint64_t address_of_a, const Operand& b, uint64_t address_of_b) {
  const auto first = [](const Operand& o, uint64_t address) { return address + static_cast<uint64_t>(o.first); };
  const auto last = [](const Operand& o, uint64_t address) { return address + static_cast<uint64_t>(o.last); };
  if (a.first == a.last || b.first == b.last) return true;
  return last(a, address_of_a) <= first(b, address_of_b) || last(b, address_of_b) <= first(a, address_of_a);
}

bool PatchedCall::IsApartFrom(const PatchedCall& other) const {
  if (workspace_bytes_ > 0 && other.workspace_bytes_ > 0) return false;
  for (size_t a = 0; a < operands_.size(); ++a) {
    if (!operands_[a].is_read) continue;
    for (size_t b = 0; b < other.operands_.size(); ++b) {
      const Operand &own = operands_[a], &others = other.operands_[b];
      if (!others.is_read || (!own.is_output && !others.is_output)) continue;
      if (own.is_anywhere || others.is_anywhere || !AreApart(own, addresses_[a], others, other.addresses_[b])) {
        return false;
      }
    }
  }
  return true;
}

bool PatchedCall::Fits(const KernelCall& call) const {
  if (call.inputs.size() + 1 + call.more_outputs.size() != operands_.size()) return false;
  if (!scalars_.empty() && !std::equal(scalars_.begin(), scalars_.end(), call.scalars.begin(), call.scalars.end())) {
    return false;
  }
  for (size_t b = 0; b < operands_.size(); ++b) {
    const Operand& operand = operands_[b];
    if (!operand.is_read) continue;
    const uint64_t address = AddressOfOperand(call, b);
    if (address % kAlignment != operand.beyond_aligned || address == 0) return false;
    for (size_t a = 0; a < b; ++a) {
      if (!operands_[a].is_read) continue;
      const uint64_t other = AddressOfOperand(call, a);
      const bool is_equal = other == address;
      if (is_equal != (operands_[a].equal_to == operand.equal_to)) return false;
      const bool may_matter = operand.is_output || operands_[a].is_output;
      if (!is_equal && may_matter && !AreApart(operands_[a], other, operand, address)) return false;
    }
  }
  return true;
}

const std::vector<Step>& PatchedCall::StepsOf(const KernelCall& call, const Workspace& workspace) {
  const size_t operands = operands_.size();
  for (size_t o = 0; o < operands; ++o) addresses_[o] = AddressOfOperand(call, o);
  addresses_[operands] = workspace.address;
  addresses_[operands + 1] = workspace.zeros;
  addresses_[operands + 2] = workspace.fault_word;
  for (const AddressWord& word : words_) {
    const uint64_t value = addresses_[word.operand] + word.distance;
    std::memcpy(word.at, &value, sizeof(value));
  }
  for (const ArgumentElement& argument : arguments_) {
    const Element element = ToElement(call.scalars[argument.argument.scalar], argument.argument.dtype);
    std::memcpy(argument.at, &element, sizeof(element));
  }
  return steps_;
}

}  // namespace tessera::cuda
