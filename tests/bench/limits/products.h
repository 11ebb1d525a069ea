#pragma once

// Matrix products by BLAS on shared memory without a service, f64, row-major, one BLAS thread a process.
//
//   rows     process p makes its rows of the result from its rows of A and all of B
//   columns  process p makes its columns of the result from all of A and its columns of B
//   inner    process p multiplies its part of the inner dim; then each sums its rows of all products

#include <string>

#include <nlohmann/json.hpp>

namespace tessera::bench {

struct ProductCase {
  int m = 0, n = 0, k = 0;
  std::string split;  // rows, columns, inner
  int processes = 2;
  int repetitions = 11;
};

// {"variants": {SPLIT: [seconds ...]}, "flops": ...}. Ends the process on wrong values.
nlohmann::json MeasureProduct(const ProductCase& work);

}  // namespace tessera::bench
