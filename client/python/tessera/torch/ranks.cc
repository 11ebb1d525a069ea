// torch.distributed's backend `tessera`: the collectives of ranks whose tensors lie in their own memory, as calls of
// the table of functions that the built extension gives (ranks_table.h). tessera.torch_ranks registers it.
//
// Compiled on the user's machine against the user's torch (tessera.torch_device), so nothing of the library is
// included. Every method begins its calls and returns. The Work that it returns waits for them (ranks_work.h).

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "ranks_calls.h"
#include "ranks_hooks.h"
#include "ranks_memory.h"
#include "ranks_method.h"
#include "ranks_python.h"
#include "ranks_sparse.h"
#include "ranks_work.h"

namespace tessera::torch_ranks {
namespace {

namespace py = pybind11;
using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;
using Milliseconds = std::chrono::milliseconds;
using Lists = std::vector<Tensors>;

constexpr int kNobody = -1;
constexpr bool kIsAsync = true;  // of messages

class RanksBackend final : public BackendWithHooks {
 public:
  RanksBackend(PythonRank own, int rank, int size, Milliseconds timeout, std::string name)
      : BackendWithHooks(rank, size),
        own_(std::move(own)),
        member_(own_.Enter()),
        name_(std::move(name)),
        options_(c10::make_intrusive<Options>(name_, timeout)) {
    init();
  }

  const std::string getBackendName() const override { return name_; }
  intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool isInitialized() { return member_ != nullptr; }  // torch 2.11 has no such method to override
  // Calls that are under way end with an error, here and at the others.
  void abort() override {
    if (member_) hooks_->Aborting();
    shutdown();
  }
  void shutdown() override {
    is_over_ = true;
    member_.reset();
  }

  bool supportsTensorAlloc(c10::DeviceIndex) override { return member_ != nullptr; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    NewCalls();  // throws where there is no group
    return Allocated(*member_, size, options);
  }

  bool supportsSplitting() const override { return true; }
  intrusive_ptr<Backend> split(const intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                               const intrusive_ptr<Options>& options) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return own_.Handle(); }
  intrusive_ptr<Work> reconfigure(const c10d::ReconfigureOptions& options) override;
#endif

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalesced_ = NewCalls(); }
  intrusive_ptr<Work> endCoalescing() override {
    TORCH_CHECK(coalesced_, "tessera: endCoalescing without startCoalescing");
    return NewWork({"coalesced", "tessera:coalesced", OpType::COALESCED}, {}, {}, std::exchange(coalesced_, nullptr));
  }

  intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const Method method{"broadcast", "tessera:broadcast", OpType::BROADCAST};
    CheckTensors(method.name, tensors);
    return Run(method, options.asyncOp, tensors, tensors, [&](Calls& calls) {
      Broadcast(method, calls, tensors, static_cast<int>(options.rootRank), options.timeout);
    });
  }

  intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (tensors.size() == 1 && tensors[0].is_sparse()) return AllReduceSparse(tensors, options);
    return AllReduce({"allreduce", "tessera:all_reduce", OpType::ALLREDUCE}, tensors, options);
  }
  intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return AllReduce({"allreduce_coalesced", "tessera:all_reduce", OpType::ALLREDUCE_COALESCED}, tensors, options);
  }

  intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const Method method{"reduce", "tessera:reduce", OpType::REDUCE};
    CheckTensors(method.name, tensors);
    const int root = static_cast<int>(options.rootRank);
    return Run(method, options.asyncOp, tensors, tensors, [&](Calls& calls) {
      Reduce(method, calls, tensors[0], rank_ == root ? tensors[0] : at::Tensor(), root, options.reduceOp,
             options.timeout);
    });
  }

  intrusive_ptr<Work> allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const Method method{"allgather", "tessera:all_gather", OpType::ALLGATHER};
    TORCH_CHECK_VALUE(outputs.size() == 1 && inputs.size() == 1,
                      "tessera: allgather takes one input and one list of outputs");
    CheckGathered(method.name, rank_, size_, outputs[0], inputs[0]);
    return Run(method, options.asyncOp, inputs, outputs[0],
               [&](Calls& calls) { AllGather(method, calls, outputs[0], inputs[0], options.timeout); });
  }
  // outputs[rank][k] is the k-th input of a rank.
  intrusive_ptr<Work> allgather_coalesced(Lists& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    const Method method{"allgather_coalesced", "tessera:all_gather", OpType::ALLGATHER_COALESCED};
    TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                      "tessera: allgather_coalesced takes a list of outputs for "
                      "each of ",
                      size_, " ranks, and got ", outputs.size());
    Lists of_inputs(inputs.size());
    Tensors all;
    for (size_t k = 0; k < inputs.size(); ++k) {
      for (const Tensors& of_rank : outputs) of_inputs[k].push_back(of_rank.at(k));
      CheckGathered(method.name, rank_, size_, of_inputs[k], inputs[k]);
    }
    for (const Tensors& of_rank : outputs) all.insert(all.end(), of_rank.begin(), of_rank.end());
    return Run(method, options.asyncOp, inputs, all, [&](Calls& calls) {
      for (size_t k = 0; k < inputs.size(); ++k) AllGather(method, calls, of_inputs[k], inputs[k], options.timeout);
    });
  }
  intrusive_ptr<Work> all_gather_single(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    return AllGatherSingle({"all_gather_single", "tessera:all_gather", OpType::_ALLGATHER_BASE}, {output}, {input},
                           options);
  }
  intrusive_ptr<Work> all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
    return AllGatherSingle({"all_gather_single_coalesced", "tessera:all_gather", AllGatherCoalesced()}, outputs, inputs,
                           options);
  }

  intrusive_ptr<Work> gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const Method method{"gather", "tessera:gather", OpType::GATHER};
    CheckTensors(method.name, inputs);
    const bool is_root = rank_ == options.rootRank;
    TORCH_CHECK_VALUE(outputs.size() == (is_root ? 1 : 0), "tessera: gather takes a list of outputs at the root alone");
    if (is_root) CheckParts(method.name, rank_, size_, outputs[0], inputs[0]);
    return Run(method, options.asyncOp, inputs, is_root ? outputs[0] : Tensors{},
               [&](Calls& calls) { Gather(method, calls, is_root ? outputs[0] : Tensors{}, inputs[0], options); });
  }
  intrusive_ptr<Work> gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
    const Method method{"gather_single", "tessera:gather", OpType::GATHER};
    const bool is_root = rank_ == options.rootRank;
    CheckTensors(method.name, {input});
    if (is_root) CheckWhole(method.name, size_, "output", output, input);
    return Run(method, options.asyncOp, {input}, is_root ? Tensors{output} : Tensors{},
               [&](Calls& calls) { Gather(method, calls, is_root ? Tensors{output} : Tensors{}, input, options); });
  }

  intrusive_ptr<Work> scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    const Method method{"scatter", "tessera:scatter", OpType::SCATTER};
    CheckTensors(method.name, outputs);
    const bool is_root = rank_ == options.rootRank;
    TORCH_CHECK_VALUE(inputs.size() == (is_root ? 1 : 0), "tessera: scatter takes a list of inputs at the root alone");
    if (is_root) CheckParts(method.name, rank_, size_, inputs[0], outputs[0]);
    return Run(method, options.asyncOp, is_root ? inputs[0] : Tensors{}, outputs, [&](Calls& calls) {
      TesseraCall call = Call(method, TESSERA_SCATTER, outputs[0], options.timeout);
      call.peer = static_cast<int32_t>(options.rootRank);
      const at::Tensor input = is_root ? Packed(inputs[0]) : at::Tensor();
      Start(calls, call, input, Unpacked(outputs, calls));
    });
  }

  intrusive_ptr<Work> reduce_scatter(Tensors& outputs, Lists& inputs,
                                     const c10d::ReduceScatterOptions& options) override {
    const Method method{"reduce_scatter", "tessera:reduce_scatter", OpType::REDUCE_SCATTER};
    CheckTensors(method.name, outputs);
    TORCH_CHECK_VALUE(inputs.size() == 1, "tessera: reduce_scatter takes one list of inputs");
    CheckGathered(method.name, rank_, size_, inputs[0], outputs[0]);
    return Run(method, options.asyncOp, inputs[0], outputs, [&](Calls& calls) {
      if (AreOfOneSize(inputs[0])) {
        ReduceScatter(method, calls, outputs[0], Packed(inputs[0]), options);
        return;
      }
      for (int root = 0; root < size_; ++root) {
        const at::Tensor output = rank_ == root ? outputs[0] : at::Tensor();
        Reduce(method, calls, inputs[0][root], output, root, options.reduceOp, options.timeout);
      }
    });
  }
  intrusive_ptr<Work> reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
    return ReduceScatterSingle({"reduce_scatter_single", "tessera:reduce_scatter", OpType::_REDUCE_SCATTER_BASE},
                               {output}, {input}, options);
  }
  intrusive_ptr<Work> reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::ReduceScatterOptions& options) {
    return ReduceScatterSingle({"reduce_scatter_single_coalesced", "tessera:reduce_scatter", ReduceScatterCoalesced()},
                               outputs, inputs, options);
  }

  intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    const Method method{"alltoall", "tessera:all_to_all", OpType::ALLTOALL};
    Tensors both = outputs;
    both.insert(both.end(), inputs.begin(), inputs.end());
    CheckTensors(method.name, both);
    const auto ranks = static_cast<size_t>(size_);
    TORCH_CHECK_VALUE(outputs.size() == ranks && inputs.size() == ranks,
                      "tessera: alltoall takes a tensor for each of ", size_, " ranks, and got ", inputs.size(),
                      " inputs and ", outputs.size(), " outputs");
    return Run(method, options.asyncOp, inputs, outputs,
               [&](Calls& calls) { Exchange(method, calls, outputs, inputs, options.timeout); });
  }
  intrusive_ptr<Work> all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    const Method method{"all_to_all_single", "tessera:all_to_all", OpType::ALLTOALL_BASE};
    CheckTensors(method.name, {output, input});
    c10d::checkSplitSizes(input_splits, input, size_);
    c10d::checkSplitSizes(output_splits, output, size_);
    return Run(method, options.asyncOp, {input}, {output}, [&](Calls& calls) {
      if (output_splits.empty() && input_splits.empty()) {
        Start(calls, Call(method, TESSERA_ALL_TO_ALL, input, options.timeout), Packed(input),
              Unpacked({output}, calls));
        return;
      }
      Exchange(method, calls, Slices(output, output_splits, size_), Slices(input, input_splits, size_),
               options.timeout);
    });
  }

  // The names that torch 2.11 has for these. Later versions have both, so neither says `override`.
  intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    return all_gather_single(output, input, options);
  }
  intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
    return all_gather_single_coalesced(outputs, inputs, options);
  }
  intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& options) {
    return reduce_scatter_single(output, input, options);
  }
  intrusive_ptr<Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::ReduceScatterOptions& options) {
    return reduce_scatter_single_coalesced(outputs, inputs, options);
  }
  intrusive_ptr<Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    return all_to_all_single(output, input, output_splits, input_splits, options);
  }

  intrusive_ptr<Work> send(Tensors& tensors, int destination, int tag) override {
    const Method method{"send", "tessera:send", OpType::SEND};
    CheckMessage(method.name, tensors, tag);
    return Run(method, kIsAsync, tensors, tensors,
               [&](Calls& calls) { Send(method, calls, tensors[0], destination, tag, c10d::kUnsetTimeout); });
  }
  intrusive_ptr<Work> recv(Tensors& tensors, int source, int tag) override {
    const Method method{"recv", "tessera:recv", OpType::RECV};
    CheckMessage(method.name, tensors, tag);
    return Run(method, kIsAsync, tensors, tensors,
               [&](Calls& calls) { Recv(method, calls, tensors[0], source, tag, c10d::kUnsetTimeout); });
  }
  intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
    const Method method{"recvAnysource", "tessera:recvAnySource", OpType::RECVANYSOURCE};
    CheckMessage(method.name, tensors, tag);
    return Run(method, kIsAsync, tensors, tensors,
               [&](Calls& calls) { Recv(method, calls, tensors[0], kNobody, tag, c10d::kUnsetTimeout); });
  }

  intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override {
    const Method method{"barrier", "tessera:barrier", OpType::BARRIER};
    return Run(method, options.asyncOp, {}, {}, [&](Calls& calls) {
      TesseraCall call{};
      call.kind = TESSERA_BARRIER;
      call.dtype = TESSERA_U8;
      call.timeout_us = TimeoutUs(options.timeout);
      calls.Start(call);
    });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  void LeadMonitoredBarrier(const Method& method, int tag, Milliseconds timeout, bool wait_all_ranks);

  std::shared_ptr<Calls> NewCalls() const {
    if (is_over_) Throw("tessera: the process group was shut down");
    if (!member_) Throw("tessera: the process group has no members yet; reconfigure() comes first");
    return std::make_shared<Calls>(member_);
  }
  intrusive_ptr<RanksWork> NewWork(const Method& method, const Tensors& inputs, const Tensors& outputs,
                                   std::shared_ptr<Calls> calls) const {
    thread_local std::string renamed;
    const char* title = method.title;
    if (name_ != kName) title = (renamed = name_ + (method.title + kName.size())).c_str();
    return c10::make_intrusive<RanksWork>(rank_, method.type, title, inputs, outputs, std::move(calls), sequence_,
                                          hooks_);
  }

  int64_t TimeoutUs(Milliseconds timeout) const {
    return std::chrono::microseconds(timeout == c10d::kUnsetTimeout ? options_->timeout : timeout).count();
  }

  // Between startCoalescing and endCoalescing the calls are begun, too, and one work at the end is that of all.
  // `is_async`: as the options say; only where nobody waits may calls of other groups be made before this one is done.
  template <class Begin>
  intrusive_ptr<Work> Run(const Method& method, bool is_async, const Tensors& inputs, const Tensors& outputs,
                          Begin begin) {
    const at::NoGradGuard no_grad;
    if (method.type != OpType::SEND) CheckWritten(method.name, outputs);
    if (!c10d::isP2POp(method.type)) ++sequence_;
    if (coalesced_) {
      try {
        begin(*coalesced_);
      } catch (...) {
        std::exchange(coalesced_, nullptr)->KeepUntilDone();
        throw;
      }
      return nullptr;
    }
    auto calls = NewCalls();
    calls->set_waited_for(!is_async);
    auto work = NewWork(method, inputs, outputs, calls);
    begin(*calls);
    // The library of a device is given its calls when they have matched, also where nobody waits.
    if (is_async && (hooks_->watches() || calls->HasLaunches())) work->Watch();
    return work;
  }

  TesseraCall Call(const Method& method, TesseraCollective kind, const at::Tensor& like, Milliseconds timeout,
                   Use use = Use::kMoves) const {
    TesseraCall call{};
    call.kind = kind;
    call.other_elements = -1;
    call.dtype = DTypeOf(method.name, like, use);
    call.timeout_us = TimeoutUs(timeout);
    return call;
  }

  void Broadcast(const Method& method, Calls& calls, const Tensors& tensors, int root, Milliseconds timeout) {
    TesseraCall call = Call(method, TESSERA_BROADCAST, tensors[0], timeout);
    call.peer = root;
    if (rank_ == root) {
      Start(calls, call, Packed(tensors), {});
    } else {
      Start(calls, call, {}, Unpacked(tensors, calls));
    }
  }

  intrusive_ptr<Work> AllReduce(const Method& method, const Tensors& tensors, const c10d::AllreduceOptions& options) {
    CheckTensors(method.name, tensors);
    return Run(method, options.asyncOp, tensors, tensors, [&](Calls& calls) {
      TesseraCall call = Call(method, TESSERA_ALL_REDUCE, tensors[0], options.timeout, Use::kReduces);
      call.reduce_op = ReduceOpOf(method.name, options.reduceOp);
      const at::Tensor both = InPlace(tensors, calls);
      Start(calls, call, Scaled(both, options.reduceOp), both);
    });
  }

  // How much the ranks have is known when the first gather is over, so all is done when this returns.
  intrusive_ptr<Work> AllReduceSparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
    const Method method{"allreduce", "tessera:all_reduce", OpType::_ALLREDUCE_SPARSE};
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM && tensors[0].device().is_cpu(),
                "Backend tessera does not support allreduce of a sparse tensor but sums on the CPU");
    const at::NoGradGuard no_grad;
    tensors[0].copy_(SumOfSparse(tensors[0], size_, [&](const at::Tensor& own) {
      at::Tensor whole = at::empty({own.numel() * size_}, own.options());
      at::Tensor flat = own.reshape({-1});
      c10d::AllgatherOptions gather;
      gather.timeout = options.timeout;
      gather.asyncOp = false;
      all_gather_single(whole, flat, gather)->wait();
      return whole;
    }));
    return NewWork(method, tensors, tensors, NewCalls());
  }

  void Reduce(const Method& method, Calls& calls, const at::Tensor& input, const at::Tensor& output, int root,
              const c10d::ReduceOp& op, Milliseconds timeout) {
    TesseraCall call = Call(method, TESSERA_REDUCE, input, timeout, Use::kReduces);
    call.reduce_op = ReduceOpOf(method.name, op);
    call.peer = root;
    Start(calls, call, Scaled(Packed(input), op), output.defined() ? Unpacked({output}, calls) : output);
  }

  void ReduceScatter(const Method& method, Calls& calls, const at::Tensor& output, const at::Tensor& input,
                     const c10d::ReduceScatterOptions& options) {
    TesseraCall call = Call(method, TESSERA_REDUCE_SCATTER, output, options.timeout, Use::kReduces);
    call.reduce_op = ReduceOpOf(method.name, options.reduceOp);
    Start(calls, call, Scaled(input, options.reduceOp), Unpacked({output}, calls));
  }
  intrusive_ptr<Work> ReduceScatterSingle(const Method& method, const Tensors& outputs, const Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) {
    CheckPairs(method.name, outputs, inputs);
    for (size_t k = 0; k < outputs.size(); ++k) CheckWhole(method.name, size_, "input", inputs[k], outputs[k]);
    return Run(method, options.asyncOp, inputs, outputs, [&](Calls& calls) {
      for (size_t k = 0; k < outputs.size(); ++k) ReduceScatter(method, calls, outputs[k], Packed(inputs[k]), options);
    });
  }

  // Lists of several sizes, which all ranks see, are a broadcast of each rank's part.
  void AllGather(const Method& method, Calls& calls, Tensors& outputs, const at::Tensor& input, Milliseconds timeout) {
    if (AreOfOneSize(outputs)) {
      Start(calls, Call(method, TESSERA_ALL_GATHER, input, timeout), Packed(input), Unpacked(outputs, calls));
      return;
    }
    for (int root = 0; root < size_; ++root) {
      Broadcast(method, calls, {rank_ == root ? input : outputs[root]}, root, timeout);
    }
    outputs[rank_].copy_(input.view(outputs[rank_].sizes()));
  }
  intrusive_ptr<Work> AllGatherSingle(const Method& method, const Tensors& outputs, const Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
    CheckPairs(method.name, outputs, inputs);
    for (size_t k = 0; k < outputs.size(); ++k) CheckWhole(method.name, size_, "output", outputs[k], inputs[k]);
    return Run(method, options.asyncOp, inputs, outputs, [&](Calls& calls) {
      for (size_t k = 0; k < outputs.size(); ++k) {
        Start(calls, Call(method, TESSERA_ALL_GATHER, inputs[k], options.timeout), Packed(inputs[k]),
              Unpacked({outputs[k]}, calls));
      }
    });
  }

  void Gather(const Method& method, Calls& calls, const Tensors& outputs, const at::Tensor& input,
              const c10d::GatherOptions& options) {
    TesseraCall call = Call(method, TESSERA_GATHER, input, options.timeout);
    call.peer = static_cast<int32_t>(options.rootRank);
    Start(calls, call, Packed(input), outputs.empty() ? at::Tensor() : Unpacked(outputs, calls));
  }

  void Send(const Method& method, Calls& calls, const at::Tensor& tensor, int destination, int tag,
            Milliseconds timeout, int64_t other_elements = -1) {
    TesseraCall call = Call(method, TESSERA_SEND, tensor, timeout);
    call.other_elements = other_elements;
    call.peer = destination;
    call.tag = tag;
    Start(calls, call, Packed(tensor), {});
  }
  void Recv(const Method& method, Calls& calls, const at::Tensor& tensor, int source, int tag, Milliseconds timeout,
            int64_t other_elements = -1) {
    TesseraCall call = Call(method, TESSERA_RECV, tensor, timeout);
    call.other_elements = other_elements;
    call.peer = source;
    call.tag = tag;
    Start(calls, call, {}, Unpacked({tensor}, calls));
  }

  // Slices of any sizes: a message for each pair, also the empty ones, so that sizes that don't agree are found. Users'
  // tags are from 0, so even negative tags are these exchanges', odd ones the monitored barriers'.
  void Exchange(const Method& method, Calls& calls, const Tensors& outputs, const Tensors& inputs,
                Milliseconds timeout) {
    const int tag = -2 - 2 * static_cast<int>(exchanges_++ % kOwnTags);
    TORCH_CHECK_VALUE(outputs[rank_].numel() == inputs[rank_].numel(), "tessera: ", method.name, ": rank ", rank_,
                      " gives itself ", inputs[rank_].numel(), " elements and takes ", outputs[rank_].numel());
    for (int step = 1; step < size_; ++step) {
      const int source = (rank_ + size_ - step) % size_;
      Recv(method, calls, outputs[source], source, tag, timeout, inputs[source].numel());
    }
    for (int step = 1; step < size_; ++step) {
      const int destination = (rank_ + step) % size_;
      Send(method, calls, inputs[destination], destination, tag, timeout, outputs[destination].numel());
    }
    outputs[rank_].copy_(inputs[rank_].reshape(outputs[rank_].sizes()));
  }
  static constexpr uint64_t kOwnTags = 1 << 30;

  PythonRank own_;
  std::shared_ptr<Member> member_;  // null before the first reconfigure, and when it is over
  bool is_over_ = false;
  const std::string name_;
  const intrusive_ptr<Options> options_;
  std::shared_ptr<Calls> coalesced_;
  uint64_t sequence_ = 0;
  uint64_t exchanges_ = 0;
  uint64_t monitored_ = 0;
};

