#pragma once

// LibraryThread: makes what a library takes long to make before it can be enqueued, a plan or its own start, beside the
// thread that enqueues: up to seconds.
//
//   making = thread.Begin([&] { return plans.Prepare(call).status(); });   // the stream goes on when making->is_made
//
// Law: one thing at a time. Until is_free() says so nobody else calls the library or looks at what it has made: its
// handles are of one thread at a time, and so is what is kept of it.

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/host_thread.h"

namespace tessera::cuda {

struct Making {
  std::atomic<bool> is_made = false;
  absl::Status status;  // then
};

class LibraryThread {
 public:
  // Calls the function when the worker is clear, and stays so until it returns.
  using InTurn = std::function<void(absl::FunctionRef<void()>)>;

  explicit LibraryThread(const Gpu& gpu) : gpu_(gpu) {}
  void SetInTurn(InTurn in_turn) { in_turn_ = std::move(in_turn); }

  const std::atomic<bool>& is_free() const { return is_free_; }
  // While it is free. `make` is called with the GPU's context current.
  std::shared_ptr<Making> Begin(absl::AnyInvocable<absl::Status()> make) {
    is_free_ = false;
    auto making = std::make_shared<Making>();
    thread_.Run([this, making, make = std::move(make)]() mutable {
      in_turn_([&] {
        making->status = gpu_.Enter();
        if (making->status.ok()) making->status = make();
      });
      is_free_ = true;
      making->is_made = true;
    });
    return making;
  }
  // Returns when the making at hand has ended; a turn is given then, or turns are over.
  void Stop() { thread_.Stop(); }

 private:
  const Gpu gpu_;
  InTurn in_turn_ = [](absl::FunctionRef<void()> call) { call(); };
  std::atomic<bool> is_free_ = true;
  HostThread thread_;
};

}  // namespace tessera::cuda
