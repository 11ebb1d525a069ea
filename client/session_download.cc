#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "client/copy_threads.h"
#include "client/recording.h"
#include "client/session_request.h"
#include "client/transfer_slabs.h"
#include "schemas/types/divide.h"
#include "schemas/types/errors.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Fewer bytes than this come to memory that workers map: a ring pays from then on.
constexpr int64_t kLeastRingBytes = 8 << 20;
constexpr int64_t kSlotAlignment = 4096;

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

// Bytes of a slot, in a ring for the slabs.
template <typename Slabs>
int64_t SlotBytes(const Slabs& slabs) {
  int64_t most = 0;
  for (const auto& slab : slabs) most = std::max(most, slab.bytes);
  return CeilDivide(most, kSlotAlignment) * kSlotAlignment;
}

Box BoxOf(const TensorSpec& spec, const DownloadPart& part) {
  if (part.flat_position.has_value()) return LocalBox(spec, spec.mesh.PositionAt(*part.flat_position));
  Box box = WholeBox(spec.shape);
  if (part.rows.has_value()) box[0] = *part.rows;
  return box;
}

}  // namespace

absl::StatusOr<HostArray> SessionTransfers::Download(const HandlePtr& handle, std::optional<int64_t> flat_position) {
  TESSERA_RETURN_IF_ERROR(session_.AwaitSpec(*handle));
  const DownloadPart part{flat_position, std::nullopt};
  const Box box = BoxOf(*handle->spec, part);
  Landing landing;
  TESSERA_RETURN_IF_ERROR(DownloadBox(handle, part, box, landing));
  landing.memory->CloseFd();
  return HostArray{handle->spec->dtype, BoxShape(box), std::move(landing.memory)};
}

absl::Status SessionTransfers::DownloadTo(std::string_view what, const HandlePtr& handle, const DownloadPart& part,
                                          const HostTarget& out) {
  TESSERA_RETURN_IF_ERROR(session_.AwaitSpec(*handle));
  const TensorSpec& spec = *handle->spec;
  const Box box = BoxOf(spec, part);
  if (out.dtype != spec.dtype) {
    return DTypeError(StrCat(what, ": out is ", ToText(out.dtype), ToText(out.shape), ", the values are ",
                             ToText(spec.dtype), ToText(BoxShape(box)), " of ", ToText(spec)));
  }
  if (out.shape != BoxShape(box)) {
    return absl::InvalidArgumentError(StrCat(what, ": out is ", ToText(out.dtype), ToText(out.shape),
                                             ", the values are ", ToText(spec.dtype), ToText(BoxShape(box)), " of ",
                                             ToText(spec)));
  }
  Landing landing{out.data, nullptr};
  return DownloadBox(handle, part, box, landing);
}

absl::Status SessionTransfers::DownloadBox(const HandlePtr& handle, const DownloadPart& part, const Box& box,
                                           Landing& landing) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  if (handle->planned != nullptr) return NeverRuns(*handle);
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(StrCat("the values of ", ToText(*handle->spec), " are read")));
  const int64_t bytes = NumElements(box) * SizeBytes(handle->spec->dtype);
  if (bytes == 0) {
    landing.memory = HostMemory::MakePrivate(0);
    return session_.Wait(*handle, std::nullopt);
  }
  const SpecPtr spec = handle->spec;
  const Landing wanted = landing;
  absl::Status status = DownloadOnce(handle, part, box, landing);
  if (status.ok()) session_.counters().downloaded_bytes.Add(bytes);
  if (!absl::IsUnavailable(status)) return status;
  // A worker that was lost may have left copies, and the tensor other workers: the coordinator says so soon.
  constexpr double kWordTimeoutS = 1;
  const absl::Status told = session_.WaitUntil("download", kWordTimeoutS,
                                               [&] { return handle->spec.get() != spec || !handle->failure.ok(); });
  if (!told.ok() || handle->spec.get() == spec) return status;
  landing = wanted;
  return DownloadOnce(handle, part, box, landing);
}

