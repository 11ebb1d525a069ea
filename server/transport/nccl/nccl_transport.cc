#include "server/transport/nccl/nccl_transport.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/transport/nccl/nccl_collectives.h"
#include "server/transport/nccl/pair.h"

namespace tessera {
namespace {

constexpr std::string_view kAddressEnd = ":tessera-nccl-1";
constexpr std::chrono::microseconds kPoll(20);  // how often communicators under way are looked at

// NCCL loads its kernels with the first communicator of a process, and a driver may wait for all streams then. One may
// stand until the very message comes that the communicator is for. So the first one is made when there is no message
// yet, of this worker alone.
absl::Status LoadKernels(const Nccl& nccl, const cuda::Gpu& gpu) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  ncclUniqueId id;
  TESSERA_RETURN_IF_ERROR(nccl.Check("ncclGetUniqueId", nccl.GetUniqueId(&id)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;  // nobody else is waited for
  config.minCTAs = config.maxCTAs = 1;
  ncclComm_t comm = nullptr;
  TESSERA_RETURN_IF_ERROR(nccl.Check("ncclCommInitRankConfig", nccl.CommInitRankConfig(&comm, 1, id, 0, &config)));
  return nccl.Check("ncclCommDestroy", nccl.CommDestroy(comm));
}

// Tasks for the one thread. It outlives the transport where the control's callbacks do.
class Mailbox {
 public:
  void Put(NcclParts::Task task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    wake_.notify_one();
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    wake_.notify_one();
  }
  // False when it is closed and empty. With `is_busy` it waits for a moment only.
  bool Take(bool is_busy, std::deque<NcclParts::Task>& tasks) {
    std::unique_lock lock(mutex_);
    const auto is_there = [this] { return is_closed_ || !tasks_.empty(); };
    is_busy ? (void)wake_.wait_for(lock, kPoll, is_there) : wake_.wait(lock, is_there);
    tasks = std::exchange(tasks_, {});
    return !tasks.empty() || !is_closed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<NcclParts::Task> tasks_;
  bool is_closed_ = false;
};

class NcclTransport final : public MessageTransport {
 public:
  NcclTransport(WorkerIndex self, const Nccl* nccl, const cuda::Gpu& gpu, std::unique_ptr<MessageTransport> control)
      : control_(std::move(control)), slots_(gpu, sizeof(uint64_t)) {
    parts_.self = self;
    parts_.nccl = nccl;
    parts_.gpu = gpu;
    parts_.control = control_.get();
    parts_.slots = &slots_;
    parts_.run = [mailbox = mailbox_](NcclParts::Task task) { mailbox->Put(std::move(task)); };
    parts_.hear = [this](WorkerIndex from, const NcclRecord& record) { collectives_.Hear(from, record); };
    parts_.link_broke = [this](WorkerIndex peer, const absl::Status& why) { collectives_.LinkBroke(peer, why); };
    // The words of streams are there before one has a kernel: a driver may have memory calls wait for that.
    if (gpu.Enter().ok()) {
      if (absl::StatusOr<std::byte*> word = slots_.Take(); word.ok()) slots_.Give(*word);
    }
    thread_ = std::thread([this] { Loop(); });
  }
  ~NcclTransport() override {
    mailbox_->Close();
    thread_.join();
    control_ = nullptr;
  }

  std::string Address() const override { return StrCat(control_->Address(), kAddressEnd); }

  absl::Status Connect(WorkerIndex peer, std::string_view address) override {
    const bool has_nccl = address.ends_with(kAddressEnd);
    if (has_nccl) address.remove_suffix(kAddressEnd.size());
    // Messages that were prepared for it may be in the GPU's memory, which the control can't read.
    if (!has_nccl && TakesDeviceMemory(peer)) {
      return absl::FailedPreconditionError(
          StrCat("worker ", peer.value, ": it had messages by NCCL, and has come back without"));
    }
    TESSERA_RETURN_IF_ERROR(control_->Connect(peer, address));
    {
      const std::lock_guard lock(mutex_);
      (has_nccl ? with_ : without_).insert(peer);
      if (has_nccl) without_.erase(peer);
    }
    if (!has_nccl) return absl::OkStatus();
    mailbox_->Put([this, peer] {
      std::shared_ptr<NcclPair>& pair = pairs_[peer];
      if (pair != nullptr && !pair->is_closed()) return;
      if (pair != nullptr) leaving_.push_back(std::move(pair));
      pair = std::make_shared<NcclPair>(parts_, peer);
    });
    return absl::OkStatus();
  }
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override {
    if (IsWithout(peer)) return control_->Send(peer, tag, bytes, std::move(done));
    Post(peer, {tag, true, const_cast<std::byte*>(bytes.data()), bytes.size(), std::move(done)});
  }
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override {
    if (IsWithout(peer)) return control_->Receive(peer, tag, bytes, std::move(done));
    Post(peer, {tag, false, bytes.data(), bytes.size(), std::move(done)});
  }
  bool TakesDeviceMemory(WorkerIndex peer) override {
    const std::lock_guard lock(mutex_);
    return with_.count(peer) != 0;
  }
  Collectives* collectives() override { return &collectives_; }
  void MarkDead(WorkerIndex peer) override {
    control_->MarkDead(peer);
    mailbox_->Put([this, peer] {
      const auto found = pairs_.find(peer);
      if (found == pairs_.end() || found->second->is_closed()) return;
      found->second->Close(absl::UnavailableError(StrCat("worker ", peer.value, ": lost")));
      collectives_.Lost(peer);
    });
  }

 private:
  bool IsWithout(WorkerIndex peer) {
    const std::lock_guard lock(mutex_);
    return without_.count(peer) != 0;
  }
  void Post(WorkerIndex peer, NcclPost post) {
    mailbox_->Put([this, peer, post = std::move(post)]() mutable {
      const auto found = pairs_.find(peer);
      if (found != pairs_.end()) return found->second->Add(std::move(post));
      post.done(absl::UnavailableError(StrCat("worker ", peer.value, ": not connected")));
    });
  }

  bool Progress() {
    bool is_busy = false;
    for (auto& [peer, pair] : pairs_) is_busy = pair->Progress() || is_busy;
    std::erase_if(leaving_, [](const auto& pair) { return !pair->Progress(); });
    is_busy = collectives_.Progress() || is_busy;
    return is_busy || !leaving_.empty();
  }

  void Loop() {
    parts_.gpu.Enter().IgnoreError();  // a call that needs it says so
    bool is_busy = false;
    std::deque<NcclParts::Task> tasks;
    while (mailbox_->Take(is_busy, tasks)) {
      for (NcclParts::Task& task : tasks) task();
      is_busy = Progress();
    }
    collectives_.Close();
    for (auto& [peer, pair] : pairs_) {
      if (!pair->is_closed()) pair->Close(absl::CancelledError("transport: closed"));
    }
    while (Progress()) std::this_thread::yield();
    pairs_.clear();
  }

  std::unique_ptr<MessageTransport> control_;
  cuda::PinnedSlots slots_;
  NcclParts parts_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::mutex mutex_;
  std::set<WorkerIndex> with_;     // peers that have, or had, NCCL; guarded by mutex_
  std::set<WorkerIndex> without_;  // peers that have none; likewise
  // Used by the thread.
  std::map<WorkerIndex, std::shared_ptr<NcclPair>> pairs_;
  NcclCollectives collectives_{parts_, [this](WorkerIndex peer) -> NcclPair* {
                                 const auto found = pairs_.find(peer);
                                 return found == pairs_.end() ? nullptr : found->second.get();
                               }};
  std::vector<std::shared_ptr<NcclPair>> leaving_;  // whose peers came anew, until their streams have passed
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MessageTransport>> MakeNcclTransport(const NcclOptions& options,
                                                                    std::unique_ptr<MessageTransport> control) {
  TESSERA_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Load());
  TESSERA_ASSIGN_OR_RETURN(const cuda::Gpu gpu, cuda::Gpu::OpenFor(*driver, options.gpu, options.self.value));
  int gpus = 0;
  TESSERA_RETURN_IF_ERROR(driver->Check("cuDeviceGetCount", driver->DeviceGetCount(&gpus)));
  if (options.workers_on_host > gpus) {
    setenv("NCCL_HOSTID", StrCat("tessera-worker-", options.self.value).c_str(), /*overwrite=*/0);
  }
  TESSERA_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::Load());
  TESSERA_RETURN_IF_ERROR(LoadKernels(*nccl, gpu));
  gpu.use->ExpectStreams();  // one for each peer
  return std::make_unique<NcclTransport>(options.self, nccl, gpu, std::move(control));
}

}  // namespace tessera
