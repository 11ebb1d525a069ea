#include "schemas/link/stream_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "schemas/values.capnp.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

std::string Words(std::initializer_list<uint32_t> words) {
  std::string text;
  for (uint32_t word : words) text.append(reinterpret_cast<const char*>(&word), sizeof(word));
  return text;
}

// A real message with `strings` entries, so that it has one segment or several.
std::string Message(int strings, unsigned first_segment_words) {
  capnp::MallocMessageBuilder builder(first_segment_words, capnp::AllocationStrategy::FIXED_SIZE);
  auto status = builder.initRoot<wire::Status>();
  auto list = status.initPayloads(static_cast<unsigned>(strings));
  for (int i = 0; i < strings; ++i) list.set(static_cast<unsigned>(i), "some text that takes room");
  auto words = capnp::messageToFlatArray(builder);
  return std::string(reinterpret_cast<const char*>(words.asBytes().begin()), words.asBytes().size());
}

TEST(SegmentTableScannerTest, FollowsMessagesAcrossAnyCutting) {
  std::string stream;
  for (int i = 0; i < 12; ++i) stream += Message(i * 3, i % 2 == 0 ? 1024 : 16);
  for (size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{8}, size_t{64}, stream.size()}) {
    SegmentTableScanner scanner;
    for (size_t at = 0; at < stream.size(); at += piece) {
      ASSERT_TRUE(scanner.Scan(Bytes(stream.substr(at, piece))).ok()) << "pieces of " << piece << " at " << at;
    }
    EXPECT_FALSE(scanner.inside_message());
  }
}

TEST(SegmentTableScannerTest, RefusesASegmentCountThatWraps) {
  SegmentTableScanner scanner;
  const absl::Status status = scanner.Scan(Bytes(std::string("\xff\xff\xff\xff", 4)));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4294967296 segments; max_segments is 512"));
}

TEST(SegmentTableScannerTest, RefusesAMessageBeyondTheLimit) {
  SegmentTableScanner scanner;  // one segment of 2^37 words does not fit the field: the most it can say
  const absl::Status status = scanner.Scan(Bytes(Words({0, 0xffffffff})));
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_message_bytes is 67108864"));
  SegmentTableScanner sum;  // many segments that are small alone
  EXPECT_FALSE(sum.Scan(Bytes(Words({3, 4u << 20, 4u << 20, 4u << 20, 4u << 20}))).ok());
}

TEST(SegmentTableScannerTest, StaysFailed) {
  SegmentTableScanner scanner;
  EXPECT_FALSE(scanner.Scan(Bytes("GET / HTTP/1.1\r\n\r\n")).ok());
  EXPECT_FALSE(scanner.Scan(Bytes(Message(1, 64))).ok());
}

TEST(SegmentTableScannerTest, HalfAMessageIsNoError) {
  const std::string message = Message(5, 64);
  SegmentTableScanner scanner;
  EXPECT_TRUE(scanner.Scan(Bytes(message.substr(0, message.size() / 2))).ok());
  EXPECT_TRUE(scanner.inside_message());
}

TEST(GuardedStreamTest, PassesMessagesAndBreaksAtGarbage) {
  auto io = kj::setupAsyncIo();
  auto pipe = io.provider->newCapabilityPipe();
  auto guarded = MakeGuardedStream(kj::mv(pipe.ends[0]), {});
  const std::string message = Message(3, 64);
  pipe.ends[1]->write(message.data(), message.size()).wait(io.waitScope);
  std::string received(message.size(), '\0');
  EXPECT_EQ(guarded->tryRead(received.data(), received.size(), received.size()).wait(io.waitScope), message.size());
  EXPECT_EQ(received, message);
  const std::string garbage = "\xff\xff\xff\xff garbage";
  pipe.ends[1]->write(garbage.data(), garbage.size()).wait(io.waitScope);
  EXPECT_ANY_THROW(guarded->tryRead(received.data(), 4, received.size()).wait(io.waitScope));
}

}  // namespace
}  // namespace tessera
