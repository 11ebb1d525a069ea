#include <cstdio>
#include <cstdlib>

#include "schemas/types/status_macros.h"

namespace tessera {

void CheckFailed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace tessera
