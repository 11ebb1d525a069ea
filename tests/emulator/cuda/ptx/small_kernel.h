#pragma once

// Kernels of some lines of PTX for the interpreter's tests, and a run of one on words of the test.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/ptx.h"

namespace tessera::ptx {

// Kernels of one pointer and one number: %rd1 and %r1; %r2 is the thread's number.
inline std::string Text(std::string_view body, std::string_view before = "") {
  return StrCat(
      ".version 8.0\n.target sm_80\n.address_size 64\n", before,
      ".visible .entry k(.param .u64 k_0,\n .param .u32 k_1)\n{\n.reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 "
      "%rd<40>;\nld.param.u64 %rd1, [k_0]; ld.param.u32 %r1, [k_1]; mov.u32 %r2, %tid.x;\n",
      body, "\nret;\n}\n");
}

struct Parameters {
  uint64_t address;
  uint32_t number;
};

struct Outcome {
  std::string wrong;
  Coverage coverage;
  std::vector<uint32_t> lines;  // of instructions
};

inline Outcome RunBody(const std::string& text, std::vector<uint64_t>* memory, uint32_t number = 0,
                       std::array<uint32_t, 3> block = {32, 1, 1}, std::array<uint32_t, 3> grid = {1, 1, 1},
                       uint32_t seed = 1) {
  auto module = Parse(text);
  if (!module.ok()) return {std::string(module.status().message()), {}, {}};
  const Kernel& kernel = module->kernels.at("k");
  const Parameters given = {reinterpret_cast<uint64_t>(memory->data()), number};
  const uint64_t end = given.address + memory->size() * 8;
  Outcome outcome;
  outcome.lines = InstructionLines(kernel);
  const auto place = [&](uint64_t address, int bytes, AccessKind) -> std::byte* {
    const bool is_inside = address >= given.address && address + static_cast<uint64_t>(bytes) <= end;
    return is_inside ? reinterpret_cast<std::byte*>(address) : nullptr;
  };
  outcome.wrong = Run(kernel, {reinterpret_cast<const std::byte*>(&given), 12},
                      {.grid = grid, .block = block, .memory = place, .seed = seed, .coverage = &outcome.coverage});
  return outcome;
}

// %rd2: where the thread's 8 bytes are.
inline constexpr std::string_view kOwnPlace = "mul.wide.u32 %rd3, %r2, 8; add.s64 %rd2, %rd1, %rd3;\n";

}  // namespace tessera::ptx
