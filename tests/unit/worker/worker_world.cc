#include "tests/unit/worker/worker_world.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "gtest/gtest.h"

#include "kernels/cpu/element_types.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/device/cpu/cpu_device.h"

namespace tessera::testing {
namespace {

// Passes everything on, but for the work and the waits that the predicates pick.
class FilterDevice : public Device {
 public:
  FilterDevice(Device& inner, int worker, const WorldOptions& options)
      : inner_(inner), worker_(worker), options_(options) {}
  void EnqueueWait(StreamId stream, const CounterWait& wait) override {
    if (!options_.skips || !options_.skips(worker_, wait)) inner_.EnqueueWait(stream, wait);
  }
  void Hold() override { inner_.Hold(); }
  void Flush() override { inner_.Flush(); }
  void EnqueueRun(StreamId stream, DeviceWork work) override {
    if (!options_.drops || !options_.drops(worker_, work)) inner_.EnqueueRun(stream, std::move(work));
  }
  void EnqueueRead(StreamId stream, CopyWork work) override { inner_.EnqueueRead(stream, std::move(work)); }
  absl::Status Transfer(const CopyWork& work, TransferSide side) override { return inner_.Transfer(work, side); }
  absl::StatusOr<std::shared_ptr<std::byte>> MakeStaging(int64_t bytes, StagingPlace place) override {
    return inner_.MakeStaging(bytes, place);
  }
  bool IsHostMemory() const override { return inner_.IsHostMemory(); }
  void EnqueueAsync(StreamId stream, Start start) override {
    const int number = async_count_++;
    if (options_.goes_on && options_.goes_on(worker_, number)) {
      return inner_.EnqueueAsync(stream, [start = std::move(start)](Done done) mutable {
        start([](const absl::Status&) {});
        done(absl::OkStatus());
      });
    }
    if (!options_.skips_async || !options_.skips_async(worker_, number)) inner_.EnqueueAsync(stream, std::move(start));
  }
  void EnqueueSignal(StreamId stream, uint64_t value) override { inner_.EnqueueSignal(stream, value); }
  void EnqueueReport(StreamId stream, Report report) override { inner_.EnqueueReport(stream, std::move(report)); }
  void MarkDead(WorkerIndex worker) override { inner_.MarkDead(worker); }
  void MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) override {
    inner_.MapCounters(worker, std::move(page));
  }
  void Drain() override { inner_.Drain(); }

 private:
  Device& inner_;
  const int worker_;
  const WorldOptions& options_;
  int async_count_ = 0;
};

template <typename F>
void ForEachElement(const Box& box, const Strides& strides, F&& f) {
  const Shape extents = BoxShape(box);
  const int64_t n = NumElements(extents);
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, offset = 0;
    for (size_t d = extents.size(); d-- > 0;) {
      offset += rest % extents[d] * strides[d];
      rest /= extents[d];
    }
    f(static_cast<size_t>(i), offset);
  }
}

// [first, last) of what ForEachElement visits.
std::pair<int64_t, int64_t> ElementRange(const Box& box, const Strides& strides) {
  int64_t first = 0, last = 0;
  ForEachElement(box, strides, [&](size_t, int64_t offset) {
    first = std::min(first, offset);
    last = std::max(last, offset + 1);
  });
  return {first, last};
}

void PutElement(DType dtype, std::byte* at, const Number& number) {
  const ScalarValue value = CastTo(dtype, number).value();
  TESSERA_CHECK(cpu::VisitElement(dtype, [&](auto zero) {
    using T = decltype(zero);
    T typed{};
    if constexpr (std::is_same_v<T, cpu::BoolElement>) {
      typed.byte = value.i != 0 ? 1 : 0;
    } else if constexpr (std::is_integral_v<T>) {
      typed = static_cast<T>(value.i);
    } else if constexpr (scalar::kIsComplex<T>) {
      typed = T(std::complex<double>(value.f, value.imaginary));
    } else {
      typed = static_cast<T>(value.f);
    }
    std::memcpy(at, static_cast<const void*>(&typed), sizeof(typed));
    return true;
  }));
}

