#include <algorithm>
#include <cstring>
#include <utility>

#include "client/recording.h"
#include "client/session_impl.h"
#include "client/session_request.h"
#include "schemas/types/divide.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// `box` with its indices counted from `origin`.
Box Relative(Box box, const Shape& origin) {
  for (size_t d = 0; d < box.size(); ++d) {
    box[d].start -= origin[d];
    box[d].stop -= origin[d];
  }
  return box;
}

// What is fewer than this comes at once: a ring pays from then on.
constexpr int64_t kLeastSlabs = 2;
constexpr int64_t kSlotAlignment = 4096;

// Walks a piece in slabs along dim 0.
struct SlabCursor {
  const UploadPiece* piece = nullptr;
  int64_t row_bytes = 0;
  int64_t rows_per_slab = 1;
  int64_t next_row = 0;

  int64_t slab_count() const { return (piece->box[0].size() + rows_per_slab - 1) / rows_per_slab; }
  bool done() const { return next_row >= piece->box[0].stop; }
  Box Take() {
    Box slab = piece->box;
    slab[0].start = next_row;
    next_row = std::min(next_row + rows_per_slab, piece->box[0].stop);
    slab[0].stop = next_row;
    return slab;
  }
};

// Positions whose workers are asked for a download: one for each distinct box.
std::vector<int64_t> DistinctHolders(const TensorSpec& spec) {
  std::vector<int64_t> out;
  absl::flat_hash_map<Box, int64_t> seen;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    Box box = LocalBox(spec, spec.mesh.PositionAt(flat));
    if (!IsEmpty(box) && seen.emplace(std::move(box), flat).second) out.push_back(flat);
  }
  return out;
}

}  // namespace

absl::StatusOr<HandlePtr> SessionImpl::Upload(const TensorSpec& spec, std::vector<UploadPiece> pieces) {
  TESSERA_RETURN_IF_ERROR(Check());
  if (PlanCapture* capture = PlanCapture::Current(); capture != nullptr) {
    return PlannedHandle(specs_.Intern(spec), RowMajorStrides(MaxShardShape(spec)),
                         capture->Hold({spec.mesh, MaxShardElements(spec) * SizeBytes(spec.dtype)}));
  }
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(StrCat("values are brought to ", ToText(spec))));
  int64_t bytes = 0;
  for (const UploadPiece& piece : pieces) bytes += NumElements(piece.box) * SizeBytes(spec.dtype);
  HandlePtr handle = NewHandle(specs_.Intern(spec), next_handle_++);
  auto [number, request] = NewRequest();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request->handle = handle->id;
  }
  absl::Status status;
  if (bytes <= kSnapshotBytes) {
    status = SendSnapshot(number, request, handle, pieces, bytes);
  } else {
    status = SendSlabs(number, request, handle, pieces);
  }
  if (status.ok()) return handle;
  EndRequest(number, request, status);
  return status;
}

absl::StatusOr<std::shared_ptr<HostMemory>> SessionImpl::SnapshotMemory(int64_t bytes) {
  const auto under_way = [this] {  // with the mutex held
    std::erase_if(snapshots_, [](const std::weak_ptr<HostMemory>& weak) {
      const std::shared_ptr<HostMemory> memory = weak.lock();
      return memory == nullptr || memory->fd() < 0;
    });
    return snapshots_.size();
  };
  bool full = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    full = snapshots_.size() >= kMaxSnapshots && under_way() >= kMaxSnapshots;
  }
  if (full) {
    TESSERA_RETURN_IF_ERROR(WaitUntil("upload", std::nullopt, [&] { return under_way() < kMaxSnapshots / 2; }));
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<HostMemory> memory, HostMemory::Make(bytes));
  std::lock_guard<std::mutex> lock(mutex_);
  snapshots_.push_back(memory);
  return memory;
}

absl::Status SessionImpl::SendSnapshot(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                       const std::vector<UploadPiece>& pieces, int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<HostMemory> memory, SnapshotMemory(bytes));
  struct Part {
    Box box;
    std::vector<WorkerIndex> workers;
    uint64_t offset_bytes;
  };
  std::vector<Part> parts;
  uint64_t offset = 0;
  for (const UploadPiece& piece : pieces) {
    if (IsEmpty(piece.box)) continue;
    CopyBoxTo(piece.source, Relative(piece.box, piece.origin), memory->data() + offset);
    parts.push_back({piece.box, piece.workers, offset});
    offset += static_cast<uint64_t>(NumElements(piece.box) * SizeBytes(handle->spec->dtype));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request->on_ticket = [this, number, memory, parts = std::move(parts), spec = handle->spec, id = handle->id](
                             uint64_t ticket, uint64_t secret) {
      connection_->BeginTransfer(number, ticket, secret, memory, spec->mesh.workers());
      for (const Part& part : parts) {
        for (WorkerIndex worker : part.workers) {
          connection_->Copy(number, worker, part.box, part.offset_bytes, [](absl::Status) {});
        }
      }
      connection_->FinishTransfer(number, [this, ticket, id, memory](absl::Status status) {
        memory->CloseFd();
        if (!status.ok()) GiveUpUpload(ticket, id, status);
        NotifyChanged();  // who waits for room
      });
    };
  }
  Record record;
  record.kind = Record::Kind::kUpload;
  record.request = number;
  record.handle = handle->id;
  record.spec = handle->spec;
  return Enqueue(std::move(record));
}

