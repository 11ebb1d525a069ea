#include "client/rank_flight.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "client/rank_page/bell.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

double SecondsSince(int64_t ns, int64_t now_ns) { return static_cast<double>(now_ns - ns) * 1e-9; }

using MessageKey = std::tuple<int64_t, int64_t, uint64_t>;  // sender, receiver, place in their ring

FlightReport::Call CallOf(const MailRecord::Note& note, int64_t rank, size_t ranks, int64_t now_ns) {
  FlightReport::Call call;
  call.what = StrCat(ToText(note.message, note.is_send), " of rank ", rank);
  call.arrived_s.resize(ranks, -1);
  call.arrived_s[static_cast<size_t>(rank)] = SecondsSince(note.came_ns, now_ns);
  if (note.code != absl::StatusCode::kOk) call.failure = absl::StatusCodeToString(note.code);
  return call;
}

}  // namespace

void AddPageCalls(const RankPage& page, FlightReport& report) {
  std::map<uint64_t, FlightReport::Call> granted;
  const int64_t now_ns = SteadyNs();
  for (int64_t rank = 0; rank < page.ranks(); ++rank) {
    FlightReport::Member& member = report.members[static_cast<size_t>(rank)];
    member.next_call = std::max(member.next_call, page.LastCallOf(rank) + 1);
    for (const RankPage::FlightCall& known : page.FlightOf(rank)) {
      FlightReport::Call& call = granted[known.number];
      call.number = known.number;
      call.what = ToText(known.signature);
      call.arrived_s.resize(static_cast<size_t>(page.ranks()), -1);
      call.arrived_s[static_cast<size_t>(rank)] = SecondsSince(known.came_ns, now_ns);
      if (known.granted_ns >= 0) call.matched_s = std::max(call.matched_s, SecondsSince(known.granted_ns, now_ns));
    }
  }
  for (const FlightReport::Call& asked : report.calls) granted.erase(asked.number);
  for (auto& [number, call] : granted) report.calls.push_back(std::move(call));
}

void AddMessages(const MailRecord& record, FlightReport& report) {
  const int64_t now_ns = SteadyNs();
  const size_t ranks = report.members.size();
  std::map<MessageKey, FlightReport::Call> messages;
  std::vector<std::pair<int64_t, MailRecord::Note>> receives;
  for (int64_t rank = 0; rank < static_cast<int64_t>(ranks); ++rank) {
    for (const MailRecord::Note& note : record.NotesOf(rank)) {
      if (!note.is_send) {
        receives.emplace_back(rank, note);
      } else if (note.place == 0) {
        report.calls.push_back(CallOf(note, rank, ranks, now_ns));
      } else {
        messages[{rank, note.message.peer, note.place}] = CallOf(note, rank, ranks, now_ns);
      }
    }
  }
  for (const auto& [rank, note] : receives) {
    const auto sent = note.place == 0 ? messages.end() : messages.find({note.message.peer, rank, note.place});
    FlightReport::Call alone;
    if (sent == messages.end()) alone = CallOf(note, rank, ranks, now_ns);
    FlightReport::Call& call = sent == messages.end() ? alone : sent->second;
    call.arrived_s[static_cast<size_t>(rank)] = SecondsSince(note.came_ns, now_ns);
    if (note.ended_ns >= 0 && note.code == absl::StatusCode::kOk) call.matched_s = SecondsSince(note.ended_ns, now_ns);
    if (note.code != absl::StatusCode::kOk) call.failure = absl::StatusCodeToString(note.code);
    if (sent == messages.end()) report.calls.push_back(std::move(alone));
  }
  for (auto& [key, call] : messages) report.calls.push_back(std::move(call));
}

void KeepLast(size_t most, FlightReport& report) {
  const auto age_of = [](const FlightReport::Call& call) {
    return *std::max_element(call.arrived_s.begin(), call.arrived_s.end());
  };
  std::stable_sort(report.calls.begin(), report.calls.end(),
                   [&](const FlightReport::Call& a, const FlightReport::Call& b) { return age_of(a) > age_of(b); });
  if (report.calls.size() > most)
    report.calls.erase(report.calls.begin(), report.calls.end() - static_cast<long>(most));
}

}  // namespace tessera
