// A worker's bulk server over its socket, and over a relay: what a client that doesn't read, opens without end, or
// keeps what is over takes from others.

#include "server/worker/rpc/bulk_server.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <kj/async-io.h>

#include "gtest/gtest.h"
#include "schemas/link/exception.h"
#include "schemas/link/two_party.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/worker.capnp.h"
#include "server/device/cpu/cpu_device.h"
#include "tests/support/deaf_stream.h"
#include "tests/support/resident_memory.h"

namespace tessera {
namespace {

constexpr uint64_t kSecret = 7, kPeerKey = 11;
constexpr int64_t kShardBytes = kMaxTransferPart;
constexpr int kUnread = 1000;
// Beside the window: bytes that the allocator and the socket keep.
constexpr int64_t kSlackBytes = int64_t{24} << 20;

// Says of the host's memory that it is its own, as a GPU's would be.
struct OwnMemoryDevice : CpuDevice {
  using CpuDevice::CpuDevice;
  bool IsHostMemory() const override { return is_host_memory; }
  bool is_host_memory = true;
};

// A worker's socket, with tickets of its own.
class Worker {
 public:
  Worker(kj::AsyncIoContext& io, const std::string& folder, int index, int64_t descriptors = 64,
         ClientRelays* relays = nullptr)
      : io_(io),
        path_(StrCat(folder, "/worker-", index, ".sock")),
        index_(index),
        arena_(*SharedArena::Create(4 * kShardBytes)),
        device_({.self = WorkerIndex(index), .counters = arena_.counters()}),
        places_(descriptors),
        decoder_({.python = folder + "/python"}),
        files_{*FileRoots::Make({folder}), DeviceKind::kCpu, {}},
        parts_{tickets_, device_, threads_, places_, decoder_, attached_, files_, kPeerKey, relays},
        receiver_(io.provider->getNetwork().parseAddress(("unix:" + path_).c_str()).wait(io.waitScope)->listen()),
        port_{*receiver_,
              [this](const PeerName&, const Acceptor::Admission& admission) {
                using Stay = Acceptor::Admission::Stay;
                return MakeBulkServer(
                    parts_, ClientHost::kOther,
                    {admission, [admission]() { admission.Dismiss(Stay::kWhileThereIsRoom); }, admission.answers()});
              }},
        acceptor_(io, {.handshake_timeout_ms = 100}),
        running_(acceptor_.Run(port_).eagerlyEvaluate(nullptr)) {}

  // A ticket for whole tensors of bytes, on this worker.
  void AddTicket(uint64_t number, TransferDirection direction, uint64_t session = 1, size_t tensors = 1,
                 int64_t bytes = kShardBytes) {
    TransferWindow window;
    window.ordinal = Ordinal(number);
    window.ticket = TicketId(number);
    window.session = SessionId(session);
    window.secret = kSecret;
    const TensorSpec spec = *ParseTensorSpec(StrCat("u8[", bytes, "] @ mesh(", index_ + 1, ") [R]"));
    for (size_t i = 0; i < tensors; ++i) window.ranges.push_back({direction, spec, 0, {1}});
    TESSERA_CHECK(tickets_.Expect(window).ok());
    tickets_.Open(Ordinal(number));
  }

  kj::Own<kj::AsyncIoStream> Connect() {
    return io_.provider->getNetwork()
        .parseAddress(("unix:" + path_).c_str())
        .wait(io_.waitScope)
        ->connect()
        .wait(io_.waitScope);
  }
  const std::string& path() const { return path_; }
  TicketTable& tickets() { return tickets_; }
  DataPlaces& places() { return places_; }
  DataThreads& threads() { return threads_; }
  OwnMemoryDevice& device() { return device_; }
  int reports() const { return reports_; }

