// The client's session against a fake coordinator: order, batches, waits, disconnects.

#include "client/session_calls.h"
#include "client/session_impl.h"
#include "client/session_transfers.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>

#include "client/tensor.h"
#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/unit/client/fake_gateway.h"

namespace tessera {
namespace {

absl::StatusOr<std::shared_ptr<SessionImpl>> Open(FakeGateway& fake, double stall_timeout_s = 60) {
  ConnectionOptions options;
  options.address = fake.address();
  options.timeout_s = 0.3;
  return SessionImpl::Open(options, stall_timeout_s);
}

OpCall Zeros() {
  OpCall call;
  call.op = OpId::kFull;
  call.attributes.Set(attribute::dtype, DType::kF32);
  call.attributes.Set(attribute::shape, Shape{4});
  call.attributes.Set(attribute::mesh, *Mesh::Make(std::vector<int64_t>{2}, {}, {}));
  call.scalars = {Scalar::Float(0)};
  return call;
}

absl::StatusOr<HandlePtr> AddOne(SessionImpl& session, const HandlePtr& x) {
  const CallOperand operands[] = {{&x, Scalar()}, {nullptr, Scalar::Int(1)}};
  return session.calls().Call({OpId::kAdd, {}, {}}, operands);
}

size_t CountOf(const SeenBatch& batch, wire::Record::Which kind) {
  return static_cast<size_t>(std::count(batch.kinds.begin(), batch.kinds.end(), kind));
}

TEST(Session, BatchesAreDenseAndNoLongerThanTheLimit) {
  FakeGateway fake({});
  auto session = *Open(fake);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  std::vector<HandlePtr> kept;
  for (int i = 0; i < 2000; ++i) kept.push_back(*AddOne(*session, x));
  ASSERT_TRUE(session->Wait(*kept.back(), 10).ok());
  size_t calls = 0;
  uint64_t number = 0;
  for (const SeenBatch& batch : fake.batches()) {
    EXPECT_EQ(batch.number, ++number);
    EXPECT_LE(batch.kinds.size(), kMaxBatchRecords);
    calls += CountOf(batch, wire::Record::CALL);
  }
  EXPECT_EQ(calls, 2001u);
  EXPECT_LT(number, 1000u) << "records travel one by one";
}

TEST(Session, WhatIsNotTakenUpIsBounded) {
  FakeOptions slow;
  slow.batches = FakeOptions::Batches::kQueued;
  FakeGateway fake(slow);
  auto session = *Open(fake, 0.5);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  absl::Status status;
  size_t calls = 1;
  while (status.ok() && calls < 4 * kMaxQueuedRecords) {
    absl::StatusOr<HandlePtr> y = AddOne(*session, x);
    status = y.status();
    ++calls;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << "a full queue waits";
  size_t sent = 0;
  for (const SeenBatch& batch : fake.batches()) sent += batch.kinds.size();
  EXPECT_LE(sent, kMaxRecordsInFlight + kMaxBatchRecords);
}

TEST(Session, SpecsAreKnownWithoutAnAnswer) {
  FakeOptions silent;
  silent.watches = FakeOptions::Watches::kIgnored;
  FakeGateway fake(silent);
  auto session = *Open(fake);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  EXPECT_EQ(ToText(*x->spec), "f32[4] @ mesh(2) [R]");
  EXPECT_FALSE(session->IsReady(*x));
}

TEST(Session, DroppedHandlesAreToldAfterTheirLastUse) {
  FakeGateway fake({});
  auto session = *Open(fake);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  const uint64_t first = x->id;
  for (int i = 0; i < 50; ++i) x = *AddOne(*session, x);
  ASSERT_TRUE(session->Wait(*x, 10).ok());
  std::vector<uint64_t> dropped;
  for (const SeenBatch& batch : fake.batches())
    dropped.insert(dropped.end(), batch.dropped.begin(), batch.dropped.end());
  std::vector<uint64_t> want(50);
  std::iota(want.begin(), want.end(), first);
  EXPECT_EQ(dropped, want);
}

TEST(Session, AWaitForManyAsksForAllAtOnce) {
  FakeGateway fake({});
  auto session = *Open(fake);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  std::vector<Tensor> tensors;
  for (int i = 0; i < 200; ++i) tensors.emplace_back(*AddOne(*session, x));
  ASSERT_TRUE(WaitAll(tensors, 10).ok());
  for (const Tensor& tensor : tensors) EXPECT_TRUE(tensor.IsReady());
  size_t watches = 0, batches = 0;
  for (const SeenBatch& batch : fake.batches()) {
    const size_t watched = CountOf(batch, wire::Record::WATCH);
    watches += watched;
    batches += watched > 0 ? 1 : 0;
  }
  EXPECT_EQ(watches, 200u);
  EXPECT_LE(batches, 50u) << "one round trip for each";
}

TEST(Session, AWaitForManyEndsInItsTime) {
  FakeOptions silent;
  silent.watches = FakeOptions::Watches::kIgnored;
  FakeGateway fake(silent);
  auto session = *Open(fake);
  const std::vector<Tensor> tensors(20, Tensor(*session->calls().Call(Zeros(), {})));
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = WaitAll(tensors, 0.1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("one of 20 tensors: not done after 0.1 s"), std::string_view::npos) << status;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(Session, AFailureIsTheFirstCauseAndStays) {
  FakeOptions options;
  options.watch_status = absl::UnavailableError("worker 2 is lost");
  FakeGateway fake(options);
  auto session = *Open(fake);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  EXPECT_EQ(session->Wait(*x, 10), options.watch_status);
  EXPECT_EQ(session->Wait(*x, 10), options.watch_status);
  EXPECT_TRUE(session->IsReady(*x));
  EXPECT_TRUE(session->Sync().ok()) << "it was told";
  HandlePtr y = *session->calls().Call(Zeros(), {});
  EXPECT_EQ(session->Sync(), options.watch_status);
  EXPECT_TRUE(session->Sync().ok()) << "a failure is told once";
}

TEST(Session, ADisconnectEndsPendingAndLaterCalls) {
  FakeOptions silent;
  silent.watches = FakeOptions::Watches::kIgnored;
  FakeGateway fake(silent);
  auto session = *Open(fake);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  auto pending = std::async(std::launch::async, [&] { return session->Wait(*x, 30); });
  EXPECT_EQ(session->Wait(*x, 0.05).code(), absl::StatusCode::kDeadlineExceeded);
  const auto start = std::chrono::steady_clock::now();
  fake.Stop();
  EXPECT_EQ(pending.get().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(AddOne(*session, x).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(session->Sync().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST(Session, NoProgressIsDeadlineExceeded) {
  FakeOptions silent;
  silent.watches = FakeOptions::Watches::kIgnored;
  FakeGateway fake(silent);
  auto session = *Open(fake, 0.4);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  const absl::Status status = session->Wait(*x, std::nullopt);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("no progress"), absl::string_view::npos) << status;
}

TEST(Session, ATicketThatComesTooLateIsGivenBack) {
  FakeOptions late;
  late.tickets = FakeOptions::Tickets::kAfterCancel;
  FakeGateway fake(late);
  auto session = *Open(fake, 0.2);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  EXPECT_EQ(session->transfers().Download(x, std::nullopt).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::vector<uint64_t> released;
  for (int i = 0; i < 100 && released.empty(); ++i) {
    ASSERT_TRUE(session->Wait(**AddOne(*session, x), 10).ok());  // a round trip
    for (const SeenBatch& batch : fake.batches()) {
      released.insert(released.end(), batch.released.begin(), batch.released.end());
    }
  }
  EXPECT_EQ(released, std::vector<uint64_t>{77});
}

TEST(Session, ARefusalIsTheServersOwnError) {
  for (const absl::Status& refusal :
       {absl::UnauthenticatedError("the token is wrong"), absl::FailedPreconditionError("this is version 2")}) {
    FakeOptions options;
    options.refuse = refusal;
    FakeGateway fake(options);
    const absl::Status status = Open(fake).status();
    EXPECT_EQ(status.code(), refusal.code());
    EXPECT_NE(status.message().find(refusal.message()), absl::string_view::npos) << status;
  }
}

TEST(Session, AServerThatDoesNotAnswerIsGivenUp) {
  FakeOptions options;
  options.opening = FakeOptions::Opening::kIgnored;
  FakeGateway fake(options);
  EXPECT_EQ(Open(fake).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Session, AnOperandOfAnotherSessionIsRefused) {
  FakeGateway first({}), second({});
  auto a = *Open(first), b = *Open(second);
  HandlePtr x = *a->calls().Call(Zeros(), {});
  EXPECT_EQ(AddOne(*b, x).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Session, AForbiddenRedistributionIsNotSent) {
  FakeGateway fake({});
  auto session = *Open(fake);
  OpCall rows = Zeros(), replicated = Zeros();
  rows.attributes.Set(attribute::shape, {4, 4});
  replicated.attributes.Set(attribute::shape, {4, 4});
  rows.attributes.Set(attribute::placements, {Placement::Shard(0)});
  OpCall columns = rows;
  columns.attributes.Set(attribute::placements, {Placement::Shard(1)});
  HandlePtr x = *session->calls().Call(rows, {}), y = *session->calls().Call(columns, {});
  const CallOperand operands[] = {{&x, Scalar()}, {&y, Scalar()}};
  session->calls().SetImplicitPolicy(ImplicitPolicy::kForbid);
  const absl::Status status = session->calls().Call({OpId::kAdd, {}, {}}, operands).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("32 bytes"), absl::string_view::npos) << status;
  SetThreadImplicitPolicy(ImplicitPolicy::kAllow);
  EXPECT_TRUE(session->calls().Call({OpId::kAdd, {}, {}}, operands).ok());
  SetThreadImplicitPolicy(std::nullopt);
}

TEST(Session, AClosedSessionIsClosed) {
  FakeGateway fake({});
  auto session = *Open(fake);
  HandlePtr x = *session->calls().Call(Zeros(), {});
  EXPECT_TRUE(session->Close().ok());
  EXPECT_TRUE(session->Close().ok());
  EXPECT_EQ(AddOne(*session, x).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session->Wait(*x, 1).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tessera
