#pragma once

// File descriptors: how many there may be, and those that travel as capabilities, who lends one and who takes a copy.

#include <cstdint>

#include <capnp/capability.h>
#include <kj/async.h>
#include <kj/io.h>

namespace tessera {

// A capability of an interface without methods that carries `fd` for as long as someone refers to it.
template <typename Interface>
typename Interface::Client LendDescriptor(kj::AutoCloseFd fd) {
  class Lender final : public Interface::Server {
   public:
    explicit Lender(kj::AutoCloseFd fd) : fd_(kj::mv(fd)) {}
    kj::Maybe<int> getFd() override { return fd_.get(); }

   private:
    kj::AutoCloseFd fd_;
  };
  return kj::heap<Lender>(kj::mv(fd));
}

// To the most that this process may have: each connection takes some, and a shell's limit is often low.
void RaiseDescriptorLimit();
// How many that is.
int64_t MaxDescriptors();

// Another descriptor of the same file. Throws a kj exception when the process has none left.
kj::AutoCloseFd CopyDescriptor(int fd);
// A copy of the descriptor that a capability carries; null when it carries none.
kj::Promise<kj::AutoCloseFd> CopyDescriptor(capnp::Capability::Client lender);

}  // namespace tessera
