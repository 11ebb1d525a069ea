#include "server/coordinator/rpc/record_codec.h"

#include <set>
#include <string>
#include <utility>

#include "schemas/codec/values.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hello_codec.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

constexpr size_t kMaxReasonChars = 1024;    // docs/limits.md: max_reason_chars
constexpr size_t kMaxGroupKeyBytes = 1024;  // docs/limits.md: max_group_key_bytes
constexpr size_t kMaxProcessChars = 256;    // docs/limits.md: max_process_chars
constexpr size_t kMaxMeetingChars = 512;    // docs/limits.md: max_meeting_chars

absl::StatusOr<Record> DecodeCall(wire::Call::Reader reader) {
  CallRecord record;
  TESSERA_ASSIGN_OR_RETURN(record.call, DecodeOpCall(reader.getCall()));
  if (reader.getOperands().size() > kMaxOperands || reader.getResults().size() > kMaxOperands) {
    return absl::InvalidArgumentError(StrCat("a call of ", reader.getOperands().size(), " operands and ",
                                             reader.getResults().size(), " results; max_operands is ", kMaxOperands));
  }
  for (auto item : reader.getOperands()) {
    OperandReference& operand = record.operands.emplace_back();
    operand.last_use = item.getLastUse();
    if (item.isScalar()) {
      TESSERA_ASSIGN_OR_RETURN(operand.value, DecodeScalar(item.getScalar()));
    } else {
      operand.value = HandleId(item.getHandle());
    }
  }
  for (uint64_t handle : reader.getResults()) record.results.emplace_back(handle);
  record.called_as = CalledAsOf(uint64_t{reader.getCalledAs()});
  return record;
}

// The client's own words; they go into the messages of all that depends on the upload.
absl::Status DecodeReason(wire::Status::Reader reader) {
  const absl::Status reason = DecodeStatus(reader);
  return absl::Status(reason.code(), Printable(StdView(reason.message()), kMaxReasonChars));
}

absl::StatusOr<Record> DecodeJoin(wire::JoinGroup::Reader reader) {
  if (reader.getKey().size() == 0 || reader.getKey().size() > kMaxGroupKeyBytes) {
    return absl::InvalidArgumentError(StrCat("join: a group's key of ", reader.getKey().size(),
                                             " bytes; it has 1 to max_group_key_bytes, ", kMaxGroupKeyBytes));
  }
  return JoinGroupRecord{.request = reader.getRequest(),
                         .key = Printable(TextOf(reader.getKey()), kMaxGroupKeyBytes),
                         .size = reader.getSize(),
                         .rank = reader.getRank(),
                         .worker = WorkerIndex(reader.getWorker()),
                         .process = Printable(TextOf(reader.getProcess()), kMaxProcessChars),
                         .timeout_us = reader.getTimeoutUs(),
                         .meeting = Printable(TextOf(reader.getMeeting()), kMaxMeetingChars)};
}

absl::StatusOr<Record> DecodeCollective(wire::Collective::Reader reader) {
  if (reader.getKind() > static_cast<uint8_t>(kLastCollectiveKind)) {
    return absl::InvalidArgumentError(StrCat("unknown collective ", int{reader.getKind()}));
  }
  if (reader.getReduceOp() > static_cast<uint8_t>(kLastReduceOp)) {
    return absl::InvalidArgumentError(StrCat("unknown reduce op ", int{reader.getReduceOp()}));
  }
  CollectiveRecord record{.request = reader.getRequest(),
                          .group = reader.getGroup(),
                          .kind = static_cast<CollectiveKind>(reader.getKind()),
                          .op = static_cast<ReduceOp>(reader.getReduceOp()),
                          .peer = reader.getPeer(),
                          .tag = reader.getTag(),
                          .operand = HandleId(reader.getOperand()),
                          .last_use = reader.getLastUse(),
                          .result = HandleId(reader.getResult()),
                          .result_spec = {},
                          .timeout_us = reader.getTimeoutUs(),
                          .number = reader.getNumber(),
                          .waited_us = reader.getWaitedUs(),
                          .on_devices = reader.getOnDevices(),
                          .elements = reader.getElements()};
  if (record.on_devices) {
    TESSERA_ASSIGN_OR_RETURN(record.dtype, DTypeFromWire(reader.getDtype()));
  }
  if (record.result.value != 0) {
    TESSERA_ASSIGN_OR_RETURN(record.result_spec, DecodeTensorSpec(reader.getResultSpec()));
  }
  return record;
}

