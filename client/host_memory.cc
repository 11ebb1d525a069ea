#include "client/host_memory.h"

#include <fcntl.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "absl/status/status.h"
#include "client/wait.h"
#include "schemas/host/available_memory.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// So small that asking costs more than it saves.
constexpr int64_t kAlwaysTriedBytes = 1 << 20;
constexpr int64_t kLargePageBytes = 2 << 20;
// So much is reserved at a time, between two looks for an interrupt.
constexpr int64_t kReservedBytes = int64_t{64} << 20;

// Where memory of MakeShared lies in this process: an array is known by its address, whoever has made a view of it.
class SharedPlaces {
 public:
  void Add(const std::shared_ptr<HostMemory>& memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_[reinterpret_cast<uintptr_t>(memory->data())] = memory;
  }
  void Remove(const char* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_.erase(reinterpret_cast<uintptr_t>(data));
  }
  std::shared_ptr<HostMemory> Find(uintptr_t start, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = places_.upper_bound(start);
    if (after == places_.begin()) return nullptr;
    std::shared_ptr<HostMemory> memory = std::prev(after)->second.lock();
    if (memory == nullptr || memory->fd() < 0) return nullptr;
    const uintptr_t first = reinterpret_cast<uintptr_t>(memory->data());
    return start + bytes <= first + memory->size_bytes() ? memory : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, std::weak_ptr<HostMemory>> places_;
};

SharedPlaces& Places() {
  static auto* places = new SharedPlaces();
  return *places;
}

absl::Status MemoryError(std::string_view what, int64_t bytes, int error) {
  return absl::ResourceExhaustedError(
      StrCat("host memory: ", what, " of ", bytes, " bytes failed: ", std::string_view(strerror(error))));
}

absl::Status CheckAvailable(int64_t bytes) {
  if (bytes <= kAlwaysTriedBytes) return absl::OkStatus();
  const int64_t available = HostAvailableBytes();
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("host memory: ", bytes, " bytes wanted in this process, the host has ", available, " available"));
}

absl::Status Reserve(int fd, int64_t bytes) {
  WorkPoll poll;
  for (int64_t at = 0; at < bytes; at += kReservedBytes) {
    TESSERA_RETURN_IF_ERROR(poll.Poll());
    const int error = posix_fallocate(fd, at, std::min(kReservedBytes, bytes - at));
    if (error != 0) return MemoryError("allocation", bytes, error);
  }
  return absl::OkStatus();
}

// Large pages of a mapped memfd without pages, as far as the kernel makes them: it does so around a page that is there.
absl::Status MakeLargePages(int fd, char* data, int64_t bytes) {
#if defined(MADV_COLLAPSE)
  WorkPoll poll;
  for (int64_t at = 0; at + kLargePageBytes <= bytes; at += kLargePageBytes) {
    TESSERA_RETURN_IF_ERROR(poll.Poll());
    if (const int error = posix_fallocate(fd, at, 1); error != 0) return MemoryError("allocation", bytes, error);
    if (madvise(data + at, kLargePageBytes, MADV_COLLAPSE) != 0) break;
  }
#else
  (void)fd, (void)data, (void)bytes;
#endif
  return absl::OkStatus();
}

