#include "server/coordinator/rpc/record_encoder.h"

#include <string>
#include <variant>

#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

kj::StringPtr Text(const std::string& text) { return {text.c_str(), text.size()}; }
kj::ArrayPtr<const kj::byte> Bytes(const std::string& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

template <typename Handles>
void FillHandles(const Handles& handles, capnp::List<uint64_t>::Builder list) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, handles[i].value);
}

struct RecordEncoder {
  wire::Record::Builder out;
  uint64_t request = 0;  // of a publication's

  void operator()(const CallRecord& record) {
    auto call = out.initCall();
    EncodeOpCall(record.call, call.initCall());
    auto operands = call.initOperands(static_cast<unsigned>(record.operands.size()));
    for (unsigned i = 0; i < operands.size(); ++i) {
      const OperandReference& operand = record.operands[i];
      operands[i].setLastUse(operand.last_use);
      if (const auto* scalar = std::get_if<Scalar>(&operand.value)) {
        EncodeScalar(*scalar, operands[i].initScalar());
      } else {
        operands[i].setHandle(std::get<HandleId>(operand.value).value);
      }
    }
    FillHandles(record.results, call.initResults(static_cast<unsigned>(record.results.size())));
    call.setCalledAs(static_cast<uint16_t>(record.called_as));
  }
  void operator()(const UploadRecord& record) {
    auto upload = out.initUpload();
    upload.setRequest(record.request);
    upload.setResult(record.tensors[0].result.value);
    EncodeTensorSpec(record.tensors[0].spec, upload.initSpec());
    auto others = upload.initOthers(static_cast<unsigned>(record.tensors.size() - 1));
    for (unsigned i = 0; i < others.size(); ++i) {
      others[i].setResult(record.tensors[i + 1].result.value);
      EncodeTensorSpec(record.tensors[i + 1].spec, others[i].initSpec());
    }
    upload.setBytes(Bytes(record.bytes));
  }
  void operator()(const DownloadRecord& record) {
    auto download = out.initDownload();
    download.setRequest(record.request);
    download.setHandle(record.handle.value);
    download.setAllowInline(record.allow_inline);
  }
  void operator()(const WatchRecord& record) {
    auto watch = out.initWatch();
    watch.setRequest(record.request);
    watch.setHandle(record.handle.value);
  }
  void operator()(const DropRecord& record) {
    FillHandles(record.handles, out.initDrop(static_cast<unsigned>(record.handles.size())));
  }
  void operator()(const CommBeginRecord& record) { out.setCommBegin(record.scope); }
  void operator()(const CommEndRecord& record) {
    auto end = out.initCommEnd();
    end.setRequest(record.request);
    end.setHandle(record.scope);
  }
  void operator()(const CancelRecord& record) { out.setCancel(record.request); }
  void operator()(const CancelCallsRecord& record) {
    FillHandles(record.needed, out.initCancelCalls(static_cast<unsigned>(record.needed.size())));
  }
  void operator()(const ReleaseRecord& record) {
    out.setRelease(record.ticket.value);
    if (!record.reason.ok()) EncodeStatus(record.reason, out.initReason());
  }
  void operator()(const NamingRecord& record) {
    auto naming = out.initName();
    naming.setHandle(record.handle.value);
    naming.setName(Text(record.name));
  }
  void operator()(const JoinGroupRecord& record) {
    auto join = out.initJoinGroup();
    join.setRequest(record.request);
    join.setKey(Text(record.key));
    join.setSize(static_cast<uint32_t>(record.size));
    join.setRank(static_cast<uint32_t>(record.rank));
    join.setWorker(record.worker.value);
    join.setProcess(Text(record.process));
    join.setTimeoutUs(record.timeout_us);
    join.setMeeting(Text(record.meeting));
  }
  void operator()(const LeaveGroupRecord& record) { out.setLeaveGroup(record.group); }
  void operator()(const CollectiveRecord& record) {
    auto call = out.initCollective();
    call.setRequest(record.request);
    call.setGroup(record.group);
    call.setKind(static_cast<uint8_t>(record.kind));
    call.setReduceOp(static_cast<uint8_t>(record.op));
    call.setPeer(record.peer);
    call.setTag(record.tag);
    call.setOperand(record.operand.value);
    call.setLastUse(record.last_use);
    call.setResult(record.result.value);
    if (record.result.value != 0) EncodeTensorSpec(record.result_spec, call.initResultSpec());
    call.setTimeoutUs(record.timeout_us);
    call.setNumber(record.number);
    call.setWaitedUs(record.waited_us);
    if (!record.on_devices) return;
    call.setOnDevices(true);
    call.setDtype(static_cast<uint8_t>(record.dtype));
    call.setElements(record.elements);
  }
  void operator()(const PublicationRecord& record) {
    request = record.request;
    std::visit(*this, record.asked);
  }
  void operator()(const Publish& asked) {
    auto publish = out.initPublish();
    publish.setRequest(request);
    publish.setName(Text(asked.name));
    auto tensors = publish.initTensors(static_cast<unsigned>(asked.tensors.size()));
    for (unsigned i = 0; i < tensors.size(); ++i) {
      tensors[i].setName(Text(asked.tensors[i].name));
      tensors[i].setHandle(asked.tensors[i].handle.value);
    }
    auto readers = publish.initReaders(static_cast<unsigned>(asked.readers.size()));
    for (unsigned i = 0; i < readers.size(); ++i) readers.set(i, Text(asked.readers[i]));
  }
  void operator()(const Unpublish& asked) {
    auto unpublish = out.initUnpublish();
    unpublish.setRequest(request);
    unpublish.setName(Text(asked.name));
  }
  void operator()(const Attach& asked) {
    auto attach = out.initAttach();
    attach.setRequest(request);
    attach.setName(Text(asked.name));
    attach.setFirstResult(asked.first_result.value);
  }
  void operator()(const ListPublished& asked) {
    auto list = out.initListPublished();
    list.setRequest(request);
    list.setAfter(Text(asked.after));
  }
  void operator()(const BadRecord&) { TESSERA_CHECK(false); }
  void operator()(const BatchEndRecord&) { TESSERA_CHECK(false); }
};

}  // namespace

void EncodeRecord(const Record& record, wire::Record::Builder builder) { std::visit(RecordEncoder{builder}, record); }

}  // namespace tessera
