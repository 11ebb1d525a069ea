#include "server/device/fake/hazard_recorder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "schemas/host/monotonic_clock.h"
#include "schemas/types/str_cat.h"
#include "server/device/run_clock.h"
#include "server/device/work.h"

namespace tessera {
namespace {

constexpr const char* kStreamNames[kStreamCount] = {"compute",       "exchange",       "probe",   "io",
                                                    "compute light", "exchange light", "io light"};

struct AsyncItem {
  Device::Start start;
};
struct SignalItem {
  uint64_t value = 0;
};
struct ReportItem {
  Device::Report report;
};
using Item = std::variant<PageWait, DeviceWork, AsyncItem, SignalItem, ReportItem>;

}  // namespace

struct HazardRecorder::Stream {
  WorkerIndex worker;
  StreamId id = StreamId::kCompute;
  uint32_t number = 0;
  FakeDevice* device = nullptr;
  std::deque<Item> queue;
  bool busy = false;  // guarded by async_mutex_ while something is under way
  absl::Status error;
  RunClock runs;
  Clock clock;
  uint32_t item = 0;
  std::vector<Signal> signals;  // increasing values
};

class HazardRecorder::FakeDevice : public Device {
 public:
  FakeDevice(HazardRecorder& recorder, WorkerIndex self) : recorder_(recorder), self_(self) {}

  void EnqueueWait(StreamId stream, const CounterWait& wait) override {
    Push(stream, PageWait{wait, pages_[wait.worker]});
  }
  void EnqueueRun(StreamId stream, DeviceWork work) override { Push(stream, std::move(work)); }
  void EnqueueAsync(StreamId stream, Start start) override { Push(stream, AsyncItem{std::move(start)}); }
  void EnqueueSignal(StreamId stream, uint64_t value) override { Push(stream, SignalItem{value}); }
  void EnqueueReport(StreamId stream, Report report) override { Push(stream, ReportItem{std::move(report)}); }
  void MarkDead(WorkerIndex worker) override { MapCounters(worker, nullptr); }
  void MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) override {
    ++pages_[worker];
    if (page != nullptr) mapped_.insert(worker);
    if (page == nullptr) mapped_.erase(worker);
  }
  void Drain() override { recorder_.Run(); }

  bool CountsAsMet(const PageWait& wait) {
    return wait.worker != self_ && (wait.page != pages_[wait.worker] || mapped_.count(wait.worker) == 0);
  }

 private:
  void Push(StreamId stream, Item item) {
    Stream& s = recorder_.StreamOf(self_, stream);
    s.device = this;
    s.queue.push_back(std::move(item));
  }
  HazardRecorder& recorder_;
  WorkerIndex self_;
  std::set<WorkerIndex> mapped_;
  std::map<WorkerIndex, uint32_t> pages_;  // the number of each peer's last page
};

HazardRecorder::HazardRecorder(uint32_t seed) : random_(seed) {}
HazardRecorder::~HazardRecorder() = default;

std::unique_ptr<Device> HazardRecorder::MakeDevice(WorkerIndex self) {
  return std::make_unique<FakeDevice>(*this, self);
}

void HazardRecorder::AddAlias(const void* mapped, int64_t bytes, const void* original) {
  aliases_.push_back(
      {reinterpret_cast<uintptr_t>(mapped), static_cast<uintptr_t>(bytes), reinterpret_cast<uintptr_t>(original)});
}

HazardRecorder::Stream& HazardRecorder::StreamOf(WorkerIndex worker, StreamId id) {
  for (auto& stream : streams_) {
    if (stream->worker == worker && stream->id == id) return *stream;
  }
  auto stream = std::make_unique<Stream>();
  stream->worker = worker;
  stream->id = id;
  stream->number = static_cast<uint32_t>(streams_.size());
  streams_.push_back(std::move(stream));
  for (auto& s : streams_) s->clock.resize(streams_.size(), 0);
  streams_.back()->clock[streams_.back()->number] = 1;
  return *streams_.back();
}

