#pragma once

// DeafStream: one end of a connection that sends, and reads nothing.

#include <kj/async-io.h>

namespace tessera {

class DeafStream final : public kj::AsyncIoStream {
 public:
  explicit DeafStream(kj::Own<kj::AsyncIoStream> inner) : inner_(kj::mv(inner)) {}
  kj::Promise<size_t> tryRead(void*, size_t, size_t) override { return kj::NEVER_DONE; }
  kj::Promise<void> write(const void* buffer, size_t size) override { return inner_->write(buffer, size); }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return inner_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return kj::NEVER_DONE; }
  void shutdownWrite() override { inner_->shutdownWrite(); }

 private:
  kj::Own<kj::AsyncIoStream> inner_;
};

}  // namespace tessera
