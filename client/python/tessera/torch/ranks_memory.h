#pragma once

// How torch's tensors become the memory that the table takes, whose elements lie one after another: contiguous tensors
// as they are, neighbours in one storage as one range, all others through a buffer; those of a device through memory of
// the host (ranks_device.h).
//
//   at::Tensor input = Packed(tensors);              // 3 tensors of 4 elements: 12 elements
//   at::Tensor output = Unpacked(tensors, *calls);   // written to the tensors when the calls are done

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ranks_calls.h"
#include "ranks_device.h"
#include "ranks_table.h"

namespace tessera::torch_ranks {

using Tensors = std::vector<at::Tensor>;

inline bool IsPlain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Throws unless all tensors are dense, of one dtype and on one device that is taken. `what` names the method that was
// called.
inline void CheckTensors(const char* what, const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "tessera: ", what, " takes a tensor at least, and got an empty list");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.layout() == c10::kStrided, "Backend tessera does not support ", what, " of a ", tensor.layout(),
                " tensor");
    TORCH_CHECK(IsTaken(tensor.device()), "Backend tessera does not support ", what, " of a tensor on ",
                tensor.device(), ": a rank's tensors lie in its own memory");
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(), "tessera: ", what,
                      " got tensors on two devices: ", tensors[0].device(), " and ", tensor.device());
    TORCH_CHECK_VALUE(tensor.scalar_type() == tensors[0].scalar_type(), "tessera: ", what,
                      " got mixed dtypes: ", tensors[0].scalar_type(), " and ", tensor.scalar_type());
  }
}

inline void CheckMessage(const char* what, const Tensors& tensors, int tag) {
  CheckTensors(what, tensors);
  TORCH_CHECK_VALUE(tensors.size() == 1, "tessera: ", what, " takes one tensor, and got ", tensors.size());
  TORCH_CHECK_VALUE(tag >= 0, "tessera: ", what, ": Tag must be nonnegative, and is ", tag);
}

inline void CheckPairs(const char* what, const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tessera: ", what, " got ", inputs.size(), " inputs for ",
                    outputs.size(), " outputs");
}

// Throws where an element of these tensors, which are written, is one of another tensor or place, too.
inline void CheckWritten(const char* what, const Tensors& tensors) {
  std::vector<std::pair<const char*, const char*>> ranges;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "tessera: ", what,
                      " would write a tensor of strides ", tensor.strides(),
                      ", several of whose elements are one place in memory; give it a clone()");
    if (tensor.numel() == 0 || !tensor.is_contiguous()) continue;
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    ranges.emplace_back(begin, begin + tensor.nbytes());
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    TORCH_CHECK_VALUE(ranges[i - 1].second <= ranges[i].first, "tessera: ", what,
                      " would write tensors that overlap in memory");
  }
}

inline bool AreOfOneSize(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() != tensors[0].numel()) return false;
  }
  return true;
}

inline void CheckWhole(const char* what, int ranks, const char* side, const at::Tensor& whole, const at::Tensor& part) {
  CheckTensors(what, {whole, part});
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * ranks, "tessera: ", what, ": the ", side, " has ", whole.numel(),
                    " elements, and ", ranks, " ranks with ", part.numel(), " each have ", part.numel() * ranks);
}

inline Tensors Slices(const at::Tensor& tensor, std::vector<int64_t> splits, int ranks) {
  if (splits.empty()) splits.assign(ranks, tensor.size(0) / ranks);
  return at::split_with_sizes(tensor, splits, 0);
}

// One range of memory where the tensors are neighbours in one storage, in their order; else undefined.
inline at::Tensor AsNeighbours(const Tensors& tensors) {
  int64_t next = tensors[0].storage_offset();
  const int64_t first = next;
  for (const at::Tensor& tensor : tensors) {
    if (!IsPlain(tensor) || !tensor.is_alias_of(tensors[0]) || tensor.storage_offset() != next) return {};
    next += tensor.numel();
  }
  return tensors.size() == 1 ? tensors[0] : tensors[0].as_strided({next - first}, {1}, first);
}

inline at::Tensor Packed(const at::Tensor& tensor) { return tensor.contiguous().resolve_conj().resolve_neg(); }
inline at::Tensor Packed(const Tensors& tensors) {
  if (at::Tensor joined = AsNeighbours(tensors); joined.defined()) return joined;
  Tensors flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(Packed(tensor).view({-1}));
  return at::cat(flat);
}

inline void CopyPartsWhenDone(const Tensors& tensors, const at::Tensor& buffer, Calls& calls) {
  int64_t start = 0;
  for (const at::Tensor& tensor : tensors) {
    calls.CopyWhenDone(tensor, buffer.narrow(0, start, tensor.numel()));
    start += tensor.numel();
  }
}

inline at::Tensor Unpacked(const Tensors& tensors, Calls& calls) {
  if (at::Tensor joined = AsNeighbours(tensors); joined.defined()) return joined;
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  at::Tensor buffer = at::empty({elements}, tensors[0].options().requires_grad(false));
  CopyPartsWhenDone(tensors, buffer, calls);
  return buffer;
}

// Input and output at once, as of all_reduce.
inline at::Tensor InPlace(const Tensors& tensors, Calls& calls) {
  if (at::Tensor joined = AsNeighbours(tensors); joined.defined()) return joined;
  at::Tensor buffer = Packed(tensors).view({-1});
  CopyPartsWhenDone(tensors, buffer, calls);
  return buffer;
}

