#include "server/coordinator/rpc/hello_codec.h"

#include "schemas/codec/values.h"
#include "schemas/types/device_kind.h"
#include "schemas/types/mesh.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxMessageAddressBytes = 32768;  // docs/limits.md: max_message_address_bytes

}  // namespace

absl::Status CheckName(std::string_view op, std::string_view what, capnp::Text::Reader text) {
  if (text.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(op, ": the ", what, " has ", text.size(), " bytes; max_name_bytes is ", kMaxNameBytes));
}

absl::Status CheckVersion(std::string_view who, uint32_t version) {
  if (version >= kOldestProtocolVersion && version <= wire::PROTOCOL_VERSION) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat(
      who, ": this server speaks protocol version ", wire::PROTOCOL_VERSION, " and the one before, the other side ",
      version, version > wire::PROTOCOL_VERSION ? "; upgrade the server first" : "; use the server's release"));
}

absl::StatusOr<ClientHello> DecodeClientHello(wire::ClientHello::Reader reader, std::string_view tenant,
                                              double max_lease_s) {
  TESSERA_RETURN_IF_ERROR(CheckName("connect", "name of the client", reader.getClient()));
  TESSERA_RETURN_IF_ERROR(CheckName("connect", "name of the tenant", reader.getTenant()));
  const std::string wanted = TextOf(reader.getTenant());
  if (!wanted.empty() && wanted != tenant) return absl::UnauthenticatedError("connect: the token is wrong");
  TESSERA_RETURN_IF_ERROR(CheckName("connect", "name of the session", reader.getName()));
  ClientHello hello;
  hello.name = Printable(TextOf(reader.getName()), kMaxNameBytes);
  hello.client = Printable(TextOf(reader.getClient()), kMaxNameBytes);
  // A negative one asks for the server's own.
  if (const double lease_s = reader.getLeaseS(); !(lease_s < 0)) {
    if (!(lease_s <= max_lease_s)) {
      return absl::InvalidArgumentError(
          StrCat("connect: a lease of ", lease_s, " s is wanted; max_session_lease is ", max_lease_s, " s"));
    }
    hello.lease_s = lease_s;
  }
  if (reader.hasResume()) {
    const auto resume = reader.getResume();
    hello.resume = ResumeRequest{SessionId(resume.getSessionId()), resume.getSecret(), resume.getLastEvent(),
                                 resume.getGoesOn() ? Returning::kSameClient : Returning::kNewClient};
  }
  return hello;
}

absl::StatusOr<WorkerJoinedEvent> DecodeWorkerHello(wire::WorkerHello::Reader reader) {
  TESSERA_RETURN_IF_ERROR(CheckName("join", "host", reader.getHost()));
  TESSERA_RETURN_IF_ERROR(CheckName("join", "data address", reader.getDataAddress()));
  TESSERA_RETURN_IF_ERROR(CheckName("join", "remote address", reader.getRemoteAddress()));
  TESSERA_RETURN_IF_ERROR(CheckName("join", "device", reader.getDevice()));
  const std::string device = TextOf(reader.getDevice());
  const std::optional<DeviceKind> kind = ParseDeviceKind(device);
  if (!kind.has_value()) {
    return absl::InvalidArgumentError(
        StrCat("join: device \"", Printable(device, kMaxNameBytes), "\" is neither cpu nor cuda"));
  }
  const auto message_address = reader.getMessageAddress().asChars();
  if (message_address.size() > kMaxMessageAddressBytes) {
    return absl::InvalidArgumentError(StrCat("join: the message address has ", message_address.size(),
                                             " bytes; max_message_address_bytes is ", kMaxMessageAddressBytes));
  }
  WorkerJoinedEvent event;
  event.worker = WorkerIndex(reader.getIndex());
  event.host = TextOf(reader.getHost());
  event.memory_bytes = reader.getMemoryBytes();
  event.data_address = TextOf(reader.getDataAddress());
  event.remote_address = TextOf(reader.getRemoteAddress());
  event.message_address.assign(message_address.begin(), message_address.size());
  event.device = *kind;
  event.pid = reader.getPid();
  event.map_peers = reader.getMapPeers();
  if (reader.getMessages() >= static_cast<uint8_t>(MessageNetwork::kCount)) {
    return absl::InvalidArgumentError(
        StrCat("join: worker ", event.worker.value, " exchanges messages in a way, number ",
               static_cast<int>(reader.getMessages()), ", that this server doesn't know"));
  }
  event.messages = static_cast<MessageNetwork>(reader.getMessages());
  event.has_nccl = reader.getNccl();
  if (event.has_nccl && event.device != DeviceKind::kCuda) {
    return absl::InvalidArgumentError(StrCat("join: worker ", event.worker.value, " has messages by NCCL, and no GPU"));
  }
  event.spill_bytes = reader.getSpillBytes();
  if (event.spill_bytes < 0 || event.spill_bytes > kMaxArenaBytes) {
    return absl::InvalidArgumentError(StrCat("join: worker ", event.worker.value, " has ", event.spill_bytes,
                                             " bytes for files of buffers; they are 0 to max_arena_bytes, ",
                                             kMaxArenaBytes));
  }
  if (event.memory_bytes < 0 || event.memory_bytes > kMaxArenaBytes || event.worker.value >= kMaxMeshSize) {
    return absl::InvalidArgumentError(StrCat("join: worker ", event.worker.value, " with ", event.memory_bytes,
                                             " bytes; numbers are below max_workers, ", kMaxMeshSize,
                                             ", and bytes are 0 to max_arena_bytes, ", kMaxArenaBytes));
  }
  return event;
}

}  // namespace tessera
