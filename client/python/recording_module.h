#pragma once

// Adds the class Recording, on which tessera.torch.capture stands, to the module.

#include <nanobind/nanobind.h>

namespace tessera::python {

void DefineRecording(nanobind::module_& module);

}  // namespace tessera::python
