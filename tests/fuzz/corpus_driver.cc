// Runs a fuzz target on every file of the corpus folders given as arguments, each as it is, cut at
// every length up to 256, and with every byte up to 256 flipped. libFuzzer's own main takes the same
// folders, so that what it finds becomes a file here. Bazel's shards (shard_count) share the inputs among them.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kVariedBytes = 256;

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void RunOn(const std::string& bytes) {
  static const uint64_t shards = Setting("TEST_TOTAL_SHARDS", 1), shard = Setting("TEST_SHARD_INDEX", 0);
  static uint64_t inputs = 0;
  if (inputs++ % shards != shard) return;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

void RunVariants(const std::string& bytes) {
  RunOn(bytes);
  const size_t varied = std::min(bytes.size(), kVariedBytes);
  for (size_t i = 0; i < varied; ++i) {
    RunOn(bytes.substr(0, i));
    std::string changed = bytes;
    for (const int mask : {0x01, 0x10, 0x80, 0xff}) {
      changed[i] = static_cast<char>(bytes[i] ^ mask);
      RunOn(changed);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  // That this program knows of shards.
  if (const char* status = std::getenv("TEST_SHARD_STATUS_FILE"); status != nullptr) std::ofstream(status).flush();
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream stream(entry.path(), std::ios::binary);
      RunVariants(std::string(std::istreambuf_iterator<char>(stream), {}));
      ++files;
    }
  }
  std::cout << files << " files of the corpus passed\n";
  return files > 0 ? 0 : 1;
}
