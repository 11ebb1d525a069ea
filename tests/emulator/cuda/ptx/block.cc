#include "tests/emulator/cuda/ptx/block.h"

#include <algorithm>

#include "schemas/types/str_cat.h"

namespace tessera::ptx {
namespace {

// The smallest element of shared memory that the kernel's instructions name.
uint64_t GranuleOf(const Code& code) {
  uint64_t granule = 16;
  for (const Instruction& i : code.instructions) {
    if (i.bytes > 0 && (i.space == Space::kShared || i.space == Space::kGeneric)) {
      granule = std::min<uint64_t>(granule, i.bytes);
    }
  }
  return granule;
}

size_t ThreadsOf(const GridLaunch& launch) { return size_t{launch.block[0]} * launch.block[1] * launch.block[2]; }
size_t WarpsOf(const GridLaunch& launch) { return (ThreadsOf(launch) + kWarpLanes - 1) / kWarpLanes; }

// Registers of some blocks that are gone, for those that come: to make and clear thousands takes longer than most
// launches.
constexpr size_t kMostSpare = 4;
thread_local std::vector<std::vector<uint64_t>> spare_registers;

std::vector<uint64_t> TakeRegisters(size_t count) {
  std::vector<uint64_t> registers;
  if (!spare_registers.empty()) {
    registers = std::move(spare_registers.back());
    spare_registers.pop_back();
  }
  if (registers.size() < count) registers.resize(count);
  return registers;
}

uint32_t LanesOf(size_t first, size_t end) { return end - first >= kWarpLanes ? kAllLanes : (1U << (end - first)) - 1; }
uint32_t MaskOf(const Thread& t, const Instruction& i) {
  const size_t operand = i.kind == InstructionKind::kShuffle ? 3 : i.kind == InstructionKind::kVote ? 1 : 0;
  return static_cast<uint32_t>(t.Register(i.from[operand]));
}
// The lanes where the instruction's guard lets it be done.
uint32_t LanesWhere(const uint64_t* registers, const Instruction& i) {
  const uint64_t* guards = registers + static_cast<size_t>(i.guard) * kWarpLanes;
  uint32_t lanes = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) lanes |= uint32_t{guards[lane] != 0} << lane;
  return i.is_guard_negated ? ~lanes : lanes;
}

}  // namespace

Block::Block(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch, BlockRaces* races,
             uint64_t* counts)
    : kernel_(kernel),
      code_(*kernel.code),
      parameters_(parameters),
      launch_(launch),
      races_(races),
      order_(races == nullptr ? BlockOrder(0, nullptr) : races->MakeOrder(WarpsOf(launch))),
      counts_(counts),
      threads_(ThreadsOf(launch)),
      registers_(TakeRegisters(code_.registers * WarpsOf(launch) * kWarpLanes)),
      local_(static_cast<size_t>(code_.local_bytes) * threads_.size()),
      local_written_(local_.size()),
      shared_(static_cast<size_t>(kernel.shared_bytes) + launch.shared_bytes, GranuleOf(code_), WarpsOf(launch)) {
  for (size_t first = 0; first < threads_.size(); first += kWarpLanes) {
    warp_order_.push_back(first);
    for (const auto& [slot, value] : code_.constants) {
      std::fill_n(RegistersOf(first) + static_cast<size_t>(slot) * kWarpLanes, kWarpLanes, value);
    }
  }
}

Block::~Block() {
  if (spare_registers.size() < kMostSpare) spare_registers.push_back(std::move(registers_));
}

void Block::Start(std::array<uint32_t, 3> id) {
  id_ = id;
  order_.Begin(id[0] + launch_.grid[0] * (id[1] + launch_.grid[1] * id[2]));
  shared_.Begin();
  std::fill(local_written_.begin(), local_written_.end(), uint8_t{0});
  const auto& n = launch_.block;
  for (uint32_t t = 0; t < threads_.size(); ++t) {
    const size_t local = static_cast<size_t>(code_.local_bytes) * t;
    threads_[t] = {.registers = RegistersOf(t - t % kWarpLanes) + t % kWarpLanes,
                   .local = local_.data() + local,
                   .local_written = local_written_.data() + local,
                   .number = t};
    const uint32_t values[kSpecialRegisters] = {
        t % n[0],        t / n[0] % n[1], t / n[0] / n[1], n[0],          n[1], n[2], id[0], id[1], id[2],
        launch_.grid[0], launch_.grid[1], launch_.grid[2], t % kWarpLanes};
    for (const auto& [slot, which] : code_.special) threads_[t].Register(slot) = values[which];
  }
  random_.seed(launch_.seed * 7919 + id[0] + 31 * id[1]);
  random_.discard(2);  // which still look like the seed
  is_done_ = false;
}

