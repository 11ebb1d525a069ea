#pragma once

// The functions of torch/calls_table.h over the session's calls.

#include <nanobind/nanobind.h>

namespace tessera::python {

// calls_table() of the module gives the table's address.
void DefineCallsTable(nanobind::module_& module);

}  // namespace tessera::python
