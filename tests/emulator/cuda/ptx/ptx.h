#pragma once

// An interpreter of the PTX that nvcc and NVRTC make: a grid is run on the host, warp by warp, with the checks of
// compute-sanitizer. Memory that isn't the kernel's, a byte of shared memory that two threads use without a barrier
// between them, one of global memory that two blocks use with no release and acquire between (block_races.h), one of
// shared or local memory that nobody wrote, a barrier that some threads never reach: each is a named error of the
// launch.
//
//   auto module = Parse(text);
//   std::string wrong = Run(module->kernels.at("copy_4"), parameters, {.grid = {2, 1, 1}, .block = {32, 1, 1}, ...});
//   // "copy_4: block 1,0,0 thread 7 line 60: illegal address 0x7f00 (4 bytes, write)"
//
// It is one thread's work; several may run kernels of one module at the same time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera::ptx {

struct Code;  // code.h

// How often threads have come to each instruction (also where its guard was false).
struct Coverage {
  std::vector<uint64_t> run_count;
};

struct Kernel {
  std::string name;
  int64_t parameter_bytes = 0;
  int64_t shared_bytes = 0;  // static
  std::shared_ptr<const Code> code;
};

struct Module {
  std::map<std::string, Kernel, std::less<>> kernels;
};

// The lines of the text that have its instructions; functions that are called count in each call's place.
std::vector<uint32_t> InstructionLines(const Kernel& kernel);

// PTX as text; several texts one after the other are one module. InvalidArgument names the line and what isn't known.
absl::StatusOr<Module> Parse(std::string_view text);

// The PTX texts of a fatbin that isn't compressed, which are readable in it.
std::vector<std::string> PtxOf(absl::Span<const std::byte> fatbin);

enum class AccessKind : uint8_t { kRead = 0, kWrite = 1, kAtomic = 2 };

struct GridLaunch {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  uint32_t shared_bytes = 0;  // dynamic
  // Where the host has the bytes [address, address + bytes) of global memory; null where they are not the device's.
  // Called for every access, of a thread or of several whose bytes follow each other.
  std::function<std::byte*(uint64_t address, int bytes, AccessKind kind)> memory;
  uint32_t seed = 1;             // of the order of blocks and warps
  Coverage* coverage = nullptr;  // added to, where asked for
  // The limit of one thread between two waits: more is taken for a loop without an end.
  uint64_t max_instructions = 200'000'000;
};

// Empty when it is done. Else what was wrong, by kernel, block, thread and line. `parameters` has parameter_bytes.
std::string Run(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch);

}  // namespace tessera::ptx
