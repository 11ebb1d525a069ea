#include "client/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "absl/status/status.h"
#include "schemas/codec/available_memory.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// So small that asking costs more than it saves.
constexpr int64_t kAlwaysTriedBytes = 1 << 20;
constexpr int64_t kLargePageBytes = 2 << 20;

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
  if (const int error = posix_fallocate(fd, 0, size); error != 0) {
    close(fd);
    return MemoryError("allocation", size, error);
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
