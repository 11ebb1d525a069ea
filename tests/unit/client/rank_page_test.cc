// The page that ranks of one host share: one verdict for each call at all ranks, what each collective gives, damage.

#include "client/rank_page/rank_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/host_memory.h"
#include "client/rank_page/page_program.h"

namespace tessera {
namespace {

using StepState = RankPage::StepState;
using Verdict = RankPage::Verdict;

constexpr int64_t kSecondNs = 1'000'000'000;

CollectiveSignature Sum(int64_t elements) {
  return {CollectiveKind::kAllReduce, ReduceOp::kSum, 0, DType::kF32, elements};
}

// The pages of the ranks of a group, all in this process.
struct Pages {
  explicit Pages(int64_t ranks) : memory(*HostMemory::Make(RankPage::BytesFor(ranks))) {
    for (int64_t rank = 0; rank < ranks; ++rank) pages.push_back(*RankPage::Map(memory->fd(), rank, ranks));
  }
  // Calls run(rank, page) for all ranks at once.
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

Verdict AwaitVerdict(RankPage& page, uint64_t number) {
  page.Await(
      RankPage::News::kVerdict, [&] { return page.VerdictOf(number) != Verdict::kOpen; }, SteadyNs() + 20 * kSecondNs);
  return page.VerdictOf(number);
}

TEST(RankPageTest, TheLastRankThatComesGrantsTheCall) {
  Pages group(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.pages[0]->VerdictOf(1), Verdict::kOpen);
    group.pages[rank]->Come(1, Sum(4));
  }
  for (const auto& page : group.pages) EXPECT_EQ(page->VerdictOf(1), Verdict::kGranted);
}

TEST(RankPageTest, CallsThatDifferInAnyFieldAreAsked) {
  CollectiveSignature other[6] = {Sum(4), Sum(4), Sum(4), Sum(4), Sum(5), Sum(4)};
  other[0].kind = CollectiveKind::kBroadcast;
  other[1].op = ReduceOp::kMax;
  other[2].root = 1;
  other[3].dtype = DType::kI32;
  other[5].on_devices = true;
  Pages group(2);
  uint64_t number = 0;
  for (const CollectiveSignature& signature : other) {
    ++number;
    group.pages[0]->Come(number, Sum(4));
    group.pages[1]->Come(number, signature);
    EXPECT_EQ(group.pages[0]->VerdictOf(number), Verdict::kAsked) << ToText(signature);
    EXPECT_EQ(group.pages[1]->VerdictOf(number), Verdict::kAsked) << ToText(signature);
  }
  ++number;
  group.pages[1]->Come(number, Sum(4));
  group.pages[0]->Come(number, Sum(4));
  EXPECT_EQ(group.pages[1]->VerdictOf(number), Verdict::kGranted);
}

TEST(RankPageTest, ARankThatIsLateSeesWhatTheOthersHadAsked) {
  Pages group(2);
  RankPage &early = *group.pages[0], &late = *group.pages[1];
  early.Come(1, Sum(4));
  late.Come(1, Sum(4));
  EXPECT_EQ(early.VerdictOf(1), Verdict::kGranted);
  for (uint64_t number = 2; number < 10; ++number) {
    early.Come(number, Sum(4));
    EXPECT_EQ(early.Ask(number), Verdict::kAsked);
  }
  EXPECT_EQ(late.VerdictOf(1), Verdict::kGranted);  // it looks late, too
  for (uint64_t number = 2; number < 10; ++number) {
    late.Come(number, Sum(4));
    EXPECT_EQ(late.VerdictOf(number), Verdict::kAsked) << number;
  }
  EXPECT_EQ(late.Ask(1), Verdict::kGranted);  // a verdict stays
}

TEST(RankPageTest, AllRanksSeeTheSameVerdictsWhoeverLosesPatience) {
  constexpr uint64_t kCalls = 3000;
  constexpr int64_t kRanks = 3;
  Pages group(kRanks);
  std::vector<std::vector<Verdict>> seen(kRanks);
  group.Run([&](int64_t rank, RankPage& page) {
    std::minstd_rand random(static_cast<unsigned>(rank) + 1);
    for (uint64_t number = 1; number <= kCalls; ++number) {
      const unsigned luck = random() % 8;
      if (luck != 0) page.Come(number, Sum(number % 50 == 0 ? rank : 4));
      Verdict verdict = Verdict::kOpen;
      if (luck <= 1) {
        for (unsigned i = random() % 64; i > 0; --i) verdict = page.VerdictOf(number);
        verdict = page.Ask(number);
      } else {
        verdict = AwaitVerdict(page, number);
      }
      seen[static_cast<size_t>(rank)].push_back(verdict);
    }
  });
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_NE(seen[0], std::vector<Verdict>(kCalls, Verdict::kAsked));
}

// ---- what the collectives give

// Element i of a rank's tensor: small whole numbers, so that sums of f32 are exact.
float Value(int64_t rank, int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 11); }

struct Case {
  CollectiveKind kind;
  int64_t inputs, outputs;  // how many times the elements of the signature
};

// Element i of a rank's output, for `e` elements of the signature.
float Expected(CollectiveKind kind, int64_t ranks, int64_t rank, int64_t e, int64_t i) {
  const auto sum = [ranks](int64_t at) {
    float total = 0;
    for (int64_t r = 0; r < ranks; ++r) total += Value(r, at);
    return total;
  };
  const int64_t part = e == 0 ? 0 : i / e, at = e == 0 ? 0 : i % e;
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce: return sum(i);
    case CollectiveKind::kBroadcast: return Value(1 % ranks, i);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather: return Value(part, at);
    case CollectiveKind::kScatter: return Value(1 % ranks, rank * e + i);
    case CollectiveKind::kReduceScatter: return sum(rank * e + i);
    case CollectiveKind::kAllToAll: return Value(part, rank * e + at);
    default: return 0;
  }
}