void Block::Step() {
  std::shuffle(warp_order_.begin(), warp_order_.end(), random_);
  bool has_moved = false;
  for (const size_t warp : warp_order_) has_moved = RunWarp(warp) || has_moved;
  is_done_ = !error_.empty() || AreAll(ThreadState::kEnded);
  if (is_done_ || EndBarrier() || has_moved) return;
  Stuck();
  is_done_ = true;
}

std::string Block::WaitText() const {
  const auto t = std::find_if(threads_.begin(), threads_.end(), [](auto& t) { return t.state == ThreadState::kRuns; });
  return StrCat("block ", id_[0],
                t == threads_.end() ? "" : StrCat(" thread ", t->number, " line ", InstructionOf(*t).line));
}

bool Block::AreAll(ThreadState state) const {
  return std::all_of(threads_.begin(), threads_.end(), [state](const Thread& t) { return t.state == state; });
}

void Block::Fail(const Thread& t, const Instruction& i, std::string_view what) {
  if (!error_.empty()) return;
  error_ = StrCat(kernel_.name, ": block ", id_[0], ",", id_[1], ",", id_[2], " thread ", t.number, " line ", i.line,
                  ": ", what);
}

bool Block::EndBarrier() {
  const Thread* first = nullptr;
  const Thread* ended = nullptr;
  for (const Thread& t : threads_) {
    if (t.state == ThreadState::kEnded) ended = &t;
    if (t.state == ThreadState::kAtBarrier && first == nullptr) first = &t;
    if (t.state == ThreadState::kRuns || t.state == ThreadState::kInWarp) return false;
  }
  if (first == nullptr) return false;
  if (ended != nullptr) {
    Fail(*first, InstructionOf(*first), StrCat("a barrier that thread ", ended->number, " never reaches"));
    return false;
  }
  for (Thread& t : threads_) {
    if (t.at == first->at) continue;
    Fail(t, InstructionOf(t), StrCat("waits at another barrier than thread ", first->number));
    return false;
  }
  for (Thread& t : threads_) {
    t.state = ThreadState::kRuns;
    ++t.at;
  }
  shared_.OrderThreads();
  if (races_ != nullptr) races_->Barrier(&order_);
  ++progress_;
  return true;
}

void Block::Stuck() {
  for (const auto& [state, what] : {std::pair(ThreadState::kInWarp, "lanes"), {ThreadState::kAtBarrier, "threads"}}) {
    for (const Thread& t : threads_) {
      if (t.state == state) Fail(t, InstructionOf(t), StrCat("waits for ", what, " that never come"));
    }
  }
}

bool Block::RunWarp(size_t first) {
  constexpr uint32_t kLowLanes = 0xFFFF;
  const size_t end = std::min<size_t>(first + kWarpLanes, threads_.size());
  bool has_moved = false;
  for (bool again = true; again && error_.empty();) {
    // A half may be ahead of the other, as the seed has it: lanes are together only where the kernel says so.
    const uint32_t order = random_() % 8;
    const uint32_t ahead = order == 0 ? kLowLanes : order == 1 ? ~kLowLanes : kAllLanes;
    const bool has_one_moved = RunLanes(first, end, ahead), has_another_moved = RunLanes(first, end, ~ahead);
    again = error_.empty() && RunWarpOperation(first, end);
    has_moved = has_moved || has_one_moved || has_another_moved || again;
  }
  return has_moved;
}

uint32_t Block::LanesThatRun(size_t first, size_t end) const {
  uint32_t lanes = 0;
  for (size_t t = first; t < end; ++t) lanes |= uint32_t{threads_[t].state == ThreadState::kRuns} << (t - first);
  return lanes;
}

