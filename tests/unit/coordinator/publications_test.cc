// Publications: who may publish, attach and take back, what they keep, and that nothing writes to what was published.

#include "server/coordinator/publications.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Mesh kMesh = *Mesh::Make({2}, {}, {});
const Placements kRows = {Placement::Shard(0)};
const Placements kCopies = {Placement::Replicate()};
constexpr int64_t kWholeBytes = 256;  // of f32[64] on each worker that has all of it, as memory is given out

class PublicationsTest : public testing::Test {
 protected:
  SessionId OpenAs(const std::string& tenant, Role role = Role::kClient) {
    const SessionId session(next_session_++);
    cluster_.Apply(SessionOpenedEvent{session, 77, tenant, "test", 0, role});
    return session;
  }
  void Submit(SessionId session, std::vector<Record> records) {
    cluster_.Apply(BatchEvent{session, ++batches_[session], std::move(records)});
  }
  uint64_t Ask(SessionId session, decltype(PublicationRecord::asked) asked) {
    Submit(session, {PublicationRecord{++request_, std::move(asked)}});
    return request_;
  }
  // OK where it was answered by publications.
  absl::Status StatusOf(SessionId session, uint64_t request) {
    for (const auto& settled : cluster_.EventsOf<SettledEvent>(session)) {
      if (settled.request == request) return settled.status;
    }
    for (const auto& told : cluster_.EventsOf<PublicationsEvent>(session)) {
      if (told.request == request) return absl::OkStatus();
    }
    return absl::UnknownError("it is not answered");
  }
  absl::Status Do(SessionId session, decltype(PublicationRecord::asked) asked) {
    return StatusOf(session, Ask(session, std::move(asked)));
  }
  // A session with f32[64] as handle 1, published.
  SessionId Published(const std::string& tenant, const std::string& name, std::vector<std::string> readers,
                      const Placements& placements = kCopies) {
    const SessionId session = OpenAs(tenant);
    Submit(session, {FullRecord(kMesh, {64}, placements, 1)});
    cluster_.CompleteAll();
    const absl::Status status = Do(session, Publish{name, {{"w", HandleId(1)}}, std::move(readers)});
    EXPECT_TRUE(status.ok()) << status;
    return session;
  }
  std::vector<std::string> NamesSeenBy(SessionId session) {
    Ask(session, ListPublished{""});
    std::vector<std::string> names;
    const auto told = cluster_.EventsOf<PublicationsEvent>(session);
    for (const auto& one : told.back().list) names.push_back(one.name);
    return names;
  }
  const TensorEntry& TensorOf(SessionId session, uint64_t handle) {
    return *cluster_.machine().sessions().at(session).tensors.at(HandleId(handle));
  }
  int64_t ChargedTo(const std::string& name) {
    for (const TenantEntry* tenant : cluster_.machine().tenants().all()) {
      if (tenant->limits.name == name) return tenant->UsedOn(WorkerIndex(0));
    }
    return -1;
  }

  SimulatedCluster cluster_{2};
  std::map<SessionId, uint64_t> batches_;
  uint64_t next_session_ = 1;
  uint64_t request_ = 0;
};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST_F(PublicationsTest, AReaderHasTheTensorWhereItLies) {
  const SessionId publisher = Published("a", "a/weights", {"b"});
  const SessionId reader = OpenAs("b");
  const uint64_t request = Ask(reader, Attach{"a/weights", HandleId(7)});
  ASSERT_TRUE(StatusOf(reader, request).ok()) << StatusOf(reader, request);
  const auto told = cluster_.EventsOf<PublicationsEvent>(reader).back();
  EXPECT_EQ(told.first_result, HandleId(7));
  EXPECT_EQ(told.list[0].version, 1u);
  EXPECT_EQ(told.list[0].tensors[0].name, "w");
  EXPECT_EQ(ToText(told.list[0].tensors[0].spec), "f32[64] @ mesh(2) [R]");
  EXPECT_EQ(TensorOf(reader, 7).offset_bytes, TensorOf(publisher, 1).offset_bytes);
  EXPECT_EQ(ChargedTo("a"), kWholeBytes);
  EXPECT_EQ(ChargedTo("b"), 0);
  Submit(reader, {OpRecord(OpId::kNeg, {7}, 5000)});
  EXPECT_EQ(cluster_.InstancesAt(WorkerIndex(0)).size(), 1u);
}

