// A device of torch for tests of the ranks' backend, as far from the process as a GPU is: its memory can't be touched
// but by its own copies, and what is written to it is there as late as a device may have it, when somebody waits for
// the stream. test_far_ranks.py compiles it; Python knows the device as `far`.
//
// A kernel reads its inputs in the order of its stream, runs on the CPU, and leaves its outputs to be written by the
// stream. A copy from the host is done when it returns, unless it is non-blocking.
//
// It has a library of collectives, too, as a GPU has NCCL: a call is a step of the library's own stream, which a thread
// of it runs, by gloo. Ranks that give it calls in different orders hang, or get wrong values.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace {

constexpr c10::DeviceType kFar = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

size_t PagesOf(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// ---- memory that nobody else can touch

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device = c10::impl::VirtualGuardImpl(kFar).getDevice();
    if (bytes == 0) return {nullptr, device};
    void* const data = mmap(nullptr, PagesOf(bytes) + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(data != MAP_FAILED, "far: out of memory");
    *static_cast<size_t*>(data) = bytes;
    auto* const first = static_cast<char*>(data) + 4096;
    mprotect(first, PagesOf(bytes), PROT_NONE);
    return {first, first, &Free, device};
  }
  static void Free(void* first) {
    auto* const data = static_cast<char*>(first) - 4096;
    munmap(data, PagesOf(*reinterpret_cast<size_t*>(data)) + 4096);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "far: copy_data"); }
};
Memory memory;
REGISTER_ALLOCATOR(kFar, &memory);

std::recursive_mutex& Lock() {
  static auto* lock = new std::recursive_mutex;
  return *lock;
}

// The memory of a tensor as the CPU's, while it lives.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor)
      : lock_(Lock()),
        first_(tensor.storage().mutable_data()),
        bytes_(PagesOf(tensor.storage().nbytes())),
        seen_(at::from_blob(static_cast<char*>(first_) + tensor.storage_offset() * tensor.element_size(),
                            tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU))) {
    mprotect(first_, bytes_, PROT_READ | PROT_WRITE);
  }
  ~Opened() { mprotect(first_, bytes_, PROT_NONE); }
  at::Tensor& seen() { return seen_; }

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
  void* const first_;
  const size_t bytes_;
  at::Tensor seen_;
};

// ---- streams

