#include "client/cli/command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "schemas/types/address.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/version.h"

namespace tessera {

void AddressOption::AddTo(CLI::App& command) {
  command.add_option("--address", address,
                     "coordinator: unix:/path#token=HEX or tls://host:port#token=HEX (else TESSERA_ADDRESS, else the\n"
                     "config file)");
  command.add_option(
      "--ca", ca,
      "PEM file of who signed the coordinator's certificate (else TESSERA_CA, else the config file, else\n"
      "those that the system trusts)");
}

namespace {

// The address, the CA and the config file's token, as the flags, the environment and then the config file say.
struct Where {
  std::string address;
  std::string ca;
  std::string configured_token;
};

Where FindWhere(const AddressOption& flags) {
  Where where{flags.address, flags.ca, ""};
  if (const char* from_env = std::getenv("TESSERA_ADDRESS"); where.address.empty() && from_env != nullptr) {
    where.address = from_env;
  }
  if (const char* from_env = std::getenv("TESSERA_CA"); where.ca.empty() && from_env != nullptr) where.ca = from_env;
  const char* home = std::getenv("HOME");
  if (!where.address.empty() || home == nullptr) return where;
  std::ifstream file(StrCat(std::string_view(home), "/.config/tessera/config.json"));
  const nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
  if (!config.is_object()) return where;
  where.address = config.value("address", "");
  where.configured_token = config.value("token", "");
  if (where.ca.empty()) where.ca = config.value("ca", "");
  return where;
}

}  // namespace

bool AddressOption::IsGiven() const { return !FindWhere(*this).address.empty(); }

std::vector<std::string> AddressOption::Environment() const {
  const Where where = FindWhere(*this);
  if (where.address.empty()) return {};
  std::vector<std::string> environment = {"TESSERA_ADDRESS=" + where.address};
  if (!where.ca.empty()) environment.push_back("TESSERA_CA=" + where.ca);
  if (!where.configured_token.empty() && std::getenv("TESSERA_TOKEN") == nullptr) {
    environment.push_back("TESSERA_TOKEN=" + where.configured_token);
  }
  return environment;
}

absl::StatusOr<Session> AddressOption::Connect() const {
  const Where where = FindWhere(*this);
  ConnectOptions options;
  options.client = StrCat("tessera CLI ", kVersion);
  options.address = where.address;
  options.tls.ca = where.ca;
  if (options.address.empty()) {
    return absl::FailedPreconditionError(
        "no address: give --address, or set TESSERA_ADDRESS, or write it to ~/.config/tessera/config.json");
  }
  // An address that carries a token means the cluster that made it, whatever else the environment is for.
  TESSERA_ASSIGN_OR_RETURN(const Address parsed, ParseAddress("connect", options.address));
  if (parsed.token.empty()) {
    options.token = where.configured_token;
    for (const char* name : {"TESSERA_TOKEN", "TESSERA_ADMIN_TOKEN"}) {
      if (const char* token = std::getenv(name); token != nullptr && *token != '\0') options.token = token;
    }
  }
  return Session::Connect(options);
}

std::string CheckBytes(const std::string& text) {
  const absl::StatusOr<int64_t> bytes = ParseBytes(text);
  return bytes.ok() ? "" : std::string(bytes.status().message());
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

std::string ShowTable(std::vector<std::vector<std::string>> rows) {
  constexpr size_t kMaxCellChars = 80;
  for (auto& row : rows) {
    for (std::string& cell : row) {
      const bool is_plain = std::all_of(cell.begin(), cell.end(), [](char c) { return c >= ' ' && c <= '~'; });
      if (!is_plain || cell.size() > kMaxCellChars) cell = Printable(cell, kMaxCellChars);
    }
  }
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
