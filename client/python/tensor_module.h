#pragma once

// Adds the class Tensor, `call` and the capture of calls to the module.

#include <nanobind/nanobind.h>

namespace tessera::python {

void DefineTensor(nanobind::module_& module);

}  // namespace tessera::python
