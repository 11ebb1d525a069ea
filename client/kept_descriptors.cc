#include "client/kept_descriptors.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

namespace tessera {

KeptDescriptors& KeptDescriptors::Get() {
  static KeptDescriptors* const kept = new KeptDescriptors;
  return *kept;
}

void KeptDescriptors::Add(int fd) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fds_.insert(fd);
}

void KeptDescriptors::Close(int fd) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fds_.erase(fd) > 0) close(fd);
}

KeptDescriptors::KeptDescriptors() {
  pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                 [] {
                   for (const int fd : Get().fds_) close(fd);
                   Get().fds_.clear();
                   Get().mutex_.unlock();
                 });
}

int MoveUp(int fd) {
  constexpr int kFirst = 16;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kFirst);
  close(fd);
  return moved;
}

}  // namespace tessera
