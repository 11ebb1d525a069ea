#pragma once

// The choice between a device's own library and memory of the host, which the ranks of a group make together.
//
//   Libraries libraries(table, group, {name_of, make, warn, ranks});
//   if (auto library = libraries.Of(tensor.device(), timeout_us)) ...    // ranks_library.h

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ranks_library.h"
#include "ranks_table.h"

namespace tessera::torch_ranks {

// The libraries of one group, by device. All ranks decide together, at their first call on a device, whether they have
// one: each tells the others which device it has.
class Libraries {
 public:
  struct Maker {
    // A name that no other device has; empty: there is no library for it. Nothing: none is known for devices of the
    // kind.
    std::function<std::optional<std::string>(c10::Device)> name_of;
    // By the names of all ranks' devices, in the order of the ranks; null: they can't use it together.
    std::function<c10::intrusive_ptr<c10d::Backend>(c10::Device, const std::vector<std::string>& names)> make;
    std::function<void(const std::string&)> warn;
    int ranks = 1;
  };
  Libraries(const TesseraRanks* table, TesseraGroup* group, Maker maker)
      : table_(table), group_(group), maker_(std::move(maker)) {}

  // Null: the bytes go through memory of the host. Blocks at the first call until all ranks have come to theirs.
  std::shared_ptr<Library> Of(c10::Device device, int64_t timeout_us) {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(device);
    return known != known_.end() ? known->second : known_[device] = Decided(device, timeout_us);
  }
  void End() {
    const std::lock_guard lock(mutex_);
    for (auto& [device, library] : known_) {
      if (library) library->End();
    }
  }

 private:
  static constexpr size_t kNameBytes = 128;

  std::shared_ptr<Library> Decided(c10::Device device, int64_t timeout_us) const {
    const std::optional<std::string> own = maker_.name_of(device);
    if (!own.has_value()) return nullptr;
    TORCH_CHECK(own->size() < kNameBytes, "tessera: the name of device ", device, " is too long: ", *own);
    std::string given(kNameBytes, '\0'), taken(kNameBytes * maker_.ranks, '\0');
    given.replace(0, own->size(), *own);
    Gather(given, taken, timeout_us);
    std::vector<std::string> names;
    for (int rank = 0; rank < maker_.ranks; ++rank) names.emplace_back(taken.c_str() + rank * kNameBytes);
    const auto backend = maker_.make(device, names);
    if (!backend) return nullptr;
    const auto why_gone = [table = table_, group = group_] {
      char* const text = table->why_gone(group);
      const std::string why = text == nullptr ? "" : text;
      if (text != nullptr) table->free_text(text);
      return why;
    };
    return std::make_shared<Library>(table_, backend, why_gone, maker_.warn);
  }
  // Throws where the other ranks call something else, or don't come.
  void Gather(const std::string& given, std::string& taken, int64_t timeout_us) const {
    TesseraCall call{};
    call.kind = TESSERA_ALL_GATHER;
    call.dtype = TESSERA_U8;
    call.has_input = call.has_output = call.is_waited_for = 1;
    call.input = given.data();
    call.input_elements = static_cast<int64_t>(given.size());
    call.output = taken.data();
    call.output_elements = static_cast<int64_t>(taken.size());
    call.other_elements = -1;
    call.timeout_us = timeout_us;
    char* error = nullptr;
    TesseraWork* const work = table_->start(group_, &call, &error);
    if (work != nullptr) {
      table_->wait(work, -1, &error);
      table_->release(work);
    }
    if (error == nullptr) return;
    const std::string text = c10::str("which device each rank has: ", error);
    table_->free_text(error);
    C10_THROW_ERROR(DistBackendError, text);
  }

  const TesseraRanks* const table_;
  TesseraGroup* const group_;
  const Maker maker_;
  std::mutex mutex_;
  std::unordered_map<c10::Device, std::shared_ptr<Library>> known_;
};

}  // namespace tessera::torch_ranks
