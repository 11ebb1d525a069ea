#include "server/device/cuda/host_steps.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kLeastBlockBytes = int64_t{1} << 20;
constexpr int64_t kPartOfTheHost = 8;

// How an operand lies in pinned memory: row-major, an element that is there for a whole dim once.
struct Packed {
  Shape extents;    // of what is copied
  Strides strides;  // of what is copied, in pinned memory
  Strides operand;  // of the operand there: 0 in dims that it has one element for
  int64_t bytes = 0;
};

Packed Pack(const Shape& extents, const Strides& strides, DType dtype) {
  Packed packed;
  packed.extents = extents;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (strides[d] == 0 && extents[d] > 1) packed.extents[d] = 1;
  }
  packed.strides = RowMajorStrides(packed.extents);
  packed.operand = packed.strides;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (packed.extents[d] != extents[d]) packed.operand[d] = 0;
  }
  packed.bytes = NumElements(packed.extents) * SizeBytes(dtype);
  return packed;
}

int64_t Rounded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Takes pieces of the memory one behind the other.
class Packer {
 public:
  Packer(HostStep& step, std::byte* memory) : step_(step), next_(memory) {}

  void AddInput(const KernelInput& input) {
    KernelInput& there = step_.inputs.emplace_back(input);
    if (input.is_zero) return;
    const Packed packed = Pack(input.extents, input.strides, input.dtype);
    there.data = next_;
    there.strides = packed.operand;
    step_.before.push_back(Copy(packed, input.dtype, input.data, input.strides, next_, packed.strides));
    next_ += Rounded(packed.bytes);
  }
  // `is_read`: it adds to what was there.
  KernelOutput AddOutput(const KernelOutput& output, bool is_read) {
    const Packed packed = Pack(output.extents, output.strides, output.dtype);
    KernelOutput there = output;
    there.data = next_;
    there.strides = packed.operand;
    if (is_read) step_.before.push_back(Copy(packed, output.dtype, output.data, output.strides, next_, packed.strides));
    step_.after.push_back(Copy(packed, output.dtype, next_, packed.strides, output.data, output.strides));
    next_ += Rounded(packed.bytes);
    return there;
  }

 private:
  static CopyWork Copy(const Packed& packed, DType dtype, const void* source, const Strides& source_strides,
                       void* destination, const Strides& destination_strides) {
    return {.extents = packed.extents,
            .element_bytes = SizeBytes(dtype),
            .source = source,
            .source_strides = source_strides,
            .destination = destination,
            .destination_strides = destination_strides};
  }
  HostStep& step_;
  std::byte* next_;
};

}  // namespace

int64_t HostStepBytes(const KernelCall& call) {
  int64_t bytes = Rounded(Pack(call.output_extents, call.output_strides, call.output_dtype).bytes);
  for (const KernelInput& input : call.inputs) {
    if (!input.is_zero) bytes += Rounded(Pack(input.extents, input.strides, input.dtype).bytes);
  }
  for (const KernelOutput& output : call.more_outputs) {
    bytes += Rounded(Pack(output.extents, output.strides, output.dtype).bytes);
  }
  return bytes;
}

std::shared_ptr<HostStep> MakeHostStep(const KernelCall& call, std::byte* memory) {
  auto step = std::make_shared<HostStep>();
  Packer packer(*step, memory);
  for (const KernelInput& input : call.inputs) packer.AddInput(input);
  const KernelOutput first = packer.AddOutput(
      {call.output, call.output_dtype, call.output_extents, call.output_strides}, call.store == KernelStore::kAdd);
  for (const KernelOutput& output : call.more_outputs) step->more_outputs.push_back(packer.AddOutput(output, false));
  step->call = call;
  step->call.inputs = step->inputs;
  step->call.output = first.data;
  step->call.output_strides = first.strides;
  step->call.more_outputs = step->more_outputs;
  return step;
}

int64_t DefaultHostStepBytes() {
  const int64_t host_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::max(host_bytes / kPartOfTheHost, kLeastBlockBytes);
}

HostStepMemory::~HostStepMemory() {
  if (blocks_.empty()) return;
  gpu_.Enter().IgnoreError();
  for (std::byte* block : blocks_) gpu_.driver->MemFreeHost(block);
}

absl::StatusOr<std::byte*> HostStepMemory::Reserve(int64_t bytes, int64_t max_bytes) {
  if (bytes > max_bytes) {
    return absl::ResourceExhaustedError(StrCat("no kernel for a GPU, and computing it on the host needs ", bytes,
                                               " bytes of pinned memory; ", max_bytes,
                                               " are allowed (gpu_host_step_bytes)"));
  }
  if (Grows(bytes)) {
    const auto doubled = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kLeastBlockBytes))));
    const int64_t wanted = std::max(bytes, std::min(doubled, max_bytes));
    void* block = nullptr;
    TESSERA_RETURN_IF_ERROR(
        gpu_.driver->Check(StrCat("cuMemHostAlloc of ", wanted, " bytes for what the host computes"),
                           gpu_.driver->MemHostAlloc(&block, static_cast<size_t>(wanted), CU_MEMHOSTALLOC_PORTABLE)));
    blocks_.push_back(static_cast<std::byte*>(block));
    bytes_ = wanted;
  }
  return blocks_.back();
}

}  // namespace tessera::cuda
