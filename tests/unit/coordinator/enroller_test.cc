#include "server/coordinator/rpc/enroller.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kMinuteMs = 60'000;

class EnrollerTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder =
        testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + std::string("/");
    std::filesystem::create_directories(folder);
    const SignedKey authority = *MakeAuthority("ca", 1);
    std::ofstream(folder + "ca.crt") << authority.certificate;
    std::ofstream(folder + "ca.key") << authority.key;
    tls_.ca = folder + "ca.crt";
    options_.ca_key = folder + "ca.key";
  }
  void Make() {
    auto made = Enroller::Make(options_, tls_);
    ASSERT_TRUE(made.ok()) << made.status();
    enroller_ = *std::move(made);
  }
  absl::StatusOr<Enroller::Enrolled> Enroll(int index, int64_t now_ms, bool renews = false) {
    return enroller_->Enroll(numbers_, {index, request_, {"node7"}, renews}, now_ms);
  }
  int IndexOf(const absl::StatusOr<Enroller::Enrolled>& enrolled) { return enrolled.ok() ? enrolled->index.value : -1; }
  void Join(int index) {
    here_.insert(WorkerIndex(index));
    enroller_->Joined(WorkerIndex(index));
  }

  EnrolOptions options_;
  TlsFiles tls_;
  const std::string request_ = MakeKeyRequest()->request;
  std::set<WorkerIndex> here_;
  Enroller::Numbers numbers_{.is_here = [this](WorkerIndex index) { return here_.contains(index); }};
  std::unique_ptr<Enroller> enroller_;
};

TEST_F(EnrollerTest, WorkersThatComeAtOnceGetNumbersOfTheirOwn) {
  Make();
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 0);
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 1);
  Join(0);
  EXPECT_EQ(IndexOf(Enroll(-1, kMinuteMs - 1)), 2) << "1 is kept for the one that is to join";
  EXPECT_EQ(IndexOf(Enroll(-1, kMinuteMs + 1)), 1) << "which never came";
}

TEST_F(EnrollerTest, AWorkerThatDiedHasItsNumberAgainAtOnce) {
  Make();
  EXPECT_EQ(IndexOf(Enroll(3, 0)), 3);
  EXPECT_EQ(IndexOf(Enroll(3, 1)), 3) << "it ended before it had joined";
  Join(3);
  EXPECT_EQ(Enroll(3, 2).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(IndexOf(Enroll(3, 2, /*renews=*/true)), 3);
  here_.erase(WorkerIndex(3));
  EXPECT_EQ(IndexOf(Enroll(3, 3)), 3);
}

TEST_F(EnrollerTest, NumbersOfOthersAreGivenToNobodyThatAsksForNone) {
  options_.first_number = 2;
  Make();
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 2);
  EXPECT_EQ(IndexOf(Enroll(1, 0)), 1);
}

TEST_F(EnrollerTest, ThereAreNoMoreNumbersThanItWasTold) {
  options_.max_workers = 2;
  Make();
  EXPECT_EQ(Enroll(2, 0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 0);
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 1);
  EXPECT_EQ(Enroll(-1, 0).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EnrollerTest, NamesThatItMayNotHaveAreRefusedByName) {
  options_.names = {"node*", "10.0.0.?"};
  Make();
  const auto enroll = [this](std::vector<std::string> hosts) {
    return enroller_->Enroll(numbers_, {-1, request_, std::move(hosts), false}, 0).status();
  };
  EXPECT_TRUE(enroll({"node1", "10.0.0.7"}).ok());
  const absl::Status refused = enroll({"node1", "db"});
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(refused.message().find("the name db is none"), absl::string_view::npos) << refused;
  for (const auto& hosts : {std::vector<std::string>{}, {"a b"}, {""}, std::vector<std::string>(17, "node1")}) {
    EXPECT_EQ(enroll(hosts).code(), absl::StatusCode::kInvalidArgument) << hosts.size();
  }
}

TEST_F(EnrollerTest, WhatIsNoRequestIsRefusedAndTakesNoNumber) {
  Make();
  for (const std::string& request : {std::string(), std::string("none"), std::string(9000, 'x')}) {
    EXPECT_EQ(enroller_->Enroll(numbers_, {-1, request, {"node7"}, false}, 0).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Enroll(-1, 0, /*renews=*/true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 0);
}

TEST_F(EnrollerTest, NumbersThatItsTokenIsUsedForComeFirstAndAnotherOneIsChecked) {
  Make();
  numbers_.former = {WorkerIndex(5), WorkerIndex(7)};
  numbers_.check = [this](WorkerIndex index) {
    return numbers_.former.contains(index) ? absl::OkStatus() : absl::PermissionDeniedError("it is used up");
  };
  Join(5);
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 7);
  const absl::Status refused = Enroll(-1, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refused.message(), "enroll: it is used up");
  numbers_.check = [](WorkerIndex) { return absl::OkStatus(); };
  EXPECT_EQ(IndexOf(Enroll(-1, 0)), 0) << "the one that was refused took no number";
}

TEST_F(EnrollerTest, AProofIsOfOneNumberAndOneEnd) {
  Make();
  const auto enrolled = Enroll(3, 0);
  ASSERT_TRUE(enrolled.ok());
  const std::time_t end = enrolled->ends_at;
  EXPECT_TRUE(enroller_->IsProof(WorkerIndex(3), end, enrolled->proof, end - 1));
  EXPECT_FALSE(enroller_->IsProof(WorkerIndex(3), end, enrolled->proof, end)) << "the certificate is over";
  EXPECT_FALSE(enroller_->IsProof(WorkerIndex(3), end + 1, enrolled->proof, end - 1));
  EXPECT_FALSE(enroller_->IsProof(WorkerIndex(4), end, enrolled->proof, end - 1));
  EXPECT_FALSE(enroller_->IsProof(WorkerIndex(3), end, "", end - 1));
  Make();  // another process with the same key
  EXPECT_TRUE(enroller_->IsProof(WorkerIndex(3), end, enrolled->proof, end - 1));
}

TEST_F(EnrollerTest, ACertificateEndsAfterItsTime) {
  options_.leaf_lifetime_s = 90;
  Make();
  const std::time_t before = std::time(nullptr);
  const auto enrolled = Enroll(-1, 0);
  ASSERT_TRUE(enrolled.ok());
  EXPECT_GE(enrolled->ends_at, before + 90);
  EXPECT_LE(enrolled->ends_at, std::time(nullptr) + 90);
}

}  // namespace
}  // namespace tessera
