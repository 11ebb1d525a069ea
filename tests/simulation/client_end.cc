#include "tests/simulation/client_end.h"

#include <algorithm>
#include <map>
#include <utility>

#include "client/connection/session_core.h"
#include "schemas/link/message_link.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/limits.h"
#include "schemas/types/str_cat.h"
#include "tests/simulation/frames.h"

namespace tessera {
namespace {

// Few, so that some wait for it.
constexpr size_t kMaxInFlight = 24;

struct Tensor {
  uint64_t handle = 0;
  int mesh = 0;
  int shape = 0;
};

const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> shapes = {{8, 8}, {64, 33}, {5, 40}};
  return shapes;
}

std::string TextOf(const Record& record) {
  switch (record.kind) {
    case Record::Kind::kCall: {
      std::string text = StrCat("call ", ToText(*record.call), " of");
      for (const RecordOperand& operand : record.operands) {
        text += StrCat(" ", operand.handle, operand.last_use ? "!" : "");
      }
      return StrCat(text, " is ", record.handle, "; ");
    }
    case Record::Kind::kWatch: return StrCat("watch ", record.request, " of ", record.handle, "; ");
    case Record::Kind::kDownload: return StrCat("read ", record.request, " of ", record.handle, "; ");
    case Record::Kind::kDrop: return StrCat("drop ", record.drops.at(0), "; ");
    case Record::Kind::kCancel: {
      if (record.request != 0) return StrCat("cancel ", record.request, "; ");
      std::string text = "cancel all but";
      for (const uint64_t handle : record.drops) text += StrCat(" ", handle);
      return StrCat(text, "; ");
    }
    case Record::Kind::kUpload: return StrCat("bring ", record.request, " to ", record.handle, "; ");
    case Record::Kind::kRelease: return StrCat("release ", record.request, "; ");
    case Record::Kind::kName: return StrCat("name ", record.handle, " ", record.name, "; ");
    case Record::Kind::kJoinGroup: return StrCat("join ", record.request, " ", record.group->key, "; ");
    case Record::Kind::kLeaveGroup: return StrCat("leave ", record.group->group, "; ");
    case Record::Kind::kPublish: {
      std::string text = StrCat("publish ", record.request, " ", record.publication->name);
      for (const auto& [name, handle] : record.publication->tensors) text += StrCat(" ", name, "=", handle);
      return StrCat(text, "; ");
    }
    case Record::Kind::kUnpublish: return StrCat("unpublish ", record.request, " ", record.publication->name, "; ");
    case Record::Kind::kAttach:
      return StrCat("attach ", record.request, " ", record.publication->name, " from ", record.handle, "; ");
    case Record::Kind::kListPublished: return StrCat("published ", record.request, "; ");
    case Record::Kind::kCollective:
      return StrCat(ToText(record.group->kind), " ", record.request, " of ", record.group->operand, " is ",
                    record.handle, "; ");
    default: return "unknown; ";
  }
}

std::string TextOf(const ClientEvent& event) {
  switch (event.kind) {
    case ClientEvent::Kind::kSettled: return StrCat("settled ", event.request, " ", event.status.ToString());
    case ClientEvent::Kind::kInlineValue: return StrCat("value ", event.request, " ", event.bytes);
    case ClientEvent::Kind::kFailed: return StrCat("failed ", event.handle, " ", event.status.ToString());
    case ClientEvent::Kind::kTicket: return StrCat("ticket ", event.ticket, " of ", event.request);
    case ClientEvent::Kind::kUploadDone: return StrCat("brought ", event.request);
    case ClientEvent::Kind::kWorkerLost: return StrCat("lost ", event.worker);
    case ClientEvent::Kind::kWorkerJoined: return StrCat("joined ", event.worker);
    case ClientEvent::Kind::kGroupJoined: return StrCat("member ", event.group, " of ", event.members.size());
    case ClientEvent::Kind::kMatched: return StrCat("matched ", event.request, " ", event.source);
    case ClientEvent::Kind::kPublications: {
      std::string text = StrCat("publications ", event.request, " from ", event.handle);
      for (const PublicationReport& one : event.publications) {
        text += StrCat(" ", one.name, "/", one.version);
        for (const auto& [name, spec] : one.tensors) text += StrCat(" ", name, "=", ToText(spec));
      }
      return text;
    }
    default: return "unknown";
  }
}

}  // namespace

