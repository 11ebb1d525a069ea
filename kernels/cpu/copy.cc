// CopyStrided: dims are reordered so that the destination is written densely, merged where both sides walk
// them as one, and then: dense rows are copied whole; where the source is dense along another dim, that
// plane is transposed; the rest goes element by element.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sort_dims.h"
#include "kernels/cpu/stores.h"
#include "kernels/cpu/stream_reduction.h"
#include "kernels/cpu/transpose.h"
#include "kernels/kernel.h"

namespace tessera {
namespace {

using cpu::SortDims;
using cpu::Stores;

// Rows that begin or end within a cache line and are shorter than this would make streaming slow.
constexpr int64_t kMinStreamedRowBytes = 1024;
// Rows up to this length are copied without a call.
constexpr int64_t kShortRowBytes = 128;
// Fewer lines than this are not worth a plane's tiles.
constexpr int64_t kMinPlaneRows = 4;
constexpr int64_t kBandRows = 64;
// Bytes of a band that is copied to several places: read once, it is still in the first-level cache for the last of
// them.
constexpr int64_t kBandBytes = 32 << 10;

struct Dim {
  int64_t extent = 1;
  int64_t source = 0;  // strides in bytes
  int64_t destination = 0;
  bool operator==(const Dim&) const = default;
};
using Dims = absl::InlinedVector<Dim, 6>;

struct CopyJob {
  Dims dims;
  int64_t element_bytes = 1;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;

  int64_t bytes() const {
    int64_t product = element_bytes;
    for (const Dim& d : dims) product *= d.extent;
    return product;
  }
  bool IsDense(const Dim& d) const { return d.source == element_bytes && d.destination == element_bytes; }
};

// Extents of 1 dropped, destination strides made positive, the smallest last, neighbours merged; a dense run
// of 2 to 16 bytes becomes the element.
CopyJob MakeJob(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
                absl::Span<const int64_t> source_strides, void* destination,
                absl::Span<const int64_t> destination_strides) {
  CopyJob job = {{}, element_bytes, static_cast<const std::byte*>(source), static_cast<std::byte*>(destination)};
  Dims dims;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 1) continue;
    Dim dim = {extents[d], source_strides[d] * element_bytes, destination_strides[d] * element_bytes};
    if (dim.destination < 0) {
      job.source += dim.source * (dim.extent - 1);
      job.destination += dim.destination * (dim.extent - 1);
      dim = {dim.extent, -dim.source, -dim.destination};
    }
    dims.push_back(dim);
  }
  SortDims(dims, [](const Dim& a, const Dim& b) { return a.destination > b.destination; });
  for (const Dim& d : dims) {
    if (!job.dims.empty() && job.dims.back().source == d.source * d.extent &&
        job.dims.back().destination == d.destination * d.extent) {
      job.dims.back() = {job.dims.back().extent * d.extent, d.source, d.destination};
    } else {
      job.dims.push_back(d);
    }
  }
  if (job.dims.size() > 1 && job.IsDense(job.dims.back())) {
    const int64_t run_bytes = job.dims.back().extent * element_bytes;
    if (run_bytes <= 16 && (run_bytes & (run_bytes - 1)) == 0) {
      job.element_bytes = run_bytes;
      job.dims.pop_back();
    }
  }
  return job;
}

// Calls body(source, destination) for every index of `dims`.
template <typename Body>
void ForEachOuter(absl::Span<const Dim> dims, const std::byte* source, std::byte* destination, const Body& body) {
  if (dims.empty()) return body(source, destination);
  const Dim& inner = dims.back();
  absl::InlinedVector<int64_t, 6> index(dims.size() - 1, 0);
  while (true) {
    for (int64_t i = 0; i < inner.extent; ++i) body(source + i * inner.source, destination + i * inner.destination);
    size_t d = index.size();
    while (d > 0) {
      const Dim& dim = dims[d - 1];
      source += dim.source;
      destination += dim.destination;
      if (++index[d - 1] < dim.extent) break;
      source -= dim.source * dim.extent;
      destination -= dim.destination * dim.extent;
      index[d - 1] = 0;
      --d;
    }
    if (d == 0) return;
  }
}

