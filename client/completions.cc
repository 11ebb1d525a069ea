#include "client/completions.h"

#include <algorithm>
#include <utility>

#include "client/deferred_calls.h"
#include "client/recording.h"
#include "client/session_request.h"
#include "client/session_transfers.h"
#include "client/transfer_slabs.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// A callback for the first of those who would call it: the answer, or the end of the request.
class Once {
 public:
  explicit Once(Completions::ReadyCallback call) : call_(std::move(call)) {}
  void operator()(const absl::Status& status) {
    if (is_called_.exchange(true)) return;
    const Completions::ReadyCallback call = std::move(call_);
    call(status);
  }

 private:
  std::atomic<bool> is_called_{false};
  Completions::ReadyCallback call_;
};

}  // namespace

// ---- ready --------------------------------------------------------------------------------------

void Completions::OnReady(const HandlePtr& handle, ReadyCallback done) {
  const auto once = std::make_shared<Once>(std::move(done));
  const std::shared_ptr<RequestState> request = ThreadRequest();
  absl::Status refused = CheckThreadRequest(StrCat("wait for ", handle->SpecText()));
  if (refused.ok()) refused = session_.Watch(*handle);
  if (!refused.ok()) return (*once)(refused);
  uint64_t number = 0;
  if (request != nullptr) {
    number = request->TellEnd([once, text = handle->SpecText()](const absl::Status& why) {
      (*once)(absl::Status(why.code(), AbslView(StrCat("wait for ", text, ": ", StdView(why.message())))));
    });
    if (number == 0) return;
  }
  const auto tell = [once, handle, request, number] {
    if (number != 0) request->Forget(number);
    absl::Status status;
    {
      std::lock_guard<std::mutex> lock(handle->session->mutex_);
      status = handle->settled ? handle->TellFailure() : handle->session->failure_;
    }
    (*once)(status);
  };
  bool is_settled = false;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    is_settled = handle->settled || !session_.failure_.ok();
    if (!is_settled) handle->on_settled.push_back(tell);
  }
  if (is_settled) return tell();
  if (handle->spec_known) session_.EnsureWatched(*handle);  // it may have got known since Watch
  session_.connection_->Flush();
}

absl::StatusOr<size_t> Completions::WaitAny(absl::Span<const HandlePtr> handles, std::optional<double> timeout_s) {
  for (const HandlePtr& handle : handles) TESSERA_RETURN_IF_ERROR(session_.Watch(*handle));
  const SessionImpl::Clock::time_point start = SessionImpl::Clock::now();
  const std::string what =
      StrCat("wait for any of ", handles.size(), " tensors, the first one ", handles[0]->SpecText());
  for (;;) {
    std::optional<size_t> first;
    bool is_known = false;  // a spec that wasn't: its tensor is to be watched
    std::optional<double> left_s = timeout_s;
    if (timeout_s.has_value()) {
      const double passed_s = std::chrono::duration<double>(SessionImpl::Clock::now() - start).count();
      left_s = std::max(0.0, *timeout_s - passed_s);
    }
    const absl::Status waited = session_.WaitUntil(what, left_s, [&] {
      for (size_t i = 0; i < handles.size() && !first.has_value(); ++i) {
        if (handles[i]->settled) first = i;
        is_known = is_known || (handles[i]->spec_known && !handles[i]->watched && !handles[i]->settled);
      }
      return first.has_value() || is_known;
    });
    if (absl::IsDeadlineExceeded(waited) && left_s.has_value() && CheckThreadRequest(what).ok()) {
      return absl::DeadlineExceededError(StrCat(what, ": none is there after ", *timeout_s, " s"));
    }
    TESSERA_RETURN_IF_ERROR(waited);
    if (first.has_value()) return *first;
    for (const HandlePtr& handle : handles) {
      if (handle->spec_known) session_.EnsureWatched(*handle);
    }
  }
}

// ---- values -------------------------------------------------------------------------------------

struct Completions::Fetching {
  Fetching(HandlePtr of, ValueCallback told) : handle(std::move(of)), done(std::move(told)) {}

  SessionImpl& session() const { return *handle->session; }
  int64_t bytes() const { return NumElements(handle->spec->shape) * SizeBytes(handle->spec->dtype); }

