#include "server/coordinator/memory_map.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// One for each class.
using Cursors = std::vector<FreeRanges::Cursor>;

// The lowest start, at or after `from`, of `size` bytes that are free in all classes: each pushes it up until none
// does.
std::optional<int64_t> NextFit(Cursors& cursors, int64_t from, int64_t size) {
  size_t agreed = 0;
  for (size_t at = 0; agreed < cursors.size(); at = (at + 1) % cursors.size()) {
    const std::optional<int64_t> start = cursors[at].Next(from, size);
    if (!start.has_value()) return std::nullopt;
    agreed = *start == from ? agreed + 1 : 1;
    from = *start;
  }
  return from;
}

// The lowest start, at or after `from`, of `size` bytes that are free in all of them. A size that overflowed fits
// nowhere.
std::optional<int64_t> FindStart(absl::Span<FreeRanges* const> classes, int64_t size, int64_t from = 0) {
  if (size <= 0 || classes.empty()) return std::nullopt;
  if (classes.size() == 1 && from == 0) return classes[0]->FirstFit(size);
  Cursors cursors;
  for (const FreeRanges* free : classes) cursors.emplace_back(*free);
  return NextFit(cursors, from, size);
}

// The most bytes in one piece that are free in all of them: each fit is looked at in full, and the next one is larger.
int64_t LargestFitOf(absl::Span<FreeRanges* const> classes) {
  if (classes.empty()) return 0;
  if (classes.size() == 1) return classes[0]->largest();
  Cursors cursors;
  for (const FreeRanges* free : classes) cursors.emplace_back(*free);
  int64_t largest = 0;
  for (std::optional<int64_t> start = 0; (start = NextFit(cursors, *start, largest + 1)).has_value();) {
    const auto lowest = std::min_element(cursors.begin(), cursors.end(),
                                         [](const auto& a, const auto& b) { return a.stop() < b.stop(); });
    largest = lowest->stop() - *start;
  }
  return largest;
}

template <typename Class>
absl::InlinedVector<FreeRanges*, 4> FreeOf(const std::vector<Class*>& classes) {
  absl::InlinedVector<FreeRanges*, 4> free;
  for (Class* c : classes) free.push_back(&c->free);
  return free;
}

}  // namespace

int64_t MemoryMap::RoundUp(int64_t bytes) const {
  // A size that can't be rounded up is more than any arena has, rounded down, too.
  const int64_t last = std::numeric_limits<int64_t>::max() - (alignment_bytes_ - 1);
  return (std::min(bytes, last) + (alignment_bytes_ - 1)) / alignment_bytes_ * alignment_bytes_;
}

void MemoryMap::AddWorker(WorkerIndex worker, int64_t bytes) {
  RemoveWorker(worker);
  const int64_t usable = bytes / alignment_bytes_ * alignment_bytes_;
  for (auto& c : classes_) {  // untouched arenas of one size are one class
    if (c->bytes == usable && c->free.bytes() == usable) {
      c->workers.insert(std::lower_bound(c->workers.begin(), c->workers.end(), worker), worker);
      class_of_[worker] = c.get();
      return;
    }
  }
  auto fresh = std::make_unique<Class>();
  fresh->workers = {worker};
  fresh->bytes = usable;
  fresh->free = FreeRanges(usable);
  class_of_[worker] = fresh.get();
  classes_.push_back(std::move(fresh));
}

void MemoryMap::RemoveWorker(WorkerIndex worker) {
  auto found = class_of_.find(worker);
  if (found == class_of_.end()) return;
  Class* c = found->second;
  c->workers.erase(std::find(c->workers.begin(), c->workers.end(), worker));
  class_of_.erase(found);
  if (c->workers.empty()) {
    classes_.erase(std::find_if(classes_.begin(), classes_.end(), [&](auto& each) { return each.get() == c; }));
  }
}

absl::StatusOr<std::vector<MemoryMap::Class*>> MemoryMap::Isolate(absl::Span<const WorkerIndex> workers) {
  std::vector<Class*> touched;
  size_t covered = 0;
  for (WorkerIndex worker : workers) {
    auto found = class_of_.find(worker);
    if (found == class_of_.end()) return absl::NotFoundError(StrCat("worker ", worker.value, " is not in the cluster"));
    if (std::find(touched.begin(), touched.end(), found->second) != touched.end()) continue;
    touched.push_back(found->second);
    covered += found->second->workers.size();
  }
  if (covered == workers.size()) return touched;
  const absl::flat_hash_set<WorkerIndex> wanted(workers.begin(), workers.end());
  for (Class*& c : touched) {
    auto part = std::make_unique<Class>(Class{{}, c->bytes, c->free});
    std::vector<WorkerIndex> rest;
    for (WorkerIndex worker : c->workers) (wanted.contains(worker) ? part->workers : rest).push_back(worker);
    if (rest.empty()) continue;
    c->workers = std::move(rest);
    for (WorkerIndex worker : part->workers) class_of_[worker] = part.get();
    c = part.get();
    classes_.push_back(std::move(part));
  }
  return touched;
}

