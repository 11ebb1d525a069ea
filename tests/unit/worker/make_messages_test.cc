#include "server/worker/make_messages.h"

#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<WorkerMessages> Make(const std::string& transport) {
  WorkerOptions options;
  options.transport = transport;
  options.index = 0;
  options.host_id = "here";
  // A socket's path is short; a test's own folder lies deep.
  return MakeMessages(options, "/tmp/tessera-messages-" + std::to_string(getpid()) + ".sock");
}

TEST(MakeMessages, EveryTransportIsMadeOrSaysWhatItNeeds) {
  for (const Transport& transport : kTransports) {
    const absl::StatusOr<WorkerMessages> made = Make(std::string(transport.name));
    if (transport.messages == MessageNetwork::kNone) {
      EXPECT_EQ(made->transport, nullptr) << transport.name;
    } else if (NeedsTrust(transport)) {
      EXPECT_THAT(std::string(made.status().message()), HasSubstr("--trusted-network")) << transport.name;
    } else if (NeedsCertificates(transport)) {
      EXPECT_THAT(std::string(made.status().message()), HasSubstr("needs --message-listen")) << transport.name;
    } else if (NeedsGpu(transport)) {
      EXPECT_THAT(std::string(made.status().message()), HasSubstr("--device cuda")) << transport.name;
    } else {
      ASSERT_TRUE(made.ok()) << transport.name << ": " << made.status();
      EXPECT_NE(made->transport, nullptr) << transport.name;
      EXPECT_EQ(made->tls, nullptr) << transport.name;
    }
  }
}

}  // namespace
}  // namespace tessera
