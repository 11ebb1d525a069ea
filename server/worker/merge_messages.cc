#include "server/worker/merge_messages.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/order_keys.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

Shape SizesOf(const KernelInstruction& kernel) {
  Shape sizes;
  for (size_t run = 0; run < std::get<MergeOp>(kernel.op).runs.size(); ++run) {
    sizes.push_back(kernel.input_extents[run][0]);
  }
  return sizes;
}

}  // namespace

MergeMessages::MergeMessages(const KernelInstruction& kernel, int64_t step, Memory memory, PhaseMessages& messages)
    : kernel_(kernel), op_(std::get<MergeOp>(kernel.op)), step_(step), memory_(memory), messages_(messages) {}

int64_t MergeMessages::MemoryBytes(const KernelInstruction& kernel, int64_t step) {
  const Shape sizes = SizesOf(kernel);
  int64_t whole = 0;
  for (const int64_t size : sizes) whole += size;
  const auto runs = static_cast<int64_t>(sizes.size());
  const int64_t most = std::min(whole, kernel.output_extents[0] + RangeSlack(runs, step));
  int64_t bytes = 0;
  for (size_t k = 0; k < kernel.inputs.size(); k += sizes.size()) {
    bytes += most * SizeBytes(kernel.input_dtypes[k]) + runs * kMessageAlignment;
  }
  return bytes;
}

absl::StatusOr<std::vector<std::vector<Interval>>> MergeMessages::Ranges() const {
  const Shape sizes = SizesOf(kernel_);
  const DType dtype = kernel_.input_dtypes[0];
  std::vector<std::vector<uint64_t>> keys;
  for (size_t run = 0; run < samples_.size(); ++run) {
    const Samples& from = samples_[run];
    const int64_t count = SampleCount(sizes[run], step_);
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<uint64_t> of_run,
        OrderKeys(op_, {.data = from.data, .dtype = dtype, .extents = {count}, .strides = {from.stride}}));
    if (from.received_bytes != nullptr) *from.received_bytes += count * SizeBytes(dtype);
    keys.push_back(std::move(of_run));
  }
  return MergeRanges(sizes, step_, keys);
}

void MergeMessages::ChooseNothing() {
  for (const Moved& moved : moved_) {
    for (size_t t = 0; t < moved.transfers; ++t) messages_.at(moved.first_transfer + t).bytes = 0;
  }
  std::fill_n(memory_.ranges, 2 * samples_.size(), int64_t{0});  // no part has nothing: the kernel refuses it
}

absl::Status MergeMessages::Choose() {
  for (const Samples& samples : samples_) {
    for (size_t t = 0; t < samples.transfers; ++t) {
      if (!messages_.at(samples.first_transfer + t).failed) continue;
      ChooseNothing();
      return absl::OkStatus();
    }
  }
  const absl::StatusOr<std::vector<std::vector<Interval>>> ranges = Ranges();
  if (!ranges.ok()) {
    ChooseNothing();
    return absl::InvalidArgumentError(StrCat("merge: ", StdView(ranges.status().message())));
  }
  int64_t filled = 0;
  for (const Moved& moved : moved_) {
    const Interval range = (*ranges)[moved.part][moved.run];
    const int64_t first = range.start * moved.element_bytes, last = range.stop * moved.element_bytes;
    std::byte* data = moved.data;
    if (moved.input != nullptr) {
      if (filled + last - first > memory_.bytes) {
        ChooseNothing();
        return absl::InternalError(StrCat("merge: ranges of more than ", memory_.bytes, " bytes"));
      }
      data = memory_.data + filled - first;
      moved.input->data = data;
      for (size_t run = 0; run < samples_.size(); ++run) {
        memory_.ranges[2 * run] = (*ranges)[moved.part][run].start;
        memory_.ranges[2 * run + 1] = (*ranges)[moved.part][run].stop;
      }
      filled += AlignInMessage(last - first);
    }
    int64_t at = 0;  // in the run
    for (size_t t = 0; t < moved.transfers; ++t) {
      PhaseMessages::Transfer& transfer = messages_.at(moved.first_transfer + t);
      const int64_t end = at + transfer.bytes;
      const int64_t from = std::clamp(first, at, end), to = std::clamp(last, from, end);
      at = end;
      transfer.bytes = to - from;
      if (to > from) transfer.data = data + from;
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
