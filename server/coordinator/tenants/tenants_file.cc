#include "server/coordinator/tenants/tenants_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "absl/strings/str_format.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Errors with file and line.
class Place {
 public:
  Place(const std::string& file, const toml::source_region& source)
      : text_(StrCat(file, ":", static_cast<int64_t>(source.begin.line))) {}
  absl::Status Error(std::string_view why) const { return absl::InvalidArgumentError(StrCat(text_, ": ", why)); }

 private:
  std::string text_;
};

std::string Quoted(std::string_view text) { return StrCat("\"", Printable(text), "\""); }

absl::StatusOr<std::string> TextOf(const Place& place, std::string_view key, const toml::node& value) {
  const auto text = value.value_exact<std::string>();
  if (!text.has_value()) return place.Error(StrCat(key, " is no text"));
  if (text->empty() || text->size() > kMaxNameBytes) {
    return place.Error(StrCat(key, " has ", text->size(), " bytes; it has 1 to max_name_bytes, ", kMaxNameBytes));
  }
  return *text;
}

// A number, or text that SetLimit understands.
absl::Status TakeLimit(const Place& place, std::string_view key, const toml::node& value, TenantLimits& limits) {
  absl::Status status = absl::InvalidArgumentError(StrCat(key, " is neither a number nor a text"));
  if (const auto number = value.value_exact<int64_t>(); number.has_value()) {
    status = SetLimit(limits, key, StrCat(*number));
  } else if (const auto text = value.value_exact<std::string>(); text.has_value()) {
    status = SetLimit(limits, key, *text);
  } else if (const auto real = value.value_exact<double>(); real.has_value() && IsFraction(key)) {
    status = SetLimit(limits, key, absl::StrFormat("%.9g", *real));
  }
  return status.ok() ? status : place.Error(StdView(status.message()));
}

absl::StatusOr<TenantLimits> TenantOf(const std::string& file, const toml::table& table) {
  TenantLimits limits;
  for (const auto& [key, value] : table) {
    const Place place(file, value.source());
    if (key.str() == "name") {
      TESSERA_ASSIGN_OR_RETURN(limits.name, TextOf(place, "name", value));
    } else if (const toml::table* nested = value.as_table(); nested != nullptr) {
      for (const auto& [part, number] : *nested) {
        TESSERA_RETURN_IF_ERROR(
            TakeLimit(Place(file, number.source()), StrCat(key.str(), ".", part.str()), number, limits));
      }
    } else {
      TESSERA_RETURN_IF_ERROR(TakeLimit(place, key.str(), value, limits));
    }
  }
  return limits;
}

absl::StatusOr<TokenRole> RoleOf(const Place& place, std::string_view text) {
  if (text == "client") return TokenRole::kClient;
  if (text == "worker") return TokenRole::kWorker;
  if (text == "admin") return TokenRole::kAdmin;
  if (text == "viewer") return TokenRole::kViewer;
  return place.Error(StrCat("role is ", Quoted(text), "; it is client, worker, admin or viewer"));
}

