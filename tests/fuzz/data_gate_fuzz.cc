// A worker's data gate, on any sequence of calls that a client could make with tickets of its own: each is answered,
// each ticket is reported at most once, an upload that ended well has brought every row, and no byte is written outside
// the window, be it of the arena or of the client's memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include <kj/async-io.h>

#include "schemas/codec/descriptor.h"
#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"
#include "schemas/worker.capnp.h"
#include "server/device/cpu/cpu_device.h"
#include "server/worker/rpc/data_gate.h"

namespace tessera {
namespace {

constexpr int64_t kRows = 6, kColumns = 5;  // of a tensor of i8, whose rows 3 to 5 are this worker's
constexpr int64_t kShardBytes = 3 * kColumns;
constexpr int64_t kOffset = 256, kSecondOffset = 1024;
constexpr size_t kMemoryBytes = 4096;
constexpr uint64_t kUpload = 1, kDownload = 2, kSecret = 7;
constexpr size_t kMaxCalls = 64;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t Next() { return empty() ? 0 : data_[at_++]; }
  int64_t Small() { return static_cast<int8_t>(Next()); }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

int MakeMemory(uint8_t kind) {
  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  TESSERA_CHECK(fd >= 0);
  if (kind % 4 == 1) {
    TESSERA_CHECK(ftruncate(fd, kMemoryBytes) == 0);  // no page is reserved
  } else {
    TESSERA_CHECK(posix_fallocate(fd, 0, kind % 4 == 2 ? 16 : kMemoryBytes) == 0);
  }
  TESSERA_CHECK(fcntl(fd, F_ADD_SEALS, kind % 4 == 3 ? F_SEAL_GROW : F_SEAL_SHRINK) == 0);
  return fd;
}

TransferWindow Window(uint64_t ticket, TransferDirection direction, int64_t offset) {
  TransferWindow window;
  window.ordinal = Ordinal(ticket);
  window.ticket = TicketId(ticket);
  window.secret = kSecret;
  window.direction = direction;
  window.spec = *ParseTensorSpec("i8[6,5] @ mesh(2) [S(0)]");
  window.strides = {kColumns, 1};
  window.offset_bytes = offset;
  return window;
}

class World {
 public:
  World(kj::AsyncIoContext& io, Device& device, const SharedArena& arena)
      : io_(io),
        arena_(arena),
        tickets_(WorkerIndex(1), arena,
                 [this](const TransferReport& report) {
                   TESSERA_CHECK(++reports_[report.ticket.value] == 1);
                   if (report.ticket.value == kUpload && report.status.ok() && !is_closed_) is_uploaded_ = true;
                 }),
        gate_(MakeDataGate(tickets_, device, copies_, attached_, 11, [] {})) {
    std::memset(arena_.memory(), 0x5A, kMemoryBytes);
    TESSERA_CHECK(tickets_.Expect(Window(kUpload, TransferDirection::kUpload, kOffset)).ok());
    TESSERA_CHECK(tickets_.Expect(Window(kDownload, TransferDirection::kDownload, kSecondOffset)).ok());
    tickets_.Open(Ordinal(kUpload));
    tickets_.Open(Ordinal(kDownload));
  }

  void Call(Bytes& bytes) {
    const uint8_t what = bytes.Next();
    switch (what % 8) {
      case 0: {
        auto request = gate_.transferRequest();
        request.setTicket(1 + bytes.Next() % 3);
        request.setSecret(bytes.Next() % 4 == 0 ? 0 : kSecret);
        auto answer = request.send();
        transfers_.push_back(answer.getTransfer());
        return Keep(answer.ignoreResult());
      }
      case 1: {
        auto request = gate_.arenaRequest();
        request.setPeerKey(bytes.Next() % 2 == 0 ? 11 : 12);
        request.setIndex(bytes.Next() % 3);
        return Keep(request.send().ignoreResult());
      }
      case 2:
        is_closed_ = true;  // by the coordinator; it is reported well, whatever it brought
        tickets_.Close(TicketId(1 + bytes.Next() % 3));
        return;
      default: break;
    }
    if (transfers_.empty()) return;
    wire::Transfer::Client& transfer = transfers_[bytes.Next() % transfers_.size()];
    switch (what % 8) {
      case 3: {
        auto request = transfer.attachRequest();
        const uint8_t kind = bytes.Next();
        if (kind % 8 == 7) {
          auto never = kj::newPromiseAndFulfiller<wire::SharedMemory::Client>();
          promised_.push_back(kj::mv(never.fulfiller));
          request.setMemory(kj::mv(never.promise));
        } else {
          request.setMemory(LendDescriptor<wire::SharedMemory>(kj::AutoCloseFd(MakeMemory(kind))));
        }
        return Keep(request.send().ignoreResult());
      }
      case 4:
      case 5: {
        auto request = transfer.copyRequest();
        const unsigned rank = bytes.Next() % 8 == 0 ? 1 : 2;
        auto starts = request.initBox().initStarts(rank);
        auto stops = request.getBox().initStops(rank);
        for (unsigned d = 0; d < rank; ++d) {
          starts.set(d, bytes.Small());
          stops.set(d, bytes.Small());
        }
        request.setOffset(static_cast<uint64_t>(bytes.Small()));
        return Keep(request.send().ignoreResult());
      }
      case 6: return Keep(transfer.finishRequest().send().ignoreResult());
      default: transfers_.erase(transfers_.begin() + (&transfer - transfers_.data())); return;
    }
  }

  void End() {
    for (auto& answer : answers_) answer.wait(io_.waitScope);  // each comes
    transfers_.clear();
    io_.waitScope.poll();
    for (int64_t i = 0; i < static_cast<int64_t>(kMemoryBytes); ++i) {
      const bool is_window = i >= kOffset && i < kOffset + kShardBytes;
      TESSERA_CHECK(is_window || arena_.memory()[i] == std::byte{0x5A});
      // A client's memory is zeros.
      TESSERA_CHECK(!is_window || !is_uploaded_ || arena_.memory()[i] == std::byte{0});
    }
  }

 private:
  void Keep(kj::Promise<void> answer) {
    answers_.push_back(
        answer.catch_([](kj::Exception&& exception) { TESSERA_CHECK(exception.getDescription().size() > 0); })
            .eagerlyEvaluate(nullptr));
  }

  kj::AsyncIoContext& io_;
  const SharedArena& arena_;
  std::map<uint64_t, int> reports_;
  bool is_closed_ = false;
  bool is_uploaded_ = false;
  TicketTable tickets_;
  CopyThread copies_;
  AttachedMemory attached_{{.count = 6, .bytes = 1 << 20}};
  wire::DataGate::Client gate_;
  std::vector<wire::Transfer::Client> transfers_;
  std::vector<kj::Own<kj::PromiseFulfiller<wire::SharedMemory::Client>>> promised_;
  std::vector<kj::Promise<void>> answers_;
};

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  static kj::AsyncIoContext& io = *new kj::AsyncIoContext(kj::setupAsyncIo());
  static const SharedArena& arena = *new SharedArena(*SharedArena::Create(kMemoryBytes));
  static Device& device = *new CpuDevice({.self = WorkerIndex(1), .counters = arena.counters()});
  World world(io, device, arena);
  Bytes bytes(data, size);
  for (size_t call = 0; call < kMaxCalls && !bytes.empty(); ++call) world.Call(bytes);
  world.End();
  return 0;
}
