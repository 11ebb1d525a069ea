#include "server/coordinator/memory_map.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
int64_t MemoryMap::RoundUp(int64_t bytes) const {
  return (bytes + alignment_bytes_ - 1) / alignment_bytes_ * alignment_bytes_;
}

void MemoryMap::AddWorker(WorkerIndex worker, int64_t bytes) {
  RemoveWorker(worker);
  const int64_t usable = bytes / alignment_bytes_ * alignment_bytes_;
  for (auto& c : classes_) {  // untouched arenas of one size are one class
    if (c->bytes == usable && c->free_bytes == usable) {
      c->workers.insert(std::lower_bound(c->workers.begin(), c->workers.end(), worker), worker);
      class_of_[worker] = c.get();
      return;
    }
  }
  auto fresh = std::make_unique<Class>();
  fresh->workers = {worker};
  fresh->bytes = fresh->free_bytes = usable;
  if (usable > 0) fresh->free[0] = usable;
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
    auto part = std::make_unique<Class>(*c);
    part->workers.clear();
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

void MemoryMap::Take(Class& c, int64_t start, int64_t stop) {
  auto range = std::prev(c.free.upper_bound(start));
  const auto [free_start, free_stop] = *range;
  TESSERA_CHECK(free_start <= start && stop <= free_stop);
  c.free.erase(range);
  if (free_start < start) c.free[free_start] = start;
  if (stop < free_stop) c.free[stop] = free_stop;
  c.free_bytes -= stop - start;
}

void MemoryMap::Give(Class& c, int64_t start, int64_t stop) {
  c.free_bytes += stop - start;
  auto next = c.free.lower_bound(start);
  if (next != c.free.end() && next->first == stop) {
    stop = next->second;
    next = c.free.erase(next);
  }
  if (next != c.free.begin()) {
    auto previous = std::prev(next);
    if (previous->second == start) {
      previous->second = stop;
      return;
    }
  }
  c.free[start] = stop;
}

std::optional<int64_t> MemoryMap::FindStart(const std::vector<Class*>& classes, int64_t size) {
  // Each class pushes it up until none does.
  int64_t start = 0;
  bool fits = size > 0;
  for (size_t agreed = 0, at = 0; fits && agreed < classes.size(); at = (at + 1) % classes.size()) {
    const auto& free = classes[at]->free;
    auto range = free.upper_bound(start);
    if (range != free.begin() && std::prev(range)->second >= start + size) {
      ++agreed;
      continue;
    }
    while (range != free.end() && range->second - range->first < size) ++range;
    fits = range != free.end();
    if (fits) start = range->first;
    agreed = fits ? 1 : 0;
  }
  if (!fits) return std::nullopt;
  return start;
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

int64_t MemoryMap::LargestFitOf(const std::vector<Class*>& classes) const {
  if (classes.empty()) return 0;
  int64_t fits = 0;  // in units of the alignment
  int64_t too_large = std::numeric_limits<int64_t>::max() / alignment_bytes_;
  for (const Class* c : classes) too_large = std::min(too_large, c->free_bytes / alignment_bytes_ + 1);
  while (fits + 1 < too_large) {
    const int64_t middle = fits + (too_large - fits) / 2;
    (FindStart(classes, middle * alignment_bytes_).has_value() ? fits : too_large) = middle;
  }
  return fits * alignment_bytes_;
}

int64_t MemoryMap::LargestFit(absl::Span<const WorkerIndex> workers) const { return LargestFitOf(ClassesOf(workers)); }

std::optional<int64_t> MemoryMap::LargestFitAfter(absl::Span<const Request> requests,
                                                  absl::Span<const WorkerIndex> workers) const {
  absl::flat_hash_map<const Class*, std::unique_ptr<Class>> copies;
  const auto copies_of = [&](absl::Span<const WorkerIndex> some) {
    std::vector<Class*> touched = ClassesOf(some);
    for (Class*& c : touched) {
      std::unique_ptr<Class>& copy = copies[c];
      if (copy == nullptr) copy = std::make_unique<Class>(*c);
      c = copy.get();
    }
    return touched;
  };
  for (const Request& request : requests) {
    const int64_t size = RoundUp(request.bytes);
    if (size == 0) continue;
    const std::vector<Class*> touched = copies_of(request.workers);
    const std::optional<int64_t> start = touched.empty() ? std::nullopt : FindStart(touched, size);
    if (!start.has_value()) return std::nullopt;
    for (Class* c : touched) Take(*c, *start, *start + size);
  }
  return LargestFitOf(copies_of(workers));
}

absl::StatusOr<int64_t> MemoryMap::Allocate(absl::Span<const WorkerIndex> workers, int64_t bytes, std::string_view op) {
  const int64_t size = RoundUp(bytes);
  if (size == 0) return int64_t{0};
  TESSERA_ASSIGN_OR_RETURN(std::vector<Class*> classes, Isolate(workers));
  const std::optional<int64_t> start = FindStart(classes, size);
  if (!start.has_value()) {
    const Class* tightest = *std::min_element(classes.begin(), classes.end(),
                                              [](Class* a, Class* b) { return a->free_bytes < b->free_bytes; });
    std::string message =
        StrCat(op, ": does not fit in memory: ", bytes, " bytes wanted on each of ", workers.size(),
               " workers; worker ", tightest->workers[0].value, " has ", tightest->free_bytes, " free of ",
               tightest->bytes, tightest->free_bytes >= size ? " (not in one piece)" : "");
    MergeEqual(classes);
    return absl::ResourceExhaustedError(message);
  }
  for (Class* c : classes) Take(*c, *start, *start + size);
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
  for (Class* c : classes) Give(*c, offset, offset + size);
  MergeEqual(classes);
}

void MemoryMap::MergeEqual(const std::vector<Class*>& touched) {
  if (classes_.size() < 2) return;
  std::vector<Class*> gone;
  for (Class* c : touched) {
    if (std::find(gone.begin(), gone.end(), c) != gone.end()) continue;
    for (size_t i = 0; i < classes_.size();) {
      Class* other = classes_[i].get();
      if (other == c || other->bytes != c->bytes || other->free_bytes != c->free_bytes || other->free != c->free) {
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
  return found == class_of_.end() ? 0 : found->second->bytes - found->second->free_bytes;
}

}  // namespace tessera
