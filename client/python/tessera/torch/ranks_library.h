#pragma once

// Collectives of tensors on devices by the devices' own library, as NCCL: the ranks compare a call first, and give it
// to the library when it has matched. A call that differs, or that a rank doesn't come to, is an error at all ranks,
// and the library never hears of it.
//
//   library.Push(launch, [&] { return the match, begun; });
//   library.Give(*launch);            // when it has matched: a work of the library, which a stream can wait for
//
// The law of order: all ranks give the calls of a group to the library in the order of the group's calls, whichever
// threads wait for them.
//
// A rank that is gone would let the library wait for ever. While calls of the library are under way, a thread asks
// whether all ranks are there, and aborts the library where one isn't; what runs then ends, and later calls fail.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks_table.h"

namespace tessera::torch_ranks {

// A call of the library: its tensors have one dim, and are contiguous.
struct Launch {
  Launch(const TesseraCall& call, at::Tensor input, at::Tensor output, c10::Stream stream)
      : call(call), input(std::move(input)), output(std::move(output)), stream(stream) {}

  const TesseraCall call;
  const at::Tensor input, output;
  const c10::Stream stream;  // which was the current one when the call was made
  TesseraWork* match = nullptr;
  bool is_over = false;  // given, or failed
  std::string error;     // why it wasn't given
  c10::intrusive_ptr<c10d::Work> work;
  std::string end;  // why the library was ended while it ran
};

class Library {
 public:
  using WhyGone = std::function<std::string()>;  // empty: all ranks are there

  Library(const TesseraRanks* table, c10::intrusive_ptr<c10d::Backend> backend, WhyGone why_gone,
          std::function<void(const std::string&)> warn)
      : table_(table), backend_(std::move(backend)), why_gone_(std::move(why_gone)), warn_(std::move(warn)) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { End(); }

  // The group ends: nobody asks for its ranks any more when this returns.
  void End() {
    Abort("tessera: the process group was shut down");
    std::thread watch;
    {
      const std::lock_guard lock(mutex_);
      watch.swap(watch_);
    }
    if (!watch.joinable()) return;
    std::optional<pybind11::gil_scoped_release> released;  // the thread may ask for the interpreter's lock, to warn
    if (Py_IsInitialized() && PyGILState_Check()) released.emplace();
    watch.join();
  }

  // Whether the library has the call's reduction and dtype: the same answer at all ranks. Bytes that only move have
  // any.
  static bool Takes(const TesseraCall& call) {
    if (call.kind >= TESSERA_BARRIER) return false;
    if (!Reduces(call)) return true;
    const bool is_known = call.dtype == TESSERA_I8 || call.dtype == TESSERA_U8 || call.dtype == TESSERA_I32 ||
                          call.dtype == TESSERA_I64 || (call.dtype >= TESSERA_F16 && call.dtype <= TESSERA_F64);
    return is_known && call.reduce_op < TESSERA_BAND;
  }

  // `begin` begins the match, in the order of the group's calls.
  template <class Begin>
  void Push(const std::shared_ptr<Launch>& launch, Begin begin) {
    const std::lock_guard pushing(pushing_);
    launch->match = begin();
    const std::lock_guard lock(mutex_);
    queue_.push_back(launch);
  }

  // Gives the library all calls up to this one, whose match is over. Calls that haven't matched are left out.
  void Give(Launch& launch) {
    const std::lock_guard giving(giving_);
    while (!launch.is_over) {
      std::shared_ptr<Launch> front;
      {
        const std::lock_guard lock(mutex_);
        if (queue_.empty()) return;
        front = std::move(queue_.front());
        queue_.pop_front();
      }
      GiveOne(front);
      front->is_over = true;
    }
  }

  // Why the library was ended while the call ran; empty: it wasn't.
  std::string EndOf(const Launch& launch) const {
    const std::lock_guard lock(mutex_);
    return launch.end;
  }

  void Abort(const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      if (is_aborted_) return;
      is_aborted_ = true;
      failure_ = why;
      for (const std::shared_ptr<Launch>& launch : under_way_) {
        if (!launch->work->isCompleted()) launch->end = why;
      }
    }
    changed_.notify_all();
    backend_->abort();
  }

 private:
  static constexpr std::chrono::milliseconds kLook{200};  // docs/limits.md: member_look

  void GiveOne(const std::shared_ptr<Launch>& launch) {
    char* error = nullptr;
    if (table_->wait(launch->match, -1, &error) != 0) {
      launch->error = error == nullptr ? "tessera: the call failed without a reason" : error;
      if (error != nullptr) table_->free_text(error);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      launch->error = failure_;
    }
    if (!launch->error.empty()) return;
    try {
      const at::NoGradGuard no_grad;
      const c10::StreamGuard guard(launch->stream);
      launch->work = Run(launch->call, launch->input, launch->output);
      Watch(launch);
    } catch (const c10::Error& thrown) {
      launch->error = c10::str("tessera: the devices' library: ", thrown.what_without_backtrace());
    } catch (const std::exception& thrown) {
      launch->error = c10::str("tessera: the devices' library: ", thrown.what());
    }
  }

