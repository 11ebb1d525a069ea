#pragma once

// The calls of the table behind one work of torch, and the memory that they need until they are done. Not the work
// itself (ranks_work.h): the calls outlive it, since torch's users may drop a work that still runs.
//
// The law: inputs and outputs stay allocated until their call is done. A caller that drops calls which run says so by
// KeepUntilDone.
//
//   auto calls = std::make_shared<Calls>(member);
//   calls->Start(call, outputs);                 // throws where the engine refuses the call
//   if (calls->Wait(-1).outcome == Outcome::kDone) calls->CopyOut();

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ranks_libraries.h"
#include "ranks_library.h"
#include "ranks_table.h"

namespace tessera::torch_ranks {

enum class Outcome { kDone, kTimeIsUp, kFailed };
struct Waited {
  Outcome outcome = Outcome::kDone;
  std::string error;
};

// torch's programs and tests look for "Timed out" with its capital.
inline std::string WithTimedOut(std::string error, int64_t timeout_us) {
  if (error.find("timed out after") == std::string::npos) return error;
  return error + "; Timed out waiting " + std::to_string(timeout_us / 1000) + "ms";
}

// Whether a call failed because its own rank left the group.
inline bool IsOfLeaving(const std::string& error) { return error.find("has ended at this rank") != std::string::npos; }

[[noreturn]] inline void Throw(const std::string& error) { C10_THROW_ERROR(DistBackendError, error); }

// A rank's membership in a group, which tessera.distributed made. `leave` ends it.
class Member {
 public:
  Member(const TesseraRanks* table, TesseraGroup* group, std::function<void()> leave, Libraries::Maker maker)
      : table_(table), group_(group), leave_(std::move(leave)), libraries_(table, group, std::move(maker)) {
    TORCH_CHECK(table->version == TESSERA_RANKS_VERSION,
                "tessera: the backend of torch.distributed was compiled for version ", TESSERA_RANKS_VERSION,
                " of the library's table, which is ", table->version, "; compile it again");
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    libraries_.End();
    leave_();
  }

  const TesseraRanks* table() const { return table_; }
  TesseraGroup* group() const { return group_; }
  Libraries& libraries() { return libraries_; }

 private:
  const TesseraRanks* table_;
  TesseraGroup* group_;
  std::function<void()> leave_;
  Libraries libraries_;
};

class Calls : public std::enable_shared_from_this<Calls> {
 public:
  // The calls don't keep the rank in the group: a work may outlive it.
  explicit Calls(const std::shared_ptr<Member>& member) : member_(member), table_(member->table()) {}
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  ~Calls() {
    for (const Running& call : running_) table_->release(call.work);
  }

  // Says of the calls that follow whether somebody waits for them at once.
  void set_waited_for(bool is_waited_for) { is_waited_for_ = is_waited_for; }

  // `input` and `output` own the call's memory. Throws DistBackendError where the call can't begin.
  void Start(const TesseraCall& call, const at::Tensor& input = {}, const at::Tensor& output = {}) {
    running_.push_back({Begin(call), call.timeout_us, nullptr, nullptr});
    for (const at::Tensor& holder : {input, output}) {
      if (holder.defined()) holders_.push_back(holder);
    }
  }

  // A call on devices, which the library runs when the ranks have compared it.
  void StartOnDevice(const TesseraCall& call, const at::Tensor& input, const at::Tensor& output,
                     std::shared_ptr<Library> library) {
    UseStreamOf((input.defined() ? input : output).device());
    auto launch = std::make_shared<Launch>(call, input, output, *stream_);
    library->Push(launch, [&] { return Begin(call); });
    running_.push_back({launch->match, call.timeout_us, std::move(launch), std::move(library)});
  }
  bool HasLaunches() const {
    return std::any_of(running_.begin(), running_.end(), [](const Running& call) { return call.launch != nullptr; });
  }
  std::shared_ptr<Library> LibraryOf(const TesseraCall& call, c10::Device device) const {
    const std::shared_ptr<Member> member = member_.lock();
    if (!member) Throw("tessera: the process group was shut down");
    return Library::Takes(call) ? member->libraries().Of(device, call.timeout_us) : nullptr;
  }