// The table's dtype. Calls that only move bytes take types that the library has no name for as bits.
enum class Use { kMoves, kReduces };
inline uint32_t DTypeOf(const char* what, const at::Tensor& tensor, Use use) {
  switch (tensor.scalar_type()) {
    case at::kBool: return TESSERA_BOOL;
    case at::kChar: return TESSERA_I8;
    case at::kShort: return TESSERA_I16;
    case at::kInt: return TESSERA_I32;
    case at::kLong: return TESSERA_I64;
    case at::kByte: return TESSERA_U8;
    case at::kUInt16: return TESSERA_U16;
    case at::kUInt32: return TESSERA_U32;
    case at::kUInt64: return TESSERA_U64;
    case at::kHalf: return TESSERA_F16;
    case at::kBFloat16: return TESSERA_BF16;
    case at::kFloat: return TESSERA_F32;
    case at::kDouble: return TESSERA_F64;
    case at::kComplexFloat: return TESSERA_C64;
    case at::kComplexDouble: return TESSERA_C128;
    default: break;
  }
  const bool as_bits = use == Use::kMoves && !tensor.is_quantized();
  if (as_bits && tensor.element_size() == 1) return TESSERA_U8;
  if (as_bits && tensor.element_size() == 4) return TESSERA_U32;
  TORCH_CHECK(false, "Backend tessera does not support ", what, " of ", tensor.scalar_type());
}

// Where the tensors lie on a device whose library all ranks have, and which takes the call.
inline bool StartedOnDevice(Calls& calls, const TesseraCall& given, const at::Tensor& input, const at::Tensor& output) {
  const at::Tensor& any = input.defined() ? input : output;
  if (!any.defined() || any.is_cpu() || any.numel() == 0) return false;
  auto library = calls.LibraryOf(given, any.device());
  if (library == nullptr) return false;
  TesseraCall call = given;
  call.on_devices = 1;
  call.has_input = input.defined();
  call.has_output = output.defined();
  if (input.defined()) call.input_elements = input.numel();
  if (output.defined()) call.output_elements = output.numel();
  const auto flat = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.view({-1}) : tensor; };
  const at::Tensor whole = flat(input);
  calls.StartOnDevice(call, whole, output.is_same(input) ? whole : flat(output), std::move(library));
  return true;
}

// Undefined tensors: the rank gives or takes nothing.
inline void Start(Calls& calls, TesseraCall call, const at::Tensor& given, const at::Tensor& taken) {
  if (StartedOnDevice(calls, call, given, taken)) return;
  const at::Tensor input = OnHost(given, calls);
  at::Tensor output = taken;
  if (taken.defined() && !taken.is_cpu()) {
    output = taken.is_same(given) ? input : EmptyOnHost(taken);
    LandWhenDone(taken, output, calls);
  }
  if (input.defined()) {
    call.has_input = 1;
    call.input_elements = input.numel();
    call.input = input.numel() == 0 ? nullptr : input.const_data_ptr();
  }
  if (output.defined()) {
    call.has_output = 1;
    call.output_elements = output.numel();
    call.output = output.numel() == 0 ? nullptr : output.mutable_data_ptr();
  }
  calls.Start(call, input, output);
}

// The table's ReduceOp. PREMUL_SUM is the sum of scaled copies, which Scaled makes.
inline uint32_t ReduceOpOf(const char* what, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM: return TESSERA_SUM;
    case c10d::ReduceOp::AVG: return TESSERA_AVG;
    case c10d::ReduceOp::PRODUCT: return TESSERA_PRODUCT;
    case c10d::ReduceOp::MIN: return TESSERA_MIN;
    case c10d::ReduceOp::MAX: return TESSERA_MAX;
    case c10d::ReduceOp::BAND: return TESSERA_BAND;
    case c10d::ReduceOp::BOR: return TESSERA_BOR;
    case c10d::ReduceOp::BXOR: return TESSERA_BXOR;
    default: TORCH_CHECK(false, "Backend tessera does not support ", what, " with ReduceOp ", int{op.op_});
  }
}

inline at::Tensor Scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(factor != nullptr, "tessera: ReduceOp PREMUL_SUM has no factor");
  const at::Tensor& by_tensor = factor->tensor_factor;
  const at::Tensor scaled = by_tensor.defined() ? tensor.mul(by_tensor) : tensor.mul(factor->double_factor);
  return scaled.to(tensor.scalar_type()).contiguous();
}

// In memory that the other ranks read and write where it lies; in any other where there is none.
inline at::Tensor Allocated(const Member& member, int64_t size, at::TensorOptions options) {
  const auto device = options.device_opt().value_or(at::Device(at::kCPU));
  TORCH_CHECK(IsTaken(device), "Backend tessera does not support allocateTensor on ", device,
              ": a rank's tensors lie in its own memory");
  TORCH_CHECK_VALUE(size >= 0, "tessera: allocateTensor: ", size, " elements");
  if (!device.is_cpu()) return at::empty({size}, options);
  options = options.device(at::kCPU);
  const TesseraRanks* const table = member.table();
  void* data = nullptr;
  TesseraMemory* const memory =
      table->allocate(member.group(), size * static_cast<int64_t>(options.dtype().itemsize()), &data);
  if (memory == nullptr) return at::empty({size}, options);
  return at::from_blob(
      data, {size}, [table, memory](void*) { table->release_memory(memory); }, options);
}

}  // namespace tessera::torch_ranks
