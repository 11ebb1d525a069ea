#pragma once

// Plain loops over the rows of a matrix of f32, a part of the rows in each process: what a reduction or a normalisation
// along the rows can cost at best. Rows stay in the cache between the loops over one of them, so memory is read once.

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace tessera::bench {

struct PassCase {
  std::string kind;  // var, softmax, layer_norm, cumsum
  int64_t rows = 0;
  int64_t columns = 0;
  int processes = 2;
  int repetitions = 11;
};

// {"variants": {KIND: [seconds]}}
nlohmann::json MeasurePass(const PassCase& work);

}  // namespace tessera::bench
