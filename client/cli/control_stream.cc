#include "client/cli/control_stream.h"

#include <unistd.h>

#include <cerrno>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxControlBytes = 1 << 20;  // docs/limits.md: max_control_bytes

}  // namespace

std::string ControlText(const std::vector<std::string>& environment) {
  std::string text;
  for (const std::string& entry : environment) text.append(entry).push_back('\0');
  text.push_back('\0');
  return text;
}

absl::StatusOr<std::vector<std::string>> ReadControlText(int fd) {
  std::vector<std::string> environment;
  std::string entry;
  for (size_t taken = 0; taken < kMaxControlBytes; ++taken) {
    char byte = 0;
    ssize_t count;
    do count = read(fd, &byte, 1);
    while (count < 0 && errno == EINTR);
    if (count != 1) return absl::UnavailableError("run: the control stream ended before the environment was whole");
    if (byte != '\0') {
      entry.push_back(byte);
      continue;
    }
    if (entry.empty()) return environment;
    if (entry.find('=') == std::string::npos || entry[0] == '=') {
      return absl::InvalidArgumentError(
          StrCat("run: \"", Printable(entry, 40), "\" in the control stream is no NAME=VALUE"));
    }
    environment.push_back(std::move(entry));
    entry.clear();
  }
  return absl::InvalidArgumentError(
      StrCat("run: the control stream begins with more than ", kMaxControlBytes, " bytes"));
}

}  // namespace tessera