// Wakes threads that wait for another one's steps; a little later where it misses them.
class News {
 public:
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
  void Tell() { changed_.notify_all(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};
News& StepsDone() {
  static auto* news = new News;
  return *news;
}

// Steps run one after another, on whichever thread waits for them; those of a library on its own thread.
struct Queue {
  std::recursive_mutex running;
  std::deque<std::function<void()>> steps;  // of Lock()
  std::atomic<int64_t> done = 0;
  bool is_library = false;
  int64_t end() const { return done + static_cast<int64_t>(steps.size()); }
};
Queue& QueueOf(c10::StreamId stream) {
  const std::lock_guard lock(Lock());
  static auto* queues = new std::map<c10::StreamId, Queue>;
  return (*queues)[stream];
}
thread_local c10::StreamId current_stream = 0;
thread_local c10::DeviceIndex current_device = 0;
thread_local bool is_in_kernel = false;
bool is_held = false;  // of Lock(): libraries begin nothing more

void RunSteps(Queue& queue, int64_t end) {
  while (queue.done < end) {
    const std::unique_lock running(queue.running, std::try_to_lock);
    if (!running.owns_lock()) {  // whoever runs it may wait for this thread behind the steps that this one waits for
      StepsDone().Await();
      continue;
    }
    std::function<void()> step;
    {
      const std::lock_guard lock(Lock());
      if (queue.steps.empty() || queue.done >= end || (queue.is_library && is_held)) return;
      step = queue.steps.front();
    }
    step();
    const std::lock_guard lock(Lock());
    queue.steps.pop_front();
    ++queue.done;
    StepsDone().Tell();
  }
}
// Until so many steps of the stream are done.
void Run(c10::StreamId stream, int64_t end) {
  Queue& queue = QueueOf(stream);
  while (queue.is_library && queue.done < end) StepsDone().Await();
  RunSteps(queue, end);
}
void RunAll(c10::StreamId stream) {
  int64_t end = 0;
  {
    const std::lock_guard lock(Lock());
    end = QueueOf(stream).end();
  }
  Run(stream, end);
}
void Push(std::function<void()> step) {
  const std::lock_guard lock(Lock());
  QueueOf(current_stream).steps.push_back(std::move(step));
}

struct Event {
  c10::StreamId stream = 0;
  int64_t end = 0;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  explicit Guard(c10::DeviceType) {}
  Guard() = default;
  c10::DeviceType type() const override { return kFar; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kFar, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {kFar, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> last = 0;
    return c10::Stream(c10::Stream::UNSAFE, device, ++last);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(current_stream, stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const std::lock_guard lock(Lock());
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {stream.id(), QueueOf(stream.id()).end()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::lock_guard lock(Lock());
    const Event met = *static_cast<Event*>(event);
    if (met.stream != stream.id()) {
      QueueOf(stream.id()).steps.push_back([met] { Run(met.stream, met.end); });
    }
  }
  bool queryEvent(void* event) const override {
    const std::lock_guard lock(Lock());
    const Event& met = *static_cast<Event*>(event);
    return QueueOf(met.stream).done >= met.end;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeEvent(void* event) const override {
    Run(static_cast<Event*>(event)->stream, static_cast<Event*>(event)->end);
  }
  bool queryStream(const c10::Stream& stream) const override {
    const std::lock_guard lock(Lock());
    return QueueOf(stream.id()).steps.empty();
  }
  void synchronizeStream(const c10::Stream& stream) const override { RunAll(stream.id()); }
  void synchronizeDevice(const c10::DeviceIndex) const override { RunAll(current_stream); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return true; }  // all memory of the host is as good
  at::Allocator* getPinnedMemoryAllocator() const override { return at::getCPUAllocator(); }
};

// ---- what tensors need

at::Tensor Empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}
at::Tensor EmptyStrided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::NoGradGuard no_grad;
  if (to.numel() == 0) return to;
  if (to.is_cpu()) {
    RunAll(current_stream);
    Opened opened(from);
    to.copy_(opened.seen());
  } else if (from.is_cpu()) {
    Push([from = from.clone(), to] { Opened(to).seen().copy_(from); });
    if (!non_blocking && !is_in_kernel) RunAll(current_stream);
  } else {
    Push([from, to] {
      Opened read(from);
      const at::Tensor seen = read.seen().clone();
      Opened(to).seen().copy_(seen);
    });
  }
  return to;
}
at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return CopyFrom(from, to, false);
}
at::Scalar Item(const at::Tensor& tensor) { return at::_local_scalar_dense(tensor.cpu()); }
const at::Tensor& Resize(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const at::Tensor fresh = at::empty(sizes, tensor.options());
  const_cast<at::Tensor&>(tensor).set_(fresh.storage(), 0, sizes, fresh.strides());
  return tensor;
}

void RunOnCpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool was_in_kernel = std::exchange(is_in_kernel, true);
  struct Back {
    bool value;
    ~Back() { is_in_kernel = value; }
  } back{was_in_kernel};
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &Item);
  m.impl("resize_", &Resize);
  m.impl("record_stream", [](at::Tensor&, at::Stream) {});  // a step keeps what it uses
  m.impl("as_strided", [](const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                          std::optional<c10::SymInt> offset) {
    return at::native::as_strided_tensorimpl(
        self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
        offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
  });
  m.impl("view", [](const at::Tensor& self, c10::SymIntArrayRef size) {
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
  });
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_reshape_alias", [](const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  });
  m.impl("set_.source_Storage_storage_offset",
         [](at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
            c10::SymIntArrayRef stride) -> at::Tensor& {
           auto* const impl = self.unsafeGetTensorImpl();
           impl->set_storage_keep_dtype(std::move(source));
           impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                       offset.guard_int(__FILE__, __LINE__));
           return self;
         });
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&RunOnCpu>()); }

const bool are_hooks_registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// ---- the library

class FarWork final : public c10d::Work {
 public:
  explicit FarWork(Event end) : end_(end) {}
  bool isCompleted() override { return QueueOf(end_.stream).done >= end_.end; }
  bool wait(std::chrono::milliseconds) override {
    Guard().block(&end_, c10::Stream(c10::Stream::UNSAFE, c10::Device(kFar, 0), current_stream));
    return true;
  }

 private:
  Event end_;
};

class FarLibrary final : public c10d::Backend {
  using Tensors = std::vector<at::Tensor>;
  using Step = std::function<void(at::Tensor, at::Tensor)>;