struct ClientEnd::Parts {
  std::unique_ptr<SessionCore> core = std::make_unique<SessionCore>(kMaxInFlight);
  bool is_fresh = true;
  uint64_t first_request = 1;  // of this process
  std::vector<uint64_t> tickets;
  std::vector<Mesh> meshes;
  std::vector<Tensor> tensors;
  uint64_t next_handle = 1;
  uint64_t next_request = 1;
  std::vector<std::string> batches;
  std::vector<std::string> events;
  std::map<uint64_t, int> answers;  // by request
  Frames frames;
  int ranks = 0;
  int rank = 0;
  uint64_t group = 0;  // that it is a member of
  uint64_t join = 0;   // the request of a join that isn't answered
  int64_t matched = 0;
  std::string tenant;
  std::string other_tenant;
  int64_t attached = 0;

  Placements RandomPlacements(Generator& random) {
    const int64_t dim = random.Below(3);
    return {dim == 2 ? Placement::Replicate() : Placement::Shard(static_cast<int>(dim))};
  }

  Record Call(OpCall call, std::vector<RecordOperand> operands, int mesh, int shape) {
    Record record;
    record.call = std::make_shared<const OpCall>(std::move(call));
    record.operands = std::move(operands);
    record.handle = next_handle++;
    tensors.push_back({record.handle, mesh, shape});
    return record;
  }

  Record Creation(Generator& random) {
    const int mesh = static_cast<int>(random.Below(static_cast<int64_t>(meshes.size())));
    const int shape = static_cast<int>(random.Below(static_cast<int64_t>(Shapes().size())));
    OpCall call;
    call.op = OpId::kFull;
    call.attributes.Set(attribute::dtype, DType::kF32);
    call.attributes.Set(attribute::shape, Shapes()[static_cast<size_t>(shape)]);
    call.attributes.Set(attribute::mesh, meshes[static_cast<size_t>(mesh)]);
    call.attributes.Set(attribute::placements, RandomPlacements(random));
    call.scalars = {Scalar::Float(random.OneIn(2) ? 0.0 : 1.0)};
    return Call(std::move(call), {}, mesh, shape);
  }

