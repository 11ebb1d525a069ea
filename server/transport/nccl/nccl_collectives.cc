#include "server/transport/nccl/nccl_collectives.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

bool Contains(const std::vector<WorkerIndex>& workers, WorkerIndex worker) {
  return std::binary_search(workers.begin(), workers.end(), worker);
}

NcclRecord RecordOf(NcclWord word, CollectiveKey key, uint64_t bytes = 0) {
  NcclRecord record;
  record.word = word;
  record.ordinal = key.ordinal;
  record.phase = key.phase;
  record.bytes = bytes;
  return record;
}

NcclRecord RecordOf(NcclWord word, uint64_t number, uint64_t question = 0) {
  return RecordOf(word, CollectiveKey{.ordinal = number}, question);
}

// The terms of a call that ranks must agree on: another kind, count, dtype or root is another number (FNV-1a, 64 bits).
uint64_t Summary(const std::vector<CollectivePart>& parts) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&hash](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> (8 * byte) & 0xFF)) * 0x100000001B3;
  };
  for (const CollectivePart& part : parts) {
    add(static_cast<uint64_t>(part.kind));
    add(part.root);
    add(static_cast<uint64_t>(part.dtype));
    add(static_cast<uint64_t>(part.count));
  }
  return hash;
}

// NCCL's type for sums; bytes else.
ncclDataType_t SummedType(DType dtype) {
  switch (dtype) {
    case DType::kI32: return ncclInt32;
    case DType::kU32: return ncclUint32;
    case DType::kI64: return ncclInt64;
    case DType::kU64: return ncclUint64;
    default: return ncclNumTypes;  // NCCL refuses it
  }
}

}  // namespace

NcclCollectives::NcclCollectives(NcclParts& parts, PairOf pair_of) : parts_(parts), pair_of_(std::move(pair_of)) {}

void NcclCollectives::Announce(CollectiveKey key, std::vector<WorkerIndex> workers) {
  parts_.run([this, key, workers = std::move(workers)]() mutable { Add(key, std::move(workers)); });
}
void NcclCollectives::Enter(CollectiveKey key, std::vector<CollectivePart> parts, Done done) {
  parts_.run([this, key, parts = std::move(parts), done = std::move(done)]() mutable {
    Ready(key, std::move(parts), std::move(done));
  });
}
void NcclCollectives::Refuse(CollectiveKey key) {
  parts_.run([this, key] { RefuseHere(key); });
}

NcclCollectives::Call* NcclCollectives::Find(CollectiveKey key) {
  const auto found = std::find_if(calls_.begin(), calls_.end(), [key](const Call& call) { return call.key == key; });
  return found == calls_.end() ? nullptr : &*found;
}

NcclCollectives::Communicator* NcclCollectives::FindNumber(WorkerIndex leader, uint64_t number,
                                                           const Workers** workers) {
  for (auto& [set, communicator] : communicators_) {
    if (set.front() != leader || communicator.number != number || !communicator.is_live()) continue;
    *workers = &set;
    return &communicator;
  }
  return nullptr;
}

bool NcclCollectives::IsInUse(const Workers& workers, uint64_t number) const {
  const auto uses = [&](const auto& one) { return one.number == number && one.workers == workers; };
  return std::any_of(launched_.begin(), launched_.end(), uses) || std::any_of(calls_.begin(), calls_.end(), uses);
}

void NcclCollectives::Say(WorkerIndex to, const NcclRecord& record) {
  if (NcclPair* pair = pair_of_(to)) pair->SayOfCollectives(record);
}

void NcclCollectives::SayToOthers(const Workers& workers, const NcclRecord& record) {
  for (const WorkerIndex worker : workers) {
    if (worker != parts_.self) Say(worker, record);
  }
}

// ---- one call, until all enter or nobody does

void NcclCollectives::Add(CollectiveKey key, Workers workers) {
  if (!closed_.ok() || !(last_key_ < key)) return;  // Ready finds none
  last_key_ = key;
  calls_.push_back({.key = key, .workers = std::move(workers)});
  Call& call = calls_.back();
  for (const WorkerIndex worker : call.workers) {
    if (worker == parts_.self) continue;
    NcclPair* const pair = pair_of_(worker);
    if (pair == nullptr || pair->is_closed()) {
      const absl::Status lost = absl::UnavailableError(StrCat("worker ", worker.value, ": lost"));
      IsLeader(call.workers) ? Stay(call, worker, lost) : Fail(call, lost);
    } else if (IsLeader(call.workers)) {
      pair->ListenForCollectives();
    }
  }
  const auto said = early_.extract(key);
  if (said.empty()) return;
  for (const auto& [from, record] : said.mapped()) HearOfCall(call, from, record);
}

