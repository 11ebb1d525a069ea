#pragma once

// VisitLibrary and VisitLibraryBinary of schemas/ops/scalar_meaning.h on blocks: of floats by the vectors of libmvec
// where it has them, within MaxUlps. An element's value doesn't depend on where in a block it lies: the elements behind
// the last whole vector are made a vector. And random numbers.

#include "kernels/cpu/loops.h"

namespace tessera::cpu {

// False when the op is none of them, or the dtype is bool, f16 or bf16.
bool RunMathBlock(const NodeBlock& block);

}  // namespace tessera::cpu
