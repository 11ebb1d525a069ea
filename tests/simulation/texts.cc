#include "tests/simulation/texts.h"

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

std::string TextOf(const CallRecord& record) {
  std::string text = StrCat("call ", ToText(record.call), " of");
  for (const OperandReference& operand : record.operands) {
    const auto* handle = std::get_if<HandleId>(&operand.value);
    text += StrCat(" ", handle == nullptr ? 0 : handle->value, operand.last_use ? "!" : "");
  }
  return StrCat(text, " is ", record.results.at(0).value, "; ");
}
std::string TextOf(const WatchRecord& record) {
  return StrCat("watch ", record.request, " of ", record.handle.value, "; ");
}
std::string TextOf(const DownloadRecord& record) {
  return StrCat("read ", record.request, " of ", record.handle.value, "; ");
}
std::string TextOf(const UploadRecord& record) {
  std::string text = StrCat("bring ", record.request, " to");
  for (const UploadedTensor& tensor : record.tensors) text += StrCat(" ", tensor.result.value);
  return StrCat(text, "; ");
}
std::string TextOf(const ReleaseRecord& record) { return StrCat("release ", record.ticket.value, "; "); }
std::string TextOf(const DropRecord& record) { return StrCat("drop ", record.handles.at(0).value, "; "); }
std::string TextOf(const CancelRecord& record) { return StrCat("cancel ", record.request, "; "); }
std::string TextOf(const CancelCallsRecord& record) {
  std::string text = "cancel all but";
  for (const HandleId handle : record.needed) text += StrCat(" ", handle.value);
  return StrCat(text, "; ");
}
std::string TextOf(const NamingRecord& record) { return StrCat("name ", record.handle.value, " ", record.name, "; "); }
std::string TextOf(const JoinGroupRecord& record) { return StrCat("join ", record.request, " ", record.key, "; "); }
std::string TextOf(const LeaveGroupRecord& record) { return StrCat("leave ", record.group, "; "); }
std::string TextOf(const CollectiveRecord& record) {
  return StrCat(ToText(record.kind), " ", record.request, " of ", record.operand.value, " is ", record.result.value,
                "; ");
}
std::string TextOf(const PublicationRecord& record) {
  std::string text = StrCat(NameOf(record), " ", record.request);
  if (const auto* publish = std::get_if<Publish>(&record.asked)) {
    StrAppend(&text, " ", publish->name);
    for (const auto& tensor : publish->tensors) StrAppend(&text, " ", tensor.name, "=", tensor.handle.value);
  }
  if (const auto* unpublish = std::get_if<Unpublish>(&record.asked)) StrAppend(&text, " ", unpublish->name);
  if (const auto* attach = std::get_if<Attach>(&record.asked)) {
    StrAppend(&text, " ", attach->name, " from ", attach->first_result.value);
  }
  return StrCat(text, "; ");
}
template <typename T>
std::string TextOf(const T&) {
  return "unknown; ";
}

}  // namespace

std::string TextOf(const std::vector<Record>& records) {
  std::string text;
  for (const Record& record : records) {
    text += std::visit([](const auto& r) { return TextOf(r); }, record);
  }
  return text;
}

std::string TextOf(const SessionEvent& event) {
  if (const auto* settled = std::get_if<SettledEvent>(&event.body)) {
    return StrCat("settled ", settled->request, " ", settled->status.ToString());
  }
  if (const auto* value = std::get_if<InlineValueEvent>(&event.body)) {
    return StrCat("value ", value->request, " ", value->bytes);
  }
  if (const auto* failed = std::get_if<FailedHandleEvent>(&event.body)) {
    return StrCat("failed ", failed->handle.value, " ", failed->status.ToString());
  }
  if (const auto* ticket = std::get_if<TicketEvent>(&event.body)) {
    return StrCat("ticket ", ticket->ticket.value, " of ", ticket->request);
  }
  if (const auto* done = std::get_if<UploadDoneEvent>(&event.body)) return StrCat("brought ", done->request);
  if (const auto* lost = std::get_if<WorkerLostNotice>(&event.body)) return StrCat("lost ", lost->worker.value);
  if (const auto* joined = std::get_if<WorkerJoinedNotice>(&event.body)) return StrCat("joined ", joined->worker.value);
  if (const auto* member = std::get_if<GroupJoinedEvent>(&event.body)) {
    return StrCat("member ", member->group, " of ", member->members.size());
  }
  if (const auto* matched = std::get_if<MatchedEvent>(&event.body)) {
    return StrCat("matched ", matched->request, " ", matched->source);
  }
  if (const auto* told = std::get_if<PublicationsEvent>(&event.body)) {
    std::string text = StrCat("publications ", told->request, " from ", told->first_result.value);
    for (const auto& one : told->list) {
      StrAppend(&text, " ", one.name, "/", one.version);
      for (const auto& tensor : one.tensors) StrAppend(&text, " ", tensor.name, "=", ToText(tensor.spec));
    }
    return text;
  }
  if (std::holds_alternative<BatchDoneEvent>(event.body)) return "";
  return "unknown";
}

}  // namespace tessera
