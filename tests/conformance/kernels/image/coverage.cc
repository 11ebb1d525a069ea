// At the end of a test program: how much of the image's kernels it has run, by family. A kernel that was never launched
// counts with all of its instructions.

#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "kernels/cuda/image.h"
#include "tests/conformance/kernels/image/on_image.h"

namespace tessera::on_image {
namespace {

struct Lines {
  size_t run = 0;
  size_t all = 0;
};

class PrintsCoverage : public ::testing::Environment {
 public:
  void TearDown() override {
    Lines total;
    for (const cuda::ImagePart& part : cuda::Image()) {
      const Lines lines = LinesOf(std::string(part.family));
      Print(std::string(part.family), lines);
      total.run += lines.run;
      total.all += lines.all;
    }
    Print("all", total);
  }

 private:
  static Lines LinesOf(const std::string& family) {
    Lines lines;
    auto module = ptx::Parse(TextOf(family));
    if (!module.ok()) return lines;
    for (const auto& [name, kernel] : module->kernels) {
      const auto found = CoverageSoFar().find(name);
      if (found == CoverageSoFar().end()) {
        lines.all += ptx::InstructionCount(kernel);
        continue;
      }
      const ptx::Coverage& coverage = found->second.coverage;
      lines.all += ptx::InstructionCount(kernel);
      for (const uint64_t count : coverage.run_count) lines.run += count > 0 ? 1 : 0;
    }
    return lines;
  }
  static void Print(const std::string& name, const Lines& lines) {
    std::printf("PTX coverage of %s: %zu of %zu instructions\n", name.c_str(), lines.run, lines.all);
  }
};

const auto* const kRegistered = ::testing::AddGlobalTestEnvironment(new PrintsCoverage);

}  // namespace
}  // namespace tessera::on_image
