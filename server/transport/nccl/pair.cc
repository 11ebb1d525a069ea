#include "server/transport/nccl/pair.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

NcclPair::NcclPair(NcclParts& parts, WorkerIndex peer) : parts_(parts), peer_(peer) {}

NcclPair::Key NcclPair::KeyOf(const NcclPost& post) const {
  const NcclWay way = post.is_send == is_leader() ? NcclWay::kFromLeader : NcclWay::kToLeader;
  return {post.tag.ordinal, post.tag.phase, post.tag.chunk, way};
}

void NcclPair::Add(NcclPost post) {
  if (is_closed()) return post.done(closed_);
  if (post.tag.ordinal <= broken_ordinal_) {
    return post.done(absl::UnavailableError(StrCat("worker ", peer_.value, ": the connection broke")));
  }
  const Key key = KeyOf(post);
  const auto [at, is_new] = posts_.try_emplace(key);
  if (!is_new) return post.done(absl::InternalError("transport: a tag was used twice"));
  at->second = std::move(post);
  BeginListening();
  is_leader() ? Match(key) : Tell(key);
}

void NcclPair::BeginListening() {
  if (is_listening_) return;
  Listen();
  if (is_leader()) Say({});
}

void NcclPair::ListenForCollectives() {
  if (!is_closed()) BeginListening();
}

void NcclPair::SayOfCollectives(const NcclRecord& record) {
  if (is_closed()) return;
  BeginListening();
  Say(record);
}

void NcclPair::Tell(const Key& key) {
  NcclRecord record;
  record.word = NcclWord::kPosted;
  std::tie(record.ordinal, record.phase, record.chunk, record.way) = key;
  record.bytes = posts_.at(key).bytes;
  Say(record);
}

void NcclPair::Listen() {
  if (is_listening_) return;
  is_listening_ = true;
  auto record = std::make_shared<NcclRecord>();
  parts_.control->Receive(
      peer_, {.ordinal = generation_, .phase = 1, .chunk = heard_++},
      {reinterpret_cast<std::byte*>(record.get()), sizeof(*record)},
      [self = weak_from_this(), run = parts_.run, record, generation = generation_](absl::Status status) {
        run([self, record, generation, status = std::move(status)] {
          const std::shared_ptr<NcclPair> pair = self.lock();
          if (pair == nullptr || pair->is_closed() || generation != pair->generation_) return;
          if (!status.ok()) return pair->ControlFailed(generation, status);
          pair->is_listening_ = false;
          pair->Listen();
          pair->Hear(*record);
        });
      });
}

void NcclPair::Say(NcclRecord record) {
  record.broken_ordinal = broken_ordinal_;
  has_talked_ = has_talked_ || record.word != NcclWord::kHello;
  auto kept = std::make_shared<NcclRecord>(record);
  parts_.control->Send(
      peer_, {.ordinal = generation_, .phase = 1, .chunk = said_++},
      {reinterpret_cast<const std::byte*>(kept.get()), sizeof(*kept)},
      [self = weak_from_this(), run = parts_.run, kept, generation = generation_](absl::Status status) {
        if (status.ok() && kept->word != NcclWord::kPosted) return;
        run([self, kept, generation, status = std::move(status)] {
          const std::shared_ptr<NcclPair> pair = self.lock();
          if (pair == nullptr || pair->is_closed()) return;
          if (!status.ok()) return pair->ControlFailed(generation, status);
          const auto told = pair->posts_.find({kept->ordinal, kept->phase, kept->chunk, kept->way});
          if (told != pair->posts_.end()) told->second.is_told = true;
        });
      });
}

void NcclPair::ControlFailed(uint64_t generation, const absl::Status& status) {
  if (generation != generation_) return;
  BeginAgain(status);
  parts_.link_broke(peer_, status);
}

void NcclPair::BeginAgain(const absl::Status& status) {
  // Even where all has ended: the peer may tell of something again, and is to hear that it is not to be waited for.
  const bool has_pending =
      has_talked_ || !posts_.empty() || !queue_.empty() || !peer_posts_.empty() || !launched_.empty();
  // A post that the peer hasn't heard of may have been made behind the break: it is told once more.
  std::map<Key, NcclPost> again;
  for (auto it = posts_.begin(); it != posts_.end();) {
    const auto at = it++;
    if (is_leader() || at->second.is_told || at->second.is_again) continue;
    at->second.is_again = true;
    again.insert(posts_.extract(at));
  }
  EndAll(status);
  ++generation_;
  said_ = heard_ = 0;
  is_listening_ = has_talked_ = false;
  if (!has_pending) return;
  posts_ = std::move(again);
  // The peer hears what is not to be waited for any more. A peer that is gone ends this, too, and nothing is said then.
  Listen();
  Say({});
  for (const auto& [key, post] : posts_) Tell(key);
}