  static bool Reduces(const TesseraCall& call) {
    return call.kind == TESSERA_ALL_REDUCE || call.kind == TESSERA_REDUCE || call.kind == TESSERA_REDUCE_SCATTER;
  }
  static c10d::ReduceOp OpOf(const TesseraCall& call) {
    switch (call.reduce_op) {
      case TESSERA_AVG: return c10d::ReduceOp::AVG;
      case TESSERA_MIN: return c10d::ReduceOp::MIN;
      case TESSERA_MAX: return c10d::ReduceOp::MAX;
      case TESSERA_PRODUCT: return c10d::ReduceOp::PRODUCT;
      default: return c10d::ReduceOp::SUM;
    }
  }
  template <class Options>
  static Options OptionsOf(const TesseraCall& call) {
    Options options;
    options.timeout = std::chrono::milliseconds(call.timeout_us / 1000);
    if constexpr (requires { options.rootRank; }) options.rootRank = call.peer;
    if constexpr (requires { options.reduceOp; }) options.reduceOp = OpOf(call);
    return options;
  }
  // A part for each rank.
  std::vector<at::Tensor> PartsOf(const at::Tensor& whole) const {
    if (!whole.defined()) return {};
    return whole.view({backend_->getSize(), -1}).unbind(0);
  }

  c10::intrusive_ptr<c10d::Work> Run(const TesseraCall& call, const at::Tensor& given, const at::Tensor& taken) {
    const auto bits = [&](const at::Tensor& tensor) {
      return tensor.defined() && !Reduces(call) ? tensor.view(at::kByte) : tensor;
    };
    at::Tensor input = bits(given), output = bits(taken);
    if (input.defined() && output.defined() && (call.kind == TESSERA_ALL_REDUCE || call.kind == TESSERA_REDUCE)) {
      if (!input.is_same(output)) output.copy_(input);
      input = output;
    }
    std::vector<at::Tensor> one = {input.defined() ? input : output};
    switch (call.kind) {
      case TESSERA_ALL_REDUCE: return backend_->allreduce(one, OptionsOf<c10d::AllreduceOptions>(call));
      case TESSERA_REDUCE: return backend_->reduce(one, OptionsOf<c10d::ReduceOptions>(call));
      case TESSERA_BROADCAST: return backend_->broadcast(one, OptionsOf<c10d::BroadcastOptions>(call));
      case TESSERA_ALL_GATHER: return backend_->_allgather_base(output, input, OptionsOf<c10d::AllgatherOptions>(call));
      case TESSERA_GATHER: {
        std::vector<std::vector<at::Tensor>> parts;
        if (output.defined()) parts.push_back(PartsOf(output));
        return backend_->gather(parts, one, OptionsOf<c10d::GatherOptions>(call));
      }
      case TESSERA_SCATTER: {
        std::vector<std::vector<at::Tensor>> parts;
        if (input.defined()) parts.push_back(PartsOf(input));
        std::vector<at::Tensor> outputs = {output};
        return backend_->scatter(outputs, parts, OptionsOf<c10d::ScatterOptions>(call));
      }
      case TESSERA_REDUCE_SCATTER:
        return backend_->_reduce_scatter_base(output, input, OptionsOf<c10d::ReduceScatterOptions>(call));
      default: {
        std::vector<int64_t> equal;
        return backend_->alltoall_base(output, input, equal, equal, OptionsOf<c10d::AllToAllOptions>(call));
      }
    }
  }

  void Watch(std::shared_ptr<Launch> launch) {
    const std::lock_guard lock(mutex_);
    under_way_.push_back(std::move(launch));
    if (!is_aborted_ && !watch_.joinable()) watch_ = std::thread([this] { RunWatch(); });
    changed_.notify_all();
  }
  void RunWatch() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_aborted_ || !under_way_.empty(); });
      if (is_aborted_) return;
      changed_.wait_for(lock, kLook, [this] { return is_aborted_; });
      while (!under_way_.empty() && under_way_.front()->work->isCompleted()) under_way_.pop_front();
      if (is_aborted_ || under_way_.empty()) continue;
      lock.unlock();
      if (const std::string why = why_gone_(); !why.empty()) {
        warn_(why);
        Abort(why);
      }
      lock.lock();
    }
  }

  const TesseraRanks* const table_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const WhyGone why_gone_;
  const std::function<void(const std::string&)> warn_;
  std::mutex pushing_, giving_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Launch>> queue_;
  std::deque<std::shared_ptr<Launch>> under_way_;
  bool is_aborted_ = false;
  std::string failure_;
  std::condition_variable changed_;
  std::thread watch_;
};

}  // namespace tessera::torch_ranks
