#include "server/worker/files/confinement.h"

#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace tessera {
namespace {

bool HasLandlock() { return syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION) > 0; }

// A filter that isn't there is a bad address where there are filters, and EINVAL elsewhere (man 2 seccomp). The numbers
// of calls that the decoder's filter knows are of these machines.
bool HasFilters() {
#if defined(__x86_64__) || defined(__AARCH64EL__)
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr) != 0 && errno == EFAULT;
#else
  return false;
#endif
}

}  // namespace

std::string MissingConfinement() {
  if (HasLandlock()) return HasFilters() ? "" : "seccomp filters";
  return HasFilters() ? "Landlock" : "Landlock and no seccomp filters";
}

}  // namespace tessera