void NcclPair::Hear(const NcclRecord& record) {
  const absl::Status broke = absl::UnavailableError(StrCat("worker ", peer_.value, ": the connection broke"));
  const uint64_t known = broken_ordinal_;
  has_talked_ = has_talked_ || record.word != NcclWord::kHello;
  // A communicator that this side has given up, too, ended what it had.
  if (record.word == NcclWord::kBroken && comm_ != nullptr && record.ordinal == comm_number_) EndAll(broke);
  EndThrough(record.broken_ordinal, broke);
  if (broken_ordinal_ > std::max(known, record.broken_ordinal)) Say({});
  const Key key{record.ordinal, record.phase, record.chunk, record.way};
  const auto take = [&](const auto& then) {
    const auto found = posts_.find(key);
    if (found == posts_.end()) return;  // it ended with what broke
    NcclPost post = std::move(found->second);
    posts_.erase(found);
    then(std::move(post));
  };
  switch (record.word) {
    case NcclWord::kBroken:
    case NcclWord::kHello: return;
    case NcclWord::kPosted:
      if (!is_leader()) return;
      if (record.ordinal <= broken_ordinal_) return Say({});
      peer_posts_[key] = record.bytes;
      return Match(key);
    case NcclWord::kGo: return take([&](NcclPost post) { Begin(std::move(post)); });
    case NcclWord::kOtherSize:
      return take([&](NcclPost post) { EndOtherSize(std::move(post), record.bytes, record.expected_bytes); });
    case NcclWord::kId: {
      ncclUniqueId id;
      std::memcpy(id.internal, record.id.data(), record.id.size());
      if (const absl::Status status = Start(id, record.ordinal); !status.ok()) Fail(status);
      return;
    }
    case NcclWord::kReady:
    case NcclWord::kRefuse:
    case NcclWord::kEnter:
    case NcclWord::kStay:
    case NcclWord::kEnded:
    case NcclWord::kLeave:
    case NcclWord::kIsIdle: return parts_.hear(peer_, record);
  }
}

// By the leader: both have posted it, or it waits.
void NcclPair::Match(const Key& key) {
  const auto mine = posts_.find(key);
  const auto theirs = peer_posts_.find(key);
  if (mine == posts_.end() || theirs == peer_posts_.end()) return;
  NcclPost post = std::move(mine->second);
  const uint64_t their_bytes = theirs->second;
  posts_.erase(mine);
  peer_posts_.erase(theirs);
  NcclRecord record;
  std::tie(record.ordinal, record.phase, record.chunk, record.way) = key;
  if (post.bytes != their_bytes) {
    record.word = NcclWord::kOtherSize;
    record.bytes = post.is_send ? post.bytes : their_bytes;
    record.expected_bytes = post.is_send ? their_bytes : post.bytes;
    Say(record);
    return EndOtherSize(std::move(post), record.bytes, record.expected_bytes);
  }
  if (post.bytes > 0 && comm_ == nullptr) {
    ncclUniqueId id;
    absl::Status status = parts_.nccl->Check("ncclGetUniqueId", parts_.nccl->GetUniqueId(&id));
    if (status.ok()) status = Start(id, comm_number_ + 1);
    if (!status.ok()) {
      posts_.emplace(key, std::move(post));
      return Fail(status);
    }
    NcclRecord with_id;
    with_id.word = NcclWord::kId;
    with_id.ordinal = comm_number_;
    std::memcpy(with_id.id.data(), id.internal, with_id.id.size());
    Say(with_id);
  }
  record.word = NcclWord::kGo;
  Say(record);
  Begin(std::move(post));
}

void NcclPair::Begin(NcclPost post) {
  if (post.bytes == 0) return post.done(absl::OkStatus());
  queue_.push_back(std::move(post));
}

void NcclPair::EndOtherSize(NcclPost post, uint64_t sent, uint64_t expected) {
  if (post.is_send) return post.done(absl::OkStatus());  // the receiver's error
  post.done(absl::InvalidArgumentError(
      StrCat("worker ", peer_.value, ": a message of ", sent, " bytes, expected ", expected)));
}

// A launched post ends when the stream has passed it: NCCL may still write to its buffers.
void NcclPair::EndAll(const absl::Status& status) {
  uint64_t last = broken_ordinal_;
  for (const auto& [key, bytes] : peer_posts_) last = std::max(last, std::get<0>(key));
  peer_posts_.clear();
  std::vector<NcclPost> ended;
  for (auto& [key, post] : posts_) ended.push_back(std::move(post));
  posts_.clear();
  for (NcclPost& post : queue_) ended.push_back(std::move(post));
  queue_.clear();
  for (const NcclPost& post : ended) last = std::max(last, post.tag.ordinal);
  for (Launched& launch : launched_) {
    if (launch.status.ok()) launch.status = status;
    for (const NcclPost& post : launch.posts) last = std::max(last, post.tag.ordinal);
  }
  broken_ordinal_ = last;
  Abort();
  for (NcclPost& post : ended) post.done(status);
}

