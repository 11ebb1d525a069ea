#include "tests/emulator/cuda/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace tessera::emulator {
namespace {

constexpr int64_t kDefaultDeviceBytes = int64_t{4} << 30;
constexpr int64_t kDefaultConnections = 8;
// How often what another process may have written is looked at.
constexpr std::chrono::microseconds kPoll(50);

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

std::string NameOf(const OperationKind& what) {
  struct Namer {
    std::string operator()(const LaunchOperation& launch) const { return launch.kernel->name; }
    std::string operator()(const CopyOperation&) const { return "copy"; }
    std::string operator()(const FillOperation&) const { return "fill"; }
    std::string operator()(const WaitOperation&) const { return "wait"; }
    std::string operator()(const WriteOperation&) const { return "write"; }
    std::string operator()(const RecordOperation&) const { return "event"; }
    std::string operator()(const AwaitOperation&) const { return "wait for an event"; }
    std::string operator()(const LibraryOperation& operation) const { return operation.name; }
    std::string operator()(const GraphOperation&) const { return "graph"; }
  };
  return std::visit(Namer{}, what);
}

// An image's size is in its first bytes (magic, version, header, body); text ends with a zero.
absl::Span<const std::byte> BytesOf(const void* image) {
  constexpr uint32_t kFatbin = 0xBA55ED50;
  const auto* bytes = static_cast<const std::byte*>(image);
  uint32_t magic = 0;
  std::memcpy(&magic, bytes, sizeof(magic));
  if (magic != kFatbin) return {bytes, std::strlen(static_cast<const char*>(image))};
  uint16_t header = 0;
  uint64_t body = 0;
  std::memcpy(&header, bytes + 6, sizeof(header));
  std::memcpy(&body, bytes + 8, sizeof(body));
  return {bytes, header + body};
}

bool IsReached(uint64_t counter, uint64_t value) { return static_cast<int64_t>(counter - value) >= 0; }

}  // namespace

Engine& Engine::Get() {
  static Engine& engine = *new Engine();  // its thread runs until the process ends
  return engine;
}

Engine::Engine()
    : memory_(Setting("TESSERA_EMULATOR_MEMORY", kDefaultDeviceBytes)),
      finds_hazards_(Setting("TESSERA_EMULATOR_HAZARDS", 0) != 0),
      random_(static_cast<uint32_t>(Setting("TESSERA_EMULATOR_SEED", 1))),
      queue_operations_(static_cast<size_t>(Setting("TESSERA_EMULATOR_QUEUE", 0))),
      connections_(static_cast<uint32_t>(
          std::clamp<int64_t>(Setting("CUDA_DEVICE_MAX_CONNECTIONS", kDefaultConnections), 1, 32))) {
  if (const char* fail = std::getenv("TESSERA_EMULATOR_FAIL"); fail != nullptr) {
    char function[64] = {};
    int nth = 0, result = 0;
    if (std::sscanf(fail, "%63[^:]:%d:%d", function, &nth, &result) == 3) {
      injections_.push_back({function, nth, static_cast<CUresult>(result)});
    }
  }
  thread_ = std::thread([this] { Loop(); });
}

CUresult Engine::Enter(const char* function) {
  std::lock_guard lock(mutex_);
  ++calls_[function];
  if (sticky_ != CUDA_SUCCESS) return sticky_;
  for (Injection& injection : injections_) {
    if (injection.function != function || --injection.calls_left != 0) continue;
    // As in a real context, every later call gives these, too.
    const bool is_sticky =
        injection.result == CUDA_ERROR_ILLEGAL_ADDRESS || injection.result == CUDA_ERROR_LAUNCH_FAILED;
    if (is_sticky) sticky_ = injection.result;
    return injection.result;
  }
  return CUDA_SUCCESS;
}

void Engine::Fail(std::string function, int nth, CUresult result) {
  std::lock_guard lock(mutex_);
  injections_.push_back({std::move(function), nth, result});
}

void Engine::Hold() {
  std::lock_guard lock(mutex_);
  is_held_ = true;
}

void Engine::Release() {
  std::lock_guard lock(mutex_);
  is_held_ = false;
  changed_.notify_all();
}