absl::StatusOr<std::string> PublicationName(std::string_view op, std::string_view what, capnp::Text::Reader name) {
  if (name.size() == 0) return absl::InvalidArgumentError(StrCat(op, ": the ", what, " is empty"));
  TESSERA_RETURN_IF_ERROR(CheckName(op, what, name));
  std::string text = TextOf(name);
  if (text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(StrCat(op, ": the ", what, " \"", Printable(text), "\" has a byte 0"));
  }
  return text;
}

absl::StatusOr<Record> DecodePublish(wire::Publish::Reader reader) {
  Publish publish;
  TESSERA_ASSIGN_OR_RETURN(publish.name, PublicationName("publish", "name", reader.getName()));
  const size_t tensors = reader.getTensors().size(), readers = reader.getReaders().size();
  if (tensors == 0 || tensors > kMaxPublishedTensors) {
    return absl::InvalidArgumentError(
        StrCat("publish: ", tensors, " tensors; a publication has 1 to max_published_tensors, ", kMaxPublishedTensors));
  }
  if (readers > kMaxPublicationReaders) {
    return absl::InvalidArgumentError(StrCat("publish: ", readers, " readers; max_publication_readers is ",
                                             kMaxPublicationReaders, ", and \"*\" is every tenant"));
  }
  std::set<std::string> names;
  for (auto item : reader.getTensors()) {
    TESSERA_ASSIGN_OR_RETURN(std::string name, PublicationName("publish", "name of a tensor", item.getName()));
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(StrCat("publish: two tensors are named \"", Printable(name), "\""));
    }
    publish.tensors.push_back({std::move(name), HandleId(item.getHandle())});
  }
  for (auto item : reader.getReaders()) {
    TESSERA_ASSIGN_OR_RETURN(publish.readers.emplace_back(), PublicationName("publish", "name of a reader", item));
  }
  return PublicationRecord{reader.getRequest(), std::move(publish)};
}

absl::StatusOr<Record> DecodePublicationRecord(wire::Record::Reader reader) {
  if (reader.isPublish()) return DecodePublish(reader.getPublish());
  if (reader.isUnpublish()) {
    const auto unpublish = reader.getUnpublish();
    TESSERA_ASSIGN_OR_RETURN(std::string name, PublicationName("unpublish", "name", unpublish.getName()));
    return PublicationRecord{unpublish.getRequest(), Unpublish{std::move(name)}};
  }
  if (reader.isAttach()) {
    const auto attach = reader.getAttach();
    TESSERA_ASSIGN_OR_RETURN(std::string name, PublicationName("attach", "name", attach.getName()));
    return PublicationRecord{attach.getRequest(), Attach{std::move(name), HandleId(attach.getFirstResult())}};
  }
  const auto list = reader.getListPublished();
  TESSERA_RETURN_IF_ERROR(CheckName("published", "name", list.getAfter()));
  return PublicationRecord{list.getRequest(), ListPublished{TextOf(list.getAfter())}};
}

}  // namespace

