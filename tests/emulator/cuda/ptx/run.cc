// A block at a time, its warps in an order of the seed, each thread as far as it gets without others. If blocks of a
// kernel look at each other's words, several are resident, and take turns at every such instruction; they start in an
// order of the seed. A kernel may not depend on what can be seen of the order: the checks say where it does.

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <random>

#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/arithmetic.h"
#include "tests/emulator/cuda/ptx/code.h"
#include "tests/emulator/cuda/ptx/ptx.h"

namespace tessera::ptx {
namespace {

constexpr uint32_t kWarp = 32;

enum class ThreadState : uint8_t { kRuns, kAtBarrier, kInWarp, kEnded };

struct Thread {
  uint64_t* registers = nullptr;
  size_t at = 0;
  ThreadState state = ThreadState::kRuns;
  std::byte* local = nullptr;
  uint8_t* local_written = nullptr;
  uint32_t number = 0;
};

// The last users of an element of shared memory: one thread, or several, of one warp or several.
struct Use {
  static constexpr uint32_t kNobody = ~uint32_t{0}, kSeveral = kNobody - 1;
  uint32_t thread = kNobody;
  uint32_t warp = kNobody;
  uint32_t epoch = 0;
  uint32_t warp_epoch = 0;
};

class Block {
 public:
  Block(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch, uint64_t* counts)
      : kernel_(kernel), code_(*kernel.code), parameters_(parameters), launch_(launch), counts_(counts) {
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    registers_.resize(code_.initial.size() * threads);
    local_.resize(static_cast<size_t>(code_.local_bytes) * threads);
    local_written_.resize(local_.size());
    threads_.resize(threads);
    warp_epochs_.resize((threads + kWarp - 1) / kWarp);
    shared_.resize(static_cast<size_t>(kernel.shared_bytes) + launch.shared_bytes);
    for (const Instruction& i : code_.instructions) {
      if (i.bytes > 0 && (i.space == Space::kShared || i.space == Space::kGeneric)) {
        granule_ = std::min<uint64_t>(granule_, i.bytes);
      }
    }
    writes_.resize(shared_.size() / granule_ + 1);
    reads_.resize(writes_.size());
    for (uint32_t w = 0; w < threads; w += kWarp) warp_order_.push_back(w);
  }

  // Begins the block.
  void Start(std::array<uint32_t, 3> id) {
    Begin(id);
    random_.seed(launch_.seed * 7919 + id[0] + 31 * id[1]);
    is_done_ = false;
  }
  // Each thread as far as it gets, or to the next word that other blocks may look at.
  void Step() {
    std::shuffle(warp_order_.begin(), warp_order_.end(), random_);
    bool has_moved = false;
    for (const size_t warp : warp_order_) has_moved = RunWarp(warp) || has_moved;
    is_done_ = !error_.empty() || AreAll(ThreadState::kEnded);
    if (is_done_ || EndBarrier() || has_moved) return;
    Stuck();
    is_done_ = true;
  }
  bool is_done() const { return is_done_; }
  // The error, or empty.
  const std::string& error() const { return error_; }
  // Changes of memory, and barriers, so far: none are made by who waits in a loop.
  uint64_t progress() const { return progress_; }
  // Names a thread that waits in a loop.
  std::string WaitText() const {
    const auto t =
        std::find_if(threads_.begin(), threads_.end(), [](auto& t) { return t.state == ThreadState::kRuns; });
    return StrCat("block ", id_[0],
                  t == threads_.end() ? "" : StrCat(" thread ", t->number, " line ", InstructionOf(*t).line));
  }

