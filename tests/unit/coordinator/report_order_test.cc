#include "server/coordinator/rpc/report_order.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

WorkerReportEvent ReportOf(uint64_t ordinal) {
  WorkerReportEvent report;
  report.completions.emplace_back().ordinal = Ordinal(ordinal);
  return report;
}

TEST(ReportOrder, GivesReportsInTheWorkersOrder) {
  ReportOrder order;
  EXPECT_FALSE(order.Take().has_value());
  for (const uint64_t number : {2, 4, 1, 3}) {
    ASSERT_TRUE(order.Add(number, ReportOf(10 * number)).ok());
    if (number == 2 || number == 4) {
      EXPECT_FALSE(order.Take().has_value()) << "the first one has not come";
    }
  }
  for (const uint64_t number : {1, 2, 3, 4}) {
    const std::optional<WorkerReportEvent> report = order.Take();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->completions[0].ordinal, Ordinal(10 * number));
  }
  EXPECT_FALSE(order.Take().has_value());
}

TEST(ReportOrder, RefusesWhatCameBeforeAndWhatIsFarAhead) {
  ReportOrder order;
  ASSERT_TRUE(order.Add(1, ReportOf(1)).ok());
  EXPECT_EQ(order.Add(1, ReportOf(1)).message(), "report 1 came twice");
  ASSERT_TRUE(order.Take().has_value());
  EXPECT_EQ(order.Add(1, ReportOf(1)).code(), absl::StatusCode::kInvalidArgument);
  for (uint64_t ahead = 0; ahead < ReportOrder::kMaxEarlyReports; ++ahead) {
    ASSERT_TRUE(order.Add(3 + ahead, ReportOf(1)).ok());
  }
  EXPECT_EQ(order.Add(1000, ReportOf(1)).message(), "report 1000 came, and 2 did not");
  EXPECT_FALSE(order.Take().has_value());
  ASSERT_TRUE(order.Add(2, ReportOf(1)).ok()) << "the one that is due";
  for (uint64_t taken = 0; taken <= ReportOrder::kMaxEarlyReports; ++taken) EXPECT_TRUE(order.Take().has_value());
}

}  // namespace
}  // namespace tessera