std::vector<MemoryMap::Class*> MemoryMap::ClassesOf(absl::Span<const WorkerIndex> workers) const {
  std::vector<Class*> classes;
  for (WorkerIndex worker : workers) {
    auto found = class_of_.find(worker);
    if (found == class_of_.end()) return {};
    if (std::find(classes.begin(), classes.end(), found->second) == classes.end()) classes.push_back(found->second);
  }
  return classes;
}

int64_t MemoryMap::LargestFit(absl::Span<const WorkerIndex> workers) const {
  return LargestFitOf(FreeOf(ClassesOf(workers)));
}

std::optional<int64_t> MemoryMap::LargestFitAfter(absl::Span<const Request> requests,
                                                  absl::Span<const WorkerIndex> workers) const {
  std::map<const Class*, FreeRanges> copies;
  const auto copies_of = [&](absl::Span<const WorkerIndex> some) {
    std::vector<FreeRanges*> touched;
    for (const Class* c : ClassesOf(some)) touched.push_back(&copies.try_emplace(c, c->free).first->second);
    return touched;
  };
  for (const Request& request : requests) {
    const int64_t size = RoundUp(request.bytes);
    if (size == 0) continue;
    const std::vector<FreeRanges*> touched = copies_of(request.workers);
    const std::optional<int64_t> start = touched.empty() ? std::nullopt : FindStart(touched, size);
    if (!start.has_value()) return std::nullopt;
    for (FreeRanges* free : touched) free->Take(*start, *start + size);
  }
  return LargestFitOf(copies_of(workers));
}

std::optional<int64_t> MemoryMap::FirstFit(absl::Span<const WorkerIndex> workers, int64_t bytes, int64_t from) const {
  return FindStart(FreeOf(ClassesOf(workers)), RoundUp(bytes), RoundUp(from));
}

absl::StatusOr<int64_t> MemoryMap::Allocate(absl::Span<const WorkerIndex> workers, int64_t bytes, std::string_view op,
                                            int64_t from) {
  const int64_t size = RoundUp(bytes);
  if (size == 0) return int64_t{0};
  TESSERA_ASSIGN_OR_RETURN(std::vector<Class*> classes, Isolate(workers));
  const std::optional<int64_t> start = FindStart(FreeOf(classes), size, RoundUp(from));
  if (!start.has_value()) {
    const Class* tightest = *std::min_element(classes.begin(), classes.end(),
                                              [](Class* a, Class* b) { return a->free.bytes() < b->free.bytes(); });
    std::string message =
        StrCat(op, ": does not fit in memory: ", bytes, " bytes wanted on each of ", workers.size(),
               " workers; worker ", tightest->workers[0].value, " has ", tightest->free.bytes(), " free of ",
               tightest->bytes, tightest->free.bytes() >= size ? " (not in one piece)" : "");
    MergeEqual(classes);
    return absl::ResourceExhaustedError(message);
  }
  for (Class* c : classes) c->free.Take(*start, *start + size);
  return *start;
}

void MemoryMap::Free(absl::Span<const WorkerIndex> workers, int64_t offset, int64_t bytes) {
  const int64_t size = RoundUp(bytes);
  if (size == 0) return;
  std::vector<WorkerIndex> present;
  for (WorkerIndex worker : workers) {
    if (class_of_.contains(worker)) present.push_back(worker);
  }
  if (present.empty()) return;
  std::vector<Class*> classes = *Isolate(present);
  for (Class* c : classes) c->free.Give(offset, offset + size);
  MergeEqual(classes);
}

void MemoryMap::Restore(absl::Span<const WorkerIndex> workers, int64_t offset, int64_t bytes) {
  const int64_t size = RoundUp(bytes);
  std::vector<WorkerIndex> present;
  for (WorkerIndex worker : workers) {
    if (class_of_.contains(worker)) present.push_back(worker);
  }
  if (size == 0 || present.empty()) return;
  const std::vector<Class*> classes = *Isolate(present);
  for (Class* c : classes) c->free.Take(offset, offset + size);
}

void MemoryMap::MergeClasses() {
  std::vector<Class*> all;
  for (const auto& c : classes_) all.push_back(c.get());
  MergeEqual(all);
}

void MemoryMap::MergeEqual(const std::vector<Class*>& touched) {
  if (classes_.size() < 2) return;
  std::vector<Class*> gone;
  for (Class* c : touched) {
    if (std::find(gone.begin(), gone.end(), c) != gone.end()) continue;
    for (size_t i = 0; i < classes_.size();) {
      Class* other = classes_[i].get();
      if (other == c || other->bytes != c->bytes || other->free != c->free) {
        ++i;
        continue;
      }
      for (WorkerIndex worker : other->workers) {
        c->workers.insert(std::lower_bound(c->workers.begin(), c->workers.end(), worker), worker);
        class_of_[worker] = c;
      }
      gone.push_back(other);
      classes_.erase(classes_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

int64_t MemoryMap::TotalBytes(WorkerIndex worker) const {
  auto found = class_of_.find(worker);
  return found == class_of_.end() ? 0 : found->second->bytes;
}

int64_t MemoryMap::UsedBytes(WorkerIndex worker) const {
  auto found = class_of_.find(worker);
  return found == class_of_.end() ? 0 : found->second->bytes - found->second->free.bytes();
}

}  // namespace tessera
