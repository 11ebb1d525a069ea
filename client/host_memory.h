#pragma once

// HostMemory: memory of this process that a worker on the same host can map: a memfd, sealed against
// shrinking and growing. It is how tensor bytes leave and enter a client. A downloaded array lies in it, or, if it came
// through a ring of it, in memory of this process alone, whose pages the kernel makes faster. An array of the program
// may lie in it, too (MakeShared): then workers read and write the array itself, wherever in it, and nothing is staged.
//
// HostView, HostTarget and HostArray: an array of the caller that is read, one that is written, and one that was
// fetched.

#include "client/require_cxx20.h"

#include <atomic>
#include <cstdint>
#include <functional>
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
  // The same for arrays that are moved again and again: all pages are there, large ones where the kernel makes them, so
  // that a worker maps it at once. An interrupt ends it.
  static absl::StatusOr<std::shared_ptr<HostMemory>> MakeShared(int64_t bytes);
  // The memory of MakeShared that all of these bytes lie in; null if there is none, or it was taken back from.
  static std::shared_ptr<HostMemory> FindShared(const void* data, int64_t bytes);
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
  // The memfd, until CloseFd; then -1. May be called on any thread.
  int fd() const { return fd_; }
  // The mapping stays; a long-lived array needs no file descriptor.
  void CloseFd();
  // A process that maps the memory writes these bytes no more, whatever it was asked before: their pages become memory
  // of this process alone, with what they have. The rest stays, and no other transfer begins with any of it.
  absl::Status TakeBack(int64_t start, int64_t bytes);
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
  bool is_shared_ = false;  // of MakeShared
};

// A strided array in the caller's memory, which must outlive the call it is given to.
struct HostView {
  DType dtype = DType::kF32;
  Shape shape;
  const char* data = nullptr;
  Strides strides_bytes;
};

// Row-major memory of the caller, which a download writes.
struct HostTarget {
  DType dtype = DType::kF32;
  Shape shape;
  char* data = nullptr;
};

// Writes rows of dim 0 of an array, row-major, to `destination`.
using RowReader = std::function<absl::Status(Interval rows, char* destination)>;

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
