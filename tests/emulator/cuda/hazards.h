#pragma once

// HazardFinder: two operations that touch one byte, one of them to write, and that nothing orders. Vector clocks over
// streams, as the fake device's recorder keeps them (server/device/fake/hazard_recorder.h): found whatever order the
// scheduler took.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::emulator {

// How far each stream had come, by its number.
class Clock {
 public:
  uint32_t Of(uint32_t stream) const { return stream < times_.size() ? times_[stream] : 0; }
  void Tick(uint32_t stream);
  void Join(const Clock& other);

 private:
  std::vector<uint32_t> times_;
};

enum class Access : uint8_t { kRead, kWrite };

class HazardFinder {
 public:
  // An operation of `stream` begins; its clock has ticked.
  void Begin(uint32_t stream, const Clock& clock, std::string name);
  // An access by the operation that began last.
  void Touch(uint64_t identity, uint64_t offset, int64_t bytes, Access access);

  // Forgets all accesses to these bytes: they are let go of, and others may have their place.
  void Forget(uint64_t identity, uint64_t offset, int64_t bytes);

  // "stream 1: copy_8 writes what stream 0: copy_8 read, byte 16 of memory 77", once for a pair.
  const std::vector<std::string>& hazards() const { return hazards_; }

 private:
  struct Operation {
    uint32_t stream = 0;
    uint32_t time = 0;
    std::string name;
  };
  // Numbers of operations from 1 on; 0: none.
  struct Cell {
    uint32_t writer = 0;
    std::vector<uint32_t> readers;
  };
  static constexpr uint64_t kBlockBytes = 1024;
  using Block = std::array<Cell, kBlockBytes>;

  // Whether the operation that began last comes after this one.
  bool IsOrdered(uint32_t operation);
  void Report(uint32_t before, std::string_view verb, std::string_view did, uint64_t identity, uint64_t byte);

  std::vector<Operation> operations_ = {{}};
  Clock now_;
  uint32_t ordered_ = 0;  // known to come before the operation that began last: neighbours have one writer
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<Block>> blocks_;
  std::set<std::pair<uint32_t, uint32_t>> reported_;
  std::vector<std::string> hazards_;
};

}  // namespace tessera::emulator