// Whether every row of the destination begins and ends with a cache line.
bool HasWholeLines(const CopyJob& job, int64_t row_bytes) {
  bool whole = cpu::BytesToLine(job.destination) == 0 && row_bytes % cpu::kLineBytes == 0;
  for (size_t d = 0; d + 1 < job.dims.size(); ++d) whole = whole && job.dims[d].destination % cpu::kLineBytes == 0;
  return whole;
}

void CopyRows(const CopyJob& job, Stores stores) {
  const int64_t bytes = job.dims.back().extent * job.element_bytes;
  if (bytes < kMinStreamedRowBytes && !HasWholeLines(job, bytes)) stores = Stores::kCached;
  const absl::Span<const Dim> outer = absl::MakeConstSpan(job.dims).first(job.dims.size() - 1);
  if (bytes <= kShortRowBytes && stores == Stores::kCached) {
    ForEachOuter(outer, job.source, job.destination,
                 [bytes](const std::byte* from, std::byte* to) { cpu::CopyShortRow(to, from, bytes); });
    return;
  }
  ForEachOuter(outer, job.source, job.destination,
               [bytes, stores](const std::byte* from, std::byte* to) { cpu::WriteRow(to, from, bytes, stores); });
  cpu::EndStores(stores);
}

// The dim along which the source is dense, where the destination's last dim is not; dims.size() when there
// is none.
size_t FindPlane(const CopyJob& job) {
  if (job.dims.back().destination != job.element_bytes) return job.dims.size();
  for (size_t d = 0; d + 1 < job.dims.size(); ++d) {
    if (std::abs(job.dims[d].source) == job.element_bytes && job.dims[d].extent >= kMinPlaneRows) return d;
  }
  return job.dims.size();
}

void CopyPlanes(CopyJob job, size_t row_dim, Stores stores) {
  Dim rows = job.dims[row_dim];
  if (rows.source < 0) {
    job.source += rows.source * (rows.extent - 1);
    job.destination += rows.destination * (rows.extent - 1);
    rows = {rows.extent, -rows.source, -rows.destination};
  }
  job.dims.erase(job.dims.begin() + static_cast<ptrdiff_t>(row_dim));
  const Dim columns = job.dims.back();
  job.dims.pop_back();
  const bool is_thin = columns.extent * job.element_bytes < 2 * cpu::kLineBytes;
  if (is_thin) stores = Stores::kCached;
  // Thin planes leave lines that the next planes fill: a band of rows of all planes stays in the cache.
  const int64_t band = is_thin && !job.dims.empty() ? kBandRows : rows.extent;
  for (int64_t i = 0; i < rows.extent; i += band) {
    const int64_t count = std::min(band, rows.extent - i);
    ForEachOuter(job.dims, job.source + i * rows.source, job.destination + i * rows.destination,
                 [&](const std::byte* from, std::byte* to) {
                   cpu::TransposePlane({count, columns.extent, from, columns.source, to, rows.destination},
                                       job.element_bytes, stores);
                 });
  }
  cpu::EndStores(stores);
}

template <int64_t kBytes>
void CopyElements(const CopyJob& job) {
  if (job.dims.empty()) {
    std::memcpy(job.destination, job.source, kBytes);
    return;
  }
  const Dim inner = job.dims.back();
  const absl::Span<const Dim> outer = absl::MakeConstSpan(job.dims).first(job.dims.size() - 1);
  const auto copy_row = [&inner](const std::byte* from, std::byte* to, int64_t from_step, int64_t to_step) {
    for (int64_t i = 0; i < inner.extent; ++i) std::memcpy(to + i * to_step, from + i * from_step, kBytes);
  };
  ForEachOuter(outer, job.source, job.destination, [&](const std::byte* from, std::byte* to) {
    // Constant steps let the compiler use vectors.
    if (inner.destination == kBytes && inner.source == 0) {
      std::byte element[kBytes];
      std::memcpy(element, from, kBytes);
      copy_row(element, to, 0, kBytes);
    } else if (inner.destination == kBytes && inner.source == -kBytes) {
      copy_row(from, to, -kBytes, kBytes);
    } else if (inner.destination == kBytes) {
      copy_row(from, to, inner.source, kBytes);
    } else {
      copy_row(from, to, inner.source, inner.destination);
    }
  });
}

