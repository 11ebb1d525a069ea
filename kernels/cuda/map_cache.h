#pragma once

// Programs of maps, compiled by NVRTC, which is taken by dlopen at run time, and kept in a folder by a hash of all that
// they depend on: source, headers, architecture, NVRTC's version. Several processes may use one folder.
//
//   auto cache = MapCache::Open({.folder = "/home/me/.cache/tessera/maps"});
//   cache->Compile(program, "sm_90a")    a cubin
//   cache->Compile(program, "compute_80")  PTX, as text
//
// Where NVRTC can't be had or doesn't compile, the error says why, and the launch's `otherwise` is taken.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/launch.h"

namespace tessera::cuda {

struct MapCacheOptions {
  std::string folder = {};  // empty: nothing is kept
  // Tried one after the other.
  std::vector<std::string> libraries = {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"};
};

class MapCache {
 public:
  // NotFound that names the libraries and why none was opened.
  static absl::StatusOr<std::unique_ptr<MapCache>> Open(MapCacheOptions options);
  ~MapCache();
  MapCache(const MapCache&) = delete;
  MapCache& operator=(const MapCache&) = delete;

  // From any thread. InvalidArgument with NVRTC's log.
  absl::StatusOr<std::string> Compile(const MapProgram& program, std::string_view architecture);

  // How often NVRTC was called, and a file found.
  struct Counts {
    int64_t compiled = 0;
    int64_t found = 0;
  };
  Counts counts() const;

 private:
  struct Library;
  MapCache(MapCacheOptions options, std::unique_ptr<Library> library);
  absl::StatusOr<std::string> CompileNow(const MapProgram& program, std::string_view architecture);
  std::string PathOf(const MapProgram& program, std::string_view architecture) const;

  const MapCacheOptions options_;
  const std::unique_ptr<Library> library_;
  mutable absl::Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::cuda
