#include "schemas/types/byte_size.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"B", 1},           {"kB", 1e3},           {"MB", 1e6},
                           {"GB", 1e9},        {"TB", 1e12},          {"KiB", 1024.0},
                           {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};

absl::StatusOr<double> UnitBytes(std::string_view unit) {
  if (unit.empty()) return 1;
  std::string known;
  for (const Unit& one : kUnits) {
    if (absl::EqualsIgnoreCase(AbslView(unit), AbslView(one.name))) return one.bytes;
    StrAppend(&known, " ", one.name);
  }
  return absl::InvalidArgumentError(StrCat("unknown unit \"", Printable(unit, 40), "\"; known:", known));
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  const std::string_view trimmed = StdView(absl::StripAsciiWhitespace(AbslView(text)));
  const size_t end = std::min(trimmed.find_first_not_of("+-0123456789."), trimmed.size());
  const auto refused = [text](std::string_view why) {
    return absl::InvalidArgumentError(StrCat("\"", Printable(text, 40), "\" ", why));
  };
  double number = 0;
  if (!absl::SimpleAtod(AbslView(trimmed.substr(0, end)), &number)) {
    return refused("is no number of bytes; write like 512MiB");
  }
  TESSERA_ASSIGN_OR_RETURN(const double unit_bytes,
                           UnitBytes(StdView(absl::StripAsciiWhitespace(AbslView(trimmed.substr(end))))));
  const double bytes = number * unit_bytes;
  if (bytes < 1) return refused("must be positive, and a byte at least");
  if (bytes >= 9e18) return refused("is more than 9e18 bytes");
  return static_cast<int64_t>(bytes);
}

}  // namespace tessera
