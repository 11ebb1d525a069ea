#include "client/session_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "client/connection/transfers.h"
#include "client/session_calls.h"
#include "client/session_request.h"
#include "client/session_transfers.h"
#include "schemas/types/layout.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// One call of a copy.
constexpr int64_t kPieceBytes = int64_t{64} << 20;

// The box by rows of dim 0, each piece of about kPieceBytes.
std::vector<Box> PiecesOf(const Box& box, int64_t element_bytes) {
  if (box.empty() || IsEmpty(box)) return {box};
  const int64_t row_bytes = std::max<int64_t>(1, NumElements(box) / box[0].size() * element_bytes);
  const int64_t rows = std::max<int64_t>(1, kPieceBytes / row_bytes);
  std::vector<Box> pieces;
  for (int64_t row = box[0].start; row < box[0].stop; row += rows) {
    pieces.push_back(box);
    pieces.back()[0] = {row, std::min(row + rows, box[0].stop)};
  }
  return pieces;
}

}  // namespace

// The state of one call that is under way. Guarded by the session's mutex.
struct FileClient::Writing {
  uint64_t number = 0;
  SessionImpl::RequestPtr request;
  absl::Status status;
  bool is_done = false;
};

absl::StatusOr<std::unique_ptr<FileClient>> FileClient::Open(std::shared_ptr<SessionImpl> session, WorkerIndex worker) {
  TESSERA_RETURN_IF_ERROR(session->Check());
  std::unique_ptr<FileClient> files(new FileClient(std::move(session), worker));
  TESSERA_RETURN_IF_ERROR(files->Enter());
  return files;
}

absl::Status FileClient::Enter() {
  const WorkerIndex workers[] = {worker_};
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Make({1}, {}, workers));
  TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec,
                           TensorSpec::Make("file", DType::kU8, Shape{0}, mesh, {Placement::Replicate()}));
  nothing_ = session_->NewHandle(session_->calls().specs().Intern(spec), session_->next_handle_++);
  auto [number, request] = session_->NewRequest();
  Record record;
  record.kind = Record::Kind::kUpload;
  record.request = number;
  record.handle = nothing_->id;
  record.spec = nothing_->spec;
  TESSERA_RETURN_IF_ERROR(session_->Enqueue(std::move(record)));
  session_->connection_->Flush();
  TESSERA_RETURN_IF_ERROR(session_->WaitUntil("file", std::nullopt, [&r = request] { return r->ticketed || r->done; }));
  {
    std::lock_guard<std::mutex> lock(session_->mutex_);
    if (!request->ticketed) {
      return request->status.ok() ? absl::InternalError("file: an upload came to its end without a ticket")
                                  : request->status;
    }
  }
  transfer_ = number;
  session_->connection_->BeginTransfer(number, request->ticket, request->secret, {}, {worker_});
  return absl::OkStatus();
}

FileClient::~FileClient() {
  if (transfer_ != 0) session_->connection_->FinishTransfer(transfer_, [](const absl::Status&) {});
}

absl::Status FileClient::AwaitDone(const char* what, const std::shared_ptr<Writing>& state) {
  TESSERA_RETURN_IF_ERROR(session_->WaitUntil(what, std::nullopt, [&] { return state->is_done; }));
  std::lock_guard<std::mutex> lock(session_->mutex_);
  return state->status;
}

DoneCallback FileClient::Settles(const std::shared_ptr<Writing>& state) {
  return [session = session_.get(), state](absl::Status status) {
    {
      std::lock_guard<std::mutex> lock(session->mutex_);
      state->is_done = true;
      state->status = std::move(status);
    }
    session->NotifyChanged();
  };
}

absl::Status FileClient::Ask(const char* what, std::function<void(TransferTable&, DoneCallback)> call) {
  auto state = std::make_shared<Writing>();
  session_->connection_->OnTransfers(
      [call = std::move(call), done = Settles(state)](TransferTable& transfers) { call(transfers, done); });
  return AwaitDone(what, state);
}

absl::StatusOr<FilePart> FileClient::Look(const std::string& path, uint64_t offset, uint32_t count) {
  auto seen = std::make_shared<FilePart>();
  TESSERA_RETURN_IF_ERROR(Ask("look at a file", [=, transfer = transfer_, worker = worker_](TransferTable& transfers,
                                                                                            const DoneCallback& done) {
    transfers.LookAtFile(transfer, worker, path, offset, count, [seen, done](absl::StatusOr<FilePart> part) {
      if (part.ok()) *seen = *part;
      done(part.status());
    });
  }));
  return std::move(*seen);
}

