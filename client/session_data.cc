#include <algorithm>
#include <cstring>
#include <utility>

#include "client/copy_threads.h"
#include "client/recording.h"
#include "client/request_state.h"
#include "client/session_calls.h"
#include "client/session_request.h"
#include "client/transfer_slabs.h"
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

int64_t BytesOf(const std::vector<UploadPiece>& pieces, DType dtype) {
  int64_t bytes = 0;
  for (const UploadPiece& piece : pieces) bytes += NumElements(piece.box) * SizeBytes(dtype);
  return bytes;
}

// Whether the elements lie one after another, the last index fastest.
bool IsRowMajor(const HostView& view) {
  int64_t stride = SizeBytes(view.dtype);
  for (size_t d = view.shape.size(); d-- > 0;) {
    if (view.shape[d] > 1 && view.strides_bytes[d] != stride) return false;
    stride *= view.shape[d];
  }
  return true;
}

// The shared memory that all the sources lie in, row-major; or null.
std::shared_ptr<HostMemory> SharedMemoryOf(const std::vector<UploadPiece>& pieces) {
  std::shared_ptr<HostMemory> memory;
  for (const UploadPiece& piece : pieces) {
    if (IsEmpty(piece.box)) continue;
    if (!IsRowMajor(piece.source)) return nullptr;
    const int64_t bytes = NumElements(piece.source.shape) * SizeBytes(piece.source.dtype);
    std::shared_ptr<HostMemory> own = HostMemory::FindShared(piece.source.data, bytes);
    if (own == nullptr || (memory != nullptr && own != memory)) return nullptr;
    memory = std::move(own);
  }
  return memory;
}

// Whether the tensor comes in its record: it is small and not pending, and one array has all of it.
bool IsInline(const TensorSpec& spec, const std::vector<UploadPiece>& pieces, int64_t max_bytes) {
  const int64_t bytes = NumElements(spec.shape) * SizeBytes(spec.dtype);
  if (bytes == 0 || bytes > max_bytes || spec.has_partial()) return false;
  // One array has them all: shards of several may differ where they should be copies.
  return std::all_of(pieces.begin(), pieces.end(), [&](const UploadPiece& piece) {
    return piece.source.data == pieces[0].source.data && piece.source.shape == spec.shape;
  });
}

}  // namespace

absl::StatusOr<HandlePtr> SessionTransfers::UploadInline(const TensorSpec& spec, const HostView& source) {
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, BeforeUpload(spec));
  if (handle != nullptr) return handle;
  Record record;
  record.kind = Record::Kind::kUpload;
  record.bytes.resize(static_cast<size_t>(NumElements(spec.shape) * SizeBytes(spec.dtype)));
  CopyBoxTo(source, WholeBox(spec.shape), record.bytes.data());
  handle = session_.NewHandle(session_.calls_->specs().Intern(spec), session_.next_handle_++);
  session_.sites_.Note(handle->id, SiteOfCall());
  record.handle = handle->id;
  record.spec = handle->spec;
  if (Recording* recording = Recording::Current()) {
    recording->AddLiteral(session_, handle->id, handle->spec, record.bytes);
  }
  session_.counters().uploads.Add(1);
  session_.counters().uploaded_bytes.Add(static_cast<int64_t>(record.bytes.size()));
  TESSERA_RETURN_IF_ERROR(session_.Enqueue(std::move(record)));
  if (Blocking::IsOn()) TESSERA_RETURN_IF_ERROR(session_.WaitForAll({&handle, 1}));
  return handle;
}

