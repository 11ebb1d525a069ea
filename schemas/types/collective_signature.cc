#include "schemas/types/collective_signature.h"

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// How many times the signature's elements an operand and a result have, where the member has one.
struct Factors {
  int64_t operand = 1;
  int64_t result = 1;
};
Factors FactorsOf(CollectiveKind kind, int64_t ranks) {
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather: return {1, ranks};
    case CollectiveKind::kScatter:
    case CollectiveKind::kReduceScatter: return {ranks, 1};
    case CollectiveKind::kAllToAll: return {ranks, ranks};
    default: return {1, 1};
  }
}

// The tensors that the member has to have.
struct Needs {
  bool operand = false;
  bool result = false;
};
Needs NeedsOf(const CollectiveSignature& signature, int64_t rank) {
  const bool is_root = rank == signature.root;
  switch (signature.kind) {
    case CollectiveKind::kReduce: return {true, is_root};
    case CollectiveKind::kBroadcast: return {is_root, !is_root};
    case CollectiveKind::kGather: return {true, is_root};
    case CollectiveKind::kScatter: return {is_root, true};
    case CollectiveKind::kBarrier: return {false, false};
    case CollectiveKind::kSend: return {true, false};
    case CollectiveKind::kRecv: return {false, true};
    default: return {true, true};
  }
}

absl::Status Mismatch(const CollectiveSignature& signature, std::string_view which, bool has_it) {
  return absl::InvalidArgumentError(StrCat(ToText(signature.kind), ": this rank ", has_it ? "gives a " : "gives no ",
                                           which, "; ", has_it ? "it has none to give" : "it needs one"));
}

}  // namespace

std::string ToText(const CollectiveSignature& signature) {
  std::string text(ToText(signature.kind));
  if (signature.kind == CollectiveKind::kBarrier) return text;
  StrAppend(&text, " ", ToText(signature.dtype), "[", signature.elements, "]");
  if (Reduces(signature.kind)) StrAppend(&text, " ", ToText(signature.op));
  if (HasRoot(signature.kind)) {  // whom a message goes to isn't in a signature
    const bool gives = signature.kind == CollectiveKind::kBroadcast || signature.kind == CollectiveKind::kScatter;
    StrAppend(&text, gives ? " from rank " : " to rank ", signature.root);
  }
  if (signature.on_devices) StrAppend(&text, " on devices");
  return text;
}

absl::Status FillSignature(const CollectiveTensors& tensors, int64_t rank, int64_t ranks,
                           CollectiveSignature& signature) {
  const Needs needs = NeedsOf(signature, rank);
  if (needs.operand != tensors.has_operand) return Mismatch(signature, "tensor", tensors.has_operand);
  if (needs.result != tensors.has_result) return Mismatch(signature, "result", tensors.has_result);
  if (!needs.operand && !needs.result) return absl::OkStatus();
  const Factors factors = FactorsOf(signature.kind, ranks);
  signature.dtype = needs.operand ? tensors.operand_dtype : tensors.result_dtype;
  signature.elements =
      needs.operand ? tensors.operand_elements / factors.operand : tensors.result_elements / factors.result;
  const bool fits = (!needs.operand || signature.elements * factors.operand == tensors.operand_elements) &&
                    (!needs.result || (signature.elements * factors.result == tensors.result_elements &&
                                       signature.dtype == tensors.result_dtype));
  if (fits) return absl::OkStatus();
  std::string text = StrCat(ToText(signature.kind), " of ", ranks, " ranks:");
  if (needs.operand) StrAppend(&text, " ", ToText(tensors.operand_dtype), "[", tensors.operand_elements, "]");
  if (needs.result) {
    StrAppend(&text, needs.operand ? " to " : " ", ToText(tensors.result_dtype), "[", tensors.result_elements, "]");
  }
  return absl::InvalidArgumentError(
      StrCat(text, "; it takes ", factors.operand, " parts and gives ", factors.result, ", all of one size and dtype"));
}

}  // namespace tessera
