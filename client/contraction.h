#pragma once

// Products of two tensors over any letters. Like client/ops.h: each returns at once.
//
//   absl::StatusOr<Tensor> scores = Einsum("bhqd,bhkd->bhqk", queries, keys);
//
// Matmul of client/ops.h takes any leading dims and vectors, as NumPy's does.

#include "client/require_cxx20.h"

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/ops.h"

namespace tessera {

// Notations are those of schemas/ops/contraction.h, and as in NumPy the output may leave out what one operand alone
// has, and a letter may have the extent 1 in one of them: such letters are summed over first, in the product's dtype.
absl::StatusOr<Tensor> Einsum(std::string_view notation, const Tensor& a, const Tensor& b);
// bmk,bkn->bmn; nothing is broadcast.
absl::StatusOr<Tensor> Bmm(const Tensor& a, const Tensor& b);
// beta * c + alpha * (a b), of matrices. The result has the product's shape, and c is broadcast to it; where beta is 0
// it is not read.
absl::StatusOr<Tensor> Addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
absl::StatusOr<Tensor> Outer(const Tensor& a, const Tensor& b);
// Over the last `axes` dims of a and the first ones of b.
absl::StatusOr<Tensor> Tensordot(const Tensor& a, const Tensor& b, int axes = 2);

}  // namespace tessera
