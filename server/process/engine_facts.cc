#include "server/process/engine_facts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kMaxIndex = 1 << 20;

std::optional<double> FirstNumber(const std::string& path) {
  double number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

// The process's control groups, "" for the root: of version 2, and of one controller of version 1.
std::string GroupOf(const std::string& root, std::string_view controller) {
  std::ifstream lines(root + "/proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = StrCat(",", controllers, ",").find(StrCat(",", controller, ",")) != std::string::npos;
    if (controller.empty() ? controllers.empty() : is_it) return line.substr(second + 1);
  }
  return "";
}

// The group's folder and all above it that are there: in a container the group's own name may not be.
std::vector<std::string> Folders(const std::string& top, std::string group) {
  std::vector<std::string> folders;
  for (; group.size() > 1; group.erase(group.rfind('/'))) folders.push_back(top + group);
  folders.push_back(top);
  return folders;
}

class Least {
 public:
  void Offer(double value, std::string from) {
    if (value > 0 && value < value_) {
      value_ = value;
      from_ = std::move(from);
    }
  }
  bool is_there() const { return !from_.empty(); }
  double value() const { return value_; }
  const std::string& from() const { return from_; }

 private:
  double value_ = std::numeric_limits<double>::infinity();
  std::string from_;
};

void OfferFiles(Least& least, const std::string& top, const std::string& group, const char* file, size_t root_chars) {
  for (const std::string& folder : Folders(top, group)) {
    const std::string path = StrCat(folder, "/", file);
    if (const auto number = FirstNumber(path)) least.Offer(*number, path.substr(root_chars));
  }
}

void OfferHostMemory(Least& memory, const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  double kib = 0;
  if (file >> name >> kib && name == "MemTotal:") memory.Offer(kib * 1024, "the host");
}

void OfferCpus(Least& cpus, const std::string& root) {
  const std::string top = root + "/sys/fs/cgroup";
  for (const std::string& folder : Folders(top, GroupOf(root, ""))) {
    double quota = 0, period = 0;
    std::ifstream file(folder + "/cpu.max");
    if (file >> quota >> period && period > 0) cpus.Offer(quota / period, folder.substr(root.size()) + "/cpu.max");
  }
  for (const std::string& folder : Folders(top + "/cpu", GroupOf(root, "cpu"))) {
    const auto quota = FirstNumber(folder + "/cpu.cfs_quota_us"), period = FirstNumber(folder + "/cpu.cfs_period_us");
    if (quota.value_or(-1) > 0 && period.value_or(0) > 0) {
      cpus.Offer(*quota / *period, folder.substr(root.size()) + "/cpu.cfs_quota_us");
    }
  }
}

std::optional<double> NumberOf(const Variable& variable, const char* name) {
  double number = 0;
  if (absl::SimpleAtod(variable(name), &number) && number > 0) return number;
  return std::nullopt;
}

// "" or "*8+3": a host with eight workers, of which it is the one with the number 3.
struct Place {
  int workers = 1;
  int number = 0;
};
absl::StatusOr<Place> ParsePlace(const std::string& source, const std::string& text) {
  Place place;
  if (text.empty()) return place;
  const size_t plus = text.find('+');
  if (text[0] == '*' && plus != std::string::npos && absl::SimpleAtoi(text.substr(1, plus - 1), &place.workers) &&
      absl::SimpleAtoi(text.substr(plus + 1), &place.number) && place.number >= 0 && place.number < place.workers &&
      place.workers <= kMaxIndex) {
    return place;
  }
  return absl::InvalidArgumentError(StrCat("--index-from ", Printable(source, 80),
                                           ": behind hostname-ordinal stands nothing, or *8+3 for number 3 of a host ",
                                           "with 8 workers"));
}

}  // namespace

std::string ReadVariable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

