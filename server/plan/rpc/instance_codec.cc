#include "server/plan/rpc/instance_codec.h"

#include <string>
#include <utility>
#include <vector>

#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr uint32_t kMaxListEntries = 1u << 16;  // docs/limits.md: max_list_entries
constexpr int64_t kMaxClockNs = int64_t{1} << 62;

using Message = wire::WorkerMessages::Message;

kj::StringPtr Text(const std::string& text) { return kj::StringPtr(text.c_str(), text.size()); }
std::string Bytes(capnp::Data::Reader data) { return std::string(data.asChars().begin(), data.size()); }
kj::ArrayPtr<const kj::byte> Bytes(const std::string& data) {
  return kj::arrayPtr(reinterpret_cast<const kj::byte*>(data.data()), data.size());
}

void EncodeWaits(const std::vector<InstanceWait>& waits, capnp::List<wire::Wait>::Builder builder) {
  for (unsigned i = 0; i < waits.size(); ++i) {
    builder[i].setPhase(static_cast<uint16_t>(waits[i].phase));
    builder[i].setStream(waits[i].stream);
    builder[i].setOrdinal(waits[i].ordinal.value);
    builder[i].setScope(static_cast<uint8_t>(waits[i].scope));
    auto workers = builder[i].initWorkers(static_cast<unsigned>(waits[i].workers.size()));
    for (unsigned w = 0; w < workers.size(); ++w) workers.set(w, waits[i].workers[w].value);
  }
}

absl::Status DecodeWait(wire::Wait::Reader item, InstanceWait& wait) {
  if (item.getScope() > static_cast<uint8_t>(WaitScope::kWorkers)) {
    return absl::InvalidArgumentError(StrCat("unknown wait scope ", static_cast<int>(item.getScope())));
  }
  wait.phase = item.getPhase();
  wait.stream = item.getStream();
  wait.ordinal = Ordinal(item.getOrdinal());
  wait.scope = static_cast<WaitScope>(item.getScope());
  wait.workers.clear();
  for (int32_t worker : item.getWorkers()) wait.workers.emplace_back(worker);
  return absl::OkStatus();
}

absl::Status TooManyWaits() { return absl::InvalidArgumentError("too many waits in an instance"); }

absl::StatusOr<std::vector<InstanceWait>> DecodeWaits(capnp::List<wire::Wait>::Reader reader) {
  if (reader.size() > kMaxListEntries) return TooManyWaits();
  std::vector<InstanceWait> waits(reader.size());
  for (unsigned i = 0; i < reader.size(); ++i) TESSERA_RETURN_IF_ERROR(DecodeWait(reader[i], waits[i]));
  return waits;
}

template <typename Builder>
void EncodeStrides(const Strides& strides, Builder builder) {
  for (unsigned i = 0; i < strides.size(); ++i) builder.set(i, strides[i]);
}

absl::StatusOr<Strides> DecodeStrides(capnp::List<int64_t>::Reader reader, const TensorSpec& spec) {
  if (reader.size() != spec.shape.size()) {
    return absl::InvalidArgumentError(StrCat(reader.size(), " strides for ", ToText(spec)));
  }
  Strides strides;
  for (int64_t stride : reader) strides.push_back(stride);
  return strides;
}
template <typename Builder>
void EncodeRange(const TransferRange& range, Builder builder) {
  EncodeTensorSpec(range.spec, builder.initSpec());
  builder.setOffsetBytes(range.offset_bytes);
  EncodeStrides(range.strides, builder.initStrides(static_cast<unsigned>(range.strides.size())));
}

// An InlineRead, or an InlineWrite without its bytes.
template <typename Message, typename Builder>
void EncodeInline(const Message& m, Builder builder) {
  builder.setOrdinal(m.ordinal.value);
  EncodeTensorSpec(m.spec, builder.initSpec());
  builder.setOffsetBytes(m.offset_bytes);
  EncodeStrides(m.strides, builder.initStrides(static_cast<unsigned>(m.strides.size())));
  EncodeWaits(m.waits, builder.initWaits(static_cast<unsigned>(m.waits.size())));
  builder.setStream(m.stream);
}

