// Session events as a coordinator wrote them, for a snapshot.

#include <optional>
#include <string>
#include <utility>

#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/record_codec.h"

namespace tessera {
namespace {

std::string BytesOf(capnp::Data::Reader bytes) { return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()}; }

std::vector<int64_t> NumbersOf(capnp::List<int64_t>::Reader list) {
  std::vector<int64_t> numbers;
  for (const int64_t number : list) numbers.push_back(number);
  return numbers;
}

CommReportEvent DecodeComm(wire::CommReport::Reader in) {
  CommReportEvent event;
  event.request = in.getRequest();
  event.received_bytes = NumbersOf(in.getReceivedBytes());
  event.sent_bytes = NumbersOf(in.getSentBytes());
  event.uploaded_bytes = NumbersOf(in.getUploadedBytes());
  event.downloaded_bytes = NumbersOf(in.getDownloadedBytes());
  for (const auto item : in.getCollectives()) event.collectives.emplace_back(TextOf(item.getName()), item.getCount());
  event.first_op = in.getFirstOp();
  event.end_op = in.getEndOp();
  return event;
}

absl::StatusOr<WorkerJoinedNotice> DecodeJoinedNotice(wire::WorkerMoved::Reader in) {
  WorkerJoinedNotice notice;
  notice.worker = WorkerIndex(in.getWorker());
  notice.data_address = TextOf(in.getDataAddress());
  notice.remote_address = TextOf(in.getRemoteAddress());
  const std::string device = TextOf(in.getDevice());
  const std::optional<DeviceKind> kind = ParseDeviceKind(device);
  if (!kind.has_value()) return absl::DataLossError(StrCat("a worker with a device \"", device, "\""));
  notice.device = *kind;
  return notice;
}

GroupJoinedEvent DecodeGroupJoined(wire::GroupJoined::Reader in) {
  GroupJoinedEvent event{in.getRequest(), in.getGroup(), {}};
  for (const auto member : in.getMembers()) {
    event.members.push_back(
        {WorkerIndex(member.getWorker()), TextOf(member.getProcess()), TextOf(member.getMeeting())});
  }
  return event;
}

absl::StatusOr<PublicationsEvent> DecodePublications(wire::Publications::Reader in) {
  PublicationsEvent event{in.getRequest(), HandleId(in.getFirstResult()), {}, in.getHasMore()};
  for (const auto item : in.getList()) {
    PublicationsEvent::Publication one{TextOf(item.getName()), item.getVersion(), {},
                                       item.getTensorCount(),  item.getBytes(),   {}};
    for (const auto reader : item.getReaders()) one.readers.push_back(TextOf(reader));
    for (const auto tensor : item.getTensors()) {
      TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, DecodeTensorSpec(tensor.getSpec()));
      one.tensors.push_back({TextOf(tensor.getName()), std::move(spec)});
    }
    event.list.push_back(std::move(one));
  }
  return event;
}

absl::StatusOr<SessionEventBody> DecodeBody(wire::Event::Reader in) {
  switch (in.which()) {
    case wire::Event::SETTLED: {
      const auto settled = in.getSettled();
      return SettledEvent{settled.getRequest(),
                          settled.hasStatus() ? DecodeStatus(settled.getStatus()) : absl::OkStatus()};
    }
    case wire::Event::TICKET: {
      const auto ticket = in.getTicket();
      TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, DecodeTensorSpec(ticket.getSpec()));
      return TicketEvent{ticket.getRequest(), TicketId(ticket.getTicket()), ticket.getSecret(), std::move(spec)};
    }
    case wire::Event::INLINE_VALUE:
      return InlineValueEvent{in.getInlineValue().getRequest(), BytesOf(in.getInlineValue().getBytes())};
    case wire::Event::BATCH_DONE: return BatchDoneEvent{in.getBatchDone()};
    case wire::Event::COMM: return DecodeComm(in.getComm());
    case wire::Event::FAILED:
      return FailedHandleEvent{HandleId(in.getFailed().getHandle()), DecodeStatus(in.getFailed().getStatus())};
    case wire::Event::WORKER_LOST: {
      const auto lost = in.getWorkerLost();
      return WorkerLostNotice{WorkerIndex(lost.getWorker()), lost.getIncarnation(), TextOf(lost.getReason())};
    }
    case wire::Event::WORKER_JOINED: {
      TESSERA_ASSIGN_OR_RETURN(WorkerJoinedNotice notice, DecodeJoinedNotice(in.getWorkerJoined()));
      return notice;
    }
    case wire::Event::UPLOAD_DONE: return UploadDoneEvent{in.getUploadDone()};
    case wire::Event::GROUP_JOINED: return DecodeGroupJoined(in.getGroupJoined());
    case wire::Event::MATCHED: return MatchedEvent{in.getMatched().getRequest(), in.getMatched().getSource()};
    case wire::Event::PUBLICATIONS: {
      TESSERA_ASSIGN_OR_RETURN(PublicationsEvent event, DecodePublications(in.getPublications()));
      return event;
    }
    case wire::Event::SPEC_KNOWN: break;
  }
  return absl::DataLossError(StrCat("an event of an unknown kind, ", static_cast<int>(in.which())));
}

}  // namespace

absl::StatusOr<SessionEvent> DecodeSessionEvent(wire::Event::Reader reader) {
  TESSERA_ASSIGN_OR_RETURN(SessionEventBody body, DecodeBody(reader));
  return SessionEvent{reader.getNumber(), std::move(body)};
}

}  // namespace tessera