void NcclCollectives::Ready(CollectiveKey key, std::vector<CollectivePart> parts, Done done) {
  Call* const call = Find(key);
  if (call == nullptr || call->is_here) {
    return done(closed_.ok() ? absl::InternalError("transport: a collective out of order") : closed_);
  }
  call->is_here = true;
  if (!call->failure.ok()) return done(call->failure);
  call->parts = std::move(parts);
  call->done = std::move(done);
  const uint64_t what = Summary(call->parts);
  if (IsLeader(call->workers)) return TakeReady(*call, parts_.self, what);
  Say(call->workers.front(), RecordOf(NcclWord::kReady, key, what));
}

void NcclCollectives::RefuseHere(CollectiveKey key) {
  Call* const call = Find(key);
  if (call == nullptr || call->is_here) return;
  call->is_here = true;
  const absl::Status why = absl::UnavailableError("it takes no part here");  // nobody hears it
  if (IsLeader(call->workers)) return Stay(*call, parts_.self, why);
  Say(call->workers.front(), RecordOf(NcclWord::kRefuse, key));
  Fail(*call, why);
}

void NcclCollectives::TakeReady(Call& call, WorkerIndex from, uint64_t what) {
  if (!call.failure.ok() || call.may_enter) return;
  call.ready[from] = what;
  if (call.ready.size() < call.workers.size()) return;
  for (const auto& [worker, theirs] : call.ready) {
    if (theirs == call.ready.at(parts_.self)) continue;
    return Stay(call, worker,
                absl::InternalError(StrCat("worker ", worker.value, ": it would make another collective")));
  }
  LetIn(call);
}

void NcclCollectives::LetIn(Call& call) {
  Communicator& communicator = communicators_[call.workers];
  if (!communicator.is_live()) {
    if (const absl::Status status = Issue(call.workers, communicator); !status.ok()) {
      return Stay(call, parts_.self, status);
    }
  }
  communicator.used = ++uses_;
  communicator.question = 0;
  call.may_enter = true;
  call.number = communicator.number;
  NcclRecord record = RecordOf(NcclWord::kEnter, call.key);
  record.expected_bytes = communicator.number;
  std::memcpy(record.id.data(), communicator.id.internal, record.id.size());
  SayToOthers(call.workers, record);
  MakeRoom();
}

void NcclCollectives::Stay(Call& call, WorkerIndex reason, const absl::Status& why) {
  if (!call.failure.ok()) return;
  SayToOthers(call.workers, RecordOf(NcclWord::kStay, call.key, static_cast<uint64_t>(reason.value)));
  Fail(call, why);
}

// A launched call ends when the stream has passed it.
void NcclCollectives::Fail(Call& call, const absl::Status& why) {
  if (!call.failure.ok()) return;
  call.failure = why;
  if (call.done) std::exchange(call.done, nullptr)(why);
}

void NcclCollectives::HearOfCall(Call& call, WorkerIndex from, const NcclRecord& record) {
  if (IsLeader(call.workers)) {
    if (!Contains(call.workers, from)) return;
    if (record.word == NcclWord::kReady) return TakeReady(call, from, record.bytes);
    if (record.word != NcclWord::kRefuse) return;
    if (call.may_enter) return GiveUp(call.key, from);
    return Stay(call, from,
                absl::UnavailableError(StrCat("worker ", from.value, ": it takes no part in a collective")));
  }
  if (from != call.workers.front() || !call.failure.ok()) return;
  if (record.word == NcclWord::kStay) {
    const auto worker = static_cast<int32_t>(record.bytes);
    return Fail(call, absl::UnavailableError(StrCat("worker ", worker, ": it takes no part in a collective")));
  }
  if (record.word != NcclWord::kEnter) return;
  Communicator& communicator = communicators_[call.workers];
  call.number = record.expected_bytes;
  call.may_enter = true;
  if (call.number > communicator.number) {
    End(call.workers, communicator, absl::UnavailableError("nccl: another communicator has begun"), /*tells=*/false);
    communicator.number = call.number;
    std::memcpy(communicator.id.internal, record.id.data(), record.id.size());
  } else if (call.number <= communicator.ended_number) {
    Fail(call, absl::UnavailableError(StrCat("worker ", from.value, ": a collective before this one broke")));
  }
}