int Engine::Queued() {
  std::lock_guard lock(mutex_);
  size_t queued = 0;
  for (const Stream* stream : live_) queued += stream->queue.size();
  return static_cast<int>(queued);
}

int Engine::Calls(const char* function) {
  std::lock_guard lock(mutex_);
  int calls = 0;
  for (const auto& [name, count] : calls_) calls += function == nullptr || name == function ? count : 0;
  return calls;
}

void Engine::SetSeed(uint32_t seed) {
  std::lock_guard lock(mutex_);
  random_.seed(seed);
}

void Engine::AwaitNoneRuns(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] {
    for (const auto& stream : streams_) {
      if (stream->is_busy) return false;
    }
    return true;
  });
}

bool Engine::IsToBeCopied(uint64_t address, int64_t bytes) const {
  const auto meets = [&](uint64_t other, int64_t other_bytes) {
    return other < address + static_cast<uint64_t>(bytes) && address < other + static_cast<uint64_t>(other_bytes);
  };
  const auto copies = [&](const Operation& operation) {
    const auto* copy = std::get_if<CopyOperation>(&operation.what);
    return copy != nullptr && (meets(copy->source, copy->bytes) || meets(copy->destination, copy->bytes));
  };
  return std::any_of(live_.begin(), live_.end(), [&](const Stream* stream) {
    return std::any_of(stream->queue.begin(), stream->queue.end(), copies);
  });
}

CUresult Engine::ForgetHost(void* at) {
  const std::shared_ptr<const RangeMap> mapped = memory_.Mapped();
  const auto found = mapped->ranges.find(reinterpret_cast<uint64_t>(at));
  if (found == mapped->ranges.end()) return CUDA_SUCCESS;
  const Range& range = found->second;
  std::unique_lock lock(mutex_);
  AwaitNoneRuns(lock);
  if (sticky_ == CUDA_SUCCESS && IsToBeCopied(found->first, range.bytes)) {
    return End("host memory is to be registered no more, and a copy of it is under way");
  }
  // Memory of this process alone may come to lie at the same place; a shared file is known by itself.
  if (!finds_hazards_ || range.identity != 0) return sticky_;
  hazards_.Forget(range.identity, range.offset, range.bytes);
  written_.erase(written_.lower_bound({range.identity, range.offset}),
                 written_.lower_bound({range.identity, range.offset + static_cast<uint64_t>(range.bytes)}));
  return sticky_;
}

std::string Engine::Hazards() {
  std::unique_lock lock(mutex_);
  AwaitNoneRuns(lock);
  std::string all;
  for (const std::string& hazard : hazards_.hazards()) all += hazard + "\n";
  return all;
}

CUresult Engine::MakeStream(CUstream* stream) {
  std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->number = static_cast<uint32_t>(streams_.size() - 1);
  live_.push_back(streams_.back().get());
  *stream = reinterpret_cast<CUstream>(streams_.back().get());
  return CUDA_SUCCESS;
}

CUresult Engine::DestroyStream(CUstream stream) {
  std::lock_guard lock(mutex_);
  reinterpret_cast<Stream*>(stream)->is_destroyed = true;  // what it has runs on
  return CUDA_SUCCESS;
}

CUresult Engine::Push(CUstream stream, OperationKind what) {
  std::unique_lock lock(mutex_);
  auto* queue = reinterpret_cast<Stream*>(stream);
  if (queue == nullptr || queue->is_destroyed) return CUDA_ERROR_INVALID_HANDLE;
  queue->fed_by = std::this_thread::get_id();
  if (const auto* wait = std::get_if<WaitOperation>(&what); wait != nullptr) {
    if (const Stream* writer = FindWriter(*wait); writer != nullptr && writer != queue) {
      return End("a wait by a word for what stream " + std::to_string(writer->number) +
                 " of the same thread writes: CUDA doesn't see that order");
    }
  }
  const auto* copy = std::get_if<CopyOperation>(&what);
  const bool blocks = copy != nullptr && memory_.IsHost(copy->source) && memory_.IsHost(copy->destination);
  while (queue_operations_ > 0 && sticky_ == CUDA_SUCCESS && queue->queue.size() >= queue_operations_) {
    if (Parked(*queue, *memory_.Mapped()) >= queue_operations_) {
      return EndOf("an operation more than the queue holds", *queue);
    }
    changed_.wait_for(lock, kPoll);
  }
  const uint64_t number = ++pushed_;
  queue->queue.push_back({std::move(what), finds_hazards_ ? host_ : Clock(), number});
  changed_.notify_all();
  if (!blocks) return sticky_;
  if (Parked(*queue, *memory_.Mapped()) > 0) {
    return EndOf("a copy from host memory to host memory", *queue);
  }
  changed_.wait(lock, [&] { return sticky_ != CUDA_SUCCESS || queue->passed >= number; });
  host_.Join(queue->clock);
  return sticky_;
}