EngineFacts FindEngineFacts(const std::string& root, const Variable& variable) {
  constexpr double kMib = 1 << 20;
  Least memory, cpus;
  OfferHostMemory(memory, root);
  OfferFiles(memory, root + "/sys/fs/cgroup", GroupOf(root, ""), "memory.max", root.size());
  OfferFiles(memory, root + "/sys/fs/cgroup/memory", GroupOf(root, "memory"), "memory.limit_in_bytes", root.size());
  if (const auto mib = NumberOf(variable, "SLURM_MEM_PER_NODE")) memory.Offer(*mib * kMib, "SLURM_MEM_PER_NODE");
  const auto of_cpu = NumberOf(variable, "SLURM_MEM_PER_CPU"), on_node = NumberOf(variable, "SLURM_CPUS_ON_NODE");
  if (of_cpu.has_value() && on_node.has_value()) memory.Offer(*of_cpu * *on_node * kMib, "SLURM_MEM_PER_CPU");
  OfferCpus(cpus, root);
  if (const auto of_task = NumberOf(variable, "SLURM_CPUS_PER_TASK")) cpus.Offer(*of_task, "SLURM_CPUS_PER_TASK");
  EngineFacts facts;
  if (memory.is_there()) {
    facts.memory_bytes = static_cast<int64_t>(std::min(memory.value(), 9e18));
    facts.memory_from = memory.from();
  }
  if (cpus.is_there()) {
    facts.cpus = cpus.value();
    facts.cpus_from = cpus.from();
  }
  facts.node = variable("SLURMD_NODENAME");
  return facts;
}

absl::StatusOr<int64_t> ReadMemory(std::string_view text, const EngineFacts& facts, int workers) {
  std::string number(text);
  double share = 0;
  const bool is_percent = !number.empty() && number.back() == '%';
  if (is_percent) number.pop_back();
  const bool is_share = (is_percent || number.find('.') != std::string::npos) && absl::SimpleAtod(number, &share);
  if (is_percent) share /= 100;
  if (!is_share) {
    const absl::StatusOr<int64_t> parsed = ParseBytes(text);
    if (!parsed.ok()) return absl::InvalidArgumentError(StrCat("--memory: ", StdView(parsed.status().message())));
    const int64_t bytes = *parsed;
    if (facts.memory_bytes > 0 && bytes > facts.memory_bytes) {
      return absl::InvalidArgumentError(StrCat("--memory ", text, " is ", bytes, " bytes, and ", facts.memory_from,
                                               " lets this process have ", facts.memory_bytes,
                                               "; write --memory 0.8, or have the engine give more"));
    }
    return bytes;
  }
  if (!(share > 0 && share <= 1)) {
    return absl::InvalidArgumentError(
        StrCat("--memory ", text, ": a share of the memory is more than 0 and at most 1"));
  }
  if (facts.memory_bytes <= 0) {
    return absl::InvalidArgumentError(
        StrCat("--memory ", text, ": nothing here says how much memory there is; write ", "--memory 4GiB or so"));
  }
  return std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(facts.memory_bytes)) / workers);
}

absl::StatusOr<int> IndexFrom(const std::string& source, const std::string& host, const Variable& variable) {
  int index = -1;
  constexpr std::string_view kOrdinal = "hostname-ordinal";
  if (source.compare(0, kOrdinal.size(), kOrdinal) == 0) {
    TESSERA_ASSIGN_OR_RETURN(const Place place, ParsePlace(source, source.substr(kOrdinal.size())));
    const std::string name = host.substr(0, host.find('.'));
    const size_t dash = name.rfind('-');
    if (dash != std::string::npos && absl::SimpleAtoi(name.substr(dash + 1), &index) && index >= 0 &&
        index < kMaxIndex / place.workers) {
      return index * place.workers + place.number;
    }
    return absl::InvalidArgumentError(StrCat("--index-from ", Printable(source, 80), ": the host's name ",
                                             Printable(host, 80),
                                             " ends with no dash and number, as tessera-worker-3 does"));
  }
  const std::string value = variable(source.c_str());
  if (absl::SimpleAtoi(value, &index) && index >= 0 && index < kMaxIndex) return index;
  return absl::InvalidArgumentError(StrCat("--index-from ", Printable(source, 80), ": the variable ",
                                           value.empty() ? "is not set" : StrCat("is \"", Printable(value, 40), "\""),
                                           "; it is a number in a task that Slurm has started"));
}

}  // namespace tessera
