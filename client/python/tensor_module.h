#pragma once

// Adds the class Tensor, calls of any op and their plans to the module.

#include <nanobind/nanobind.h>

namespace tessera::python {

void DefineTensor(nanobind::module_& module);

}  // namespace tessera::python
