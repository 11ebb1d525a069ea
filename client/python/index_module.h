#pragma once

// Basic indices of Python objects.

#include <optional>

#include "client/basic_index.h"
#include "client/python/convert.h"

namespace tessera::python {

// Nothing where an item is no slice, integer, None or Ellipsis, with nothing raised.
std::optional<IndexKeys> KeysFromPython(nb::handle key);

void DefineIndexing(nb::module_& module);

}  // namespace tessera::python
