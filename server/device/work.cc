#include "server/device/work.h"

#include <variant>

namespace tessera {
namespace {

struct Runner {
  absl::Status operator()(const CopyWork& w) const {
    CopyStrided(w.extents, w.element_bytes, w.source, w.source_strides, w.destination, w.destination_strides);
    if (w.received_bytes != nullptr) *w.received_bytes += NumElements(w.extents) * w.element_bytes;
    return absl::OkStatus();
  }
  absl::Status operator()(const ReduceWork& w) const {
    ReduceTermsInto(w.op, w.dtype, w.extents, w.terms, w.term_count, w.destination_dtype, w.destinations);
    const int64_t elements = NumElements(w.extents);
    for (int64_t* received : w.received_bytes) {
      if (received != nullptr) *received += elements * SizeBytes(w.dtype);
    }
    for (int64_t* pushed : w.pushed_bytes) {
      if (pushed != nullptr) *pushed += elements * SizeBytes(w.destination_dtype);
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const KernelWork& w) const {
    absl::Status status = RunKernel(w.call);
    if (!status.ok()) return status;
    for (const ReceivedCount& count : w.received) {
      *count.received_bytes += count.bytes * (count.times == nullptr ? 1 : *count.times);
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status RunDeviceWork(const DeviceWork& work) { return std::visit(Runner{}, work); }

}  // namespace tessera
