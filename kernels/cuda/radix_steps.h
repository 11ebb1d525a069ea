#pragma once

// Sorts by digits (radix.cu) as steps. Private to kernels/cuda.
//
//   TESSERA_ASSIGN_OR_RETURN(RadixBuffers buffers, RadixBuffers::Take({.extent = n}, &pieces));
//   ... a step that writes buffers.keys[0] ...
//   AddRadixPasses(sort, 32, &buffers, &steps);   // keys[0] are in order, places[0] say where each was

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/radix_parameters.h"
#include "kernels/cuda/steps.h"

namespace tessera::cuda {

struct RadixSort {
  int64_t lines = 1, extent = 0;
  int key_bytes = 4;  // or 8
  bool gives_places = true;
};
// Whether the kernels can number its elements and tiles.
bool CanSortByDigits(const RadixSort& sort);

struct RadixBuffers {
  std::array<void*, 2> keys = {};
  std::array<unsigned*, 2> places = {};  // null where they aren't given
  unsigned* counts = nullptr;
  unsigned* totals = nullptr;
  static absl::StatusOr<RadixBuffers> Take(const RadixSort& sort, Pieces* pieces);
  static int64_t Bytes(const RadixSort& sort);
};
// By the lowest `bits` of each key, stably.
void AddRadixPasses(const RadixSort& sort, int bits, RadixBuffers* buffers, Steps* steps);

// Elements of a sort's input as keys; without a destination.
RadixElements RadixElementsOf(const SortOp& op, const KernelInput& input, const Workspace& workspace);
// The first places of a sort; LaunchSort has checked the call, whose output is not empty.
int64_t SelectBytes(const SortOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchSelect(const SortOp& op, const KernelCall& call, const Workspace& workspace);

// A sort op by digits; false where it is one of short lines. LaunchSort has checked the call.
bool IsSortedByDigits(const SortOp& op, const KernelCall& call);
int64_t RadixSortBytes(const SortOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchRadixSort(const SortOp& op, const KernelCall& call, const Workspace& workspace);

// Along which dims a scatter's indices differ, and what it needs to sort its updates; LaunchScatter has checked the
// call. `index_strides` are those of the indices against the updates' extents.
struct SortedScatter {
  size_t dim = 0;
  int64_t own = 0;  // elements along the dim that are here
  Shape updates;    // extents
  Strides index_strides;
  // Where indices differ in this dim too: how many lines there are, and how many elements have the same index.
  int64_t lines() const;
  int64_t columns() const;
  RadixSort sort() const;
  // Few updates, and lines enough to fill a device, are a thread a line.
  bool is_faster() const;
};
// Steps behind the copy of the data to the output.
absl::Status AddSortedScatter(const SortedScatter& scatter, const ScatterParameters& p, const Strides& output_strides,
                              const Strides& update_strides, const Workspace& workspace, Steps* steps);

}  // namespace tessera::cuda
