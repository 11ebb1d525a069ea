// A tenant that names another tenant's session, handle, ticket, group, request or publication: every record and every
// call gets the same answer as for one that isn't there, and nothing happens to the other one's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "schemas/types/str_cat.h"
#include "tests/system/hostile/isolation_cases.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kResult = 10'000;
constexpr uint64_t kLast = 601;  // the request behind the record

class IsolationTest : public WireTest {
 protected:
  void SetUp() override {
    const std::string path = testing::TempDir() + "/tenants.toml";
    std::ofstream(path) << kTenants << kTokensOfTenants;
    coordinator_flags_ = {"--tenants=" + path};
    WireTest::SetUp();
    token_ = "a-token";
    owner_ = std::make_unique<Opened>(Open());
    Submit(*owner_, kOwnedRecords, FillOwned);
    for (int i = 0; i < 500 && (owner_->client->tickets.empty() || owner_->client->batches_done < 1); ++i) Pause(10);
    ASSERT_EQ(owner_->client->tickets.size(), 1u);
    token_ = "b-token";
  }

  // Everything that a new session of tenant b is told when it sends the record.
  std::string ToldOf(const std::function<void(wire::Record::Builder)>& fill) {
    Opened other = Open();
    other.client->keeps_texts = true;
    Submit(other, 1,
           [](unsigned, wire::Record::Builder record) { Full(record, kMine, *Mesh::Make({2}, {}, {}), Shape{8}); });
    Submit(other, 2, [&](unsigned i, wire::Record::Builder record) {
      i == 0 ? fill(record) : record.initWatch().setRequest(kLast);  // of no handle: answered in its turn
    });
    const std::string last = StrCat("request = ", kLast);
    for (int i = 0; i < 500 && other.client->texts.find(last) == std::string::npos && other.client->ended.ok(); ++i)
      Pause(10);
    Pause(100);  // a time-out of a join is looked at once in a while
    std::string told = StrCat(other.client->texts, other.client->ended.ToString());
    EXPECT_THAT(told, HasSubstr(last));
    return told;
  }
  // The words that differ because the names do are NAME.
  static std::string Without(std::string text, const std::string& one, const std::string& other) {
    return Without(Without(std::move(text), one), other);
  }
  static std::string Without(std::string text, const std::string& name) {
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += 4) text.replace(at, name.size(), "NAME");
    return text;
  }

  std::unique_ptr<Opened> owner_;
};

TEST_F(IsolationTest, EveryRecordAnswersAsForWhatIsNotThere) {
  const size_t events = owner_->client->events.size();
  for (const RecordCase& one : RecordCases(owner_->client->tickets[0].first, kResult)) {
    const std::string foreign = ToldOf([&](wire::Record::Builder record) { one.fill(record, one.foreign); });
    const std::string absent = ToldOf([&](wire::Record::Builder record) { one.fill(record, kAbsent); });
    const std::string names[] = {StrCat(" ", one.foreign), StrCat(" ", kAbsent)};
    EXPECT_EQ(Without(foreign, names[0], names[1]), Without(absent, names[0], names[1])) << one.what;
  }
  EXPECT_EQ(owner_->client->events.size(), events) << "the owner was told of it";
}

TEST_F(IsolationTest, EveryNameAnswersAsOneThatIsNotThere) {
  const size_t events = owner_->client->events.size();
  for (const NameCase& one : NameCases(kResult)) {
    const std::string foreign = ToldOf([&](wire::Record::Builder record) { one.fill(record, one.foreign); });
    const std::string absent = ToldOf([&](wire::Record::Builder record) { one.fill(record, one.absent); });
    if (one.what == "joinGroup") {
      EXPECT_EQ(foreign.find("groupJoined"), std::string::npos);
      continue;
    }
    EXPECT_EQ(Without(foreign, one.foreign, one.absent), Without(absent, one.foreign, one.absent)) << one.what;
  }
  EXPECT_EQ(owner_->client->events.size(), events) << "the owner was told of it";
}

