// Reductions of terms to several places.

#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {

bool IsUndefinedReduce(ReduceOp op, DType dtype) {
  const bool is_extreme = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (IsBitwise(op)) return Kind(dtype) == DTypeKind::kComplex || Kind(dtype) == DTypeKind::kFloat;
  return is_extreme && Kind(dtype) == DTypeKind::kComplex;
}

int64_t ReduceTermsWorkspaceBytes(DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                                  absl::Span<const ReduceDestination> destinations) {
  const bool is_one = terms.size() <= kMaxLaunchTerms && destinations.size() <= kMaxLaunchDestinations;
  return is_one ? 0 : Pieces::Rounded(NumElements(extents) * SizeBytes(AccumulatedIn(dtype)));
}

absl::StatusOr<Steps> LaunchReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents,
                                        absl::Span<const ReduceTerm> terms, int64_t term_count, DType destination_dtype,
                                        absl::Span<const ReduceDestination> destinations, const Workspace& workspace) {
  if (IsFloat8(dtype) || IsFloat8(destination_dtype) || IsUndefinedReduce(op, dtype)) {
    return NoKernelFor("reduce of terms", dtype);
  }
  if (NumElements(extents) == 0 || terms.empty()) return Steps();
  std::vector<Strides> strides;
  for (const ReduceTerm& term : terms) strides.push_back(term.strides);
  for (const ReduceDestination& destination : destinations) strides.push_back(destination.strides);
  const Loops loops = MergedLoops(extents, std::move(strides));
  const size_t count = terms.size();
  Pieces pieces(workspace);
  void* accumulator = nullptr;
  if (const int64_t bytes = ReduceTermsWorkspaceBytes(dtype, extents, terms, destinations); bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(accumulator, pieces.Take(bytes));
  }
  Steps steps;
  const auto add = [&](size_t first, size_t last, size_t first_destination, size_t last_destination, int use) {
    TermsParameters p;
    p.op = static_cast<int>(op);
    p.destination_dtype = static_cast<int>(destination_dtype);
    p.terms = static_cast<int>(last - first);
    p.destinations = static_cast<int>(last_destination - first_destination);
    p.accumulator_use = use;
    p.accumulator = accumulator;
    p.term_count = term_count;
    p.nest = NestOfExtents<kMaxLaunchTerms + kMaxLaunchDestinations>(loops);
    const auto put = [&](size_t place, const void* data, size_t operand) {
      p.places[place] = const_cast<void*>(data);
      std::copy(loops.strides[operand].begin(), loops.strides[operand].end(), p.nest.strides[place]);
    };
    for (size_t t = first; t < last; ++t) put(t - first, terms[t].data, t);
    for (size_t d = first_destination; d < last_destination; ++d) {
      put(kMaxLaunchTerms + d - first_destination, destinations[d].data, count + d);
    }
    steps.push_back(MakeLaunch("reduce_terms_" + NameOf(dtype), p, GridOf(p.nest.size)));
  };
  if (accumulator == nullptr) {
    add(0, count, 0, destinations.size(), kNoAccumulator);
    return steps;
  }
  for (size_t first = 0; first < count; first += kMaxLaunchTerms) {
    add(first, std::min<size_t>(first + kMaxLaunchTerms, count), 0, 0,
        kWriteAccumulator + (first > 0 ? kReadAccumulator : 0));
  }
  for (size_t d = 0; d < destinations.size(); d += kMaxLaunchDestinations) {
    add(0, 0, d, std::min<size_t>(d + kMaxLaunchDestinations, destinations.size()), kReadAccumulator);
  }
  return steps;
}

}  // namespace tessera::cuda