void RunOne(RankPage& page, uint64_t number, const CollectiveSignature& signature, const PageOperands& operands) {
  const PageProgram program(signature, operands, page);
  program.Write(0, page.Part(page.rank(), 0));
  page.Come(number, signature);
  ASSERT_EQ(AwaitVerdict(page, number), Verdict::kGranted);
  for (int64_t step = 0; step < program.steps(); ++step) {
    program.Read(step);
    if (step + 1 == program.steps()) break;
    program.Write(step + 1, page.NextPart(0));
    page.PublishNext();
    page.Await(
        RankPage::News::kStep, [&] { return page.LookAtStep() != StepState::kOpen; }, SteadyNs() + 20 * kSecondNs);
    ASSERT_EQ(page.LookAtStep(), StepState::kPublished) << page.FindMissing();
  }
  page.EndCall();
}

void RunCollectives(int64_t ranks, const std::vector<int64_t>& sizes) {
  const Case cases[] = {{CollectiveKind::kAllReduce, 1, 1},
                        {CollectiveKind::kReduce, 1, 1},
                        {CollectiveKind::kBroadcast, 1, 1},
                        {CollectiveKind::kAllGather, 1, ranks},
                        {CollectiveKind::kGather, 1, ranks},
                        {CollectiveKind::kScatter, ranks, 1},
                        {CollectiveKind::kReduceScatter, ranks, 1},
                        {CollectiveKind::kAllToAll, ranks, ranks},
                        {CollectiveKind::kBarrier, 0, 0}};
  Pages group(ranks);
  group.Run([&](int64_t rank, RankPage& page) {
    uint64_t number = 0;
    for (const int64_t e : sizes) {
      for (const Case& one : cases) {
        const CollectiveSignature signature = {one.kind, ReduceOp::kSum, static_cast<int32_t>(1 % ranks), DType::kF32,
                                               e};
        const bool is_root = rank == 1 % ranks;
        const bool gives = is_root || (one.kind != CollectiveKind::kBroadcast && one.kind != CollectiveKind::kScatter);
        const bool takes = one.kind == CollectiveKind::kBroadcast ? !is_root
                                                                  : is_root || (one.kind != CollectiveKind::kReduce &&
                                                                                one.kind != CollectiveKind::kGather);
        std::vector<float> input(static_cast<size_t>(gives ? one.inputs * e : 0));
        for (size_t i = 0; i < input.size(); ++i) input[i] = Value(rank, static_cast<int64_t>(i));
        std::vector<float> output(static_cast<size_t>(takes ? one.outputs * e : 0), -1);
        const bool is_in_place = one.inputs == one.outputs && gives && takes && e % 2 == 1;
        std::vector<float>& result = is_in_place ? input : output;
        RunOne(page, ++number, signature,
               {reinterpret_cast<const std::byte*>(input.data()), reinterpret_cast<std::byte*>(result.data())});
        if (!takes) continue;
        for (size_t i = 0; i < result.size(); ++i) {
          const float expected = Expected(one.kind, ranks, rank, e, static_cast<int64_t>(i));
          ASSERT_EQ(result[i], expected) << ToText(signature) << ": rank " << rank << " of " << ranks << ", element "
                                         << i;
        }
      }
    }
  });
}

// A part has 32,768 elements among 2 ranks, 21,504 among 3, 16,384 among 4.
TEST(RankPageTest, EachCollectiveGivesWhatItIs) {
  const std::vector<int64_t> sizes = {0, 1, 5, 1000, 21504, 40001, 65536, 200003};
  for (const int64_t ranks : {1, 2, 3, 4}) RunCollectives(ranks, sizes);
}

