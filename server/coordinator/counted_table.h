#pragma once

// CountedTable: entries that are counted and numbered. An entry lives as long as some Pointer refers to it; its number
// finds it as long as it lives, and never another one. A pointer takes 8 bytes, an entry 24 beside itself: entries lie
// in blocks, which are used again and given back with the table.
//
//   CountedTable<TensorEntry> tensors;
//   CountedTable<TensorEntry>::Pointer tensor = tensors.Add();
//   tensors.Find(tensor.number()) == tensor   // null once the last pointer is gone
//
// The table outlives its pointers. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace tessera {

struct EntryNumber {
  uint32_t slot = 0;
  uint32_t generation = 0;  // 0: of no entry
  friend bool operator==(const EntryNumber&, const EntryNumber&) = default;
};

template <typename T>
class CountedTable {
  struct Slot {
    CountedTable* table = nullptr;
    uint32_t number = 0;
    uint32_t generation = 1;
    uint32_t count = 0;
    alignas(T) std::byte place[sizeof(T)];
    T* entry() { return std::launder(reinterpret_cast<T*>(place)); }
  };

 public:
  class Pointer {
   public:
    Pointer() = default;
    Pointer(std::nullptr_t) {}
    Pointer(const Pointer& other) : slot_(other.slot_) {
      if (slot_ != nullptr) ++slot_->count;
    }
    Pointer(Pointer&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
    Pointer& operator=(Pointer other) noexcept {
      std::swap(slot_, other.slot_);
      return *this;
    }
    ~Pointer() {
      if (slot_ != nullptr && --slot_->count == 0) slot_->table->Release(*slot_);
    }

    T* get() const { return slot_ == nullptr ? nullptr : slot_->entry(); }
    T& operator*() const { return *slot_->entry(); }
    T* operator->() const { return slot_->entry(); }
    explicit operator bool() const { return slot_ != nullptr; }
    uint32_t use_count() const { return slot_ == nullptr ? 0 : slot_->count; }
    EntryNumber number() const {
      return slot_ == nullptr ? EntryNumber{} : EntryNumber{slot_->number, slot_->generation};
    }
    friend bool operator==(const Pointer&, const Pointer&) = default;

   private:
    friend class CountedTable;
    explicit Pointer(Slot* slot) : slot_(slot) { ++slot_->count; }
    Slot* slot_ = nullptr;
  };

  // `release` gets an entry when its last pointer goes, before it is destroyed.
  explicit CountedTable(std::function<void(T&)> release = nullptr) : release_(std::move(release)) {}
  CountedTable(const CountedTable&) = delete;
  CountedTable& operator=(const CountedTable&) = delete;

  Pointer Add() {
    if (free_.empty()) AddBlock();
    Slot& slot = SlotAt(free_.back());
    free_.pop_back();
    new (slot.place) T();
    ++size_;
    return Pointer(&slot);
  }
  Pointer Find(EntryNumber number) {
    if (number.generation == 0 || number.slot >= blocks_.size() * kBlockSlots) return nullptr;
    Slot& slot = SlotAt(number.slot);
    return slot.generation == number.generation && slot.count > 0 ? Pointer(&slot) : Pointer();
  }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kBlockSlots = 256;

  Slot& SlotAt(uint32_t number) { return blocks_[number / kBlockSlots][number % kBlockSlots]; }
  void AddBlock() {
    const auto first = static_cast<uint32_t>(blocks_.size() * kBlockSlots);
    blocks_.push_back(std::make_unique<Slot[]>(kBlockSlots));
    for (uint32_t i = kBlockSlots; i-- > 0;) {
      Slot& slot = blocks_.back()[i];
      slot.table = this;
      slot.number = first + i;
      free_.push_back(slot.number);
    }
  }
  void Release(Slot& slot) {
    if (release_) release_(*slot.entry());
    slot.entry()->~T();
    if (++slot.generation == 0) slot.generation = 1;
    free_.push_back(slot.number);
    --size_;
  }

  std::function<void(T&)> release_;
  std::vector<std::unique_ptr<Slot[]>> blocks_;
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

}  // namespace tessera
