// Messages in chunks: how they are cut, that work waits for its own chunks alone, and what a lost one costs.

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/program.h"
#include "server/planner/builder.h"
#include "server/planner/contraction.h"
#include "tests/support/plan_redistribute.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

Plan PlanOf(std::string_view from, std::string_view to) {
  return *PlanRedistribute({*ParseTensorSpec(from), {}}, *ParseTensorSpec(to));
}

Phase FirstPhase(std::string_view from, std::string_view to, int64_t max_chunk_bytes) {
  auto program = LowerPlan(PlanOf(from, to), WorkerIndex(0), MessageLists::kBuild, max_chunk_bytes);
  EXPECT_TRUE(program.ok()) << program.status();
  return program->phases[0];
}

TEST(CutMessages, RowsOfOneChunkEachAreReceivedInPlace) {
  const Phase phase = FirstPhase("f64[4096,4096] @ mesh(2) [S(0)]", "f64[4096,4096] @ mesh(2) [S(1)]", 1 << 20);
  ASSERT_EQ(phase.messages.outgoing.size(), 1u);
  ASSERT_EQ(phase.messages.incoming.size(), 1u);
  EXPECT_EQ(phase.instructions.size(), 2u);  // own rows and the peer's: whole where they are mapped
  ASSERT_EQ(phase.messages.incoming[0].chunks.size(), 32u);
  ASSERT_EQ(phase.messages.pieces.size(), 32u);
  for (size_t c = 0; c < 32; ++c) {
    EXPECT_EQ(phase.messages.incoming[0].chunks[c].bytes, 1 << 20);
    EXPECT_EQ(phase.messages.incoming[0].chunks[c].direct, static_cast<int>(c));
    EXPECT_EQ(phase.messages.outgoing[0].chunks[c].bytes, 1 << 20);
    EXPECT_EQ(phase.messages.outgoing[0].chunks[c].direct, -1);  // columns are packed
    EXPECT_EQ(std::get<CopyInstruction>(phase.messages.pieces[c].work).extents, (Shape{64, 2048}));
  }
}

TEST(CutMessages, SmallPartsShareAChunkAndLongMessagesHaveLargerOnes) {
  const Phase small = FirstPhase("f32[6,6] @ mesh(x:2,y:3) [S(0), R]", "f32[6,6] @ mesh(x:2,y:3) [R, S(1)]", 1 << 20);
  for (const OutgoingMessage& message : small.messages.outgoing) EXPECT_EQ(message.chunks.size(), 1u);
  const Phase large =
      FirstPhase("f64[1048576,1048576] @ mesh(2) [S(0)]", "f64[1048576,1048576] @ mesh(2) [S(1)]", 1 << 20);
  const IncomingMessage& message = large.messages.incoming[0];
  EXPECT_EQ(message.bytes, int64_t{1} << 41);
  EXPECT_LE(message.chunks.size(), 4096u);
  EXPECT_GE(message.chunks.size(), 2048u);
}

// Stands between a worker and its transport: sends go as `send` says.
class SendFilter : public MessageTransport {
 public:
  using SendFunction = std::function<void(MessageTransport& inner, WorkerIndex peer, MessageTag tag,
                                          absl::Span<const std::byte> bytes, Done done)>;
  SendFilter(std::unique_ptr<MessageTransport> inner, SendFunction send)
      : inner_(std::move(inner)), send_(std::move(send)) {}
  std::string Address() const override { return inner_->Address(); }
  absl::Status Connect(WorkerIndex peer, std::string_view address) override { return inner_->Connect(peer, address); }
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override {
    send_(*inner_, peer, tag, bytes, std::move(done));
  }
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override {
    inner_->Receive(peer, tag, bytes, std::move(done));
  }
  void MarkDead(WorkerIndex peer) override { inner_->MarkDead(peer); }

 private:
  std::unique_ptr<MessageTransport> inner_;
  SendFunction send_;
};

constexpr int64_t kElements = 128;  // of f64: each worker reduces 64, in 8 chunks of 8