bool Block::RunLanes(size_t first, size_t end, uint32_t among) {
  uint32_t running = LanesThatRun(first, end) & among;
  if (running == 0) return false;
  ForLanes(first, running, [&](Thread& t) { t.left = launch_.max_instructions; });
  while (running != 0 && error_.empty()) {
    // The least far go first: so they meet the others where their ways join.
    size_t at = SIZE_MAX, others = SIZE_MAX;
    ForLanes(first, running, [&](Thread& t) { at = std::min(at, t.at); });
    uint32_t together = 0;
    ForLanes(first, running, [&](Thread& t) {
      if (t.at == at) {
        together |= 1U << (t.number % kWarpLanes);
      } else {
        others = std::min(others, t.at);
      }
    });
    running = (running & ~together) | Advance(first, together, others);
  }
  return true;
}

uint32_t Block::Advance(size_t first, uint32_t lanes, size_t others) {
  uint64_t* const registers = RegistersOf(first);
  size_t at = FirstOf(first, lanes).at;
  uint64_t steps = 0, most = launch_.max_instructions;
  auto threads = static_cast<uint64_t>(std::popcount(lanes));
  ForLanes(first, lanes, [&](Thread& t) { most = std::min(most, t.left); });
  const auto leave = [&](uint32_t those, size_t place) {
    ForLanes(first, those, [&](Thread& t) {
      t.at = place;
      t.left -= steps;
    });
  };
  while (at < others && lanes != 0) {
    const Instruction& i = code_.instructions[at];
    counts_[at] += threads;
    if (++steps == most) Fail(FirstOf(first, lanes), i, "does not end");
    if (!error_.empty()) return 0;
    const uint32_t active = i.guard == kNoRegister ? lanes : lanes & LanesWhere(registers, i);
    if (active == 0) {
      ++at;
      continue;
    }
    switch (i.kind) {
      case InstructionKind::kCompute:
        i.operation(registers, i, active);
        ++at;
        break;
      case InstructionKind::kLoad:
      case InstructionKind::kStore:
      case InstructionKind::kAtomic:
        AccessMemory(first, active, i);
        ++at;
        if (!i.is_synchronizing) break;
        leave(active, at);  // until the block's next turn
        lanes &= ~active;
        threads = static_cast<uint64_t>(std::popcount(lanes));
        break;
      case InstructionKind::kFence:
        if (races_ != nullptr) order_.Fence(first / kWarpLanes, active);
        ++at;
        break;
      case InstructionKind::kBranch:
        if (active == lanes) {
          at = static_cast<size_t>(i.target);
          break;
        }
        leave(active, static_cast<size_t>(i.target));
        leave(lanes & ~active, at + 1);
        return lanes;
      case InstructionKind::kBranchTable:
        leave(lanes, at + 1);
        ForLanes(first, active, [&](Thread& t) { BranchByTable(t, i); });
        return lanes;
      default:
        leave(active, at);
        Stop(first, active, i);
        lanes &= ~active;
        threads = static_cast<uint64_t>(std::popcount(lanes));
        ++at;
    }
  }
  leave(lanes, at);
  return lanes;
}

void Block::Stop(size_t first, uint32_t lanes, const Instruction& i) {
  if (i.kind == InstructionKind::kTrap) return Fail(FirstOf(first, lanes), i, "trap");
  if (i.kind == InstructionKind::kReturn) ++progress_;
  const ThreadState state = i.kind == InstructionKind::kReturn    ? ThreadState::kEnded
                            : i.kind == InstructionKind::kBarrier ? ThreadState::kAtBarrier
                                                                  : ThreadState::kInWarp;
  ForLanes(first, lanes, [&](Thread& t) { t.state = state; });
}

void Block::BranchByTable(Thread& t, const Instruction& i) {
  const std::vector<int32_t>& table = code_.tables[static_cast<size_t>(i.target)];
  const uint64_t index = t.Register(i.from[0]);
  if (index >= table.size()) return Fail(t, i, StrCat("place ", index, " of a table of ", table.size()));
  t.at = static_cast<size_t>(table[index]);
}

