#include "schemas/host/process_end.h"

#include <cstdint>
#include <fstream>

#include "schemas/types/str_cat.h"

namespace tessera {

bool RunsNoMore(pid_t pid) {
  int64_t pages = 0;
  return !(std::ifstream(StrCat("/proc/", pid, "/statm")) >> pages) || pages == 0;
}

}  // namespace tessera
