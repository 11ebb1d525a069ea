// ReduceTerms: block by block; a block of every term is read before the destination's is written, so
// the destination may be one of the terms.

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/container/inlined_vector.h"

#include "kernels/cpu/loops.h"
#include "kernels/cpu/strided.h"
#include "kernels/kernel.h"

namespace tessera {

void ReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                 void* destination, absl::Span<const int64_t> destination_strides) {
  if (terms.empty()) return;
  const int64_t bytes = SizeBytes(dtype);
  absl::InlinedVector<Strides, 4> strides;
  strides.reserve(terms.size() + 1);
  for (const ReduceTerm& term : terms) strides.push_back(term.strides);
  strides.emplace_back(destination_strides.begin(), destination_strides.end());
  const cpu::LoopNest nest = cpu::Coalesce(extents, strides);
  alignas(64) std::array<uint64_t, cpu::kBlockElements> accumulator, scratch;
  for (int64_t start = 0; start < nest.size;) {
    const int64_t count = cpu::BlockLength(nest, start);
    const void* first = cpu::OperandBlockBytes(nest, 0, bytes, terms[0].data, start, count, accumulator.data());
    if (first != accumulator.data()) std::memcpy(accumulator.data(), first, static_cast<size_t>(count * bytes));
    for (size_t t = 1; t < terms.size(); ++t) {
      cpu::AccumulateBlock(op, dtype, accumulator.data(),
                           cpu::OperandBlockBytes(nest, t, bytes, terms[t].data, start, count, scratch.data()), count);
    }
    if (op == ReduceOp::kAvg) {
      cpu::DivideBlock(dtype, accumulator.data(), static_cast<int64_t>(terms.size()), count);
    }
    cpu::StoreBlockBytes(nest, terms.size(), bytes, destination, start, count, accumulator.data());
    start += count;
  }
}

}  // namespace tessera
