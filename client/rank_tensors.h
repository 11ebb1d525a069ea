#pragma once

// Sends and receives of Tensors in a group whose ranks match their messages by themselves (rank_mailbox.h). The ring
// has the message's place in the order, and a claim; the bytes go from worker to worker, by the coordinator, which
// matches the claim's two sides.
//
//   sender    Send record with claim 5; message {tag, dtype, elements, claim 5} into the ring
//   receiver  finds the message: Recv record with claim 5
//
// The other side may be an array: an array's receive asks for the claim, and downloads; a Tensor's receive that finds
// bytes uploads them.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/statusor.h"
#include "client/process_group.h"
#include "client/rank_mailbox.h"

namespace tessera {

// The sender's message in the ring. The coordinator tells how the send ended.
class ClaimNotice : public MailCall {
  void EndInMail(const RankMail::Request& request) override { (void)request; }
};

class TensorReceive : public MailCall {
 public:
  // To be pushed into the group's mailbox. ResourceExhausted: no memory for its bytes, should they come in the ring.
  static absl::StatusOr<std::shared_ptr<TensorReceive>> Begin(std::weak_ptr<const ProcessGroup> group,
                                                              const GroupCallOptions& call, const Shape& shape,
                                                              DType dtype);

  // The tensor, once its message has come. DeadlineExceeded at the time, and the call goes on.
  absl::StatusOr<Tensor> Await(std::optional<double> timeout_s);
  bool IsDone();
  int32_t source();

 private:
  void EndInMail(const RankMail::Request& request) override;
  absl::StatusOr<Tensor> TensorOf(const RankMail::Request& request);

  std::weak_ptr<const ProcessGroup> group_;
  GroupCallOptions call_;
  Shape shape_;
  std::unique_ptr<std::byte[]> memory_;  // of bytes that come in the ring

  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<absl::StatusOr<Tensor>> received_;
  int32_t source_ = -1;
};

}  // namespace tessera