void NcclCollectives::Hear(WorkerIndex from, const NcclRecord& record) {
  const CollectiveKey key{record.ordinal, record.phase};
  const Workers* workers = nullptr;
  switch (record.word) {
    case NcclWord::kReady:
    case NcclWord::kRefuse:
    case NcclWord::kEnter:
    case NcclWord::kStay:
      if (Call* const call = Find(key)) return HearOfCall(*call, from, record);
      if (record.word == NcclWord::kRefuse) GiveUp(key, from);
      if (last_key_ < key) early_[key].emplace_back(from, record);  // else it is over here
      return;
    case NcclWord::kEnded: {
      const absl::Status ended = absl::UnavailableError(StrCat("worker ", from.value, " ended it"));
      for (const WorkerIndex leader : {parts_.self, from}) {
        if (Communicator* const named = FindNumber(leader, record.ordinal, &workers))
          return Break(*workers, *named, ended);
      }
      return;
    }
    case NcclWord::kLeave: unanswered_.emplace_back(from, record); return;
    case NcclWord::kIsIdle: {
      Communicator* const own = FindNumber(parts_.self, record.ordinal, &workers);
      if (own == nullptr || own->question != record.bytes) return;
      own->idle.insert(from);
      if (own->idle.size() + 1 < workers->size() || IsInUse(*workers, own->number)) return;
      return End(*workers, *own, absl::UnavailableError("nccl: made room for others"), /*tells=*/true);
    }
    default: return;
  }
}

// ---- what breaks

// By the leader: a rank that was ready may not have heard that all enter.
void NcclCollectives::GiveUp(CollectiveKey key, WorkerIndex from) {
  const absl::Status broke = absl::UnavailableError(StrCat("worker ", from.value, ": the connection broke"));
  const Call* const call = Find(key);
  for (auto& [workers, communicator] : communicators_) {
    const uint64_t number = communicator.number;
    const bool is_its_call = call != nullptr && call->number == number && call->workers == workers;
    const bool is_its_launch = std::any_of(launched_.begin(), launched_.end(), [&](const Launched& launch) {
      return launch.key == key && launch.number == number && launch.workers == workers;
    });
    if (IsLeader(workers) && Contains(workers, from) && (is_its_call || is_its_launch)) {
      return End(workers, communicator, broke, /*tells=*/true);
    }
  }
}

void NcclCollectives::LinkBroke(WorkerIndex peer, const absl::Status& why) {
  const auto has_to_do = [&](const Workers& workers) {
    return workers.front() == peer || (IsLeader(workers) && Contains(workers, peer));
  };
  const absl::Status broke = absl::UnavailableError(StrCat("worker ", peer.value, ": ", StdView(why.message())));
  for (auto& [workers, communicator] : communicators_) {
    if (has_to_do(workers)) End(workers, communicator, broke, /*tells=*/true);
  }
  for (Call& call : calls_) {
    if (!has_to_do(call.workers) || !call.failure.ok()) continue;
    if (IsLeader(call.workers)) {
      Stay(call, peer, broke);
    } else {
      Say(peer, RecordOf(NcclWord::kRefuse, call.key));
      Fail(call, broke);
    }
  }
}

void NcclCollectives::Lost(WorkerIndex peer) {
  const absl::Status lost = absl::UnavailableError(StrCat("worker ", peer.value, ": lost"));
  for (auto it = communicators_.begin(); it != communicators_.end();) {
    const auto at = it++;
    if (!Contains(at->first, peer)) continue;
    End(at->first, at->second, lost, /*tells=*/false);
    communicators_.erase(at);  // whoever comes in its place counts anew
  }
  for (Launched& launch : launched_) {
    if (!launch.named_by || !Contains(launch.workers, peer)) continue;
    launch.named_by = std::nullopt;
    launch.status = lost;
  }
  for (Call& call : calls_) {
    if (!Contains(call.workers, peer)) continue;
    IsLeader(call.workers) ? Stay(call, peer, lost) : Fail(call, lost);
  }
  for (auto& [key, said] : early_) {
    std::erase_if(said, [peer](const auto& one) { return one.first == peer; });
  }
  std::erase_if(early_, [](const auto& one) { return one.second.empty(); });
  std::erase_if(unanswered_, [peer](const auto& one) { return one.first == peer; });
}

