#pragma once

// Notations of products (schemas/ops/einsum_steps.h) for Python, which runs the steps.

#include "client/python/convert.h"

namespace tessera::python {

void DefineEinsum(nb::module_& module);

}  // namespace tessera::python