  const HandlePtr handle;
  const ValueCallback done;
  std::atomic<bool> is_told{false};
  std::shared_ptr<RequestState> of;  // the caller's request, or null
  std::atomic<uint64_t> end_number{0};
  // Guarded by the session's mutex:
  uint64_t number = 0;  // of the request under way
  RequestPtr request;
  std::shared_ptr<HostMemory> memory;
  bool is_second_try = false;
};

void Completions::Fetch(const HandlePtr& handle, ValueCallback done) {
  const auto fetching = std::make_shared<Fetching>(handle, std::move(done));
  if (ThreadRequest() != nullptr) {
    fetching->of = ThreadRequest();
    fetching->end_number = fetching->of->TellEnd([fetching](const absl::Status& why) {
      Tell(fetching, absl::Status(why.code(), AbslView(StrCat("download: ", StdView(why.message())))));
    });
    if (fetching->end_number == 0) return;
  }
  absl::Status refused = session_.Check();
  if (refused.ok() && handle->planned != nullptr) refused = NeverRuns(*handle);
  if (refused.ok()) refused = Recording::Refuse(StrCat("the values of ", handle->SpecText(), " are read"));
  if (refused.ok() && !session_.connection_->IsOwnThread()) refused = session_.AwaitRoom();
  if (!refused.ok()) return Tell(fetching, refused);
  // Without a spec, or without elements, there is nothing to ask for but the tensor's end.
  if (handle->spec_known && fetching->bytes() > 0) return Ask(fetching);
  OnReady(handle, [fetching](const absl::Status& status) {
    if (!status.ok()) return Tell(fetching, status);
    if (fetching->bytes() > 0) return Ask(fetching);
    {
      std::lock_guard<std::mutex> lock(fetching->session().mutex_);
      fetching->memory = HostMemory::MakePrivate(0);
    }
    Tell(fetching, absl::OkStatus());
  });
}

void Completions::Ask(const FetchingPtr& fetching) {
  SessionImpl& session = fetching->session();
  const int64_t bytes = fetching->bytes(), max_inline = static_cast<int64_t>(session.welcome().max_inline_bytes);
  std::shared_ptr<HostMemory> memory;
  if (bytes > max_inline) {
    absl::StatusOr<std::shared_ptr<HostMemory>> made = HostMemory::Make(bytes);
    if (!made.ok()) return Tell(fetching, made.status());
    memory = *std::move(made);
  }
  auto [number, request] = session.NewRequest();
  bool is_over = false;
  {
    std::lock_guard<std::mutex> lock(session.mutex_);
    is_over = request->done;
    fetching->number = number;
    fetching->request = request;
    fetching->memory = std::move(memory);
    request->on_ticket = [fetching, n = number](uint64_t ticket, uint64_t secret) {
      Bring(fetching, n, ticket, secret);
    };
    request->on_done = [fetching, r = request] { Answered(fetching, r); };
  }
  if (is_over) return Tell(fetching, request->status);
  Record record;
  record.kind = Record::Kind::kDownload;
  record.request = number;
  record.handle = fetching->handle->id;
  record.allow_inline = bytes <= max_inline;
  session.Push(std::move(record));
  session.connection_->Flush();
  // A call of Tell in the meantime found no request to end.
  if (fetching->is_told) EndRequest(fetching);
}

