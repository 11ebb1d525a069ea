// A worker's bulk server, on any sequence of calls that a client could make with tickets of its own: each is answered,
// each ticket is reported at most once, an upload that ended well has brought every row, and no byte is written outside
// the window, be it of the arena or of the client's memory. Files that were there stay, and so do those that were
// committed.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "schemas/codec/values.h"
#include "schemas/host/descriptor.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/worker.capnp.h"
#include "server/device/cpu/cpu_device.h"
#include "server/worker/files/tensor_file.h"
#include "server/worker/rpc/bulk_server.h"

namespace tessera {
namespace {

constexpr int64_t kRows = 6, kColumns = 5;  // of a tensor of i8, whose rows 3 to 5 are this worker's
constexpr int64_t kShardBytes = 3 * kColumns;
constexpr int64_t kOffset = 256, kSecondOffset = 1024, kOffsets[] = {2048, 2304};
constexpr size_t kMemoryBytes = 4096;
constexpr uint64_t kUpload = 1, kDownload = 2, kTogether = 3, kSecret = 7;  // the third has two tensors
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
  window.ranges = {{direction, *ParseTensorSpec("i8[6,5] @ mesh(2) [S(0)]"), offset, {kColumns, 1}}};
  return window;
}

constexpr const char* kNewName = ".out.tessera-0123456789abcdef";
constexpr int64_t kFileBytes = 64;

// This process's folder.
const std::string& FolderOfFiles() {
  static const std::string& folder = *[] {
    const char* const parent = std::getenv("TEST_TMPDIR");
    auto* pattern = new std::string(StrCat(parent != nullptr ? parent : "/tmp", "/tessera-fuzz-XXXXXX"));
    TESSERA_CHECK(mkdtemp(pattern->data()) != nullptr);
    return pattern;
  }();
  return folder;
}

class World {
 public:
  World(kj::AsyncIoContext& io, Device& device, const SharedArena& arena, ClientHost host)
      : io_(io),
        arena_(arena),
        tickets_(WorkerIndex(1), arena,
                 [this](const TransferReport& report) {
                   TESSERA_CHECK(++reports_[report.ticket.value] == 1);
                   if (!report.status.ok() || is_closed_) return;
                   if (report.ticket.value == kUpload) is_uploaded_ = true;
                   if (report.ticket.value == kTogether) are_uploaded_ = true;
                 }),
        gate_(MakeBulkServer({tickets_, device, threads_, places_, decoder_, attached_, files_, 11, nullptr}, host,
                             {[] {}, [] {}, std::make_shared<AnswerWindow>()})) {
    std::memset(arena_.memory(), 0x5A, kMemoryBytes);
    TESSERA_CHECK(tickets_.Expect(Window(kUpload, TransferDirection::kUpload, kOffset)).ok());
    TESSERA_CHECK(tickets_.Expect(Window(kDownload, TransferDirection::kDownload, kSecondOffset)).ok());
    TransferWindow together = Window(kTogether, TransferDirection::kUpload, kOffsets[0]);
    together.ranges.push_back(Window(kTogether, TransferDirection::kUpload, kOffsets[1]).ranges[0]);
    TESSERA_CHECK(tickets_.Expect(together).ok());
    tickets_.Open(Ordinal(kTogether));
    tickets_.Open(Ordinal(kUpload));
    tickets_.Open(Ordinal(kDownload));
    const FileDescriptor file(open((folder_ + "/in").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    TESSERA_CHECK(ftruncate(file.get(), kFileBytes) == 0);
    (void)!symlink("/etc/passwd", (folder_ + "/link").c_str());
    modified_ns_ = StampOf(file)->modified_ns;
  }

  void Call(Bytes& bytes) {
    const uint8_t what = bytes.Next();
    switch (what % 8) {
      case 0: {
        auto request = gate_.transferRequest();
        request.setTicket(1 + bytes.Next() % 4);
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
        tickets_.Close(TicketId(1 + bytes.Next() % 4));
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
        request.setTensor(what >> 6);
        return Keep(request.send().ignoreResult());
      }
      case 6: return Keep(transfer.finishRequest().send().ignoreResult());
      default: break;
    }
    if (what >= 0xC0) return CallOfParts(transfer, bytes);
    if (what >= 0x80) return CallOfFile(transfer, bytes);
    transfers_.erase(transfers_.begin() + (&transfer - transfers_.data()));
  }

  // Calls of a client of another host. It puts zeros, too.
  void CallOfParts(wire::Transfer::Client& transfer, Bytes& bytes) {
    switch (bytes.Next() % 3) {
      case 0: {
        auto request = transfer.putRequest();
        request.setFirst(bytes.Next() % 8 == 0 ? UINT64_MAX - 3 : static_cast<uint64_t>(bytes.Small()));
        request.initBytes(bytes.Next() % 64);
        return Keep(request.send().ignoreResult());
      }
      case 1: {
        auto request = transfer.getRequest();
        request.setFirst(bytes.Next() % 8 == 0 ? UINT64_MAX - 3 : static_cast<uint64_t>(bytes.Small()));
        request.setCount(bytes.Next() % 8 == 0 ? UINT32_MAX : bytes.Next() % 64);
        return Keep(request.send().ignoreResult());
      }
      default: {
        auto request = gate_.resumeRequest();
        request.setTicket(1 + bytes.Next() % 4);
        request.setSecret(bytes.Next() % 4 == 0 ? 0 : kSecret);
        auto answer = request.send();
        transfers_.push_back(answer.getTransfer());
        return Keep(answer.ignoreResult());
      }
    }
  }

  // A file of zeros, one that is none, and one beside it that may be made.
  void CallOfFile(wire::Transfer::Client& transfer, Bytes& bytes) {
    static constexpr const char* kPaths[] = {"in", "out", "../in", "/etc/passwd", "", "link", kNewName, "in/in"};
    const char* const path = kPaths[bytes.Next() % std::size(kPaths)];
    switch (bytes.Next() % 4) {
      case 0: {
        auto request = transfer.openFileRequest();
        request.setPath(path);
        request.setTensor(path == kPaths[0] ? bytes.Next() % 3 : 0);
        auto layout = request.initLayout();
        layout.setOffset(static_cast<uint64_t>(bytes.Small()));
        auto strides = layout.initStrides(bytes.Next() % 8 == 0 ? 1 : 2);
        for (unsigned d = 0; d < strides.size(); ++d) strides.set(d, bytes.Small());
        layout.setIsReversed(bytes.Next() % 2 == 0);
        request.setBytes(kFileBytes);
        request.setModifiedNs(bytes.Next() % 8 == 0 ? 0 : modified_ns_);
        return Keep(request.send().ignoreResult());
      }
      case 1: {
        auto request = transfer.lookAtFileRequest();
        request.setPath(path);
        request.setOffset(static_cast<uint64_t>(bytes.Small()));
        request.setCount(bytes.Next() % 8 == 0 ? UINT32_MAX : bytes.Next());
        return Keep(request.send().ignoreResult());
      }
      case 2: {
        auto request = transfer.createFileRequest();
        request.setPath(path);
        request.setName(bytes.Next() % 8 == 0 ? "new" : kNewName);
        request.setBytes(bytes.Next() % 8 == 0 ? UINT64_MAX : kFileBytes);
        request.setHead(kj::arrayPtr(reinterpret_cast<const kj::byte*>("head"), bytes.Next() % 5));
        return Keep(request.send().ignoreResult());
      }
      default: return Keep(transfer.commitFileRequest().send().ignoreResult());
    }
  }

  void End() {
    for (auto& answer : answers_) answer.wait(io_.waitScope);  // each comes
    transfers_.clear();
    io_.waitScope.poll();
    // Files that go with them go on the files' thread.
    Job last{.what = "last", .step = [](JobClock::time_point) { return JobStep::kDone; }};
    threads_.files.Run(std::move(last)).wait(io_.waitScope);
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.insert(entry.path().filename());
    names.erase("out");  // committed, or not
    TESSERA_CHECK((names == std::set<std::string>{"in", "link"}));
    std::filesystem::remove(folder_ + "/out");
    for (int64_t i = 0; i < static_cast<int64_t>(kMemoryBytes); ++i) {
      const auto lies_at = [i](int64_t offset) { return i >= offset && i < offset + kShardBytes; };
      const bool is_window = lies_at(kOffset), is_together = lies_at(kOffsets[0]) || lies_at(kOffsets[1]);
      TESSERA_CHECK(is_window || is_together || arena_.memory()[i] == std::byte{0x5A});
      // A client's memory is zeros.
      TESSERA_CHECK(!is_window || !is_uploaded_ || arena_.memory()[i] == std::byte{0});
      TESSERA_CHECK(!is_together || !are_uploaded_ || arena_.memory()[i] == std::byte{0});
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
  bool are_uploaded_ = false;
  TicketTable tickets_;
  Decoder decoder_{DecoderOptions{}};  // none: what is asked of it is refused
  DataPlaces places_{64};
  DataThreads threads_{io_.provider->getTimer()};
  const std::string folder_ = FolderOfFiles();
  const HostFiles files_ = {*FileRoots::Make({folder_}), DeviceKind::kCpu, {}};
  int64_t modified_ns_ = 0;
  AttachedMemory attached_{{.count = 6, .bytes = 1 << 20}};
  wire::BulkServer::Client gate_;
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
  Bytes bytes(data, size);
  World world(io, device, arena, bytes.Next() % 2 == 0 ? ClientHost::kOwn : ClientHost::kOther);
  for (size_t call = 0; call < kMaxCalls && !bytes.empty(); ++call) world.Call(bytes);
  world.End();
  return 0;
}