Number GetElement(DType dtype, const std::byte* at) {
  ScalarValue value{.dtype = dtype};
  TESSERA_CHECK(cpu::VisitElement(dtype, [&](auto typed) {
    using T = decltype(typed);
    std::memcpy(static_cast<void*>(&typed), at, sizeof(typed));
    if constexpr (std::is_same_v<T, cpu::BoolElement>) {
      value.i = typed.byte;
    } else if constexpr (std::is_integral_v<T>) {
      value.i = static_cast<int64_t>(typed);
    } else if constexpr (scalar::kIsComplex<T>) {
      value.f = static_cast<double>(typed.real());
      value.imaginary = static_cast<double>(typed.imag());
    } else {
      value.f = static_cast<double>(typed);
    }
    return true;
  }));
  return Number(value);
}

}  // namespace

WorkerWorld::WorkerWorld(const WorldOptions& options)
    : options_(options), members_(static_cast<size_t>(options.workers)) {
  for (int w = 0; w < options.workers; ++w) {
    Member& member = members_[static_cast<size_t>(w)];
    MakeDevice(w);
    if (options.reach == Reach::kMessages || !options.hosts.empty()) member.messages = hub_.Make(WorkerIndex(w));
    if (options.wraps && member.messages != nullptr) member.messages = options.wraps(w, std::move(member.messages));
    member.filter = std::make_unique<FilterDevice>(*member.device, w, options_);
    member.executor = std::make_unique<Executor>(
        WorkerIndex(w), *member.arena, *member.filter, member.messages.get(),
        [this, w](CompletionReport& report, uint64_t) {
          if (options_.report) return options_.report(report);
          std::lock_guard lock(mutex_);
          const Ordinal ordinal = report.ordinal;
          EXPECT_EQ(reports_[ordinal].count(w), 0u) << "a second report";
          reports_[ordinal][w] = std::move(report);
          changed_.notify_all();
        },
        options_.max_chunk_bytes);
  }
  for (int w = 0; w < options.workers; ++w) {
    for (int p = 0; p < options.workers; ++p) {
      if (p == w) continue;
      if (IsMapped(w, p)) {
        auto peer = MapArenaOf(p);
        EXPECT_TRUE(peer.ok()) << peer.status();
        if (options.recorder != nullptr) {
          options.recorder->AddAlias(peer->memory(), peer->bytes(), arena(p).memory());
        }
        EXPECT_TRUE(at(w).AddMappedPeer(WorkerIndex(p), std::make_shared<SharedArena>(*std::move(peer))).ok());
      } else {
        Unmap(w, p);
      }
    }
  }
}

void WorkerWorld::MakeDevice(int worker) {
  Member& member = members_[static_cast<size_t>(worker)];
  if (options_.platform) member.platform = options_.platform(worker);
  auto arena = member.platform == nullptr ? SharedArena::Create(options_.arena_bytes)
                                          : member.platform->MakeArena(options_.arena_bytes);
  EXPECT_TRUE(arena.ok()) << arena.status();
  member.arena = std::make_unique<SharedArena>(*std::move(arena));
  const WorkerIndex self(worker);
  if (member.platform != nullptr) {
    auto device = member.platform->MakeDevice(self, *member.arena);
    EXPECT_TRUE(device.ok()) << device.status();
    member.device = *std::move(device);
  } else if (options_.recorder != nullptr) {
    member.device = options_.recorder->MakeDevice(self);
  } else {
    member.device = std::make_unique<CpuDevice>(
        CpuDeviceOptions{.self = self, .counters = member.arena->counters(), .threads = 1 + worker % 2});
  }
}

absl::StatusOr<SharedArena> WorkerWorld::MapArenaOf(int peer) const {
  Platform* const platform = members_[static_cast<size_t>(peer)].platform.get();
  ArenaDescriptors descriptors = arena(peer).CopyDescriptors();
  return platform == nullptr ? SharedArena::Map(std::move(descriptors)) : platform->MapArena(std::move(descriptors));
}

