// The state machine's work with publications: publish, attach, take back, list.

#include "server/coordinator/publications.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schemas/types/errors.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/intake_desk.h"
#include "server/coordinator/loss_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {
namespace {

constexpr std::string_view kEveryTenant = "*";
constexpr int64_t kTensorsPerUs = 4;                            // about, that are attached
constexpr int64_t kMaxPublicationTextBytes = int64_t{4} << 20;  // docs/limits.md: max_publication_text_bytes
constexpr size_t kMaxPublicationsListed = 1'000;                // docs/limits.md: max_publications_listed
constexpr size_t kMaxListedBytes = size_t{1} << 20;             // docs/limits.md: max_listed_publication_bytes

std::string Quoted(std::string_view name) { return StrCat("\"", Printable(name), "\""); }

// About what an answer says of a tensor.
int64_t TextBytesOf(const std::string& name, const TensorSpec& spec) {
  constexpr int64_t kFixedBytes = 128, kBytesPerDim = 16;
  const auto dims = static_cast<int64_t>(spec.shape.size() + spec.placements.size());
  return static_cast<int64_t>(name.size()) + kFixedBytes + kBytesPerDim * dims + spec.mesh.SharedBytes();
}

}  // namespace

bool PublishedEntry::IsReadableBy(const TenantEntry& reader) const {
  if (&reader == tenant) return true;
  return std::any_of(readers.begin(), readers.end(),
                     [&reader](const std::string& one) { return one == kEveryTenant || one == reader.limits.name; });
}

absl::StatusOr<std::string_view> TenantOfName(std::string_view op, std::string_view name) {
  const size_t slash = name.find('/');
  if (slash != std::string_view::npos && slash > 0 && slash + 1 < name.size()) return name.substr(0, slash);
  return absl::InvalidArgumentError(
      StrCat(op, ": ", Quoted(name), " is no name of a publication, which is TENANT/NAME, as \"vision/weights\""));
}