absl::StatusOr<FilePart> FileClient::Describe(const std::string& path) {
  auto seen = std::make_shared<FilePart>();
  TESSERA_RETURN_IF_ERROR(Ask(
      "open a file", [=, transfer = transfer_, worker = worker_](TransferTable& transfers, const DoneCallback& done) {
        transfers.DescribeFile(transfer, worker, path, [seen, done](absl::StatusOr<FilePart> part) {
          if (part.ok()) *seen = *part;
          done(part.status());
        });
      }));
  return std::move(*seen);
}

void FileClient::CopyShard(SessionImpl* session, uint64_t transfer, size_t tensor, WorkerIndex worker, const Box& box,
                           int64_t element_bytes, const std::shared_ptr<TransferMeter>& meter) {
  for (const Box& piece : PiecesOf(box, element_bytes)) {
    const int64_t bytes = NumElements(piece) * element_bytes;
    if (meter != nullptr) meter->expected_bytes += bytes;
    auto copied = [session, meter, bytes](const absl::Status& status) {
      if (meter != nullptr && status.ok()) meter->moved_bytes += bytes;
      session->Progress();
    };
    session->connection_->OnTransfers(
        [=](TransferTable& transfers) { transfers.CopyFile(transfer, worker, tensor, piece, copied); });
  }
}

// The tensors' places in the list, by the workers that have them, in the order of the first of each.
std::vector<std::vector<size_t>> FileClient::TogetherOnWorkers(const std::vector<FileTensor>& tensors) {
  std::vector<std::vector<size_t>> groups;
  std::map<std::vector<WorkerIndex>, size_t> open;  // the newest group of these workers
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<WorkerIndex> workers(tensors[i].spec.mesh.workers().begin(), tensors[i].spec.mesh.workers().end());
    std::sort(workers.begin(), workers.end());
    const auto found = open.find(workers);
    if (found == open.end() || groups[found->second].size() == kMaxUploadTensors) {
      open[std::move(workers)] = groups.size();
      groups.push_back({i});
    } else {
      groups[found->second].push_back(i);
    }
  }
  return groups;
}

absl::StatusOr<std::vector<HandlePtr>> FileClient::Load(std::vector<FileTensor> tensors) {
  std::vector<HandlePtr> handles;
  for (const FileTensor& tensor : tensors) {
    handles.push_back(session_->NewHandle(session_->calls().specs().Intern(tensor.spec), session_->next_handle_++));
  }
  for (const std::vector<size_t>& group : TogetherOnWorkers(tensors)) {
    std::vector<Loading> loadings;
    for (const size_t i : group) loadings.push_back({handles[i], std::move(tensors[i].place)});
    TESSERA_RETURN_IF_ERROR(StartLoading(std::move(loadings)));
  }
  return handles;
}

absl::Status FileClient::StartLoading(std::vector<Loading> loadings) {
  SessionImpl* const session = session_.get();
  auto [number, request] = session->NewRequest();
  Record record;
  record.kind = Record::Kind::kUpload;
  record.request = number;
  record.handle = loadings[0].handle->id;
  record.spec = loadings[0].handle->spec;
  // A caller that drops a handle lets it go: transfers under way know it by its number.
  struct Part {
    uint64_t id;
    std::shared_ptr<const TensorSpec> spec;
    FilePlace place;
  };
  auto parts = std::make_shared<std::vector<Part>>();
  for (size_t i = 0; i < loadings.size(); ++i) {
    const HandlePtr& handle = loadings[i].handle;
    if (i > 0) record.more_results.push_back(handle->id);
    if (i > 0) record.more_specs.push_back(handle->spec);
    parts->push_back({handle->id, handle->spec, std::move(loadings[i].place)});
  }
  {
    std::lock_guard<std::mutex> lock(session->mutex_);
    request->handle = record.handle;
    request->on_ticket = [session, meter = ThreadMeter(), number = number, parts](uint64_t ticket, uint64_t secret) {
      session->connection_->BeginTransfer(number, ticket, secret, {}, parts->front().spec->mesh.workers());
      for (size_t i = 0; i < parts->size(); ++i) {
        const TensorSpec& spec = *(*parts)[i].spec;
        session->connection_->OnTransfers(
            [number, i, parts](TransferTable& transfers) { transfers.OpenFile(number, i, (*parts)[i].place); });
        for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
          const Box box = LocalBox(spec, spec.mesh.PositionAt(flat));
          if (IsEmpty(box)) continue;
          CopyShard(session, number, i, spec.mesh.workers()[static_cast<size_t>(flat)], box, SizeBytes(spec.dtype),
                    meter);
        }
      }
      session->connection_->FinishTransfer(number, [session, ticket, parts](const absl::Status& status) {
        if (status.ok()) return;
        std::vector<uint64_t> handles;
        for (const Part& part : *parts) handles.push_back(part.id);
        session->transfers().GiveUpUpload(ticket, handles, status);
      });
    };
  }
  absl::Status status = session->Enqueue(std::move(record));
  if (!status.ok()) session->EndRequest(number, request, status);
  return status;
}