bool WorkerWorld::IsMapped(int worker, int peer) const {
  const auto host_of = [this](int w) { return options_.hosts[static_cast<size_t>(w)]; };
  return options_.hosts.empty() ? options_.reach == Reach::kMapped : host_of(worker) == host_of(peer);
}

void WorkerWorld::Unmap(int worker, int peer) {
  MessageTransport& messages = *members_[static_cast<size_t>(worker)].messages;
  EXPECT_TRUE(messages.Connect(WorkerIndex(peer), members_[static_cast<size_t>(peer)].messages->Address()).ok());
  EXPECT_TRUE(at(worker).AddMessagePeer(WorkerIndex(peer)).ok());
}

WorkerWorld::~WorkerWorld() {
  // Threads first: devices, then what they use.
  for (Member& member : members_) member.messages = nullptr;
  for (Member& member : members_) member.device = nullptr;
}

int64_t WorkerWorld::Allocate(int64_t bytes) {
  const int64_t at = allocated_;
  allocated_ += (bytes + 63) / 64 * 64;
  EXPECT_LE(allocated_, options_.arena_bytes);
  return at;
}

void WorkerWorld::FreeAll() {
  const std::vector<std::byte> other(static_cast<size_t>(allocated_), std::byte{0xA5});
  for (int w = 0; w < size(); ++w) WriteArena(w, 0, other);
  allocated_ = 0;
}

std::vector<std::byte> WorkerWorld::ReadArena(int worker, int64_t at, int64_t bytes) const {
  std::vector<std::byte> read(static_cast<size_t>(bytes));
  const std::byte* const from = arena(worker).memory() + at;
  const Member& member = members_[static_cast<size_t>(worker)];
  if (member.platform == nullptr) {
    std::copy_n(from, bytes, read.begin());
  } else {
    const CopyWork copy{{bytes}, 1, from, {1}, read.data(), {1}};
    EXPECT_TRUE(member.device->Transfer(copy, TransferSide::kDestinationIsHost).ok());
  }
  return read;
}

void WorkerWorld::WriteArena(int worker, int64_t at, absl::Span<const std::byte> bytes) const {
  std::byte* const to = arena(worker).memory() + at;
  const Member& member = members_[static_cast<size_t>(worker)];
  if (member.platform == nullptr) {
    std::copy(bytes.begin(), bytes.end(), to);
  } else {
    const CopyWork copy{{static_cast<int64_t>(bytes.size())}, 1, bytes.data(), {1}, to, {1}};
    EXPECT_TRUE(member.device->Transfer(copy, TransferSide::kSourceIsHost).ok());
  }
}

void WorkerWorld::Store(const PlanValue& value, int64_t base, const ShardedArray& shards) {
  const int64_t bytes = SizeBytes(value.spec.dtype);
  for (int64_t flat = 0; flat < value.spec.mesh.size(); ++flat) {
    const Position position = value.spec.mesh.PositionAt(flat);
    const int worker = value.spec.mesh.WorkerAt(position).value;
    const Box box = LocalBox(value.spec, position);
    const auto [first, last] = ElementRange(box, value.strides);
    const int64_t from = base + (value.offset + first) * bytes;
    std::vector<std::byte> memory = ReadArena(worker, from, (last - first) * bytes);
    ForEachElement(box, value.strides, [&, first = first](size_t i, int64_t offset) {
      PutElement(value.spec.dtype, memory.data() + (offset - first) * bytes, shards[static_cast<size_t>(flat)][i]);
    });
    WriteArena(worker, from, memory);
  }
}

ShardedArray WorkerWorld::Load(const PlanValue& value, int64_t base) const {
  const int64_t bytes = SizeBytes(value.spec.dtype);
  ShardedArray shards(static_cast<size_t>(value.spec.mesh.size()));
  for (int64_t flat = 0; flat < value.spec.mesh.size(); ++flat) {
    const Position position = value.spec.mesh.PositionAt(flat);
    const Box box = LocalBox(value.spec, position);
    const auto [first, last] = ElementRange(box, value.strides);
    const std::vector<std::byte> memory = ReadArena(value.spec.mesh.WorkerAt(position).value,
                                                    base + (value.offset + first) * bytes, (last - first) * bytes);
    std::vector<Number>& shard = shards[static_cast<size_t>(flat)];
    shard.resize(static_cast<size_t>(NumElements(box)));
    ForEachElement(box, value.strides, [&, first = first](size_t i, int64_t offset) {
      shard[i] = GetElement(value.spec.dtype, memory.data() + (offset - first) * bytes);
    });
  }
  return shards;
}

