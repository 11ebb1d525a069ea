#pragma once

// Tensors of a GPU or another device in the ranks' calls: their bytes come to memory of the host before a call begins,
// and go back when it is done. The engine then moves and reduces them as it does a CPU's.
//
//   const at::Tensor host = OnHost(tensor, calls);    // the bytes of `tensor`; waits for the current stream
//   LandWhenDone(tensor, host, calls);                // the bytes of `host` are written to `tensor` at the end
//
// The law of streams: the bytes that a call reads are those that the current stream has made when the call begins, and
// what it writes is written behind all that this stream was given before. Once a work is done every stream may read
// its outputs.

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

#include "ranks_calls.h"

namespace tessera::torch_ranks {

// Whether the ranks' calls take tensors of this device. Tensors of `tessera` lie on workers, and tensors of `meta`
// nowhere.
inline bool IsTaken(const c10::Device& device) {
  if (device.is_privateuseone()) return c10::get_privateuse1_backend() != "tessera";
  return !device.is_meta();
}

inline at::Tensor EmptyOnHost(const at::Tensor& like) {
  // A GPU copies to and from pinned memory by itself.
  return at::empty({like.numel()}, like.options().device(at::kCPU).pinned_memory(like.is_cuda()).requires_grad(false));
}

// `tensor` is contiguous.
inline at::Tensor OnHost(const at::Tensor& tensor, Calls& calls) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  calls.UseStreamOf(tensor.device());
  at::Tensor host = EmptyOnHost(tensor);
  host.copy_(tensor.view({-1}));
  return host;
}

inline void LandWhenDone(const at::Tensor& tensor, const at::Tensor& host, Calls& calls) {
  calls.UseStreamOf(tensor.device());
  calls.LandWhenDone(tensor.view({-1}), host);
}

// The devices of the tensors, without the CPU, as torch's futures take them.
inline std::vector<c10::Device> DevicesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    const bool is_known = std::find(devices.begin(), devices.end(), device) != devices.end();
    if (!device.is_cpu() && !is_known) devices.push_back(device);
  }
  return devices;
}

}  // namespace tessera::torch_ranks