absl::StatusOr<HandlePtr> SessionTransfers::Upload(const TensorSpec& spec, std::vector<UploadPiece> pieces) {
  if (IsInline(spec, pieces, static_cast<int64_t>(session_.welcome().max_inline_bytes)))
    return UploadInline(spec, pieces[0].source);
  return UploadBy(spec, [&](uint64_t number, const RequestPtr& request, const HandlePtr& handle) {
    if (const int64_t bytes = BytesOf(pieces, spec.dtype); bytes <= kSnapshotBytes) {
      return SendSnapshot(number, request, handle, pieces, bytes);
    }
    if (const std::shared_ptr<HostMemory> memory = SharedMemoryOf(pieces); memory != nullptr) {
      return SendInPlace(number, request, handle, pieces, memory);
    }
    return SendSlabs(number, request, handle, pieces);
  });
}

absl::StatusOr<HandlePtr> SessionTransfers::UploadRows(const TensorSpec& spec, const RowReader& read) {
  return UploadBy(spec, [&](uint64_t number, const RequestPtr& request, const HandlePtr& handle) {
    return SendRows(number, request, handle, read);
  });
}

absl::StatusOr<HandlePtr> SessionTransfers::BeforeUpload(const TensorSpec& spec) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_RETURN_IF_ERROR(CheckThreadRequest("upload"));
  if (PlanCapture* capture = PlanCapture::Current(); capture != nullptr) {
    return session_.PlannedHandle(session_.calls_->specs().Intern(spec), RowMajorStrides(MaxShardShape(spec)),
                                  capture->Hold({spec.mesh, MaxShardElements(spec) * SizeBytes(spec.dtype)}));
  }
  // A lenient recording keeps what comes in a record.
  if (Recording::Strict() != nullptr) return Recording::Refuse(StrCat("values are brought to ", ToText(spec)));
  return HandlePtr();
}

absl::StatusOr<HandlePtr> SessionTransfers::UploadBy(const TensorSpec& spec, const Sender& send) {
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, BeforeUpload(spec));
  if (handle != nullptr) return handle;
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(StrCat("values are brought to ", ToText(spec))));
  handle = session_.NewHandle(session_.calls_->specs().Intern(spec), session_.next_handle_++);
  session_.sites_.Note(handle->id, SiteOfCall());
  auto [number, request] = session_.NewRequest();
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    request->handle = handle->id;
  }
  const absl::Status status = send(number, request, handle);
  if (status.ok()) {
    session_.counters().uploads.Add(1);
    session_.counters().uploaded_bytes.Add(NumElements(spec.shape) * SizeBytes(spec.dtype));
    if (Blocking::IsOn()) TESSERA_RETURN_IF_ERROR(session_.WaitForAll({&handle, 1}));
    return handle;
  }
  session_.EndRequest(number, request, status);
  return status;
}

absl::StatusOr<std::shared_ptr<HostMemory>> SessionTransfers::SnapshotMemory(int64_t bytes) {
  const auto under_way = [this] {  // with the mutex held
    std::erase_if(snapshots_, [](const std::weak_ptr<HostMemory>& weak) {
      const std::shared_ptr<HostMemory> memory = weak.lock();
      return memory == nullptr || memory->fd() < 0;
    });
    return snapshots_.size();
  };
  bool full = false;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    full = snapshots_.size() >= kMaxSnapshots && under_way() >= kMaxSnapshots;
  }
  if (full) {
    TESSERA_RETURN_IF_ERROR(
        session_.WaitUntil("upload", std::nullopt, [&] { return under_way() < kMaxSnapshots / 2; }));
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<HostMemory> memory, HostMemory::Make(bytes));
  std::lock_guard<std::mutex> lock(session_.mutex_);
  snapshots_.push_back(memory);
  return memory;
}

bool SessionTransfers::has_brought_all() const {
  return std::all_of(snapshots_.begin(), snapshots_.end(), [](const auto& snapshot) { return snapshot.expired(); });
}