 private:
  void Begin(std::array<uint32_t, 3> id) {
    id_ = id;
    std::fill(shared_.begin(), shared_.end(), std::byte{0xA5});
    std::fill(writes_.begin(), writes_.end(), Use{});
    std::fill(reads_.begin(), reads_.end(), Use{});
    std::fill(local_written_.begin(), local_written_.end(), uint8_t{0});
    std::fill(warp_epochs_.begin(), warp_epochs_.end(), 1);
    epoch_ = 1;
    const auto& n = launch_.block;
    for (uint32_t t = 0; t < threads_.size(); ++t) {
      Thread& thread = threads_[t];
      const size_t local = static_cast<size_t>(code_.local_bytes) * t;
      thread = {registers_.data() + code_.initial.size() * t,
                0,
                ThreadState::kRuns,
                local_.data() + local,
                local_written_.data() + local,
                t};
      std::copy(code_.initial.begin(), code_.initial.end(), thread.registers);
      const uint32_t values[kSpecialRegisters] = {
          t % n[0],        t / n[0] % n[1], t / n[0] / n[1], n[0],     n[1], n[2], id[0], id[1], id[2],
          launch_.grid[0], launch_.grid[1], launch_.grid[2], t % kWarp};
      for (const auto& [slot, which] : code_.special) thread.registers[slot] = values[which];
    }
  }

  bool AreAll(ThreadState state) const {
    return std::all_of(threads_.begin(), threads_.end(), [state](const Thread& t) { return t.state == state; });
  }

  // As far as its threads get; whether any did.
  bool RunWarp(size_t first) {
    const size_t end = std::min<size_t>(first + kWarp, threads_.size());
    bool has_moved = false;
    for (bool again = true; again && error_.empty();) {
      for (size_t t = first; t < end; ++t) {
        if (threads_[t].state != ThreadState::kRuns) continue;
        Advance(threads_[t]);
        has_moved = true;
      }
      again = error_.empty() && RunWarpOperation(first, end);
      has_moved = has_moved || again;
    }
    return has_moved;
  }

  void Fail(const Thread& t, const Instruction& i, std::string_view what) {
    if (!error_.empty()) return;
    error_ = StrCat(kernel_.name, ": block ", id_[0], ",", id_[1], ",", id_[2], " thread ", t.number, " line ", i.line,
                    ": ", what);
  }
  const Instruction& InstructionOf(const Thread& t) const { return code_.instructions[t.at]; }

  // Lets go of a barrier that all threads have reached.
  bool EndBarrier() {
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
    ++epoch_;
    ++progress_;
    return true;
  }

  void Stuck() {
    for (const auto& [state, what] : {std::pair(ThreadState::kInWarp, "lanes"), {ThreadState::kAtBarrier, "threads"}}) {
      for (const Thread& t : threads_) {
        if (t.state == state) Fail(t, InstructionOf(t), StrCat("waits for ", what, " that never come"));
      }
    }
  }

  // Until the thread has to wait for others, or ends. Most of a test's time goes by here: what an instruction needs is
  // in locals of a function of its own, and an error is looked for where one may have come.
  [[gnu::noinline]] void Advance(Thread& t) {
    const Instruction* const first = code_.instructions.data();
    uint64_t* const registers = t.registers;
    const Instruction* i = first + t.at;
    uint64_t* count = counts_ + t.at;
    const auto go_to = [&](size_t at) {
      i = first + at;
      count = counts_ + at;
    };
    for (uint64_t left = launch_.max_instructions;; --left) {
      ++*count;
      if (left == 1) {
        t.at = static_cast<size_t>(i - first);
        return Fail(t, *i, "does not end");
      }
      const bool is_left_out = i->guard != kNoRegister && (registers[i->guard] != 0) == i->is_guard_negated;
      if (is_left_out || i->kind == InstructionKind::kCompute) {
        if (!is_left_out) i->operation(registers, *i);
        ++i;
        ++count;
      } else if (i->kind == InstructionKind::kBranch) {
        go_to(static_cast<size_t>(i->target));
      } else {
        t.at = static_cast<size_t>(i - first);
        if (!Interrupt(t, *i)) return;
        go_to(t.at);
      }
    }
  }

