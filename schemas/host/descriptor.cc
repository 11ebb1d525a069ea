#include "schemas/host/descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <kj/debug.h>

namespace tessera {

void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int64_t MaxDescriptors() {
  constexpr int64_t kMost = 1 << 20;  // as the kernel has it, unless it was told another number
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > static_cast<rlim_t>(kMost)) return kMost;
  return static_cast<int64_t>(limit.rlim_cur);
}

kj::AutoCloseFd CopyDescriptor(int fd) {
  int copy = -1;
  KJ_SYSCALL(copy = fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return kj::AutoCloseFd(copy);
}

kj::Promise<kj::AutoCloseFd> CopyDescriptor(capnp::Capability::Client lender) {
  auto descriptor = lender.getFd();
  // The descriptor is the capability's: copied before that goes.
  return descriptor.then([lender = kj::mv(lender)](kj::Maybe<int> fd) -> kj::AutoCloseFd {
    KJ_IF_MAYBE (own, fd) {
      return CopyDescriptor(*own);
    }
    return nullptr;
  });
}

}  // namespace tessera