absl::Status SessionTransfers::SendSnapshot(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
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
    CopyBoxShared(piece.source, Relative(piece.box, piece.origin), memory->data() + offset);
    parts.push_back({piece.box, piece.workers, offset});
    offset += static_cast<uint64_t>(NumElements(piece.box) * SizeBytes(handle->spec->dtype));
  }
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    request->on_ticket = [this, number, memory, parts = std::move(parts), spec = handle->spec.get(), id = handle->id](
                             uint64_t ticket, uint64_t secret) {
      session_.connection_->BeginTransfer(number, ticket, secret, {memory, spec, HostSide::Direction::kUpload},
                                          spec->mesh.workers());
      for (const Part& part : parts) {
        for (WorkerIndex worker : part.workers) {
          session_.connection_->Copy(number, worker, part.box, part.offset_bytes, [](absl::Status) {});
        }
      }
      session_.connection_->FinishTransfer(number, [this, ticket, id, memory](absl::Status status) {
        memory->CloseFd();
        if (!status.ok()) GiveUpUpload(ticket, {&id, 1}, status);
        session_.NotifyChanged();  // who waits for room
      });
    };
  }
  return RequestUpload(number, handle);
}

absl::Status SessionTransfers::RequestUpload(uint64_t number, const HandlePtr& handle) {
  Record record;
  record.kind = Record::Kind::kUpload;
  record.request = number;
  record.handle = handle->id;
  record.spec = handle->spec;
  return session_.Enqueue(std::move(record));
}

void SessionTransfers::GiveUpUpload(uint64_t ticket, absl::Span<const uint64_t> handles, const absl::Status& why) {
  session_.ReleaseTicket(ticket, why);
  // A line that broke says that a worker is gone, and the coordinator why: it fails the handles as the ticket ends.
  if (absl::IsUnavailable(why)) return;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    for (const uint64_t handle : handles) {
      // A worker that is lost when the coordinator has said that all bytes are there takes nothing back.
      auto live = session_.live_.find(handle);
      if (live != session_.live_.end() && live->second->failure.ok() && !live->second->settled) {
        live->second->failure = why;
        session_.Settle(*live->second);
      }
    }
  }
  session_.NotifyChanged();
}

absl::StatusOr<uint64_t> SessionTransfers::BeginUpload(uint64_t number, const RequestPtr& request,
                                                       const HandlePtr& handle,
                                                       const std::shared_ptr<HostMemory>& memory) {
  TESSERA_RETURN_IF_ERROR(
      session_.WaitUntil("upload", std::nullopt, [&r = request] { return r->ticketed || r->done; }));
  uint64_t ticket = 0, secret = 0;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    if (!request->ticketed) return request->status;
    ticket = request->ticket;
    secret = request->secret;
  }
  session_.connection_->BeginTransfer(number, ticket, secret, {memory, handle->spec, HostSide::Direction::kUpload},
                                      handle->spec->mesh.workers());
  return ticket;
}

void SessionTransfers::FinishUpload(uint64_t number, uint64_t ticket, const HandlePtr& handle,
                                    const SlabProgressPtr& progress, const std::shared_ptr<HostMemory>& memory) {
  SlabProgress::FinishUpload(*this, number, progress, memory, [this, ticket, id = handle->id](const absl::Status& why) {
    GiveUpUpload(ticket, {&id, 1}, why);
  });
}

void SessionTransfers::SlabProgress::FinishUpload(SessionTransfers& transfers, uint64_t request,
                                                  const SlabProgressPtr& progress,
                                                  const std::shared_ptr<HostMemory>& memory,
                                                  std::function<void(const absl::Status&)> give_up) {
  transfers.session_.connection_->FinishTransfer(
      request, [&transfers, progress, memory, give_up = std::move(give_up)](absl::Status finished) {
        if (!finished.ok()) give_up(finished);
        {
          std::lock_guard<std::mutex> lock(transfers.session_.mutex_);
          progress->finished = true;
          if (progress->error.ok()) progress->error = finished;
          if (finished.ok()) transfers.KeepRing(memory);
        }
        transfers.session_.NotifyChanged();
      });
}

