#include "schemas/host/host_identity.h"

#include <unistd.h>

#include <fstream>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

std::string LinkTarget(const char* path) {
  char target[256];
  const ssize_t size = readlink(path, target, sizeof(target));
  return size < 0 ? "" : std::string(target, static_cast<size_t>(size));
}

}  // namespace

std::string HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return StrCat(boot, "/", LinkTarget("/proc/self/ns/mnt"), "/", LinkTarget("/proc/self/ns/user"));
}

}  // namespace tessera