// Rank 0 hears from every other rank, in their order, and then tells all of them whether all came. The texts are those
// of torch's gloo backend, which programs look for.
void RanksBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Method method{"monitoredBarrier", "tessera:monitored_barrier", OpType::BARRIER};
  const int tag = -1 - 2 * static_cast<int>(monitored_++ % kOwnTags);
  const Milliseconds timeout(std::max<int64_t>(1, TimeoutUs(options.timeout) / 1000));
  if (rank_ == 0) {
    if (TimeoutUs(options.timeout) <= 0) Throw("Rank 0 timed out in monitoredBarrier: it may wait for 0 ms");
    LeadMonitoredBarrier(method, tag, timeout, wait_all_ranks);
    return;
  }
  at::Tensor all_came = at::zeros({1}, at::kByte);
  Waited waited;
  try {
    // Rank 0 takes the arrival before it answers, unless it has given up; then nobody takes it.
    const auto answer = NewCalls();
    const auto arrival = NewCalls();
    Recv(method, *answer, all_came, 0, tag, c10d::kUnsetTimeout);
    Send(method, *arrival, all_came, 0, tag, c10d::kUnsetTimeout);
    waited = answer->Wait(-1);
    answer->KeepUntilDone();
  } catch (const c10::DistBackendError& error) {
    waited = {Outcome::kFailed, error.what_without_backtrace()};
  }
  if (waited.outcome == Outcome::kDone && all_came.item<bool>()) return;
  if (waited.outcome == Outcome::kDone) waited.error = "rank 0 waited in vain for another rank";
  Throw(c10::str("Rank ", rank_,
                 " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                 "from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n",
                 waited.error));
}

