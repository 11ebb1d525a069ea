#pragma once

// Sums of sparse tensors of several ranks, by gathers of equal sizes: how many elements each rank has, then their
// indices and values, padded to the most. Terms are added in the order of the ranks, so all get the same bits.
//
//   at::Tensor sum = SumOfSparse(tensor, ranks, [](const at::Tensor& own) { return its gather, flat; });

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::torch_ranks {

using GatherFlat = std::function<at::Tensor(const at::Tensor& own)>;

// Throws at all ranks alike where their tensors' sizes differ.
inline at::Tensor SumOfSparse(const at::Tensor& tensor, int ranks, const GatherFlat& gather) {
  const at::Tensor own = tensor.coalesce();
  const at::Tensor indices = own.indices().t(), values = own.values();
  std::vector<int64_t> head = {indices.size(0), indices.size(1)};
  head.insert(head.end(), tensor.sizes().begin(), tensor.sizes().end());
  const at::Tensor own_head = at::tensor(head, at::kLong);
  const at::Tensor heads = gather(own_head).view({ranks, -1});
  TORCH_CHECK_VALUE((heads.slice(1, 1) == heads.select(0, 0).slice(0, 1)).all().item<bool>(),
                    "tessera: all_reduce of sparse tensors whose sizes differ; this rank's are ", tensor.sizes());
  const int64_t most = heads.select(1, 0).max().item<int64_t>();
  const auto padded = [&](const at::Tensor& part) {
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[0] = most;
    at::Tensor whole = at::zeros(sizes, part.options());
    whole.narrow(0, 0, part.size(0)).copy_(part);
    sizes.insert(sizes.begin(), ranks);
    return gather(whole).view(sizes);
  };
  const at::Tensor all_indices = padded(indices), all_values = padded(values);
  at::Tensor sum;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t count = heads[rank][0].item<int64_t>();
    const at::Tensor term = at::sparse_coo_tensor(all_indices[rank].narrow(0, 0, count).t(),
                                                  all_values[rank].narrow(0, 0, count), tensor.sizes());
    sum = sum.defined() ? sum + term : term;
  }
  return sum.coalesce();
}

}  // namespace tessera::torch_ranks