TEST_F(PublicationsTest, WhatIsNotThereAndWhatIsForbiddenGetOneAnswer) {
  const SessionId publisher = Published("a", "a/secret", {"c"});
  const SessionId stranger = OpenAs("b");
  const auto said_of = [](const absl::Status& status, const std::string& name) {
    std::string text = Message(status);
    const size_t at = text.find(name);
    EXPECT_NE(at, std::string::npos) << text;
    return StrCat(status.ToString().substr(0, 10), text.substr(0, at), "NAME", text.substr(at + name.size()));
  };
  EXPECT_EQ(said_of(Do(stranger, Attach{"a/secret", HandleId(1)}), "a/secret"),
            said_of(Do(stranger, Attach{"a/nothing", HandleId(1)}), "a/nothing"));
  EXPECT_EQ(said_of(Do(stranger, Unpublish{"a/secret"}), "a/secret"),
            said_of(Do(stranger, Unpublish{"a/nothing"}), "a/nothing"));
  Submit(stranger, {FullRecord(kMesh, {8}, kRows, 3)});
  cluster_.CompleteAll();
  const absl::Status taken = Do(stranger, Publish{"a/secret", {{"w", HandleId(3)}}, {}});
  EXPECT_EQ(taken.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(said_of(taken, "a/secret"),
            said_of(Do(stranger, Publish{"a/nothing", {{"w", HandleId(3)}}, {}}), "a/nothing"));
  EXPECT_THAT(NamesSeenBy(stranger), ElementsAre());
  EXPECT_THAT(NamesSeenBy(OpenAs("c")), ElementsAre("a/secret"));
  EXPECT_THAT(NamesSeenBy(publisher), ElementsAre("a/secret"));
}

TEST_F(PublicationsTest, ItOutlivesItsSessionAndIsTakenBackByItsTenantOrAnAdmin) {
  cluster_.Apply(SessionClosedEvent{Published("a", "a/one", {"*"})});
  cluster_.Apply(SessionClosedEvent{Published("a", "a/two", {"*"})});
  EXPECT_EQ(ChargedTo("a"), 2 * kWholeBytes);
  EXPECT_TRUE(Do(OpenAs("b"), Attach{"a/one", HandleId(1)}).ok());
  EXPECT_TRUE(Do(OpenAs("a"), Unpublish{"a/two"}).ok());
  EXPECT_EQ(ChargedTo("a"), kWholeBytes);
  const SessionId admin = OpenAs("default", Role::kAdmin);
  EXPECT_THAT(NamesSeenBy(admin), ElementsAre("a/one"));
  EXPECT_TRUE(Do(admin, Unpublish{"a/one"}).ok());
  EXPECT_TRUE(cluster_.machine().publications().all().empty());
  EXPECT_EQ(ChargedTo("a"), kWholeBytes) << "a reader has it";
}

TEST_F(PublicationsTest, ReadersKeepTheBytesUntilTheyLetGo) {
  const SessionId publisher = Published("a", "a/weights", {"b"});
  const SessionId reader = OpenAs("b");
  ASSERT_TRUE(Do(reader, Attach{"a/weights", HandleId(1)}).ok());
  ASSERT_TRUE(Do(publisher, Unpublish{"a/weights"}).ok());
  Submit(publisher, {DropRecord{{HandleId(1)}}});
  EXPECT_EQ(ChargedTo("a"), kWholeBytes);
  Submit(reader, {OpRecord(OpId::kNeg, {1}, 5000), DropRecord{{HandleId(1)}}});
  cluster_.CompleteAll();
  EXPECT_EQ(ChargedTo("a"), 0);
}

// Even where a reader alone has the buffer, and uses it for the last time.
TEST_F(PublicationsTest, NothingIsWrittenToWhatWasPublished) {
  const SessionId publisher = Published("a", "a/weights", {"b"});
  const SessionId reader = OpenAs("b");
  ASSERT_TRUE(Do(reader, Attach{"a/weights", HandleId(1)}).ok());
  const int64_t published = TensorOf(reader, 1).offset_bytes;
  Submit(publisher, {OpRecord(OpId::kNeg, {1}, 2, /*last_use=*/true)});
  EXPECT_NE(TensorOf(publisher, 2).offset_bytes, published);
  ASSERT_TRUE(Do(publisher, Unpublish{"a/weights"}).ok());
  Submit(reader, {OpRecord(OpId::kNeg, {1}, 5000, /*last_use=*/true)});
  EXPECT_NE(TensorOf(reader, 5000).offset_bytes, published);
  Submit(reader, {OpRecord(OpId::kNeg, {5000}, 5001, /*last_use=*/true)});
  EXPECT_EQ(TensorOf(reader, 5001).offset_bytes, published + kWholeBytes * 2) << "its own memory is taken over";
}

TEST_F(PublicationsTest, ANameThatIsPublishedAgainIsANewVersion) {
  const SessionId publisher = Published("a", "a/weights", {"b"});
  const SessionId reader = OpenAs("b");
  ASSERT_TRUE(Do(reader, Attach{"a/weights", HandleId(1)}).ok());
  Submit(publisher, {FullRecord(kMesh, {32}, kCopies, 2)});
  cluster_.CompleteAll();
  ASSERT_TRUE(Do(publisher, Publish{"a/weights", {{"w", HandleId(2)}}, {"b"}}).ok());
  EXPECT_EQ(cluster_.EventsOf<PublicationsEvent>(publisher).back().list[0].version, 2u);
  EXPECT_EQ(ToText(TensorOf(reader, 1).spec()), "f32[64] @ mesh(2) [R]");
  ASSERT_TRUE(Do(reader, Attach{"a/weights", HandleId(5000)}).ok());
  EXPECT_EQ(ToText(TensorOf(reader, 5000).spec()), "f32[32] @ mesh(2) [R]");
  ASSERT_TRUE(Do(publisher, Unpublish{"a/weights"}).ok());
  ASSERT_TRUE(Do(publisher, Publish{"a/weights", {{"w", HandleId(2)}}, {}}).ok());
  EXPECT_EQ(cluster_.EventsOf<PublicationsEvent>(publisher).back().list[0].version, 3u)
      << "also after it was taken back";
  EXPECT_EQ(Do(reader, Attach{"a/weights", HandleId(9000)}).code(), absl::StatusCode::kNotFound);
}

TEST_F(PublicationsTest, ItWaitsUntilItsTensorsAreThere) {
  const SessionId session = OpenAs("a");
  Submit(session, {FullRecord(kMesh, {64}, kRows, 1), OpRecord(OpId::kNeg, {1}, 2)});
  const uint64_t request = Ask(session, Publish{"a/w", {{"w", HandleId(2)}}, {}});
  EXPECT_EQ(StatusOf(session, request).code(), absl::StatusCode::kUnknown);
  EXPECT_TRUE(cluster_.machine().publications().all().empty());
  cluster_.CompleteAll();
  EXPECT_TRUE(StatusOf(session, request).ok());
}

TEST_F(PublicationsTest, WhatFailedIsNotPublished) {
  const SessionId session = OpenAs("a");
  Submit(session, {FullRecord(kMesh, {64}, kRows, 1), OpRecord(OpId::kNeg, {1}, 2)});
  const Ordinal failing = cluster_.InstancesAt(WorkerIndex(0)).at(1).ordinal;
  const uint64_t request = Ask(session, Publish{"a/w", {{"v", HandleId(1)}, {"w", HandleId(2)}}, {}});
  cluster_.CompleteAll(failing, absl::InternalError("broken"));
  EXPECT_THAT(Message(StatusOf(session, request)), HasSubstr("publish: \"w\" of \"a/w\": "));
  EXPECT_THAT(Message(StatusOf(session, request)), HasSubstr("broken"));
  EXPECT_TRUE(cluster_.machine().publications().all().empty());
}

TEST_F(PublicationsTest, AttachNamesWhatIsLost) {
  Published("a", "a/rows", {"b"}, kRows);
  Published("a", "a/copies", {"b"}, kCopies);
  cluster_.Kill(WorkerIndex(1));
  const SessionId reader = OpenAs("b");
  const absl::Status lost = Do(reader, Attach{"a/rows", HandleId(1)});
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(lost),
              HasSubstr("attach: \"w\" of \"a/rows\" is lost: worker 1 was lost (killed); with it went "));
  EXPECT_TRUE(Do(reader, Attach{"a/copies", HandleId(1)}).ok());
  EXPECT_EQ(ToText(TensorOf(reader, 1).spec()), "f32[64] @ mesh(1) [R]");
}

