#include "tests/emulator/cuda/ptx/shared_memory.h"

#include <algorithm>

#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/code.h"

namespace tessera::ptx {

SharedMemory::SharedMemory(size_t bytes, uint64_t granule, size_t warps)
    : bytes_(bytes), granule_(granule), writes_(bytes / granule + 1), reads_(writes_.size()), warp_epochs_(warps) {}

void SharedMemory::Begin() {
  std::fill(bytes_.begin(), bytes_.end(), std::byte{0xA5});
  std::fill(writes_.begin(), writes_.end(), Users{});
  std::fill(reads_.begin(), reads_.end(), Users{});
  std::fill(warp_epochs_.begin(), warp_epochs_.end(), 1);
  epoch_ = 1;
}

bool SharedMemory::Races(const Users& users, uint32_t thread) const {
  if (users.thread == Users::kNobody || users.thread == thread || users.epoch != epoch_) return false;
  const uint32_t warp = thread / kWarpLanes;
  return users.warp != warp || users.warp_epoch == warp_epochs_[warp];
}

void SharedMemory::Record(uint32_t thread, Users* users) const {
  const uint32_t warp = thread / kWarpLanes;
  if (!Races(*users, thread)) {
    *users = {thread, warp, epoch_, warp_epochs_[warp]};
    return;
  }
  if (users->warp != warp) users->warp = Users::kSeveral;
  users->thread = Users::kSeveral;
}

std::byte* SharedMemory::Use(uint32_t thread, uint64_t offset, uint64_t bytes, AccessKind kind, std::string* wrong) {
  if (offset + bytes > bytes_.size()) {
    *wrong = StrCat("byte ", offset, " of ", bytes_.size(), " of shared memory");
    return nullptr;
  }
  for (uint64_t b = offset; b < offset + bytes; b += granule_) {
    Users &written = writes_[b / granule_], &read = reads_[b / granule_];
    if (kind != AccessKind::kAtomic && Races(written, thread)) {
      *wrong = RaceText(b, written, "written");
      return nullptr;
    }
    if (kind == AccessKind::kWrite && Races(read, thread)) {
      *wrong = RaceText(b, read, "read");
      return nullptr;
    }
    if (kind != AccessKind::kWrite && written.thread == Users::kNobody) {
      *wrong = StrCat("reads byte ", b, " of shared memory, which nobody wrote");
      return nullptr;
    }
    Record(thread, kind == AccessKind::kRead ? &read : &written);
  }
  return bytes_.data() + offset;
}

std::string SharedMemory::RaceText(uint64_t byte, const Users& users, std::string_view what) {
  const std::string by =
      users.thread == Users::kSeveral ? std::string("several threads") : StrCat("thread ", users.thread);
  return StrCat("race: byte ", byte, " of shared memory was ", what, " by ", by, " with no barrier since");
}

}  // namespace tessera::ptx
