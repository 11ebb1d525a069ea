#include "server/coordinator/tenants/tenant_limits.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

enum class IssueUnit { kCount, kBytes, kPermille, kLanes };

constexpr std::string_view kLaneWords[] = {"auto", "interactive", "batch"};  // by kLanesAuto and so on

struct Field {
  std::string_view key;
  int64_t TenantLimits::*value;
  IssueUnit unit;
  int64_t least;
  int64_t most;
  bool may_be_none;
};

// The one list of the numbers.
constexpr Field kFields[] = {
    {"weight", &TenantLimits::weight, IssueUnit::kCount, 1, kMaxTenantWeight, false},
    {"memory.guaranteed", &TenantLimits::guaranteed_bytes, IssueUnit::kBytes, 0, kMaxArenaBytes, false},
    {"memory.max", &TenantLimits::max_bytes, IssueUnit::kBytes, 0, kMaxArenaBytes, true},
    {"memory.spilled", &TenantLimits::max_spilled_bytes, IssueUnit::kBytes, 0, kMaxArenaBytes, true},
    {"sessions", &TenantLimits::max_sessions, IssueUnit::kCount, 0, int64_t{1} << 20, true},
    {"connections", &TenantLimits::max_connections, IssueUnit::kCount, 0, int64_t{1} << 20, true},
    {"queued", &TenantLimits::max_queued_records, IssueUnit::kCount, 1, int64_t{1} << 40, true},
    {"device_share", &TenantLimits::max_device_permille, IssueUnit::kPermille, 1, 1000, true},
    {"detached", &TenantLimits::max_detached_bytes, IssueUnit::kBytes, 0, kMaxArenaBytes, true},
    {"lanes", &TenantLimits::lanes, IssueUnit::kLanes, kLanesAuto, kLanesBatch, false},
};

