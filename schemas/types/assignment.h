#pragma once

// Assignment: each row gets one of as many columns, so that the sum of weights is largest. Exact and pure; nothing of
// tensors. Of several with the same sum, one with the most rows at their own number.
//
//   AssignRows({{5, 9}, {4, 2}}) == {1, 0}: 9 + 4

#include <cstdint>
#include <vector>

namespace tessera {

// The column of each row; `weights` is square, [row][column]. The Hungarian method (Kuhn 1955, Jonker and Volgenant
// 1987), O(n^3).
std::vector<int> AssignRows(const std::vector<std::vector<int64_t>>& weights);

}  // namespace tessera
