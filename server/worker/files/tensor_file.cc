#include "server/worker/files/tensor_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "kernels/kernel.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// A buffer pays while it has no more than this many bytes for each that is wanted: a call of the kernel costs about as
// much as copying 16 short rows.
constexpr int64_t kMaxWaste = 16;

// The first byte of the elements and the one behind the last, from the first element's own.
std::pair<int64_t, int64_t> SpanOf(absl::Span<const int64_t> extents, absl::Span<const int64_t> strides,
                                   int64_t element_bytes) {
  int64_t first = 0, last = element_bytes;
  for (size_t d = 0; d < extents.size(); ++d) {
    const int64_t reach = (extents[d] - 1) * strides[d];
    (reach < 0 ? first : last) += reach;
  }
  return {first, last};
}

int64_t BytesOf(absl::Span<const int64_t> extents, int64_t element_bytes) {
  return std::accumulate(extents.begin(), extents.end(), element_bytes, std::multiplies<>());
}

// Whether every stride is what the dims behind it make: the elements lie one behind another.
bool IsDense(absl::Span<const int64_t> extents, absl::Span<const int64_t> strides, int64_t element_bytes) {
  int64_t expected = element_bytes;
  for (size_t d = extents.size(); d-- > 0;) {
    if (strides[d] != expected) return false;
    expected *= extents[d];
  }
  return true;
}