PublishedEntry* PublicationTable::Find(std::string_view name) {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

uint64_t PublicationTable::Put(PublishedEntry entry) {
  Own& own = own_[entry.tenant->number];
  PublishedEntry& place = entries_[entry.name];
  const bool is_new = place.tenant == nullptr;
  entry.version = 1 + (is_new ? own.removed_version : place.version);
  own.count += is_new ? 1 : 0;
  own.bytes += entry.bytes - place.bytes;
  place = std::move(entry);
  return place.version;
}

void PublicationTable::Remove(const PublishedEntry& entry) {
  Own& own = own_[entry.tenant->number];
  own.removed_version = std::max(own.removed_version, entry.version);
  --own.count;
  own.bytes -= entry.bytes;
  entries_.erase(entries_.find(entry.name));
}

int64_t PublicationTable::CountOf(const TenantEntry& tenant) const {
  const auto own = own_.find(tenant.number);
  return own == own_.end() ? 0 : own->second.count;
}

int64_t PublicationTable::BytesOf(const TenantEntry& tenant) const {
  const auto own = own_.find(tenant.number);
  return own == own_.end() ? 0 : own->second.bytes;
}

// Answers one record of a session.
class StateMachine::PublicationDesk {
 public:
  PublicationDesk(StateMachine& machine, SessionEntry& session, uint64_t request)
      : machine_(machine), session_(session), request_(request) {}

  Progress Take(const Publish& asked) {
    Progress progress = Progress::kDone;
    const absl::Status status = TryPublish(asked, progress);
    return status.ok() ? progress : Refuse(status);
  }

  Progress Take(const Attach& asked) {
    const absl::Status status = TryAttach(asked);
    return status.ok() ? Progress::kDone : Refuse(status);
  }

  Progress Take(const Unpublish& asked) {
    absl::Status status = TenantOfName("unpublish", asked.name).status();
    PublishedEntry* const entry = status.ok() ? machine_.publications_.Find(asked.name) : nullptr;
    const bool may_take_back =
        entry != nullptr && (entry->tenant == session_.tenant || session_.info.role == Role::kAdmin);
    if (may_take_back) {
      machine_.publications_.Remove(*entry);
    } else if (status.ok()) {
      status = absl::NotFoundError(
          StrCat("unpublish: no publication ", Quoted(asked.name), " is there for ", OwnName(), " to take back"));
    }
    return Refuse(status);  // or say that it is done
  }

  Progress Take(const ListPublished& asked) {
    PublicationsEvent answer{.request = request_, .first_result = {}, .list = {}, .has_more = false};
    const auto& all = machine_.publications_.all();
    const bool is_admins = session_.info.role == Role::kAdmin;
    size_t bytes = 0;
    for (auto at = all.upper_bound(asked.after); at != all.end() && !answer.has_more; ++at) {
      const PublishedEntry& entry = at->second;
      if (!is_admins && !entry.IsReadableBy(*session_.tenant)) continue;
      answer.has_more = answer.list.size() == kMaxPublicationsListed || bytes > kMaxListedBytes;
      if (answer.has_more) break;
      answer.list.push_back(Described(entry));
      bytes += entry.name.size();
      if (!is_admins && entry.tenant != session_.tenant) continue;
      answer.list.back().readers = entry.readers;
      for (const std::string& reader : entry.readers) bytes += reader.size();
    }
    machine_.Send(session_, std::move(answer));
    return Progress::kDone;
  }

 private:
  Progress Refuse(const absl::Status& status) {
    if (!status.ok()) ++session_.metrics->refused[status.code()];
    machine_.Send(session_, SettledEvent{request_, status});
    return Progress::kDone;
  }
  std::string OwnName() const { return StrCat("tenant ", Quoted(session_.tenant->limits.name)); }

  // The name alone says whose it is: so the publications of others change no answer.
  absl::Status CheckName(const Publish& asked) const {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view tenant, TenantOfName("publish", asked.name));
    const std::string& own = session_.tenant->limits.name;
    if (own.find('/') != std::string::npos) {
      return absl::FailedPreconditionError(
          StrCat("publish: ", OwnName(), " has a slash in its name, and publishes nothing"));
    }
    if (tenant == own) return absl::OkStatus();
    return absl::PermissionDeniedError(StrCat("publish: ", Quoted(asked.name), " is a name of tenant ", Quoted(tenant),
                                              "; this session is of ", OwnName(), ", whose names begin with ",
                                              Quoted(StrCat(own, "/"))));
  }

  // A published tensor's own entry, on the same memory.
  TensorPointer CopyOf(const TensorEntry& source) {
    TensorPointer copy = machine_.tensors_.Add();
    copy->layout = source.layout;
    if (source.former != nullptr) copy->former = std::make_unique<FormerMesh>(*source.former);
    copy->buffer = source.buffer;
    copy->offset_bytes = source.offset_bytes;
    return copy;
  }

  // kBlocked, or kAwaitsUpload, until the tensors are there: a publication is good when it can be seen.
  absl::Status TryPublish(const Publish& asked, Progress& progress) {
    TESSERA_RETURN_IF_ERROR(CheckName(asked));
    std::vector<TensorPointer> tensors;
    for (const auto& [name, handle] : asked.tensors) {
      absl::StatusOr<TensorPointer> tensor = machine_.FindTensor(session_, handle, "publish");
      if (!tensor.ok()) {
        return WithMessage(tensor.status(), StrCat("publish: ", Quoted(name), " of ", Quoted(asked.name), ": ",
                                                   StdView(tensor.status().message())));
      }
      if ((*tensor)->is_awaited()) progress = BlockedBy(**tensor);
      if (machine_.ProducerOf(**tensor) != nullptr) progress = Progress::kBlocked;
      if (progress != Progress::kDone) return absl::OkStatus();
      tensors.push_back(*std::move(tensor));
    }
    TESSERA_ASSIGN_OR_RETURN(progress, SpillDesk(machine_).BringBack(session_, tensors));
    if (progress != Progress::kDone) return absl::OkStatus();
    SpillDesk(machine_).Use(tensors);
    TESSERA_RETURN_IF_ERROR(CheckTensors(asked, tensors));
    Put(asked, tensors);
    return absl::OkStatus();
  }

  absl::Status CheckTensors(const Publish& asked, const std::vector<TensorPointer>& tensors) const {
    int64_t text_bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string& name = asked.tensors[i].name;
      const TenantEntry* const charged = tensors[i]->buffer->tenant;
      if (charged != nullptr && charged != session_.tenant) {
        return absl::FailedPreconditionError(
            StrCat("publish: ", Quoted(name), " of ", Quoted(asked.name), ", ", ToText(tensors[i]->spec()),
                   ", lies in memory that another tenant has published; publish what an op makes of it, as w * 1"));
      }
      text_bytes += TextBytesOf(name, tensors[i]->spec());
    }
    if (text_bytes > kMaxPublicationTextBytes) {
      return absl::ResourceExhaustedError(StrCat("publish: names and specs of the ", tensors.size(), " tensors of ",
                                                 Quoted(asked.name), " take ", text_bytes,
                                                 " bytes; max_publication_text_bytes is ", kMaxPublicationTextBytes));
    }
    const int64_t count = machine_.publications_.CountOf(*session_.tenant);
    if (machine_.publications_.Find(asked.name) == nullptr && count >= machine_.config_.max_publications) {
      return absl::ResourceExhaustedError(StrCat("publish: ", OwnName(), " has ", count,
                                                 " publications; max_publications is ",
                                                 machine_.config_.max_publications));
    }
    return absl::OkStatus();
  }

  void Put(const Publish& asked, const std::vector<TensorPointer>& tensors) {
    PublishedEntry entry;
    entry.name = asked.name;
    entry.tenant = session_.tenant;
    entry.readers = asked.readers;
    entry.seen_losses = machine_.long_work_.losses.size();  // as the session's own are: it has its turn
    std::set<const BufferEntry*> buffers;
    for (size_t i = 0; i < tensors.size(); ++i) {
      BufferEntry& buffer = *tensors[i]->buffer;
      buffer.is_published = true;
      if (buffers.insert(&buffer).second) entry.bytes += buffer.bytes;
      entry.tensors.push_back({asked.tensors[i].name, CopyOf(*tensors[i])});
    }
    machine_.publications_.Put(std::move(entry));
    machine_.Send(session_,
                  PublicationsEvent{request_, {}, {Described(*machine_.publications_.Find(asked.name))}, false});
  }

  // A publication is looked at when it is asked for, not when a worker dies.
  void SeeLosses(PublishedEntry& entry) {
    const std::vector<WorkerLoss>& losses = machine_.long_work_.losses;
    for (; entry.seen_losses < losses.size(); ++entry.seen_losses) {
      for (const PublishedEntry::Tensor& one : entry.tensors) {
        LossDesk(machine_).LoseShard(*one.tensor, losses[entry.seen_losses]);
      }
    }
  }

  absl::Status TryAttach(const Attach& asked) {
    TESSERA_RETURN_IF_ERROR(TenantOfName("attach", asked.name).status());
    PublishedEntry* const entry = machine_.publications_.Find(asked.name);
    if (entry == nullptr || !entry->IsReadableBy(*session_.tenant)) {
      return absl::NotFoundError(
          StrCat("attach: no publication ", Quoted(asked.name), " is there for ", OwnName(), " to read"));
    }
    SeeLosses(*entry);
    for (const PublishedEntry::Tensor& one : entry->tensors) {
      if (one.tensor->status.ok()) continue;
      return WithMessage(one.tensor->status, StrCat("attach: ", Quoted(one.name), " of ", Quoted(asked.name),
                                                    " is lost: ", StdView(one.tensor->status.message())));
    }
    const auto held = static_cast<int64_t>(session_.tensors.size());
    const auto count = static_cast<int64_t>(entry->tensors.size());
    if (held + count > machine_.config_.max_tensors_per_session) {
      return absl::ResourceExhaustedError(StrCat("attach: the session holds ", held, " tensors, and ",
                                                 Quoted(asked.name), " has ", count, "; max_tensors_per_session is ",
                                                 machine_.config_.max_tensors_per_session));
    }
    const HandleId end(asked.first_result.value + kMaxPublishedTensors);
    const auto used = session_.tensors.lower_bound(asked.first_result);
    if (asked.first_result.value == 0 || end < asked.first_result ||
        (used != session_.tensors.end() && used->first < end)) {
      return absl::InvalidArgumentError(StrCat("attach: of the ", kMaxPublishedTensors, " handles from ",
                                               asked.first_result.value, " on some are in use already"));
    }
    TurnDesk(machine_).Charge(session_, count / kTensorsPerUs);
    PublicationsEvent answer{request_, asked.first_result, {Described(*entry)}, false};
    for (const PublishedEntry::Tensor& one : entry->tensors) {
      TensorPointer tensor = CopyOf(*one.tensor);
      tensor->session = session_.info.session;
      tensor->handle = HandleId(asked.first_result.value + answer.list[0].tensors.size());
      answer.list[0].tensors.push_back({one.name, tensor->spec()});
      session_.tensors.emplace(tensor->handle, tensor);
    }
    machine_.Send(session_, std::move(answer));
    return absl::OkStatus();
  }

  static PublicationsEvent::Publication Described(const PublishedEntry& entry) {
    return {entry.name, entry.version, {}, entry.tensors.size(), entry.bytes, {}};
  }

  StateMachine& machine_;
  SessionEntry& session_;
  uint64_t request_;
};

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, PublicationRecord& record) {
  PublicationDesk desk(machine_, session, record.request);
  return std::visit([&desk](const auto& asked) { return desk.Take(asked); }, record.asked);
}

}  // namespace tessera