 public:
  explicit FarLibrary(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        stream_(Guard().getNewStream(c10::Device(kFar, 0), 0).id()),
        queue_(QueueOf(stream_)) {
    queue_.is_library = true;
    thread_ = std::thread([this] {
      while (!is_ending_) {
        RunSteps(queue_, INT64_MAX);
        StepsDone().Await();
      }
    });
  }
  ~FarLibrary() override {
    is_aborted_ = is_ending_ = true;
    thread_.join();
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return Later(tensors[0], tensors[0], [=, this](at::Tensor in, at::Tensor out) {
      Tensors both = {out.copy_(in)};
      gloo_->allreduce(both, options)->wait();
    });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return Later(tensors[0], tensors[0], [=, this](at::Tensor in, at::Tensor out) {
      Tensors both = {out.copy_(in)};
      gloo_->broadcast(both, options)->wait();
    });
  }
  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return Later(tensors[0], tensors[0], [=, this](at::Tensor in, at::Tensor out) {
      Tensors both = {in.clone()};
      gloo_->reduce(both, options)->wait();
      out.copy_(getRank() == options.rootRank ? both[0] : in);
    });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return Later(input, output, [this](at::Tensor in, at::Tensor out) { Gather(in, out); });
  }
  c10::intrusive_ptr<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::GatherOptions&) override {
    const at::Tensor whole = outputs.empty() ? at::Tensor() : Whole(outputs[0]);
    return Later(inputs[0], whole, [this](at::Tensor in, at::Tensor out) {
      Gather(in, out.defined() ? out : at::empty({in.numel() * getSize()}, in.options()));
    });
  }
  c10::intrusive_ptr<c10d::Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ScatterOptions& options) override {
    const at::Tensor whole = inputs.empty() ? at::Tensor() : Whole(inputs[0]);
    return Later(whole, outputs[0], [=, this](at::Tensor in, at::Tensor out) {
      Tensors all = {in.defined() ? in : at::empty({out.numel() * getSize()}, out.options())};
      gloo_->broadcast(all, OfRoot(options.rootRank))->wait();
      out.copy_(all[0].view({getSize(), -1})[getRank()]);
    });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    return Later(input, output, [=, this](at::Tensor in, at::Tensor out) {
      Tensors all = {in.clone()};
      c10d::AllreduceOptions sum;
      sum.reduceOp = options.reduceOp;
      gloo_->allreduce(all, sum)->wait();
      out.copy_(all[0].view({getSize(), -1})[getRank()]);
    });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&,
                                               std::vector<int64_t>&, const c10d::AllToAllOptions&) override {
    return Later(input, output, [this](at::Tensor in, at::Tensor out) {
      const at::Tensor all = at::empty({getSize() * in.numel()}, in.options());
      Gather(in, all);
      out.copy_(all.view({getSize(), getSize(), -1}).select(1, getRank()).reshape(-1));
    });
  }
  void abort() override { is_aborted_ = true; }
  const std::string getBackendName() const override { return "far"; }

 private:
  static c10d::BroadcastOptions OfRoot(int64_t root) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return options;
  }
  static at::Tensor Whole(const Tensors& parts) {  // of neighbours
    return parts[0].as_strided({parts[0].numel() * static_cast<int64_t>(parts.size())}, {1});
  }
  void Gather(const at::Tensor& in, const at::Tensor& out) {
    std::vector<Tensors> outs = {out.view({getSize(), -1}).unbind(0)};
    Tensors ins = {in};
    gloo_->allgather(outs, ins)->wait();
  }
  // Behind what the current stream has been given.
  c10::intrusive_ptr<c10d::Work> Later(const at::Tensor& in, const at::Tensor& out, Step step) {
    const std::lock_guard lock(Lock());
    const Event given{current_stream, QueueOf(current_stream).end()};
    StepsDone().Tell();
    queue_.steps.push_back([=, this] {
      Run(given.stream, given.end);
      if (is_aborted_) return;
      const auto seen = [](const at::Tensor& tensor) {
        return tensor.defined() ? Opened(tensor).seen().clone() : tensor;
      };
      const at::Tensor result = seen(out);
      try {
        step(seen(in), result);
      } catch (const std::exception&) {  // as NCCL, it would wait for ever for a rank that is gone
        while (!is_aborted_) StepsDone().Await();
        return;
      }
      if (result.defined()) Opened(out).seen().copy_(result);
    });
    return c10::make_intrusive<FarWork>(Event{stream_, queue_.end()});
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const c10::StreamId stream_;
  Queue& queue_;
  std::atomic<bool> is_aborted_ = false, is_ending_ = false;
  std::thread thread_;
};

c10::intrusive_ptr<c10d::Backend> MakeLibrary(c10::intrusive_ptr<c10d::Backend> gloo) {
  return c10::make_intrusive<FarLibrary>(std::move(gloo));
}

}  // namespace

PYBIND11_MODULE(libfar_device, module) {
  module.def("make_library", &MakeLibrary);
  module.def("hold", [] {
    const std::lock_guard lock(Lock());
    is_held = true;
  });
}
