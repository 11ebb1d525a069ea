// A grid's blocks one after the other. If blocks of a kernel look at each other's words, several are resident, and take
// turns at every such instruction; they start in an order of the seed.

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/block.h"
#include "tests/emulator/cuda/ptx/code.h"
#include "tests/emulator/cuda/ptx/ptx.h"

namespace tessera::ptx {
namespace {

std::string CheckLaunch(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch) {
  constexpr uint64_t kMaxThreads = 1024, kMaxGridY = 65535, kMaxStaticShared = 48 << 10, kMaxShared = 227 << 10;
  if (static_cast<int64_t>(parameters.size()) != kernel.parameter_bytes) {
    return StrCat(kernel.name, ": takes ", kernel.parameter_bytes, " bytes of parameters, not ", parameters.size());
  }
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  if (threads == 0 || threads > kMaxThreads) return StrCat(kernel.name, ": ", threads, " threads in a block");
  if (launch.grid[0] == 0 || launch.grid[0] > 0x7FFFFFFF || launch.grid[1] == 0 || launch.grid[1] > kMaxGridY ||
      launch.grid[2] == 0 || launch.grid[2] > kMaxGridY) {
    return StrCat(kernel.name, ": a grid of ", launch.grid[0], ",", launch.grid[1], ",", launch.grid[2]);
  }
  const auto fixed = static_cast<uint64_t>(kernel.shared_bytes);
  if (fixed > kMaxStaticShared || fixed + launch.shared_bytes > kMaxShared) {
    return StrCat(kernel.name, ": ", fixed, " + ", launch.shared_bytes, " bytes of shared memory");
  }
  return "";
}

// Blocks in this order, as many side by side as the seed says where they look at each other's words.
std::string RunResident(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch,
                        absl::Span<const uint64_t> order, uint64_t* counts) {
  constexpr uint64_t kIdleSteps = 64;  // of each block, until it is seen that none gets on
  const size_t places = kernel.code->is_synchronizing ? 2 + launch.seed % 7 : 1;
  std::mt19937 random(launch.seed * 31 + 7);
  std::optional<BlockRaces> races;
  if (order.size() > 1) races.emplace(*kernel.code, launch.grid);
  std::vector<std::unique_ptr<Block>> resident;
  size_t started = 0;
  const auto start = [&](Block& block) {
    const uint64_t b = order[started++];
    block.Start({static_cast<uint32_t>(b % launch.grid[0]), static_cast<uint32_t>(b / launch.grid[0] % launch.grid[1]),
                 static_cast<uint32_t>(b / launch.grid[0] / launch.grid[1])});
  };
  while (resident.size() < std::min(places, order.size())) {
    resident.push_back(
        std::make_unique<Block>(kernel, parameters, launch, races.has_value() ? &*races : nullptr, counts));
    start(*resident.back());
  }
  for (uint64_t idle = 0; !resident.empty();) {
    const size_t turn = random() % resident.size();
    Block& block = *resident[turn];
    const uint64_t before = block.progress();
    block.Step();
    if (!block.error().empty()) return block.error();
    idle = block.progress() == before ? idle + 1 : 0;
    if (idle > kIdleSteps * resident.size()) {
      return StrCat(kernel.name, ": ", block.WaitText(), ": ", resident.size(), " resident blocks wait for ",
                    started < order.size() ? "blocks that never start" : "each other");
    }
    if (!block.is_done()) continue;
    if (started < order.size()) {
      start(block);
    } else {
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(turn));
    }
  }
  return "";
}

}  // namespace

// The last one is the end of the body, behind its ret.
std::vector<uint32_t> InstructionLines(const Kernel& kernel) {
  std::vector<uint32_t> lines;
  for (const Instruction& instruction : kernel.code->instructions) lines.push_back(instruction.line);
  lines.pop_back();
  return lines;
}

std::string Run(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch) {
  if (std::string wrong = CheckLaunch(kernel, parameters, launch); !wrong.empty()) return wrong;
  const std::vector<Instruction>& instructions = kernel.code->instructions;
  std::vector<uint64_t> counts(instructions.size());
  std::vector<uint64_t> order(uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]);
  for (size_t b = 0; b < order.size(); ++b) order[b] = b;
  std::mt19937 random(launch.seed);
  std::shuffle(order.begin(), order.end(), random);
  const std::string wrong = RunResident(kernel, parameters, launch, order, counts.data());
  if (launch.coverage != nullptr) {
    launch.coverage->run_count.resize(instructions.size());
    for (size_t i = 0; i < instructions.size(); ++i) {
      launch.coverage->run_count[i] += counts[i];
    }
  }
  return wrong;
}

}  // namespace tessera::ptx
