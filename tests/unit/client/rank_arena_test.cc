// The arena of the ranks of one host: its places, what collectives on operands in it give, places that are none.

#include "client/rank_page/rank_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/host_memory.h"
#include "client/rank_page/arena_program.h"
#include "client/rank_page/rank_page.h"

namespace tessera {
namespace {

using Verdict = RankPage::Verdict;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kPage = 4096;

// The pages and arenas of the ranks of a group, all in this process.
struct Ranks {
  explicit Ranks(int64_t count) : memory(*HostMemory::Make(RankPage::BytesFor(count))) {
    const int file = *RankArena::MakeFile(count);
    for (int64_t rank = 0; rank < count; ++rank) {
      pages.push_back(*RankPage::Map(memory->fd(), rank, count));
      pages.back()->set_arena(*RankArena::Open(file, rank, count));
    }
    close(file);
  }
  void Run(const std::function<void(int64_t rank, RankPage& page)>& run) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < pages.size(); ++rank) {
      threads.emplace_back([&, rank] { run(static_cast<int64_t>(rank), *pages[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::shared_ptr<HostMemory> memory;
  std::vector<std::unique_ptr<RankPage>> pages;
};

TEST(RankArenaTest, TakesTheLowestPlaceAndJoinsWhatIsFree) {
  Ranks ranks(1);
  RankArena& arena = *ranks.pages[0]->arena();
  std::byte* const first = arena.Allocate(1);
  std::byte* const second = arena.Allocate(kPage + 1);
  std::byte* const third = arena.Allocate(0);
  EXPECT_EQ(arena.OffsetOf(first, 1), 0);
  EXPECT_EQ(arena.OffsetOf(second, kPage + 1), kPage);
  EXPECT_EQ(arena.OffsetOf(third, 0), 3 * kPage);
  arena.Free(first);
  arena.Free(second);
  EXPECT_EQ(arena.Allocate(3 * kPage), first);
  arena.Free(third);
  arena.Free(third);  // is nobody's any more
  arena.Free(first);
  EXPECT_EQ(arena.Allocate(RankArena::kPartBytes + 1), nullptr);
  EXPECT_EQ(arena.Allocate(10 * kPage), first);
}

TEST(RankArenaTest, OthersSeeWhatARankWritesAndNothingBeyondItsPart) {
  Ranks ranks(2);
  RankArena &own = *ranks.pages[1]->arena(), &other = *ranks.pages[0]->arena();
  std::byte* const data = own.Allocate(8);
  std::memcpy(data, "abcdefg", 8);
  EXPECT_STREQ(reinterpret_cast<const char*>(other.At(1, own.OffsetOf(data, 8), 8)), "abcdefg");
  EXPECT_EQ(other.At(1, -1, 8), nullptr);
  EXPECT_EQ(other.At(1, RankArena::kPartBytes - 7, 8), nullptr);
  EXPECT_EQ(other.At(1, INT64_MAX, 8), nullptr);
  EXPECT_EQ(other.OffsetOf(data, 8), RankArena::kNowhere);
  EXPECT_EQ(own.OffsetOf(data, RankArena::kPartBytes + 1), RankArena::kNowhere);
}

TEST(RankArenaTest, AFileThatIsNoArenaIsRefused) {
  const int file = *RankArena::MakeFile(2);
  EXPECT_FALSE(RankArena::Open(file, 0, 3).ok());
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 2 * RankArena::kPartBytes), 0);
  EXPECT_FALSE(RankArena::Open(unsealed, 0, 2).ok());
  close(unsealed);
  close(file);
}

// ---- collectives

float Value(int64_t rank, int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 11); }

enum class Ran : uint8_t { kInArena, kNot };

Ran RunOne(RankPage& page, uint64_t number, const CollectiveSignature& signature, const PageOperands& operands) {
  page.Come(number, signature, ArenaProgram::PlacesOf(signature, operands, page));
  page.Await(
      RankPage::News::kVerdict, [&] { return page.VerdictOf(number) != Verdict::kOpen; }, SteadyNs() + 20 * kSecondNs);
  EXPECT_EQ(page.VerdictOf(number), Verdict::kGranted);
  const auto program = ArenaProgram::Make(signature, operands, page, number);
  if (program.has_value()) program->Run();
  page.PublishNext();
  page.Await(
      RankPage::News::kStep, [&] { return page.LookAtStep() != RankPage::StepState::kOpen; },
      SteadyNs() + 20 * kSecondNs);
  EXPECT_EQ(page.LookAtStep(), RankPage::StepState::kPublished);
  page.EndCall();
  return program.has_value() ? Ran::kInArena : Ran::kNot;
}

class Floats {
 public:
  Floats(RankArena& arena, int64_t count)
      : arena_(arena), data_(reinterpret_cast<float*>(arena.Allocate(count * 4))), count_(count) {}
  ~Floats() { arena_.Free(reinterpret_cast<std::byte*>(data_)); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  void Fill(int64_t rank) {
    for (int64_t i = 0; i < count_; ++i) data_[i] = Value(rank, i);
  }
  float* data() { return data_; }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(data_); }

 private:
  RankArena& arena_;
  float* data_;
  int64_t count_;
};

TEST(ArenaProgramTest, EachCollectiveGivesWhatItIs) {
  for (const int64_t ranks : {2, 3, 5}) {
    Ranks group(ranks);
    group.Run([&](int64_t rank, RankPage& page) {
      uint64_t number = 0;
      const auto sum = [&](int64_t at) {
        float total = 0;
        for (int64_t r = 0; r < ranks; ++r) total += Value(r, at);
        return total;
      };
      for (const int64_t e : {1, 5, 1000, 40'001}) {
        Floats one(*page.arena(), e), other(*page.arena(), e), all(*page.arena(), e * ranks);
        for (const bool is_in_place : {true, false}) {
          one.Fill(rank);
          float* const result = is_in_place ? one.data() : other.data();
          ASSERT_EQ(RunOne(page, ++number, {CollectiveKind::kAllReduce, ReduceOp::kSum, 0, DType::kF32, e},
                           {one.bytes(), reinterpret_cast<std::byte*>(result)}),
                    Ran::kInArena);
          for (int64_t i = 0; i < e; ++i) ASSERT_EQ(result[i], sum(i)) << i;
        }
        // An output in any memory.
        std::vector<float> gathered(static_cast<size_t>(e * ranks));
        one.Fill(rank);
        ASSERT_EQ(RunOne(page, ++number, {CollectiveKind::kAllGather, ReduceOp::kSum, 0, DType::kF32, e},
                         {one.bytes(), reinterpret_cast<std::byte*>(gathered.data())}),
                  Ran::kInArena);
        for (int64_t i = 0; i < e * ranks; ++i) ASSERT_EQ(gathered[static_cast<size_t>(i)], Value(i / e, i % e));
        all.Fill(rank);
        ASSERT_EQ(RunOne(page, ++number, {CollectiveKind::kReduceScatter, ReduceOp::kSum, 0, DType::kF32, e},
                         {all.bytes(), other.bytes()}),
                  Ran::kInArena);
        for (int64_t i = 0; i < e; ++i) ASSERT_EQ(other.data()[i], sum(rank * e + i));
      }
    });
  }
}

TEST(ArenaProgramTest, NobodyRunsACallThereWhoseOperandsAreNotAllThere) {
  Ranks group(3);
  group.Run([&](int64_t rank, RankPage& page) {
    Floats own(*page.arena(), 100);
    std::vector<float> elsewhere(100, 1);
    own.Fill(rank);
    std::byte* const data = rank == 1 ? reinterpret_cast<std::byte*>(elsewhere.data()) : own.bytes();
    EXPECT_EQ(RunOne(page, 1, {CollectiveKind::kAllReduce, ReduceOp::kSum, 0, DType::kF32, 100}, {data, data}),
              Ran::kNot);
    // An output within the input would cover what others read.
    const PageOperands covered = {own.bytes(), own.bytes()};
    EXPECT_EQ(RunOne(page, 2, {CollectiveKind::kReduceScatter, ReduceOp::kSum, 0, DType::kF32, 30}, covered),
              Ran::kNot);
  });
}

TEST(ArenaProgramTest, APlaceThatIsNoneIsNotTouched) {
  Ranks group(2);
  const CollectiveSignature signature = {CollectiveKind::kAllReduce, ReduceOp::kSum, 0, DType::kF32, 1000};
  RankPage &liar = *group.pages[0], &honest = *group.pages[1];
  Floats own(*honest.arena(), 1000);
  own.Fill(1);
  const PageOperands operands = {own.bytes(), own.bytes()};
  for (const int64_t place : {RankArena::kPartBytes - 8, INT64_MAX, INT64_MIN}) {
    static uint64_t number = 0;
    liar.Come(++number, signature, {place, place});
    honest.Come(number, signature, ArenaProgram::PlacesOf(signature, operands, honest));
    ASSERT_EQ(honest.VerdictOf(number), Verdict::kGranted);
    const auto program = ArenaProgram::Make(signature, operands, honest, number);
    ASSERT_TRUE(program.has_value());
    program->Run();
    EXPECT_EQ(own.data()[999], Value(1, 999));
  }
}

}  // namespace
}  // namespace tessera