absl::StatusOr<TokenHash> HashOf(const Place& place, std::string_view text) {
  TokenHash hash;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  bool is_good = text.size() == 2 * hash.size();
  for (size_t i = 0; is_good && i < hash.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    is_good = high >= 0 && low >= 0;
    hash[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!is_good) return place.Error("sha256 is not 64 hexadecimal digits; `printf %s TOKEN | sha256sum` prints them");
  return hash;
}

int64_t SecondsOf(const toml::date& date) {
  const std::chrono::year_month_day day{std::chrono::year(date.year), std::chrono::month(date.month),
                                        std::chrono::day(date.day)};
  return std::chrono::sys_days(day).time_since_epoch().count() * int64_t{86'400};
}

// A date is that day's first second, in UTC, as is a time without an offset.
absl::StatusOr<int64_t> ExpiryOf(const Place& place, const toml::node& value) {
  if (const auto date = value.value_exact<toml::date>(); date.has_value()) return SecondsOf(*date);
  const auto time = value.value_exact<toml::date_time>();
  if (!time.has_value()) return place.Error("expires is no date, such as 2027-01-31 or 2027-01-31T12:00:00Z");
  const int64_t offset_s = time->offset.has_value() ? int64_t{time->offset->minutes} * 60 : 0;
  return SecondsOf(time->date) + time->time.hour * 3'600 + time->time.minute * 60 + time->time.second - offset_s;
}

absl::StatusOr<int64_t> UsesOf(const Place& place, const toml::node& value) {
  const auto uses = value.value_exact<int64_t>();
  if (!uses.has_value()) return place.Error("uses is no whole number, such as 4");
  if (*uses >= 1 && *uses <= kMaxTokenUses) return *uses;
  return place.Error(StrCat("uses is ", *uses, "; it is 1 to max_token_uses, ", kMaxTokenUses));
}

absl::StatusOr<TokenEntry> TokenOf(const std::string& file, const toml::table& table) {
  TokenEntry token;
  bool has_hash = false;
  for (const auto& [key, value] : table) {
    const Place place(file, value.source());
    if (key.str() == "expires") {
      TESSERA_ASSIGN_OR_RETURN(token.expires_s, ExpiryOf(place, value));
      continue;
    }
    if (key.str() == "uses") {
      TESSERA_ASSIGN_OR_RETURN(token.uses, UsesOf(place, value));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string text, TextOf(place, key.str(), value));
    if (key.str() == "id") {
      token.id = text;
    } else if (key.str() == "sha256") {
      TESSERA_ASSIGN_OR_RETURN(token.sha256, HashOf(place, text));
      has_hash = true;
    } else if (key.str() == "tenant") {
      token.tenant = text;
    } else if (key.str() == "role") {
      TESSERA_ASSIGN_OR_RETURN(token.role, RoleOf(place, text));
    } else {
      return place.Error(
          StrCat(Quoted(key.str()), " is no key of a token; these are: id, sha256, tenant, role, expires, uses"));
    }
  }
  const Place place(file, table.source());
  if (token.id.empty()) return place.Error("a token has no id");
  if (!has_hash) return place.Error(StrCat("token ", Quoted(token.id), " has no sha256"));
  if (token.sha256 == Sha256("")) return place.Error(StrCat("token ", Quoted(token.id), " is the empty one"));
  if (token.has_uses() && token.role != TokenRole::kWorker) {
    return place.Error(StrCat("token ", Quoted(token.id), " has uses, which tokens of role \"worker\" alone have"));
  }
  if (token.tenant.empty() && token.role == TokenRole::kClient) {
    return place.Error(StrCat("token ", Quoted(token.id), " is a client's, and has no tenant"));
  }
  return token;
}

// The tables of an array, each with what makes a value of it.
template <typename Take>
absl::Status EachTable(const std::string& file, const toml::node& value, std::string_view name, size_t most,
                       const Take& take) {
  const Place place(file, value.source());
  const toml::array* const array = value.as_array();
  if (array == nullptr) return place.Error(StrCat(name, " is written as [[", name, "]]"));
  if (array->size() > most) return place.Error(StrCat(array->size(), " of [[", name, "]]; at most ", most, " may be"));
  for (const toml::node& item : *array) {
    const toml::table* const table = item.as_table();
    if (table == nullptr) return place.Error(StrCat(name, " is written as [[", name, "]]"));
    TESSERA_RETURN_IF_ERROR(take(*table, Place(file, item.source())));
  }
  return absl::OkStatus();
}

absl::Status TakeTenants(const std::string& file, const toml::node& value, TenantsFile& out) {
  std::set<std::string> names;
  return EachTable(file, value, "tenant", kMaxTenants,
                   [&](const toml::table& table, const Place& place) -> absl::Status {
                     TESSERA_ASSIGN_OR_RETURN(TenantLimits limits, TenantOf(file, table));
                     if (absl::Status status = CheckLimits(limits); !status.ok())
                       return place.Error(StdView(status.message()));
                     if (!names.insert(limits.name).second)
                       return place.Error(StrCat("tenant ", Quoted(limits.name), " is there twice"));
                     out.tenants.push_back(std::move(limits));
                     return absl::OkStatus();
                   });
}

absl::Status TakeTokens(const std::string& file, const toml::node& value, TenantsFile& out) {
  std::set<std::string> ids, tenants = {kDefaultTenant};
  std::set<TokenHash> hashes;
  for (const TenantLimits& tenant : out.tenants) tenants.insert(tenant.name);
  return EachTable(file, value, "token", kMaxTokens, [&](const toml::table& table, const Place& place) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(TokenEntry token, TokenOf(file, table));
    const std::string shown = StrCat("token ", Quoted(token.id));
    if (!ids.insert(token.id).second) return place.Error(StrCat(shown, " is there twice"));
    if (!hashes.insert(token.sha256).second) return place.Error(StrCat(shown, " has the sha256 of another one"));
    if (token.tenant.empty()) token.tenant = kDefaultTenant;
    if (!tenants.contains(token.tenant)) {
      return place.Error(StrCat(shown, " is of tenant ", Quoted(token.tenant), ", which the file doesn't have"));
    }
    out.tokens.push_back(std::move(token));
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<TenantsFile> ParseTenants(std::string_view text, const std::string& name) {
  const toml::parse_result parsed = toml::parse(text, name);
  if (parsed.failed()) {
    return Place(name, parsed.error().source()).Error(Printable(parsed.error().description(), 300));
  }
  const toml::table& root = parsed.table();
  TenantsFile file;
  for (const auto& [key, value] : root) {
    if (key.str() == "tenant" || key.str() == "token") continue;
    return Place(name, value.source())
        .Error(StrCat(Quoted(key.str()), " is no part of it; [[tenant]] and [[token]] are"));
  }
  if (const toml::node* tenants = root.get("tenant")) TESSERA_RETURN_IF_ERROR(TakeTenants(name, *tenants, file));
  if (const toml::node* tokens = root.get("token")) TESSERA_RETURN_IF_ERROR(TakeTokens(name, *tokens, file));
  return file;
}

absl::StatusOr<TenantsFile> ReadTenants(const std::string& path) {
  // A pipe would hold up who opens it.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(StrCat(path, ": can't be read: ", std::strerror(errno)));
  struct stat found {};
  std::string text;
  absl::Status status;
  if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
    status = absl::InvalidArgumentError(StrCat(path, ": it is no file"));
  } else if (static_cast<size_t>(found.st_size) > kMaxTenantsFileBytes) {
    status = absl::InvalidArgumentError(
        StrCat(path, ": it has ", found.st_size, " bytes; max_tenants_file_bytes is ", kMaxTenantsFileBytes));
  } else {
    text.resize(kMaxTenantsFileBytes + 1);
    size_t size = 0;
    for (ssize_t got = 1; got > 0 && size < text.size(); size += static_cast<size_t>(got)) {
      got = read(fd, text.data() + size, text.size() - size);
      if (got >= 0) continue;
      status = absl::UnavailableError(StrCat(path, ": can't be read: ", std::strerror(errno)));
      got = 0;
      break;
    }
    text.resize(size);
  }
  close(fd);
  TESSERA_RETURN_IF_ERROR(status);
  return ParseTenants(text, path);
}

}  // namespace tessera