 private:
  kj::AsyncIoContext& io_;
  const std::string path_;
  const int index_;
  SharedArena arena_;
  OwnMemoryDevice device_;
  int reports_ = 0;
  TicketTable tickets_{WorkerIndex(index_), arena_, [this](const TransferReport&) { ++reports_; }};
  DataPlaces places_;
  DataThreads threads_{io_.provider->getTimer()};
  Decoder decoder_;
  AttachedMemory attached_{AttachedMemory::HostLimits()};
  const HostFiles files_;
  const BulkParts parts_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  Acceptor::Port port_;
  Acceptor acceptor_;
  kj::Promise<void> running_;
};

class BulkServerTest : public ::testing::Test {
 protected:
  BulkServerTest() {
    std::string pattern = "/tmp/tessera-bulk-XXXXXX";  // short: it has sockets
    TESSERA_CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
  }
  ~BulkServerTest() override { std::filesystem::remove_all(folder_); }

  void RunFor(int64_t ms) { io_.provider->getTimer().afterDelay(ms * kj::MILLISECONDS).wait(io_.waitScope); }
  // Until the memory has not grown for a while.
  int64_t GrownBytes(int64_t before) {
    int64_t grown = ResidentBytes() - before;
    for (int same = 0; same < 5; ++same) {
      RunFor(20);
      const int64_t now = ResidentBytes() - before;
      if (now > grown + (1 << 20)) same = 0;
      grown = std::max(grown, now);
      if (grown > int64_t{1} << 30) break;  // enough is known
    }
    return grown;
  }
  static wire::Transfer::Client Redeem(wire::BulkServer::Client bulk, uint64_t ticket) {
    auto request = bulk.transferRequest();
    request.setTicket(ticket);
    request.setSecret(kSecret);
    return request.send().getTransfer();
  }
  static void GetUnread(wire::Transfer::Client transfer, std::vector<kj::Promise<void>>& answers) {
    for (int i = 0; i < kUnread; ++i) {
      auto get = transfer.getRequest();
      get.setCount(kShardBytes);
      answers.push_back(get.send().ignoreResult());
    }
  }
  // Calls that waited for room are not waited for any more, nor kept.
  void Leave(Worker& worker, kj::Own<DialedConnection> connection, std::vector<kj::Promise<void>>& answers) {
    answers.clear();
    connection = nullptr;
    while (worker.places().connections.taken() > 0) RunFor(5);
  }
  absl::Status StatusOf(kj::Promise<void> promise) {
    absl::Status status;
    promise.catch_([&](kj::Exception&& exception) { status = FromException(exception); }).wait(io_.waitScope);
    return status;
  }
  std::string File(const std::string& name, size_t bytes) {
    std::ofstream(folder_ + "/" + name) << std::string(bytes, 'x');
    return folder_ + "/" + name;
  }
  int64_t ModifiedNs(const std::string& path) {
    const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return StampOf(file)->modified_ns;
  }
  // All of a file that the decoder reads.
  kj::Promise<void> Load(wire::Transfer::Client transfer, const std::string& path, uint64_t bytes) {
    auto open = transfer.openFileRequest();
    open.setPath(path.c_str());
    open.initLayout().initStrides(1).set(0, 1);
    open.getLayout().setIsDecoded(true);
    open.setBytes(bytes);
    open.setModifiedNs(ModifiedNs(path));
    open.send().wait(io_.waitScope);
    auto copy = transfer.copyRequest();
    copy.initBox().initStarts(1).set(0, 0);
    copy.getBox().initStops(1).set(0, static_cast<int64_t>(bytes));
    return copy.send().ignoreResult().eagerlyEvaluate(nullptr);
  }
  kj::Promise<void> OpenFile(wire::Transfer::Client& transfer, const std::string& path, uint32_t tensor,
                             uint64_t bytes) {
    auto request = transfer.openFileRequest();
    request.setPath(path.c_str());
    request.initLayout().initStrides(1).set(0, 1);
    request.setBytes(bytes);
    request.setModifiedNs(ModifiedNs(path));
    request.setTensor(tensor);
    return request.send().ignoreResult();
  }

