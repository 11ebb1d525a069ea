// Tests of kernels call this in place of RunKernel. The call's operands are brought to a device, the device does it,
// and what it may have written is brought back.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "tests/conformance/device/device_arrays.h"

namespace tessera {
namespace {

using testing::OneGpu;

OneGpu& TheGpu() {
  static OneGpu gpu;
  return gpu;
}

// Bytes of the host, and where they are on the device. Operands that share some are in one.
struct Region {
  uintptr_t first = 0, last = 0;
  std::byte* there = nullptr;
};

class Regions {
 public:
  void Add(const void* data, const Shape& extents, const Strides& strides, DType dtype) {
    int64_t first = 0, last = 0;
    for (size_t d = 0; d < extents.size(); ++d) {
      if (extents[d] == 0) return;
      (strides[d] < 0 ? first : last) += (extents[d] - 1) * strides[d];
    }
    const int64_t bytes = SizeBytes(dtype), base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
    Region added{static_cast<uintptr_t>(base + first * bytes), static_cast<uintptr_t>(base + (last + 1) * bytes)};
    for (auto other = regions_.begin(); other != regions_.end();) {
      if (other->first >= added.last || added.first >= other->last) {
        ++other;
        continue;
      }
      added = {std::min(added.first, other->first), std::max(added.last, other->last)};
      other = regions_.erase(other);
    }
    regions_.push_back(added);
  }
  void Upload() {
    TheGpu().Reset();
    for (Region& region : regions_) {
      // As far beyond a multiple of 64 as on the host: views are as little aligned as they are there.
      const auto beyond = static_cast<int64_t>(region.first % 64);
      region.there = TheGpu().Take(BytesOf(region) + beyond) + beyond;
      TheGpu().Upload(reinterpret_cast<const void*>(region.first), region.there, BytesOf(region));
    }
  }
  void Download() {
    for (const Region& region : regions_) {
      TheGpu().Download(region.there, reinterpret_cast<void*>(region.first), BytesOf(region));
    }
  }
  std::byte* Find(const void* data) const {
    const auto at = reinterpret_cast<uintptr_t>(data);
    for (const Region& region : regions_) {
      if (region.first <= at && at < region.last) return region.there + (at - region.first);
    }
    return nullptr;
  }

 private:
  static int64_t BytesOf(const Region& region) { return static_cast<int64_t>(region.last - region.first); }
  std::vector<Region> regions_;
};

}  // namespace

// Calls come here by the name that the build gives RunKernel in these sources.
absl::Status RunKernel(const KernelCall& call) {
  Regions regions;
  for (const KernelInput& input : call.inputs) {
    if (!input.is_zero) regions.Add(input.data, input.extents, input.strides, input.dtype);
  }
  regions.Add(call.output, call.output_extents, call.output_strides, call.output_dtype);
  for (const KernelOutput& output : call.more_outputs) {
    regions.Add(output.data, output.extents, output.strides, output.dtype);
  }
  regions.Upload();
  std::vector<KernelInput> inputs(call.inputs.begin(), call.inputs.end());
  for (KernelInput& input : inputs) input.data = regions.Find(input.data);
  std::vector<KernelOutput> more_outputs(call.more_outputs.begin(), call.more_outputs.end());
  for (KernelOutput& output : more_outputs) output.data = regions.Find(output.data);
  KernelCall there = call;
  there.inputs = inputs;
  there.output = regions.Find(call.output);
  there.more_outputs = more_outputs;
  TheGpu().device().EnqueueRun(StreamId::kCompute, KernelWork{there, {}});
  absl::Status status = TheGpu().Report(StreamId::kCompute);
  regions.Download();
  return status;
}

}  // namespace tessera
