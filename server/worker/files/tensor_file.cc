#include "server/worker/files/tensor_file.h"

#include <fcntl.h>
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

// A read of elements that lie apart has so much of the file brought ahead of it. Left to itself the kernel brings up to
// the disk's readahead within one call, of which 8 MiB hold a processor for 20 ms.
constexpr int64_t kThinReadahead = int64_t{256} << 10;

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

absl::StatusOr<std::shared_ptr<TensorFile>> TensorFile::Make(std::shared_ptr<const OpenedFile> opened,
                                                             const TensorSpec& spec, FileLayout layout) {
  const int64_t file_bytes = opened->stamp().bytes;
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
  if (!is_empty && (!fits || first < 0 || last > file_bytes)) {
    return absl::InvalidArgumentError(StrCat("file: ", ToText(spec), " at byte ", layout.offset_bytes,
                                             " does not lie in a file of ", file_bytes, " bytes"));
  }
  std::shared_ptr<TensorFile> made(new TensorFile(std::move(opened), std::move(layout), element_bytes));
  if (Kind(spec.dtype) == DTypeKind::kComplex) made->number_bytes_ = element_bytes / 2;
  return made;
}

// Parts that are under way: the last one is a part of the one before it, and so on. By dims with the largest strides in
// the file first.
class TensorFile::Copying final : public ShardCopy {
 public:
  Copying(const TensorFile& file, const TransferRange& range, const Box& own, const Box& common, std::byte* shard)
      : file_(file), direction_(range.direction) {
    if (IsEmpty(common)) return;
    Part part;
    part.file_offset = file.layout_.offset_bytes;
    part.shard = shard;
    const std::vector<int64_t>& strides = file.layout_.strides;
    std::vector<size_t> dims;
    for (size_t d = 0; d < common.size(); ++d) {
      part.file_offset += common[d].start * strides[d];
      part.shard += (common[d].start - own[d].start) * range.strides[d] * item();
      if (common[d].size() > 1) dims.push_back(d);
    }
    std::stable_sort(dims.begin(), dims.end(),
                     [&](size_t a, size_t b) { return std::abs(strides[a]) > std::abs(strides[b]); });
    for (const size_t d : dims) {
      part.extents.push_back(common[d].size());
      part.file_strides.push_back(strides[d]);
      part.shard_strides.push_back(range.strides[d] * item());
    }
    Push(std::move(part));
  }

  absl::StatusOr<CopyProgress> Go(std::chrono::steady_clock::time_point until) override {
    for (int step = 1; !parts_.empty(); ++step) {
      TESSERA_RETURN_IF_ERROR(Step());
      if (step % kStepsBetweenLooks == 0 && std::chrono::steady_clock::now() >= until) break;
    }
    return parts_.empty() ? CopyProgress::kDone : CopyProgress::kMore;
  }

 private:
  static constexpr int kStepsBetweenLooks = 8;

  // How a part is moved: between the file and the shard, by way of the buffer, or some rows of its outermost dim at a
  // time.
  enum class Way : uint8_t { kStraight, kBuffered, kByRows };
  struct Part {
    std::vector<int64_t> extents;
    std::vector<int64_t> file_strides, shard_strides;  // in bytes
    int64_t file_offset = 0;
    std::byte* shard = nullptr;
    Way way = Way::kStraight;
    int64_t at = 0;    // bytes, or rows, that have been moved
    int64_t rows = 0;  // at a time
  };
  int64_t item() const { return file_.element_bytes_; }
  bool is_read() const { return direction_ == TransferDirection::kUpload; }

  void Push(Part part) {
    const int64_t bytes = BytesOf(part.extents, item());
    const bool is_dense = IsDense(part.extents, part.file_strides, item());
    const bool is_one_row = is_dense && IsDense(part.extents, part.shard_strides, item());
    part.at = 0;
    if (is_one_row && (!is_read() || file_.layout_.order == ByteOrder::kOwn)) {
      part.way = Way::kStraight;
    } else if (is_read()) {
      PlanRead(part, bytes);
    } else {
      // A buffer is written only where all of it is the part's own: the rest is others'.
      part.way = is_dense && bytes <= kFileBufferBytes ? Way::kBuffered : Way::kByRows;
      if (part.way == Way::kByRows) {
        part.rows = is_dense ? std::max<int64_t>(1, kFileBufferBytes / part.file_strides[0]) : 1;
      }
    }
    parts_.push_back(std::move(part));
  }

  void PlanRead(Part& part, int64_t bytes) {
    const auto [first, last] = SpanOf(part.extents, part.file_strides, item());
    const bool is_thin = last - first > kMaxWaste * bytes;
    is_thin_ = is_thin_ || is_thin;
    part.way = last - first <= kFileBufferBytes && !is_thin ? Way::kBuffered : Way::kByRows;
    if (part.way == Way::kBuffered) return;
    // As many rows as fit, or one where most between them isn't wanted.
    const int64_t fitting = is_thin ? 1 : std::max<int64_t>(1, kFileBufferBytes / std::abs(part.file_strides[0]) - 1);
    part.rows = std::min(fitting, (part.extents[0] + 1) / 2);  // fewer, also of rows that overlap
  }

