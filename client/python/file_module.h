#pragma once

// The extension's FileClient: files of the workers' host.

#include "client/python/convert.h"

namespace tessera::python {

// FileClient: look, describe, load, create, create_folder, write, commit.
void DefineFiles(nb::module_& module);

}  // namespace tessera::python
