#pragma once

// Names, titles and types of the backend's methods, and their checks of lists that have a part for each rank.

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <string_view>

#include "ranks_memory.h"

namespace tessera::torch_ranks {

constexpr std::string_view kName = "tessera";  // of the backend, and before the titles of its calls

// A method of the backend: its name in errors, its title in torch's profiles, its type.
struct Method {
  const char* name;
  const char* title;
  c10d::OpType type;
};

// The types of two methods that torch 2.11 doesn't tell apart from other coalesced calls.
template <class Type = c10d::OpType>
constexpr Type AllGatherCoalesced() {
  if constexpr (requires { Type::ALLGATHER_INTO_TENSOR_COALESCED; }) return Type::ALLGATHER_INTO_TENSOR_COALESCED;
  return Type::COALESCED;
}
template <class Type = c10d::OpType>
constexpr Type ReduceScatterCoalesced() {
  if constexpr (requires { Type::REDUCE_SCATTER_TENSOR_COALESCED; }) return Type::REDUCE_SCATTER_TENSOR_COALESCED;
  return Type::COALESCED;
}

// A list with a part for each rank of the group, of the dtype of `like`, which rank `rank` has the part of.
inline void CheckGathered(const char* what, int rank, int size, const Tensors& parts, const at::Tensor& like) {
  Tensors all = parts;
  all.push_back(like);
  CheckTensors(what, all);
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(size), "tessera: ", what, " takes a list of ", size,
                    " tensors, one for each rank, and got ", parts.size());
  TORCH_CHECK_VALUE(parts[rank].numel() == like.numel(), "tessera: ", what, ": the part of rank ", rank, " has ",
                    parts[rank].numel(), " elements in the list, and ", like.numel(), " as the tensor");
}
inline void CheckParts(const char* what, int rank, int size, const Tensors& parts, const at::Tensor& like) {
  CheckGathered(what, rank, size, parts, like);
  TORCH_CHECK_VALUE(AreOfOneSize(parts), "tessera: ", what, " takes tensors of one size");
}

}  // namespace tessera::torch_ranks