  // One call about the file at most.
  absl::Status Step() {
    Part& part = parts_.back();
    const int64_t bytes = BytesOf(part.extents, item());
    switch (part.way) {
      case Way::kStraight: {
        const int64_t some = std::min(kFileBufferBytes, bytes - part.at);
        std::byte* const at = part.shard + part.at;
        if (is_thin_) BringAhead(part.file_offset + part.at, some);
        TESSERA_RETURN_IF_ERROR(is_read() ? file_.ReadAll(at, some, part.file_offset + part.at)
                                          : file_.WriteAll(at, some, part.file_offset + part.at));
        part.at += some;
        if (part.at == bytes) parts_.pop_back();
        return absl::OkStatus();
      }
      case Way::kBuffered: {
        const absl::Status status = is_read() ? ReadBuffer(part) : WriteBuffer(part, bytes);
        parts_.pop_back();
        return status;
      }
      case Way::kByRows: break;
    }
    if (part.at >= part.extents[0]) {
      parts_.pop_back();
      return absl::OkStatus();
    }
    Part some = part;
    some.file_offset += part.at * part.file_strides[0];
    some.shard += part.at * part.shard_strides[0];
    some.extents[0] = std::min(part.rows, part.extents[0] - part.at);
    part.at += part.rows;
    if (some.extents[0] == 1) {
      for (auto* list : {&some.extents, &some.file_strides, &some.shard_strides}) list->erase(list->begin());
    }
    Push(std::move(some));
    return absl::OkStatus();
  }

  absl::Status ReadBuffer(const Part& part) {
    const auto [first, last] = SpanOf(part.extents, part.file_strides, item());
    if (is_thin_) BringAhead(part.file_offset + first, last - first);
    buffer_.resize(static_cast<size_t>(last - first));
    TESSERA_RETURN_IF_ERROR(file_.ReadAll(buffer_.data(), last - first, part.file_offset + first));
    if (file_.layout_.order == ByteOrder::kReversed) ReverseEach(buffer_.data(), last - first, file_.number_bytes_);
    CopyBuffer(part, buffer_.data() - first);
    return absl::OkStatus();
  }
  // Before each read of a thin copy. Advice alone: where the kernel takes none, the read is as right and maybe slower.
  void BringAhead(int64_t offset, int64_t bytes) {
    if (!is_advised_) posix_fadvise(file_.file().get(), 0, 0, POSIX_FADV_RANDOM);
    is_advised_ = true;
    const bool is_next = offset >= last_read_ && offset - last_read_ <= kThinReadahead / 4;
    last_read_ = offset;
    if (!is_next || offset + bytes <= ahead_to_) return;
    ahead_to_ = offset + std::max(bytes, kThinReadahead);
    posix_fadvise(file_.file().get(), offset, ahead_to_ - offset, POSIX_FADV_WILLNEED);
  }
  absl::Status WriteBuffer(const Part& part, int64_t bytes) {
    buffer_.resize(static_cast<size_t>(bytes));
    CopyBuffer(part, buffer_.data());
    return file_.WriteAll(buffer_.data(), bytes, part.file_offset);
  }
  // Between the buffer, in which the part's first element is at `in_file`, and the shard.
  void CopyBuffer(const Part& part, std::byte* in_file) const {
    std::vector<int64_t> file_strides, shard_strides;
    for (const int64_t stride : part.file_strides) file_strides.push_back(stride / item());
    for (const int64_t stride : part.shard_strides) shard_strides.push_back(stride / item());
    if (is_read()) {
      CopyStrided(part.extents, item(), in_file, file_strides, part.shard, shard_strides);
    } else {
      CopyStrided(part.extents, item(), part.shard, shard_strides, in_file, file_strides);
    }
  }

  const TensorFile& file_;
  const TransferDirection direction_;
  std::vector<Part> parts_;
  std::vector<std::byte> buffer_;
  bool is_thin_ = false, is_advised_ = false;
  int64_t last_read_ = 0, ahead_to_ = 0;  // offsets in the file: of the last read, and up to where it was asked for
};

std::unique_ptr<ShardCopy> TensorFile::Begin(const TransferRange& range, const Box& own, const Box& box,
                                             std::byte* shard) {
  return std::make_unique<Copying>(*this, range, own, Intersect(own, box), shard);
}

absl::Status TensorFile::ReadAll(std::byte* to, int64_t bytes, int64_t offset) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count = pread(file().get(), to + done, static_cast<size_t>(bytes - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::InternalError(StrCat("file: reading at ", offset + done, ": ", std::strerror(errno)));
    if (count == 0) {
      return absl::FailedPreconditionError(
          StrCat("file: it ends at byte ", offset + done, "; it had ", opened().stamp().bytes, " when it was opened"));
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
