#include "schemas/host/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace tessera {
namespace {

// The number behind `name`, in a file of names and numbers.
std::optional<int64_t> Entry(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string found;
  for (int64_t number = 0; file >> found;) {
    if (found == name && file >> number) return number;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// A file with one number; a limit that is "max" is none.
std::optional<int64_t> Number(const std::string& path) {
  int64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

// Bytes that a control group leaves, by its limit, its use, and the files' part of that.
std::optional<int64_t> GroupAvailable(const std::string& limit, const std::string& current, const std::string& stat,
                                      const std::string& inactive_files) {
  const std::optional<int64_t> most = Number(limit), used = Number(current);
  if (!most.has_value() || !used.has_value()) return std::nullopt;
  return std::max<int64_t>(*most - *used + std::min(*used, Entry(stat, inactive_files).value_or(0)), 0);
}

}  // namespace

int64_t HostAvailableBytes(const std::string& root) {
  int64_t available = std::numeric_limits<int64_t>::max();
  const auto at_most = [&available](std::optional<int64_t> bytes) {
    if (bytes.has_value()) available = std::min(available, *bytes);
  };
  if (const auto kib = Entry(root + "/proc/meminfo", "MemAvailable:")) at_most(*kib * 1024);
  const std::string group = root + "/sys/fs/cgroup", former = group + "/memory";  // version 2, version 1
  at_most(GroupAvailable(group + "/memory.max", group + "/memory.current", group + "/memory.stat", "inactive_file"));
  at_most(GroupAvailable(former + "/memory.limit_in_bytes", former + "/memory.usage_in_bytes", former + "/memory.stat",
                         "total_inactive_file"));
  return available;
}

}  // namespace tessera