struct Sum {
  explicit Sum(WorkerWorld& world)
      : world(world),
        plan(PlanOf("f64[128] @ mesh(2) [P(sum)]", "f64[128] @ mesh(2) [S(0)]")),
        id(world.Define(plan)),
        a(world.Allocate(kElements * 8)),
        b(world.Allocate(kElements * 4)) {
    const PlanValue& input = plan.values[static_cast<size_t>(plan.inputs[0])];
    std::vector<Number> numbers;
    for (int64_t i = 1; i <= kElements; ++i) numbers.emplace_back(static_cast<double>(i));
    world.Store(input, a, ShardedArray{numbers, numbers});
    std::memset(world.arena(0).memory() + b, 0, kElements * 4);
    std::memset(world.arena(1).memory() + b, 0, kElements * 4);
  }
  Ordinal Issue() {
    const Ordinal ordinal = world.NextOrdinal();
    world.Issue({.ordinal = ordinal, .plan = id, .stream = 1, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
    return ordinal;
  }
  // One of worker 0's 64 sums; 0 while it is not there. The worker may be storing it now: the test looks for that.
  __attribute__((no_sanitize_thread)) double At(size_t i) const {
    return *reinterpret_cast<const volatile double*>(world.arena(0).memory() + b + i * 8);
  }

  WorkerWorld& world;
  Plan plan;
  TemplateId id;
  int64_t a, b;
};

TEST(Chunks, WorkWaitsForItsOwnChunksAlone) {
  std::mutex mutex;
  std::vector<std::function<void()>> held;
  bool is_open = false;
  WorkerWorld world({.reach = Reach::kMessages,
                     .max_chunk_bytes = 64,
                     .wraps = [&](int worker, std::unique_ptr<MessageTransport> inner) {
                       auto send = [&, worker](MessageTransport& to, WorkerIndex peer, MessageTag tag,
                                               absl::Span<const std::byte> bytes, MessageTransport::Done done) {
                         std::lock_guard lock(mutex);
                         if (worker == 0 || tag.chunk != 2 || is_open) {
                           return to.Send(peer, tag, bytes, std::move(done));
                         }
                         auto kept = std::make_shared<MessageTransport::Done>(std::move(done));
                         held.push_back([&to, peer, tag, bytes, kept] { to.Send(peer, tag, bytes, std::move(*kept)); });
                       };
                       return std::make_unique<SendFilter>(std::move(inner), send);
                     }});
  Sum sum(world);
  const Ordinal ordinal = sum.Issue();
  // Worker 1's chunk 2 doesn't come: chunks 0 and 1 are summed, 8 elements each, and no more.
  const auto is_held = [&] {
    std::lock_guard lock(mutex);
    return !held.empty();
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while ((sum.At(15) == 0 || !is_held()) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  // Another stream of the worker goes on meanwhile.
  const Ordinal read = world.NextOrdinal();
  world.at(0).ReadInline({.ordinal = read,
                          .spec = *ParseTensorSpec("f64[1] @ mesh(2) [R]"),
                          .offset_bytes = sum.b,
                          .strides = {1},
                          .waits = {}});
  world.WaitFor(read, 1);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(sum.At(i), i < 16 ? 2.0 * static_cast<double>(i + 1) : 0) << i;
  {
    std::lock_guard lock(mutex);
    is_open = true;
    ASSERT_EQ(held.size(), 1u);
    held[0]();
  }
  for (const auto& [worker, report] : world.WaitFor(ordinal)) {
    EXPECT_TRUE(report.status.ok()) << report.status;
    ASSERT_EQ(report.received_bytes.size(), 1u);
    EXPECT_EQ(report.received_bytes[0].second, 64 * 8);
  }
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(sum.At(i), 2.0 * static_cast<double>(i + 1)) << i;
}

// When the first terms of a product come from a peer, the columns that are there are finished, own terms and all, while
// the others are on their way.
TEST(Chunks, ProductsGoOnWithTheColumnsThatAreThere) {
  std::mutex mutex;
  std::function<void()> held;
  const auto is_held = [&] {
    std::lock_guard lock(mutex);
    return held != nullptr;
  };
  WorkerWorld world({.reach = Reach::kMessages,
                     .max_chunk_bytes = 4096,  // 2 rows of 256 columns
                     .wraps = [&](int worker, std::unique_ptr<MessageTransport> inner) {
                       auto send = [&, worker](MessageTransport& to, WorkerIndex peer, MessageTag tag,
                                               absl::Span<const std::byte> bytes, MessageTransport::Done done) {
                         if (worker != 0 || tag.chunk != 1) return to.Send(peer, tag, bytes, std::move(done));
                         auto kept = std::make_shared<MessageTransport::Done>(std::move(done));
                         std::lock_guard lock(mutex);
                         held = [&to, peer, tag, bytes, kept] { to.Send(peer, tag, bytes, std::move(*kept)); };
                       };
                       return std::make_unique<SendFilter>(std::move(inner), send);
                     }});
  constexpr int64_t kColumns = 512;
  const std::string wide = StrCat("f64[4,", kColumns, "] @ mesh(2) [S(0)]");
  PlanBuilder builder;
  const int a = builder.AddInput({*ParseTensorSpec("f64[4,4] @ mesh(2) [S(0)]"), {}});
  const int b = builder.AddInput({*ParseTensorSpec(wide), {}});
  const auto product = AddContraction(builder, {}, a, b, *ParseTensorSpec(wide), {}, {{1, 1, 1 << 20}, {}, {}});
  ASSERT_TRUE(product.ok()) << product.status();
  builder.AddOutput(*product);
  const Plan plan = std::move(builder).Finish();
  const TemplateId id = world.Define(plan);
  std::vector<int64_t> offsets;
  for (const PlanBuffer& buffer : plan.buffers) offsets.push_back(world.Allocate(buffer.bytes));
  std::vector<double> left(4 * 4, 1), right(static_cast<size_t>(4 * kColumns), 1);
  const auto store = [&](size_t input, const std::vector<double>& values) {
    const PlanValue& value = plan.values[static_cast<size_t>(plan.inputs[input])];
    world.Store(value, offsets[static_cast<size_t>(value.buffer)], SplitDense(value.spec, values));
  };
  store(0, left);
  store(1, right);
  const int64_t output = offsets[static_cast<size_t>(plan.values[static_cast<size_t>(plan.outputs[0])].buffer)];
  std::memset(world.arena(1).memory() + output, 0, static_cast<size_t>(2 * kColumns * 8));
  const auto at = [&](int64_t row, int64_t column) {
    double value = 0;
    std::memcpy(&value, world.arena(1).memory() + output + (row * kColumns + column) * 8, 8);
    return value;
  };
  const Ordinal ordinal = world.NextOrdinal();
  world.Issue({.ordinal = ordinal, .plan = id, .stream = 1, .buffer_offsets = offsets, .scalars = {}, .waits = {}});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while ((at(1, 255) != 4 || !is_held()) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  for (int64_t column = 0; column < kColumns; ++column) {
    ASSERT_EQ(at(0, column), column < 256 ? 4 : 0) << column;
    ASSERT_EQ(at(1, column), column < 256 ? 4 : 0) << column;
  }
  ASSERT_TRUE(is_held());
  held();
  for (const auto& [worker, report] : world.WaitFor(ordinal)) {
    EXPECT_TRUE(report.status.ok()) << report.status;
    EXPECT_EQ(report.received_bytes[0].second, 2 * kColumns * 8);
  }
  for (int64_t column = 0; column < kColumns; ++column) ASSERT_EQ(at(1, column), 4) << column;
}

TEST(Chunks, ALostOneFailsTheOpAndTheNextWorks) {
  for (const uint32_t lost : {0u, 3u, 7u}) {
    WorkerWorld world({.reach = Reach::kMessages,
                       .max_chunk_bytes = 64,
                       .wraps = [&](int worker, std::unique_ptr<MessageTransport> inner) {
                         auto send = [worker, lost](MessageTransport& to, WorkerIndex peer, MessageTag tag,
                                                    absl::Span<const std::byte> bytes, MessageTransport::Done done) {
                           if (worker == 0 || tag.chunk != lost || tag.ordinal != 1) {
                             return to.Send(peer, tag, bytes, std::move(done));
                           }
                           // The other side finds nothing in it, this one that it broke.
                           to.Send(peer, tag, {}, [](absl::Status) {});
                           done(absl::UnavailableError("worker 0: broken"));
                         };
                         return std::make_unique<SendFilter>(std::move(inner), send);
                       }});
    Sum sum(world);
    const auto failed = world.WaitFor(sum.Issue());
    EXPECT_EQ(failed.at(0).status.code(), absl::StatusCode::kInvalidArgument) << failed.at(0).status;
    EXPECT_EQ(failed.at(1).status.code(), absl::StatusCode::kUnavailable) << failed.at(1).status;
    ASSERT_EQ(failed.at(0).received_bytes.size(), 1u);
    EXPECT_EQ(failed.at(0).received_bytes[0].second, 7 * 64);  // what came
    for (const auto& [worker, report] : world.WaitFor(sum.Issue())) EXPECT_TRUE(report.status.ok()) << report.status;
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(sum.At(i), 2.0 * static_cast<double>(i + 1)) << i;
  }
}

// 64 tensors for worker 1, whose instructions would be cut into 4,098 pieces each.
TEST(Chunks, WhoCantRunAPlanRefusesItsMessages) {
  PlanBuilder builder;
  std::vector<ValueMove> moves;
  for (int i = 0; i < 64; ++i) {
    moves.push_back({builder.AddInput({*ParseTensorSpec("f32[3,4096] @ mesh(1) [R]"), {}}),
                     *ParseTensorSpec("f32[3,4096] @ mesh(1; workers=1) [R]")});
  }
  const auto moved = builder.AddRedistributes(moves);
  ASSERT_TRUE(moved.ok()) << moved.status();
  for (const int value : *moved) builder.AddOutput(value);
  const Plan plan = std::move(builder).Finish();
  WorkerWorld world({.reach = Reach::kMessages, .arena_bytes = 8 << 20, .max_chunk_bytes = 8});
  Instance instance = world.Place(plan);
  instance.stream = 1;
  world.Issue(instance);
  const auto reports = world.WaitFor(instance.ordinal);
  ASSERT_EQ(reports.size(), 2u);  // nobody waits for ever
  EXPECT_TRUE(reports.at(0).status.ok()) << reports.at(0).status;
  EXPECT_EQ(reports.at(1).status.code(), absl::StatusCode::kResourceExhausted) << reports.at(1).status;
}

TEST(Chunks, APeerThatDiesEndsAllOfThem) {
  WorkerWorld world({.reach = Reach::kMessages, .max_chunk_bytes = 64});
  Sum sum(world);
  const Ordinal ordinal = world.NextOrdinal();
  world.at(0).Run(
      {.ordinal = ordinal, .plan = sum.id, .stream = 1, .buffer_offsets = {sum.a, sum.b}, .scalars = {}, .waits = {}});
  world.at(0).MarkDead(WorkerIndex(1));
  EXPECT_EQ(world.WaitFor(ordinal, 1).at(0).status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera::testing
