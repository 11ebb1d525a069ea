#include "schemas/codec/descriptor.h"

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