  Record Sum(Generator& random, size_t at) {
    const Tensor a = tensors[at];
    Tensor b = a;
    for (const Tensor& other : tensors) {
      if (other.mesh == a.mesh && other.shape == a.shape && random.OneIn(2)) b = other;
    }
    OpCall call;
    call.op = OpId::kAdd;
    RecordOperand first;
    first.handle = a.handle;
    RecordOperand second;
    second.handle = b.handle;
    if (a.handle != b.handle && random.OneIn(4)) {
      first.last_use = true;
      tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(at));
    }
    return Call(std::move(call), {first, second}, a.mesh, a.shape);
  }

  Record Redistribution(Generator& random, size_t at) {
    const Tensor source = tensors[at];
    OpCall call;
    call.op = OpId::kRedistribute;
    call.attributes.Set(attribute::placements, RandomPlacements(random));
    RecordOperand operand;
    operand.handle = source.handle;
    return Call(std::move(call), {operand}, source.mesh, source.shape);
  }

  Record Upload(Generator& random) {
    const int mesh = static_cast<int>(random.Below(static_cast<int64_t>(meshes.size())));
    const int shape = static_cast<int>(random.Below(static_cast<int64_t>(Shapes().size())));
    Record record;
    record.kind = Record::Kind::kUpload;
    record.handle = next_handle++;
    record.spec =
        std::make_shared<const TensorSpec>(TensorSpec{DType::kF32, Shapes()[static_cast<size_t>(shape)],
                                                      meshes[static_cast<size_t>(mesh)], RandomPlacements(random)});
    const int64_t bytes = NumElements(record.spec->shape) * SizeBytes(DType::kF32);
    constexpr int64_t kMaxInlineBytes = 4096;
    if (bytes <= kMaxInlineBytes && !record.spec->has_partial() && random.OneIn(2)) {
      record.bytes.assign(static_cast<size_t>(bytes), 'u');
    } else {
      record.request = next_request++;
      answers[record.request] = 0;
    }
    tensors.push_back({record.handle, mesh, shape});
    return record;
  }

  // A join, a leaving, or a member's call. Calls of the members differ now and then.
  Record OfGroup(Generator& random) {
    constexpr int64_t kTimeoutUs = 60'000;
    Record record;
    auto group = std::make_shared<GroupRecord>();
    group->group = this->group;
    group->timeout_us = kTimeoutUs;
    if (this->group != 0 && random.OneIn(12)) {
      record.kind = Record::Kind::kLeaveGroup;
      this->group = 0;
    } else {
      record.request = next_request++;
      answers[record.request] = 0;
      record.kind = this->group == 0 ? Record::Kind::kJoinGroup : Record::Kind::kCollective;
    }
    if (record.kind == Record::Kind::kJoinGroup) {
      group->key = "g";
      group->size = static_cast<uint32_t>(ranks);
      group->rank = static_cast<uint32_t>(rank);
      group->worker = rank;
      join = record.request;
    }
    if (record.kind == Record::Kind::kCollective) Collective(random, *group, record);
    record.group = std::move(group);
    return record;
  }

  void Collective(Generator& random, GroupRecord& call, Record& record) {
    const auto own = std::find_if(tensors.begin(), tensors.end(), [this](const Tensor& tensor) {
      return tensor.mesh == static_cast<int>(meshes.size()) - 1 && tensor.shape == 0;
    });
    if (own == tensors.end() || random.OneIn(4)) return;  // a barrier
    const Tensor operand = *own;
    const auto other = static_cast<int32_t>((rank + 1) % ranks);
    const int64_t kind = random.Below(6);
    if (kind == 5) {
      call.kind = CollectiveKind::kAllReduce;
      call.on_devices = true;
      call.elements = random.Below(3);
      return;
    }
    call.kind = kind == 0 ? CollectiveKind::kSend : kind == 1 ? CollectiveKind::kRecv : CollectiveKind::kAllReduce;
    call.peer = kind == 0 ? other : kAnySource;
    if (call.kind != CollectiveKind::kRecv) call.operand = operand.handle;
    if (call.kind == CollectiveKind::kSend) return;
    record.handle = next_handle++;
    record.spec = std::make_shared<const TensorSpec>(
        TensorSpec{DType::kF32, Shapes()[0], meshes.back(), {Placement::Replicate()}});
    tensors.push_back({record.handle, operand.mesh, operand.shape});
  }

  // Publishes some tensor, takes that back, attaches what some tenant published, or asks what there is.
  Record OfPublication(Generator& random) {
    Record record;
    record.request = next_request++;
    answers[record.request] = 0;
    const bool is_own = random.OneIn(2);
    auto asked = std::make_shared<PublicationRecord>();
    asked->name = StrCat(is_own ? tenant : other_tenant, "/p", random.Below(2));
    const int64_t what = random.Below(8);
    if (what < 3 && !tensors.empty()) {
      record.kind = Record::Kind::kPublish;
      asked->tensors = {{"w", tensors[static_cast<size_t>(random.Below(static_cast<int64_t>(tensors.size())))].handle},
                        {"last", tensors.back().handle}};
      if (!random.OneIn(4)) asked->readers = {random.OneIn(2) ? "*" : other_tenant};
    } else if (what < 6) {
      record.kind = Record::Kind::kAttach;
      record.handle = next_handle;
      next_handle += kMaxPublishedTensors;
    } else if (what < 7) {
      record.kind = Record::Kind::kUnpublish;
    } else {
      record.kind = Record::Kind::kListPublished;
    }
    record.publication = std::move(asked);
    return record;
  }

  void KeepAttached(const ClientEvent& event) {
    if (event.handle == 0) return;
    uint64_t handle = event.handle;
    for (const auto& [name, spec] : event.publications.at(0).tensors) {
      // On a mesh that is none of its own it is added to itself alone.
      const auto mesh = std::find(meshes.begin(), meshes.end(), spec.mesh) - meshes.begin();
      const auto shape = std::find(Shapes().begin(), Shapes().end(), spec.shape) - Shapes().begin();
      tensors.push_back({handle++, static_cast<int>(mesh), static_cast<int>(shape)});
      ++attached;
    }
  }

  Record RandomRecord(Generator& random) {
    if (random.OneIn(10)) return OfPublication(random);
    if (ranks > 0 && join == 0 && random.OneIn(group == 0 ? 3 : 4)) return OfGroup(random);
    if (random.OneIn(12)) return Upload(random);
    if (tensors.empty() || random.OneIn(6)) return Creation(random);
    const size_t at = static_cast<size_t>(random.Below(static_cast<int64_t>(tensors.size())));
    Record record;
    record.handle = tensors[at].handle;
    switch (random.Below(8)) {
      case 0:
      case 1: return Sum(random, at);
      case 2:
      case 3: return Redistribution(random, at);
      case 4:
        record.kind = random.OneIn(3) ? Record::Kind::kDownload : Record::Kind::kWatch;
        record.allow_inline = true;
        // A tensor that is read inline is small; the rest is watched.
        if (tensors[at].shape != 0) record.kind = Record::Kind::kWatch;
        record.request = next_request++;
        answers[record.request] = 0;
        return record;
      case 5:
        record.kind = Record::Kind::kName;
        record.name = random.OneIn(4) ? "" : StrCat("n", random.Below(3));
        return record;
      case 6:
        if (random.OneIn(3)) {
          record = Record();
          record.kind = Record::Kind::kCancel;
          record.request =
              random.OneIn(3) ? 0 : static_cast<uint64_t>(random.Between(1, static_cast<int64_t>(next_request)));
          for (const Tensor& one : tensors) {
            if (record.request == 0 && random.OneIn(4)) record.drops.push_back(one.handle);
          }
          return record;
        }
        return Creation(random);
      default:
        record.kind = Record::Kind::kDrop;
        record.drops = {record.handle};
        tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(at));
        return record;
    }
  }

  absl::Status Keep(const ClientEvent& event) {
    events.push_back(TextOf(event));
    if (event.kind == ClientEvent::Kind::kTicket && event.request >= first_request) tickets.push_back(event.ticket);
    using Kind = ClientEvent::Kind;
    constexpr Kind kAnswers[] = {Kind::kSettled,     Kind::kInlineValue, Kind::kUploadDone,
                                 Kind::kGroupJoined, Kind::kMatched,     Kind::kPublications};
    if (std::find(std::begin(kAnswers), std::end(kAnswers), event.kind) == std::end(kAnswers)) return absl::OkStatus();
    if (event.request < first_request) return absl::OkStatus();  // of the process before
    if (event.kind == Kind::kGroupJoined) group = event.group;
    if (event.kind == Kind::kMatched) ++matched;
    if (event.kind == Kind::kPublications) KeepAttached(event);
    if (event.request == join) join = 0;
    const auto found = answers.find(event.request);
    if (found == answers.end()) return absl::InternalError(StrCat("request ", event.request, " was never made"));
    if (++found->second > 1) return absl::InternalError(StrCat("request ", event.request, " is answered again"));
    return absl::OkStatus();
  }
};

