#pragma once

// Which libcuda.so.1 a test runs on: the emulated one, which is found beside the test, or with TESSERA_TEST_GPU=real
// the machine's own. A library that is loaded by path first is the one that the name then means. With the emulated
// driver come the emulated libcublasLt.so.13, libcudnn.so.9, libcufft.so.12, libcusolver.so.12 and libcublas.so.13;
// with a real one, the machine's.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::testing {

class TestDriver {
 public:
  // The process's one. Loads it.
  static const TestDriver& Get();

  // Why there is nothing to run on, else empty: a real driver was asked for, and there is none.
  const std::string& skip() const { return skip_; }
  bool is_emulated() const { return hold_ != nullptr; }

  // Calls of the emulated driver (control.h); a real one has none of them.
  void Hold() const;
  void Release() const;
  int Queued() const;  // operations
  // Until so many operations are queued, and for some looks no other one has come: who submits them has no more.
  void AwaitQueued(int least) const;
  std::vector<std::string> Hazards() const;
  void Fail(const char* function, int nth, int result) const;
  void Seed(uint32_t seed) const;
  // The next call of the function, of another emulated library, takes until the release.
  void HoldCall(const char* function) const;
  void ReleaseCall() const;
  // Until that call has come.
  void AwaitCall() const;
  // Calls of the function so far; null: of all.
  int Calls(const char* function = nullptr) const;

 private:
  TestDriver();
  std::string skip_;
  void (*hold_)() = nullptr;
  void (*release_)() = nullptr;
  int (*queued_)() = nullptr;
  int (*hazards_)(char*, int) = nullptr;
  void (*fail_)(const char*, int, int) = nullptr;
  void (*seed_)(uint32_t) = nullptr;
  int (*calls_)(const char*) = nullptr;
  void (*hold_call_)(const char*) = nullptr;
  void (*release_call_)() = nullptr;
  void (*await_call_)() = nullptr;
};

}  // namespace tessera::testing