const Engine::Stream* Engine::FindWriter(const WaitOperation& wait) const {
  for (const Stream* stream : live_) {
    if (stream->fed_by != std::this_thread::get_id()) continue;
    for (const Operation& operation : stream->queue) {
      const auto* write = std::get_if<WriteOperation>(&operation.what);
      if (write != nullptr && write->address == wait.address && IsReached(write->value, wait.value)) return stream;
    }
  }
  return nullptr;
}

CUresult Engine::MakeEvent(CUevent* event) {
  *event = reinterpret_cast<CUevent>(new Event());
  return CUDA_SUCCESS;
}

CUresult Engine::DestroyEvent(CUevent event) {
  delete reinterpret_cast<Event*>(event);  // who waits for its last record goes on to
  return CUDA_SUCCESS;
}

CUresult Engine::Record(CUevent event, CUstream stream) {
  auto record = std::make_shared<EventRecord>();
  {
    std::lock_guard lock(mutex_);
    record->stream = reinterpret_cast<Stream*>(stream)->number;
    reinterpret_cast<Event*>(event)->last = record;
  }
  return Push(stream, RecordOperation{std::move(record)});
}

CUresult Engine::Await(CUstream stream, CUevent event) {
  std::shared_ptr<EventRecord> record;
  {
    std::lock_guard lock(mutex_);
    record = reinterpret_cast<Event*>(event)->last;
  }
  return record == nullptr ? CUDA_SUCCESS : Push(stream, AwaitOperation{std::move(record)});
}

CUresult Engine::Query(CUstream stream) {
  std::lock_guard lock(mutex_);
  const auto* queue = reinterpret_cast<Stream*>(stream);
  if (!queue->queue.empty() || queue->is_busy) return CUDA_ERROR_NOT_READY;
  host_.Join(queue->clock);
  return CUDA_SUCCESS;
}

CUresult Engine::Synchronize(CUstream stream) {
  std::unique_lock lock(mutex_);
  const auto* queue = reinterpret_cast<Stream*>(stream);
  changed_.wait(lock, [&] { return sticky_ != CUDA_SUCCESS || (queue->queue.empty() && !queue->is_busy); });
  host_.Join(queue->clock);
  return sticky_;
}

CUresult Engine::Load(const void* image, CUlibrary* library) {
  const absl::Span<const std::byte> bytes = BytesOf(image);
  std::string text;
  if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).substr(0, 2) == "//" ||
      bytes[0] == std::byte{'.'} || bytes[0] == std::byte{'\n'}) {
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else {
    for (const std::string& one : ptx::PtxOf(bytes)) text += one;
  }
  if (text.empty()) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  std::lock_guard lock(mutex_);
  if (const auto known = module_of_text_.find(text); known != module_of_text_.end()) {
    *library = reinterpret_cast<CUlibrary>(known->second);
    return CUDA_SUCCESS;
  }
  absl::StatusOr<ptx::Module> module = ptx::Parse(text);
  if (!module.ok()) {
    std::fprintf(stderr, "emulator: %s\n", std::string(module.status().message()).c_str());
    return CUDA_ERROR_INVALID_PTX;
  }
  modules_.push_back(std::make_unique<ptx::Module>(*std::move(module)));
  module_of_text_.emplace(std::move(text), modules_.back().get());
  *library = reinterpret_cast<CUlibrary>(modules_.back().get());
  return CUDA_SUCCESS;
}

