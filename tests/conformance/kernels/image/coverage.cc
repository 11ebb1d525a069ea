// At the end of a test program: how much of the image's kernels it has run, by family. A kernel that was never launched
// counts with all of its instructions. Where Bazel wants a test's files, ptx_coverage.txt says it of each instruction
// ("family kernel 0110...": 1 was run), for tools/ptx_coverage.py to put the shards together.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

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
    if (const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR"); folder != nullptr) {
      Write(std::string(folder) + "/ptx_coverage.txt");
    }
  }

 private:
  static void Write(const std::string& path) {
    std::ofstream file(path);
    for (const cuda::ImagePart& part : cuda::Image()) {
      auto module = ptx::Parse(TextOf(std::string(part.family)));
      if (!module.ok()) continue;
      for (const auto& [name, kernel] : module->kernels) {
        std::string run(ptx::InstructionCount(kernel), '0');
        if (const auto found = CoverageSoFar().find(name); found != CoverageSoFar().end()) {
          const std::vector<uint64_t>& counts = found->second.coverage.run_count;
          for (size_t i = 0; i < counts.size() && i < run.size(); ++i) run[i] = counts[i] > 0 ? '1' : '0';
        }
        file << part.family << ' ' << name << ' ' << run << '\n';
      }
    }
    EXPECT_TRUE(file.flush()) << path;
  }
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
