// Where a program asked for its ops, and what failures say of it.

#include "client/call_sites.h"

#include <string>

#include "gtest/gtest.h"
#include "schemas/types/call_origin.h"
#include "schemas/types/errors.h"

namespace tessera {
namespace {

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

TEST(CallSites, ThePlaceStandsBehindTheFailuresOwnWords) {
  const absl::Status failed = LinalgError("inv: singular matrix; on the way here: add f64[3,3]");
  const absl::Status told = AtSite({"train.py:42", ""}, failed);
  EXPECT_EQ(TextOf(told), "inv: singular matrix, at train.py:42; on the way here: add f64[3,3]");
  EXPECT_TRUE(told.GetPayload(kLinalgErrorPayload).has_value());
  EXPECT_EQ(TextOf(AtSite({"train.py:42", ""}, LinalgError("inv: singular matrix"))),
            "inv: singular matrix, at train.py:42");
}

TEST(CallSites, AnOpIsSaidInTheProgramsOwnWord) {
  const absl::Status failed = absl::InvalidArgumentError("take_along_axis: gather: index 7 is out of range");
  EXPECT_EQ(TextOf(AtSite({"train.py:1", "embedding"}, failed)),
            "embedding: gather: index 7 is out of range, at train.py:1");
  EXPECT_EQ(TextOf(InWordsOf({"train.py:1", "embedding"}, absl::InvalidArgumentError("my matrix: is no op"))),
            "my matrix: is no op");
}

TEST(CallSites, TheSameSiteHasTheSameNumber) {
  const SiteId site = InternSite({"a.py:1", "linear"});
  EXPECT_EQ(InternSite({"a.py:1", "linear"}), site);
  EXPECT_NE(InternSite({"a.py:1", ""}), site);
  EXPECT_EQ(FindSite(site)->place, "a.py:1");
  EXPECT_EQ(FindSite(0), nullptr);
}

TEST(CallSites, ALogKnowsTheNewestResults) {
  SiteLog log;
  EXPECT_EQ(log.Find(5), 0u);
  log.Note(5, 7);
  EXPECT_EQ(log.Find(5), 7u);
  EXPECT_EQ(log.Find(5 + kRememberedSites), 0u);
  log.Note(5 + kRememberedSites, 8);
  EXPECT_EQ(log.Find(5), 0u);
  EXPECT_EQ(log.Find(5 + kRememberedSites), 8u);
}

TEST(CallSites, TheOutermostScopeCounts) {
  EXPECT_EQ(SiteOfCall(), 0u);
  const SiteScope outer(InternSite({"a.cc:1", ""}));
  const SiteScope inner(InternSite({"a.cc:2", ""}));
  EXPECT_EQ(FindSite(SiteOfCall())->place, "a.cc:1");
}

TEST(CallOrigin, AFailureKeepsTheCallThatItBeganWith) {
  const absl::Status failed = OfCall(OfCall(absl::InternalError("inv: no"), 17), 18);
  EXPECT_EQ(CallOf(failed), 17u);
  EXPECT_EQ(CallOf(WithMessage(failed, "inv: no; on the way here: add")), 17u);
  EXPECT_EQ(CallOf(WithoutCall(failed)), std::nullopt);
  EXPECT_EQ(CallOf(OfCall(absl::InternalError("inv: no"), 0)), std::nullopt);
}

}  // namespace
}  // namespace tessera