const ptx::Kernel* Engine::FindKernel(CUlibrary library, const char* name) {
  const auto& kernels = reinterpret_cast<ptx::Module*>(library)->kernels;
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

std::vector<const ptx::Kernel*> Engine::KernelsOf(CUlibrary library) {
  std::vector<const ptx::Kernel*> kernels;
  for (const auto& [name, kernel] : reinterpret_cast<ptx::Module*>(library)->kernels) kernels.push_back(&kernel);
  return kernels;
}

CUresult Engine::LoadKernel(const ptx::Kernel* kernel) {
  {
    std::lock_guard lock(mutex_);
    if (!loaded_.insert(kernel).second) return sticky_;
  }
  return MayWaitForAll("the load of " + kernel->name);
}

CUresult Engine::EndOf(const std::string& call, const Stream& stream) {
  return End(call + " while stream " + std::to_string(stream.number) + " stands still: a driver may wait for it");
}

CUresult Engine::End(const std::string& why) {
  std::fprintf(stderr, "emulator: %s\n", why.c_str());
  sticky_ = CUDA_ERROR_LAUNCH_TIMEOUT;
  changed_.notify_all();
  return sticky_;
}

CUresult Engine::MayWaitForAll(const std::string& call) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<const RangeMap> mapped = memory_.Mapped();
  const auto is_own = [](const Stream* stream) { return stream->fed_by == std::this_thread::get_id(); };
  if (std::none_of(live_.begin(), live_.end(), is_own)) return sticky_;
  for (const Stream* stream : live_) {
    const bool spins = std::any_of(stream->queue.begin(), stream->queue.end(), [&](const Operation& operation) {
      return std::holds_alternative<LibraryOperation>(operation.what) && StandsStill(operation, *mapped);
    });
    if (spins || (is_own(stream) && Parked(*stream, *mapped) > 0)) {
      return EndOf(call, *stream);
    }
  }
  return sticky_;
}

bool Engine::IsMet(const WaitOperation& wait, const RangeMap& mapped) {
  std::byte* word = mapped.Host(wait.address, sizeof(uint64_t));
  // Memory that was let go of is met: the wait's own run says that it is an error.
  if (word == nullptr) return true;
  return IsReached(reinterpret_cast<std::atomic<uint64_t>*>(word)->load(std::memory_order_acquire), wait.value);
}

bool Engine::StandsStill(const Operation& operation, const RangeMap& mapped) const {
  if (const auto* wait = std::get_if<WaitOperation>(&operation.what)) return !IsMet(*wait, mapped);
  if (const auto* await = std::get_if<AwaitOperation>(&operation.what)) {
    if (await->record->is_done) return false;
    for (const Operation& before : streams_[await->record->stream]->queue) {
      const auto* record = std::get_if<RecordOperation>(&before.what);
      if (record != nullptr && record->record == await->record) return false;
      if (StandsStill(before, mapped)) return true;
    }
    return false;
  }
  // It is asked whether it is ready where it is its stream's head, and run at once if it is.
  const auto* of_library = std::get_if<LibraryOperation>(&operation.what);
  return of_library != nullptr && of_library->is_ready != nullptr;
}

size_t Engine::Parked(const Stream& stream, const RangeMap& mapped) const {
  const auto first = std::find_if(stream.queue.begin(), stream.queue.end(),
                                  [&](const Operation& operation) { return StandsStill(operation, mapped); });
  return static_cast<size_t>(stream.queue.end() - first);
}

// Behind a wait of another stream that shares the queue. A kernel that spins holds nothing up: it was launched.
bool Engine::IsHeldUp(const Stream& stream, const RangeMap& mapped) const {
  const uint64_t number = stream.queue.front().number;
  for (const Stream* other : live_) {
    if (other == &stream || other->number % connections_ != stream.number % connections_) continue;
    for (const Operation& operation : other->queue) {
      if (operation.number > number) break;
      if (!std::holds_alternative<LibraryOperation>(operation.what) && StandsStill(operation, mapped)) return true;
    }
  }
  return false;
}

