// The coordinator's messages to workers: how much at once, and how a worker answers for a plan that it can't read.

#include "server/plan/rpc/instance_codec.h"

#include <memory>
#include <string>
#include <vector>

#include <capnp/message.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::HasSubstr;

// A plan whose text has at least so many bytes.
std::shared_ptr<const Plan> PlanOfBytes(size_t bytes) {
  Plan plan;
  plan.implicit.emplace_back(bytes, 'x');
  return std::make_shared<const Plan>(std::move(plan));
}

TEST(WorkerMessagesTest, AreSentTogetherUntilAMessageIsFull) {
  std::vector<std::shared_ptr<const WorkerMessage>> waiting;
  for (uint64_t id = 1; id <= 12; ++id) {
    waiting.push_back(std::make_shared<const WorkerMessage>(DefineTemplate{TemplateId(id), PlanOfBytes(6 << 20)}));
  }
  for (size_t sent = 0; sent < waiting.size();) {
    capnp::MallocMessageBuilder message;
    const size_t count = EncodeWorkerMessages(absl::MakeConstSpan(waiting).subspan(sent), 7, message);
    ASSERT_EQ(count, 3u);
    const auto messages = message.getRoot<wire::WorkerMessages>().asReader();
    EXPECT_EQ(messages.getEpoch(), 7u);
    ASSERT_EQ(messages.getMessages().size(), count);
    for (unsigned i = 0; i < count; ++i) EXPECT_EQ(messages.getMessages()[i].getDefine().getId(), sent + i + 1);
    EXPECT_LT(message.sizeInWords() * sizeof(capnp::word), 2 * kFullSendBytes);
    sent += count;
  }
}

TEST(WorkerMessagesTest, APlanThatCantBeReadIsATemplateThatSaysWhy) {
  for (const std::string& text : {std::string("no plan"), std::string(kMaxPlanTextBytes + 1, 'x')}) {
    capnp::MallocMessageBuilder message;
    auto define = message.initRoot<wire::WorkerMessages::Message>().initDefine();
    define.setId(5);
    define.setPlan(text.c_str());
    const auto decoded = DecodeWorkerMessage(message.getRoot<wire::WorkerMessages::Message>().asReader());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const auto& known = std::get<DefineTemplate>(*decoded);
    EXPECT_EQ(known.id, TemplateId(5));
    EXPECT_FALSE(known.plan.ok());
    if (text.size() > kMaxPlanTextBytes) {
      EXPECT_THAT(std::string(known.plan.status().message()), HasSubstr("max_plan_text_bytes"));
    }
  }
}

TEST(WorkerMessagesTest, ABufferMayLieElsewhereOnEachWorker) {
  Instance sent;
  sent.ordinal = Ordinal(3);
  sent.plan = TemplateId(4);
  sent.buffer_offsets = {0, 256};
  sent.placed_apart = {{0, {{WorkerIndex(2), 1024}, {WorkerIndex(5), 4096}}}};
  EXPECT_EQ(sent.OffsetOf(0, WorkerIndex(5)), 4096);
  EXPECT_EQ(sent.OffsetOf(1, WorkerIndex(5)), 256);
  capnp::MallocMessageBuilder message;
  auto builder = message.initRoot<wire::WorkerMessages::Message>();
  EncodeWorkerMessage(sent, builder);
  const auto came = DecodeWorkerMessage(builder.asReader());
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_EQ(std::get<Instance>(*came), sent);
  // Lists that don't go together are refused.
  auto placed = builder.getRun().initPlacedApart(1);
  placed[0].initWorkers(2);
  placed[0].initOffsets(1);
  EXPECT_THAT(std::string(DecodeWorkerMessage(builder.asReader()).status().message()),
              HasSubstr("on 2 workers at 1 offsets"));
  builder.getRun().initPlacedApart(3);
  EXPECT_THAT(std::string(DecodeWorkerMessage(builder.asReader()).status().message()),
              HasSubstr("an instance of 2 buffers places 3 of them by worker"));
}

TEST(WorkerMessagesTest, AWorkerMayBeToldToEnd) {
  capnp::MallocMessageBuilder message;
  EncodeWorkerMessage(Shutdown{"the host goes down"}, message.initRoot<wire::WorkerMessages::Message>());
  const auto decoded = DecodeWorkerMessage(message.getRoot<wire::WorkerMessages::Message>().asReader());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Shutdown>(*decoded).reason, "the host goes down");
}

}  // namespace
}  // namespace tessera