void NcclPair::EndThrough(uint64_t ordinal, const absl::Status& status) {
  const bool is_news = ordinal > broken_ordinal_;
  broken_ordinal_ = std::max(broken_ordinal_, ordinal);
  // Posts of these ordinals that are under way won't pass: the peer has given them up.
  const auto is_ended = [ordinal](const NcclPost& post) { return post.tag.ordinal <= ordinal; };
  if (is_news && (std::any_of(queue_.begin(), queue_.end(), is_ended) ||
                  std::any_of(launched_.begin(), launched_.end(), [&](const Launched& launch) {
                    return launch.status.ok() && std::any_of(launch.posts.begin(), launch.posts.end(), is_ended);
                  }))) {
    return Fail(status);
  }
  // This is done without news, too: a post that is told again may be of an ordinal that this side has given up.
  std::vector<NcclPost> ended;
  for (auto it = posts_.begin(); it != posts_.end() && std::get<0>(it->first) <= ordinal;) {
    ended.push_back(std::move(it->second));
    it = posts_.erase(it);
  }
  for (auto it = peer_posts_.begin(); it != peer_posts_.end() && std::get<0>(it->first) <= ordinal;) {
    it = peer_posts_.erase(it);
  }
  for (NcclPost& post : ended) post.done(status);
}

void NcclPair::Fail(const absl::Status& status) {
  EndAll(absl::UnavailableError(StrCat("worker ", peer_.value, ": the connection broke: ", StdView(status.message()))));
  NcclRecord record;
  record.word = NcclWord::kBroken;
  record.ordinal = comm_number_;
  Say(record);
}

void NcclPair::Close(absl::Status why) {
  closed_ = std::move(why);
  EndAll(closed_);
}

absl::Status NcclPair::Start(const ncclUniqueId& id, uint64_t number) {
  Abort();
  comm_number_ = number;
  TESSERA_RETURN_IF_ERROR(parts_.gpu.Enter());
  TESSERA_RETURN_IF_ERROR(stream_.Open(parts_.gpu, *parts_.slots));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = config.maxCTAs = 1;
  TESSERA_RETURN_IF_ERROR(parts_.nccl->Check(
      "ncclCommInitRankConfig", parts_.nccl->CommInitRankConfig(&comm_, 2, id, is_leader() ? 0 : 1, &config)));
  state_ = State::kStarting;
  return absl::OkStatus();
}

absl::Status NcclPair::Launch() {
  const Nccl& nccl = *parts_.nccl;
  launched_.push_back(
      {.number = ++launches_, .posts = {}, .status = absl::OkStatus(), .spinning = parts_.gpu.use->BeginSpinning()});
  std::vector<NcclPost>& posts = launched_.back().posts;
  posts.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.end()));
  queue_.clear();
  state_ = State::kLaunching;
  const int peer = is_leader() ? 1 : 0;
  cudaStream_t const stream = stream_.get();
  TESSERA_RETURN_IF_ERROR(nccl.Check("ncclGroupStart", nccl.GroupStart()));
  absl::Status status;
  for (const NcclPost& post : posts) {
    if (!status.ok()) break;
    status = post.is_send ? nccl.Check("ncclSend", nccl.Send(post.data, post.bytes, ncclInt8, peer, comm_, stream))
                          : nccl.Check("ncclRecv", nccl.Recv(post.data, post.bytes, ncclInt8, peer, comm_, stream));
  }
  const absl::Status end = nccl.Check("ncclGroupEnd", nccl.GroupEnd());
  return status.ok() ? end : status;
}

// The stream says when it has passed the last launch.
absl::Status NcclPair::Mark() {
  state_ = State::kReady;
  return stream_.Mark(launches_);
}

void NcclPair::Abort() {
  if (comm_ == nullptr) return;
  const bool is_marked = state_ != State::kLaunching;
  parts_.nccl->CommAbort(std::exchange(comm_, nullptr));
  if (!is_marked) Mark().IgnoreError();
  state_ = State::kNone;
}

absl::Status NcclPair::Advance() {
  if (comm_ == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const bool is_busy, parts_.nccl->IsBusy(comm_));
  if (is_busy) return absl::OkStatus();
  if (state_ == State::kStarting) state_ = State::kReady;
  if (state_ == State::kLaunching) TESSERA_RETURN_IF_ERROR(Mark());
  if (state_ == State::kReady && !queue_.empty()) return Launch();
  return absl::OkStatus();
}

bool NcclPair::Progress() {
  const uint64_t passed = stream_.passed();
  while (!launched_.empty() && launched_.front().number <= passed) {
    Launched launch = std::move(launched_.front());
    launched_.pop_front();
    launch.spinning = {};
    for (NcclPost& post : launch.posts) post.done(launch.status);
  }
  if (launched_.empty() && queue_.empty() && state_ != State::kStarting) return false;
  if (const absl::Status status = Advance(); !status.ok()) Fail(status);
  return true;
}

}  // namespace tessera
