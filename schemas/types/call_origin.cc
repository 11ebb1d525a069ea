#include "schemas/types/call_origin.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kPayload = "tessera/call/";

std::string PayloadOf(const absl::Status& status) {
  std::string found;
  status.ForEachPayload([&found](absl::string_view name, const absl::Cord&) {
    if (StdView(name).substr(0, kPayload.size()) == kPayload) found = std::string(name);
  });
  return found;
}

}  // namespace

absl::Status OfCall(const absl::Status& status, uint64_t first_result) {
  if (status.ok() || first_result == 0 || !PayloadOf(status).empty()) return status;
  absl::Status marked = status;
  marked.SetPayload(StrCat(kPayload, first_result), absl::Cord());
  return marked;
}

std::optional<uint64_t> CallOf(const absl::Status& status) {
  const std::string payload = PayloadOf(status);
  uint64_t call = 0;
  if (payload.empty() || !absl::SimpleAtoi(AbslView(std::string_view(payload).substr(kPayload.size())), &call)) {
    return std::nullopt;
  }
  return call;
}

absl::Status WithoutCall(const absl::Status& status) {
  absl::Status plain = status;
  plain.ErasePayload(PayloadOf(status));
  return plain;
}

}  // namespace tessera