absl::StatusOr<Record> DecodeRecord(wire::Record::Reader reader) {
  switch (reader.which()) {
    case wire::Record::CALL: return DecodeCall(reader.getCall());
    case wire::Record::UPLOAD: {
      auto upload = reader.getUpload();
      if (upload.getOthers().size() >= kMaxUploadTensors) {
        return absl::InvalidArgumentError(StrCat("upload: ", 1 + upload.getOthers().size(),
                                                 " tensors by one ticket; max_upload_tensors is ", kMaxUploadTensors));
      }
      UploadRecord record;
      record.request = upload.getRequest();
      record.tensors.reserve(1 + upload.getOthers().size());
      TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, DecodeTensorSpec(upload.getSpec()));
      record.tensors.push_back({HandleId(upload.getResult()), std::move(spec)});
      for (auto other : upload.getOthers()) {
        TESSERA_ASSIGN_OR_RETURN(spec, DecodeTensorSpec(other.getSpec()));
        record.tensors.push_back({HandleId(other.getResult()), spec});
      }
      const auto bytes = upload.getBytes();
      record.bytes.assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
      return record;
    }
    case wire::Record::DOWNLOAD: {
      auto download = reader.getDownload();
      return DownloadRecord{download.getRequest(), HandleId(download.getHandle()), download.getAllowInline()};
    }
    case wire::Record::WATCH:
      return WatchRecord{reader.getWatch().getRequest(), HandleId(reader.getWatch().getHandle())};
    case wire::Record::DROP: {
      DropRecord record;
      for (uint64_t handle : reader.getDrop()) record.handles.emplace_back(handle);
      return record;
    }
    case wire::Record::COMM_BEGIN: return CommBeginRecord{reader.getCommBegin()};
    case wire::Record::COMM_END:
      return CommEndRecord{reader.getCommEnd().getRequest(), reader.getCommEnd().getHandle()};
    case wire::Record::CANCEL: return CancelRecord{reader.getCancel()};
    case wire::Record::CANCEL_CALLS: {
      CancelCallsRecord record;
      for (uint64_t handle : reader.getCancelCalls()) record.needed.emplace_back(handle);
      return record;
    }
    case wire::Record::RELEASE: return ReleaseRecord{TicketId(reader.getRelease()), DecodeReason(reader.getReason())};
    case wire::Record::NAME: {
      const auto naming = reader.getName();
      TESSERA_RETURN_IF_ERROR(CheckName("name", "name of a tensor", naming.getName()));
      return NamingRecord{HandleId(naming.getHandle()), TextOf(naming.getName())};
    }
    case wire::Record::JOIN_GROUP: return DecodeJoin(reader.getJoinGroup());
    case wire::Record::COLLECTIVE: return DecodeCollective(reader.getCollective());
    case wire::Record::LEAVE_GROUP: return LeaveGroupRecord{reader.getLeaveGroup()};
    case wire::Record::PUBLISH:
    case wire::Record::UNPUBLISH:
    case wire::Record::ATTACH:
    case wire::Record::LIST_PUBLISHED: return DecodePublicationRecord(reader);
    case wire::Record::CANCELLED: {
      BadRecord record{absl::CancelledError("call: cancelled by the client before it was sent"), 0, {}, {}};
      for (uint64_t handle : reader.getCancelled()) record.results.emplace_back(handle);
      return record;
    }
  }
  return absl::InvalidArgumentError(StrCat("unknown record ", static_cast<int>(reader.which())));
}

