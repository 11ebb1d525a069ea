// Loads, stores and atomic instructions, and the checks of each place that they name.

#include <cstring>
#include <memory>

#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/block.h"

namespace tessera::ptx {
namespace {

AccessKind KindOf(const Instruction& i) {
  return i.kind == InstructionKind::kLoad    ? AccessKind::kRead
         : i.kind == InstructionKind::kStore ? AccessKind::kWrite
                                             : AccessKind::kAtomic;
}

// A load takes as many bytes as an element has: a processor hands a fresh store to a load of the same size alone.
uint64_t Load(const std::byte* place, size_t bytes) {
  const auto as = [&](auto value) -> uint64_t {
    std::memcpy(&value, place, sizeof(value));
    return value;
  };
  switch (bytes) {
    case 1: return as(uint8_t{});
    case 2: return as(uint16_t{});
    case 4: return as(uint32_t{});
    default: return as(uint64_t{});
  }
}
void Store(std::byte* place, size_t bytes, uint64_t bits) {
  const auto as = [&](auto value) { std::memcpy(place, &value, sizeof(value)); };
  switch (bytes) {
    case 1: return as(static_cast<uint8_t>(bits));
    case 2: return as(static_cast<uint16_t>(bits));
    case 4: return as(static_cast<uint32_t>(bits));
    default: return as(bits);
  }
}
// The bits of an element as a register has them, which may be wider.
uint64_t Extended(const Instruction& i, uint64_t value) {
  if (i.value_class != ValueClass::kSigned) return value;
  const size_t unused = 64 - 8 * size_t{i.bytes};
  return static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
}
// Moves the elements of one thread.
void Move(const Thread& t, const Instruction& i, std::byte* place) {
  for (size_t k = 0; k < i.count; ++k, place += i.bytes) {
    if (i.kind == InstructionKind::kStore) {
      Store(place, i.bytes, t.Register(i.from[k]));
    } else if (i.to[k] != kNoRegister) {
      t.Register(i.to[k]) = Extended(i, Load(place, i.bytes));
    }
  }
}
// Moves an element of each lane; they are `stride` bytes apart.
template <typename T>
void MoveLanes(uint64_t* lane, uint32_t lanes, const Instruction& i, std::byte* place, size_t stride) {
  const bool stores = i.kind == InstructionKind::kStore;
  for (; lanes != 0; lanes >>= 1, ++lane) {
    if ((lanes & 1) == 0) continue;
    auto value = static_cast<T>(*lane);
    if (stores) {
      std::memcpy(place, &value, sizeof(T));
    } else {
      std::memcpy(&value, place, sizeof(T));
      *lane = Extended(i, value);
    }
    place += stride;
  }
}

}  // namespace

void Block::AccessMemory(size_t first, uint32_t lanes, const Instruction& i) {
  const bool has_steps = i.space != Space::kShared && i.space != Space::kLocal && i.kind != InstructionKind::kAtomic;
  if (has_steps && (lanes & (lanes - 1)) != 0 && AccessInSteps(first, lanes, i)) return;
  ForLanes(first, lanes, [&](Thread& t) { AccessMemory(t, i); });
}

bool Block::AccessInSteps(size_t first, uint32_t lanes, const Instruction& i) {
  const auto address = [&](const Thread& t) { return t.Register(i.from[4]) + static_cast<uint64_t>(i.offset); };
  const Thread& one = FirstOf(first, lanes);
  const uint64_t bytes = uint64_t{i.bytes} * i.count, begin = address(one);
  const uint64_t step = address(FirstOf(first, lanes & (lanes - 1))) - begin;
  const bool is_global = (i.space == Space::kGlobal || i.space == Space::kGeneric) && (begin & kWindowMask) == 0;
  if ((begin & (bytes - 1)) != 0 || !(step == bytes ? is_global : step == 0 && i.kind == InstructionKind::kLoad)) {
    return false;
  }
  uint64_t end = begin;
  bool is_in_steps = true;
  ForLanes(first, lanes, [&](const Thread& t) {
    is_in_steps = is_in_steps && address(t) == end;
    end += step;
  });
  if (!is_in_steps) return false;
  const uint64_t all_bytes = step == 0 ? bytes : end - begin;
  std::byte* place = nullptr;
  if (is_global) {
    place = launch_.memory(begin, static_cast<int>(all_bytes), KindOf(i));
  } else if (i.space == Space::kParameter || i.space == Space::kConstant) {
    place = PlaceOf(one, i, begin, bytes, AccessKind::kRead);
  }
  if (place == nullptr) return false;
  // A race is named by the lane that has it.
  if (is_global && !RaceOf(first / kWarpLanes, lanes, i, begin, all_bytes).empty()) return false;
  if (i.kind == InstructionKind::kStore) ++progress_;
  for (size_t k = 0; k < i.count; ++k, place += i.bytes) {
    const int32_t slot = i.kind == InstructionKind::kStore ? i.from[k] : i.to[k];
    if (slot == kNoRegister) continue;
    uint64_t* const to = RegistersOf(first) + static_cast<size_t>(slot) * kWarpLanes;
    switch (i.bytes) {
      case 1: MoveLanes<uint8_t>(to, lanes, i, place, step); break;
      case 2: MoveLanes<uint16_t>(to, lanes, i, place, step); break;
      case 4: MoveLanes<uint32_t>(to, lanes, i, place, step); break;
      default: MoveLanes<uint64_t>(to, lanes, i, place, step);
    }
  }
  return true;
}

void Block::AccessMemory(Thread& t, const Instruction& i) {
  const uint64_t address = t.Register(i.from[4]) + static_cast<uint64_t>(i.offset);
  std::byte* place = PlaceOf(t, i, address, uint64_t{i.bytes} * i.count, KindOf(i));
  if (place == nullptr) return;
  if (i.kind == InstructionKind::kAtomic) return Atomic(t, i, place);
  if (i.kind == InstructionKind::kStore) ++progress_;
  Move(t, i, place);
}

void Block::Atomic(Thread& t, const Instruction& i, std::byte* place) {
  const uint64_t old = Load(place, i.bytes);
  const bool swaps = i.atomic == AtomicOp::kCompareAndSwap;
  const uint64_t value = AtomicResult(i, old, t.Register(i.from[0]), swaps ? t.Register(i.from[1]) : 0);
  Store(place, i.bytes, value);
  if (Load(place, i.bytes) != old) ++progress_;
  if (i.to[0] != kNoRegister) t.Register(i.to[0]) = old;
}

std::byte* Block::PlaceOf(const Thread& t, const Instruction& i, uint64_t address, uint64_t bytes, AccessKind kind) {
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
  std::byte* place = nullptr;
  switch (space) {
    case Space::kShared: {
      std::string wrong;
      place = shared_.Use(t.number, offset, bytes, kind, &wrong);
      if (place == nullptr) Fail(t, i, wrong);
      return place;
    }
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
  place = launch_.memory(address, static_cast<int>(bytes), kind);
  if (place == nullptr) {
    Fail(t, i,
         StrCat("illegal address ", address, " (", bytes, " bytes, ", kind == AccessKind::kRead ? "read" : "write",
                ")"));
    return nullptr;
  }
  if (const std::string race = RaceOf(t.number / kWarpLanes, 1U << (t.number % kWarpLanes), i, address, bytes);
      !race.empty()) {
    Fail(t, i, race);
    return nullptr;
  }
  return place;
}

std::byte* Block::Local(const Thread& t, const Instruction& i, uint64_t offset, uint64_t bytes, AccessKind kind) {
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

std::byte* Block::Constant(const Thread& t, const Instruction& i, uint64_t address, uint64_t bytes, AccessKind kind) {
  for (const std::shared_ptr<Variable>& variable : code_.variables) {
    const uint64_t offset = address - variable->address;
    if (offset + bytes <= variable->bytes.size() && kind == AccessKind::kRead) return variable->bytes.data() + offset;
  }
  Fail(t, i, StrCat("address ", address, " is in no variable of the module that may be read"));
  return nullptr;
}

}  // namespace tessera::ptx