  // When all calls are done, `from` is written to `to`.
  void CopyWhenDone(at::Tensor to, at::Tensor from) { copies_.emplace_back(std::move(to), std::move(from)); }
  // The same of memory of the host and a tensor of a device, before the copies above, which may read it.
  void LandWhenDone(at::Tensor to, at::Tensor from) { landings_.emplace_back(std::move(to), std::move(from)); }
  // The calls write to this device behind all that its current stream was given until now.
  void UseStreamOf(c10::Device device) {
    if (!stream_.has_value()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    if (!began_.has_value()) began_.emplace(device.type());
    began_->record(*stream_);
  }
  // Tensors on devices are written by a stream of its own, which AwaitOutputs waits for.
  void CopyOut() {
    const at::NoGradGuard no_grad;
    std::optional<c10::StreamGuard> guard;
    if (began_.has_value()) {
      side_ = c10::impl::VirtualGuardImpl(stream_->device_type()).getStreamFromGlobalPool(stream_->device());
      guard.emplace(*side_);
      began_->block(*side_);
    }
    for (const Running& call : running_) {
      if (call.launch != nullptr) call.launch->work->wait();
    }
    for (auto& [to, from] : landings_) to.copy_(from, /*non_blocking=*/true);
    for (auto& [to, from] : copies_) to.copy_(from.view(to.sizes()));
    if (began_.has_value()) {
      delivered_.emplace(stream_->device_type());
      delivered_->record(*side_);
      for (const auto& [to, from] : landings_) to.record_stream(*side_);
      for (const auto& [to, from] : copies_) {
        to.record_stream(*side_);
        from.record_stream(*side_);
      }
    }
    landings_.clear();
    copies_.clear();
  }
  // After CopyOut: the current stream goes on when the outputs are there. Throws where the library was ended meanwhile.
  void AwaitOutputs() const {
    if (!delivered_.has_value()) return;
    for (const Running& call : running_) {
      const std::string end = call.launch == nullptr ? std::string() : call.library->EndOf(*call.launch);
      if (!end.empty()) Throw(end);
    }
    delivered_->block(c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
  }
  bool AreOutputsThere() const { return !delivered_.has_value() || delivered_->query(); }
  // Where the outputs are written; nothing on the CPU.
  const std::optional<c10::Stream>& side() const { return side_; }

  bool AllDone() const {
    return std::all_of(running_.begin(), running_.end(),
                       [&](const Running& call) { return table_->is_done(call.work); });
  }

  // For so many microseconds at most, negative: as long as the calls' own time-outs let them. The first failure ends
  // it.
  Waited Wait(int64_t timeout_us) const {
    const auto start = std::chrono::steady_clock::now();
    for (const Running& call : running_) {
      int64_t left_us = timeout_us;
      if (timeout_us >= 0) {
        const auto gone = std::chrono::steady_clock::now() - start;
        left_us =
            std::max<int64_t>(0, timeout_us - std::chrono::duration_cast<std::chrono::microseconds>(gone).count());
      }
      char* error = nullptr;
      const int outcome = table_->wait(call.work, left_us, &error);
      if (outcome == 1) return {Outcome::kTimeIsUp, {}};
      Give(call);
      if (outcome != 0) return {Outcome::kFailed, WithTimedOut(Taken(error), call.timeout_us)};
      if (call.launch != nullptr && !call.launch->error.empty()) return {Outcome::kFailed, call.launch->error};
    }
    return {};
  }

  // When all are done: what an earlier message of the rank did wrong, which is told late. Empty: nothing.
  std::string Complaint() const {
    char* const text = running_.empty() ? nullptr : table_->complaint(running_.front().work);
    return text == nullptr ? std::string() : Taken(text);
  }

  // The rank that the first call, a recv that is done, received from.
  int32_t Source() const { return running_.empty() ? -1 : table_->source(running_.front().work); }

  // Calls `then` once when all are done, on any thread, and keeps the memory until then. Once the rank has left the
  // group, nobody calls back, and all that was pending has failed.
  void WhenAllDone(std::function<void()> then) {
    const std::shared_ptr<Member> member = member_.lock();
    if (!member) {
      Wait(-1);
      then();
      return;
    }
    auto* waiting = new Waiting{shared_from_this(), {static_cast<int64_t>(running_.size()) + 1}, std::move(then)};
    for (const Running& call : running_) table_->when_done(call.work, &OneIsDone, waiting);
    OneIsDone(waiting, nullptr);
  }
  void KeepUntilDone() {
    if (!AllDone() || HasLaunches()) WhenAllDone([] {});
  }

 private:
  struct Running {
    TesseraWork* work;
    int64_t timeout_us;
    std::shared_ptr<Launch> launch;  // null: of memory of the host
    std::shared_ptr<Library> library;
  };
  struct Waiting {
    std::shared_ptr<Calls> calls;
    std::atomic<int64_t> missing;
    std::function<void()> then;
  };
  static void OneIsDone(void* context, const char*) {
    auto* waiting = static_cast<Waiting*>(context);
    if (waiting->missing.fetch_sub(1) > 1) return;
    for (const Running& call : waiting->calls->running_) Give(call);
    waiting->then();
    delete waiting;
  }
  static void Give(const Running& call) {
    if (call.launch != nullptr) call.library->Give(*call.launch);
  }
  TesseraWork* Begin(TesseraCall call) {
    call.is_waited_for = is_waited_for_ ? 1 : 0;
    const std::shared_ptr<Member> member = member_.lock();
    if (!member) Throw("tessera: the process group was shut down");
    char* error = nullptr;
    TesseraWork* const work = table_->start(member->group(), &call, &error);
    if (work == nullptr) Throw(WithTimedOut(Taken(error), call.timeout_us));
    return work;
  }
  std::string Taken(char* error) const {
    std::string text = error == nullptr ? "tessera: the call failed without a reason" : error;
    if (error != nullptr) table_->free_text(error);
    return text;
  }

  const std::weak_ptr<Member> member_;
  const TesseraRanks* table_;
  std::vector<Running> running_;
  std::vector<at::Tensor> holders_;
  bool is_waited_for_ = false;
  std::optional<c10::Stream> stream_, side_;
  std::optional<c10::Event> began_, delivered_;
  std::vector<std::pair<at::Tensor, at::Tensor>> landings_, copies_;
};

}  // namespace tessera::torch_ranks
