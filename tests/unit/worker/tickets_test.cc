// Tickets: opened once their window is, redeemed once, reported once and not while a copy runs.

#include "server/worker/tickets.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/layout.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {
namespace {

constexpr uint64_t kSecret = 77;

class Tickets : public ::testing::Test {
 protected:
  TransferWindow Window(uint64_t number, int64_t offset_bytes = 0) const {
    TransferWindow window;
    window.ordinal = Ordinal(number);
    window.ticket = TicketId(number);
    window.secret = kSecret;
    window.ranges = {{TransferDirection::kDownload, *ParseTensorSpec("f32[8] @ mesh(2) [S(0)]"), offset_bytes, {1}}};
    return window;
  }
  TicketTable::TicketPointer Redeemed(uint64_t number) {
    EXPECT_TRUE(table_.Expect(Window(number)).ok());
    table_.Open(Ordinal(number));
    return *table_.Redeem(TicketId(number), kSecret);
  }
  absl::StatusCode CodeOf(uint64_t number, uint64_t secret = kSecret) {
    return table_.Redeem(TicketId(number), secret).status().code();
  }

  SharedArena arena_ = *SharedArena::Create(4096);
  std::vector<TransferReport> reports_;
  TicketTable table_{WorkerIndex(1), arena_, [this](TransferReport report) { reports_.push_back(std::move(report)); }};
};

TEST_F(Tickets, AreRedeemedOnceByWhoKnowsTheSecretWhenTheirWindowIsOpen) {
  ASSERT_TRUE(table_.Expect(Window(1)).ok());
  EXPECT_TRUE(table_.has_unopened());
  EXPECT_EQ(CodeOf(1), absl::StatusCode::kNotFound);
  table_.Open(Ordinal(9));  // no window's
  EXPECT_TRUE(table_.has_unopened());
  table_.Open(Ordinal(1));
  EXPECT_FALSE(table_.has_unopened());
  EXPECT_EQ(CodeOf(1, kSecret + 1), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(2), absl::StatusCode::kNotFound);
  const auto ticket = table_.Redeem(TicketId(1), kSecret);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  ASSERT_EQ((*ticket)->shards.size(), 1u);
  EXPECT_EQ((*ticket)->shards[0].box, (Box{{4, 8}}));
  EXPECT_EQ(CodeOf(1), absl::StatusCode::kFailedPrecondition);
}

TEST_F(Tickets, OfSeveralTensorsHaveAShardOfEachOrAreNone) {
  TransferWindow window = Window(1);
  window.ranges.push_back({TransferDirection::kDownload, *ParseTensorSpec("f64[3,2] @ mesh(2) [R]"), 512, {2, 1}});
  ASSERT_TRUE(table_.Expect(window).ok());
  table_.Open(Ordinal(1));
  const auto ticket = *table_.Redeem(TicketId(1), kSecret);
  ASSERT_EQ(ticket->shards.size(), 2u);
  EXPECT_EQ(ticket->shards[1].box, (Box{{0, 3}, {0, 2}}));
  window.ordinal = Ordinal(2);
  window.ticket = TicketId(2);
  window.ranges[1].offset_bytes = 4096 - 8;
  EXPECT_EQ(table_.Expect(window).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(table_.has_unopened());
}

TEST_F(Tickets, OneThatIsResumedBeforeItWasRedeemedIsRedeemedThen) {
  ASSERT_TRUE(table_.Expect(Window(1)).ok());
  table_.Open(Ordinal(1));
  ASSERT_TRUE(table_.Resume(TicketId(1), kSecret).ok());  // the call that redeems it was lost on its way
  EXPECT_EQ(CodeOf(1), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(table_.Resume(TicketId(1), kSecret).ok());
}

TEST_F(Tickets, MayBeResumedByWhoKnowsTheSecretWhileTheyAreNotOver) {
  ASSERT_TRUE(table_.Expect(Window(1)).ok());
  table_.Open(Ordinal(1));
  const auto ticket = *table_.Redeem(TicketId(1), kSecret);
  const int first_holder = ticket->holder;
  EXPECT_EQ(table_.Resume(TicketId(1), kSecret + 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ticket->holder, first_holder);
  ASSERT_TRUE(table_.Resume(TicketId(1), kSecret).ok());
  EXPECT_NE(ticket->holder, first_holder);
  table_.End(ticket, absl::OkStatus());
  EXPECT_EQ(table_.Resume(TicketId(1), kSecret).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Tickets, OneWhoseWindowLiesOutsideTheArenaIsNone) {
  EXPECT_EQ(table_.Expect(Window(1, 1 << 20)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(table_.has_unopened());
  table_.Open(Ordinal(1));
  EXPECT_EQ(CodeOf(1), absl::StatusCode::kNotFound);
}

TEST_F(Tickets, EndOnceWithTheFirstOutcome) {
  const auto ticket = Redeemed(1);
  table_.End(ticket, absl::UnavailableError("the client went away"));
  table_.End(ticket, absl::OkStatus());
  table_.Close(TicketId(1));
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].ticket, TicketId(1));
  EXPECT_EQ(reports_[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf(1), absl::StatusCode::kNotFound);
}

TEST_F(Tickets, AreReportedWhenNoCopyRunsAnyMore) {
  const auto ticket = Redeemed(1);
  TicketTable::CopyBegins(ticket);
  TicketTable::CopyBegins(ticket);
  table_.Close(TicketId(1));
  EXPECT_TRUE(ticket->over);
  table_.CopyEnded(ticket, 100);
  EXPECT_TRUE(reports_.empty());
  table_.CopyEnded(ticket, 28);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(reports_[0].status.ok());
  const RunTimes& times = reports_[0].times;
  EXPECT_GT(times.started_ns, 0);
  EXPECT_GE(times.work_ns, 0);
  EXPECT_EQ(times.work_ns, times.ended_ns - times.started_ns);  // copies that overlap count once
  EXPECT_EQ(reports_[0].bytes, 128);
}

TEST_F(Tickets, ThatNobodyCopiedFromHaveNoTimes) {
  table_.End(Redeemed(1), absl::OkStatus());
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_FALSE(reports_[0].times.has_run());
}

TEST_F(Tickets, ClosedBeforeTheyAreOpenAreUnopenedNoMore) {
  ASSERT_TRUE(table_.Expect(Window(1)).ok());
  table_.Close(TicketId(1));
  table_.Close(TicketId(5));  // answered before
  EXPECT_FALSE(table_.has_unopened());
  EXPECT_EQ(reports_.size(), 1u);
}

// The link's thread expects and opens; the bulk server's redeems and ends.
TEST_F(Tickets, AreRedeemedByOneThreadWhileAnotherOpensTheirWindows) {
  constexpr uint64_t kCount = 2000;
  std::thread link([this] {
    for (uint64_t number = 1; number <= kCount; ++number) {
      const TransferWindow window = Window(number);
      ASSERT_TRUE(table_.Expect(window).ok());
      table_.Open(window.ordinal);
    }
  });
  for (uint64_t number = 1; number <= kCount; ++number) {
    const TransferWindow window = Window(number);
    absl::StatusOr<TicketTable::TicketPointer> ticket = table_.Redeem(window.ticket, window.secret);
    while (!ticket.ok()) ticket = table_.Redeem(window.ticket, window.secret);
    table_.End(*ticket, absl::OkStatus());
  }
  link.join();
  EXPECT_EQ(reports_.size(), kCount);
  EXPECT_FALSE(table_.has_unopened());
}

}  // namespace
}  // namespace tessera
