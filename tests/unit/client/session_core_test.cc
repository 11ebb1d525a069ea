// The client's end of the protocol: what is sent again after a cut, what is dropped, what is missing.

#include "client/connection/session_core.h"

#include <vector>

#include "client/connection/connection.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

Record Drop(uint64_t handle) {
  Record record;
  record.kind = Record::Kind::kDrop;
  record.drops = {handle};
  return record;
}

// The numbers of the batches that it sends now.
std::vector<uint64_t> Sent(SessionCore& core) {
  std::vector<uint64_t> numbers;
  while (capnp::MessageBuilder* const message = core.NextMessage()) {
    numbers.push_back(message->getRoot<wire::ToCoordinator>().getBatch().getNumber());
  }
  return numbers;
}

// Events as the coordinator numbers them; events of batches say that they were taken up.
class Events {
 public:
  void BatchDone(uint64_t number, uint64_t batch) { add_.push_back({number, batch}); }
  absl::StatusOr<std::vector<ClientEvent>> Into(SessionCore& core) {
    capnp::MallocMessageBuilder message;
    auto list = message.initRoot<wire::ToClient>().initEvents(static_cast<unsigned>(add_.size()));
    for (unsigned i = 0; i < add_.size(); ++i) {
      list[i].setNumber(add_[i].first);
      if (add_[i].second > 0) list[i].setBatchDone(add_[i].second);
      if (add_[i].second == 0) list[i].setUploadDone(7);
    }
    add_.clear();
    return core.Take(list.asReader());
  }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> add_;
};

TEST(SessionCore, KnowsWhatMayNotBeTakenUpYet) {
  SessionCore core;
  core.Connected({1, 1, 0});
  for (const uint64_t result : {1, 2, 3}) {
    Record upload;
    upload.kind = Record::Kind::kUpload;
    upload.handle = result;
    upload.spec = std::make_shared<const TensorSpec>();
    const Record records[] = {upload, Drop(9)};
    core.Add(records);
  }
  EXPECT_EQ(core.NotTakenUp({1, 3, 9}), (std::vector<uint64_t>{1, 3}));
  Events events;
  events.BatchDone(1, 2);
  ASSERT_TRUE(events.Into(core).ok());
  EXPECT_EQ(core.NotTakenUp({1, 3, 9}), (std::vector<uint64_t>{3}));
}

TEST(SessionCore, SendsAgainWhatTheCoordinatorHasNot) {
  SessionCore core;
  for (uint64_t handle = 1; handle <= 3; ++handle) core.Add({{Drop(handle)}});
  EXPECT_EQ(core.NextMessage(), nullptr) << "no connection is there";
  core.Connected({9, 1, 0});
  EXPECT_EQ(Sent(core), (std::vector<uint64_t>{1, 2, 3}));
  core.Lost();
  core.Add({{Drop(4)}});
  core.Connected({9, 2, 2});  // the third was cut
  capnp::MessageBuilder* const message = core.NextMessage();
  ASSERT_NE(message, nullptr);
  const auto batch = message->getRoot<wire::ToCoordinator>().getBatch().asReader();
  EXPECT_EQ(batch.getNumber(), 3u);
  EXPECT_EQ(batch.getConnection(), 2u);
  EXPECT_EQ(batch.getRecords()[0].getDrop()[0], 3u);
  EXPECT_EQ(Sent(core), (std::vector<uint64_t>{4}));
}

TEST(SessionCore, KeepsABatchUntilItWasTakenUp) {
  SessionCore core;
  core.Connected({9, 1, 0});
  std::vector<Record> many(kMaxRecordsInFlight, Drop(1));
  core.Add(many);
  EXPECT_FALSE(core.has_credit());
  Sent(core);
  Events events;
  events.BatchDone(1, 1);
  ASSERT_TRUE(events.Into(core).ok());
  EXPECT_TRUE(core.has_credit());
  core.Lost();
  core.Connected({9, 2, 1});
  EXPECT_EQ(Sent(core), (std::vector<uint64_t>{}));
}

TEST(SessionCore, EventsComeOutOnceAndInOrder) {
  SessionCore core;
  core.Connected({9, 1, 0});
  Events events;
  events.BatchDone(1, 0);
  events.BatchDone(2, 0);
  EXPECT_EQ(events.Into(core)->size(), 2u);
  events.BatchDone(2, 0);  // again, after a cut
  events.BatchDone(3, 0);
  EXPECT_EQ(events.Into(core)->size(), 1u);
  EXPECT_EQ(core.last_event(), 3u);
  events.BatchDone(5, 0);
  EXPECT_EQ(events.Into(core).status().code(), absl::StatusCode::kDataLoss);
}

TEST(SessionCore, AnotherProcessMayFindThatEventsWereTaken) {
  SessionCore core;
  core.StartBehind(3);
  core.Connected({9, 4, 20});
  Events events;
  events.BatchDone(2, 0);
  events.BatchDone(8, 0);
  events.BatchDone(9, 0);
  EXPECT_EQ(events.Into(core)->size(), 2u);
  events.BatchDone(11, 0);
  EXPECT_EQ(events.Into(core).status().code(), absl::StatusCode::kDataLoss);
  core.Add({{Drop(1)}});
  EXPECT_EQ(Sent(core), (std::vector<uint64_t>{21})) << "batches go on behind the former process's";
}

TEST(SessionCore, AcknowledgesWhenManyHaveComeOrWhenAskedTo) {
  SessionCore core;
  core.Connected({9, 1, 0});
  EXPECT_FALSE(core.WantsAcknowledge(SessionCore::Acknowledging::kWhenMany));
  EXPECT_TRUE(core.WantsAcknowledge(SessionCore::Acknowledging::kNow));
  Events events;
  for (uint64_t number = 1; number <= 64; ++number) events.BatchDone(number, 0);
  ASSERT_TRUE(events.Into(core).ok());
  ASSERT_TRUE(core.WantsAcknowledge(SessionCore::Acknowledging::kWhenMany));
  capnp::MallocMessageBuilder message;
  core.WriteAcknowledge(message);
  EXPECT_EQ(message.getRoot<wire::ToCoordinator>().getAcknowledge(), 64u);
  EXPECT_FALSE(core.WantsAcknowledge(SessionCore::Acknowledging::kWhenMany));
  core.Lost();
  EXPECT_FALSE(core.WantsAcknowledge(SessionCore::Acknowledging::kNow));
}

}  // namespace
}  // namespace tessera
