#pragma once

// Assignment: each row gets one of as many columns, so that the sum of weights is largest. Exact and pure; nothing of
// tensors. Among several with the same sum, one with the most rows at their own number.
//
//   AssignRows({{5, 9}, {4, 2}}) == {1, 0}: 9 + 4
//   AssignGroupedRows({0, 0, 1, 1}, {0, 0, 1, 1}, {{3, 3}, {3, 3}}) == {0, 3, 2, 1}: each class in each group, 12

#include <cstdint>
#include <vector>

namespace tessera {

// The column of each row; `weights` is square, [row][column]. The Hungarian method (Kuhn 1955, Jonker and Volgenant
// 1987), O(n^3).
std::vector<int> AssignRows(const std::vector<std::vector<int64_t>>& weights);

// The column of each row, where the rows come in groups and the columns in classes, and a class counts once in a group,
// however many of its columns are there: the sum is of weights[group][class], none negative, over the pairs that have
// a column. A flow of least cost (Ahuja, Magnanti and Orlin 1993, chapters 9 and 14), O(n * (groups + classes)^2).
std::vector<int> AssignGroupedRows(const std::vector<int>& group_of_row, const std::vector<int>& class_of_column,
                                   const std::vector<std::vector<int64_t>>& weights);

}  // namespace tessera