  // An instruction that is more than registers; whether the thread goes on.
  bool Interrupt(Thread& t, const Instruction& i) {
    switch (i.kind) {
      case InstructionKind::kCompute:
      case InstructionKind::kBranch: break;  // Advance does them
      case InstructionKind::kBranchTable: BranchByTable(t, i); break;
      case InstructionKind::kReturn:
        t.state = ThreadState::kEnded;
        ++progress_;
        break;
      case InstructionKind::kTrap: Fail(t, i, "trap"); break;
      case InstructionKind::kBarrier: t.state = ThreadState::kAtBarrier; break;
      case InstructionKind::kWarpBarrier:
      case InstructionKind::kShuffle:
      case InstructionKind::kVote:
      case InstructionKind::kActiveMask: t.state = ThreadState::kInWarp; break;
      case InstructionKind::kLoad:
      case InstructionKind::kStore:
      case InstructionKind::kAtomic:
        AccessMemory(t, i);
        ++t.at;
        if (i.is_synchronizing) return false;
        break;
    }
    return t.state == ThreadState::kRuns && error_.empty();
  }

  void BranchByTable(Thread& t, const Instruction& i) {
    const std::vector<int32_t>& table = code_.tables[static_cast<size_t>(i.target)];
    const uint64_t index = t.registers[i.from[0]];
    if (index >= table.size()) return Fail(t, i, StrCat("place ", index, " of a table of ", table.size()));
    t.at = static_cast<size_t>(table[index]);
  }

  // ---- warps

  // The lanes that wait at one instruction, where all that it names are there.
  bool RunWarpOperation(size_t first, size_t end) {
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
      for (size_t t = first; t < end; ++t) {
        if ((mask >> (t - first) & 1) == 0) continue;
        threads_[t].state = ThreadState::kRuns;
        ++threads_[t].at;
      }
      ++warp_epochs_[first / kWarp];
      return true;
    }
    return false;
  }
  static uint32_t LanesOf(size_t first, size_t end) {
    return end - first >= kWarp ? ~uint32_t{0} : (1U << (end - first)) - 1;
  }
  uint32_t MaskOf(const Thread& t, const Instruction& i) const {
    const size_t operand = i.kind == InstructionKind::kShuffle ? 3 : i.kind == InstructionKind::kVote ? 1 : 0;
    return static_cast<uint32_t>(t.registers[i.from[operand]]);
  }
  bool HaveOneMask(size_t first, size_t end, uint32_t mask, const Instruction& i) {
    if (i.kind == InstructionKind::kActiveMask) return true;
    for (size_t t = first; t < end; ++t) {
      if ((mask >> (t - first) & 1) == 0 || MaskOf(threads_[t], i) == mask) continue;
      Fail(threads_[t], i, "names other lanes than the lanes it names");
      return false;
    }
    return true;
  }

  void Exchange(size_t first, uint32_t mask, const Instruction& i) {
    if (i.kind == InstructionKind::kShuffle) return Shuffle(first, mask, i);
    if (i.kind == InstructionKind::kWarpBarrier) return;
    uint32_t votes = 0;
    const auto each = [&](auto&& f) {
      for (uint32_t lane = 0; lane < kWarp; ++lane) {
        if ((mask >> lane & 1) != 0 && first + lane < threads_.size()) f(threads_[first + lane], lane);
      }
    };
    if (i.kind == InstructionKind::kActiveMask) {
      return each([&](Thread& t, uint32_t) { t.registers[i.to[0]] = mask; });
    }
    each([&](Thread& t, uint32_t lane) { votes |= t.registers[i.from[0]] != 0 ? 1U << lane : 0; });
    const uint32_t here = mask & LanesOf(first, std::min<size_t>(first + kWarp, threads_.size()));
    const auto mode = static_cast<VoteMode>(i.mode);
    const uint32_t result = mode == VoteMode::kBallot ? votes
                            : mode == VoteMode::kAny  ? static_cast<uint32_t>(votes != 0)
                                                      : static_cast<uint32_t>(votes == here);
    each([&](Thread& t, uint32_t) { t.registers[i.to[0]] = result; });
  }

  // As the PTX ISA's shfl.sync says it.
  void Shuffle(size_t first, uint32_t mask, const Instruction& i) {
    std::array<uint64_t, kWarp> values = {};
    for (uint32_t lane = 0; lane < kWarp && first + lane < threads_.size(); ++lane) {
      values[lane] = threads_[first + lane].registers[i.from[0]];
    }
    for (uint32_t lane = 0; lane < kWarp && first + lane < threads_.size(); ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      Thread& t = threads_[first + lane];
      const uint32_t b = static_cast<uint32_t>(t.registers[i.from[1]]) & 31;
      const uint32_t c = static_cast<uint32_t>(t.registers[i.from[2]]);
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
      t.registers[i.to[0]] = static_cast<uint32_t>(values[from]);
      if (i.to[1] != kNoRegister) t.registers[i.to[1]] = is_inside ? 1 : 0;
    }
  }

