// tessera join-token: a token by which workers join, and the lines of the tenants file that make it good.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "schemas/host/random_hex.h"
#include "schemas/link/authority.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kMaxUses = 65'536;              // docs/limits.md: max_token_uses
constexpr double kMaxTtlS = 3650 * 86'400.0;  // docs/limits.md: max_token_ttl

struct JoinTokenOptions {
  int64_t uses = 1;
  double ttl_s = 86'400;
  std::string id;
  std::string tenants;
};

// As TOML has it.
std::string TimeText(std::time_t time) {
  std::tm parts{};
  char text[32] = "";
  gmtime_r(&time, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

absl::Status Failure(const std::string& file) {
  const std::string why = StrCat("join-token: --tenants ", Printable(file, 200), ": ", std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(why) : absl::UnavailableError(why);
}

// Opens the file and locks it against others of this command. One that was replaced meanwhile is opened again.
absl::StatusOr<int> OpenLocked(const std::string& file) {
  for (;;) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Failure(file);
    struct stat own {
    }, there{};
    if (flock(fd, LOCK_EX) != 0 || fstat(fd, &own) != 0) {
      const absl::Status failed = Failure(file);
      close(fd);
      return failed;
    }
    if (stat(file.c_str(), &there) == 0 && own.st_ino == there.st_ino && own.st_dev == there.st_dev) return fd;
    close(fd);
  }
}

// The file with the lines behind it, in its place: whoever reads it finds all of the old one or all of the new one.
absl::Status ReplaceWith(const std::string& file, int old, const std::string& lines) {
  struct stat info {};
  std::ifstream in(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in.is_open() || in.bad() || fstat(old, &info) != 0) return Failure(file);
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += lines;
  const std::string half = StrCat(file, ".", getpid(), ".new");
  const int fd = open(half.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return Failure(half);
  const bool is_own = geteuid() != 0 || fchown(fd, info.st_uid, info.st_gid) == 0;
  const bool is_written = is_own && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                          fchmod(fd, info.st_mode & 0777) == 0 && fsync(fd) == 0;
  close(fd);
  if (is_written && rename(half.c_str(), file.c_str()) == 0) return absl::OkStatus();
  const absl::Status failed = Failure(file);
  unlink(half.c_str());
  return failed;
}

absl::Status Append(const std::string& file, const std::string& lines) {
  TESSERA_ASSIGN_OR_RETURN(const int fd, OpenLocked(file));
  const absl::Status done = ReplaceWith(file, fd, lines);
  close(fd);
  return done;
}

int Make(const JoinTokenOptions& options) {
  const std::string token = RandomHex(16);
  const std::string id = options.id.empty() ? StrCat("join-", RandomHex(4)) : options.id;
  const std::time_t end = std::time(nullptr) + static_cast<std::time_t>(options.ttl_s);
  const std::string lines = StrCat("\n[[token]]\nid = \"", id, "\"\nsha256 = \"", Sha256Hex(token),
                                   "\"\nrole = \"worker\"\nuses = ", options.uses, "\nexpires = ", TimeText(end), "\n");
  if (options.tenants.empty()) {
    std::fprintf(stderr, "The coordinator's tenants file (--tenants) needs these lines:\n%s\n", lines.c_str());
  } else if (const absl::Status done = Append(options.tenants, lines); !done.ok()) {
    return Failed(done);
  } else {
    std::fprintf(stderr, "%s has the token \"%s\": good for %lld workers until %s\n", options.tenants.c_str(),
                 id.c_str(), static_cast<long long>(options.uses), DateText(end).c_str());
  }
  std::printf("%s\n", token.c_str());
  return 0;
}

// A text that TOML has between quotes as it is.
std::string CheckId(const std::string& id) {
  const bool is_plain =
      id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == std::string::npos;
  return is_plain && !id.empty() && id.size() <= 100 ? "" : "it has 1 to 100 letters, digits, - _ and .";
}

}  // namespace

Command AddJoinTokenCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "join-token", "Make a token by which some workers join until some time, and print it to stdout");
  auto options = std::make_shared<JoinTokenOptions>();
  command->add_option("--uses", options->uses, "for how many workers it is good; one that comes back counts once")
      ->check(CLI::Range(1, kMaxUses))
      ->capture_default_str();
  command->add_option("--ttl", options->ttl_s, "how long it is good (1h, 30m, 90s, 7d)")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, double>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}))
      ->check(CLI::Range(1.0, kMaxTtlS))
      ->default_str("24h");
  command->add_option("--id", options->id, "its name in logs and errors, once in the file; a random one when not given")
      ->check(CheckId);
  command->add_option("--tenants", options->tenants,
                      "the coordinator's tenants file, which gets the token's lines; when not given they are shown");
  command->footer("Example:\n  tessera join-token --uses 4 --ttl 1h --tenants /etc/tessera/tenants.toml > token");
  return {command, [options] { return Make(*options); }};
}

}  // namespace tessera
