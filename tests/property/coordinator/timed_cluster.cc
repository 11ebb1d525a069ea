#include "tests/property/coordinator/timed_cluster.h"

#include <algorithm>
#include <utility>

#include "schemas/types/status_macros.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 44;
constexpr int64_t kTickUs = 50'000;
constexpr int64_t kReportUs = 20;  // from the end of an op to the coordinator

}  // namespace

TimedCluster::TimedCluster(int workers, const CoordinatorConfig& config, uint64_t seed)
    : machine_(config), workers_(workers), random_(seed * 2 + 1) {
  for (int i = 0; i < workers; ++i) {
    WorkerJoinedEvent event;
    event.worker = WorkerIndex(i);
    event.incarnation = 1;
    event.host = "host";
    event.memory_bytes = kMemoryBytes;
    Apply(event);
  }
}

uint64_t TimedCluster::Random() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return random_ >> 33;
}

SessionId TimedCluster::Open(const std::string& tenant) {
  const SessionId session(next_session_++);
  Apply(SessionOpenedEvent{session, 77, tenant, "timed", 0});
  clients_[session].tenant = tenant;
  return session;
}

void TimedCluster::Flood(SessionId session, const TimedOp& op, size_t queued) {
  Client& client = clients_.at(session);
  client.op = op;
  client.queued = queued;
  Refill();
}

void TimedCluster::Ask(SessionId session, const TimedOp& op) {
  asked_us_[op.elements] = now_us_;
  Submit(session, op);
}

void TimedCluster::Submit(SessionId session, const TimedOp& op) {
  Client& client = clients_.at(session);
  TESSERA_CHECK(owner_of_.emplace(op.elements, session).first->second == session);
  op_of_[op.elements] = op;
  const Mesh mesh = *Mesh::Make({workers_}, {}, {});
  std::vector<Record> records = {FullRecord(mesh, {op.elements}, {Placement::Replicate()}, client.handles + 1)};
  if (client.handles > 0) records.push_back(DropRecord{{HandleId(client.handles)}});
  ++client.handles;
  Apply(BatchEvent{session, ++client.batches, std::move(records)});
}

void TimedCluster::Refill() {
  for (auto& [id, client] : clients_) {
    while (machine_.sessions().at(id).queue.size() < client.queued) Submit(id, client.op);
  }
}

void TimedCluster::Apply(Event event) {
  Carry(machine_.Apply(now_us_, std::move(event)));
  while (machine_.has_more()) Carry(machine_.Apply(now_us_, ContinuedEvent{}));
}

void TimedCluster::Carry(const Effects& effects) {
  for (const Effect& effect : effects) {
    const auto* told = std::get_if<ToWorkers>(&effect);
    if (told == nullptr) continue;
    if (const auto* define = std::get_if<DefineTemplate>(&told->message)) {
      const Plan& plan = **define->plan;
      elements_of_[define->id] = plan.values[static_cast<size_t>(plan.outputs[0])].spec.shape[0];
    }
    const auto* run = std::get_if<Instance>(&told->message);
    if (run == nullptr) continue;
    const int64_t elements = elements_of_.at(run->plan);
    const TimedOp& op = op_of_.at(elements);
    const int64_t work_us =
        op.work_us + (op.spread_us == 0 ? 0 : static_cast<int64_t>(Random() % static_cast<uint64_t>(op.spread_us)));
    if (running_.empty()) next_end_us_ = now_us_ + work_us;
    running_.push_back({run->ordinal, elements, work_us});
    Load& load = loads_[clients_.at(owner_of_.at(elements)).tenant];
    load.most_under_way = std::max(load.most_under_way, ++load.under_way);
    load.longest_us = std::max(load.longest_us, work_us);
  }
}

void TimedCluster::RunUntil(int64_t us) {
  while (now_us_ < us) {
    const int64_t end_us = running_.empty() ? INT64_MAX : next_end_us_ + kReportUs;
    const int64_t next_us = std::min({us, next_tick_us_, end_us});
    now_us_ = std::max(now_us_, next_us);
    if (next_us == next_tick_us_) {
      next_tick_us_ += kTickUs;
      for (int w = 0; w < workers_; ++w) Apply(WorkerHeardEvent{WorkerIndex(w), true});
      Apply(TickEvent{});
    }
    if (next_us != end_us) continue;
    const Running done = running_.front();
    running_.pop_front();
    Client& client = clients_.at(owner_of_.at(done.elements));
    client.work_us += done.work_us;
    busy_us_ += done.work_us;
    --loads_.at(client.tenant).under_way;
    if (!running_.empty()) next_end_us_ += running_.front().work_us;
    if (const auto asked = asked_us_.find(done.elements); asked != asked_us_.end()) {
      waits_us_.push_back(now_us_ - asked->second);
      asked_us_.erase(asked);
    }
    for (int w = 0; w < workers_; ++w) {
      CompletionReport report;
      report.ordinal = done.ordinal;
      report.times = {1, 1 + done.work_us * 1000, done.work_us * 1000};
      report.prepared_ns = op_of_.at(done.elements).prepared_us * 1000;
      WorkerReportEvent event{WorkerIndex(w), 1, {}, {}};
      event.completions.push_back(std::move(report));
      Apply(std::move(event));
    }
    Refill();
  }
}

int64_t TimedCluster::WorkOf(const std::string& tenant) const {
  int64_t work_us = 0;
  for (const auto& [id, client] : clients_) work_us += client.tenant == tenant ? client.work_us : 0;
  return work_us;
}
int64_t TimedCluster::WorkOf(SessionId session) const { return clients_.at(session).work_us; }
int64_t TimedCluster::MostUnderWay(const std::string& tenant) const { return loads_.at(tenant).most_under_way; }
int64_t TimedCluster::LongestOp(const std::string& tenant) const { return loads_.at(tenant).longest_us; }
void TimedCluster::ForgetMost() {
  for (auto& [tenant, load] : loads_) load.most_under_way = load.under_way;
}

}  // namespace tessera
