#pragma once

// Uploads that several processes bring (client/session_parts.h), as tessera/ray.py uses them.

#include "client/python/convert.h"

namespace tessera::python {

// open_upload, send_parts and give_up_upload.
void DefineParts(nb::module_& module);

}  // namespace tessera::python