bool Block::RunWarpOperation(size_t first, size_t end) {
  for (size_t n = first; n < end; ++n) {
    if (threads_[n].state != ThreadState::kInWarp) continue;
    const Instruction& i = InstructionOf(threads_[n]);
    uint32_t here = 0;
    for (size_t t = first; t < end; ++t) {
      if (threads_[t].state == ThreadState::kInWarp && threads_[t].at == threads_[n].at) here |= 1U << (t - first);
    }
    const uint32_t mask = i.kind == InstructionKind::kActiveMask ? here : MaskOf(threads_[n], i);
    if ((mask >> (n - first) & 1) == 0) {
      Fail(threads_[n], i, "isn't in its own mask");
      return false;
    }
    if ((here & mask) != (mask & LanesOf(first, end)) || !HaveOneMask(first, end, mask, i)) continue;
    Exchange(first, mask, i);
    ForLanes(first, mask & LanesOf(first, end), [](Thread& t) {
      t.state = ThreadState::kRuns;
      ++t.at;
    });
    shared_.OrderLanes(first / kWarpLanes);
    return true;
  }
  return false;
}

bool Block::HaveOneMask(size_t first, size_t end, uint32_t mask, const Instruction& i) {
  if (i.kind == InstructionKind::kActiveMask) return true;
  for (size_t t = first; t < end; ++t) {
    if ((mask >> (t - first) & 1) == 0 || MaskOf(threads_[t], i) == mask) continue;
    Fail(threads_[t], i, "names other lanes than the lanes it names");
    return false;
  }
  return true;
}

void Block::Exchange(size_t first, uint32_t mask, const Instruction& i) {
  if (i.kind == InstructionKind::kShuffle) return Shuffle(first, mask, i);
  if (i.kind == InstructionKind::kWarpBarrier) return;
  const uint32_t here = mask & LanesOf(first, std::min<size_t>(first + kWarpLanes, threads_.size()));
  uint32_t result = mask;
  if (i.kind == InstructionKind::kVote) {
    uint32_t votes = 0;
    ForLanes(first, here, [&](const Thread& t) {
      if (t.Register(i.from[0]) != 0) votes |= 1U << (t.number % kWarpLanes);
    });
    const auto mode = static_cast<VoteMode>(i.mode);
    result = mode == VoteMode::kBallot ? votes
             : mode == VoteMode::kAny  ? static_cast<uint32_t>(votes != 0)
                                       : static_cast<uint32_t>(votes == here);
  }
  ForLanes(first, here, [&](Thread& t) { t.Register(i.to[0]) = result; });
}

// As the PTX ISA's shfl.sync says it.
void Block::Shuffle(size_t first, uint32_t mask, const Instruction& i) {
  std::array<uint64_t, kWarpLanes> values = {};
  for (uint32_t lane = 0; lane < kWarpLanes && first + lane < threads_.size(); ++lane) {
    values[lane] = threads_[first + lane].Register(i.from[0]);
  }
  for (uint32_t lane = 0; lane < kWarpLanes && first + lane < threads_.size(); ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    Thread& t = threads_[first + lane];
    const uint32_t b = static_cast<uint32_t>(t.Register(i.from[1])) & 31;
    const uint32_t c = static_cast<uint32_t>(t.Register(i.from[2]));
    const uint32_t segment = c >> 8 & 31, clamp = c & 31;
    const uint32_t last = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
    uint32_t from = lane;
    bool is_inside = false;
    switch (static_cast<ShuffleMode>(i.mode)) {
      case ShuffleMode::kUp:
        is_inside = static_cast<int32_t>(lane) - static_cast<int32_t>(b) >= static_cast<int32_t>(last);
        from = lane - b;
        break;
      case ShuffleMode::kDown:
        is_inside = lane + b <= last;
        from = lane + b;
        break;
      case ShuffleMode::kButterfly:
        is_inside = (lane ^ b) <= last;
        from = lane ^ b;
        break;
      case ShuffleMode::kIndex:
        from = lowest | (b & ~segment);
        is_inside = from <= last;
        break;
    }
    if (!is_inside) from = lane;
    if ((mask >> from & 1) == 0 || first + from >= threads_.size()) {
      return Fail(t, i, StrCat("takes from lane ", from, ", which is not in the mask"));
    }
    t.Register(i.to[0]) = static_cast<uint32_t>(values[from]);
    if (i.to[1] != kNoRegister) t.Register(i.to[1]) = is_inside ? 1 : 0;
  }
}

}  // namespace tessera::ptx
