#include "tests/emulator/cuda/test_driver.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

namespace tessera::testing {
namespace {

// In the runfiles.
constexpr const char* kEmulated = "tests/emulator/cuda/libcuda.so.1";
// The libraries that stand beside it.
constexpr std::pair<const char*, const char*> kLibraries[] = {
    {"cuBLASLt", "tests/emulator/cuda/libcublasLt.so.13"}, {"cuDNN", "tests/emulator/cuda/libcudnn.so.9"},
    {"cuFFT", "tests/emulator/cuda/libcufft.so.12"},       {"cuSOLVER", "tests/emulator/cuda/libcusolver.so.12"},
    {"cuBLAS", "tests/emulator/cuda/libcublas.so.13"},
};

}  // namespace

const TestDriver& TestDriver::Get() {
  static const TestDriver& driver = *new TestDriver();
  return driver;
}

TestDriver::TestDriver() {
  const char* wanted = std::getenv("TESSERA_TEST_GPU");
  if (wanted != nullptr && std::string_view(wanted) == "real") {
    if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) skip_ = "TESSERA_TEST_GPU=real, and there is no libcuda.so.1";
    return;
  }
  // Hazards are looked for where a test can tell that there are none.
  setenv("TESSERA_EMULATOR_HAZARDS", "1", 0);
  void* library = dlopen(kEmulated, RTLD_NOW);
  if (library == nullptr) {
    skip_ = std::string("no emulated driver: ") + dlerror();
    return;
  }
  for (const auto& [name, path] : kLibraries) {
    if (dlopen(path, RTLD_NOW) != nullptr) continue;
    skip_ = std::string("no emulated ") + name + ": " + dlerror();
    return;
  }
  const auto take = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
  };
  take("tessera_emulator_hold", hold_);
  take("tessera_emulator_release", release_);
  take("tessera_emulator_queued", queued_);
  take("tessera_emulator_hazards", hazards_);
  take("tessera_emulator_fail", fail_);
  take("tessera_emulator_seed", seed_);
  take("tessera_emulator_calls", calls_);
  take("tessera_emulator_hold_call", hold_call_);
  take("tessera_emulator_release_call", release_call_);
  take("tessera_emulator_await_call", await_call_);
}

void TestDriver::Hold() const {
  if (is_emulated()) hold_();
}
void TestDriver::Release() const {
  if (is_emulated()) release_();
}
int TestDriver::Queued() const { return is_emulated() ? queued_() : 0; }
// Until nothing more has come for a while, in which each thread that is ready had many turns: where others have the
// processors, a turn takes milliseconds.
void TestDriver::AwaitQueued(int least) const {
  constexpr int kLooks = 100;
  constexpr std::chrono::milliseconds kWhile(1);
  auto since = std::chrono::steady_clock::now();
  for (int looks = 0, before = -1; looks < kLooks || std::chrono::steady_clock::now() - since < kWhile; ++looks) {
    const int now = Queued();
    if (now != before || now < least) {
      looks = 0;
      since = std::chrono::steady_clock::now();
    }
    before = now;
    std::this_thread::yield();
  }
}
void TestDriver::Fail(const char* function, int nth, int result) const {
  if (is_emulated()) fail_(function, nth, result);
}
void TestDriver::HoldCall(const char* function) const {
  if (is_emulated()) hold_call_(function);
}
void TestDriver::ReleaseCall() const {
  if (is_emulated()) release_call_();
}
void TestDriver::AwaitCall() const {
  if (is_emulated()) await_call_();
}
int TestDriver::Calls(const char* function) const { return is_emulated() ? calls_(function) : 0; }
void TestDriver::Seed(uint32_t seed) const {
  if (is_emulated()) seed_(seed);
}

std::vector<std::string> TestDriver::Hazards() const {
  if (!is_emulated()) return {};
  std::string all(static_cast<size_t>(hazards_(nullptr, 0)) + 1, '\0');
  hazards_(all.data(), static_cast<int>(all.size()));
  all.pop_back();
  std::vector<std::string> lines;
  std::istringstream stream(all);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace tessera::testing