const Field* FieldOf(std::string_view key) {
  for (const Field& field : kFields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

absl::Status CheckRange(const Field& field, int64_t value) {
  const bool is_none = field.may_be_none && value == kUnlimited;
  if (is_none || (value >= field.least && value <= field.most)) return absl::OkStatus();
  if (field.unit == IssueUnit::kPermille) {
    return absl::InvalidArgumentError(
        StrCat(field.key, " is ", value, " thousandths; it is 0.001 to 1, in thousandths, or none"));
  }
  return absl::InvalidArgumentError(StrCat(field.key, " is ", value, "; it is ", field.least, " to ", field.most,
                                           field.may_be_none ? ", or none" : ""));
}

// "0.25" and "25%" are 250. At most three digits behind the point, of a percentage one.
absl::StatusOr<int64_t> PermilleOf(const Field& field, std::string_view text) {
  std::string_view digits = text;
  size_t places = 3;
  if (!digits.empty() && digits.back() == '%') {
    digits.remove_suffix(1);
    places = 1;
  }
  const size_t point = std::min(digits.find('.'), digits.size());
  const std::string_view whole = digits.substr(0, point);
  std::string part(point < digits.size() ? digits.substr(point + 1) : "");
  while (part.size() > places && part.back() == '0') part.pop_back();
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_number = !whole.empty() && whole.size() <= 4 && part.size() <= places &&
                         std::all_of(whole.begin(), whole.end(), is_digit) &&
                         std::all_of(part.begin(), part.end(), is_digit);
  if (!is_number) {
    return absl::InvalidArgumentError(StrCat(field.key, " is \"", Printable(text, kMaxNameBytes),
                                             "\", which is no fraction in thousandths, such as 0.25 or 25%"));
  }
  part.resize(places, '0');
  int64_t permille = 0;
  for (const char c : StrCat(whole, part)) permille = permille * 10 + (c - '0');
  return permille;
}

absl::StatusOr<int64_t> LanesOf(const Field& field, std::string_view text) {
  for (size_t i = 0; i < std::size(kLaneWords); ++i) {
    if (text == kLaneWords[i]) return static_cast<int64_t>(i);
  }
  return absl::InvalidArgumentError(
      StrCat(field.key, " is \"", Printable(text, kMaxNameBytes), "\"; it is auto, interactive or batch"));
}

absl::StatusOr<int64_t> NumberOf(const Field& field, std::string_view text) {
  if (field.unit == IssueUnit::kPermille) return PermilleOf(field, text);
  if (field.unit == IssueUnit::kLanes) return LanesOf(field, text);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  if (field.unit == IssueUnit::kBytes) {
    if (absl::StatusOr<int64_t> bytes = ParseBytes(text); bytes.ok()) return bytes;
  }
  return absl::InvalidArgumentError(StrCat(field.key, " is \"", Printable(text, kMaxNameBytes),
                                           "\", which is no number",
                                           field.unit == IssueUnit::kBytes ? " of bytes, such as 8GiB" : ""));
}

}  // namespace

std::vector<std::string_view> LimitKeys() {
  std::vector<std::string_view> keys;
  for (const Field& field : kFields) keys.push_back(field.key);
  return keys;
}

absl::Status SetLimit(TenantLimits& limits, std::string_view key, std::string_view value) {
  const Field* const field = FieldOf(key);
  if (field == nullptr) {
    std::string known;
    for (const Field& one : kFields) known += StrCat(known.empty() ? "" : ", ", one.key);
    return absl::InvalidArgumentError(
        StrCat("\"", Printable(key, kMaxNameBytes), "\" is no limit; these are: ", known));
  }
  int64_t number = kUnlimited;
  if (!(field->may_be_none && value == "none")) {
    TESSERA_ASSIGN_OR_RETURN(number, NumberOf(*field, value));
    if (number == kUnlimited) number = kUnlimited - 1;  // a number beyond the range, and not the word
  }
  TESSERA_RETURN_IF_ERROR(CheckRange(*field, number));
  limits.*(field->value) = number;
  return absl::OkStatus();
}

std::string LimitText(const TenantLimits& limits, std::string_view key) {
  const Field* const field = FieldOf(key);
  if (field == nullptr) return "";
  const int64_t value = limits.*(field->value);
  if (value == kUnlimited) return "none";
  if (field->unit == IssueUnit::kLanes) return std::string(kLaneWords[static_cast<size_t>(value)]);
  if (field->unit == IssueUnit::kPermille) return absl::StrFormat("%d.%03d", value / 1000, value % 1000);
  return StrCat(value);
}

bool IsFraction(std::string_view key) {
  const Field* const field = FieldOf(key);
  return field != nullptr && field->unit == IssueUnit::kPermille;
}

absl::Status CheckLimits(const TenantLimits& limits) {
  if (limits.name.empty() || limits.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        StrCat("its name has ", limits.name.size(), " bytes; it has 1 to max_name_bytes, ", kMaxNameBytes));
  }
  for (const Field& field : kFields) TESSERA_RETURN_IF_ERROR(CheckRange(field, limits.*(field.value)));
  if (limits.guaranteed_bytes > limits.max_bytes) {
    return absl::InvalidArgumentError(
        StrCat("memory.guaranteed is ", limits.guaranteed_bytes, ", and memory.max is ", limits.max_bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckTenants(const std::vector<TenantLimits>& tenants) {
  if (tenants.size() > kMaxTenants) {
    return absl::InvalidArgumentError(StrCat(tenants.size(), " tenants; max_tenants is ", kMaxTenants));
  }
  std::set<std::string_view> names;
  for (const TenantLimits& tenant : tenants) {
    const std::string shown = StrCat("tenant \"", Printable(tenant.name), "\"");
    if (absl::Status status = CheckLimits(tenant); !status.ok()) {
      return absl::InvalidArgumentError(StrCat(shown, ": ", StdView(status.message())));
    }
    if (!names.insert(tenant.name).second) return absl::InvalidArgumentError(StrCat(shown, " is there twice"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