namespace {

// A record that can't be decoded: the requests and results for which it is answered.
BadRecord MakeBadRecord(wire::Record::Reader reader, absl::Status status) {
  BadRecord bad{std::move(status), 0, {}, {}};
  if (reader.isCall()) {
    for (uint64_t handle : reader.getCall().getResults()) {
      if (bad.results.size() < kMaxOperands) bad.results.emplace_back(handle);
    }
  } else if (reader.isUpload()) {
    bad.request = reader.getUpload().getRequest();
    bad.results.emplace_back(reader.getUpload().getResult());
    for (auto other : reader.getUpload().getOthers()) bad.results.emplace_back(other.getResult());
  } else if (reader.isJoinGroup()) {
    bad.request = reader.getJoinGroup().getRequest();
  } else if (reader.isCollective()) {
    bad.request = reader.getCollective().getRequest();
    if (reader.getCollective().getResult() != 0) bad.results.emplace_back(reader.getCollective().getResult());
  } else if (reader.isPublish()) {
    bad.request = reader.getPublish().getRequest();
  } else if (reader.isUnpublish()) {
    bad.request = reader.getUnpublish().getRequest();
  } else if (reader.isAttach()) {
    bad.request = reader.getAttach().getRequest();
  } else if (reader.isListPublished()) {
    bad.request = reader.getListPublished().getRequest();
  }
  return bad;
}

// The handles that a record adds to a session, takes from it or looks for: each is work, and may be an event.
size_t HandlesOf(wire::Record::Reader reader) {
  if (reader.isCall()) return reader.getCall().getResults().size();
  if (reader.isUpload()) return reader.getUpload().getOthers().size();
  if (reader.isDrop()) return reader.getDrop().size();
  if (reader.isCancelled()) return reader.getCancelled().size();
  if (reader.isCancelCalls()) return reader.getCancelCalls().size();
  if (reader.isPublish()) return reader.getPublish().getTensors().size();
  if (reader.isAttach()) return kMaxPublishedTensors;
  return 0;
}

void EncodeBytesList(const std::vector<int64_t>& values, capnp::List<int64_t>::Builder builder) {
  for (unsigned i = 0; i < values.size(); ++i) builder.set(i, values[i]);
}

struct EventEncoder {
  wire::Event::Builder out;