TEST_F(PublicationsTest, AReaderIsToldOfALossLaterOn) {
  Published("a", "a/rows", {"b"}, kRows);
  const SessionId reader = OpenAs("b");
  ASSERT_TRUE(Do(reader, Attach{"a/rows", HandleId(1)}).ok());
  cluster_.Kill(WorkerIndex(1));
  EXPECT_EQ(cluster_.EventsOf<FailedHandleEvent>(reader).at(0).handle, HandleId(1));
}

TEST_F(PublicationsTest, WrongNamesAndHandlesAreRefusedByName) {
  const SessionId session = Published("a", "a/w", {"b"});
  for (const std::string name : {"w", "/w", "a/", ""}) {
    EXPECT_THAT(Message(Do(session, Publish{name, {{"w", HandleId(1)}}, {}})),
                HasSubstr("is no name of a publication"));
    EXPECT_THAT(Message(Do(session, Attach{name, HandleId(100)})), HasSubstr("is no name of a publication"));
    EXPECT_THAT(Message(Do(session, Unpublish{name})), HasSubstr("is no name of a publication"));
  }
  EXPECT_THAT(Message(Do(session, Publish{"a/x", {{"w", HandleId(9)}}, {}})), HasSubstr("no tensor with handle 9"));
  EXPECT_THAT(Message(Do(session, Attach{"a/w", HandleId(1)})), HasSubstr("in use already"));
  EXPECT_THAT(Message(Do(session, Attach{"a/w", HandleId(0)})), HasSubstr("in use already"));
  EXPECT_THAT(Message(Do(session, Attach{"a/w", HandleId(UINT64_MAX - 5)})), HasSubstr("in use already"));
  const SessionId slashed = OpenAs("x/y");
  EXPECT_THAT(Message(Do(slashed, Publish{"x/y/w", {{"w", HandleId(1)}}, {}})), HasSubstr("has a slash in its name"));
}