absl::Status SessionTransfers::DownloadOnce(const HandlePtr& handle, const DownloadPart& part, const Box& box,
                                            Landing& landing) {
  const int64_t bytes = NumElements(box) * SizeBytes(handle->spec->dtype);
  auto [number, request] = session_.NewRequest();
  Record record;
  record.kind = Record::Kind::kDownload;
  record.request = number;
  record.handle = handle->id;
  record.allow_inline = !part.flat_position.has_value() && !part.rows.has_value() &&
                        bytes <= static_cast<int64_t>(session_.welcome().max_inline_bytes);
  TESSERA_RETURN_IF_ERROR(session_.Enqueue(std::move(record)));
  const absl::Status fetched = Fetch(number, request, handle, part, box, landing);
  // Workers that were not asked keep their windows until the request ends.
  session_.EndRequest(number, request);
  return fetched;
}

absl::Status SessionTransfers::Fetch(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                     const DownloadPart& part, const Box& box, Landing& landing) {
  const int64_t bytes = NumElements(box) * SizeBytes(handle->spec->dtype);
  session_.connection_->Flush();
  if (landing.data != nullptr) {
    landing.memory = HostMemory::FindShared(landing.data, bytes);
  } else if (bytes >= kLeastRingBytes) {
    // The pages are made while the workers compute.
    TESSERA_ASSIGN_OR_RETURN(landing.memory, HostMemory::MakeLarge(bytes));
    TESSERA_RETURN_IF_ERROR(MakePagesUntilTicket(request, *landing.memory));
  } else if (bytes > static_cast<int64_t>(session_.welcome().max_inline_bytes)) {
    TESSERA_ASSIGN_OR_RETURN(landing.memory, HostMemory::Make(bytes));
  }
  TESSERA_RETURN_IF_ERROR(
      session_.WaitUntil("download", std::nullopt, [&r = request] { return r->ticketed || r->done; }));
  bool done = false;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    done = request->done;
  }
  if (done) {
    TESSERA_RETURN_IF_ERROR(request->status);
    if (static_cast<int64_t>(request->bytes.size()) != bytes) {
      return absl::InternalError(
          StrCat("download: ", ToText(*handle->spec), " came as ", request->bytes.size(), " bytes, not ", bytes));
    }
    if (landing.data == nullptr) {
      landing.memory = HostMemory::MakePrivate(bytes);
      landing.data = landing.memory->data();
    }
    std::copy(request->bytes.begin(), request->bytes.end(), landing.data);
    return absl::OkStatus();
  }
  if (landing.data == nullptr) {
    if (landing.memory == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(landing.memory, HostMemory::Make(bytes));
    }
    landing.data = landing.memory->data();
  }
  return FetchFromWorkers(number, request, handle, part, box, landing);
}

absl::Status SessionTransfers::FetchFromWorkers(uint64_t number, const RequestPtr& request, const HandlePtr& handle,
                                                const DownloadPart& part, const Box& box, const Landing& landing) {
  const TensorSpec& spec = *handle->spec;
  const int64_t element_bytes = SizeBytes(spec.dtype), bytes = NumElements(box) * element_bytes;
  const Holders holders = SlabRun::HoldersOf(spec, part.flat_position, box);
  std::vector<WorkerIndex> workers;
  for (const auto& [worker, own] : holders) workers.push_back(worker);
  // The workers write to the array, or to a ring.
  const bool in_place = landing.memory != nullptr && landing.memory->fd() >= 0;
  const std::vector<Slab> slabs =
      in_place ? std::vector<Slab>() : InTurns(Slab::Cut(box, element_bytes, kSlabBytes), holders);
  std::shared_ptr<HostMemory> shared = landing.memory;
  if (!in_place) {
    const int64_t slots = std::min<int64_t>(kSlabs, static_cast<int64_t>(slabs.size()));
    TESSERA_ASSIGN_OR_RETURN(shared, TakeRing(slots * SlotBytes(slabs)));
  }
  const auto progress = std::make_shared<SlabProgress>(in_place ? holders.size() * kPlacedSlabs : size_t{kSlabs});
  if (progress->meter != nullptr) progress->meter->expected_bytes += bytes;
  session_.connection_->BeginTransfer(
      number, request->ticket, request->secret,
      {shared, std::make_shared<const TensorSpec>(spec), HostSide::Direction::kDownload}, workers);
  const absl::Status fetched =
      in_place ? CopyInPlace("download", number,
                             SlabRun::OfHolders(holders, box, element_bytes, landing.data - landing.memory->data()),
                             progress)
               : FetchSlabs(number, holders, slabs, *shared, progress, landing.data);
  session_.connection_->FinishTransfer(number, [this, progress, shared, in_place](absl::Status status) {
    {
      std::lock_guard<std::mutex> lock(session_.mutex_);
      progress->finished = true;
      if (!in_place && status.ok() && progress->error.ok()) KeepRing(shared);
      if (!status.ok()) progress->error = std::move(status);
    }
    session_.NotifyChanged();
  });
  const absl::Status status = Arrived(request, handle, progress, fetched);
  if (!status.ok() && in_place) {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    progress->TakeBack(*landing.memory);
  }
  if (absl::IsUnavailable(status)) return WhyBroken(status, handle);
  if (status.ok() && in_place && landing.memory->fd() < 0) {
    return absl::UnavailableError(StrCat("download: the memory that ", ToText(spec),
                                         " was brought to was given up by another transfer, which ended early"));
  }
  return status;
}

