#pragma once

// Programs of kernels on one memory, which are run one after the other or joined.
//
//   Program program;
//   program.Add(ReduceLocalOp{ReduceOp::kSum, {1}}, {x}, sum);
//   program.OneByOne(memory) == program.Joined(memory, [](auto calls) { ... });

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace tessera::testing {

struct Operand {
  int64_t at = 0;  // in bytes
  DType dtype = DType::kF32;
  Shape extents = {};
  Strides strides = {};
};

// Calls on one memory.
class Program {
 public:
  void Add(Expression expression, const std::vector<Operand>& inputs, const Operand& output) {
    Add(LocalOp(MapOp{std::move(expression)}), inputs, output);
  }
  void Add(LocalOp op, const std::vector<Operand>& inputs, const Operand& output) {
    ops_.push_back(std::move(op));
    inputs_.push_back(inputs);
    outputs_.push_back(output);
    readers_.push_back(0);
  }
  // Nobody looks at what the call writes but the calls after it, where these read it as it lies.
  void LeaveToItsReaders(size_t call) {
    const Operand& written = outputs_[call];
    int count = 0;
    for (size_t c = call + 1; c < size(); ++c) {
      for (const Operand& from : inputs_[c]) {
        if (!Meet(from, written)) continue;
        if (from.at != written.at || from.extents != written.extents || from.strides != written.strides) return;
        ++count;
      }
      if (Meet(outputs_[c], written)) break;
    }
    readers_[call] = count;
  }
  // A memory, but for outputs that were left to their readers and not written again, which nobody looks at.
  std::vector<std::byte> Seen(std::vector<std::byte> memory) const {
    for (size_t c = 0; c < size(); ++c) {
      if (readers_[c] > 0) std::fill_n(memory.begin() + outputs_[c].at, BytesOf(outputs_[c]), std::byte{0});
    }
    return memory;
  }
  void RemoveLast() {
    ops_.pop_back();
    inputs_.pop_back();
    outputs_.pop_back();
    readers_.pop_back();
  }
  size_t size() const { return ops_.size(); }

  std::vector<std::byte> OneByOne(std::vector<std::byte> memory) const {
    for (const KernelCall& call : Calls(memory)) EXPECT_TRUE(RunKernel(call).ok());
    return memory;
  }
  // `run` is given the calls, and gives what became of them.
  template <typename Run>
  std::vector<std::byte> Joined(std::vector<std::byte> memory, Run&& run) const {
    const std::vector<KernelCall> calls = Calls(memory);
    std::vector<const KernelCall*> list;
    for (const KernelCall& call : calls) list.push_back(&call);
    run(absl::MakeConstSpan(list));
    return memory;
  }

 private:
  std::vector<KernelCall> Calls(std::vector<std::byte>& memory) const {
    operands_.clear();
    std::vector<KernelCall> calls;
    for (size_t c = 0; c < ops_.size(); ++c) {
      std::vector<KernelInput>& inputs = operands_.emplace_back();
      for (const Operand& o : inputs_[c]) inputs.push_back({memory.data() + o.at, o.dtype, o.extents, o.strides});
      const Operand& to = outputs_[c];
      Box box;
      for (const int64_t extent : to.extents) box.push_back({5, 5 + extent});
      calls.push_back({.op = &ops_[c],
                       .inputs = inputs,
                       .output = memory.data() + to.at,
                       .output_dtype = to.dtype,
                       .output_extents = to.extents,
                       .output_strides = to.strides,
                       .output_box = std::move(box),
                       .output_readers = readers_[c]});
    }
    return calls;
  }

  // From the first byte to the last one.
  static int64_t BytesOf(const Operand& o) {
    int64_t last = 0;
    for (size_t d = 0; d < o.extents.size(); ++d) last += o.strides[d] * (o.extents[d] - 1);
    return (last + 1) * SizeBytes(o.dtype);
  }
  static bool Meet(const Operand& a, const Operand& b) { return a.at < b.at + BytesOf(b) && b.at < a.at + BytesOf(a); }

  std::deque<LocalOp> ops_;
  std::vector<std::vector<Operand>> inputs_;
  std::vector<Operand> outputs_;
  std::vector<int> readers_;
  mutable std::deque<std::vector<KernelInput>> operands_;
};

}  // namespace tessera::testing