  const std::unique_ptr<kj::AsyncIoContext> context_ = std::make_unique<kj::AsyncIoContext>(kj::setupAsyncIo());
  kj::AsyncIoContext& io_ = *context_;
  std::string folder_;
};

TEST_F(BulkServerTest, UnreadAnswersOfAConnectionAreNoMoreThanItsWindow) {
  Worker worker(io_, folder_, 0);
  worker.AddTicket(1, TransferDirection::kDownload);
  auto deaf = kj::heap<DialedConnection>(StreamKind::kBytes, kj::heap<DeafStream>(worker.Connect()));
  std::vector<kj::Promise<void>> answers;
  const int64_t before = ResidentBytes();
  GetUnread(Redeem(deaf->Bootstrap<wire::BulkServer>(), 1), answers);
  EXPECT_LE(GrownBytes(before), static_cast<int64_t>(kAnswerWindowBytes) + kSlackBytes);
  Leave(worker, kj::mv(deaf), answers);
}

TEST_F(BulkServerTest, UnreadAnswersByWayOfARelayAreNoMoreThanTheWindow) {
  ClientRelays relays(io_, {}, "host", kPeerKey);
  Worker relay(io_, folder_, 0, 64, &relays), worker(io_, folder_, 1);
  relays.Add({WorkerIndex(1), 1, "host", "unix:" + worker.path(), "", false, ""});
  worker.AddTicket(1, TransferDirection::kDownload);
  auto deaf = kj::heap<DialedConnection>(StreamKind::kBytes, kj::heap<DeafStream>(relay.Connect()));
  std::vector<kj::Promise<void>> answers;
  const int64_t before = ResidentBytes();
  auto request = deaf->Bootstrap<wire::BulkServer>().relayRequest();
  request.setIndex(1);
  GetUnread(Redeem(request.send().getServer(), 1), answers);
  EXPECT_LE(GrownBytes(before), 2 * static_cast<int64_t>(kAnswerWindowBytes) + kSlackBytes);
  Leave(relay, kj::mv(deaf), answers);
}

// A client that reads has all of it, in order, whatever the window.
TEST_F(BulkServerTest, WhoReadsHasMoreThanAWindowOfAnswers) {
  ClientRelays relays(io_, {}, "host", kPeerKey);
  Worker relay(io_, folder_, 0, 64, &relays), worker(io_, folder_, 1);
  relays.Add({WorkerIndex(1), 1, "host", "unix:" + worker.path(), "", false, ""});
  worker.AddTicket(1, TransferDirection::kDownload);
  DialedConnection reads(StreamKind::kBytes, relay.Connect());
  auto request = reads.Bootstrap<wire::BulkServer>().relayRequest();
  request.setIndex(1);
  wire::Transfer::Client transfer = Redeem(request.send().getServer(), 1);
  int64_t bytes = 0;
  std::vector<kj::Promise<void>> answers;
  for (int i = 0; i < 24; ++i) {
    auto get = transfer.getRequest();
    get.setCount(kShardBytes);
    answers.push_back(get.send().then([&](auto&& answer) { bytes += answer.getBytes().size(); }));
  }
  for (auto& answer : answers) answer.wait(io_.waitScope);
  EXPECT_EQ(bytes, 24 * kShardBytes);
}

// A download that takes long, as of a GPU that is busy, holds up no upload.
TEST_F(BulkServerTest, AGpusUploadGoesOnWhileADownloadIsUnderWay) {
  Worker worker(io_, folder_, 0);
  worker.device().is_host_memory = false;
  worker.AddTicket(1, TransferDirection::kUpload, 1, 1, 8);
  worker.AddTicket(2, TransferDirection::kDownload, 1, 1, 8);
  std::promise<void> go;
  auto first = worker.threads().downloads.Run({.what = "copy", .step = [&](JobClock::time_point) {
                                                 go.get_future().wait();
                                                 return JobStep::kDone;
                                               }});
  DialedConnection client(StreamKind::kUnixSocket, worker.Connect());
  auto get = Redeem(client.Bootstrap<wire::BulkServer>(), 2).getRequest();
  get.setCount(8);
  auto download = get.send();
  wire::Transfer::Client upload = Redeem(client.Bootstrap<wire::BulkServer>(), 1);
  auto put = upload.putRequest();
  put.initBytes(8);
  EXPECT_EQ(put.send().wait(io_.waitScope).getCount(), 8u);
  EXPECT_FALSE(download.poll(io_.waitScope)) << "behind the other download";
  go.set_value();
  first.wait(io_.waitScope);
  EXPECT_EQ(download.wait(io_.waitScope).getBytes().size(), 8u);
}

// A sparse file of which each element is a call: the load ends when its ticket is over, and not when all is read.
TEST_F(BulkServerTest, ALoadEndsWhenItsTicketIsOver) {
  constexpr int64_t kStride = 4096;
  Worker worker(io_, folder_, 0);
  worker.AddTicket(1, TransferDirection::kUpload);
  DialedConnection client(StreamKind::kUnixSocket, worker.Connect());
  wire::Transfer::Client transfer = Redeem(client.Bootstrap<wire::BulkServer>(), 1);
  const std::string path = File("thin", 0);
  std::filesystem::resize_file(path, kShardBytes * kStride);
  auto open = transfer.openFileRequest();
  open.setPath(path.c_str());
  open.initLayout().initStrides(1).set(0, kStride);
  open.setBytes(kShardBytes * kStride);
  open.setModifiedNs(ModifiedNs(path));
  open.send().wait(io_.waitScope);
  auto copy = transfer.copyRequest();
  copy.initBox().initStarts(1).set(0, 0);
  copy.getBox().initStops(1).set(0, kShardBytes);
  kj::Promise<void> copied = copy.send().ignoreResult();
  RunFor(20);
  worker.tickets().Close(TicketId(1));
  EXPECT_EQ(worker.reports(), 0);  // a step may still write to the shard
  const absl::Status status = StatusOf(kj::mv(copied));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(worker.reports(), 1);
}

// Its decoder is a script that says that it was started.
TEST_F(BulkServerTest, AQuestionToTheDecoderWhoseClientIsGoneIsNotAsked) {
  std::ofstream(folder_ + "/python") << "#!/bin/sh\ntouch " << folder_ << "/started\n";
  std::filesystem::permissions(folder_ + "/python", std::filesystem::perms::owner_all);
  const std::string path = File("x.h5", 8);
  Worker worker(io_, folder_, 0);
  worker.AddTicket(1, TransferDirection::kUpload);
  worker.AddTicket(2, TransferDirection::kUpload);
  std::atomic<bool> is_free = false;
  Job holds{.what = "held", .step = [&](JobClock::time_point) {
              is_free.wait(false);
              return JobStep::kDone;
            }};
  auto held = worker.threads().decodes.Run(std::move(holds));
  {
    DialedConnection client(StreamKind::kUnixSocket, worker.Connect());
    auto request = Redeem(client.Bootstrap<wire::BulkServer>(), 1).describeFileRequest();
    request.setPath(path.c_str());
    auto answer = request.send().ignoreResult().eagerlyEvaluate(nullptr);
    RunFor(50);
  }
  while (worker.places().connections.taken() > 0) RunFor(5);
  is_free = true;
  is_free.notify_all();
  held.wait(io_.waitScope);
  Job last{.what = "last", .step = [](JobClock::time_point) { return JobStep::kDone; }};
  worker.threads().decodes.Run(std::move(last)).wait(io_.waitScope);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/started"));
  DialedConnection client(StreamKind::kUnixSocket, worker.Connect());
  auto request = Redeem(client.Bootstrap<wire::BulkServer>(), 2).describeFileRequest();
  request.setPath(path.c_str());
  EXPECT_FALSE(StatusOf(request.send().ignoreResult()).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/started"));
}

// Its decoder is a script that never answers, and says its number.
class HangingDecoderTest : public BulkServerTest {
 protected:
  HangingDecoderTest() {
    std::ofstream(folder_ + "/python") << "#!/bin/sh\necho $$ > " << folder_ << "/new\nmv " << folder_ << "/new "
                                       << folder_ << "/number\nexec sleep 1000\n";
    std::filesystem::permissions(folder_ + "/python", std::filesystem::perms::owner_all);
    for (uint64_t ticket : {1, 2}) worker_.AddTicket(ticket, TransferDirection::kUpload, ticket, 1, 8);
  }
  ~HangingDecoderTest() noexcept override {}
  void AwaitStarted() {
    while (!std::filesystem::exists(folder_ + "/number")) RunFor(5);
  }
  // Until the decoder's thread is free, long before the decoder's own limit.
  void ExpectFree() {
    Job last{.session = 2, .what = "last", .step = [](JobClock::time_point) { return JobStep::kDone; }};
    auto& timer = io_.provider->getTimer();
    const absl::Status status =
        StatusOf(timer.timeoutAfter(20 * kj::SECONDS, worker_.threads().decodes.Run(std::move(last))));
    EXPECT_TRUE(status.ok()) << status;
    int number = 0;
    std::ifstream(folder_ + "/number") >> number;
    EXPECT_NE(kill(number, 0), 0);
  }
  kj::Promise<void> AskWhatIsIn(const std::string& path, wire::Transfer::Client transfer) {
    auto request = transfer.describeFileRequest();
    request.setPath(path.c_str());
    return request.send().ignoreResult().eagerlyEvaluate(nullptr);
  }

  const std::string path_ = File("x.h5", 8);
  Worker worker_{io_, folder_, 0};
};

TEST_F(HangingDecoderTest, AQuestionUnderWayEndsWithItsConnection) {
  {
    DialedConnection client(StreamKind::kUnixSocket, worker_.Connect());
    auto answer = AskWhatIsIn(path_, Redeem(client.Bootstrap<wire::BulkServer>(), 1));
    AwaitStarted();
  }
  ExpectFree();
}

// The coordinator closes its tickets.
TEST_F(HangingDecoderTest, AQuestionUnderWayEndsWithItsSession) {
  DialedConnection client(StreamKind::kUnixSocket, worker_.Connect());
  auto answer = AskWhatIsIn(path_, Redeem(client.Bootstrap<wire::BulkServer>(), 1));
  AwaitStarted();
  worker_.tickets().Close(TicketId(1));
  ExpectFree();
}

TEST_F(HangingDecoderTest, AQuestionUnderWayEndsWithItsCall) {
  DialedConnection client(StreamKind::kUnixSocket, worker_.Connect());
  wire::Transfer::Client transfer = Redeem(client.Bootstrap<wire::BulkServer>(), 1);
  {
    auto answer = AskWhatIsIn(path_, transfer);
    AwaitStarted();
  }
  ExpectFree();
}

TEST_F(HangingDecoderTest, ALoadUnderWayEndsWithItsConnection) {
  {
    DialedConnection client(StreamKind::kUnixSocket, worker_.Connect());
    auto copied = Load(Redeem(client.Bootstrap<wire::BulkServer>(), 1), path_, 8);
    AwaitStarted();
  }
  ExpectFree();
  EXPECT_EQ(worker_.reports(), 1);
}

// Its decoder answers when the file `go` is there, with as many bytes as are asked for. The transfer goes on.
TEST_F(BulkServerTest, ACopyWhoseCallIsTakenBackHasItsTurn) {
  std::ofstream(folder_ + "/python") << "#!/bin/sh\ntouch " << folder_ << "/started\nwhile [ ! -e " << folder_
                                     << "/go ]; do sleep 0.01; done\nprintf '\\000\\000\\000\\000\\010\\000\\000"
                                        "\\000\\000\\000\\000\\000' >&3\nexec sleep 1000\n";
  std::filesystem::permissions(folder_ + "/python", std::filesystem::perms::owner_all);
  const std::string path = File("x.h5", 8);
  Worker worker(io_, folder_, 0);
  worker.AddTicket(1, TransferDirection::kUpload, 1, 1, 8);
  DialedConnection client(StreamKind::kUnixSocket, worker.Connect());
  wire::Transfer::Client transfer = Redeem(client.Bootstrap<wire::BulkServer>(), 1);
  {
    auto copied = Load(transfer, path, 8);
    while (!std::filesystem::exists(folder_ + "/started")) RunFor(5);
  }
  RunFor(20);
  std::ofstream(folder_ + "/go") << "";
  transfer.finishRequest().send().wait(io_.waitScope);
  EXPECT_EQ(worker.reports(), 1);
}

TEST_F(BulkServerTest, TensorsOfOneFileShareWhatIsOpen) {
  Worker worker(io_, folder_, 0);
  worker.AddTicket(1, TransferDirection::kUpload, 1, 300, 8);
  DialedConnection client(StreamKind::kUnixSocket, worker.Connect());
  wire::Transfer::Client transfer = Redeem(client.Bootstrap<wire::BulkServer>(), 1);
  const std::string path = File("x", 8);
  for (uint32_t tensor = 0; tensor < 300; ++tensor) {
    OpenFile(transfer, path, tensor, 8).wait(io_.waitScope);
    auto copy = transfer.copyRequest();
    copy.initBox().initStarts(1).set(0, 0);
    copy.getBox().initStops(1).set(0, 8);
    copy.setTensor(tensor);
    EXPECT_EQ(copy.send().wait(io_.waitScope).getBytes(), 8u);
  }
  EXPECT_EQ(worker.places().open_files.taken(), 1);
  transfer.finishRequest().send().wait(io_.waitScope);
  // When the ticket is over the file is closed, though the client keeps the transfer.
  Job last{.what = "last", .step = [](JobClock::time_point) { return JobStep::kDone; }};
  worker.threads().files.Run(std::move(last)).wait(io_.waitScope);
  EXPECT_EQ(worker.places().open_files.taken(), 0);
}

TEST_F(BulkServerTest, ASessionThatOpensFilesWithoutEndLeavesSomeForOthers) {
  Worker worker(io_, folder_, 0, 64);  // 16 open files
  worker.AddTicket(1, TransferDirection::kUpload, 1, 40, 8);
  worker.AddTicket(2, TransferDirection::kUpload, 2, 1, 8);
  DialedConnection greedy(StreamKind::kUnixSocket, worker.Connect()), honest(StreamKind::kUnixSocket, worker.Connect());
  wire::Transfer::Client transfer = Redeem(greedy.Bootstrap<wire::BulkServer>(), 1);
  absl::Status refused;
  for (uint32_t tensor = 0; tensor < 40 && refused.ok(); ++tensor) {
    refused = StatusOf(OpenFile(transfer, File(StrCat("f", tensor), 8), tensor, 8));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("max_open_files"), absl::string_view::npos) << refused;
  wire::Transfer::Client other = Redeem(honest.Bootstrap<wire::BulkServer>(), 2);
  EXPECT_TRUE(StatusOf(OpenFile(other, File("y", 8), 0, 8)).ok());
}

TEST_F(BulkServerTest, ASessionWithManyConnectionsLeavesPlacesForOthersAndTheyAreBackWhenItsTicketsAreOver) {
  Worker worker(io_, folder_, 0, 64);  // 16 connections
  std::vector<std::unique_ptr<DialedConnection>> connections;
  std::vector<wire::Transfer::Client> transfers;
  absl::Status refused;
  uint64_t ticket = 1;
  for (; ticket <= 20 && refused.ok(); ++ticket) {
    worker.AddTicket(ticket, TransferDirection::kDownload);
    connections.push_back(std::make_unique<DialedConnection>(StreamKind::kUnixSocket, worker.Connect()));
    transfers.push_back(Redeem(connections.back()->Bootstrap<wire::BulkServer>(), ticket));
    refused = StatusOf(transfers.back().whenResolved());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("max_data_connections"), absl::string_view::npos) << refused;
  worker.AddTicket(100, TransferDirection::kDownload, 2);
  DialedConnection honest(StreamKind::kUnixSocket, worker.Connect());
  EXPECT_TRUE(StatusOf(Redeem(honest.Bootstrap<wire::BulkServer>(), 100).whenResolved()).ok());
  for (uint64_t number = 1; number < ticket; ++number) worker.tickets().Close(TicketId(number));
  EXPECT_LE(worker.places().connections.taken(), 1);
  // They are guests again, which may stay, and come in by another ticket.
  RunFor(300);
  worker.AddTicket(101, TransferDirection::kDownload);
  EXPECT_TRUE(StatusOf(Redeem(connections[0]->Bootstrap<wire::BulkServer>(), 101).whenResolved()).ok());
}

}  // namespace
}  // namespace tessera
