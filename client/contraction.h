#pragma once

// Products of tensors over any letters. Like client/ops.h: each returns at once.
//
//   absl::StatusOr<Tensor> scores = Einsum("bhqd,bhkd->bhqk", queries, keys);
//   absl::StatusOr<Tensor> chain = Einsum("ij,jk,kl", {a, b, c});
//
// Matmul of client/ops.h takes any leading dims and vectors, as NumPy's does.

#include "client/require_cxx20.h"

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/ops.h"

namespace tessera {

// NumPy's notation (schemas/ops/einsum_steps.h), with any number of operands from one on. `precision`: as of matmul.
absl::StatusOr<Tensor> Einsum(std::string_view notation, absl::Span<const Tensor> operands,
                              std::string_view precision = "full");
absl::StatusOr<Tensor> Einsum(std::string_view notation, const Tensor& a, const Tensor& b);
// bmk,bkn->bmn; nothing is broadcast.
absl::StatusOr<Tensor> Bmm(const Tensor& a, const Tensor& b);
// beta * c + alpha * (a b), of matrices. The result has the product's shape, and c is broadcast to it; where beta is 0
// it is not read.
absl::StatusOr<Tensor> Addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
absl::StatusOr<Tensor> Outer(const Tensor& a, const Tensor& b);
// Over the last `axes` dims of a and the first ones of b.
absl::StatusOr<Tensor> Tensordot(const Tensor& a, const Tensor& b, int axes = 2);
// Over pairs of axes, one of a and one of b, which may count from the end.
absl::StatusOr<Tensor> Tensordot(const Tensor& a, const Tensor& b, absl::Span<const int64_t> left,
                                 absl::Span<const int64_t> right);

}  // namespace tessera