void SessionImpl::GiveUpUpload(uint64_t ticket, uint64_t handle, const absl::Status& why) {
  ReleaseTicket(ticket, why);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // A worker that is lost when the coordinator has said that all bytes are there takes nothing back.
    auto live = live_.find(handle);
    if (live != live_.end() && live->second->failure.ok() && !live->second->settled) {
      live->second->failure = why;
      live->second->settled = true;
    }
  }
  NotifyChanged();
}

absl::Status SessionImpl::SendSlabs(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                    const std::vector<UploadPiece>& pieces) {
  const int64_t element_bytes = SizeBytes(handle->spec->dtype);
  Record record;
  record.kind = Record::Kind::kUpload;
  record.request = number;
  record.handle = handle->id;
  record.spec = handle->spec;
  TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  connection_->Flush();

  std::vector<SlabCursor> cursors;
  int64_t slab_bytes = kSlabBytes, wanted_slabs = 0;
  for (const UploadPiece& piece : pieces) {
    if (IsEmpty(piece.box)) continue;
    const int64_t row_bytes = NumElements(piece.box) / piece.box[0].size() * element_bytes;
    cursors.push_back({&piece, row_bytes, std::max<int64_t>(1, kSlabBytes / row_bytes), piece.box[0].start});
    slab_bytes = std::max(slab_bytes, row_bytes);
    wanted_slabs += cursors.back().slab_count();
  }
  // A slab is filled while another one is taken: two are enough where rows are long.
  const int64_t fitting_slabs = std::max<int64_t>(2, kSlabs * kSlabBytes / slab_bytes);
  const int slabs = static_cast<int>(std::min({wanted_slabs, fitting_slabs, int64_t{kSlabs}}));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<HostMemory> ring, TakeRing(slabs * slab_bytes));
  TESSERA_RETURN_IF_ERROR(WaitUntil("upload", std::nullopt, [&r = request] { return r->ticketed || r->done; }));
  uint64_t ticket = 0, secret = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!request->ticketed) return request->status;
    ticket = request->ticket;
    secret = request->secret;
  }
  connection_->BeginTransfer(number, ticket, secret, ring, handle->spec->mesh.workers());

  auto state = std::make_shared<SlabProgress>();
  absl::Status status;
  int slot = 0;
  for (bool more = true; more && status.ok();) {
    more = false;
    for (SlabCursor& cursor : cursors) {
      if (cursor.done()) continue;
      more = true;
      const Box slab = cursor.Take();
      status = WaitForSlot("upload", state, slot, static_cast<int>(cursor.piece->workers.size()));
      if (!status.ok()) break;
      const int64_t offset = slot * slab_bytes;
      CopyBoxTo(cursor.piece->source, Relative(slab, cursor.piece->origin), ring->data() + offset);
      for (WorkerIndex worker : cursor.piece->workers) CopySlab(number, worker, slab, offset, slot, state);
      slot = (slot + 1) % slabs;
    }
  }
  connection_->FinishTransfer(number, [this, state, ring, ticket, id = handle->id](absl::Status finished) {
    if (!finished.ok()) GiveUpUpload(ticket, id, finished);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      state->finished = true;
      if (state->error.ok()) state->error = finished;
      if (finished.ok()) KeepRing(ring);
    }
    NotifyChanged();
  });
  // The source has been read: what goes wrong from here on poisons the handle.
  return status;
}

absl::StatusOr<std::shared_ptr<HostMemory>> SessionImpl::TakeRing(int64_t bytes) {
  std::shared_ptr<HostMemory> ring;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ring.swap(ring_);
  }
  if (ring != nullptr && ring->size_bytes() >= bytes) return ring;
  return HostMemory::Make(bytes);
}

void SessionImpl::KeepRing(std::shared_ptr<HostMemory> ring) {
  if (ring->size_bytes() <= kSlabs * kSlabBytes) ring_ = std::move(ring);
}

