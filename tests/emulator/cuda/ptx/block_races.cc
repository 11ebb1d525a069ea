#include "tests/emulator/cuda/ptx/block_races.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "schemas/types/str_cat.h"

namespace tessera::ptx {
namespace {

// The smallest access to memory that may be global.
uint64_t GranuleOf(const Code& code) {
  uint64_t granule = 16;
  for (const Instruction& i : code.instructions) {
    const bool is_global = i.space == Space::kGlobal || i.space == Space::kGeneric;
    if (i.bytes > 0 && is_global) granule = std::min(granule, uint64_t{i.bytes} * i.count);
  }
  return granule;
}

bool IsRead(const Instruction& i) { return i.kind != InstructionKind::kStore; }
bool IsWrite(const Instruction& i) { return i.kind != InstructionKind::kLoad; }
bool Acquires(const Instruction& i) {
  return i.order == MemoryOrder::kAcquire || i.order == MemoryOrder::kAcquireRelease;
}
bool Releases(const Instruction& i) {
  return i.order == MemoryOrder::kRelease || i.order == MemoryOrder::kAcquireRelease;
}

// A cell's bit where several agents have read.
constexpr uint32_t kSeveral = uint32_t{1} << 31;

// ---- loops without a branch, which do several cells at a time

// Whether a cell has a moment of this launch, `first` or later, but not `now`.
bool HasOther(const uint32_t* cells, uint64_t count, uint32_t first, uint32_t now) {
  uint32_t has_other = 0;
  for (uint64_t k = 0; k < count; ++k) {
    const bool is_of_launch = static_cast<int32_t>(cells[k] & ~kSeveral) >= static_cast<int32_t>(first);
    has_other |= static_cast<uint32_t>(is_of_launch) & static_cast<uint32_t>(cells[k] != now);
  }
  return has_other != 0;
}
void AddReader(uint32_t* cells, uint64_t count, uint32_t first, uint32_t now) {
  for (uint64_t k = 0; k < count; ++k) {
    const bool is_of_launch = static_cast<int32_t>(cells[k] & ~kSeveral) >= static_cast<int32_t>(first);
    const uint32_t with_now = cells[k] == now ? now : cells[k] | kSeveral;
    cells[k] = is_of_launch ? with_now : now;
  }
}

}  // namespace

thread_local BlockRaces::Pool BlockRaces::pool;

BlockRaces::BlockRaces(const Code& code, std::array<uint32_t, 3> grid)
    : grid_(grid),
      orders_blocks_(code.orders_blocks),
      granule_shift_(std::countr_zero(GranuleOf(code))),
      own_(std::exchange(pool, {})),
      moments_(own_.next_moment) {}

BlockRaces::~BlockRaces() {
  constexpr size_t kMostPages = 4096;
  constexpr uint32_t kMostMoments = uint32_t{1} << 30;
  own_.next_moment = moments_.end();
  if (own_.pages.size() > kMostPages) own_.pages.resize(kMostPages);
  if (own_.next_moment > kMostMoments) own_ = {};
  pool = std::move(own_);
}

BlockRaces::Page* BlockRaces::PageOf(uint64_t number) {
  auto& [near_number, near_page] = near_[number % near_.size()];
  if (near_page != nullptr && near_number == number) return near_page;
  Page*& page = pages_[number];
  if (page == nullptr) {
    if (pages_used_ == own_.pages.size()) own_.pages.push_back(std::make_unique<Page>());
    page = own_.pages[pages_used_++].get();
    page->has_strong = false;
  }
  near_number = number;
  near_page = page;
  return page;
}

std::string BlockRaces::Use(const Instruction& i, uint64_t address, uint64_t bytes, size_t warp, uint32_t lanes,
                            BlockOrder* by) {
  const size_t agent = orders_blocks_ ? warp : 0;
  const User user = {i, agent, lanes, by, by->Now(agent)};
  const uint64_t end = (address + bytes) >> granule_shift_;
  for (uint64_t at = address >> granule_shift_; at < end;) {
    const uint64_t first = at % kPageCells, count = std::min(end - at, kPageCells - first);
    std::string wrong = UseCells({PageOf(at / kPageCells), first, count, at}, user);
    if (!wrong.empty()) return wrong;
    at += count;
  }
  return "";
}

std::string BlockRaces::UseCells(const Cells& cells, const User& user) {
  const Instruction& i = user.instruction;
  if (i.order != MemoryOrder::kPlain) return UseStrongly(cells, user);
  std::string wrong = IsRead(i) ? ReadPlainly(cells, user) : "";
  return wrong.empty() && IsWrite(i) ? WritePlainly(cells, user) : wrong;
}

bool BlockRaces::IsOther(uint32_t cell, const User& user) const {
  return (cell & ~kSeveral) >= moments_.first() && cell != user.now;
}

std::string BlockRaces::ReadPlainly(const Cells& cells, const User& user) {
  uint32_t* const read = cells.read();
  const uint32_t first = moments_.first();
  if (!cells.page->has_strong && !HasOther(cells.written(), cells.count, first, user.now) &&
      (!orders_blocks_ || !HasOther(read, cells.count, first, user.now))) {
    AddReader(read, cells.count, first, user.now);
    return "";
  }
  for (uint64_t k = 0; k < cells.count; ++k) {
    std::string wrong = CheckWritten(cells.granule + k, cells.written()[k], user);
    if (wrong.empty() && cells.page->has_strong) {
      const auto strong = strong_.find(cells.granule + k);
      if (strong != strong_.end()) wrong = CheckStrong(strong->first, strong->second.writes, "strong write", user);
    }
    if (!wrong.empty()) return wrong;
    RecordRead(cells.granule + k, read + k, user);
  }
  return "";
}

std::string BlockRaces::WritePlainly(const Cells& cells, const User& user) {
  uint32_t *const written = cells.written(), *const read = cells.read();
  const uint32_t first = moments_.first();
  const bool is_alone = !cells.page->has_strong && !HasOther(written, cells.count, first, user.now) &&
                        !HasOther(read, cells.count, first, user.now);
  for (uint64_t k = 0; !is_alone && k < cells.count; ++k) {
    const uint64_t granule = cells.granule + k;
    std::string wrong = CheckWritten(granule, written[k], user);
    if (wrong.empty()) wrong = CheckRead(granule, read[k], user);
    const auto strong = cells.page->has_strong ? strong_.find(granule) : strong_.end();
    if (wrong.empty() && strong != strong_.end()) {
      wrong = CheckStrong(granule, strong->second.writes, "strong write", user);
      if (wrong.empty()) wrong = CheckStrong(granule, strong->second.reads, "strong read", user);
      strong->second = {};
    }
    if (!wrong.empty()) return wrong;
    // All of them come before: a use that isn't ordered after them isn't after this write.
    read[k] = 0;
    if (orders_blocks_) readers_.erase(granule);
  }
  std::fill_n(written, cells.count, user.now);
  return "";
}

std::string BlockRaces::UseStrongly(const Cells& cells, const User& user) {
  const Instruction& i = user.instruction;
  cells.page->has_strong = true;
  for (uint64_t k = 0; k < cells.count; ++k) {
    const uint64_t granule = cells.granule + k;
    Strong& word = strong_[granule];
    // An acquire counts before the access: the word that it reads was written by then.
    if (IsRead(i) && word.published != nullptr) {
      if (Acquires(i)) {
        user.by->AcquireAtOnce(user.warp, word.published);
      } else {
        user.by->AcquireAtFence(user.warp, user.lanes, word.published);
      }
    }
    std::string wrong = CheckWritten(granule, cells.written()[k], user);
    if (wrong.empty() && IsWrite(i)) wrong = CheckRead(granule, cells.read()[k], user);
    if (!wrong.empty()) return wrong;
    if (IsRead(i)) Record(&word.reads, user);
    if (IsWrite(i)) Record(&word.writes, user);
  }
  if (!IsWrite(i) || !orders_blocks_) return "";
  const Known released = Releases(i) ? user.by->Release(user.warp) : user.by->ReleasedByFence(user.warp, user.lanes);
  for (uint64_t k = 0; k < cells.count; ++k) {
    Known& published = strong_[cells.granule + k].published;
    // A store begins anew; what an atomic changes still has what others handed on.
    published = i.kind == InstructionKind::kAtomic ? Join(published, released) : released;
  }
  return "";
}

std::string BlockRaces::CheckWritten(uint64_t granule, uint32_t cell, const User& user) const {
  if (!IsOther(cell, user) || user.by->Knows(user.warp, cell)) return "";
  return Text(granule, "plain write", cell, user);
}

std::string BlockRaces::CheckRead(uint64_t granule, uint32_t cell, const User& user) const {
  if (!IsOther(cell, user)) return "";
  if ((cell & kSeveral) == 0) {
    return user.by->Knows(user.warp, cell) ? "" : Text(granule, "plain read", cell, user);
  }
  if (!orders_blocks_) return Text(granule, "plain read", cell, user);
  return CheckStrong(granule, readers_.at(granule), "plain read", user);
}

std::string BlockRaces::CheckStrong(uint64_t granule, const std::vector<uint32_t>& moments, std::string_view what,
                                    const User& user) const {
  for (const uint32_t moment : moments) {
    if (!user.by->Knows(user.warp, moment)) return Text(granule, what, moment, user);
  }
  return "";
}

void BlockRaces::RecordRead(uint64_t granule, uint32_t* cell, const User& user) {
  if (*cell == user.now) return;
  if (!IsOther(*cell, user)) {
    *cell = user.now;
    return;
  }
  if (orders_blocks_) {
    std::vector<uint32_t>& readers = readers_[granule];
    if ((*cell & kSeveral) == 0) readers = {*cell};
    Record(&readers, user);
  }
  *cell |= kSeveral;
}

void BlockRaces::Record(std::vector<uint32_t>* moments, const User& user) const {
  if (!moments->empty() && moments->back() == user.now) return;
  if (!orders_blocks_ && moments->size() > 1) return;  // no block comes after two others
  const uint32_t own_block = moments_.Of(user.now).block;
  std::erase_if(*moments, [&](uint32_t moment) {
    const Moment& that = moments_.Of(moment);
    return that.block == own_block ? that.warp == user.warp : user.by->Knows(user.warp, moment);
  });
  moments->push_back(user.now);
}

std::string BlockRaces::Text(uint64_t granule, std::string_view what, uint32_t moment, const User& user) const {
  const Instruction& i = user.instruction;
  const std::string_view order = i.order == MemoryOrder::kPlain ? "plain" : "strong";
  const std::string_view use = i.kind == InstructionKind::kLoad    ? "read"
                               : i.kind == InstructionKind::kStore ? "write"
                                                                   : "atomic";
  std::string by = "several blocks";
  const uint64_t block = moments_.Of(moment & ~kSeveral).block;
  if ((moment & ~kSeveral) != user.now) {
    by = StrCat("block ", block % grid_[0], ",", block / grid_[0] % grid_[1], ",", block / grid_[0] / grid_[1]);
  }
  return StrCat("race: ", order, " ", use, " of byte ", granule << granule_shift_, " of global memory after a ", what,
                " by ", by, ", with no release and acquire between");
}

}  // namespace tessera::ptx