// Copies one row of the innermost dim.
void CopyRow(char* destination, const char* source, int64_t count, int64_t stride_bytes, int64_t element_bytes) {
  if (stride_bytes == element_bytes) {
    std::memcpy(destination, source, count * element_bytes);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(destination + i * element_bytes, source + i * stride_bytes, element_bytes);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<HostMemory>> HostMemory::Make(int64_t bytes) {
  const int64_t size = std::max<int64_t>(bytes, 1);
  TESSERA_RETURN_IF_ERROR(CheckAvailable(size));
  const int fd = memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return MemoryError("memfd_create", size, errno);
  if (absl::Status reserved = Reserve(fd, size); !reserved.ok()) {
    close(fd);
    return reserved;
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return MemoryError("mapping", size, error);
  }
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    const int error = errno;
    munmap(data, size);
    close(fd);
    return MemoryError("sealing", size, error);
  }
  return std::shared_ptr<HostMemory>(new HostMemory(Kind::kMapped, static_cast<char*>(data), size, fd));
}

absl::StatusOr<std::shared_ptr<HostMemory>> HostMemory::MakeShared(int64_t bytes) {
  const int64_t size = std::max<int64_t>(bytes, 1), mapping_bytes = size + kLargePageBytes;
  TESSERA_RETURN_IF_ERROR(CheckAvailable(size));
  void* mapping = mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return MemoryError("mapping", size, errno);
  char* const start = static_cast<char*>(mapping);
  char* const data = start + (-reinterpret_cast<uintptr_t>(start) & (kLargePageBytes - 1));
  const int fd = memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::shared_ptr<HostMemory> made(new HostMemory(Kind::kMapped, data, size, fd));
  made->mapping_ = start;
  made->mapping_bytes_ = mapping_bytes;
  if (fd < 0) return MemoryError("memfd_create", size, errno);
  if (ftruncate(fd, size) != 0) return MemoryError("allocation", size, errno);
  if (mmap(data, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return MemoryError("mapping", size, errno);
  }
  TESSERA_RETURN_IF_ERROR(MakeLargePages(fd, data, size));
  TESSERA_RETURN_IF_ERROR(Reserve(fd, size));
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return MemoryError("sealing", size, errno);
  made->is_shared_ = true;
  Places().Add(made);
  return made;
}

std::shared_ptr<HostMemory> HostMemory::FindShared(const void* data, int64_t bytes) {
  return Places().Find(reinterpret_cast<uintptr_t>(data), bytes);
}

absl::Status HostMemory::TakeBack(int64_t start, int64_t bytes) {
  CloseFd();
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t first = start / page * page, end = (start + bytes + page - 1) / page * page;
  void* own = mmap(nullptr, end - first, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return MemoryError("mapping", end - first, errno);
  std::memcpy(own, data_ + first, end - first);
  if (mremap(own, end - first, end - first, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + first) == MAP_FAILED) {
    const int error = errno;
    munmap(own, end - first);
    return MemoryError("mapping", end - first, error);
  }
  return absl::OkStatus();
}

std::shared_ptr<HostMemory> HostMemory::MakePrivate(int64_t bytes) {
  const int64_t size = std::max<int64_t>(bytes, 1);
  return std::shared_ptr<HostMemory>(
      new HostMemory(Kind::kPrivate, static_cast<char*>(::operator new(size)), size, -1));
}

absl::StatusOr<std::shared_ptr<HostMemory>> HostMemory::MakeLarge(int64_t bytes) {
  const int64_t size = std::max<int64_t>(bytes, 1), mapping_bytes = size + kLargePageBytes;
  TESSERA_RETURN_IF_ERROR(CheckAvailable(size));
  void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return MemoryError("mapping", size, errno);
  char* const start = static_cast<char*>(mapping);
  char* const data = start + (-reinterpret_cast<uintptr_t>(start) & (kLargePageBytes - 1));
  madvise(data, size, MADV_HUGEPAGE);  // a wish
  std::shared_ptr<HostMemory> made(new HostMemory(Kind::kMapped, data, size, -1));
  made->mapping_ = start;
  made->mapping_bytes_ = mapping_bytes;
  return made;
}

void HostMemory::MakePages(int64_t start, int64_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  madvise(data_ + start, std::min(bytes, size_bytes_ - start), MADV_POPULATE_WRITE);
#else
  (void)start, (void)bytes;
#endif
}

HostMemory::~HostMemory() {
  if (is_shared_) Places().Remove(data_);
  if (kind_ == Kind::kPrivate) {
    ::operator delete(data_);
  } else {
    munmap(mapping_, mapping_bytes_);
  }
  CloseFd();
}

void HostMemory::CloseFd() {
  if (const int fd = fd_.exchange(-1); fd >= 0) close(fd);
}

HostView MakeHostView(DType dtype, absl::Span<const int64_t> shape, const void* data) {
  HostView view{dtype, Shape(shape.begin(), shape.end()), static_cast<const char*>(data), RowMajorStrides(shape)};
  for (int64_t& stride : view.strides_bytes) stride *= SizeBytes(dtype);
  return view;
}

void CopyBoxTo(const HostView& source, const Box& box, char* destination) {
  if (IsEmpty(box)) return;
  const int64_t element_bytes = SizeBytes(source.dtype);
  const char* start = source.data;
  for (size_t d = 0; d < box.size(); ++d) start += box[d].start * source.strides_bytes[d];
  if (box.empty()) {
    std::memcpy(destination, start, element_bytes);
    return;
  }
  // Trailing dims that lie densely in the source are one row.
  int inner = static_cast<int>(box.size()) - 1;
  int64_t row = box[inner].size();
  const int64_t row_stride = row == 1 ? element_bytes : source.strides_bytes[inner];
  while (inner > 0 && row_stride == element_bytes && source.strides_bytes[inner - 1] == row * element_bytes) {
    --inner;
    row *= box[inner].size();
  }
  Shape index(inner, 0);
  for (;;) {
    const char* at = start;
    for (int d = 0; d < inner; ++d) at += index[d] * source.strides_bytes[d];
    CopyRow(destination, at, row, row_stride, element_bytes);
    destination += row * element_bytes;
    int d = inner - 1;
    while (d >= 0 && ++index[d] == box[d].size()) index[d--] = 0;
    if (d < 0) return;
  }
}

}  // namespace tessera