void NcclCollectives::Close() {
  closed_ = absl::CancelledError("transport: closed");
  for (Launched& launch : launched_) launch.named_by = std::nullopt;
  for (auto& [workers, communicator] : communicators_) End(workers, communicator, closed_, /*tells=*/false);
  for (Call& call : calls_) Fail(call, closed_);
  calls_.clear();
}

void NcclCollectives::End(const Workers& workers, Communicator& communicator, const absl::Status& why, bool tells) {
  if (!communicator.is_live()) return;
  const uint64_t number = communicator.ended_number = communicator.number;
  communicator.question = 0;
  for (Launched& launch : launched_) {
    if (launch.number == number && launch.workers == workers && launch.status.ok()) launch.status = why;
  }
  bool is_unmarked = false;
  for (Call& call : calls_) {
    if (!call.may_enter || call.number != number || call.workers != workers) continue;
    is_unmarked = is_unmarked || (call.is_launched && !is_marked_);
    Fail(call, why);
  }
  if (communicator.comm != nullptr) parts_.nccl->CommAbort(std::exchange(communicator.comm, nullptr));
  communicator.state = State::kNone;
  if (is_unmarked) Mark().IgnoreError();
  if (!tells) return;
  const NcclRecord record = RecordOf(NcclWord::kEnded, number);
  IsLeader(workers) ? SayToOthers(workers, record) : Say(workers.front(), record);
}

// ---- communicators

absl::Status NcclCollectives::Issue(const Workers& workers, Communicator& communicator) {
  TESSERA_RETURN_IF_ERROR(parts_.nccl->Check("ncclGetUniqueId", parts_.nccl->GetUniqueId(&communicator.id)));
  communicator.number = ++issued_;
  return absl::OkStatus();
}

void NcclCollectives::MakeRoom() {
  size_t live = 0;
  for (const auto& [workers, communicator] : communicators_) {
    live += IsLeader(workers) && communicator.is_live() && communicator.question == 0 ? 1 : 0;
  }
  for (; live > kMaxCommunicators; --live) {
    std::pair<const Workers, Communicator>* oldest = nullptr;
    for (auto& one : communicators_) {
      const Communicator& communicator = one.second;
      if (!IsLeader(one.first) || !communicator.is_live() || communicator.question != 0) continue;
      if (IsInUse(one.first, communicator.number)) continue;
      if (oldest == nullptr || communicator.used < oldest->second.used) oldest = &one;
    }
    if (oldest == nullptr) return;  // all are at work: when the next call is let in
    oldest->second.question = ++questions_;
    oldest->second.idle.clear();
    SayToOthers(oldest->first, RecordOf(NcclWord::kLeave, oldest->second.number, questions_));
  }
}

void NcclCollectives::AnswerQuestions() {
  std::erase_if(unanswered_, [this](const auto& one) {
    const auto& [leader, record] = one;
    const Workers* workers = nullptr;
    const bool is_there = FindNumber(leader, record.ordinal, &workers) != nullptr;
    if (is_there && IsInUse(*workers, record.ordinal)) return false;
    if (is_there) Say(leader, RecordOf(NcclWord::kIsIdle, record.ordinal, record.bytes));
    return true;
  });
}

absl::Status NcclCollectives::Start(const Workers& workers, Communicator& communicator) {
  TESSERA_RETURN_IF_ERROR(parts_.gpu.Enter());
  TESSERA_RETURN_IF_ERROR(stream_.Open(parts_.gpu, *parts_.slots));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto rank = std::lower_bound(workers.begin(), workers.end(), parts_.self) - workers.begin();
  TESSERA_RETURN_IF_ERROR(parts_.nccl->Check(
      "ncclCommInitRankConfig", parts_.nccl->CommInitRankConfig(&communicator.comm, static_cast<int>(workers.size()),
                                                                communicator.id, static_cast<int>(rank), &config)));
  communicator.state = State::kStarting;
  return absl::OkStatus();
}

