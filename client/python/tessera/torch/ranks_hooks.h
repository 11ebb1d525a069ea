#pragma once

// Functions of the user's that hear when a call of a group is done, and before the group is aborted. A group has one,
// which its works share. torch's flight recorder is such a function of every group, so a hook that fires costs each
// call.
//
// The law: no lock is held while a hook runs, so a hook may ask for the interpreter's lock and call the group.
//
// torch 2.11 has one hook of completions, and none of aborts. torch says that it has those of aborts by
// C10D_BACKEND_HAS_HOOKS; it has hooks of completions by number from 2.15 on.

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace tessera::torch_ranks {

using OnCompletion = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

#define TESSERA_HAS_COMPLETION_HOOKS (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215)

using AbortHook = std::function<void()>;
#if TESSERA_HAS_COMPLETION_HOOKS
using CompletionHook = c10d::CompletionHook;
#else
struct Completion {
  uint64_t key;
  float ms;
};
using CompletionHook = std::function<void(const Completion&)>;
#endif

class Hooks {
 public:
  void AddCompletion(int64_t id, CompletionHook hook) { Add(completion_, id, std::move(hook)); }
  void RemoveCompletion(int64_t id) { Remove(completion_, id); }
  void AddAbort(int64_t id, AbortHook hook) { Add(abort_, id, std::move(hook)); }
  void RemoveAbort(int64_t id) { Remove(abort_, id); }
  void SetOnCompletion(OnCompletion hook) {
    const std::lock_guard lock(mutex_);
    on_completion_ = std::move(hook);
    watches_ = true;
  }
  // Whether somebody hears of calls that nobody waits for.
  bool watches() const { return watches_; }

  // Calls that nobody waits for, and of which somebody hears.
  void WatchBegan() {
    const std::lock_guard lock(mutex_);
    ++watched_;
  }
  void WatchEnded() {
    const std::lock_guard lock(mutex_);
    if (--watched_ == 0) none_watched_.notify_all();
  }
  void AwaitWatched() {
    std::unique_lock lock(mutex_);
    none_watched_.wait(lock, [this] { return watched_ == 0; });
  }

  void Completed(uint64_t key, const c10d::WorkInfo& info) const {
    if (!watches_) return;
    OnCompletion one;
    {
      const std::lock_guard lock(mutex_);
      one = on_completion_;
    }
    const float ms = std::chrono::duration<float, std::milli>(info.timeFinished - info.timeStarted).count();
    for (const auto& [id, hook] : Copy(completion_)) hook({key, ms});
    if (one) one(std::make_shared<c10d::WorkInfo>(info));
  }
  void Aborting() const {
    for (const auto& [id, hook] : Copy(abort_)) hook();
  }
  // The group goes on: nothing is aborted, so the abort hooks hear of nothing.
  void Failed(const std::string& text) {
    const auto has = [&text](const char* words) { return text.find(words) != std::string::npos; };
    error_ = has("imed out")  ? c10d::ErrorType::TIMEOUT
             : has("is gone") ? c10d::ErrorType::REMOTE_ERROR
                              : c10d::ErrorType::COMM_ERROR;
  }
  c10d::ErrorType error() const { return error_; }
  void ForgetError() { error_ = c10d::ErrorType::SUCCESS; }

 private:
  template <class Hook>
  void Add(std::map<int64_t, Hook>& hooks, int64_t id, Hook hook) {
    const std::lock_guard lock(mutex_);
    hooks[id] = std::move(hook);
    watches_ = on_completion_ != nullptr || !completion_.empty();
  }
  template <class Hook>
  void Remove(std::map<int64_t, Hook>& hooks, int64_t id) {
    const std::lock_guard lock(mutex_);
    hooks.erase(id);
    watches_ = on_completion_ != nullptr || !completion_.empty();
  }
  template <class Hook>
  std::map<int64_t, Hook> Copy(const std::map<int64_t, Hook>& hooks) const {
    const std::lock_guard lock(mutex_);
    return hooks;
  }

  mutable std::mutex mutex_;
  std::map<int64_t, CompletionHook> completion_;
  std::map<int64_t, AbortHook> abort_;
  OnCompletion on_completion_;
  int64_t watched_ = 0;
  std::condition_variable none_watched_;
  std::atomic<bool> watches_ = false;
  std::atomic<c10d::ErrorType> error_ = c10d::ErrorType::SUCCESS;
};

// The backend's methods about its hooks, and about the last call that failed.
class BackendWithHooks : public c10d::Backend {
 public:
  using Backend::Backend;

  c10d::ErrorType getError() override { return hooks_->error(); }
  void registerOnCompletionHook(OnCompletion&& hook) override {
    onCompletionHook_ = hook;  // hasHooks looks for it
    hooks_->SetOnCompletion(std::move(hook));
  }
  void waitForPendingWorks() override { hooks_->AwaitWatched(); }

#ifdef C10D_BACKEND_HAS_HOOKS
  bool supportsAbortHooks() const { return true; }  // torch 2.14 has no such method to override
  void registerAbortHook(int64_t id, AbortHook hook) override { hooks_->AddAbort(id, std::move(hook)); }
  void unregisterAbortHook(int64_t id) override { hooks_->RemoveAbort(id); }
#endif
#if TESSERA_HAS_COMPLETION_HOOKS
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, CompletionHook hook) override { hooks_->AddCompletion(id, std::move(hook)); }
  void unregisterCompletionHook(int64_t id) override { hooks_->RemoveCompletion(id); }
#endif

 protected:
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
};

}  // namespace tessera::torch_ranks