void ReverseEach(std::byte* bytes, int64_t count, int64_t number_bytes) {
  for (int64_t at = 0; at + number_bytes <= count; at += number_bytes) {
    std::reverse(bytes + at, bytes + at + number_bytes);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<TensorFile>> TensorFile::Make(FileDescriptor file, const TensorSpec& spec,
                                                             FileLayout layout) {
  TESSERA_ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(file));
  const int64_t element_bytes = SizeBytes(spec.dtype);
  if (layout.strides.size() != spec.shape.size()) {
    return absl::InvalidArgumentError(StrCat("file: ", layout.strides.size(), " strides for ", ToText(spec)));
  }
  int64_t first = layout.offset_bytes, last = layout.offset_bytes;
  bool fits = layout.offset_bytes >= 0 && !__builtin_add_overflow(last, element_bytes, &last);
  bool is_empty = false;
  for (size_t d = 0; d < layout.strides.size(); ++d) {
    if (layout.strides[d] % element_bytes != 0) {
      return absl::InvalidArgumentError(
          StrCat("file: a stride of ", layout.strides[d], " bytes for elements of ", element_bytes));
    }
    is_empty = is_empty || spec.shape[d] == 0;
    int64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(std::max<int64_t>(spec.shape[d] - 1, 0), layout.strides[d], &reach) &&
           !__builtin_add_overflow(reach < 0 ? first : last, reach, reach < 0 ? &first : &last);
  }
  if (!is_empty && (!fits || first < 0 || last > stamp.bytes)) {
    return absl::InvalidArgumentError(StrCat("file: ", ToText(spec), " at byte ", layout.offset_bytes,
                                             " does not lie in a file of ", stamp.bytes, " bytes"));
  }
  std::shared_ptr<TensorFile> made(new TensorFile(std::move(file), std::move(layout), stamp, element_bytes));
  if (Kind(spec.dtype) == DTypeKind::kComplex) made->number_bytes_ = element_bytes / 2;
  return made;
}

absl::StatusOr<int64_t> TensorFile::Copy(const TransferRange& range, const Box& own, const Box& box, std::byte* shard) {
  const Box common = Intersect(own, box);
  if (IsEmpty(common)) return 0;
  Part part;
  part.file_offset = layout_.offset_bytes;
  part.shard = shard;
  std::vector<size_t> dims;
  for (size_t d = 0; d < common.size(); ++d) {
    part.file_offset += common[d].start * layout_.strides[d];
    part.shard += (common[d].start - own[d].start) * range.strides[d] * element_bytes_;
    if (common[d].size() > 1) dims.push_back(d);
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [this](size_t a, size_t b) { return std::abs(layout_.strides[a]) > std::abs(layout_.strides[b]); });
  for (const size_t d : dims) {
    part.extents.push_back(common[d].size());
    part.file_strides.push_back(layout_.strides[d]);
    part.shard_strides.push_back(range.strides[d] * element_bytes_);
  }
  TESSERA_RETURN_IF_ERROR(range.direction == TransferDirection::kUpload ? ReadPart(part) : WritePart(part));
  return BytesOf(part.extents, element_bytes_);
}

bool TensorFile::IsOneRow(const Part& part) const {
  return IsDense(part.extents, part.file_strides, element_bytes_) &&
         IsDense(part.extents, part.shard_strides, element_bytes_);
}

// Between the buffer and the shard.
void TensorFile::CopyPart(const Part& part, TransferDirection direction) {
  std::vector<int64_t> file_strides, shard_strides;
  for (const int64_t stride : part.file_strides) file_strides.push_back(stride / element_bytes_);
  for (const int64_t stride : part.shard_strides) shard_strides.push_back(stride / element_bytes_);
  std::byte* const in_file = buffer_.data() + (part.file_offset - buffer_offset_);
  if (direction == TransferDirection::kUpload) {
    CopyStrided(part.extents, element_bytes_, in_file, file_strides, part.shard, shard_strides);
  } else {
    CopyStrided(part.extents, element_bytes_, part.shard, shard_strides, in_file, file_strides);
  }
}

absl::Status TensorFile::ReadPart(const Part& part) {
  const int64_t bytes = BytesOf(part.extents, element_bytes_);
  if (layout_.order == ByteOrder::kOwn && IsOneRow(part)) return ReadAll(part.shard, bytes, part.file_offset);
  const auto [first, last] = SpanOf(part.extents, part.file_strides, element_bytes_);
  const bool is_thin = last - first > kMaxWaste * bytes;
  if (last - first <= kFileBufferBytes && !is_thin) {
    buffer_offset_ = part.file_offset + first;
    buffer_.resize(static_cast<size_t>(last - first));
    TESSERA_RETURN_IF_ERROR(ReadAll(buffer_.data(), last - first, buffer_offset_));
    if (layout_.order == ByteOrder::kReversed) ReverseEach(buffer_.data(), last - first, number_bytes_);
    CopyPart(part, TransferDirection::kUpload);
    return absl::OkStatus();
  }
  // Some rows of the outermost dim at a time: as many as fit, or one where most between them isn't wanted.
  const int64_t fitting = is_thin ? 1 : std::max<int64_t>(1, kFileBufferBytes / std::abs(part.file_strides[0]) - 1);
  const int64_t rows = std::min(fitting, (part.extents[0] + 1) / 2);  // fewer, also of rows that overlap
  for (int64_t row = 0; row < part.extents[0]; row += rows) {
    Part some = part;
    some.file_offset += row * part.file_strides[0];
    some.shard += row * part.shard_strides[0];
    some.extents[0] = std::min(rows, part.extents[0] - row);
    if (some.extents[0] == 1) {
      for (auto* list : {&some.extents, &some.file_strides, &some.shard_strides}) list->erase(list->begin());
    }
    TESSERA_RETURN_IF_ERROR(ReadPart(some));
  }
  return absl::OkStatus();
}

// As ReadPart; a buffer is written only where all of it is the part's own: the rest is others'.
absl::Status TensorFile::WritePart(const Part& part) {
  const int64_t bytes = BytesOf(part.extents, element_bytes_);
  if (IsOneRow(part)) return WriteAll(part.shard, bytes, part.file_offset);
  const bool is_dense = IsDense(part.extents, part.file_strides, element_bytes_);
  if (bytes <= kFileBufferBytes && is_dense) {
    buffer_offset_ = part.file_offset;
    buffer_.resize(static_cast<size_t>(bytes));
    CopyPart(part, TransferDirection::kDownload);
    return WriteAll(buffer_.data(), bytes, part.file_offset);
  }
  const int64_t rows = is_dense ? std::max<int64_t>(1, kFileBufferBytes / part.file_strides[0]) : 1;
  for (int64_t row = 0; row < part.extents[0]; row += rows) {
    Part some = part;
    some.file_offset += row * part.file_strides[0];
    some.shard += row * part.shard_strides[0];
    some.extents[0] = std::min(rows, part.extents[0] - row);
    if (some.extents[0] == 1) {
      for (auto* list : {&some.extents, &some.file_strides, &some.shard_strides}) list->erase(list->begin());
    }
    TESSERA_RETURN_IF_ERROR(WritePart(some));
  }
  return absl::OkStatus();
}

absl::Status TensorFile::ReadAll(std::byte* to, int64_t bytes, int64_t offset) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count = pread(file().get(), to + done, static_cast<size_t>(bytes - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::InternalError(StrCat("file: reading at ", offset + done, ": ", std::strerror(errno)));
    if (count == 0) {
      return absl::FailedPreconditionError(
          StrCat("file: it ends at byte ", offset + done, "; it had ", stamp().bytes, " when it was opened"));
    }
    done += count;
  }
  return absl::OkStatus();
}

absl::Status TensorFile::WriteAll(const std::byte* from, int64_t bytes, int64_t offset) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count = pwrite(file().get(), from + done, static_cast<size_t>(bytes - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const std::string text = StrCat("file: writing at ", offset + done, ": ", std::strerror(errno));
      return errno == ENOSPC || errno == EDQUOT ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
    }
    done += count;
  }
  return absl::OkStatus();
}

}  // namespace tessera