Box SlabCursor::Take() {
  Box slab = piece->box;
  slab[0].start = next_row;
  next_row = std::min(next_row + rows_per_slab, piece->box[0].stop);
  slab[0].stop = next_row;
  return slab;
}

SessionTransfers::SlabSender::SlabSender(const std::vector<UploadPiece>& pieces, DType dtype, Order order)
    : element_bytes(SizeBytes(dtype)), order(order) {
  int64_t wanted_slabs = 0;
  for (const UploadPiece& piece : pieces) {
    if (IsEmpty(piece.box)) continue;
    const int64_t row_bytes = NumElements(piece.box) / piece.box[0].size() * element_bytes;
    cursors.push_back({&piece, row_bytes, std::max<int64_t>(1, kSlabBytes / row_bytes), piece.box[0].start});
    slab_bytes = std::max(slab_bytes, row_bytes);
    wanted_slabs += cursors.back().slab_count();
  }
  // A slab is filled while another one is taken: two are enough where rows are long.
  const int64_t fitting_slabs = std::max<int64_t>(2, kSlabs * kSlabBytes / slab_bytes);
  slabs = static_cast<size_t>(std::min({wanted_slabs, fitting_slabs, int64_t{kSlabs}}));
}

absl::Status SessionTransfers::SlabSender::Send(SessionTransfers& transfers, uint64_t request, HostMemory& ring,
                                                const SlabProgressPtr& progress) {
  // A slab of one long row is filled in parts, so that an interrupt is seen.
  const auto fill = [&](const UploadPiece& piece, const Box& slab, char* destination) {
    for (const Slab& part : Slab::Cut(slab, element_bytes, kSlabBytes)) {
      TESSERA_RETURN_IF_ERROR(transfers.LookForInterrupt(progress->poll));
      CopyBoxShared(piece.source, Relative(part.box, piece.origin), destination + part.offset_bytes);
    }
    return absl::OkStatus();
  };
  size_t slot = 0;
  const auto send = [&](SlabCursor& cursor) {
    const Box box = cursor.Take();
    TESSERA_RETURN_IF_ERROR(transfers.WaitForLane("upload", progress, slot));
    const int64_t bytes = NumElements(box) * element_bytes;
    const Slab slab{box, static_cast<int64_t>(slot) * slab_bytes, bytes, bytes};
    TESSERA_RETURN_IF_ERROR(fill(*cursor.piece, slab.box, ring.data() + slab.offset_bytes));
    transfers.CopySlab(request, cursor.piece->workers, slab, slot, progress);
    slot = (slot + 1) % slabs;
    return absl::OkStatus();
  };
  for (bool more = true; more;) {
    more = false;
    for (SlabCursor& cursor : cursors) {
      while (!cursor.done()) {
        more = true;
        TESSERA_RETURN_IF_ERROR(send(cursor));
        if (order == Order::kInTurns) break;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SessionTransfers::SendSlabs(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                         const std::vector<UploadPiece>& pieces) {
  TESSERA_RETURN_IF_ERROR(RequestUpload(number, handle));
  session_.connection_->Flush();
  SlabSender sender(pieces, handle->spec->dtype);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<HostMemory> ring, TakeRing(sender.ring_bytes()));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t ticket, BeginUpload(number, request, handle, ring));
  const auto progress = std::make_shared<SlabProgress>(sender.slabs);
  if (progress->meter != nullptr) progress->meter->expected_bytes += BytesOf(pieces, handle->spec->dtype);
  const absl::Status status = sender.Send(*this, number, *ring, progress);
  FinishUpload(number, ticket, handle, progress, ring);
  // The source has been read: an error from here on poisons the handle.
  return AsTheCoordinatorSays(status, *handle);
}

absl::Status SessionTransfers::AsTheCoordinatorSays(const absl::Status& status, HandleState& handle) {
  if (!absl::IsUnavailable(status)) return status;
  TESSERA_RETURN_IF_ERROR(session_.WaitUntil("upload", std::nullopt, [&handle] { return handle.settled; }));
  std::lock_guard<std::mutex> lock(session_.mutex_);
  return handle.failure.ok() ? status : handle.TellFailure();
}

absl::Status SessionTransfers::SendInPlace(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                           const std::vector<UploadPiece>& pieces,
                                           const std::shared_ptr<HostMemory>& memory) {
  const int64_t element_bytes = SizeBytes(handle->spec->dtype);
  TESSERA_RETURN_IF_ERROR(RequestUpload(number, handle));
  session_.connection_->Flush();
  std::vector<SlabRun> runs;
  for (const UploadPiece& piece : pieces) {
    if (IsEmpty(piece.box)) continue;
    // Rows of the source, of which workers take what they want.
    Box rows = piece.box;
    int64_t source_row_bytes = element_bytes;
    for (size_t d = 1; d < rows.size(); ++d) {
      rows[d] = {piece.origin[d], piece.origin[d] + piece.source.shape[d]};
      source_row_bytes *= piece.source.shape[d];
    }
    const int64_t row_bytes = NumElements(piece.box) / piece.box[0].size() * element_bytes;
    const int64_t first = piece.source.data - memory->data();
    SlabCursor cursor{&piece, row_bytes, std::max<int64_t>(1, kPlacedSlabBytes / row_bytes), piece.box[0].start};
    SlabRun run{piece.workers, {}};
    while (!cursor.done()) {
      rows[0] = cursor.Take()[0];
      run.slabs.push_back({rows, first + (rows[0].start - piece.origin[0]) * source_row_bytes,
                           rows[0].size() * source_row_bytes, rows[0].size() * row_bytes});
    }
    runs.push_back(std::move(run));
  }
  TESSERA_ASSIGN_OR_RETURN(const uint64_t ticket, BeginUpload(number, request, handle, memory));
  const auto progress = std::make_shared<SlabProgress>(runs.size() * kPlacedSlabs);
  if (progress->meter != nullptr) progress->meter->expected_bytes += BytesOf(pieces, handle->spec->dtype);
  const absl::Status copied = CopyInPlace("upload", number, runs, progress);
  FinishUpload(number, ticket, handle, progress, nullptr);
  TESSERA_RETURN_IF_ERROR(AsTheCoordinatorSays(copied, *handle));
  // Only then has the source been read; an error has poisoned the handle.
  return session_.WaitUntil("upload", std::nullopt, [&progress] { return progress->finished; });
}

absl::Status SessionTransfers::SendRows(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                        const RowReader& read) {
  const TensorSpec& spec = *handle->spec;
  TESSERA_RETURN_IF_ERROR(RequestUpload(number, handle));
  session_.connection_->Flush();
  Box rows = WholeBox(spec.shape);
  const int64_t row_bytes = NumElements(rows) / rows[0].size() * SizeBytes(spec.dtype);
  const int64_t rows_per_slab = std::max<int64_t>(1, kSlabBytes / row_bytes);
  const int64_t slab_bytes = std::min(rows_per_slab, spec.shape[0]) * row_bytes;
  const auto slabs = static_cast<size_t>(
      std::min<int64_t>(slab_bytes > kSlabBytes ? 2 : kSlabs, CeilDivide(spec.shape[0], rows_per_slab)));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<HostMemory> ring, TakeRing(static_cast<int64_t>(slabs) * slab_bytes));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t ticket, BeginUpload(number, request, handle, ring));
  const auto progress = std::make_shared<SlabProgress>(slabs);
  if (progress->meter != nullptr) progress->meter->expected_bytes += spec.shape[0] * row_bytes;
  std::vector<std::pair<WorkerIndex, Interval>> wanted;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const Box box = LocalBox(spec, spec.mesh.PositionAt(flat));
    if (!IsEmpty(box)) wanted.emplace_back(spec.mesh.workers()[static_cast<size_t>(flat)], box[0]);
  }
  absl::Status status;
  size_t slot = 0;
  for (int64_t row = 0; row < spec.shape[0] && status.ok(); row += rows_per_slab, slot = (slot + 1) % slabs) {
    rows[0] = {row, std::min(row + rows_per_slab, spec.shape[0])};
    status = WaitForLane("upload", progress, slot);
    const int64_t bytes = rows[0].size() * row_bytes;
    const Slab slab{rows, static_cast<int64_t>(slot) * slab_bytes, bytes, bytes};
    if (status.ok()) status = read(rows[0], ring->data() + slab.offset_bytes);
    if (!status.ok()) break;
    std::vector<WorkerIndex> workers;
    for (const auto& [worker, own] : wanted) {
      if (Intersect(own, rows[0]).size() > 0) workers.push_back(worker);
    }
    CopySlab(number, workers, slab, slot, progress);
  }
  FinishUpload(number, ticket, handle, progress, ring);
  return AsTheCoordinatorSays(status, *handle);
}

