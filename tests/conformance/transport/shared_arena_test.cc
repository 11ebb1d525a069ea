#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "gtest/gtest.h"

#include "server/device/counters.h"
#include "server/device/shared_arena.h"

namespace tessera {
namespace {

TEST(SharedArena, APeerSeesWhatTheOwnerWrites) {
  auto own = SharedArena::Create(1 << 20);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_GE(own->bytes(), 1 << 20);
  ArenaDescriptors descriptors = own->CopyDescriptors();
  const int counters_fd = descriptors.counters.get(), memory_fd = descriptors.memory.get();
  auto peer = SharedArena::Map(std::move(descriptors));
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_LT(fcntl(counters_fd, F_GETFD), 0);  // a mapped peer takes no descriptor
  EXPECT_LT(fcntl(memory_fd, F_GETFD), 0);
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
  EXPECT_NE(arena.status().message().find("35184372088832 bytes wanted"), absl::string_view::npos) << arena.status();
  EXPECT_NE(arena.status().message().find("free on the host"), absl::string_view::npos);
  EXPECT_EQ(SharedArena::Create(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedArena::Create(-5).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedArena, MapsNothingThatIsNotASealedArena) {
  const auto own = SharedArena::Create(1 << 16);
  ASSERT_TRUE(own.ok());
  // In place of the memory, and of the counters.
  const auto expect_refused = [&](int fd) {
    ArenaDescriptors wrong_memory = own->CopyDescriptors(), wrong_counters = own->CopyDescriptors();
    wrong_memory.memory = OwnedFd(dup(fd));
    wrong_counters.counters = OwnedFd(fd);
    EXPECT_EQ(SharedArena::Map(std::move(wrong_memory)).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(SharedArena::Map(std::move(wrong_counters)).status().code(), absl::StatusCode::kInvalidArgument);
  };
  expect_refused(-1);
  expect_refused(open("/dev/null", O_RDWR | O_CLOEXEC));
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 1 << 20), 0);
  expect_refused(dup(unsealed));
  ASSERT_EQ(ftruncate(unsealed, 5000), 0);
  ASSERT_EQ(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  expect_refused(unsealed);
}

TEST(SharedArena, CountersAreOnePage) {
  const auto own = SharedArena::Create(1 << 16);
  ASSERT_TRUE(own.ok());
  ArenaDescriptors swapped = own->CopyDescriptors();
  std::swap(swapped.counters, swapped.memory);
  EXPECT_EQ(SharedArena::Map(std::move(swapped)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedArena, TheDescriptorsCannotShrinkUnderAPeer) {
  auto own = SharedArena::Create(1 << 16);
  ASSERT_TRUE(own.ok());
  const ArenaDescriptors descriptors = own->CopyDescriptors();
  EXPECT_NE(ftruncate(descriptors.memory.get(), 0), 0);
  EXPECT_NE(ftruncate(descriptors.counters.get(), 0), 0);
}

}  // namespace
}  // namespace tessera
