#include "server/coordinator/reach.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Maps : uint8_t { kNothing, kPeers };

WorkerJoinedEvent Worker(int32_t index, const std::string& host, Maps maps, MessageNetwork messages) {
  WorkerJoinedEvent event;
  event.worker = WorkerIndex(index);
  event.host = host;
  event.map_peers = maps == Maps::kPeers;
  event.messages = messages;
  return event;
}

const WorkerJoinedEvent kShm = Worker(0, "a", Maps::kPeers, MessageNetwork::kNone);
const WorkerJoinedEvent kOnHost = Worker(1, "a", Maps::kNothing, MessageNetwork::kOwnHost);
const WorkerJoinedEvent kTls = Worker(2, "a", Maps::kNothing, MessageNetwork::kTls);
const WorkerJoinedEvent kShmTls = Worker(3, "a", Maps::kPeers, MessageNetwork::kTls);
const WorkerJoinedEvent kShmUcx = Worker(4, "a", Maps::kPeers, MessageNetwork::kUcx);

WorkerJoinedEvent Elsewhere(WorkerJoinedEvent worker) {
  worker.worker.value += 10;
  worker.host = "b";
  return worker;
}

TEST(ReachTest, WithinAHostMemoryOrSocketsWillDo) {
  for (const auto& [one, other] : {std::pair(kShm, kShm),
                                   {kShm, kShmTls},
                                   {kShm, kShmUcx},
                                   {kShmTls, kShmUcx},
                                   {kTls, kOnHost},
                                   {kTls, kShmUcx},
                                   {kOnHost, kShmTls}}) {
    EXPECT_TRUE(CheckReach(one, other).ok()) << CheckReach(one, other);
    EXPECT_TRUE(CheckReach(other, one).ok()) << CheckReach(other, one);
  }
  for (const WorkerJoinedEvent& other : {kTls, kOnHost}) {
    EXPECT_EQ(CheckReach(kShm, other).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(CheckReach(other, kShm).message()), HasSubstr("start all of a host with the same"));
  }
}

TEST(ReachTest, BetweenHostsBothHaveTheSameMessages) {
  for (const auto& [one, other] : {std::pair(kTls, kTls), {kTls, kShmTls}, {kShmTls, kShmTls}, {kShmUcx, kShmUcx}}) {
    EXPECT_TRUE(CheckReach(one, Elsewhere(other)).ok());
    EXPECT_TRUE(CheckReach(Elsewhere(other), one).ok());
  }
  for (const auto& [one, other] : {std::pair(kTls, kShmUcx),
                                   {kShmTls, kShmUcx},
                                   {kShm, kShmTls},
                                   {kShm, kShm},
                                   {kOnHost, kOnHost},
                                   {kOnHost, kShmUcx}}) {
    EXPECT_EQ(CheckReach(one, Elsewhere(other)).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(CheckReach(Elsewhere(other), one).code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(std::string(CheckReach(Elsewhere(kShmUcx), kTls).message()),
              AllOf(HasSubstr("worker 14 has --transport shm+ucx --trusted-network on host b"),
                    HasSubstr("worker 2 has --transport tls on host a"), HasSubstr("each with --transport shm+tls")));
  WorkerJoinedEvent gpu = kShmUcx;
  gpu.has_nccl = true;
  EXPECT_THAT(std::string(CheckReach(Elsewhere(gpu), kOnHost).message()),
              AllOf(HasSubstr("worker 14 has --transport shm+nccl --trusted-network on host b"),
                    HasSubstr("worker 1 has --transport ucx on host a")));
}

TEST(ReachTest, WorkersOfDifferentDevicesNeedNoWay) {
  WorkerJoinedEvent gpu = kShm;
  gpu.device = DeviceKind::kCuda;
  EXPECT_TRUE(CheckReach(gpu, kTls).ok());
  EXPECT_FALSE(CheckReach(gpu, Elsewhere(kTls)).ok());
}

}  // namespace
}  // namespace tessera