absl::Status SessionTransfers::Arrived(const RequestPtr& request, const HandlePtr& handle,
                                       const SlabProgressPtr& progress, const absl::Status& fetched) {
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    if (progress->error.ok()) TESSERA_RETURN_IF_ERROR(fetched);  // it was not waited for
  }
  TESSERA_RETURN_IF_ERROR(session_.WaitUntil(
      "download", std::nullopt, [&] { return progress->finished || (request->done && !request->status.ok()); }));
  std::lock_guard<std::mutex> lock(session_.mutex_);
  // The coordinator knows why a worker is gone; the socket only that it is.
  TESSERA_RETURN_IF_ERROR(request->done ? request->status : absl::OkStatus());
  TESSERA_RETURN_IF_ERROR(handle->TellFailure());
  TESSERA_RETURN_IF_ERROR(progress->error);
  return fetched;
}

// The coordinator may hear of a worker's end later than whoever had a line to it. It is asked for the same bytes again:
// either the workers open their windows, and it was the line alone that broke, or it says who is gone, and what went
// too.
absl::Status SessionTransfers::WhyBroken(const absl::Status& status, const HandlePtr& handle) {
  auto [number, request] = session_.NewRequest();
  Record record;
  record.kind = Record::Kind::kDownload;
  record.request = number;
  record.handle = handle->id;
  TESSERA_RETURN_IF_ERROR(session_.Enqueue(std::move(record)));
  const absl::Status answered =
      session_.WaitUntil("download", std::nullopt, [&r = request] { return r->ticketed || r->done; });
  session_.EndRequest(number, request);
  TESSERA_RETURN_IF_ERROR(answered);
  std::lock_guard<std::mutex> lock(session_.mutex_);
  TESSERA_RETURN_IF_ERROR(handle->TellFailure());
  return status;
}

void SessionTransfers::SlabProgress::TakeBack(HostMemory& memory) const {
  for (const Lane& lane : lanes) {
    // Without memory for its pages a worker that is slow may still write them: the caller has been told of a failure.
    if (lane.unsure > 0) (void)memory.TakeBack(lane.slab.offset_bytes, lane.slab.bytes);
  }
}

std::vector<SessionTransfers::Slab> SessionTransfers::Slab::Cut(const Box& box, int64_t element_bytes,
                                                                int64_t most_bytes) {
  const int64_t bytes = NumElements(box) * element_bytes;
  if (box.empty() || bytes <= most_bytes) return {{box, 0, bytes, bytes}};
  // The first dim is cut whose indices have at most `most_bytes` each; a slab has one index of each dim before it.
  size_t cut = 0;
  int64_t index_bytes = bytes / box[0].size();
  while (index_bytes > most_bytes && cut + 1 < box.size()) index_bytes /= box[++cut].size();
  const int64_t indices = std::max<int64_t>(1, most_bytes / index_bytes);
  std::vector<Slab> slabs;
  Slab slab{box};
  for (size_t d = 0; d < cut; ++d) slab.box[d].stop = box[d].start + 1;
  for (;;) {
    for (int64_t start = box[cut].start; start < box[cut].stop; start += indices) {
      slab.box[cut] = {start, std::min(start + indices, box[cut].stop)};
      slab.bytes = slab.moved_bytes = slab.box[cut].size() * index_bytes;
      slabs.push_back(slab);
      slab.offset_bytes += slab.bytes;
    }
    size_t d = cut;
    while (d > 0 && slab.box[d - 1].stop == box[d - 1].stop) {
      --d;
      slab.box[d] = {box[d].start, box[d].start + 1};
    }
    if (d == 0) return slabs;
    ++slab.box[d - 1].start;
    ++slab.box[d - 1].stop;
  }
}