absl::Status SessionTransfers::CopyInPlace(std::string_view what, uint64_t number, const std::vector<SlabRun>& runs,
                                           const SlabProgressPtr& progress) {
  bool more = true;
  for (size_t i = 0; more; ++i) {
    more = false;
    for (size_t r = 0; r < runs.size(); ++r) {
      if (i >= runs[r].slabs.size()) continue;
      more = true;
      const size_t lane = r * kPlacedSlabs + i % kPlacedSlabs;
      TESSERA_RETURN_IF_ERROR(WaitForLane(what, progress, lane));
      CopySlab(number, runs[r].workers, runs[r].slabs[i], lane, progress);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<HostMemory>> SessionTransfers::TakeRing(int64_t bytes) {
  std::shared_ptr<HostMemory> ring;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    ring.swap(ring_);
  }
  if (ring != nullptr && ring->size_bytes() >= bytes) return ring;
  ring = nullptr;  // not both at a time
  return HostMemory::Make(bytes);
}

void SessionTransfers::KeepRing(std::shared_ptr<HostMemory> ring) {
  if (ring != nullptr && ring->size_bytes() <= kSlabs * kSlabBytes) ring_ = std::move(ring);
}

absl::Status SessionTransfers::LookForInterrupt(WorkPoll& poll) {
  absl::Status interrupted = poll.Poll();
  if (!interrupted.ok()) session_.CancelAll();
  return interrupted;
}

absl::Status SessionTransfers::WaitForLane(std::string_view what, const SlabProgressPtr& progress, size_t lane) {
  TESSERA_RETURN_IF_ERROR(LookForInterrupt(progress->poll));
  TESSERA_RETURN_IF_ERROR(session_.WaitUntil(
      what, std::nullopt, [&p = *progress, lane] { return p.lanes[lane].pending == 0 || !p.error.ok(); }));
  std::lock_guard<std::mutex> lock(session_.mutex_);
  return progress->error;
}

void SessionTransfers::CopySlab(uint64_t number, absl::Span<const WorkerIndex> workers, const Slab& slab, size_t lane,
                                const SlabProgressPtr& progress) {
  const int copies = static_cast<int>(workers.size());
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    progress->lanes[lane] = {copies, copies, slab};
  }
  const auto copied = [this, progress, lane](absl::Status status) {
    {
      std::lock_guard<std::mutex> lock(session_.mutex_);
      SlabProgress::Lane& its = progress->lanes[lane];
      --its.pending;
      if (status.ok() && --its.unsure == 0 && progress->meter != nullptr) {
        progress->meter->moved_bytes += its.slab.moved_bytes;
      }
      if (progress->error.ok()) progress->error = std::move(status);
      session_.progress_ = Clock::now();
    }
    session_.NotifyChanged();
  };
  for (const WorkerIndex worker : workers) {
    session_.connection_->Copy(number, worker, slab.box, static_cast<uint64_t>(slab.offset_bytes), copied);
  }
}

}  // namespace tessera
