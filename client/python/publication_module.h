#pragma once

// The extension's publications: sets of tensors under names that tenants read.

#include "client/python/convert.h"

namespace tessera::python {

// publish, attach, unpublish and published, of a session.
void DefinePublications(nb::module_& module);

}  // namespace tessera::python
