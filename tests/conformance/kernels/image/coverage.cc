// At the end of a test program: how much of the image's kernels it has run, by family. A kernel that was never launched
// counts with all of its instructions. Where Bazel wants a test's files, ptx_coverage.txt says it of each instruction
// ("family kernel 0110... 12,13,14,15": 1 was run, and the lines of FAMILY.ptx), for tools/ptx_coverage.py to put the
// shards together.

#include <algorithm>
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

// By instruction of the kernel: '1' where it was run.
std::string RunOf(const std::string& name, size_t instructions) {
  std::string run(instructions, '0');
  if (const auto found = CoverageSoFar().find(name); found != CoverageSoFar().end()) {
    const std::vector<uint64_t>& counts = found->second.coverage.run_count;
    for (size_t i = 0; i < counts.size() && i < run.size(); ++i) run[i] = counts[i] > 0 ? '1' : '0';
  }
  return run;
}

class PrintsCoverage : public ::testing::Environment {
 public:
  void TearDown() override {
    const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    std::ofstream file;
    if (folder != nullptr) file.open(std::string(folder) + "/ptx_coverage.txt");
    for (const cuda::ImagePart& part : cuda::Image()) {
      const std::string family(part.family), text = TextOf(family);
      auto module = ptx::Parse(text);
      ASSERT_TRUE(module.ok()) << module.status();
      size_t run_count = 0, count = 0;
      for (const auto& [name, kernel] : module->kernels) {
        const std::vector<uint32_t> lines = ptx::InstructionLines(kernel);
        const std::string run = RunOf(name, lines.size());
        run_count += static_cast<size_t>(std::count(run.begin(), run.end(), '1'));
        count += run.size();
        file << family << ' ' << name << ' ' << run << ' ';
        for (size_t i = 0; i < lines.size(); ++i) file << (i == 0 ? "" : ",") << lines[i];
        file << '\n';
      }
      std::printf("PTX coverage of %s: %zu of %zu instructions\n", family.c_str(), run_count, count);
      if (folder != nullptr) std::ofstream(std::string(folder) + '/' + family + ".ptx") << text;
    }
    EXPECT_TRUE(folder == nullptr || file.flush()) << folder;
  }
};

const auto* const kRegistered = ::testing::AddGlobalTestEnvironment(new PrintsCoverage);

}  // namespace
}  // namespace tessera::on_image