absl::Status SessionImpl::WaitForSlot(std::string_view what, const SlabProgressPtr& progress, int slot, int copies) {
  TESSERA_RETURN_IF_ERROR(WaitUntil(
      what, std::nullopt, [&progress, slot] { return progress->pending[slot] == 0 || !progress->error.ok(); }));
  std::lock_guard<std::mutex> lock(mutex_);
  if (progress->error.ok()) progress->pending[slot] = copies;
  return progress->error;
}

void SessionImpl::CopySlab(uint64_t number, WorkerIndex worker, const Box& slab, int64_t offset_bytes, int slot,
                           const SlabProgressPtr& progress) {
  connection_->Copy(number, worker, slab, static_cast<uint64_t>(offset_bytes),
                    [this, progress, slot](absl::Status copied) {
                      {
                        std::lock_guard<std::mutex> lock(mutex_);
                        --progress->pending[slot];
                        if (progress->error.ok()) progress->error = copied;
                        progress_ = Clock::now();
                      }
                      NotifyChanged();
                    });
}

absl::StatusOr<HostArray> SessionImpl::Download(const HandlePtr& handle, std::optional<int64_t> flat_position) {
  TESSERA_RETURN_IF_ERROR(Check());
  if (handle->planned != nullptr) return NeverRuns(*handle);
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(StrCat("the values of ", ToText(*handle->spec), " are read")));
  const TensorSpec& spec = *handle->spec;
  Box box = flat_position.has_value() ? LocalBox(spec, spec.mesh.PositionAt(*flat_position)) : WholeBox(spec.shape);
  const int64_t bytes = NumElements(box) * SizeBytes(spec.dtype);
  HostArray out{spec.dtype, BoxShape(box), nullptr};
  if (bytes == 0) {
    TESSERA_RETURN_IF_ERROR(Wait(*handle, std::nullopt));
    out.memory = HostMemory::MakePrivate(0);
    return out;
  }
  auto [number, request] = NewRequest();
  Record record;
  record.kind = Record::Kind::kDownload;
  record.request = number;
  record.handle = handle->id;
  record.allow_inline = !flat_position.has_value() && bytes <= static_cast<int64_t>(welcome().max_inline_bytes);
  TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  absl::StatusOr<HostArray> fetched = Fetch(number, request, handle, flat_position, box, std::move(out));
  // Workers that were not asked keep their windows until the request ends.
  EndRequest(number, request);
  return fetched;
}

absl::StatusOr<HostArray> SessionImpl::Fetch(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                             std::optional<int64_t> flat_position, const Box& box, HostArray out) {
  const TensorSpec& spec = *handle->spec;
  const int64_t bytes = NumElements(box) * SizeBytes(spec.dtype);
  connection_->Flush();
  const SlabShape shape = SlabsOf(box, SizeBytes(spec.dtype));
  // The pages are made while the workers compute.
  if (shape.slots > 0) {
    TESSERA_ASSIGN_OR_RETURN(out.memory, HostMemory::MakeLarge(bytes));
    MakePagesUntilTicket(request, *out.memory);
  } else if (bytes > static_cast<int64_t>(welcome().max_inline_bytes)) {
    TESSERA_ASSIGN_OR_RETURN(out.memory, HostMemory::Make(bytes));
  }
  TESSERA_RETURN_IF_ERROR(WaitUntil("download", std::nullopt, [&r = request] { return r->ticketed || r->done; }));
  uint64_t ticket = 0, secret = 0;
  bool done = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done = request->done;
    ticket = request->ticket;
    secret = request->secret;
  }
  if (done) {
    TESSERA_RETURN_IF_ERROR(request->status);
    if (static_cast<int64_t>(request->bytes.size()) != bytes) {
      return absl::InternalError(
          StrCat("download: ", ToText(spec), " came as ", request->bytes.size(), " bytes, not ", bytes));
    }
    out.memory = HostMemory::MakePrivate(bytes);
    std::copy(request->bytes.begin(), request->bytes.end(), out.memory->data());
    return out;
  }
  if (out.memory == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(out.memory, HostMemory::Make(bytes));
  }
  std::vector<int64_t> holders =
      flat_position.has_value() ? std::vector<int64_t>{*flat_position} : DistinctHolders(spec);
  std::vector<WorkerIndex> workers;
  for (int64_t flat : holders) workers.push_back(spec.mesh.workers()[static_cast<size_t>(flat)]);
  // What the workers write to: a ring, or the array.
  std::shared_ptr<HostMemory> shared = out.memory;
  if (shape.slots > 0) {
    TESSERA_ASSIGN_OR_RETURN(shared, TakeRing(shape.slots * shape.slot_bytes));
  }
  connection_->BeginTransfer(number, ticket, secret, shared, workers);
  const auto progress = std::make_shared<SlabProgress>();
  absl::Status fetched;
  if (shape.slots > 0) {
    fetched = FetchSlabs(number, spec, holders, shape, box, *shared, progress, out.memory->data());
  } else {
    for (WorkerIndex worker : workers) {
      connection_->Copy(number, worker, box, 0, [this](absl::Status) { Progress(); });
    }
  }
  connection_->FinishTransfer(number, [this, progress, shared, is_ring = shape.slots > 0](absl::Status status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      progress->finished = true;
      if (is_ring && status.ok() && progress->error.ok()) KeepRing(shared);
      if (!status.ok()) progress->error = std::move(status);
    }
    NotifyChanged();
  });
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (progress->error.ok()) TESSERA_RETURN_IF_ERROR(fetched);  // it was not waited for
  }
  TESSERA_RETURN_IF_ERROR(WaitUntil("download", std::nullopt,
                                    [&] { return progress->finished || (request->done && !request->status.ok()); }));
  std::lock_guard<std::mutex> lock(mutex_);
  // The coordinator knows why a worker is gone; the socket only that it is.
  TESSERA_RETURN_IF_ERROR(request->done ? request->status : absl::OkStatus());
  TESSERA_RETURN_IF_ERROR(handle->TellFailure());
  TESSERA_RETURN_IF_ERROR(progress->error);
  TESSERA_RETURN_IF_ERROR(fetched);
  out.memory->CloseFd();
  return out;
}