// The slabs of holders take turns: no slab waits for another holder's copy.
std::vector<SessionTransfers::Slab> SessionTransfers::InTurns(std::vector<Slab> slabs, const Holders& holders) {
  std::vector<std::vector<Slab>> of_holder(holders.size());
  size_t most = 0;
  for (Slab& slab : slabs) {
    size_t first = 0;
    while (first + 1 < holders.size() && IsEmpty(Intersect(slab.box, holders[first].second))) ++first;
    of_holder[first].push_back(std::move(slab));
    most = std::max(most, of_holder[first].size());
  }
  slabs.clear();
  for (size_t i = 0; i < most; ++i) {
    for (std::vector<Slab>& own : of_holder) {
      if (i < own.size()) slabs.push_back(std::move(own[i]));
    }
  }
  return slabs;
}

SessionTransfers::Holders SessionTransfers::SlabRun::HoldersOf(const TensorSpec& spec,
                                                               std::optional<int64_t> flat_position, const Box& box) {
  Holders holders;
  for (const int64_t flat : flat_position.has_value() ? std::vector<int64_t>{*flat_position} : DistinctHolders(spec)) {
    Box own = Intersect(box, LocalBox(spec, spec.mesh.PositionAt(flat)));
    if (!IsEmpty(own)) holders.emplace_back(spec.mesh.workers()[static_cast<size_t>(flat)], std::move(own));
  }
  return holders;
}

// Each holder is asked for the rows that it has some of: slabs are whole rows of the array.
std::vector<SessionTransfers::SlabRun> SessionTransfers::SlabRun::OfHolders(const Holders& holders, const Box& box,
                                                                            int64_t element_bytes,
                                                                            int64_t offset_bytes) {
  std::vector<SlabRun> runs;
  for (const auto& [worker, own] : holders) {
    Box rows = box;
    int64_t first = offset_bytes;
    if (!box.empty()) {
      rows[0] = own[0];
      first += (own[0].start - box[0].start) * (NumElements(box) / box[0].size()) * element_bytes;
    }
    SlabRun run{{worker}, {}};
    for (Slab& slab : Slab::Cut(rows, element_bytes, kPlacedSlabBytes)) {
      slab.moved_bytes = NumElements(Intersect(slab.box, own)) * element_bytes;
      if (slab.moved_bytes == 0) continue;
      slab.offset_bytes += first;
      run.slabs.push_back(std::move(slab));
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

absl::Status SessionTransfers::MakePagesUntilTicket(const RequestPtr& request, HostMemory& memory) {
  WorkPoll poll;
  for (int64_t at = 0; at < memory.size_bytes(); at += kSlabBytes) {
    {
      std::lock_guard<std::mutex> lock(session_.mutex_);
      if (request->ticketed || request->done) break;
    }
    TESSERA_RETURN_IF_ERROR(LookForInterrupt(poll));
    memory.MakePages(at, kSlabBytes);
  }
  return absl::OkStatus();
}

absl::Status SessionTransfers::FetchSlabs(uint64_t number, const Holders& holders, const std::vector<Slab>& slabs,
                                          HostMemory& ring, const SlabProgressPtr& progress, char* destination) {
  const int64_t slot_bytes = SlotBytes(slabs);
  const size_t slots = std::min<size_t>(kSlabs, slabs.size());
  const auto ask_for = [&](size_t i) {
    const size_t slot = i % slots;
    std::vector<WorkerIndex> workers;  // that have some of it
    for (const auto& [worker, own] : holders) {
      if (!IsEmpty(Intersect(slabs[i].box, own))) workers.push_back(worker);
    }
    Slab slab = slabs[i];
    slab.offset_bytes = static_cast<int64_t>(slot) * slot_bytes;
    CopySlab(number, workers, slab, slot, progress);
  };
  for (size_t i = 0; i < slots; ++i) ask_for(i);
  for (size_t i = 0; i < slabs.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(WaitForLane("download", progress, i % slots));
    CopyShared(destination + slabs[i].offset_bytes, ring.data() + static_cast<int64_t>(i % slots) * slot_bytes,
               slabs[i].bytes);
    if (i + slots < slabs.size()) ask_for(i + slots);
  }
  return absl::OkStatus();
}

}  // namespace tessera
