// The parts of a hello and of a batch that are taken, and those that are refused, with the numbers.

#include "server/coordinator/rpc/hello_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <capnp/message.h>

#include "server/coordinator/rpc/record_codec.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr double kMaxLeaseS = 100;

struct Hello {
  absl::StatusOr<ClientHello> Decode() { return DecodeClientHello(wire.asReader(), "", kMaxLeaseS); }
  capnp::MallocMessageBuilder message;
  wire::ClientHello::Builder wire = message.initRoot<wire::ClientHello>();
};

TEST(ClientHelloTest, ANegativeLeaseAsksForTheServersOwn) {
  Hello hello;
  hello.wire.setLeaseS(-1);
  EXPECT_FALSE(hello.Decode()->lease_s.has_value());
  hello.wire.setLeaseS(0);
  EXPECT_EQ(hello.Decode()->lease_s, 0);
}

TEST(ClientHelloTest, ALeaseIsBoundedAndANumber) {
  Hello hello;
  hello.wire.setLeaseS(kMaxLeaseS);
  EXPECT_TRUE(hello.Decode().ok());
  for (const double lease_s :
       {101.0, 86'400.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    hello.wire.setLeaseS(lease_s);
    EXPECT_EQ(hello.Decode().status().code(), absl::StatusCode::kInvalidArgument) << lease_s;
    EXPECT_THAT(std::string(hello.Decode().status().message()), HasSubstr("max_session_lease is 100 s"));
  }
}

TEST(ClientHelloTest, ATenantIsTheTokensAndNobodysOwnWord) {
  Hello hello;
  hello.wire.setTenant("team-7");
  EXPECT_EQ(hello.Decode().status(), absl::UnauthenticatedError("connect: the token is wrong"));
  EXPECT_TRUE(DecodeClientHello(hello.wire.asReader(), "team-7", kMaxLeaseS).ok());
}

TEST(ClientHelloTest, ANameIsPrintable) {
  Hello hello;
  hello.wire.setClient("\x1b[2J\n1  alive");
  EXPECT_EQ(hello.Decode()->client, "\\x1b[2J\\n1  alive");
}

TEST(WorkerHelloTest, NumbersAreInRange) {
  capnp::MallocMessageBuilder message;
  auto hello = message.initRoot<wire::WorkerHello>();
  hello.setIndex(-1);
  hello.setDevice("cuda");
  EXPECT_TRUE(DecodeWorkerHello(hello.asReader()).ok());
  hello.setDevice("abacus");
  EXPECT_EQ(DecodeWorkerHello(hello.asReader()).status().code(), absl::StatusCode::kInvalidArgument);
  hello.setDevice("cpu");
  hello.setMemoryBytes(-1);
  EXPECT_EQ(DecodeWorkerHello(hello.asReader()).status().code(), absl::StatusCode::kInvalidArgument);
  hello.setMemoryBytes(kMaxArenaBytes + 1);
  EXPECT_THAT(std::string(DecodeWorkerHello(hello.asReader()).status().message()), HasSubstr("max_arena_bytes"));
  hello.setMemoryBytes(kMaxArenaBytes);
  EXPECT_TRUE(DecodeWorkerHello(hello.asReader()).ok());
  hello.setIndex(1 << 20);
  EXPECT_EQ(DecodeWorkerHello(hello.asReader()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WorkerHelloTest, MessagesAreOfAKnownKind) {
  capnp::MallocMessageBuilder message;
  auto hello = message.initRoot<wire::WorkerHello>();
  hello.setDevice("cpu");
  hello.setMessages(static_cast<uint8_t>(MessageNetwork::kUcx));
  EXPECT_EQ(DecodeWorkerHello(hello.asReader())->messages, MessageNetwork::kUcx);
  hello.setMessages(4);
  EXPECT_THAT(std::string(DecodeWorkerHello(hello.asReader()).status().message()), HasSubstr("number 4"));
}

TEST(WorkerHelloTest, MessagesByNcclAreAGpus) {
  capnp::MallocMessageBuilder message;
  auto hello = message.initRoot<wire::WorkerHello>();
  hello.setDevice("cuda");
  EXPECT_FALSE(DecodeWorkerHello(hello.asReader())->has_nccl);
  hello.setNccl(true);
  EXPECT_TRUE(DecodeWorkerHello(hello.asReader())->has_nccl);
  hello.setDevice("cpu");
  EXPECT_THAT(std::string(DecodeWorkerHello(hello.asReader()).status().message()), HasSubstr("no GPU"));
}

TEST(RecordsTest, ABatchNamesABoundedNumberOfHandles) {
  const auto decode = [](std::initializer_list<unsigned> handles) {
    capnp::MallocMessageBuilder message;
    auto records = message.initRoot<wire::Batch>().initRecords(static_cast<unsigned>(handles.size()));
    unsigned i = 0;
    for (const unsigned count : handles) {
      i % 2 == 0 ? records[i].initCancelled(count) : records[i].initDrop(count);
      ++i;
    }
    return DecodeRecords(message.getRoot<wire::Batch>().asReader()).status();
  };
  EXPECT_TRUE(decode({8192, 8192}).ok());
  const absl::Status refused = decode({8192, 8192, 1});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("16385 handles; max_handles_per_batch is 16384"));
}

}  // namespace
}  // namespace tessera