TEST_F(IsolationTest, EveryCallAnswersAsForWhatIsNotThere) {
  Opened other = Open();
  const auto same = [&](const std::string& what, const std::string& foreign, const std::string& absent,
                        const std::function<void(bool is_foreign)>& ask) {
    const std::string one = StatusOf([&]() { ask(true); }).ToString();
    const std::string two = StatusOf([&]() { ask(false); }).ToString();
    EXPECT_EQ(Without(one, foreign, absent), Without(two, foreign, absent)) << what;
    EXPECT_NE(one, "OK") << what;
  };
  const auto [ticket, secret] = owner_->client->tickets[0];
  same("explain", "handle 1", StrCat("handle ", kAbsent), [&](bool is_foreign) {
    auto request = other.session.explainRequest();
    OpCall call;
    call.op = OpId::kNeg;
    EncodeOpCall(call, request.initCall());
    request.initOperands(1)[0].setHandle(is_foreign ? 1 : kAbsent);
    request.send().wait(io_.waitScope);
  });
  same("groupStatus", "group 1", StrCat("group ", kAbsent), [&](bool is_foreign) {
    auto request = other.session.groupStatusRequest();
    request.setGroup(is_foreign ? 1 : kAbsent);
    request.send().wait(io_.waitScope);
  });
  same("closeOther", StrCat("session ", owner_->id), StrCat("session ", kAbsent), [&](bool is_foreign) {
    auto request = other.session.closeOtherRequest();
    request.setSession(is_foreign ? owner_->id : kAbsent);
    request.send().wait(io_.waitScope);
  });
  same("setLimit", "\"a\"", "\"absent\"", [&](bool is_foreign) {
    auto request = other.session.setLimitRequest();
    request.setTenant(is_foreign ? "a" : "absent");
    request.setKey("weight");
    request.setValue("9");
    request.send().wait(io_.waitScope);
  });
  same("resume", StrCat(owner_->id), StrCat(kAbsent), [&](bool is_foreign) {
    // With the secret, which a tenant doesn't know.
    Wire wire(io_, address_);
    Open(wire, wire::PROTOCOL_VERSION, token_, {is_foreign ? owner_->id : kAbsent, owner_->secret, 0});
  });
  same("transfer", StrCat(ticket), StrCat(kAbsent), [&](bool is_foreign) {
    Wire wire(io_, other.data_addresses[0]);
    auto request = wire.Root<wire::BulkServer>().transferRequest();
    request.setTicket(is_foreign ? ticket : kAbsent);
    request.setSecret(1);
    request.send().wait(io_.waitScope);
  });
  // The owner has all of it.
  EXPECT_TRUE(owner_->client->ended.ok()) << owner_->client->ended;
  Wire bulk(io_, other.data_addresses[0]);
  EXPECT_TRUE(Redeem(bulk, ticket, secret).ok());
}

TEST_F(IsolationTest, StatusIsOfTheOwnTenantAlone) {
  Opened other = Open();
  const auto status = other.session.statusRequest().send().wait(io_.waitScope);
  EXPECT_EQ(status.getStatus().getSessionCount(), 1u);
  EXPECT_EQ(status.getStatus().getTensorCount(), 0u);
  ASSERT_EQ(status.getStatus().getSessions().size(), 1u);
  EXPECT_EQ(status.getStatus().getSessions()[0].getId(), other.id);
  for (auto worker : status.getStatus().getWorkers()) EXPECT_EQ(worker.getUsedBytes(), 0);
  const auto tenants = other.session.tenantsRequest().send().wait(io_.waitScope);
  ASSERT_EQ(tenants.getTenants().size(), 1u);
  EXPECT_EQ(std::string(tenants.getTenants()[0].getLimits().getName().cStr()), "b");
}

}  // namespace
}  // namespace tessera