  void operator()(const SettledEvent& e) {
    auto settled = out.initSettled();
    settled.setRequest(e.request);
    if (!e.status.ok()) EncodeStatus(e.status, settled.initStatus());
  }
  void operator()(const TicketEvent& e) {
    auto ticket = out.initTicket();
    ticket.setRequest(e.request);
    ticket.setTicket(e.ticket.value);
    ticket.setSecret(e.secret);
    EncodeTensorSpec(e.spec, ticket.initSpec());
  }
  void operator()(const InlineValueEvent& e) {
    auto value = out.initInlineValue();
    value.setRequest(e.request);
    value.setBytes(kj::arrayPtr(reinterpret_cast<const kj::byte*>(e.bytes.data()), e.bytes.size()));
  }
  void operator()(const BatchDoneEvent& e) { out.setBatchDone(e.number); }
  void operator()(const CommReportEvent& e) {
    auto comm = out.initComm();
    comm.setRequest(e.request);
    EncodeBytesList(e.received_bytes, comm.initReceivedBytes(static_cast<unsigned>(e.received_bytes.size())));
    EncodeBytesList(e.sent_bytes, comm.initSentBytes(static_cast<unsigned>(e.sent_bytes.size())));
    EncodeBytesList(e.uploaded_bytes, comm.initUploadedBytes(static_cast<unsigned>(e.uploaded_bytes.size())));
    EncodeBytesList(e.downloaded_bytes, comm.initDownloadedBytes(static_cast<unsigned>(e.downloaded_bytes.size())));
    auto counts = comm.initCollectives(static_cast<unsigned>(e.collectives.size()));
    for (unsigned i = 0; i < counts.size(); ++i) {
      counts[i].setName(e.collectives[i].first.c_str());
      counts[i].setCount(e.collectives[i].second);
    }
    comm.setFirstOp(e.first_op);
    comm.setEndOp(e.end_op);
  }
  void operator()(const FailedHandleEvent& e) {
    auto failed = out.initFailed();
    failed.setHandle(e.handle.value);
    EncodeStatus(e.status, failed.initStatus());
  }
  void operator()(const WorkerLostNotice& e) {
    auto lost = out.initWorkerLost();
    lost.setWorker(e.worker.value);
    lost.setIncarnation(e.incarnation);
    lost.setReason(e.reason.c_str());
  }
  void operator()(const WorkerJoinedNotice& e) {
    auto joined = out.initWorkerJoined();
    joined.setWorker(e.worker.value);
    joined.setDataAddress(e.data_address.c_str());
    joined.setRemoteAddress(e.remote_address.c_str());
    joined.setDevice(std::string(ToText(e.device)).c_str());
  }
  void operator()(const UploadDoneEvent& e) { out.setUploadDone(e.request); }
  void operator()(const GroupJoinedEvent& e) {
    auto joined = out.initGroupJoined();
    joined.setRequest(e.request);
    joined.setGroup(e.group);
    auto members = joined.initMembers(static_cast<unsigned>(e.members.size()));
    for (unsigned i = 0; i < members.size(); ++i) {
      members[i].setWorker(e.members[i].worker.value);
      members[i].setProcess(e.members[i].process.c_str());
      members[i].setMeeting(e.members[i].meeting.c_str());
    }
  }
  void operator()(const MatchedEvent& e) {
    auto matched = out.initMatched();
    matched.setRequest(e.request);
    matched.setSource(e.source);
  }
  void operator()(const PublicationsEvent& e) {
    auto publications = out.initPublications();
    publications.setRequest(e.request);
    publications.setFirstResult(e.first_result.value);
    publications.setHasMore(e.has_more);
    auto list = publications.initList(static_cast<unsigned>(e.list.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      const PublicationsEvent::Publication& one = e.list[i];
      list[i].setName(one.name.c_str());
      list[i].setVersion(one.version);
      list[i].setTensorCount(one.tensor_count);
      list[i].setBytes(one.bytes);
      auto readers = list[i].initReaders(static_cast<unsigned>(one.readers.size()));
      for (unsigned r = 0; r < readers.size(); ++r) readers.set(r, one.readers[r].c_str());
      auto tensors = list[i].initTensors(static_cast<unsigned>(one.tensors.size()));
      for (unsigned t = 0; t < tensors.size(); ++t) {
        tensors[t].setName(one.tensors[t].name.c_str());
        EncodeTensorSpec(one.tensors[t].spec, tensors[t].initSpec());
      }
    }
  }
};

}  // namespace

absl::StatusOr<std::vector<Record>> DecodeRecords(wire::Batch::Reader batch) {
  if (batch.getRecords().size() > kMaxRecordsPerBatch) {
    return absl::InvalidArgumentError(
        StrCat("a batch of ", batch.getRecords().size(), " records; max_records_per_batch is ", kMaxRecordsPerBatch));
  }
  size_t handles = 0;
  for (auto item : batch.getRecords()) handles += HandlesOf(item);
  if (handles > kMaxHandlesPerBatch) {
    return absl::InvalidArgumentError(
        StrCat("a batch that names ", handles, " handles; max_handles_per_batch is ", kMaxHandlesPerBatch));
  }
  std::vector<Record> records;
  records.reserve(batch.getRecords().size());
  for (auto item : batch.getRecords()) {
    absl::StatusOr<Record> record = DecodeRecord(item);
    records.push_back(record.ok() ? *std::move(record) : Record(MakeBadRecord(item, record.status())));
  }
  return records;
}

absl::StatusOr<WorkerReportEvent> DecodeReport(WorkerIndex worker, uint64_t incarnation,
                                               capnp::List<wire::Completion>::Reader completions,
                                               capnp::List<wire::TransferDone>::Reader transfers) {
  WorkerReportEvent event{worker, incarnation, {}, {}};
  for (auto item : completions) {
    TESSERA_ASSIGN_OR_RETURN(CompletionReport completion, DecodeCompletion(item));
    event.completions.push_back(std::move(completion));
  }
  for (auto item : transfers) {
    TESSERA_ASSIGN_OR_RETURN(TransferReport transfer, DecodeTransfer(item));
    event.transfers.push_back(std::move(transfer));
  }
  return event;
}

void EncodeSessionEvent(const SessionEvent& event, wire::Event::Builder builder) {
  builder.setNumber(event.number);
  std::visit(EventEncoder{builder}, event.body);
}

}  // namespace tessera
