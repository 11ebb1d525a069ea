#pragma once

// torch's Work for calls of the table, which torch.distributed returns for an async call. It waits on the caller's
// thread, by the table's wait; a thread of the library completes it only where somebody asked for its future.
//
//   auto work = c10::make_intrusive<RanksWork>(rank, OpType::ALLREDUCE, "tessera:all_reduce", inputs, outputs, calls,
//   7); work->wait();    // throws DistBackendError where a call failed

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ranks_calls.h"
#include "ranks_device.h"
#include "ranks_hooks.h"
#include "ranks_python.h"

namespace tessera::torch_ranks {

class RanksWork final : public c10d::Work {
 public:
  RanksWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
            std::vector<at::Tensor> outputs, std::shared_ptr<Calls> calls, uint64_t sequence,
            std::shared_ptr<Hooks> hooks)
      : Work(rank, type, title, inputs),
        title_(title),
        outputs_(std::move(outputs)),
        calls_(std::move(calls)),
        sequence_(sequence),
        hooks_(std::move(hooks)) {}
  // The calls of a work that nobody waits for go on, and write their outputs. One that fails is a warning of Python's.
  ~RanksWork() override {
    if (IsComplete()) {
      calls_->KeepUntilDone();  // a call may have failed while others run
      if (!failure_.empty() && !is_told_) Warn(title_, failure_);
      return;
    }
    calls_->WhenAllDone([calls = calls_.get(), title = title_] {
      const Waited waited = calls->Wait(0);
      if (waited.outcome == Outcome::kDone) calls->CopyOut();
      if (waited.outcome == Outcome::kFailed) Warn(title, waited.error);
    });
  }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool has_limit = timeout != kNoTimeout;
    if (!IsComplete()) {
      Waited waited = calls_->Wait(has_limit ? std::chrono::microseconds(timeout).count() : -1);
      if (waited.outcome == Outcome::kTimeIsUp) {
        Throw(c10::str(title_, " is not done: Timed out waiting ", timeout.count(), "ms for it"));
      }
      Complete(waited);
    }
    is_told_ = true;
    const std::lock_guard lock(mutex_);
    if (exception_) std::rethrow_exception(exception_);
    calls_->AwaitOutputs();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

  bool isCompleted() override {
    if (!IsComplete() && calls_->AllDone()) Complete(calls_->Wait(-1));
    return IsComplete() && calls_->AreOutputsThere();
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  int sourceRank() const override { return calls_->Source(); }
  uint64_t getSequencenumber() const override { return sequence_; }
  uint64_t getCompletionKey() const { return key_; }  // torch 2.11 has no such method to override
  // Hooks hear of its end also where nobody waits for it.
  void Watch() {
    hooks_->WatchBegan();
    calls_->WhenAllDone([self = c10::intrusive_ptr<RanksWork>::reclaim_copy(this)] {
      self->Complete(self->calls_->Wait(-1));
      self->hooks_->WatchEnded();
    });
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    bool is_first = false;
    {
      const std::lock_guard lock(completing_);
      if (!future_) {
        future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                           DevicesOf(outputs_));
        is_first = true;
      }
    }
    if (is_first && IsComplete()) {
      MarkFuture();
    } else if (is_first) {
      calls_->WhenAllDone([self = c10::intrusive_ptr<RanksWork>::reclaim_copy(this)] {
        self->Complete(self->calls_->Wait(-1));
        self->MarkFuture();
      });
    }
    return future_;
  }

 private:
  bool IsComplete() const {
    const std::lock_guard lock(mutex_);
    return completed_;
  }
  static uint64_t NextKey() {
    static std::atomic<uint64_t> last = 0;
    return ++last;
  }

  // Nobody waited for the work. Failures that a rank causes by leaving its group are no news.
  static void Warn(const std::string& title, const std::string& failure) {
    if (!IsOfLeaving(failure)) WarnInPython(title + ", for which nobody waited, failed: " + failure);
  }

  // One thread copies the outputs; the others that found the calls done wait for it.
  void Complete(const Waited& waited) {
    std::exception_ptr error;
    std::string why = waited.error;
    {
      const std::lock_guard lock(completing_);
      if (IsComplete()) return;
      try {
        if (waited.outcome == Outcome::kFailed) Throw(waited.error);
        calls_->CopyOut();
        why = calls_->Complaint();
        if (!why.empty()) Throw(why);
      } catch (...) {
        error = std::current_exception();
      }
      if (error) failure_ = why;
      finish(error);
    }
    if (error) {
      hooks_->Failed(why);
    } else if (hooks_->watches()) {
      const auto now = std::chrono::steady_clock::now();
      hooks_->Completed(key_, {opType_, sequence_, began_, now, now - began_});
    }
  }

  // Holds no lock: the future runs the user's callbacks here.
  void MarkFuture() {
    is_told_ = true;
    const c10::OptionalStreamGuard guard(calls_->side());  // which the future's waiters wait for
    std::exception_ptr error = exception();
    if (error) {
      future_->setErrorIfNeeded(error);
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
  }

  const std::string title_;
  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<Calls> calls_;
  const uint64_t sequence_;
  const std::shared_ptr<Hooks> hooks_;
  const uint64_t key_ = NextKey();
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::atomic<bool> is_told_ = false;  // whether somebody has been given the outcome
  std::string failure_;
  std::mutex completing_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tessera::torch_ranks
