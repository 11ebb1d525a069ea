#include "tests/simulation/simulated_coordinator.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include <capnp/pretty-print.h>
#include <capnp/serialize-packed.h>
#include <kj/io.h>

#include "absl/hash/hash.h"
#include "schemas/snapshot.capnp.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/snapshot.h"

namespace tessera {
namespace {

absl::Span<const std::byte> SpanOf(const std::string& bytes, size_t size) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), size};
}

// Looks at the core after each event of a log.
class Follower final : public JournalVisitor {
 public:
  explicit Follower(const std::vector<size_t>& seen) : seen_(seen) {}
  void OnConfig(const CoordinatorConfig& config) override { core_ = std::make_unique<Core>(config, nullptr); }
  void OnEvent(int64_t now_us, Event event) override {
    core_->Replay(now_us, std::move(event));
    const size_t at = events_++;
    if (status_.ok() && (at >= seen_.size() || absl::HashOf(DescribeMachine(core_->machine())) != seen_[at])) {
      status_ = absl::InternalError(StrCat("after event ", at, " of the log there is another state than there was"));
    }
  }
  void OnAcknowledged(SessionId session, uint64_t event) override { core_->Forget(session, event); }
  const absl::Status& status() const { return status_; }

 private:
  const std::vector<size_t>& seen_;
  std::unique_ptr<Core> core_;
  size_t events_ = 0;
  absl::Status status_;
};

// A core's parts as texts, a line for each field.
std::vector<std::string> LinesOf(const Core& core) {
  std::string bytes;
  const absl::Status saved = Snapshot::Save(core, {}, [&bytes](kj::ArrayPtr<const kj::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    return absl::OkStatus();
  });
  if (!saved.ok()) return {saved.ToString()};
  std::vector<std::string> lines;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof(size));
    at += 2 * sizeof(size);
    kj::ArrayInputStream in(kj::arrayPtr(reinterpret_cast<const kj::byte*>(bytes.data() + at), size));
    capnp::PackedMessageReader message(in);
    const kj::String text = capnp::prettyPrint(message.getRoot<wire::SnapshotPart>()).flatten();
    for (std::string_view rest(text.begin(), text.size()); !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size() - 1);
      lines.emplace_back(rest.substr(0, end + 1));
      rest.remove_prefix(end + 1);
    }
    at += size;
  }
  return lines;
}

std::string FirstDifference(const Core& one, const Core& other) {
  const std::vector<std::string> a = LinesOf(one), b = LinesOf(other);
  size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  std::string text;
  for (size_t i = at > 30 ? at - 30 : 0; i < at; ++i) text += a[i];
  StrAppend(&text, "-> ", at < a.size() ? a[at] : "nothing", "and there -> ", at < b.size() ? b[at] : "nothing");
  return text;
}

class Counter final : public JournalVisitor {
 public:
  void OnConfig(const CoordinatorConfig&) override {}
  void OnEvent(int64_t, Event) override {}
  void OnAcknowledged(SessionId, uint64_t) override {}
};

}  // namespace

class SimulatedCoordinator::Output final : public JournalOutput {
 public:
  explicit Output(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}
  absl::Status Write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    std::string record;
    for (const auto& piece : pieces) record.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    if (disk_->torn_by.has_value()) {
      disk_->bytes.append(record, 0, *std::exchange(disk_->torn_by, std::nullopt) % record.size());
      return absl::UnavailableError("the process was killed as it wrote");
    }
    disk_->bytes += record;
    disk_->ends.push_back(disk_->bytes.size());
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<Disk> disk_;
};

SimulatedCoordinator::SimulatedCoordinator(const CoordinatorConfig& config, Log log, Holds holds) : log_(log) {
  if (log == Log::kNone) {
    core_ = std::make_unique<Core>(config, nullptr);
    return;
  }
  disk_ = std::make_shared<Disk>();
  log_holds_ = holds != Holds::kNothing;
  core_ = std::make_unique<Core>(
      config, *JournalWriter::Begin(std::make_unique<Output>(disk_), config, {.segment = 0, .level = level()}));
  HoldBackIfSynced();
}

void SimulatedCoordinator::HoldBackIfSynced() {
  if (log_ == Log::kSynced && log_holds_) core_->HoldBack();
}

void SimulatedCoordinator::Observe(std::function<void(const Effects&)> see) {
  see_ = std::move(see);
  core_->Observe(see_);
}