TemplateId WorkerWorld::Define(const Plan& plan) {
  const TemplateId id(++last_template_);
  auto shared = std::make_shared<const Plan>(plan);
  for (int w = 0; w < size(); ++w) at(w).Define(id, shared);
  return id;
}

void WorkerWorld::Issue(const Instance& instance) {
  for (int w = 0; w < size(); ++w) at(w).Run(instance);
}

std::map<int, CompletionReport> WorkerWorld::WaitFor(Ordinal ordinal, int count) {
  const size_t wanted = static_cast<size_t>(count < 0 ? size() : count);
  if (options_.recorder != nullptr) options_.recorder->Run();
  std::unique_lock lock(mutex_);
  const bool complete =
      changed_.wait_for(lock, std::chrono::seconds(20), [&] { return reports_[ordinal].size() >= wanted; });
  EXPECT_TRUE(complete) << "ordinal " << ordinal.value << " has " << reports_[ordinal].size() << " reports of "
                        << wanted;
  return reports_[ordinal];
}

Instance WorkerWorld::Place(const Plan& plan) {
  Instance instance;
  instance.ordinal = NextOrdinal();
  instance.plan = Define(plan);
  instance.makes_calls = options_.makes_calls;
  for (const PlanBuffer& buffer : plan.buffers) instance.buffer_offsets.push_back(Allocate(buffer.bytes));
  return instance;
}

WorkerWorld::Result WorkerWorld::RunPlan(const Plan& plan, const std::vector<ShardedArray>& inputs,
                                         const std::vector<Scalar>& scalars) {
  Instance instance = Place(plan);
  instance.scalars = scalars;
  auto base = [&](const PlanValue& value) { return instance.buffer_offsets[static_cast<size_t>(value.buffer)]; };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlanValue& value = plan.values[static_cast<size_t>(plan.inputs[i])];
    Store(value, base(value), inputs[i]);
  }
  Issue(instance);
  Result result;
  result.received_bytes.assign(static_cast<size_t>(size()), 0);
  for (auto& [worker, report] : WaitFor(instance.ordinal)) {
    if (!report.status.ok() && result.status.ok()) result.status = report.status;
    for (const auto& [from, bytes] : report.received_bytes) {
      EXPECT_NE(from.value, worker);
      result.received_bytes[static_cast<size_t>(worker)] += bytes;
    }
    for (const auto& [to, bytes] : report.pushed_bytes) {
      EXPECT_NE(to.value, worker);
      result.received_bytes[static_cast<size_t>(to.value)] += bytes;
    }
  }
  for (int output : plan.outputs) {
    const PlanValue& value = plan.values[static_cast<size_t>(output)];
    result.outputs.push_back(Load(value, base(value)));
  }
  return result;
}

void ExpectReceived(const WorkerWorld& world, const Plan& plan, const InterpretResult& want,
                    const std::vector<int64_t>& received_bytes) {
  std::vector<int64_t> planned(static_cast<size_t>(world.size()), 0);
  const PlanTraffic traffic = TrafficOf(plan);
  for (size_t i = 0; i < traffic.workers.size(); ++i) {
    planned[static_cast<size_t>(traffic.workers[i].value)] += traffic.received_bytes[i];
  }
  EXPECT_EQ(received_bytes, planned) << ToText(plan);
  if (plan.hosts.several()) return;  // a sum is added up on each host first, and what hosts share goes twice
  const int64_t moved = std::accumulate(want.received_bytes.begin(), want.received_bytes.end(), int64_t{0});
  EXPECT_EQ(std::accumulate(received_bytes.begin(), received_bytes.end(), int64_t{0}), moved + want.reduced_bytes)
      << ToText(plan);
}

}  // namespace tessera::testing
