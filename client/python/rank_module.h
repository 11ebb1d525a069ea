#pragma once

// Process groups for Python: joining, calls on tensors and on arrays, and the table for torch's backend
// (torch/ranks_table.h).

#include <nanobind/nanobind.h>

namespace tessera::python {

void DefineRanks(nanobind::module_& module);

}  // namespace tessera::python