void EncodePlaced(const std::vector<PlacedBuffer>& placed, wire::Instance::Builder run) {
  auto list = run.initPlacedApart(static_cast<unsigned>(placed.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setBuffer(static_cast<uint16_t>(placed[i].buffer));
    const auto count = static_cast<unsigned>(placed[i].offsets.size());
    auto workers = list[i].initWorkers(count);
    auto offsets = list[i].initOffsets(count);
    for (unsigned w = 0; w < count; ++w) {
      workers.set(w, placed[i].offsets[w].first.value);
      offsets.set(w, placed[i].offsets[w].second);
    }
  }
}

struct MessageEncoder {
  Message::Builder out;

  void operator()(const DefineTemplate& m) {
    auto define = out.initDefine();
    define.setId(m.id.value);
    define.setPlan(Text(m.text != nullptr ? *m.text : ToText(**m.plan)));
  }
  void operator()(const ForgetTemplate& m) { out.setForget(m.id.value); }
  void operator()(const Instance& m) {
    auto run = out.initRun();
    run.setOrdinal(m.ordinal.value);
    run.setTemplate(m.plan.value);
    run.setStream(m.stream);
    auto offsets = run.initBufferOffsets(static_cast<unsigned>(m.buffer_offsets.size()));
    for (unsigned i = 0; i < offsets.size(); ++i) offsets.set(i, m.buffer_offsets[i]);
    auto scalars = run.initScalars(static_cast<unsigned>(m.scalars.size()));
    for (unsigned i = 0; i < scalars.size(); ++i) EncodeScalar(m.scalars[i], scalars[i]);
    EncodeWaits(m.waits, run.initWaits(static_cast<unsigned>(m.waits.size())));
    run.setWritesAreFree(m.writes_are_free);
    run.setMakesCalls(m.makes_calls);
    if (!m.placed_apart.empty()) EncodePlaced(m.placed_apart, run);
  }
  void operator()(const TransferWindow& m) {
    auto window = out.initWindow();
    window.setOrdinal(m.ordinal.value);
    window.setTicket(m.ticket.value);
    window.setSecret(m.secret);
    window.setSession(m.session.value);
    window.setStream(m.stream);
    window.setSpillFile(m.spill_file);
    window.setDirection(static_cast<uint8_t>(m.direction()));
    EncodeRange(m.ranges[0], window);
    auto others = window.initOthers(static_cast<unsigned>(m.ranges.size() - 1));
    for (unsigned i = 0; i < others.size(); ++i) EncodeRange(m.ranges[i + 1], others[i]);
    EncodeWaits(m.waits, window.initWaits(static_cast<unsigned>(m.waits.size())));
  }
  void operator()(const InlineRead& m) {
    auto read = out.initInlineRead();
    EncodeInline(m, read);
  }
  void operator()(const InlineWrite& m) {
    auto write = out.initInlineWrite();
    EncodeInline(m, write);
    write.setBytes(Bytes(m.bytes));
  }
  void operator()(const CloseTicket& m) { out.setCloseTicket(m.ticket.value); }
  void operator()(const PeerJoined& m) {
    auto peer = out.initPeerJoined();
    peer.setIndex(m.worker.value);
    peer.setIncarnation(m.incarnation);
    peer.setHost(Text(m.host));
    peer.setDataAddress(Text(m.data_address));
    peer.setMessageAddress(Bytes(m.message_address));
    peer.setMapped(m.mapped);
    peer.setRemoteAddress(Text(m.remote_address));
  }
  void operator()(const PeerDied& m) {
    auto died = out.initPeerDied();
    died.setIndex(m.worker.value);
    died.setIncarnation(m.incarnation);
    died.setReason(Text(m.reason));
  }
  void operator()(const Shutdown& m) { out.setShutdown(Text(m.reason)); }
  void operator()(const ForgetSpilled& m) { out.setForgetSpilled(m.file); }
};

// The range of the window itself, or of one of its others.
template <typename Reader>
absl::StatusOr<TransferRange> DecodeRange(TransferDirection direction, Reader reader) {
  TransferRange range;
  range.direction = direction;
  TESSERA_ASSIGN_OR_RETURN(range.spec, DecodeTensorSpec(reader.getSpec()));
  range.offset_bytes = reader.getOffsetBytes();
  TESSERA_ASSIGN_OR_RETURN(range.strides, DecodeStrides(reader.getStrides(), range.spec));
  return range;
}

absl::StatusOr<WorkerMessage> DecodeWindow(wire::Window::Reader window) {
  TransferWindow m;
  m.ordinal = Ordinal(window.getOrdinal());
  m.ticket = TicketId(window.getTicket());
  m.secret = window.getSecret();
  m.session = SessionId(window.getSession());
  m.stream = window.getStream();
  m.spill_file = window.getSpillFile();
  if (window.getDirection() > static_cast<uint8_t>(TransferDirection::kDownload)) {
    return absl::InvalidArgumentError(StrCat("unknown transfer direction ", static_cast<int>(window.getDirection())));
  }
  const auto direction = static_cast<TransferDirection>(window.getDirection());
  m.ranges.reserve(1 + window.getOthers().size());
  TESSERA_ASSIGN_OR_RETURN(m.ranges.emplace_back(), DecodeRange(direction, window));
  for (auto other : window.getOthers()) {
    TESSERA_ASSIGN_OR_RETURN(m.ranges.emplace_back(), DecodeRange(direction, other));
  }
  TESSERA_ASSIGN_OR_RETURN(m.waits, DecodeWaits(window.getWaits()));
  return m;
}

// As EncodeInline.
template <typename Message, typename Reader>
absl::StatusOr<Message> DecodeInline(Reader reader) {
  Message m;
  m.ordinal = Ordinal(reader.getOrdinal());
  TESSERA_ASSIGN_OR_RETURN(m.spec, DecodeTensorSpec(reader.getSpec()));
  m.offset_bytes = reader.getOffsetBytes();
  m.stream = reader.getStream();
  TESSERA_ASSIGN_OR_RETURN(m.strides, DecodeStrides(reader.getStrides(), m.spec));
  TESSERA_ASSIGN_OR_RETURN(m.waits, DecodeWaits(reader.getWaits()));
  return m;
}

absl::StatusOr<WorkerMessage> DecodeInlineRead(wire::InlineRead::Reader reader) {
  return DecodeInline<InlineRead>(reader);
}

absl::StatusOr<WorkerMessage> DecodeInlineWrite(wire::InlineWrite::Reader reader) {
  TESSERA_ASSIGN_OR_RETURN(InlineWrite m, DecodeInline<InlineWrite>(reader));
  const auto bytes = reader.getBytes();
  m.bytes.assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  return m;
}

absl::Status DecodePlaced(capnp::List<wire::PlacedBuffer>::Reader list, Instance& instance) {
  instance.placed_apart.clear();
  if (list.size() > instance.buffer_offsets.size()) {
    return absl::InvalidArgumentError(StrCat("an instance of ", instance.buffer_offsets.size(), " buffers places ",
                                             list.size(), " of them by worker"));
  }
  for (auto item : list) {
    if (item.getWorkers().size() != item.getOffsets().size() || item.getWorkers().size() > kMaxListEntries) {
      return absl::InvalidArgumentError(StrCat("an instance places a buffer on ", item.getWorkers().size(),
                                               " workers at ", item.getOffsets().size(), " offsets"));
    }
    PlacedBuffer& placed = instance.placed_apart.emplace_back();
    placed.buffer = item.getBuffer();
    for (unsigned w = 0; w < item.getWorkers().size(); ++w) {
      placed.offsets.emplace_back(WorkerIndex(item.getWorkers()[w]), item.getOffsets()[w]);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Plan>> DecodePlan(capnp::Text::Reader text) {
  if (text.size() > kMaxPlanTextBytes) {
    return absl::ResourceExhaustedError(
        StrCat("a plan of ", text.size(), " bytes; max_plan_text_bytes is ", kMaxPlanTextBytes));
  }
  TESSERA_ASSIGN_OR_RETURN(Plan plan, ParsePlan(std::string_view(text.cStr(), text.size())));
  return std::make_shared<const Plan>(std::move(plan));
}

}  // namespace

absl::StatusOr<const Instance*> InstanceDecoder::Decode(wire::Instance::Reader run) {
  if (run.getBufferOffsets().size() > kMaxListEntries || run.getScalars().size() > kMaxListEntries) {
    return absl::InvalidArgumentError("too many buffers or scalars in an instance");
  }
  if (run.getWaits().size() > kMaxListEntries) return TooManyWaits();
  instance_.ordinal = Ordinal(run.getOrdinal());
  instance_.plan = TemplateId(run.getTemplate());
  instance_.stream = run.getStream();
  instance_.writes_are_free = run.getWritesAreFree();
  instance_.makes_calls = run.getMakesCalls();
  instance_.buffer_offsets.clear();
  for (int64_t offset : run.getBufferOffsets()) instance_.buffer_offsets.push_back(offset);
  TESSERA_RETURN_IF_ERROR(DecodePlaced(run.getPlacedApart(), instance_));
  instance_.scalars.clear();
  for (auto item : run.getScalars()) {
    TESSERA_ASSIGN_OR_RETURN(Scalar scalar, DecodeScalar(item));
    instance_.scalars.push_back(scalar);
  }
  auto waits = run.getWaits();
  for (; instance_.waits.size() > waits.size(); instance_.waits.pop_back()) {
    spare_waits_.push_back(std::move(instance_.waits.back()));
  }
  for (unsigned i = 0; i < waits.size(); ++i) {
    if (i == instance_.waits.size() && !spare_waits_.empty()) {
      instance_.waits.push_back(std::move(spare_waits_.back()));
      spare_waits_.pop_back();
    } else if (i == instance_.waits.size()) {
      instance_.waits.emplace_back();
    }
    TESSERA_RETURN_IF_ERROR(DecodeWait(waits[i], instance_.waits[i]));
  }
  return &instance_;
}

void EncodeWorkerMessage(const WorkerMessage& message, Message::Builder builder) {
  std::visit(MessageEncoder{builder}, message);
}

size_t EncodeWorkerMessages(absl::Span<const std::shared_ptr<const WorkerMessage>> messages, uint64_t epoch,
                            capnp::MessageBuilder& builder) {
  auto root = builder.initRoot<wire::WorkerMessages>();
  root.setEpoch(epoch);
  auto list = builder.getOrphanage().newOrphan<capnp::List<Message>>(static_cast<unsigned>(messages.size()));
  unsigned count = 0;
  do {
    EncodeWorkerMessage(*messages[count], list.get()[count]);
    ++count;
  } while (count < messages.size() && builder.sizeInWords() * sizeof(capnp::word) < kFullSendBytes);
  if (count < messages.size()) list.truncate(count);
  root.adoptMessages(kj::mv(list));
  return count;
}

absl::StatusOr<WorkerMessage> DecodeWorkerMessage(Message::Reader reader) {
  switch (reader.which()) {
    case Message::DEFINE:
      return DefineTemplate{TemplateId(reader.getDefine().getId()), DecodePlan(reader.getDefine().getPlan())};
    case Message::FORGET: return ForgetTemplate{TemplateId(reader.getForget())};
    case Message::RUN: {
      InstanceDecoder decoder;
      TESSERA_ASSIGN_OR_RETURN(const Instance* instance, decoder.Decode(reader.getRun()));
      return *instance;
    }
    case Message::WINDOW: return DecodeWindow(reader.getWindow());
    case Message::INLINE_READ: return DecodeInlineRead(reader.getInlineRead());
    case Message::INLINE_WRITE: return DecodeInlineWrite(reader.getInlineWrite());
    case Message::CLOSE_TICKET: return CloseTicket{TicketId(reader.getCloseTicket())};
    case Message::PEER_JOINED: {
      auto peer = reader.getPeerJoined();
      return PeerJoined{WorkerIndex(peer.getIndex()),   peer.getIncarnation(),           TextOf(peer.getHost()),
                        TextOf(peer.getDataAddress()),  Bytes(peer.getMessageAddress()), peer.getMapped(),
                        TextOf(peer.getRemoteAddress())};
    }
    case Message::PEER_DIED: {
      auto died = reader.getPeerDied();
      return PeerDied{WorkerIndex(died.getIndex()), died.getIncarnation(), TextOf(died.getReason())};
    }
    case Message::FORGET_SPILLED: return ForgetSpilled{reader.getForgetSpilled()};
    case Message::SHUTDOWN: return Shutdown{TextOf(reader.getShutdown())};
  }
  return absl::InvalidArgumentError(StrCat("unknown worker message ", static_cast<int>(reader.which())));
}

namespace {

using BytesByWorker = std::vector<std::pair<WorkerIndex, int64_t>>;

void EncodeBytes(const BytesByWorker& bytes, capnp::List<wire::Received>::Builder builder) {
  for (unsigned i = 0; i < builder.size(); ++i) {
    builder[i].setWorker(bytes[i].first.value);
    builder[i].setBytes(bytes[i].second);
  }
}

absl::Status DecodeBytes(capnp::List<wire::Received>::Reader reader, BytesByWorker& bytes) {
  if (reader.size() > kMaxListEntries) return absl::InvalidArgumentError("too many peers in a report");
  for (auto item : reader) {
    if (item.getBytes() < 0) return absl::InvalidArgumentError("a negative number of bytes in a report");
    bytes.emplace_back(WorkerIndex(item.getWorker()), item.getBytes());
  }
  return absl::OkStatus();
}

void EncodeTimes(const RunTimes& times, wire::RunTimes::Builder builder) {
  builder.setStartedNs(times.started_ns);
  builder.setEndedNs(times.ended_ns);
  builder.setWorkNs(times.work_ns);
  builder.setBusyNs(times.busy_ns);
}

absl::StatusOr<RunTimes> DecodeTimes(wire::RunTimes::Reader reader) {
  const RunTimes times{reader.getStartedNs(), reader.getEndedNs(), reader.getWorkNs(), reader.getBusyNs()};
  if (times.started_ns < 0 || times.ended_ns < times.started_ns || times.ended_ns > kMaxClockNs || times.work_ns < 0 ||
      times.work_ns > times.ended_ns - times.started_ns || times.busy_ns < 0 || times.busy_ns > times.work_ns) {
    return absl::InvalidArgumentError(StrCat("a report of work of ", times.work_ns, " ns, ", times.busy_ns,
                                             " of them busy, from ", times.started_ns, " to ", times.ended_ns));
  }
  return times;
}

}  // namespace

void EncodeCompletion(const CompletionReport& report, wire::Completion::Builder builder) {
  builder.setOrdinal(report.ordinal.value);
  if (!report.status.ok()) EncodeStatus(report.status, builder.initStatus());
  EncodeBytes(report.received_bytes, builder.initReceived(static_cast<unsigned>(report.received_bytes.size())));
  if (!report.pushed_bytes.empty()) {
    EncodeBytes(report.pushed_bytes, builder.initPushed(static_cast<unsigned>(report.pushed_bytes.size())));
  }
  if (!report.inline_bytes.empty()) builder.setInlineBytes(Bytes(report.inline_bytes));
  if (report.times.has_run()) EncodeTimes(report.times, builder.initTimes());
  builder.setWrittenBytes(static_cast<uint32_t>(report.written_bytes));
  builder.setPreparedNs(report.prepared_ns);
}

absl::StatusOr<CompletionReport> DecodeCompletion(wire::Completion::Reader reader) {
  CompletionReport report;
  report.ordinal = Ordinal(reader.getOrdinal());
  if (reader.hasStatus()) report.status = DecodeStatus(reader.getStatus());
  TESSERA_RETURN_IF_ERROR(DecodeBytes(reader.getReceived(), report.received_bytes));
  TESSERA_RETURN_IF_ERROR(DecodeBytes(reader.getPushed(), report.pushed_bytes));
  report.inline_bytes = Bytes(reader.getInlineBytes());
  report.written_bytes = reader.getWrittenBytes();
  report.prepared_ns = reader.getPreparedNs();
  if (report.prepared_ns < 0 || report.prepared_ns > kMaxClockNs) {
    return absl::InvalidArgumentError(StrCat("a report of a template that took ", report.prepared_ns, " ns"));
  }
  if (reader.hasTimes()) {
    TESSERA_ASSIGN_OR_RETURN(report.times, DecodeTimes(reader.getTimes()));
  }
  return report;
}

void EncodeTransfer(const TransferReport& report, wire::TransferDone::Builder builder) {
  builder.setTicket(report.ticket.value);
  if (!report.status.ok()) EncodeStatus(report.status, builder.initStatus());
  if (report.times.has_run()) EncodeTimes(report.times, builder.initTimes());
  builder.setBytes(report.bytes);
  builder.setInHostMemory(report.in_host_memory);
}

absl::StatusOr<TransferReport> DecodeTransfer(wire::TransferDone::Reader reader) {
  TransferReport report;
  report.ticket = TicketId(reader.getTicket());
  if (reader.hasStatus()) report.status = DecodeStatus(reader.getStatus());
  if (reader.hasTimes()) {
    TESSERA_ASSIGN_OR_RETURN(report.times, DecodeTimes(reader.getTimes()));
  }
  report.bytes = reader.getBytes();
  report.in_host_memory = reader.getInHostMemory();
  if (report.bytes < 0) return absl::InvalidArgumentError("a transfer of a negative number of bytes");
  return report;
}

}  // namespace tessera
