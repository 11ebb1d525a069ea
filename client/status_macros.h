#pragma once

// TESSERA_RETURN_IF_ERROR and TESSERA_ASSIGN_OR_RETURN, for programs that have nothing like them.

#include "client/require_cxx20.h"

#include "schemas/types/status_macros.h"  // IWYU pragma: export