  // ---- memory

  std::byte* PlaceOf(Thread& t, const Instruction& i, uint64_t address, uint64_t bytes, AccessKind kind) {
    if ((address & (bytes - 1)) != 0) {
      Fail(t, i, StrCat("address ", address, " is misaligned for ", bytes, " bytes"));
      return nullptr;
    }
    Space space = i.space;
    const uint64_t window = address & kWindowMask, offset = address & ~kWindowMask;
    if (space == Space::kGeneric || space == Space::kGlobal) {
      space = window == kSharedWindow      ? Space::kShared
              : window == kLocalWindow     ? Space::kLocal
              : window == kConstantWindow  ? Space::kConstant
              : window == kParameterWindow ? Space::kParameter
                                           : Space::kGlobal;
      if (i.space == Space::kGlobal && space != Space::kConstant) space = Space::kGlobal;
    }
    switch (space) {
      case Space::kShared: return Shared(t, i, offset, bytes, kind);
      case Space::kLocal: return Local(t, i, offset, bytes, kind);
      case Space::kConstant: return Constant(t, i, address, bytes, kind);
      case Space::kParameter:
        if (offset + bytes <= parameters_.size() && kind == AccessKind::kRead) {
          return const_cast<std::byte*>(parameters_.data()) + offset;
        }
        Fail(t, i, StrCat("byte ", offset, " of ", parameters_.size(), " of the parameters"));
        return nullptr;
      case Space::kGeneric:
      case Space::kGlobal: break;
    }
    std::byte* place = launch_.memory(address, static_cast<int>(bytes), kind);
    if (place == nullptr) {
      Fail(t, i,
           StrCat("illegal address ", address, " (", bytes, " bytes, ", kind == AccessKind::kRead ? "read" : "write",
                  ")"));
    }
    return place;
  }

  std::byte* Local(Thread& t, const Instruction& i, uint64_t offset, uint64_t bytes, AccessKind kind) {
    if (offset + bytes > static_cast<uint64_t>(code_.local_bytes)) {
      Fail(t, i, StrCat("byte ", offset, " of ", code_.local_bytes, " of local memory"));
      return nullptr;
    }
    for (uint64_t b = offset; b < offset + bytes; ++b) {
      if (kind != AccessKind::kRead) t.local_written[b] = 1;
      if (t.local_written[b] == 0) Fail(t, i, StrCat("reads byte ", b, " of local memory, which nobody wrote"));
    }
    return t.local + offset;
  }

  std::byte* Constant(Thread& t, const Instruction& i, uint64_t address, uint64_t bytes, AccessKind kind) {
    for (const std::shared_ptr<Variable>& variable : code_.variables) {
      const uint64_t offset = address - variable->address;
      if (offset + bytes <= variable->bytes.size() && kind == AccessKind::kRead) return variable->bytes.data() + offset;
    }
    Fail(t, i, StrCat("address ", address, " is in no variable of the module that may be read"));
    return nullptr;
  }

  // Whether the use is by another thread, with no barrier between.
  bool Races(const Use& use, const Thread& t) const {
    if (use.thread == Use::kNobody || use.thread == t.number || use.epoch != epoch_) return false;
    const uint32_t warp = t.number / kWarp;
    return use.warp != warp || use.warp_epoch == warp_epochs_[warp];
  }
  void Record(const Thread& t, Use* use) const {
    const uint32_t warp = t.number / kWarp;
    const Use now = {t.number, warp, epoch_, warp_epochs_[warp]};
    if (!Races(*use, t)) {
      *use = now;
      return;
    }
    if (use->warp != warp) use->warp = Use::kSeveral;
    use->thread = Use::kSeveral;
  }