TEST_F(PublicationsTest, WhatAnotherTenantPublishedIsNotPublishedAgain) {
  Published("a", "a/w", {"b"});
  const SessionId reader = OpenAs("b");
  ASSERT_TRUE(Do(reader, Attach{"a/w", HandleId(1)}).ok());
  EXPECT_THAT(Message(Do(reader, Publish{"b/w", {{"w", HandleId(1)}}, {"c"}})),
              HasSubstr("publish what an op makes of it"));
}

TEST_F(PublicationsTest, ATenantHasSoManyAndAListHasPages) {
  CoordinatorConfig config = SimulatedCluster::RoomyConfig();
  config.max_publications = 2;
  SimulatedCluster cluster(2, 1 << 20, config);
  const SessionId session = cluster.Open();
  std::vector<Record> records = {FullRecord(kMesh, {8}, kRows, 1)};
  cluster.Submit(session, records);
  cluster.CompleteAll();
  for (uint64_t i = 1; i <= 3; ++i) {
    cluster.Submit(session, {PublicationRecord{i, Publish{StrCat("tenant/", i), {{"w", HandleId(1)}}, {}}}});
  }
  const auto refused = cluster.EventsOf<SettledEvent>(session);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(Message(refused[0].status), HasSubstr("has 2 publications; max_publications is 2"));
  cluster.Submit(session, {PublicationRecord{9, ListPublished{"tenant/1"}}});
  const auto told = cluster.EventsOf<PublicationsEvent>(session).back();
  ASSERT_EQ(told.list.size(), 1u);
  EXPECT_EQ(told.list[0].name, "tenant/2");
  EXPECT_FALSE(told.has_more);
}

}  // namespace
}  // namespace tessera
