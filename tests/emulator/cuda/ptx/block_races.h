#pragma once

// Finds bytes of global memory that two blocks of one launch use, one of them to write, with nothing that orders them:
// whatever order the blocks were run in. A release of one block that the other one acquired orders them: st.release,
// atom.release or acq_rel, or a fence before a strong store, and ld.acquire, atom.acquire or acq_rel, or a strong load
// before a fence, each of the scope gpu or sys. Strong accesses (relaxed, volatile, atomic ones) are no race among each
// other, but are one with plain accesses.
//
// Not seen: a lane that acquires or releases for others of its warp with no __syncwarp between (block_order.h), strong
// accesses of other sizes that overlap, and warps of one block that use global memory with no barrier between. A
// compare-and-swap that fails counts as a write.
//
// A launch has a cell for each granule that it uses, of the last plain write and the plain reads, in pages that the
// next launch takes over as they are: numbers of moments grow from launch to launch, and smaller ones say nothing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emulator/cuda/ptx/block_order.h"
#include "tests/emulator/cuda/ptx/code.h"

namespace tessera::ptx {

class BlockRaces {
 public:
  // One thread makes, uses and ends it.
  BlockRaces(const Code& code, std::array<uint32_t, 3> grid);
  BlockRaces(const BlockRaces&) = delete;
  BlockRaces& operator=(const BlockRaces&) = delete;
  ~BlockRaces();

  // For each block that is resident, which begins it.
  BlockOrder MakeOrder(size_t warps) { return BlockOrder(orders_blocks_ ? warps : 1, &moments_); }
  // The bytes that these lanes of the warp load, store or change by this instruction. Empty, or what is wrong.
  std::string Use(const Instruction& i, uint64_t address, uint64_t bytes, size_t warp, uint32_t lanes, BlockOrder* by);
  void Barrier(BlockOrder* block) const {
    if (orders_blocks_) block->Barrier();
  }

 private:
  static constexpr uint64_t kPageCells = 1024;
  // Numbers of moments. Numbers of an earlier launch, and 0, are none.
  struct Page {
    std::array<uint32_t, kPageCells> written = {};
    std::array<uint32_t, kPageCells> read = {};  // the first reader, and whether there are several
    bool has_strong = false;
  };
  // Cells of one page that follow each other.
  struct Cells {
    Page* page = nullptr;
    uint64_t first = 0, count = 0;
    uint64_t granule = 0;  // the number of the first one

    uint32_t* written() const { return page->written.data() + first; }
    uint32_t* read() const { return page->read.data() + first; }
  };
  struct Strong {
    std::vector<uint32_t> reads, writes;
    Known published;
  };
  // The user, and the kind of use.
  struct User {
    const Instruction& instruction;
    size_t warp;
    uint32_t lanes;
    BlockOrder* by;
    uint32_t now;
  };

  Page* PageOf(uint64_t number);
  bool IsOther(uint32_t cell, const User& user) const;

  std::string UseCells(const Cells& cells, const User& user);
  std::string ReadPlainly(const Cells& cells, const User& user);
  std::string WritePlainly(const Cells& cells, const User& user);
  std::string UseStrongly(const Cells& cells, const User& user);
  // A granule that others have used.
  std::string CheckWritten(uint64_t granule, uint32_t cell, const User& user) const;
  std::string CheckRead(uint64_t granule, uint32_t cell, const User& user) const;
  std::string CheckStrong(uint64_t granule, const std::vector<uint32_t>& moments, std::string_view what,
                          const User& user) const;
  void RecordRead(uint64_t granule, uint32_t* cell, const User& user);
  // In place of those that come before.
  void Record(std::vector<uint32_t>* moments, const User& user) const;
  void PassOn(Strong* word, const User& user) const;
  std::string Text(uint64_t granule, std::string_view what, uint32_t moment, const User& user) const;

  // Pages of launches that are over.
  struct Pool {
    std::vector<std::unique_ptr<Page>> pages;
    uint32_t next_moment = 1;
  };
  static thread_local Pool pool;

  const std::array<uint32_t, 3> grid_;
  const bool orders_blocks_;
  int granule_shift_ = 0;
  Pool own_;
  size_t pages_used_ = 0;
  Moments moments_;
  std::unordered_map<uint64_t, Page*> pages_;  // by the number of their first granule, less the bits in them
  std::array<std::pair<uint64_t, Page*>, 64> near_ = {};
  std::unordered_map<uint64_t, Strong> strong_;                  // by granule
  std::unordered_map<uint64_t, std::vector<uint32_t>> readers_;  // plain ones, where they are several
};

}  // namespace tessera::ptx
