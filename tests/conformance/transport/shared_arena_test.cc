#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "gtest/gtest.h"

#include "server/device/counters.h"
#include "server/transport/transport.h"

namespace tessera {
namespace {

TEST(SharedArena, APeerSeesWhatTheOwnerWrites) {
  auto own = SharedArena::Create(1 << 20);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_GE(own->bytes(), 1 << 20);
  const int fd = dup(own->fd());
  auto peer = SharedArena::Map(fd);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_LT(fcntl(fd, F_GETFD), 0);  // a mapped peer takes no descriptor
  EXPECT_EQ(peer->bytes(), own->bytes());
  EXPECT_EQ(own->counters()->counters[0].load(), 0u);
  own->memory()[own->bytes() - 1] = std::byte{42};
  own->counters()->counters[1].store(7);
  EXPECT_EQ(peer->memory()[own->bytes() - 1], std::byte{42});
  EXPECT_EQ(peer->counters()->counters[1].load(), 7u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(own->memory()) % 4096, 0u);
}

TEST(SharedArena, MoreThanTheHostHasIsRefusedWithBothNumbers) {
  auto arena = SharedArena::Create(int64_t{1} << 45);
  ASSERT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted) << arena.status();
  EXPECT_NE(arena.status().message().find("35184372092928 bytes wanted"), absl::string_view::npos) << arena.status();
  EXPECT_NE(arena.status().message().find("free on the host"), absl::string_view::npos);
  EXPECT_EQ(SharedArena::Create(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedArena::Create(-5).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedArena, MapsNothingThatIsNotASealedArena) {
  EXPECT_EQ(SharedArena::Map(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedArena::Map(open("/dev/null", O_RDWR | O_CLOEXEC)).status().code(),
            absl::StatusCode::kInvalidArgument);
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 1 << 20), 0);
  EXPECT_EQ(SharedArena::Map(dup(unsealed)).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(ftruncate(unsealed, 5000), 0);
  ASSERT_EQ(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(SharedArena::Map(unsealed).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedArena, TheDescriptorCannotShrinkUnderAPeer) {
  auto own = SharedArena::Create(1 << 16);
  ASSERT_TRUE(own.ok());
  EXPECT_NE(ftruncate(own->fd(), 0), 0);
}

}  // namespace
}  // namespace tessera