absl::StatusOr<Core::Consequences> SimulatedCoordinator::Apply(int64_t now_us, Event& event,
                                                               const wire::Batch::Reader* batch) {
  absl::StatusOr<Core::Consequences> done = core_->Apply(now_us, event, batch);
  if (done.ok() && disk_ != nullptr) {
    seen_.push_back(absl::HashOf(DescribeMachine(core_->machine())));
    event_ends_.push_back(disk_->ends.size());
  }
  return done;
}

absl::Status SimulatedCoordinator::Restart() { return RestartAs(absl::HashOf(DescribeMachine(core_->machine()))); }

absl::Status SimulatedCoordinator::RestartAs(size_t state) {
  const std::string before = DescribeMachine(core_->machine());
  absl::StatusOr<Core::Recovered> recovered = Recover();
  if (!recovered.ok()) return recovered.status();
  const size_t torn_bytes = TornBytes();
  if (recovered->end.torn_bytes != torn_bytes) {
    return absl::InternalError(
        StrCat(torn_bytes, " bytes of the log are torn, and ", recovered->end.torn_bytes, " were found so"));
  }
  const uint64_t peer_key = core_->peer_key();
  core_ = std::move(recovered->core);
  disk_->bytes.resize(disk_->ends.back());
  core_->LogTo(JournalWriter::GoOn(std::make_unique<Output>(disk_)));
  core_->Observe(see_);
  HoldBackIfSynced();
  disk_->synced = disk_->ends.size();  // as a start does it
  const std::string after = DescribeMachine(core_->machine());
  if (absl::HashOf(after) != state)
    return absl::InternalError(StrCat("the log leads to\n", after, "and there was\n", before));
  if (core_->peer_key() != peer_key) return absl::InternalError("the peer key is another one");
  return absl::OkStatus();
}

// Behind the last whole record: what was torn, or what holes were left between.
size_t SimulatedCoordinator::TornBytes() const {
  constexpr size_t kWord = sizeof(uint64_t);
  const std::string rest = disk_->bytes.substr(disk_->ends.back());
  const bool begins_with_hole = rest.size() >= kWord && rest.find_first_not_of('\0') >= kWord;
  if (!begins_with_hole) return rest.size();
  const size_t last = rest.find_last_not_of('\0');
  return last == std::string::npos ? 0 : (last + kWord) / kWord * kWord;
}

void SimulatedCoordinator::BeginSync() {
  begun_ = disk_->ends.size();
  begun_events_ = core_->events();
}

uint64_t SimulatedCoordinator::EndSync() {
  disk_->synced = std::max(disk_->synced, begun_);
  return begun_events_;
}

absl::Status SimulatedCoordinator::RestartMachine(Generator& random) {
  const size_t written = disk_->ends.size();
  size_t kept = std::max<size_t>(1, disk_->synced);
  if (random.OneIn(2)) kept += static_cast<size_t>(random.Below(static_cast<int64_t>(written - kept + 1)));
  while (!event_ends_.empty() && event_ends_.back() > kept) {
    event_ends_.pop_back();
    seen_.pop_back();
  }
  LeaveHoles(kept, random);
  return RestartAs(seen_.empty() ? 0 : seen_.back());
}

void SimulatedCoordinator::LeaveHoles(size_t kept, Generator& random) {
  std::string bytes = disk_->bytes.substr(0, disk_->ends[kept - 1]);
  for (size_t i = kept; i < disk_->ends.size(); ++i) {
    const size_t begin = disk_->ends[i - 1], size = disk_->ends[i] - begin;
    const bool is_there = i > kept && random.OneIn(2);
    bytes += is_there ? disk_->bytes.substr(begin, size) : std::string(size, '\0');
  }
  disk_->bytes = bytes;
  disk_->ends.resize(kept);
}

std::string SimulatedCoordinator::HeaderBehind(uint64_t events) const {
  const auto header = std::make_shared<Disk>();
  const JournalPlace place{.segment = 0, .events_before = events, .level = level()};
  const auto begun = JournalWriter::Begin(std::make_unique<Output>(header), core_->machine().config(), place);
  return begun.ok() ? header->bytes : "";
}