bool Engine::IsReady(const Stream& stream, const RangeMap& mapped) {
  if (stream.queue.empty()) return false;
  const Operation& head = stream.queue.front();
  if (const auto* await = std::get_if<AwaitOperation>(&head.what); await != nullptr && !await->record->is_done) {
    return false;
  }
  if (const auto* graph = std::get_if<GraphOperation>(&head.what); graph != nullptr && !MayBegin(*graph)) return false;
  if (const auto* call = std::get_if<LibraryOperation>(&head.what); call != nullptr && call->is_ready != nullptr) {
    return !IsHeldUp(stream, mapped) && call->is_ready([&mapped](uint64_t address, int64_t bytes, Access) {
      return mapped.Host(address, bytes);  // what it touches, its run says
    });
  }
  return !StandsStill(head, mapped) && !IsHeldUp(stream, mapped);
}

void Engine::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::vector<Stream*> ready;
    bool has_parked = false;
    if (!is_held_ && sticky_ == CUDA_SUCCESS) {
      const std::shared_ptr<const RangeMap> mapped = memory_.Mapped();
      std::erase_if(live_, [](const Stream* stream) { return stream->is_destroyed && stream->queue.empty(); });
      for (Stream* stream : live_) {
        if (IsReady(*stream, *mapped)) ready.push_back(stream);
        has_parked = has_parked || !stream->queue.empty();
      }
    }
    if (ready.empty()) {
      has_parked ? (void)changed_.wait_for(lock, kPoll) : changed_.wait(lock);
      continue;
    }
    Stream& stream = *ready[random_() % ready.size()];
    if (std::holds_alternative<GraphOperation>(stream.queue.front().what)) {
      RunNode(stream, lock);
      changed_.notify_all();
      continue;
    }
    Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    Run(stream, std::move(operation), lock);
    changed_.notify_all();
  }
}

void Engine::Run(Stream& stream, Operation operation, std::unique_lock<std::mutex>& lock) {
  stream.is_busy = true;
  const std::shared_ptr<const RangeMap> mapped = memory_.Mapped();
  if (finds_hazards_) {
    stream.clock.Join(operation.host);
    if (const auto* await = std::get_if<AwaitOperation>(&operation.what)) stream.clock.Join(await->record->clock);
    if (const auto* wait = std::get_if<WaitOperation>(&operation.what)) Acquire(stream, *wait, *mapped);
    stream.clock.Tick(stream.number);
    hazards_.Begin(stream.number, stream.clock, NameOf(operation.what));
  }
  std::string wrong;
  const uint32_t seed = random_();
  if (const auto* write = std::get_if<WriteOperation>(&operation.what)) {
    Publish(stream, *write, *mapped);
  } else if (const auto* record = std::get_if<RecordOperation>(&operation.what)) {
    record->record->is_done = true;
    record->record->clock = stream.clock;
  } else if (!std::holds_alternative<WaitOperation>(operation.what) &&
             !std::holds_alternative<AwaitOperation>(operation.what)) {
    lock.unlock();
    if (const auto* launch = std::get_if<LaunchOperation>(&operation.what)) wrong = RunKernel(*launch, *mapped, seed);
    if (const auto* copy = std::get_if<CopyOperation>(&operation.what)) wrong = RunCopy(*copy, *mapped);
    if (const auto* fill = std::get_if<FillOperation>(&operation.what)) wrong = RunFill(*fill, *mapped);
    if (const auto* call = std::get_if<LibraryOperation>(&operation.what)) wrong = RunLibrary(*call, *mapped);
    lock.lock();
  }
  stream.is_busy = false;
  stream.passed = operation.number;
  if (wrong.empty()) return;
  std::fprintf(stderr, "emulator: %s\n", wrong.c_str());
  sticky_ = CUDA_ERROR_ILLEGAL_ADDRESS;
}

void Engine::Touch(const RangeMap& mapped, uint64_t address, int64_t bytes, Access access) {
  if (!finds_hazards_) return;
  const Range* range = mapped.Find(address, bytes);
  if (range == nullptr) return;
  const uint64_t base = std::prev(mapped.ranges.upper_bound(address))->first;
  hazards_.Touch(range->identity, range->offset + (address - base), bytes, access);
}

