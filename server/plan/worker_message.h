#pragma once

// WorkerMessage: everything the coordinator says to workers. Values; server/plan/rpc carries them.
// Messages reach a worker in the order in which they were issued.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "schemas/types/ids.h"
#include "server/plan/instance.h"

namespace tessera {

struct DefineTemplate {
  TemplateId id;
  // At a worker: or why what came is no plan. That is remembered, and the template's instances report it.
  absl::StatusOr<std::shared_ptr<const Plan>> plan;
  std::shared_ptr<const std::string> text = {};  // the plan's, which all workers get; null: it is yet to be made
  int64_t read_ns = 0;                           // at a worker: time of its thread that reading it took
};
struct ForgetTemplate {
  TemplateId id;
};
struct CloseTicket {
  TicketId ticket;
};
// A file of a spilled buffer that nobody will want any more.
struct ForgetSpilled {
  uint64_t file = 0;
};
struct PeerJoined {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  std::string host;
  std::string data_address;
  std::string message_address;
  bool mapped = false;
  std::string remote_address = {};  // for clients of other hosts; may be empty
};
struct PeerDied {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  std::string reason;
};
// The worker is to end. Nobody sends it yet.
struct Shutdown {
  std::string reason;
};
using WorkerMessage = std::variant<DefineTemplate, ForgetTemplate, Instance, TransferWindow, InlineRead, InlineWrite,
                                   CloseTicket, PeerJoined, PeerDied, Shutdown, ForgetSpilled>;

}  // namespace tessera