absl::Status FileClient::Create(const std::string& path, const std::string& name, int64_t bytes,
                                const std::string& head) {
  return Ask("create a file",
             [=, transfer = transfer_, worker = worker_](TransferTable& transfers, const DoneCallback& done) {
               transfers.CreateFile(transfer, worker, path, name, bytes, head, done);
             });
}

absl::Status FileClient::CreateFolder(const std::string& path, const std::string& name, const std::string& json) {
  return Ask("create a folder",
             [=, transfer = transfer_, worker = worker_](TransferTable& transfers, const DoneCallback& done) {
               transfers.CreateFolder(transfer, worker, path, name, json, done);
             });
}

absl::Status FileClient::Commit() {
  return Ask("save", [transfer = transfer_, worker = worker_](TransferTable& transfers, const DoneCallback& done) {
    transfers.CommitFile(transfer, worker, done);
  });
}

// Each distinct shard is written by one of those that have it.
absl::Status FileClient::StartWriting(const HandlePtr& tensor, const FilePlace& place, Writing* writing) {
  SessionImpl* const session = session_.get();
  const TensorSpec& spec = *tensor->spec;
  std::vector<std::pair<Box, WorkerIndex>> writers;
  absl::flat_hash_set<Box> seen;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    Box box = LocalBox(spec, spec.mesh.PositionAt(flat));
    if (IsEmpty(box) || !seen.insert(box).second) continue;
    writers.emplace_back(std::move(box), spec.mesh.workers()[static_cast<size_t>(flat)]);
  }
  TESSERA_RETURN_IF_ERROR(session->WaitUntil(
      "save", std::nullopt, [writing] { return writing->request->ticketed || writing->request->done; }));
  {
    std::lock_guard<std::mutex> lock(session->mutex_);
    if (!writing->request->ticketed) {
      writing->is_done = true;
      return writing->request->status;
    }
  }
  std::vector<WorkerIndex> workers;
  for (const auto& [box, worker] : writers) workers.push_back(worker);
  session->connection_->BeginTransfer(writing->number, writing->request->ticket, writing->request->secret, {}, workers);
  session->connection_->OnTransfers(
      [number = writing->number, place](TransferTable& transfers) { transfers.OpenFile(number, 0, place); });
  for (const auto& [box, worker] : writers) {
    CopyShard(session, writing->number, 0, worker, box, SizeBytes(spec.dtype), ThreadMeter());
  }
  return absl::OkStatus();
}

absl::Status FileClient::Write(const std::vector<std::pair<HandlePtr, FilePlace>>& tensors) {
  SessionImpl* const session = session_.get();
  std::vector<std::shared_ptr<Writing>> all;
  absl::Status status;
  for (const auto& [tensor, place] : tensors) TESSERA_RETURN_IF_ERROR(session->AwaitSpec(*tensor));
  for (const auto& [tensor, place] : tensors) {
    auto writing = std::make_shared<Writing>();
    std::tie(writing->number, writing->request) = session->NewRequest();
    Record record;
    record.kind = Record::Kind::kDownload;
    record.request = writing->number;
    record.handle = tensor->id;
    status = session->Enqueue(std::move(record));
    if (!status.ok()) break;
    all.push_back(std::move(writing));
  }
  session->connection_->Flush();
  for (size_t i = 0; i < all.size() && status.ok(); ++i) {
    status = StartWriting(tensors[i].first, tensors[i].second, all[i].get());
    if (all[i]->is_done) continue;
    session->connection_->FinishTransfer(all[i]->number, Settles(all[i]));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_awaited = status.ok();
    if (is_awaited) status = AwaitDone("save", all[i]);
    session->EndRequest(all[i]->number, all[i]->request);
    if (is_awaited && absl::IsUnavailable(status)) status = session->transfers().WhyBroken(status, tensors[i].first);
  }
  return status;
}

}  // namespace tessera