  std::byte* Shared(Thread& t, const Instruction& i, uint64_t offset, uint64_t bytes, AccessKind kind) {
    if (offset + bytes > shared_.size()) {
      Fail(t, i, StrCat("byte ", offset, " of ", shared_.size(), " of shared memory"));
      return nullptr;
    }
    for (uint64_t b = offset; b < offset + bytes; b += granule_) {
      Use &written = writes_[b / granule_], &read = reads_[b / granule_];
      if (kind != AccessKind::kAtomic && Races(written, t)) return Race(t, i, b, written, "written");
      if (kind == AccessKind::kWrite && Races(read, t)) return Race(t, i, b, read, "read");
      if (kind != AccessKind::kWrite && written.thread == Use::kNobody) {
        Fail(t, i, StrCat("reads byte ", b, " of shared memory, which nobody wrote"));
        return nullptr;
      }
      Record(t, kind == AccessKind::kRead ? &read : &written);
    }
    return shared_.data() + offset;
  }
  std::byte* Race(const Thread& t, const Instruction& i, uint64_t byte, const Use& use, std::string_view what) {
    const std::string by = use.thread == Use::kSeveral ? std::string("several threads") : StrCat("thread ", use.thread);
    Fail(t, i, StrCat("race: byte ", byte, " of shared memory was ", what, " by ", by, " with no barrier since"));
    return nullptr;
  }

  void AccessMemory(Thread& t, const Instruction& i) {
    const uint64_t address = t.registers[i.from[4]] + static_cast<uint64_t>(i.offset);
    const AccessKind kind = i.kind == InstructionKind::kLoad    ? AccessKind::kRead
                            : i.kind == InstructionKind::kStore ? AccessKind::kWrite
                                                                : AccessKind::kAtomic;
    std::byte* place = PlaceOf(t, i, address, uint64_t{i.bytes} * i.count, kind);
    if (place == nullptr) return;
    const size_t bytes = i.bytes;
    if (kind == AccessKind::kAtomic) return Atomic(t, i, place);
    if (kind == AccessKind::kWrite) ++progress_;
    for (size_t k = 0; k < i.count; ++k) {
      if (kind == AccessKind::kWrite) {
        std::memcpy(place + k * bytes, &t.registers[i.from[k]], bytes);
      } else if (i.to[k] != kNoRegister) {
        uint64_t value = 0;
        std::memcpy(&value, place + k * bytes, bytes);
        t.registers[i.to[k]] = i.value_class == ValueClass::kSigned ? SignExtended(value, bytes) : value;
      }
    }
  }

  // The register may be wider than what is loaded.
  static uint64_t SignExtended(uint64_t value, size_t bytes) {
    const size_t unused = 64 - 8 * bytes;
    return static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
  }

  void Atomic(Thread& t, const Instruction& i, std::byte* place) {
    uint64_t old = 0;
    std::memcpy(&old, place, i.bytes);
    const bool swaps = i.atomic == AtomicOp::kCompareAndSwap;
    const uint64_t value = AtomicResult(i, old, t.registers[i.from[0]], swaps ? t.registers[i.from[1]] : 0);
    if (std::memcmp(place, &value, i.bytes) != 0) ++progress_;
    std::memcpy(place, &value, i.bytes);
    if (i.to[0] != kNoRegister) t.registers[i.to[0]] = old;
  }