TEST(RankPageTest, CallsOnDevicesAreGrantedAndMoveNothing) {
  Pages group(2);
  group.Run([&](int64_t rank, RankPage& page) {
    uint64_t number = 0;
    for (int kind = 0; kind < static_cast<int>(CollectiveKind::kBarrier); ++kind) {
      CollectiveSignature signature = Sum(int64_t{1} << 40);
      signature.kind = static_cast<CollectiveKind>(kind);
      signature.on_devices = true;
      ASSERT_TRUE(PageProgram::Takes(signature));
      RunOne(page, ++number, signature, {});
      EXPECT_EQ(page.FlightOf(rank).back().signature, signature);
    }
  });
}

TEST(RankPageTest, SumsOfFloatsHaveTheSameBitsAtAllRanks) {
  constexpr int64_t kRanks = 3, kElements = 100'000;
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(kElements));
  std::minstd_rand random(7);
  for (auto& of_rank : values) {
    for (float& value : of_rank) value = static_cast<float>(random()) * 1e-7f;
  }
  const std::vector<std::vector<float>> given = values;
  Pages group(kRanks);
  group.Run([&](int64_t rank, RankPage& page) {
    auto* own = reinterpret_cast<std::byte*>(values[static_cast<size_t>(rank)].data());
    RunOne(page, 1, Sum(kElements), {own, own});
  });
  for (size_t i = 0; i < kElements; ++i) {
    const float expected = given[0][i] + given[1][i] + given[2][i];
    for (int64_t rank = 0; rank < kRanks; ++rank) ASSERT_EQ(values[static_cast<size_t>(rank)][i], expected) << i;
  }
}

// ---- what goes wrong

TEST(RankPageTest, ADamagedPageEndsWaitsByTheirTime) {
  std::minstd_rand random(3);
  for (int round = 0; round < 50; ++round) {
    Pages group(2);
    const auto scribble = [&] {
      for (size_t i = 0; i < 8192; ++i) group.memory->data()[i] = static_cast<char>(random());
    };
    RankPage& page = *group.pages[0];
    page.Come(1, Sum(4));
    scribble();
    page.Await(
        RankPage::News::kVerdict, [&] { return page.VerdictOf(1) != Verdict::kOpen; }, SteadyNs() + 1'000'000);
    page.Ask(1);
    page.Come(2, Sum(4));
    page.PublishNext();
    scribble();
    page.Await(
        RankPage::News::kStep, [&] { return page.LookAtStep() != StepState::kOpen; }, SteadyNs() + 1'000'000);
    (void)page.FindMissing();
    for (const RankPage::FlightCall& call : page.FlightOf(1)) EXPECT_FALSE(ToText(call.signature).empty());
  }
}

TEST(RankPageTest, AGroupThatGaveUpACallGoesOnByAsking) {
  Pages group(2);
  std::thread waits([&] {
    RankPage& page = *group.pages[1];
    page.Await(
        RankPage::News::kStep, [&] { return page.is_closed(); }, SteadyNs() + 20 * kSecondNs);
  });
  group.pages[0]->Close(0);
  group.pages[0]->Close(1);
  waits.join();
  EXPECT_TRUE(group.pages[1]->is_closed());
  EXPECT_EQ(group.pages[1]->blamed(), 0);
}

// Rank 2 is late: the others have given the call up, and it may not take the call for done.
TEST(RankPageTest, ARankThatIsLateGivesUpTheCallToo) {
  Pages group(3);
  group.pages[0]->PublishNext();
  group.pages[1]->PublishNext();
  EXPECT_EQ(group.pages[0]->LookAtStep(), StepState::kOpen);
  group.pages[0]->Close(group.pages[0]->FindMissing());
  group.pages[2]->PublishNext();
  for (const auto& page : group.pages) {
    EXPECT_EQ(page->LookAtStep(), StepState::kClosed);
    EXPECT_EQ(page->blamed(), 2);
  }
}

TEST(RankPageTest, AWakeEndsASleep) {
  Pages group(2);
  std::atomic<bool> is_wanted{false};
  const int64_t start_ns = SteadyNs();
  std::thread waits([&] {
    group.pages[0]->Await(
        RankPage::News::kVerdict, [&] { return is_wanted.load(); }, SteadyNs() + 20 * kSecondNs);
  });
  is_wanted = true;
  group.pages[0]->Wake();
  waits.join();
  EXPECT_LT(SteadyNs() - start_ns, 10 * kSecondNs);
}

TEST(RankPageTest, AFileThatIsNoPageIsRefused) {
  const int64_t bytes = RankPage::BytesFor(2);
  const auto other = *HostMemory::Make(bytes - 4096);
  EXPECT_EQ(RankPage::Map(other->fd(), 0, 2).status().code(), absl::StatusCode::kInvalidArgument);
  const int unsealed = memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(unsealed, bytes), 0);
  EXPECT_EQ(RankPage::Map(unsealed, 0, 2).status().code(), absl::StatusCode::kInvalidArgument);
  close(unsealed);
}

}  // namespace
}  // namespace tessera
