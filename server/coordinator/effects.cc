#include "server/coordinator/effects.h"

#include "absl/strings/escaping.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/events.h"

namespace tessera {
namespace {

std::string TextOf(const std::vector<InstanceWait>& waits) {
  std::string text = "waits[";
  for (const InstanceWait& wait : waits) {
    StrAppend(&text, wait.phase, ":", static_cast<int>(wait.stream), ":", wait.ordinal.value, ":",
              static_cast<int>(wait.scope), "(");
    for (WorkerIndex worker : wait.workers) StrAppend(&text, worker.value, " ");
    StrAppend(&text, ")");
  }
  return text + "]";
}

std::string TextOf(const Strides& strides) { return ToText(absl::MakeConstSpan(strides)); }

std::string TextOf(const absl::Status& status) { return status.ToString(); }

struct MessageText {
  std::string operator()(const DefineTemplate& m) const { return StrCat("define ", m.id.value, " ", ToText(**m.plan)); }
  std::string operator()(const ForgetTemplate& m) const { return StrCat("forget ", m.id.value); }
  std::string operator()(const Instance& m) const {
    std::string text =
        StrCat("run ", m.ordinal.value, " template ", m.plan.value, " stream ", static_cast<int>(m.stream), " at");
    for (int64_t offset : m.buffer_offsets) StrAppend(&text, " ", offset);
    for (const PlacedBuffer& placed : m.placed_apart) {
      StrAppend(&text, " ", placed.buffer, "{");
      for (const auto& [worker, offset] : placed.offsets) StrAppend(&text, " ", worker.value, ":", offset);
      StrAppend(&text, " }");
    }
    for (const Scalar& scalar : m.scalars) StrAppend(&text, " ", ToText(scalar));
    return StrCat(text, " ", TextOf(m.waits), m.writes_are_free ? " free" : "", m.makes_calls ? " calls" : "");
  }
  std::string operator()(const TransferWindow& m) const {
    std::string text = StrCat("window ", m.ordinal.value, " ticket ", m.ticket.value, " secret ", m.secret,
                              " direction ", static_cast<int>(m.direction()), " stream ", static_cast<int>(m.stream));
    for (const TransferRange& range : m.ranges) {
      StrAppend(&text, " ", ToText(range.spec), " at ", range.offset_bytes, " ", TextOf(range.strides));
    }
    if (m.spill_file != 0) StrAppend(&text, " file ", m.spill_file);
    return StrCat(text, " ", TextOf(m.waits));
  }
  std::string operator()(const InlineRead& m) const {
    return StrCat("inline ", m.ordinal.value, " stream ", static_cast<int>(m.stream), " ", ToText(m.spec), " at ",
                  m.offset_bytes, " ", TextOf(m.strides), " ", TextOf(m.waits));
  }
  std::string operator()(const InlineWrite& m) const {
    return StrCat("write ", m.ordinal.value, " stream ", static_cast<int>(m.stream), " ", ToText(m.spec), " at ",
                  m.offset_bytes, " ", TextOf(m.strides), " ", TextOf(m.waits), " ", absl::BytesToHexString(m.bytes));
  }
  std::string operator()(const CloseTicket& m) const { return StrCat("close ", m.ticket.value); }
  std::string operator()(const PeerJoined& m) const {
    return StrCat("joined ", m.worker.value, "/", m.incarnation, " ", m.host, " ", m.data_address, " ",
                  absl::BytesToHexString(m.message_address), m.mapped ? " mapped" : " by messages",
                  m.remote_address.empty() ? "" : " ", m.remote_address);
  }
  std::string operator()(const PeerDied& m) const {
    return StrCat("died ", m.worker.value, "/", m.incarnation, " ", m.reason);
  }
  std::string operator()(const ForgetSpilled& m) const { return StrCat("forget file ", m.file); }
  std::string operator()(const Shutdown& m) const { return StrCat("shutdown ", m.reason); }
};

struct EventText {
  std::string operator()(const SettledEvent& e) const { return StrCat("settled ", e.request, " ", TextOf(e.status)); }
  std::string operator()(const TicketEvent& e) const {
    return StrCat("ticket ", e.request, " ", e.ticket.value, " ", e.secret, " ", ToText(e.spec));
  }
  std::string operator()(const InlineValueEvent& e) const {
    return StrCat("value ", e.request, " ", absl::BytesToHexString(e.bytes));
  }
  std::string operator()(const BatchDoneEvent& e) const { return StrCat("batch ", e.number); }
  std::string operator()(const CommReportEvent& e) const {
    std::string text =
        StrCat("comm ", e.request, " received", ToText(absl::MakeConstSpan(e.received_bytes)), " sent",
               ToText(absl::MakeConstSpan(e.sent_bytes)), " uploaded", ToText(absl::MakeConstSpan(e.uploaded_bytes)),
               " downloaded", ToText(absl::MakeConstSpan(e.downloaded_bytes)));
    for (const auto& [name, count] : e.collectives) StrAppend(&text, " ", name, "=", count);
    StrAppend(&text, " ops ", e.first_op, " to ", e.end_op);
    return text;
  }
  std::string operator()(const FailedHandleEvent& e) const {
    return StrCat("failed ", e.handle.value, " ", TextOf(e.status));
  }
  std::string operator()(const WorkerLostNotice& e) const { return StrCat("lost ", e.worker.value, " ", e.reason); }
  std::string operator()(const WorkerJoinedNotice& e) const {
    return StrCat("joined ", e.worker.value, " ", e.data_address);
  }
  std::string operator()(const UploadDoneEvent& e) const { return StrCat("uploaded ", e.request); }
  std::string operator()(const GroupJoinedEvent& e) const {
    std::string text = StrCat("group ", e.request, " ", e.group);
    for (const auto& member : e.members) StrAppend(&text, " ", member.worker.value, " (", member.process, ")");
    return text;
  }
  std::string operator()(const MatchedEvent& e) const { return StrCat("matched ", e.request, " ", e.source); }
  std::string operator()(const PublicationsEvent& e) const {
    std::string text =
        StrCat("publications ", e.request, " from ", e.first_result.value, e.has_more ? " and more" : "");
    for (const auto& one : e.list) {
      StrAppend(&text, " ", one.name, "/", one.version, "(", one.tensor_count, ",", one.bytes, ")");
      for (const std::string& reader : one.readers) StrAppend(&text, " for ", reader);
      for (const auto& tensor : one.tensors) StrAppend(&text, " ", tensor.name, "=", ToText(tensor.spec));
    }
    return text;
  }
};

struct EffectText {
  std::string operator()(const ToWorkers& e) const {
    std::string text = "workers(";
    for (WorkerIndex worker : *e.workers) StrAppend(&text, worker.value, " ");
    return StrCat(text, ") ", std::visit(MessageText{}, e.message));
  }
  std::string operator()(const ToClient& e) const {
    return StrCat("client ", e.session.value, " #", e.event.number, " ", std::visit(EventText{}, e.event.body));
  }
  std::string operator()(const EndSession& e) const { return StrCat("end ", e.session.value, " ", TextOf(e.reason)); }
  std::string operator()(const KillWorker& e) const { return StrCat("kill ", e.worker.value, " pid ", e.pid); }
};

}  // namespace

std::vector<HandleId> ResultsOf(const UploadRecord& record) {
  std::vector<HandleId> results;
  for (const UploadedTensor& tensor : record.tensors) results.push_back(tensor.result);
  return results;
}

std::string_view NameOf(const PublicationRecord& record) {
  constexpr std::string_view kNames[] = {"publish", "unpublish", "attach", "published"};
  return kNames[record.asked.index()];
}

int64_t WeightOf(const Record& record) {
  constexpr size_t kHandlesOfOne = 64, kBytesOfOne = 512;
  size_t handles = 0, bytes = 0;
  if (const auto* call = std::get_if<CallRecord>(&record)) {
    handles = call->results.size();
    bytes = static_cast<size_t>(call->call.attributes.HeapBytes());
  }
  if (const auto* upload = std::get_if<UploadRecord>(&record)) {
    handles = upload->tensors.size();
    bytes = upload->bytes.size();
  }
  if (const auto* publication = std::get_if<PublicationRecord>(&record)) {
    if (const auto* publish = std::get_if<Publish>(&publication->asked)) {
      handles = publish->tensors.size();
      for (const Publish::Tensor& tensor : publish->tensors) bytes += tensor.name.size();
      for (const std::string& reader : publish->readers) bytes += reader.size();
    }
  }
  if (const auto* drop = std::get_if<DropRecord>(&record)) handles = drop->handles.size();
  if (const auto* bad = std::get_if<BadRecord>(&record)) handles = bad->results.size() + bad->last_uses.size();
  return static_cast<int64_t>(1 + handles / kHandlesOfOne + bytes / kBytesOfOne);
}

std::string ToText(const Effect& effect) { return std::visit(EffectText{}, effect); }

}  // namespace tessera
