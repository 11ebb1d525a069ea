#pragma once

// A block of a grid as it is run: its warps in an order of the seed, each as far as it gets without others. Lanes that
// are at one instruction do it together. A kernel may not depend on what can be seen of the order: the checks say
// where it does.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "tests/emulator/cuda/ptx/block_races.h"
#include "tests/emulator/cuda/ptx/code.h"
#include "tests/emulator/cuda/ptx/ptx.h"
#include "tests/emulator/cuda/ptx/shared_memory.h"

namespace tessera::ptx {

enum class ThreadState : uint8_t { kRuns, kAtBarrier, kInWarp, kEnded };

struct Thread {
  uint64_t* registers = nullptr;  // of its lane: every kWarpLanes-th number from here on
  size_t at = 0;
  uint64_t left = 0;  // instructions until it has to wait for others
  ThreadState state = ThreadState::kRuns;
  std::byte* local = nullptr;
  uint8_t* local_written = nullptr;
  uint32_t number = 0;

  uint64_t& Register(int32_t place) const { return registers[static_cast<size_t>(place) * kWarpLanes]; }
};

class Block {
 public:
  // All of them outlive it. `races`: null where the grid has no other block. `counts`: of each instruction, how often
  // threads have come to it; added to.
  Block(const Kernel& kernel, absl::Span<const std::byte> parameters, const GridLaunch& launch, BlockRaces* races,
        uint64_t* counts);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  // Begins the block, where another one may have ended.
  void Start(std::array<uint32_t, 3> id);
  // Runs each thread as far as it gets, or to the next word that other blocks may look at.
  void Step();
  bool is_done() const { return is_done_; }
  // The error, or empty.
  const std::string& error() const { return error_; }
  // Changes of memory, and barriers, so far: none are made by who waits in a loop.
  uint64_t progress() const { return progress_; }
  // Names a thread that waits in a loop.
  std::string WaitText() const;

 private:
  bool AreAll(ThreadState state) const;
  void Fail(const Thread& t, const Instruction& i, std::string_view what);
  const Instruction& InstructionOf(const Thread& t) const { return code_.instructions[t.at]; }
  // Lets go of a barrier that all threads have reached.
  bool EndBarrier();
  void Stuck();

  // ---- warps, each by its first thread
  uint64_t* RegistersOf(size_t first) { return registers_.data() + code_.registers * first; }
  const Thread& FirstOf(size_t first, uint32_t lanes) const {
    return threads_[first + static_cast<size_t>(std::countr_zero(lanes))];
  }
  template <typename F>
  void ForLanes(size_t first, uint32_t lanes, const F& f) {
    for (; lanes != 0; lanes &= lanes - 1) f(threads_[first + static_cast<size_t>(std::countr_zero(lanes))]);
  }
  uint32_t LanesThatRun(size_t first, size_t end) const;
  // Runs a warp as far as its threads get; whether any did.
  bool RunWarp(size_t first);
  // Runs these lanes as far as they get, or to the next word that other blocks may look at; whether any did.
  bool RunLanes(size_t first, size_t end, uint32_t among);
  // Runs lanes that are at one instruction until they part, come to where others are, or wait; those that go on.
  uint32_t Advance(size_t first, uint32_t lanes, size_t others);
  // Stops lanes that end, or wait for others.
  void Stop(size_t first, uint32_t lanes, const Instruction& i);
  void BranchByTable(Thread& t, const Instruction& i);

  // ---- what lanes of a warp do with each other
  // Runs an instruction at which all the lanes that it names wait; whether there is one.
  bool RunWarpOperation(size_t first, size_t end);
  bool HaveOneMask(size_t first, size_t end, uint32_t mask, const Instruction& i);
  void Exchange(size_t first, uint32_t mask, const Instruction& i);
  void Shuffle(size_t first, uint32_t mask, const Instruction& i);

  // ---- memory (block_memory.cc)
  // Runs a load, store or atomic instruction.
  void AccessMemory(size_t first, uint32_t lanes, const Instruction& i);
  // Runs loads and stores of lanes whose elements follow each other, or are one; false where they don't.
  bool AccessInSteps(size_t first, uint32_t lanes, const Instruction& i);
  void AccessMemory(Thread& t, const Instruction& i);
  void Atomic(Thread& t, const Instruction& i, std::byte* place);
  // Where the bytes are; null where the thread may not use them so.
  std::byte* PlaceOf(const Thread& t, const Instruction& i, uint64_t address, uint64_t bytes, AccessKind kind);
  std::byte* Local(const Thread& t, const Instruction& i, uint64_t offset, uint64_t bytes, AccessKind kind);
  // Empty, or the race with another block that it is when these lanes use bytes of global memory.
  std::string RaceOf(size_t warp, uint32_t lanes, const Instruction& i, uint64_t address, uint64_t bytes) {
    return races_ == nullptr ? "" : races_->Use(i, address, bytes, warp, lanes, &order_);
  }
  std::byte* Constant(const Thread& t, const Instruction& i, uint64_t address, uint64_t bytes, AccessKind kind);

  const Kernel& kernel_;
  const Code& code_;
  const absl::Span<const std::byte> parameters_;
  const GridLaunch& launch_;
  BlockRaces* const races_;
  BlockOrder order_;
  uint64_t* const counts_;
  std::array<uint32_t, 3> id_ = {};
  std::vector<Thread> threads_;
  std::vector<size_t> warp_order_;  // first threads
  std::vector<uint64_t> registers_;
  std::vector<std::byte> local_;
  std::vector<uint8_t> local_written_;
  SharedMemory shared_;
  uint64_t progress_ = 0;
  std::minstd_rand random_;
  bool is_done_ = true;
  std::string error_;
};

}  // namespace tessera::ptx
