#include "client/cli/command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},      {"b", 1},        {"kb", 1e3},        {"mb", 1e6},           {"gb", 1e9},
    {"tb", 1e12}, {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0}};

}  // namespace

void AddressOption::AddTo(CLI::App& command) {
  command.add_option("--address", address,
                     "coordinator: unix:/path#token=HEX (else TESSERA_ADDRESS, else the config file)");
}

absl::StatusOr<Session> AddressOption::Connect() const {
  ConnectOptions options;
  options.client = "tessera CLI 0.1";
  options.address = address;
  if (const char* token = std::getenv("TESSERA_TOKEN"); token != nullptr) options.token = token;
  if (const char* from_env = std::getenv("TESSERA_ADDRESS"); options.address.empty() && from_env != nullptr) {
    options.address = from_env;
  }
  if (const char* home = std::getenv("HOME"); options.address.empty() && home != nullptr) {
    std::ifstream file(StrCat(std::string_view(home), "/.config/tessera/config.json"));
    const nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
    if (config.is_object()) {
      options.address = config.value("address", "");
      if (options.token.empty()) options.token = config.value("token", "");
    }
  }
  if (options.address.empty()) {
    return absl::InvalidArgumentError(
        "no address: give --address, or set TESSERA_ADDRESS, or write it to ~/.config/tessera/config.json");
  }
  return Session::Connect(options);
}

std::string CheckBytes(const std::string& text) {
  const absl::StatusOr<int64_t> bytes = ParseBytes(text);
  return bytes.ok() ? "" : std::string(bytes.status().message());
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  double number = 0;
  const std::string unit =
      digits == std::string::npos ? "" : absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(digits)));
  for (const Unit& known : kUnits) {
    if (unit != known.name || !absl::SimpleAtod(text.substr(0, digits), &number)) continue;
    const double bytes = number * known.bytes;
    if (bytes >= 1 && bytes < 9e18) return static_cast<int64_t>(bytes);
  }
  return absl::InvalidArgumentError(StrCat("\"", Printable(text, 40), "\" is no number of bytes; write like 512MiB"));
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
  return 1;
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
