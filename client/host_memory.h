#pragma once

// HostMemory: memory of this process that a worker on the same host can map: a memfd, sealed against
// shrinking and growing. It is how tensor bytes leave and enter a client. A downloaded array lies in it, or, if it came
// through a ring of it, in memory of this process alone, whose pages the kernel makes faster.
//
// HostView and HostArray: an array of the caller that is read, and one that was fetched.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/dtype.h"
#include "schemas/types/shape.h"

namespace tessera {

class HostMemory {
 public:
  // All bytes are reserved now: ResourceExhausted when the host has no room. `bytes` may be 0.
  static absl::StatusOr<std::shared_ptr<HostMemory>> Make(int64_t bytes);
  // Ordinary memory that nobody maps, for values that came inline: no file descriptor.
  static std::shared_ptr<HostMemory> MakePrivate(int64_t bytes);
  // The same for large arrays, in large pages where the kernel has them. The pages are made when they are touched, or
  // by MakePages: ResourceExhausted when the host has no room for them now.
  static absl::StatusOr<std::shared_ptr<HostMemory>> MakeLarge(int64_t bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  char* data() { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  // The memfd, until CloseFd; then -1. Of any thread.
  int fd() const { return fd_; }
  // The mapping stays; a long-lived array needs no file descriptor.
  void CloseFd();
  // Makes the pages of these bytes, as far as the kernel does so when it is asked.
  void MakePages(int64_t start, int64_t bytes);

 private:
  enum class Kind : uint8_t { kMapped, kPrivate };
  HostMemory(Kind kind, char* data, int64_t size_bytes, int fd)
      : kind_(kind), data_(data), size_bytes_(size_bytes), fd_(fd), mapping_(data), mapping_bytes_(size_bytes) {}
  Kind kind_;
  char* data_;
  int64_t size_bytes_;
  std::atomic<int> fd_;
  char* mapping_;  // that the data is in
  int64_t mapping_bytes_;
};

// A strided array in the caller's memory, which must outlive the call it is given to.
struct HostView {
  DType dtype = DType::kF32;
  Shape shape;
  const char* data = nullptr;
  Strides strides_bytes;
};

// Row-major elements.
struct HostArray {
  DType dtype = DType::kF32;
  Shape shape;
  std::shared_ptr<HostMemory> memory;
};

// A row-major view of `data`.
HostView MakeHostView(DType dtype, absl::Span<const int64_t> shape, const void* data);

// Copies `box` of `source` (its indices are the source's own) to row-major `destination`.
void CopyBoxTo(const HostView& source, const Box& box, char* destination);

}  // namespace tessera