ClientEnd::ClientEnd(int workers) : parts_(std::make_unique<Parts>()) {
  parts_->meshes.push_back(*Mesh::Make({workers}, {}, {}));
  parts_->meshes.push_back(*Mesh::Make({2}, {}, {}));
  parts_->meshes.push_back(*Mesh::Make({2}, {}, {WorkerIndex(workers - 1), WorkerIndex(0)}));
}
ClientEnd::~ClientEnd() = default;

void ClientEnd::BeRank(int rank, int ranks) {
  parts_->rank = rank;
  parts_->ranks = ranks;
  parts_->meshes.push_back(*Mesh::Make({1}, {}, {WorkerIndex(rank)}));
}
int64_t ClientEnd::matched_calls() const { return parts_->matched; }
void ClientEnd::BeOf(std::string tenant, std::string other) {
  parts_->tenant = std::move(tenant);
  parts_->other_tenant = std::move(other);
}
int64_t ClientEnd::attached() const { return parts_->attached; }

void ClientEnd::StartAgain(uint64_t last_event) {
  parts_->core = std::make_unique<SessionCore>(kMaxInFlight);
  parts_->core->StartBehind(last_event);
  parts_->is_fresh = true;
  parts_->first_request = parts_->next_request;
  parts_->tickets.clear();
  parts_->tensors.clear();
  parts_->events.clear();
  parts_->answers.clear();
  parts_->frames = Frames();
  parts_->group = parts_->join = 0;
}