bool HazardRecorder::IsReady(Stream& stream) {
  {
    std::lock_guard lock(async_mutex_);
    if (stream.busy) return false;
  }
  if (stream.queue.empty()) return false;
  const PageWait* wait = std::get_if<PageWait>(&stream.queue.front());
  if (wait == nullptr || wait->value == 0 || stream.device->CountsAsMet(*wait)) return true;
  const Stream& publisher = StreamOf(wait->worker, wait->stream);
  return !publisher.signals.empty() && publisher.signals.back().value >= wait->value;
}

void HazardRecorder::Run() {
  while (true) {
    uint64_t ended_before = 0;
    {
      std::lock_guard lock(async_mutex_);
      ended_before = async_ended_;
    }
    std::vector<Stream*> ready;
    for (size_t s = 0; s < streams_.size(); ++s) {
      if (IsReady(*streams_[s])) ready.push_back(streams_[s].get());
    }
    if (!ready.empty()) {
      RunHead(*ready[random_() % ready.size()]);
      continue;
    }
    // An item that ended while this looked may have made a stream ready.
    std::unique_lock lock(async_mutex_);
    if (async_under_way_ == 0 && async_ended_ == ended_before) return;
    async_done_.wait(lock, [&] { return async_ended_ != ended_before; });
  }
}

bool HazardRecorder::IsDrained() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s->queue.empty() && !s->busy; });
}

void HazardRecorder::RunHead(Stream& stream) {
  Item item = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.item = static_cast<uint32_t>(items_.size());
  ++stream.clock[stream.number];
  std::string text = StrCat("worker ", stream.worker.value, " ", kStreamNames[static_cast<size_t>(stream.id)], " ");
  if (const PageWait* wait = std::get_if<PageWait>(&item)) {
    items_.push_back(StrCat(text, "wait worker ", wait->worker.value, " ",
                            kStreamNames[static_cast<size_t>(wait->stream)], " ", wait->value >> kPhaseBits, ".",
                            wait->value & ((1u << kPhaseBits) - 1)));
    if (stream.device->CountsAsMet(*wait)) return;
    const std::vector<Signal>& signals = StreamOf(wait->worker, wait->stream).signals;
    const auto first = std::lower_bound(signals.begin(), signals.end(), wait->value,
                                        [](const Signal& signal, uint64_t value) { return signal.value < value; });
    if (wait->value == 0 || first == signals.end()) return;
    for (size_t s = 0; s < first->clock.size(); ++s) stream.clock[s] = std::max(stream.clock[s], first->clock[s]);
  } else if (const DeviceWork* work = std::get_if<DeviceWork>(&item)) {
    constexpr const char* kWorkNames[] = {"copy", "reduce", "kernel"};
    items_.push_back(text + kWorkNames[work->index()]);
    RecordWork(stream, *work);
    const int64_t began_ns = MonotonicNs();
    absl::Status status = RunDeviceWork(*work);
    const int64_t ended_ns = MonotonicNs();
    stream.runs.Worked(began_ns, ended_ns, ended_ns - began_ns);
    if (!status.ok() && stream.error.ok()) stream.error = std::move(status);
  } else if (const SignalItem* signal = std::get_if<SignalItem>(&item)) {
    items_.push_back(
        StrCat(text, "signal ", signal->value >> kPhaseBits, ".", signal->value & ((1u << kPhaseBits) - 1)));
    if (stream.signals.empty() || stream.signals.back().value < signal->value) {
      stream.signals.push_back({signal->value, stream.clock});
    }
  } else if (ReportItem* report = std::get_if<ReportItem>(&item)) {
    items_.push_back(text + "report");
    report->report(std::exchange(stream.error, absl::OkStatus()), stream.runs.Take());
  } else if (AsyncItem* async = std::get_if<AsyncItem>(&item)) {
    items_.push_back(text + "async");
    {
      std::lock_guard lock(async_mutex_);
      stream.runs.Passed(MonotonicNs());
      stream.busy = true;
      ++async_under_way_;
    }
    async->start([this, &stream](absl::Status status) {
      std::lock_guard lock(async_mutex_);
      stream.runs.Passed(MonotonicNs());
      if (!status.ok() && stream.error.ok()) stream.error = std::move(status);
      stream.busy = false;
      --async_under_way_;
      ++async_ended_;
      async_done_.notify_all();
    });
  }
}