std::string Engine::RunKernel(const LaunchOperation& launch, const RangeMap& mapped, uint32_t seed) {
  // Most accesses are near the one before.
  const Range* near = nullptr;
  uint64_t near_base = 0;
  const auto memory = [&](uint64_t address, int bytes, ptx::AccessKind kind) -> std::byte* {
    if (near == nullptr || address < near_base ||
        address - near_base + static_cast<uint64_t>(bytes) > static_cast<uint64_t>(near->bytes)) {
      near = mapped.Find(address, bytes);
      if (near == nullptr) return nullptr;
      near_base = std::prev(mapped.ranges.upper_bound(address))->first;
    }
    if (finds_hazards_) {
      const uint64_t offset = near->offset + (address - near_base);
      if (kind != ptx::AccessKind::kWrite) hazards_.Touch(near->identity, offset, bytes, Access::kRead);
      if (kind != ptx::AccessKind::kRead) hazards_.Touch(near->identity, offset, bytes, Access::kWrite);
    }
    return near->host + (address - near_base);
  };
  return ptx::Run(*launch.kernel, launch.parameters,
                  {.grid = launch.grid,
                   .block = launch.block,
                   .shared_bytes = launch.shared_bytes,
                   .memory = memory,
                   .seed = seed,
                   .coverage = nullptr});
}

std::string Engine::RunCopy(const CopyOperation& copy, const RangeMap& mapped) {
  std::byte* const to = mapped.Host(copy.destination, copy.bytes);
  const std::byte* const from = mapped.Host(copy.source, copy.bytes);
  if (to == nullptr || from == nullptr) return "copy: memory that is neither the device's nor registered";
  Touch(mapped, copy.source, copy.bytes, Access::kRead);
  Touch(mapped, copy.destination, copy.bytes, Access::kWrite);
  std::memmove(to, from, static_cast<size_t>(copy.bytes));
  return "";
}

std::string Engine::RunFill(const FillOperation& fill, const RangeMap& mapped) {
  std::byte* const to = mapped.Host(fill.destination, fill.bytes);
  if (to == nullptr) return "fill: memory that is neither the device's nor registered";
  Touch(mapped, fill.destination, fill.bytes, Access::kWrite);
  std::memset(to, fill.value, static_cast<size_t>(fill.bytes));
  return "";
}

std::string Engine::RunLibrary(const LibraryOperation& operation, const RangeMap& mapped) {
  std::string wrong = operation.run([&](uint64_t address, int64_t bytes, Access access) -> std::byte* {
    std::byte* const place = mapped.Host(address, bytes);
    if (place != nullptr) Touch(mapped, address, bytes, access);
    return place;
  });
  return wrong.empty() ? wrong : operation.name + ": " + wrong;
}

// Behind the first write that the wait could have been met by; or, where the host or another process wrote the word,
// behind all that the host may know.
void Engine::Acquire(Stream& stream, const WaitOperation& wait, const RangeMap& mapped) {
  const Range* range = mapped.Find(wait.address, sizeof(uint64_t));
  if (range == nullptr) return;
  const uint64_t base = std::prev(mapped.ranges.upper_bound(wait.address))->first;
  for (const Written& written : written_[{range->identity, range->offset + (wait.address - base)}]) {
    if (IsReached(written.value, wait.value)) return stream.clock.Join(written.clock);
  }
  stream.clock.Join(host_);
}

void Engine::Publish(Stream& stream, const WriteOperation& write, const RangeMap& mapped) {
  std::byte* const word = mapped.Host(write.address, sizeof(uint64_t));
  if (word == nullptr) {
    std::fprintf(stderr, "emulator: write of a word that is neither the device's nor registered\n");
    sticky_ = CUDA_ERROR_ILLEGAL_ADDRESS;
    return;
  }
  if (finds_hazards_) {
    const Range* range = mapped.Find(write.address, sizeof(uint64_t));
    const uint64_t base = std::prev(mapped.ranges.upper_bound(write.address))->first;
    written_[{range->identity, range->offset + (write.address - base)}].push_back({write.value, stream.clock});
    if (memory_.IsHost(write.address)) host_.Join(stream.clock);
  }
  reinterpret_cast<std::atomic<uint64_t>*>(word)->store(write.value, std::memory_order_release);
}

}  // namespace tessera::emulator