void Completions::Bring(const FetchingPtr& fetching, uint64_t number, uint64_t ticket, uint64_t secret) {
  if (fetching->is_told) return;
  SessionImpl& session = fetching->session();
  const SpecPtr spec = fetching->handle->spec;
  std::shared_ptr<HostMemory> memory;
  {
    std::lock_guard<std::mutex> lock(session.mutex_);
    memory = fetching->memory;
  }
  if (memory == nullptr) {
    absl::StatusOr<std::shared_ptr<HostMemory>> made = HostMemory::Make(fetching->bytes());
    if (!made.ok()) return Tell(fetching, made.status());
    std::lock_guard<std::mutex> lock(session.mutex_);
    fetching->memory = memory = *std::move(made);
  }
  const Box box = WholeBox(spec->shape);
  const SessionTransfers::Holders holders = SessionTransfers::SlabRun::HoldersOf(*spec, std::nullopt, box);
  std::vector<WorkerIndex> workers;
  for (const auto& [worker, own] : holders) workers.push_back(worker);
  session.connection_->BeginTransfer(number, ticket, secret, {memory, spec, HostSide::Direction::kDownload}, workers);
  for (const SessionTransfers::SlabRun& run :
       SessionTransfers::SlabRun::OfHolders(holders, box, SizeBytes(spec->dtype), 0)) {
    for (const SessionTransfers::Slab& slab : run.slabs) {
      for (const WorkerIndex worker : run.workers) {
        session.connection_->Copy(number, worker, slab.box, static_cast<uint64_t>(slab.offset_bytes),
                                  [fetching](const absl::Status&) { fetching->session().Progress(); });
      }
    }
  }
  session.connection_->FinishTransfer(number, [fetching](const absl::Status& status) { Brought(fetching, status); });
}

// An inline value, or why there is none: also while workers bring it.
void Completions::Answered(const FetchingPtr& fetching, const RequestPtr& request) {
  if (!request->status.ok()) return Tell(fetching, request->status);
  const int64_t bytes = fetching->bytes();
  if (static_cast<int64_t>(request->bytes.size()) != bytes) {
    return Tell(fetching, absl::InternalError(StrCat("download: ", fetching->handle->SpecText(), " came as ",
                                                     request->bytes.size(), " bytes, not ", bytes)));
  }
  std::shared_ptr<HostMemory> memory = HostMemory::MakePrivate(bytes);
  std::copy(request->bytes.begin(), request->bytes.end(), memory->data());
  {
    std::lock_guard<std::mutex> lock(fetching->session().mutex_);
    fetching->memory = std::move(memory);
  }
  Tell(fetching, absl::OkStatus());
}

// Where a line to a worker broke the coordinator is asked again: it knows where copies live, or who is gone, and why.
void Completions::Brought(const FetchingPtr& fetching, const absl::Status& status) {
  if (fetching->is_told) return;
  SessionImpl& session = fetching->session();
  uint64_t number = 0;
  RequestPtr request;
  bool tries_again = false;
  {
    std::lock_guard<std::mutex> lock(session.mutex_);
    tries_again = absl::IsUnavailable(status) && !std::exchange(fetching->is_second_try, true);
    if (tries_again) {
      number = fetching->number;
      request = std::move(fetching->request);
    }
    // Another thread may have told of the request's end.
    if (request != nullptr) request->on_done = nullptr;
  }
  if (!tries_again || request == nullptr) return Tell(fetching, status);
  session.EndRequest(number, request);
  Ask(fetching);
}

void Completions::EndRequest(const FetchingPtr& fetching) {
  SessionImpl& session = fetching->session();
  uint64_t number = 0;
  RequestPtr request;
  std::function<void()> on_done;  // these hold the fetching, which must not go with the mutex held
  std::function<void(uint64_t, uint64_t)> on_ticket;
  {
    std::lock_guard<std::mutex> lock(session.mutex_);
    number = fetching->number;
    request = std::move(fetching->request);
    if (request != nullptr) on_done.swap(request->on_done);
    if (request != nullptr) on_ticket.swap(request->on_ticket);
  }
  if (request != nullptr) session.EndRequest(number, request);
}

void Completions::Tell(const FetchingPtr& fetching, const absl::Status& status) {
  if (fetching->is_told.exchange(true)) return;
  SessionImpl& session = fetching->session();
  if (fetching->end_number != 0) fetching->of->Forget(fetching->end_number);
  EndRequest(fetching);
  std::shared_ptr<HostMemory> memory;
  {
    std::lock_guard<std::mutex> lock(session.mutex_);
    memory = std::move(fetching->memory);
  }
  if (!status.ok()) return fetching->done(status);
  memory->CloseFd();
  const TensorSpec& spec = *fetching->handle->spec;
  session.counters().downloaded_bytes.Add(fetching->bytes());
  fetching->done(HostArray{spec.dtype, spec.shape, std::move(memory)});
}

}  // namespace tessera