absl::Status NcclCollectives::Launch(Call& call, Communicator& communicator) {
  const Nccl& nccl = *parts_.nccl;
  launched_.push_back({++launches_, call.key, call.workers, call.number, std::exchange(call.done, nullptr),
                       parts_.gpu.use->BeginSpinning()});
  call.is_launched = true;
  is_marked_ = false;
  cudaStream_t const stream = stream_.get();
  ncclComm_t const comm = communicator.comm;
  TESSERA_RETURN_IF_ERROR(nccl.Check("ncclGroupStart", nccl.GroupStart()));
  absl::Status status;
  for (const CollectivePart& part : call.parts) {
    if (!status.ok()) break;
    const auto count = static_cast<size_t>(part.count), bytes = count * static_cast<size_t>(SizeBytes(part.dtype));
    const void* const from = part.source;
    void* const to = part.destination;
    switch (part.kind) {
      case CallKind::kAllGather:
        status = nccl.Check("ncclAllGather", nccl.AllGather(from, to, bytes, ncclInt8, comm, stream));
        break;
      case CallKind::kBroadcast:
        status = nccl.Check("ncclBroadcast",
                            nccl.Broadcast(from, to, bytes, ncclInt8, static_cast<int>(part.root), comm, stream));
        break;
      case CallKind::kReduceScatter:
        status = nccl.Check("ncclReduceScatter",
                            nccl.ReduceScatter(from, to, count, SummedType(part.dtype), ncclSum, comm, stream));
        break;
    }
  }
  const absl::Status end = nccl.Check("ncclGroupEnd", nccl.GroupEnd());
  return status.ok() ? end : status;
}

// The stream says when it has passed the last launch.
absl::Status NcclCollectives::Mark() {
  is_marked_ = true;
  return stream_.Mark(launches_);
}

absl::Status NcclCollectives::Advance(Call& call, Communicator& communicator) {
  if (communicator.state == State::kNone) TESSERA_RETURN_IF_ERROR(Start(call.workers, communicator));
  TESSERA_ASSIGN_OR_RETURN(bool is_busy, parts_.nccl->IsBusy(communicator.comm));
  if (is_busy) return absl::OkStatus();
  communicator.state = State::kReady;
  if (!call.is_launched) {
    TESSERA_RETURN_IF_ERROR(Launch(call, communicator));
    TESSERA_ASSIGN_OR_RETURN(is_busy, parts_.nccl->IsBusy(communicator.comm));
  }
  return is_busy ? absl::OkStatus() : Mark();
}

void NcclCollectives::Break(const Workers& workers, Communicator& communicator, const absl::Status& status) {
  std::string names;
  for (const WorkerIndex worker : workers) StrAppend(&names, names.empty() ? "" : ", ", worker.value);
  const absl::Status broke =
      absl::UnavailableError(StrCat("workers ", names, ": their collective broke: ", StdView(status.message())));
  const uint64_t number = communicator.number;
  End(workers, communicator, broke, /*tells=*/true);
  for (Launched& launch : launched_) {
    if (launch.number != number || launch.workers != workers || launch.status != broke) continue;
    launch.named_by = std::chrono::steady_clock::now() + kReasonWait;
  }
}

// True when another one may be the first now.
bool NcclCollectives::ProgressFirst() {
  std::erase_if(calls_, [this](const Call& call) {
    return call.is_here && (!call.failure.ok() || (call.is_launched && is_marked_));
  });
  const auto first = std::find_if(calls_.begin(), calls_.end(), [](const Call& call) { return call.failure.ok(); });
  if (first == calls_.end() || !first->may_enter) return false;
  Communicator& communicator = communicators_[first->workers];
  const absl::Status status = Advance(*first, communicator);
  if (!status.ok()) {
    const Workers workers = first->workers;
    Break(workers, communicator, status);
    return true;
  }
  return first->is_launched && is_marked_;
}

void NcclCollectives::FindBroken() {
  for (auto& [workers, communicator] : communicators_) {
    if (communicator.comm == nullptr || !IsInUse(workers, communicator.number)) continue;
    const absl::StatusOr<bool> is_busy = parts_.nccl->IsBusy(communicator.comm);
    if (!is_busy.ok()) Break(workers, communicator, is_busy.status());
  }
}

bool NcclCollectives::Progress() {
  const uint64_t passed = stream_.passed();
  for (Launched& launch : launched_) {
    if (launch.launch <= passed) launch.spinning = {};
  }
  const auto is_over = [&](const Launched& launch) {
    return launch.launch <= passed && (!launch.named_by || std::chrono::steady_clock::now() >= *launch.named_by);
  };
  while (!launched_.empty() && is_over(launched_.front())) {
    Launched launch = std::move(launched_.front());
    launched_.pop_front();
    launch.done(launch.status);
  }
  while (ProgressFirst()) {
  }
  FindBroken();
  AnswerQuestions();
  const auto enters = [](const Call& call) { return call.may_enter && call.failure.ok(); };
  return !launched_.empty() || std::any_of(calls_.begin(), calls_.end(), enters);
}

}  // namespace tessera