bool ClientEnd::is_fresh() const { return parts_->is_fresh; }
bool ClientEnd::has_credit() const { return parts_->core->has_credit(); }
std::vector<uint64_t> ClientEnd::TakeTickets() { return std::exchange(parts_->tickets, {}); }

void ClientEnd::GiveUp(uint64_t ticket) {
  Record record;
  record.kind = Record::Kind::kRelease;
  record.request = ticket;
  record.reason = absl::CancelledError("given up");
  parts_->core->Add({&record, 1});
  parts_->batches.push_back(TextOf(record));
}

void ClientEnd::AddBatch(Generator& random) {
  parts_->is_fresh = false;
  std::vector<Record> records;
  std::string text;
  for (int64_t left = random.Between(1, 6); left > 0; --left) {
    records.push_back(parts_->RandomRecord(random));
    text += TextOf(records.back());
  }
  parts_->core->Add(records);
  parts_->batches.push_back(std::move(text));
}

const std::vector<std::string>& ClientEnd::batches() const { return parts_->batches; }
const std::vector<std::string>& ClientEnd::events() const { return parts_->events; }

std::set<uint64_t> ClientEnd::open_requests() const {
  std::set<uint64_t> open;
  for (const auto& [request, count] : parts_->answers) {
    if (count == 0) open.insert(request);
  }
  return open;
}

void ClientEnd::Connected(uint64_t epoch, uint64_t connection, uint64_t last_batch) {
  // Batches that the process before had made and the coordinator has not taken went with it.
  if (parts_->is_fresh) parts_->batches.resize(last_batch);
  parts_->core->Connected({epoch, connection, last_batch});
}
void ClientEnd::Lost() { parts_->core->Lost(); }
uint64_t ClientEnd::last_event() const { return parts_->core->last_event(); }

std::optional<std::string> ClientEnd::NextMessage() {
  capnp::MessageBuilder* const message = parts_->core->NextMessage();
  if (message == nullptr) return std::nullopt;
  return BytesOf(*message);
}

std::string ClientEnd::Acknowledgement() {
  capnp::MallocMessageBuilder message;
  parts_->core->WriteAcknowledge(message);
  return BytesOf(message);
}

absl::Status ClientEnd::Take(std::string_view bytes) {
  parts_->frames.Add(bytes);
  while (auto words = parts_->frames.Next()) {
    capnp::FlatArrayMessageReader reader(*words);
    const auto message = reader.getRoot<wire::ToClient>();
    if (!message.isEvents()) return absl::InternalError("a message that has no events came");
    auto events = parts_->core->Take(message.getEvents());
    if (!events.ok()) return events.status();
    for (const ClientEvent& event : *events) {
      if (absl::Status status = parts_->Keep(event); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void ClientEnd::ForgetBytes() { parts_->frames = Frames(); }

void ClientEnd::RepeatEvent() {
  if (!parts_->events.empty()) parts_->events.push_back(parts_->events.back());
}

}  // namespace tessera