absl::Status SimulatedCoordinator::TakeSnapshot() {
  snapshot_.clear();
  snapshot_events_ = core_->events();
  snapshot_record_ = disk_->ends.size() - 1;
  return Snapshot::Save(*core_, {0, core_->events()}, [this](kj::ArrayPtr<const kj::byte> bytes) {
    snapshot_.append(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
    return absl::OkStatus();
  });
}

absl::StatusOr<Core::Recovered> SimulatedCoordinator::Recover() const {
  absl::StatusOr<Core::Recovered> whole = Core::RecoverFrom(SpanOf(disk_->bytes, disk_->bytes.size()));
  if (!whole.ok() || snapshot_.empty() || snapshot_record_ >= disk_->ends.size()) return whole;
  absl::StatusOr<Snapshot::Loaded> loaded = Snapshot::Load(SpanOf(snapshot_, snapshot_.size()));
  if (!loaded.ok()) return loaded.status();
  const size_t skipped = loses_first_ && snapshot_record_ + 1 < disk_->ends.size() ? 1 : 0;
  const std::string tail =
      HeaderBehind(snapshot_events_) + disk_->bytes.substr(disk_->ends[snapshot_record_ + skipped]);
  absl::StatusOr<Core::Recovered> recovered = Core::RecoverFrom(SpanOf(tail, tail.size()), std::move(loaded->core));
  if (!recovered.ok()) return recovered;
  if (Snapshot::Digest(*recovered->core) != Snapshot::Digest(*whole->core)) {
    return absl::InternalError(StrCat("a snapshot and the log behind it lead to another state than the whole log: ",
                                      FirstDifference(*recovered->core, *whole->core)));
  }
  return recovered;
}

void SimulatedCoordinator::LoseTail() {
  disk_->ends.pop_back();
  disk_->bytes.resize(disk_->ends.back());
}

absl::Status SimulatedCoordinator::CheckEveryEnd(size_t every) const {
  // Each prefix of whole records is met on the way.
  Follower follower(seen_);
  const auto whole = ReadJournal(SpanOf(disk_->bytes, disk_->ends.back()), follower);
  if (!whole.ok()) return whole.status();
  if (!follower.status().ok()) return follower.status();
  // A torn record behind the header alone: nothing before it has to do with where it ends.
  const size_t header = disk_->ends[0];
  for (size_t i = 0; i + 1 < disk_->ends.size(); i += every) {
    const size_t begin = disk_->ends[i];
    for (size_t bytes = 0; begin + bytes < disk_->ends[i + 1]; ++bytes) {
      const std::string log = disk_->bytes.substr(0, header) + disk_->bytes.substr(begin, bytes);
      Counter counter;
      const auto torn = ReadJournal(SpanOf(log, log.size()), counter);
      if (!torn.ok()) return torn.status();
      if (torn->whole_bytes == header && torn->torn_bytes == bytes) continue;
      return absl::InternalError(
          StrCat("of an event that was torn after ", bytes, " bytes, ", torn->whole_bytes - header, " were taken"));
    }
  }
  return absl::OkStatus();
}

bool ComesAgain(const Event& event) {
  const auto is = [&event](auto... kinds) { return (std::holds_alternative<decltype(kinds)>(event) || ...); };
  return is(BatchEvent{}, WorkerReportEvent{}, TickEvent{}, ContinuedEvent{}, WorkerHeardEvent{},
            ConnectionLostEvent{});
}

std::string DescribeMachine(const StateMachine& machine) {
  std::string text =
      StrCat("at ", machine.now_us(), " epoch ", machine.given().epoch, " session ", machine.given().session,
             " connection ", machine.given().connection, " incarnation ", machine.given().incarnation, " ordinal ",
             machine.next_ordinal(), " under way ", machine.unsettled_ops(), "\n");
  for (const auto& [id, session] : machine.sessions()) {
    StrAppend(&text, "session ", id.value, " batch ", session.last_batch, " event ", session.last_event, " queued ",
              session.queue_weight, " tickets ", session.tickets, " bytes ", session.bytes, " connection ",
              session.connection, session.connected ? "" : " lost", "\n");
    for (const auto& [handle, tensor] : session.tensors) {
      StrAppend(&text, "  ", handle.value, " ", ToText(tensor->spec()), " at ", tensor->offset_bytes, " ",
                tensor->status.ToString(), " after ", tensor->producer.value, "\n");
    }
    for (const auto& [name, handle] : session.names) StrAppend(&text, "  ", name, " is ", handle.value, "\n");
  }
  for (const auto& [index, worker] : machine.workers()) {
    StrAppend(&text, "worker ", index.value, " process ", worker.info.incarnation, " state ",
              static_cast<int>(worker.state), " outstanding ", worker.windows.outstanding(), " used ",
              machine.memory().UsedBytes(index), "\n");
  }
  return text;
}

}  // namespace tessera