void RanksBackend::LeadMonitoredBarrier(const Method& method, int tag, Milliseconds timeout, bool wait_all_ranks) {
  std::vector<std::shared_ptr<Calls>> arrivals;
  for (int rank = 1; rank < size_; ++rank) {
    arrivals.push_back(NewCalls());
    Recv(method, *arrivals.back(), at::zeros({1}, at::kByte), rank, tag, timeout);
  }
  std::vector<int> missing;
  std::string reason;
  for (int rank = 1; rank < size_ && (wait_all_ranks || missing.empty()); ++rank) {
    const Waited waited = arrivals[rank - 1]->Wait(-1);
    if (waited.outcome == Outcome::kDone) continue;
    missing.push_back(rank);
    if (reason.empty()) reason = waited.error;
  }
  for (const auto& arrival : arrivals) arrival->KeepUntilDone();
  const auto answers = NewCalls();
  const at::Tensor all_came = at::full({1}, missing.empty(), at::kByte);
  for (int rank = 1; rank < size_; ++rank) {
    try {
      Send(method, *answers, all_came, rank, tag, c10d::kUnsetTimeout);  // a late rank gets it, too
    } catch (const c10::DistBackendError&) {
      if (missing.empty()) throw;  // else this rank may be the one that is gone
    }
  }
  if (missing.empty()) {
    const Waited waited = answers->Wait(-1);
    if (waited.outcome != Outcome::kDone) Throw(c10::str("[Rank 0]: monitoredBarrier: ", waited.error));
    return;
  }
  Throw(c10::str("[Rank 0]: ", wait_all_ranks ? "Ranks " : "Rank ", c10::Join(", ", missing),
                 " failed to pass monitoredBarrier in ", timeout.count(), " ms\n Original exception: \n", reason));
}

