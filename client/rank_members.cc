#include "client/rank_members.h"

#include <mutex>
#include <utility>

#include "client/rank_page/bell.h"
#include "client/session_groups.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kAskNs = 200'000'000;  // docs/limits.md: member_look

}  // namespace

// A question to the coordinator. The connection's thread answers it.
struct RankMembers::Question {
  std::mutex mutex;
  bool is_asked = false;
  int64_t asked_ns = 0;
  View answer;
};

bool RankMembers::View::IsGone(int64_t rank) const {
  return report != nullptr && !report->members[static_cast<size_t>(rank)].why_gone.empty();
}

std::optional<int64_t> RankMembers::View::FindGone() const {
  for (size_t rank = 0; report != nullptr && rank < report->members.size(); ++rank) {
    if (!report->members[rank].why_gone.empty()) return static_cast<int64_t>(rank);
  }
  return std::nullopt;
}

std::string RankMembers::View::NameOf(int64_t rank) const {
  const std::string process = report == nullptr ? "" : report->members[static_cast<size_t>(rank)].process;
  return process.empty() ? StrCat("rank ", rank) : StrCat("rank ", rank, " (", process, ")");
}

absl::Status RankMembers::View::WhyGone(const std::string& call, int64_t rank) const {
  return absl::UnavailableError(
      StrCat(call, ": ", NameOf(rank), " is gone: ", report->members[static_cast<size_t>(rank)].why_gone));
}

RankMembers::RankMembers(std::shared_ptr<SessionImpl> session, uint64_t group)
    : session_(std::move(session)), group_(group), question_(std::make_shared<Question>()) {}

RankMembers::View RankMembers::Look() {
  std::unique_lock<std::mutex> lock(question_->mutex);
  const int64_t now_ns = SteadyNs();
  if (!question_->is_asked && now_ns >= question_->asked_ns + kAskNs) {
    question_->is_asked = true;
    question_->asked_ns = now_ns;
    lock.unlock();
    GroupDoor(*session_).AskFlight(group_, 0, [question = question_, now_ns](absl::StatusOr<FlightReport> report) {
      std::lock_guard<std::mutex> answered(question->mutex);
      question->is_asked = false;
      if (report.ok()) question->answer = {std::make_shared<const FlightReport>(*std::move(report)), now_ns};
    });
    lock.lock();
  }
  return question_->answer;
}

}  // namespace tessera
