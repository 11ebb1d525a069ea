#pragma once

// Two connected sockets, for links of tests.

#include <sys/socket.h>

#include <kj/debug.h>
#include <kj/io.h>

namespace tessera {

struct LinkPair {
  kj::AutoCloseFd near;
  kj::AutoCloseFd far;
};

inline LinkPair MakeLinkPair() {
  int fds[2];
  KJ_SYSCALL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
  return {kj::AutoCloseFd(fds[0]), kj::AutoCloseFd(fds[1])};
}

}  // namespace tessera
