#include "server/plan/reference/interpret_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {
namespace {

// One batch of an operand: element (row, column) of its matrix.
struct MatrixOf {
  const StridedNumbers& numbers;
  Shape index;  // of the batch, and room for two more

  double At(int64_t row, int64_t column) {
    index[index.size() - 2] = row;
    index[index.size() - 1] = column;
    return static_cast<double>(numbers.Read(index));
  }
};
MatrixOf MatrixAt(const StridedNumbers& numbers, const Shape& batch) {
  Shape index = batch;
  index.resize(batch.size() + 2);
  return {numbers, std::move(index)};
}

// The mask's element for a query and a key; a mask may have fewer dims, and one element for all.
double MaskAt(const StridedNumbers& mask, const Shape& batch, int64_t query, int64_t key) {
  Shape index = batch;
  index.push_back(query);
  index.push_back(key);
  index.erase(index.begin(), index.end() - static_cast<ptrdiff_t>(mask.extents.size()));
  for (size_t d = 0; d < index.size(); ++d) {
    if (mask.extents[d] == 1) index[d] = 0;
  }
  return static_cast<double>(mask.Read(index));
}

}  // namespace

void InterpretAttentionLogarithms(const AttentionLogarithmsOp& op, const std::vector<StridedNumbers>& inputs,
                                  double scale, int64_t first_row, const StridedNumbers& output) {
  const Shape& of_keys = inputs[1].extents;
  const int64_t keys = of_keys[of_keys.size() - 2], features = of_keys.back();
  ForEachIndex(output.extents, [&](const Shape& index) {
    const Shape batch(index.begin(), index.end() - 1);
    MatrixOf query = MatrixAt(inputs[0], batch), key = MatrixAt(inputs[1], batch);
    std::vector<double> scores;
    for (int64_t j = 0; j < keys; ++j) {
      double score = 0;
      for (int64_t e = 0; e < features; ++e) score += query.At(index.back(), e) * key.At(j, e);
      score *= scale;
      if (inputs.size() > 2) {
        const double given = MaskAt(inputs[2], batch, index.back(), j);
        score = inputs[2].dtype != DType::kBool ? score + given : given != 0 ? score : -INFINITY;
      }
      scores.push_back(op.is_causal && j > first_row + index.back() ? -INFINITY : score);
    }
    const double largest = scores.empty() ? -INFINITY : *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (const double score : scores) total += largest == -INFINITY ? 0 : std::exp(score - largest);
    output.Write(index, total == 0 ? -INFINITY : largest + std::log(total));
  });
}

void InterpretAttentionGradients(const AttentionGradientsOp& op, const std::vector<StridedNumbers>& inputs,
                                 double scale, const StridedNumbers& output) {
  const Shape &of_queries = inputs[1].extents, &of_values = inputs[3].extents;
  const size_t row = of_values.size() - 2;
  const bool is_grouped = of_queries.size() > of_values.size();
  const int64_t heads = is_grouped ? of_queries[row] : 1, rows = of_queries[of_queries.size() - 2],
                keys = of_values[row], features = of_queries.back(), columns = of_values.back();
  ForEachIndex(Shape(of_values.begin(), of_values.end() - 2), [&](const Shape& batch) {
    MatrixOf key = MatrixAt(inputs[2], batch), value = MatrixAt(inputs[3], batch);
    std::vector<double> sums(static_cast<size_t>(output.extents[row]), 0);
    double* const of_key = sums.data() + heads * rows * features;
    double* const of_value = of_key + keys * features;
    for (int64_t line = 0; line < heads * rows; ++line) {
      const int64_t i = line % rows;
      double* const of_query = sums.data() + (line - i) * features;
      Shape of_head = batch;
      if (is_grouped) of_head.push_back(line / rows);
      MatrixOf gradient = MatrixAt(inputs[0], of_head), query = MatrixAt(inputs[1], of_head);
      std::vector<double> weights, slopes;
      double largest = -std::numeric_limits<double>::infinity(), total = 0, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double score = 0, slope = 0;
        for (int64_t e = 0; e < features; ++e) score += query.At(i, e) * key.At(j, e);
        for (int64_t c = 0; c < columns; ++c) slope += gradient.At(i, c) * value.At(j, c);
        score *= scale;
        if (inputs.size() > op.mask()) {
          const double given = MaskAt(inputs[op.mask()], of_head, i, j);
          score = inputs[op.mask()].dtype != DType::kBool ? score + given : given != 0 ? score : -INFINITY;
        }
        if (op.is_causal && j > i) score = -INFINITY;
        weights.push_back(score);
        slopes.push_back(slope);
        largest = std::max(largest, score);
      }
      for (double& weight : weights) total += weight = std::exp(weight - largest);
      for (size_t j = 0; j < weights.size(); ++j) sum += (weights[j] /= total) * slopes[j];
      for (int64_t j = 0; j < keys; ++j) {
        const double weight = weights[static_cast<size_t>(j)];
        const double of_score = weight * (slopes[static_cast<size_t>(j)] - sum) * scale;
        for (int64_t e = 0; e < features; ++e) {
          of_query[i * features + e] += of_score * key.At(j, e);
          of_key[j * features + e] += of_score * query.At(i, e);
        }
        for (int64_t c = 0; c < columns; ++c) of_value[j * columns + c] += weight * gradient.At(i, c);
      }
    }
    Shape at = batch;
    at.push_back(0);
    for (size_t i = 0; i < sums.size(); ++i) {
      at.back() = static_cast<int64_t>(i);
      output.Write(at, sums[i]);
    }
  });
}

}  // namespace tessera