void HazardRecorder::RecordWork(Stream& stream, const DeviceWork& work) {
  if (const CopyWork* copy = std::get_if<CopyWork>(&work)) {
    RecordArray(stream, copy->source, copy->element_bytes, copy->extents, copy->source_strides, Access::kRead);
    RecordArray(stream, copy->destination, copy->element_bytes, copy->extents, copy->destination_strides,
                Access::kWrite);
  } else if (const ReduceWork* reduce = std::get_if<ReduceWork>(&work)) {
    for (const ReduceTerm& term : reduce->terms) {
      RecordArray(stream, term.data, SizeBytes(reduce->dtype), reduce->extents, term.strides, Access::kRead);
    }
    for (const ReduceDestination& destination : reduce->destinations) {
      RecordArray(stream, destination.data, SizeBytes(reduce->destination_dtype), reduce->extents, destination.strides,
                  Access::kWrite);
    }
  } else if (const KernelWork* kernel = std::get_if<KernelWork>(&work)) {
    const KernelCall* const call = &kernel->call;
    for (const KernelInput& input : call->inputs) {
      if (!input.is_zero) {
        RecordArray(stream, input.data, SizeBytes(input.dtype), input.extents, input.strides, Access::kRead);
      }
    }
    RecordArray(stream, call->output, SizeBytes(call->output_dtype), call->output_extents, call->output_strides,
                Access::kWrite);
  }
}

void HazardRecorder::RecordArray(Stream& stream, const void* data, int64_t element_bytes,
                                 absl::Span<const int64_t> extents, absl::Span<const int64_t> strides, Access access) {
  const int64_t elements = NumElements(extents);
  for (int64_t e = 0; e < elements; ++e) {
    int64_t rest = e, offset = 0;
    for (size_t d = extents.size(); d-- > 0;) {
      offset += rest % extents[d] * strides[d];
      rest /= extents[d];
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(offset * element_bytes);
    for (int64_t b = 0; b < element_bytes; ++b) RecordByte(stream, address + static_cast<uintptr_t>(b), access);
  }
}

void HazardRecorder::RecordByte(Stream& stream, uintptr_t address, Access access) {
  for (const Alias& alias : aliases_) {
    if (address - alias.mapped < alias.bytes) address += alias.original - alias.mapped;
  }
  ByteState& byte = bytes_[address];
  const Epoch now{stream.number, stream.clock[stream.number], stream.item};
  if (byte.written) CheckOrder(stream, byte.write, address);
  if (access == Access::kWrite) {
    for (const Epoch& read : byte.reads) CheckOrder(stream, read, address);
    byte.reads.clear();
    byte.write = now;
    byte.written = true;
    return;
  }
  for (Epoch& read : byte.reads) {
    if (read.stream == now.stream) {
      read = now;
      return;
    }
  }
  byte.reads.push_back(now);
}

void HazardRecorder::CheckOrder(const Stream& stream, const Epoch& earlier, uintptr_t address) {
  if (earlier.stream == stream.number || earlier.time <= stream.clock[earlier.stream]) return;
  const uint64_t pair = uint64_t{earlier.item} << 32 | stream.item;
  if (!reported_.emplace(pair, true).second) return;
  hazards_.push_back(StrCat("nothing orders item ", earlier.item, " (", items_[earlier.item], ") and item ",
                            stream.item, " (", items_[stream.item], ") at byte 0x", absl::Hex(address)));
}

}  // namespace tessera
