#pragma once

// A kernel as it is interpreted: instructions over 64-bit registers, resolved from the text by parse.cc, run by run.cc.
// A value of fewer bits is in the low ones, the rest 0. Immediates and addresses of variables are registers, too. A
// warp has its registers together: register r of lane l is number r * kWarpLanes + l.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::ptx {

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = ~uint32_t{0};

struct Instruction;
// An operation computes with a warp's registers, in the lanes whose bits are 1.
using Operation = void (*)(uint64_t* registers, const Instruction& instruction, uint32_t lanes);

// The kind of an instruction, besides computing: kCompute has an operation.
enum class InstructionKind : uint8_t {
  kCompute,
  kBranch,
  kBranchTable,  // to the target that a register numbers
  kReturn,
  kTrap,
  kBarrier,
  kWarpBarrier,
  kShuffle,
  kVote,
  kActiveMask,
  kLoad,
  kStore,
  kAtomic,
  kFence,  // between blocks
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParameter, kConstant };

// Of an access of memory, as other blocks see it.
enum class MemoryOrder : uint8_t { kPlain, kRelaxed, kAcquire, kRelease, kAcquireRelease };

enum class AtomicOp : uint8_t { kAdd, kExchange, kCompareAndSwap, kMax, kMin, kOr, kAnd, kXor };
enum class ValueClass : uint8_t { kUnsigned, kSigned, kFloat };
enum class ShuffleMode : uint8_t { kIndex, kUp, kDown, kButterfly };
enum class VoteMode : uint8_t { kAny, kAll, kBallot };
enum class Rounding : uint8_t { kNearest, kDown, kUp, kZero };

inline constexpr int32_t kNoRegister = -1;

struct Instruction {
  InstructionKind kind = InstructionKind::kCompute;
  Operation operation = nullptr;
  int32_t guard = kNoRegister;
  bool is_guard_negated = false;
  bool is_synchronizing = false;  // on a word that other blocks may look at
  std::array<int32_t, 4> to = {kNoRegister, kNoRegister, kNoRegister, kNoRegister};
  std::array<int32_t, 5> from = {kNoRegister, kNoRegister, kNoRegister, kNoRegister, kNoRegister};
  // For computations: a comparison, a mode of rounding, a combination, by the operation.
  uint8_t mode = 0;
  uint8_t combination = 0;
  bool saturates = false;
  // For memory: bytes of an element, elements, where; the address is from[4] + offset.
  uint8_t bytes = 0;
  uint8_t count = 1;
  Space space = Space::kGeneric;
  ValueClass value_class = ValueClass::kUnsigned;
  AtomicOp atomic = AtomicOp::kAdd;
  MemoryOrder order = MemoryOrder::kPlain;
  int64_t offset = 0;
  int32_t target = 0;  // of a branch; of a table its number
  uint32_t line = 0;
};

// Registers that hold what a thread is: 3 x thread, block extents, block, grid extents, then lane.
inline constexpr int kSpecialRegisters = 13;

struct Variable {
  uint64_t address = 0;  // a number of its own, in the window of constants
  std::vector<std::byte> bytes;
};

struct Code {
  std::vector<Instruction> instructions;
  size_t registers = 0;
  // Values of registers that nothing writes. Other registers begin with any value.
  std::vector<std::pair<int32_t, uint64_t>> constants;
  std::vector<std::pair<int32_t, int>> special;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::shared_ptr<Variable>> variables;  // of the module
  int64_t local_bytes = 0;
  bool is_synchronizing = false;  // some instruction is
  bool orders_blocks = false;     // some instruction acquires or releases
};

// Addresses with these first bytes are no global memory.
inline constexpr uint64_t kWindowMask = 0xFF00000000000000;
inline constexpr uint64_t kSharedWindow = 0x7100000000000000;
inline constexpr uint64_t kLocalWindow = 0x7200000000000000;
inline constexpr uint64_t kConstantWindow = 0x7300000000000000;
inline constexpr uint64_t kParameterWindow = 0x7400000000000000;

// The operation of an instruction by the parts of its name ("add", "s32"; "cvt", "rn", "f16", "f32"), which sets the
// modes; null where it isn't known.
Operation OperationOf(const std::vector<std::string>& parts, Instruction* instruction);
// Bits as numbers: of 4 or 8 bytes.
uint64_t AddFloats(uint64_t a, uint64_t b, int bytes);
// A word as an atomic instruction leaves it; `replacement`: of a compare-and-swap.
uint64_t AtomicResult(const Instruction& instruction, uint64_t old, uint64_t operand, uint64_t replacement);

}  // namespace tessera::ptx
