#include "server/worker/rpc/kept_memory.h"

#include <sys/stat.h>

#include "schemas/types/status_macros.h"

namespace tessera {

KeptMemory::~KeptMemory() {
  for (const auto& [identity, kept] : kept_) {
    if (const std::shared_ptr<ClientMemory> memory = kept.lock()) device_.LetGoOf(memory->base());
  }
}

absl::StatusOr<std::shared_ptr<ClientMemory>> KeptMemory::Map(int fd, TransferDirection direction) {
  struct stat info = {};
  if (device_.IsHostMemory() || fstat(fd, &info) != 0) return ClientMemory::Map(fd, direction, share_);
  std::erase_if(kept_, [](const auto& entry) { return entry.second.expired(); });
  const Identity identity(info.st_dev, info.st_ino, info.st_size);
  if (const auto found = kept_.find(identity); found != kept_.end()) {
    if (std::shared_ptr<ClientMemory> memory = found->second.lock()) return memory;
  }
  const bool has_come_before = std::erase(attached_, identity) > 0;
  if (attached_.size() == kRemembered) attached_.pop_front();
  attached_.push_back(identity);
  if (!has_come_before) return ClientMemory::Map(fd, direction, share_);
  // To be written, too, by downloads that follow.
  auto memory = ClientMemory::Map(fd, TransferDirection::kDownload, share_);
  if (!memory.ok()) return ClientMemory::Map(fd, direction, share_);
  if ((*memory)->bytes() == 0) return memory;
  kept_[identity] = *memory;
  device_.KeepReachable((*memory)->base(), static_cast<int64_t>((*memory)->bytes()), *memory);
  return memory;
}

}  // namespace tessera
