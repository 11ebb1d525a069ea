#pragma once

// Programs: maps and row programs as NVRTC compiles them. That takes 100 to 500 ms of a thread, so it isn't done by the
// one that enqueues, which would hold up all streams.
//
//   Program& program = programs.Find(source, Lane::kBatch);   // the first time it begins to be compiled
//   if (!program.is_compiled()) ...                           // its stream goes on later, others now
//
// Each lane has a thread that compiles for it, one program after the other: what a light op needs stands behind no
// program of the batch lane. Used by one thread.

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <cuda.h>

#include "absl/status/statusor.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/map_cache.h"
#include "schemas/types/streams.h"
#include "server/device/cuda/host_thread.h"

namespace tessera::cuda {

class Program {
 public:
  const std::atomic<bool>& is_compiled() const { return is_compiled_; }
  // Once it is compiled: the code, or why there is none. To be let go of when it is loaded.
  absl::StatusOr<std::string>& code() { return code_; }
  std::optional<absl::StatusOr<CUkernel>> kernel;  // nothing: it isn't loaded

 private:
  friend class Programs;
  void SetCode(absl::StatusOr<std::string> code);
  absl::StatusOr<std::string> code_ = std::string();  // written before is_compiled_
  std::atomic<bool> is_compiled_ = false;
};

class Programs {
 public:
  // NVRTC's target: "sm_90a", "compute_80".
  Programs(MapCacheOptions options, std::string architecture);

  // Whether anything can be compiled.
  bool has_compiler() const { return cache_.ok(); }
  // The same one each time, at the same address. `lane` is that of the stream which needs it first.
  Program& Find(const MapProgram& source, Lane lane);

 private:
  absl::StatusOr<std::unique_ptr<MapCache>> cache_;
  const std::string architecture_;
  std::map<std::string, Program, std::less<>> by_source_;
  std::array<HostThread, kLaneCount> threads_;  // they end before what they write to
};

}  // namespace tessera::cuda