void RunJob(const CopyJob& job, Stores stores) {
  if (!job.dims.empty()) {
    if (job.IsDense(job.dims.back())) return CopyRows(job, stores);
    const size_t row_dim = FindPlane(job);
    if (row_dim < job.dims.size()) return CopyPlanes(job, row_dim, stores);
  }
  switch (job.element_bytes) {
    case 1: return CopyElements<1>(job);
    case 2: return CopyElements<2>(job);
    case 4: return CopyElements<4>(job);
    case 8: return CopyElements<8>(job);
    case 16: return CopyElements<16>(job);
    default: break;
  }
}

// Part `part` of the job, cut along its first dim.
CopyJob PartOf(const CopyJob& job, int64_t part, int64_t parts) {
  CopyJob piece = job;
  Dim& dim = piece.dims.front();
  // A multiple of a line's elements, so that parts of one row don't share lines.
  const int64_t granule = dim.extent >= parts * cpu::kLineBytes ? cpu::kLineBytes : 1;
  const int64_t size = (dim.extent / granule + parts - 1) / parts * granule;
  const int64_t first = std::min(dim.extent, part * size);
  const int64_t last = part + 1 == parts ? dim.extent : std::min(dim.extent, first + size);
  piece.source += first * dim.source;
  piece.destination += first * dim.destination;
  dim.extent = last - first;
  return piece;
}

// Whether they differ in where they are written alone.
bool AreAlike(const CopyJob& a, const CopyJob& b) {
  return a.dims == b.dims && a.element_bytes == b.element_bytes && a.source == b.source;
}

// Rows that are read once, and streamed to `to` and to each of `others` (bytes from it, whole lines).
void StreamRowsToEach(const CopyJob& job, absl::Span<const int64_t> others) {
  const int64_t bytes = job.dims.back().extent * job.element_bytes;
  absl::InlinedVector<std::byte*, 4> destinations(others.size() + 1);
  const auto stream_row = [&](const std::byte* from, std::byte* to) {
    const int64_t head = std::min(bytes, cpu::BytesToLine(to));
    const int64_t lines = (bytes - head) / cpu::kLineBytes * cpu::kLineBytes, done = head + lines;
    const auto copy_ends = [&](std::byte* row) {
      cpu::CopyShortRow(row, from, head);
      cpu::CopyShortRow(row + done, from + done, bytes - done);
      return row + head;
    };
    destinations[0] = copy_ends(to);
    for (size_t i = 0; i < others.size(); ++i) destinations[i + 1] = copy_ends(to + others[i]);
    const std::byte* const source = from + head;
    cpu::StreamReduction({.dtype = DType::kU8, .terms = {&source, 1}, .destinations = destinations, .bytes = lines});
  };
  ForEachOuter(absl::MakeConstSpan(job.dims).first(job.dims.size() - 1), job.source, job.destination, stream_row);
  cpu::EndStores(Stores::kStreaming);
}

