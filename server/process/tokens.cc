#include "server/process/tokens.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kDescriptor = "fd:";
constexpr size_t kMaxTokensText = 64 << 10;  // docs/limits.md: max_tokens_text
constexpr size_t kMaxShownPath = 200;

using NamedTokens = std::array<std::pair<const char*, std::string*>, 4>;

NamedTokens NamesOf(ServerTokens& tokens) {
  return {{{"TESSERA_TOKEN", &tokens.client},
           {"TESSERA_JOIN_TOKEN", &tokens.join},
           {"TESSERA_ADMIN_TOKEN", &tokens.admin},
           {"TESSERA_VIEWER_TOKEN", &tokens.viewer}}};
}

absl::Status Failed(std::string_view what, int error) {
  const std::string words = StrCat(what, ": ", std::string_view(strerror(error)));
  return error == ENOENT ? absl::NotFoundError(words) : absl::UnavailableError(words);
}

absl::Status ReadAll(std::string_view what, int fd, std::string* text) {
  for (;;) {
    std::array<char, 4096> part;
    const ssize_t count = read(fd, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(what, errno);
    if (count == 0) return absl::OkStatus();
    text->append(part.data(), static_cast<size_t>(count));
    if (text->size() > kMaxTokensText) {
      return absl::InvalidArgumentError(StrCat(what, ": more than ", kMaxTokensText, " bytes (max_tokens_text)"));
    }
  }
}

absl::Status OpenSource(const std::string& what, const std::string& source, int* fd) {
  if (source.compare(0, kDescriptor.size(), kDescriptor) == 0) {
    if (absl::SimpleAtoi(source.substr(kDescriptor.size()), fd) && fcntl(*fd, F_GETFD) >= 0) return absl::OkStatus();
    return absl::UnavailableError(StrCat(what, ": there is no such descriptor"));
  }
  *fd = open(source.c_str(), O_RDONLY | O_CLOEXEC);
  if (*fd < 0) return Failed(what, errno);
  struct stat info {};
  if (fstat(*fd, &info) == 0 && (!S_ISREG(info.st_mode) || (info.st_mode & (S_IRWXG | S_IRWXO)) == 0)) {
    return absl::OkStatus();
  }
  close(*fd);
  return absl::FailedPreconditionError(StrCat(what, ": others than its user may read or write it (mode ",
                                              (info.st_mode >> 6) & 7, (info.st_mode >> 3) & 7, info.st_mode & 7,
                                              "); chmod 600 it"));
}

absl::Status TakeLines(std::string_view what, std::string_view text, const NamedTokens& names) {
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty() || entry[0] == '#') continue;
    bool is_known = false;
    for (const auto& [name, token] : names) {
      const size_t length = std::strlen(name);
      if (entry.substr(0, length) != name || entry.size() <= length || entry[length] != '=') continue;
      is_known = true;
      if (token->empty()) *token = entry.substr(length + 1);
    }
    if (!is_known) {
      return absl::InvalidArgumentError(StrCat(what, ": line ", line, " is none of TESSERA_TOKEN=..., ",
                                               "TESSERA_JOIN_TOKEN=..., TESSERA_ADMIN_TOKEN=... and ",
                                               "TESSERA_VIEWER_TOKEN=..."));
    }
  }
  return absl::OkStatus();
}

void Overwrite(char* text) { explicit_bzero(text, std::strlen(text)); }

}  // namespace

absl::Status TakeTokens(const std::string& source, ServerTokens& tokens) {
  const NamedTokens names = NamesOf(tokens);
  if (!source.empty()) {
    const std::string what = StrCat("--tokens ", Printable(source, kMaxShownPath));
    int fd = -1;
    TESSERA_RETURN_IF_ERROR(OpenSource(what, source, &fd));
    std::string text;
    const absl::Status read = ReadAll(what, fd, &text);
    close(fd);
    TESSERA_RETURN_IF_ERROR(read);
    const absl::Status taken = TakeLines(what, text, names);
    explicit_bzero(text.data(), text.size());
    TESSERA_RETURN_IF_ERROR(taken);
  }
  for (const auto& [name, token] : names) {
    char* const value = std::getenv(name);
    if (value == nullptr) continue;
    if (token->empty()) *token = value;
    Overwrite(value);
    unsetenv(name);
  }
  return absl::OkStatus();
}

void HideTokenArguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    for (const char* flag : {"--token", "--join-token", "--admin-token", "--viewer-token"}) {
      const size_t length = std::strlen(flag);
      if (std::strncmp(argv[i], flag, length) != 0) continue;
      if (argv[i][length] == '=') Overwrite(argv[i] + length + 1);
      if (argv[i][length] == '\0' && i + 1 < argc) Overwrite(argv[i + 1]);
    }
  }
}

}  // namespace tessera