SessionImpl::SlabShape SessionImpl::SlabsOf(const Box& box, int64_t element_bytes) {
  SlabShape shape;
  const int64_t bytes = NumElements(box) * element_bytes;
  if (bytes < kLeastSlabs * kSlabBytes) return shape;
  shape.row_bytes = bytes / box[0].size();
  shape.rows = std::max<int64_t>(1, kSlabBytes / shape.row_bytes);
  shape.slot_bytes = CeilDivide(shape.rows * shape.row_bytes, kSlotAlignment) * kSlotAlignment;
  // Longer rows come at once.
  if (shape.row_bytes <= kSlabBytes) shape.slots = kSlabs;
  return shape;
}

void SessionImpl::MakePagesUntilTicket(const RequestPtr& request, HostMemory& memory) {
  for (int64_t at = 0; at < memory.size_bytes(); at += kSlabBytes) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (request->ticketed || request->done) return;
    }
    memory.MakePages(at, kSlabBytes);
  }
}

absl::Status SessionImpl::FetchSlabs(uint64_t number, const TensorSpec& spec, const std::vector<int64_t>& holders,
                                     const SlabShape& shape, const Box& box, HostMemory& ring,
                                     const SlabProgressPtr& progress, char* destination) {
  const int64_t rows = box[0].size();
  const int64_t slabs = CeilDivide(rows, shape.rows);
  std::vector<std::pair<WorkerIndex, Box>> held;
  for (const int64_t flat : holders) {
    held.emplace_back(spec.mesh.workers()[static_cast<size_t>(flat)], LocalBox(spec, spec.mesh.PositionAt(flat)));
  }
  const auto box_of = [&](int64_t slab) {
    Box rows_of_box = box;
    rows_of_box[0].start = box[0].start + slab * shape.rows;
    rows_of_box[0].stop = std::min(rows_of_box[0].start + shape.rows, box[0].stop);
    return rows_of_box;
  };
  const auto ask_for = [&](int64_t number_of_slab) -> absl::Status {
    const Box slab = box_of(number_of_slab);
    const int slot = static_cast<int>(number_of_slab % shape.slots);
    std::vector<WorkerIndex> workers;  // that have some of it
    for (const auto& [worker, own] : held) {
      if (!IsEmpty(Intersect(slab, own))) workers.push_back(worker);
    }
    TESSERA_RETURN_IF_ERROR(WaitForSlot("download", progress, slot, static_cast<int>(workers.size())));
    for (const WorkerIndex worker : workers) {
      CopySlab(number, worker, slab, slot * shape.slot_bytes, slot, progress);
    }
    return absl::OkStatus();
  };
  for (int64_t slab = 0; slab < std::min<int64_t>(slabs, shape.slots); ++slab) TESSERA_RETURN_IF_ERROR(ask_for(slab));
  for (int64_t slab = 0; slab < slabs; ++slab) {
    const int slot = static_cast<int>(slab % shape.slots);
    TESSERA_RETURN_IF_ERROR(WaitForSlot("download", progress, slot, 0));
    const int64_t bytes = box_of(slab)[0].size() * shape.row_bytes;
    std::memcpy(destination + slab * shape.rows * shape.row_bytes, ring.data() + slot * shape.slot_bytes,
                static_cast<size_t>(bytes));
    if (slab + shape.slots < slabs) TESSERA_RETURN_IF_ERROR(ask_for(slab + shape.slots));
  }
  return absl::OkStatus();
}

}  // namespace tessera