// The job, and the same with its destination at each of `others` (bytes from it), band by band.
void RunBands(const CopyJob& job, absl::Span<const int64_t> others, Stores stores) {
  size_t cut = job.dims.size();  // of the dims before it, a band has one index; of the one before them, some
  int64_t bytes = job.element_bytes;
  while (cut > 0 && bytes * job.dims[cut - 1].extent <= kBandBytes) bytes *= job.dims[--cut].extent;
  CopyJob band = job;
  const auto run = [&](const std::byte* source, std::byte* destination) {
    band.source = source;
    band.destination = destination;
    RunJob(band, stores);
    for (const int64_t other : others) {
      band.destination = destination + other;
      RunJob(band, stores);
    }
  };
  if (cut == 0) return run(job.source, job.destination);
  const Dim rows = job.dims[cut - 1];
  const int64_t count = std::max<int64_t>(1, kBandBytes / bytes);
  band.dims.erase(band.dims.begin(), band.dims.begin() + static_cast<ptrdiff_t>(cut) - 1);
  const auto run_rows = [&](const std::byte* source, std::byte* destination) {
    for (int64_t i = 0; i < rows.extent; i += count) {
      band.dims.front().extent = std::min(count, rows.extent - i);
      run(source + i * rows.source, destination + i * rows.destination);
    }
  };
  ForEachOuter(absl::MakeConstSpan(job.dims).first(cut - 1), job.source, job.destination, run_rows);
}

}  // namespace

namespace cpu {

void CopyToEach(absl::Span<const int64_t> extents, int64_t element_bytes, const ReduceTerm& source,
                absl::Span<const ReduceDestination> destinations) {
  absl::InlinedVector<CopyJob, 4> jobs;
  for (const ReduceDestination& to : destinations) {
    if (to.data == source.data && to.strides == source.strides) continue;
    jobs.push_back(MakeJob(extents, element_bytes, source.data, source.strides, to.data, to.strides));
  }
  const bool are_alike =
      std::all_of(jobs.begin(), jobs.end(), [&](const CopyJob& job) { return AreAlike(job, jobs[0]); });
  if (!are_alike || jobs.size() < 2 || jobs[0].dims.empty() || FindPlane(jobs[0]) < jobs[0].dims.size()) {
    for (const ReduceDestination& to : destinations) {
      if (to.data == source.data && to.strides == source.strides) continue;
      CopyStrided(extents, element_bytes, source.data, source.strides, to.data, to.strides);
    }
    return;
  }
  absl::InlinedVector<int64_t, 4> others;
  for (size_t i = 1; i < jobs.size(); ++i) others.push_back(jobs[i].destination - jobs[0].destination);
  const int64_t touched_bytes = static_cast<int64_t>(jobs.size() + 1) * jobs[0].bytes();
  const Stores stores = StoresFor(touched_bytes);
  const Dim& row = jobs[0].dims.back();
  const bool streams_rows =
      stores == Stores::kStreaming && jobs[0].IsDense(row) &&
      row.extent * jobs[0].element_bytes >= kMinStreamedRowBytes &&
      std::all_of(others.begin(), others.end(), [](int64_t other) { return other % kLineBytes == 0; });
  const int64_t parts = std::min(PartsFor(touched_bytes), jobs[0].dims.front().extent);
  RunParts(parts, [&](int64_t part, int64_t count) {
    const CopyJob piece = PartOf(jobs[0], part, count);
    if (piece.dims.front().extent == 0) return;
    if (streams_rows) {
      StreamRowsToEach(piece, others);
    } else {
      RunBands(piece, others, stores);
    }
  });
}

}  // namespace cpu

void CopyStrided(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
                 absl::Span<const int64_t> source_strides, void* destination,
                 absl::Span<const int64_t> destination_strides) {
  for (int64_t extent : extents) {
    if (extent <= 0) return;
  }
  const CopyJob job = MakeJob(extents, element_bytes, source, source_strides, destination, destination_strides);
  const int64_t touched_bytes = 2 * job.bytes();
  const Stores stores = cpu::StoresFor(touched_bytes);
  const int64_t parts = job.dims.empty() ? 1 : std::min(cpu::PartsFor(touched_bytes), job.dims.front().extent);
  if (parts == 1) return RunJob(job, stores);
  cpu::RunParts(parts, [&](int64_t part, int64_t count) {
    const CopyJob piece = PartOf(job, part, count);
    if (piece.dims.front().extent > 0) RunJob(piece, stores);
  });
}

}  // namespace tessera