  const Kernel& kernel_;
  const Code& code_;
  const absl::Span<const std::byte> parameters_;
  const GridLaunch& launch_;
  uint64_t* const counts_;  // by instruction
  std::array<uint32_t, 3> id_ = {};
  std::vector<Thread> threads_;
  std::vector<uint64_t> registers_;
  std::vector<std::byte> local_, shared_;
  std::vector<uint8_t> local_written_;
  // Uses of shared memory, by the smallest element that the kernel's instructions name: each access is some of them.
  uint64_t granule_ = 16;
  std::vector<Use> writes_, reads_;
  std::vector<size_t> warp_order_;  // first threads
  std::vector<uint32_t> warp_epochs_;
  uint32_t epoch_ = 1;
  uint64_t progress_ = 0;
  std::mt19937 random_;
  bool is_done_ = true;
  std::string error_;
};

std::string CheckLaunch(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch) {
  constexpr uint64_t kMaxThreads = 1024, kMaxGridY = 65535, kMaxStaticShared = 48 << 10, kMaxShared = 227 << 10;
  if (static_cast<int64_t>(parameters.size()) != kernel.parameter_bytes) {
    return StrCat(kernel.name, ": takes ", kernel.parameter_bytes, " bytes of parameters, not ", parameters.size());
  }
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  if (threads == 0 || threads > kMaxThreads) return StrCat(kernel.name, ": ", threads, " threads in a block");
  if (launch.grid[0] == 0 || launch.grid[0] > 0x7FFFFFFF || launch.grid[1] == 0 || launch.grid[1] > kMaxGridY ||
      launch.grid[2] == 0 || launch.grid[2] > kMaxGridY) {
    return StrCat(kernel.name, ": a grid of ", launch.grid[0], ",", launch.grid[1], ",", launch.grid[2]);
  }
  const auto fixed = static_cast<uint64_t>(kernel.shared_bytes);
  if (fixed > kMaxStaticShared || fixed + launch.shared_bytes > kMaxShared) {
    return StrCat(kernel.name, ": ", fixed, " + ", launch.shared_bytes, " bytes of shared memory");
  }
  return "";
}

// Blocks in this order, as many side by side as the seed says where they look at each other's words.
std::string RunResident(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch,
                        absl::Span<const uint64_t> order, uint64_t* counts) {
  constexpr uint64_t kIdleSteps = 64;  // of each block, until it is seen that none gets on
  const size_t places = kernel.code->is_synchronizing ? 2 + launch.seed % 7 : 1;
  std::mt19937 random(launch.seed * 31 + 7);
  std::vector<std::unique_ptr<Block>> resident;
  size_t started = 0;
  const auto start = [&](Block& block) {
    const uint64_t b = order[started++];
    block.Start({static_cast<uint32_t>(b % launch.grid[0]), static_cast<uint32_t>(b / launch.grid[0] % launch.grid[1]),
                 static_cast<uint32_t>(b / launch.grid[0] / launch.grid[1])});
  };
  while (resident.size() < std::min(places, order.size())) {
    resident.push_back(std::make_unique<Block>(kernel, parameters, launch, counts));
    start(*resident.back());
  }
  for (uint64_t idle = 0; !resident.empty();) {
    const size_t turn = random() % resident.size();
    Block& block = *resident[turn];
    const uint64_t before = block.progress();
    block.Step();
    if (!block.error().empty()) return block.error();
    idle = block.progress() == before ? idle + 1 : 0;
    if (idle > kIdleSteps * resident.size()) {
      return StrCat(kernel.name, ": ", block.WaitText(), ": ", resident.size(), " resident blocks wait for ",
                    started < order.size() ? "blocks that never start" : "each other");
    }
    if (!block.is_done()) continue;
    if (started < order.size()) {
      start(block);
    } else {
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(turn));
    }
  }
  return "";
}

}  // namespace

// The last one is the end of the body, behind its ret.
std::vector<uint32_t> InstructionLines(const Kernel& kernel) {
  std::vector<uint32_t> lines;
  for (const Instruction& instruction : kernel.code->instructions) lines.push_back(instruction.line);
  lines.pop_back();
  return lines;
}

std::string Run(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch) {
  if (std::string wrong = CheckLaunch(kernel, parameters, launch); !wrong.empty()) return wrong;
  const std::vector<Instruction>& instructions = kernel.code->instructions;
  std::vector<uint64_t> counts(instructions.size());
  std::vector<uint64_t> order(uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]);
  for (size_t b = 0; b < order.size(); ++b) order[b] = b;
  std::mt19937 random(launch.seed);
  std::shuffle(order.begin(), order.end(), random);
  const std::string wrong = RunResident(kernel, parameters, launch, order, counts.data());
  if (launch.coverage != nullptr) {
    launch.coverage->run_count.resize(instructions.size());
    for (size_t i = 0; i < instructions.size(); ++i) {
      launch.coverage->run_count[i] += counts[i];
    }
  }
  return wrong;
}

}  // namespace tessera::ptx
