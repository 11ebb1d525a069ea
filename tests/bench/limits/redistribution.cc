#include "tests/bench/limits/redistribution.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "tests/bench/limits/memory_loops.h"
#include "tests/bench/limits/processes.h"

namespace tessera::bench {
namespace {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
using Box = std::vector<Range>;

int64_t Volume(const Box& box) {
  int64_t volume = 1;
  for (const Range& range : box) volume *= range.size();
  return volume;
}

// Mesh dims left to right, each splitting what the one before left.
Box BoxOf(const RedistributionCase& work, const std::vector<int>& placements, int process) {
  Box box;
  for (const int64_t extent : work.extents) box.push_back({0, extent});
  std::vector<int> position(work.mesh.size());
  for (size_t d = work.mesh.size(); d-- > 0;) {
    position[d] = process % work.mesh[d];
    process /= work.mesh[d];
  }
  for (size_t d = 0; d < work.mesh.size(); ++d) {
    if (placements[d] == kWhole) continue;
    Range& range = box[static_cast<size_t>(placements[d])];
    const int64_t piece = (range.size() + work.mesh[d] - 1) / work.mesh[d];
    const int64_t begin = std::min(range.end, range.begin + piece * position[d]);
    range = {begin, std::min(range.end, begin + piece)};
  }
  return box;
}

// Where an element lies in the dense row-major shard of a box.
int64_t OffsetIn(const Box& box, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < box.size(); ++d) offset = offset * box[d].size() + index[d] - box[d].begin;
  return offset;
}

struct Shard {
  Box box;
  std::byte* data;
};

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box both;
  for (size_t d = 0; d < a.size(); ++d) {
    both.push_back({std::max(a[d].begin, b[d].begin), std::min(a[d].end, b[d].end)});
    if (both.back().size() <= 0) return std::nullopt;
  }
  return both;
}

// Bytes of `box` from one shard to another, in runs that are dense on both sides.
void CopyBox(const Box& box, const Shard& from, const Shard& to, size_t element_bytes, Stores stores) {
  size_t run_dim = box.size() - 1;
  while (run_dim > 0 && box[run_dim].size() == from.box[run_dim].size() &&
         box[run_dim].size() == to.box[run_dim].size()) {
    --run_dim;
  }
  size_t run_bytes = element_bytes;
  for (size_t d = run_dim; d < box.size(); ++d) run_bytes *= static_cast<size_t>(box[d].size());
  std::vector<int64_t> index;
  for (const Range& range : box) index.push_back(range.begin);
  while (true) {
    CopyBytes(to.data + static_cast<size_t>(OffsetIn(to.box, index)) * element_bytes,
              from.data + static_cast<size_t>(OffsetIn(from.box, index)) * element_bytes, run_bytes, stores);
    size_t d = run_dim;
    for (; d > 0; --d) {
      if (++index[d - 1] < box[d - 1].end) break;
      index[d - 1] = box[d - 1].begin;
    }
    if (d == 0) return;
  }
}

std::byte ValueAt(int64_t element, size_t byte) {
  return static_cast<std::byte>((static_cast<uint64_t>(element) * 2654435761u >> 7) + byte);
}

// Tells each run of a shard that is dense in the whole tensor too: its first element's number in the whole
// tensor, the place of that in the shard, and its length.
template <typename Visit>
void VisitRuns(const RedistributionCase& work, const Box& box, Visit visit) {
  const int64_t length = box.back().size();
  const int64_t runs = length == 0 ? 0 : Volume(box) / length;
  for (int64_t run = 0; run < runs; ++run) {
    int64_t rest = run, element = box.back().begin, scale = work.extents.back();
    for (size_t d = box.size() - 1; d-- > 0;) {
      element += (box[d].begin + rest % box[d].size()) * scale;
      scale *= work.extents[d];
      rest /= box[d].size();
    }
    visit(element, static_cast<size_t>(run * length), length);
  }
}

struct Shards {
  std::vector<Shard> source, destination;
};

void Take(const RedistributionCase& work, const Shards& shards, Team& team, Stores stores) {
  const Shard& to = shards.destination[static_cast<size_t>(team.self())];
  const auto self = static_cast<size_t>(team.self()), size = static_cast<size_t>(team.size());
  for (size_t step = 0; step < size; ++step) {
    const size_t holder = (self + step) % size;
    bool taken = false;
    for (size_t before = 0; before < step; ++before) {
      taken = taken || shards.source[(self + before) % size].box == shards.source[holder].box;
    }
    if (taken) continue;  // copies of what another holds; the process's own come first
    const Shard& from = shards.source[holder];
    if (const auto box = Intersect(from.box, to.box)) CopyBox(*box, from, to, work.element_bytes, stores);
  }
}

}  // namespace

nlohmann::json MeasureRedistribution(const RedistributionCase& work) {
  CheckValues(work.mesh.size() == work.source.size() && work.mesh.size() == work.destination.size(),
              "one placement for each mesh dim");
  int processes = 1;
  for (const int size : work.mesh) processes *= size;
  Shards shards;
  int64_t bytes = 0;
  for (int p = 0; p < processes; ++p) {
    for (auto* list : {&shards.source, &shards.destination}) {
      const Box box = BoxOf(work, list == &shards.source ? work.source : work.destination, p);
      const size_t shard_bytes = static_cast<size_t>(Volume(box)) * work.element_bytes;
      if (list == &shards.destination) bytes += static_cast<int64_t>(shard_bytes);
      list->push_back({box, SharedBytes(shard_bytes)});
    }
  }
  const auto prepare = [&](Team& team) {
    const Shard& shard = shards.source[static_cast<size_t>(team.self())];
    VisitRuns(work, shard.box, [&](int64_t element, size_t at, int64_t length) {
      std::byte* to = shard.data + at * work.element_bytes;
      for (int64_t i = 0; i < length; ++i) {
        for (size_t b = 0; b < work.element_bytes; ++b) *to++ = ValueAt(element + i, b);
      }
    });
  };
  nlohmann::json variants;
  for (const Stores stores : {Stores::kOrdinary, Stores::kStreaming}) {
    variants[ToText(stores)] = MeasureSeconds({processes, work.repetitions, prepare, [&](Team& team) {
                                                 Take(work, shards, team, stores);
                                                 FinishStores();
                                               }});
    for (const Shard& shard : shards.destination) {
      VisitRuns(work, shard.box, [&](int64_t element, size_t at, int64_t length) {
        for (const int64_t i : {int64_t{0}, length / 2, length - 1}) {
          for (size_t b = 0; b < work.element_bytes; ++b) {
            const size_t place = (at + static_cast<size_t>(i)) * work.element_bytes + b;
            CheckValues(shard.data[place] == ValueAt(element + i, b), "a byte that was moved");
          }
        }
      });
    }
  }
  return {{"variants", variants}, {"bytes", bytes}};
}

}  // namespace tessera::bench
