#include "client/cli/command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
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

// In any case; none is B.
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

void AddressOption::AddTo(CLI::App& command) {
  command.add_option("--address", address,
                     "coordinator: unix:/path#token=HEX (else TESSERA_ADDRESS, else the config file)");
}

absl::StatusOr<Session> AddressOption::Connect() const {
  ConnectOptions options;
  options.client = "tessera CLI 0.1";
  options.address = address;
  if (const char* from_env = std::getenv("TESSERA_ADDRESS"); options.address.empty() && from_env != nullptr) {
    options.address = from_env;
  }
  std::string configured_token;
  if (const char* home = std::getenv("HOME"); options.address.empty() && home != nullptr) {
    std::ifstream file(StrCat(std::string_view(home), "/.config/tessera/config.json"));
    const nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
    if (config.is_object()) {
      options.address = config.value("address", "");
      configured_token = config.value("token", "");
    }
  }
  if (options.address.empty()) {
    return absl::FailedPreconditionError(
        "no address: give --address, or set TESSERA_ADDRESS, or write it to ~/.config/tessera/config.json");
  }
  // An address that carries a token means the cluster that made it, whatever else the environment is for.
  if (options.address.find("#token=") == std::string::npos) {
    const char* token = std::getenv("TESSERA_TOKEN");
    options.token = token != nullptr && *token != '\0' ? token : configured_token;
  }
  return Session::Connect(options);
}

std::string CheckBytes(const std::string& text) {
  const absl::StatusOr<int64_t> bytes = ParseBytes(text);
  return bytes.ok() ? "" : std::string(bytes.status().message());
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  const size_t end = std::min(text.find_first_not_of("+-0123456789."), text.size());
  const auto refused = [&text](std::string_view why) {
    return absl::InvalidArgumentError(StrCat("\"", Printable(text, 40), "\" ", why));
  };
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, end), &number)) return refused("is no number of bytes; write like 512MiB");
  TESSERA_ASSIGN_OR_RETURN(const double unit_bytes,
                           UnitBytes(StdView(absl::StripAsciiWhitespace(absl::string_view(text).substr(end)))));
  const double bytes = number * unit_bytes;
  if (bytes < 1) return refused("must be positive, and a byte at least");
  if (bytes >= 9e18) return refused("is more than 9e18 bytes");
  return static_cast<int64_t>(bytes);
}

std::string ShowBytes(int64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? StrCat(bytes, " B") : absl::StrFormat("%.2f %s", value, kNames[unit]);
}

int Failed(const absl::Status& status) {
  std::fprintf(stderr, "tessera: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

std::string ShowTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    out += std::string(absl::StripTrailingAsciiWhitespace(line)) + "\n";
  }
  return out;
}

}  // namespace tessera
