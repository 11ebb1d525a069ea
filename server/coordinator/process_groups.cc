#include "server/coordinator/process_groups.h"

#include <algorithm>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kNamedRanks = 8;

}  // namespace

std::string SecondsText(int64_t us) { return StrCat(static_cast<double>(us) * 1e-6, " s"); }

bool WaitingMessage::IsOtherSideOf(const WaitingMessage& known) const {
  if (is_send() == known.is_send() || tag != known.tag || claim != known.claim || known.is_blocked) return false;
  const WaitingMessage& sent = is_send() ? *this : known;
  const WaitingMessage& received = is_send() ? known : *this;
  return sent.peer == received.call.rank && (received.peer == sent.call.rank || received.peer == kAnySource);
}

std::string WaitingMessage::ToText() const {
  const std::string whom = peer == kAnySource ? "any rank" : StrCat("rank ", peer);
  return StrCat(tessera::ToText(call.signature), is_send() ? " to " : " from ", whom, " with tag ", tag);
}

size_t ProcessGroupEntry::CountIn(GroupMember::State state) const {
  return static_cast<size_t>(std::count_if(members.begin(), members.end(),
                                           [state](const GroupMember& member) { return member.state == state; }));
}

std::optional<int32_t> ProcessGroupEntry::RankOf(SessionId session) const {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const GroupMember& member = members[rank];
    if (member.state == GroupMember::State::kHere && member.session == session) return static_cast<int32_t>(rank);
  }
  return std::nullopt;
}

std::string ProcessGroupEntry::NameOf(int32_t rank) const {
  const std::string& process = members[static_cast<size_t>(rank)].process;
  return process.empty() ? StrCat("rank ", rank) : StrCat("rank ", rank, " (", process, ")");
}

std::string ProcessGroupEntry::NameOf(const GroupCall& call) const {
  return StrCat("call ", call.number, " of group '", key, "'");
}

absl::Status ProcessGroupEntry::WhyGone(int32_t rank, const std::string& what) const {
  return absl::UnavailableError(
      StrCat(what, " of group '", key, "': ", NameOf(rank), " is gone: ", members[static_cast<size_t>(rank)].why));
}

std::optional<int32_t> ProcessGroupEntry::FindGone() const {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].state == GroupMember::State::kGone) return static_cast<int32_t>(rank);
  }
  return std::nullopt;
}

std::string ProcessGroupEntry::TextOf(const std::vector<int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kNamedRanks; ++i) {
    if (i > 0) StrAppend(&text, i + 1 == ranks.size() ? " and " : ", ");
    StrAppend(&text, ranks[i]);
  }
  if (ranks.size() > kNamedRanks) StrAppend(&text, " and ", ranks.size() - kNamedRanks, " more");
  return text;
}

GroupCall& ProcessGroupEntry::CallAt(uint64_t number) {
  // Nearly always the last one, or after it.
  auto next = calls.end();
  while (next != calls.begin() && std::prev(next)->number >= number) --next;
  if (next == calls.end() || next->number != number) {
    next = calls.emplace(next);
    next->number = number;
  }
  return *next;
}

std::vector<int32_t> ProcessGroupEntry::MissingAt(const GroupCall& call) const {
  std::vector<int32_t> missing;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].next_call <= call.number) missing.push_back(static_cast<int32_t>(rank));
  }
  return missing;
}

std::string ProcessGroupEntry::WhoCalledWhat(const std::vector<ArrivedCall>& calls) {
  std::vector<std::pair<CollectiveSignature, std::vector<int32_t>>> by_signature;
  for (const ArrivedCall& call : calls) {
    auto known = std::find_if(by_signature.begin(), by_signature.end(),
                              [&call](const auto& entry) { return entry.first == call.signature; });
    if (known == by_signature.end()) known = by_signature.insert(known, {call.signature, {}});
    known->second.push_back(call.rank);
  }
  for (auto& [signature, ranks] : by_signature) std::sort(ranks.begin(), ranks.end());
  std::sort(by_signature.begin(), by_signature.end(),
            [](const auto& a, const auto& b) { return a.second[0] < b.second[0]; });
  std::string text;
  for (size_t i = 0; i < by_signature.size(); ++i) {
    if (i == kNamedRanks) return StrCat(text, "; and ", by_signature.size() - i, " more kinds of calls");
    const auto& [signature, ranks] = by_signature[i];
    StrAppend(&text, i > 0 ? "; " : "", TextOf(ranks), " called ", ToText(signature));
  }
  return text;
}

FlightCall& ProcessGroupEntry::Note(uint64_t number, const std::string& what, size_t max_flight_calls) {
  if (flight.size() >= max_flight_calls) flight.pop_front();
  FlightCall& noted = flight.emplace_back();
  noted.number = number;
  noted.what = what;
  noted.arrived_us.assign(members.size(), FlightCall::kNever);
  return noted;
}

FlightCall* ProcessGroupEntry::Noted(uint64_t number) {
  for (auto noted = flight.rbegin(); noted != flight.rend(); ++noted) {
    if (noted->number == number) return &*noted;
  }
  return nullptr;
}

void ProcessGroupEntry::ForgetCalls() {
  const auto is_over = [this](const GroupCall& call) {
    return std::all_of(members.begin(), members.end(), [&call](const GroupMember& member) {
      return member.next_call > call.number || member.state == GroupMember::State::kGone;
    });
  };
  while (!calls.empty() && is_over(calls.front())) calls.pop_front();
}

ProcessGroupEntry* ProcessGroups::Find(uint64_t id) {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : &found->second;
}

const ProcessGroupEntry* ProcessGroups::FindByKey(const std::string& tenant, const std::string& key) const {
  const auto found = by_key_.find({tenant, key});
  return found == by_key_.end() ? nullptr : &groups_.at(found->second);
}

ProcessGroupEntry& ProcessGroups::Add(const std::string& tenant, const std::string& key, size_t size) {
  const uint64_t id = next_++;
  by_key_[{tenant, key}] = id;
  ProcessGroupEntry& group = groups_[id];
  group.id = id;
  group.tenant = tenant;
  group.key = key;
  group.members.resize(size);
  return group;
}

void ProcessGroups::Erase(uint64_t id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  const auto named = by_key_.find({found->second.tenant, found->second.key});
  if (named != by_key_.end() && named->second == id) by_key_.erase(named);
  groups_.erase(found);
}

}  // namespace tessera
