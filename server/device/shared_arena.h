#pragma once

// SharedArena: what a worker shares with its peers of the host: a page of counters, which is the host's memory always,
// and the arena, which is its device's. Each is a memory of its own with a descriptor of its own.
//
//   SharedArena own = *SharedArena::Create(1 << 30);                   // the host's memory
//   SharedArena peer = *SharedArena::Map(own.CopyDescriptors());       // in another process
//
// Law: memory() is an address of the device. Only the device's work may read and write there; the host itself may where
// the arena is the host's memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/limits.h"
#include "server/device/counters.h"

namespace tessera {

class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd();
  int get() const { return fd_; }  // -1: none
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct ArenaDescriptors {
  OwnedFd counters;
  OwnedFd memory;
  int64_t memory_bytes = 0;  // a descriptor of a GPU's memory doesn't say it
};

// A block of a device's memory, owned or a peer's that is mapped; it goes with the object.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // what peers map it by; -1 of a peer's

 protected:
  DeviceMemory(std::byte* data, int64_t bytes, OwnedFd fd) : data_(data), bytes_(bytes), fd_(std::move(fd)) {}

 private:
  std::byte* data_;
  int64_t bytes_;
  OwnedFd fd_;
};

class SharedArena {
 public:
  // A memfd (ResourceExhausted says bytes wanted and free on the host). Its pages come with their first use, or by
  // Reserve.
  static absl::StatusOr<SharedArena> Create(int64_t arena_bytes);
  // A peer's that is the host's memory. InvalidArgument when the size or the seals of a descriptor are not right.
  static absl::StatusOr<SharedArena> Map(ArenaDescriptors descriptors);
  // Memory of another kind: the own, with new counters, and a peer's, with those that lie behind the descriptor.
  static absl::StatusOr<SharedArena> Own(std::unique_ptr<DeviceMemory> memory);
  static absl::StatusOr<SharedArena> OfPeer(OwnedFd counters, std::unique_ptr<DeviceMemory> memory);

  SharedArena(SharedArena&& other) noexcept;
  SharedArena& operator=(SharedArena&& other) noexcept;
  ~SharedArena();

  std::byte* memory() const { return memory_->data(); }
  int64_t bytes() const { return memory_->bytes(); }
  CounterPage* counters() const { return counters_; }
  // Takes the pages of a range of an own arena, which is the host's memory; ResourceExhausted where the host has none
  // left. It takes 0.25 s for each GiB, on this thread.
  absl::Status Reserve(int64_t offset, int64_t bytes) const;
  // Descriptors of an own arena, for a peer to map it by. -1 within, where the process has no descriptor left.
  ArenaDescriptors CopyDescriptors() const;

 private:
  SharedArena(OwnedFd counters_fd, CounterPage* counters, std::unique_ptr<DeviceMemory> memory)
      : counters_fd_(std::move(counters_fd)), counters_(counters), memory_(std::move(memory)) {}
  OwnedFd counters_fd_;
  CounterPage* counters_ = nullptr;
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace tessera
