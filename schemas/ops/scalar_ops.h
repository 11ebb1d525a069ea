#pragma once

// The scalar functions of expressions by name. A source file that names one includes this header; a header passes
// them on by the opaque ScalarOp of expression.h (tools/rebuilds schemas/ops/scalar_ops.h counts who is rebuilt).
// schemas/ops/scalar_ops.inc has the rows.

#include <cstdint>

namespace tessera {

enum class ScalarOp : uint8_t {
#define TESSERA_SCALAR_OP(number, enumerator, ...) enumerator = (number),
#include "schemas/ops/scalar_ops.inc"
};

inline constexpr int kScalarOpCount = 0
#define TESSERA_SCALAR_OP(...) +1
#include "schemas/ops/scalar_ops.inc"
    ;

}  // namespace tessera
