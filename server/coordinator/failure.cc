#include "server/coordinator/failure.h"

#include <string>
#include <vector>

#include "schemas/types/call_origin.h"
#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kBetween = ", ";  // ops; no name and no short text of a spec has it
constexpr std::string_view kLeftOut = "...";
constexpr size_t kFirstOps = 2;
constexpr size_t kLastOps = 2;

// The way with one more op, shortened in its middle.
std::string Longer(std::string_view way, std::string_view op) {
  std::vector<std::string_view> ops;
  for (size_t start = 0, stop = 0; stop != std::string_view::npos; start = stop + kBetween.size()) {
    stop = way.find(kBetween, start);
    ops.push_back(way.substr(start, stop == std::string_view::npos ? stop : stop - start));
  }
  ops.push_back(op);
  if (ops.size() > kFirstOps + kLastOps) {
    const auto middle = ops.begin() + kFirstOps;
    *ops.erase(middle, ops.end() - kLastOps - 1) = kLeftOut;
  }
  std::string text(ops[0]);
  for (size_t i = 1; i < ops.size(); ++i) StrAppend(&text, kBetween, ops[i]);
  return text;
}

}  // namespace

absl::Status SaidBy(std::string_view called_as, std::string_view op, const absl::Status& status) {
  const std::string_view message = StdView(status.message());
  if (called_as == op || message.substr(0, op.size()) != op || message.substr(op.size(), 2) != ": ") return status;
  return WithMessage(status, StrCat(called_as, message.substr(op.size())));
}

absl::Status OnTheWay(const absl::Status& cause, std::string_view op, const TensorSpec* result) {
  const std::string shown = result == nullptr ? std::string(op) : StrCat(op, " ", ToShortText(*result));
  const std::string_view message = StdView(cause.message());
  const size_t at = message.rfind(kOnTheWay);
  const std::string text = at == std::string_view::npos ? StrCat(message, kOnTheWay, shown)
                                                        : StrCat(message.substr(0, at), kOnTheWay,
                                                                 Longer(message.substr(at + kOnTheWay.size()), shown));
  return WithMessage(cause, text);
}

}  // namespace tessera