// The coordinator brings the ranks of the part together, by the name that torch gave it; the store isn't needed. Null
// at ranks that are in no part.
intrusive_ptr<c10d::Backend> RanksBackend::split(const intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                 const intrusive_ptr<Options>& options) {
  NewCalls();  // throws where there is no group
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return {};
  const int rank = static_cast<int>(own - ranks.begin());
  const std::vector<uint64_t>& of_world = options->global_ranks_in_group;
  const int64_t world_rank = of_world.size() == ranks.size() ? static_cast<int64_t>(of_world[rank]) : rank_;
  const PythonRank part = own_.Split(options->group_name, rank, ranks, world_rank, SecondsOf(options->timeout));
  return c10::make_intrusive<RanksBackend>(part, rank, static_cast<int>(ranks.size()), options->timeout, name_);
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
// The group is left when the one with other members is there.
intrusive_ptr<Work> RanksBackend::reconfigure(const c10d::ReconfigureOptions& options) {
  std::vector<std::string> handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); }, options.handles);
  const bool is_ordered = std::holds_alternative<std::vector<c10d::ReconfigureHandle>>(options.handles);
  own_ = own_.Reconfigure(options.uuid, handles, is_ordered, SecondsOf(options.timeout.value_or(options_->timeout)));
  member_ = own_.Enter();
  is_over_ = false;
  rank_ = own_.rank();
  size_ = own_.size();
  hooks_->ForgetError();
  return NewWork({"reconfigure", "tessera:reconfigure", OpType::UNKNOWN}, {}, {}, NewCalls());
}
#endif

intrusive_ptr<c10d::Backend> MakeBackend(py::object rank, Milliseconds timeout, std::string name) {
  const PythonRank own(std::move(rank));
  return c10::make_intrusive<RanksBackend>(own, own.rank(), own.size(), timeout, std::move(name));
}

}  // namespace
}  // namespace tessera::torch_ranks

PYBIND11_MODULE(libtessera_ranks, module) {
  module.doc() = "torch.distributed's backend `tessera`; tessera.torch_ranks registers it";
  module.def("make_backend", &tessera::torch_ranks::MakeBackend);
}
