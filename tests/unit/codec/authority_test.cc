#include "schemas/link/authority.h"

#include <ctime>
#include <string>

#include <gtest/gtest.h>

namespace tessera {
namespace {

LeafRequest ForHost(const std::string& host) {
  const std::time_t now = std::time(nullptr);
  return {"tessera-worker", {host}, LeafUse::kServerAndClient, now, now + 60};
}

TEST(Authority, APinNamesTheKeyOfACa) {
  const SignedKey one = *MakeAuthority("one", 1), other = *MakeAuthority("other", 1);
  EXPECT_TRUE(IsPin(*PinOf(one.certificate)));
  EXPECT_EQ(*PinOf(one.certificate), *PinOf(one.certificate));
  EXPECT_NE(*PinOf(one.certificate), *PinOf(other.certificate));
  EXPECT_EQ(PinOf("no certificate").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string digits(64, 'a');
  for (const std::string& text : {digits, "sha256:" + digits + "a", "sha256:" + digits.substr(1), "sha1:" + digits,
                                  "sha256:" + std::string(64, 'G'), std::string()}) {
    EXPECT_FALSE(IsPin(text)) << text;
  }
}

TEST(Authority, ARequestsKeyIsSignedAndNothingElseOfTheRequest) {
  const SignedKey authority = *MakeAuthority("ca", 1);
  const KeyRequest own = *MakeKeyRequest();
  const absl::StatusOr<std::string> leaf = SignKeyRequest(authority, own.request, ForHost("node7"));
  ASSERT_TRUE(leaf.ok()) << leaf.status();
  EXPECT_NE(leaf->find("BEGIN CERTIFICATE"), std::string::npos);
  EXPECT_NE(own.key.find("BEGIN PRIVATE KEY"), std::string::npos);
  // The same key, so the same pin of its certificate, whatever the names are.
  EXPECT_EQ(*PinOf(*leaf), *PinOf(*SignKeyRequest(authority, own.request, ForHost("10.0.0.7"))));
}

TEST(Authority, ARequestThatIsNoneOrIsChangedIsRefused) {
  const SignedKey authority = *MakeAuthority("ca", 1);
  std::string changed = MakeKeyRequest()->request;
  const size_t middle = changed.size() / 2;
  changed[middle] = changed[middle] == 'A' ? 'B' : 'A';
  for (const std::string& request : {std::string(), std::string("nothing"), authority.certificate, changed}) {
    EXPECT_EQ(SignKeyRequest(authority, request, ForHost("node7")).status().code(), absl::StatusCode::kInvalidArgument)
        << request;
  }
  EXPECT_EQ(SignKeyRequest(authority, MakeKeyRequest()->request, ForHost("no host")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Authority, AnotherCasKeySignsNothing) {
  const SignedKey one = *MakeAuthority("one", 1), other = *MakeAuthority("other", 1);
  EXPECT_EQ(SignKeyRequest({one.certificate, other.key}, MakeKeyRequest()->request, ForHost("node7")).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tessera
