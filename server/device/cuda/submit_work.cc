// Work of streams: alone, or with the kernels that follow it; or on the host.

#include <cstddef>
#include <iterator>
#include <utility>

#include "kernels/joined_kernels.h"
#include "schemas/host/monotonic_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/device_loop.h"

namespace tessera::cuda {
namespace {

// How long the loop waits for the next of the kernels that may be joined with one, while they are handed over.
// docs/limits.md: gpu_join_wait
constexpr int64_t kJoinWaitNs = 50'000;
// Behind work: that of a read or a transfer, and one that comes by their number.
constexpr uint64_t kMarks = 2;

// Whether the kernel may be part of a row program; else of a run of prepared kernels.
bool MayBeRow(const KernelWork& kernel) { return kernel.received.empty() && MayJoin(kernel.call, kernel.call); }

}  // namespace

absl::Status CudaDevice::Loop::SubmitWork(Stream& stream, const DeviceWork& work, uint64_t number) {
  TESSERA_RETURN_IF_ERROR(stream.Flush());
  Launcher::Turn turn = TurnOf(stream);
  const absl::StatusOr<bool> with_next = SubmitWithNext(stream, work, turn);
  absl::Status status = with_next.status();
  if (with_next.ok() && !*with_next && turn.wants == Launcher::Wants::kNothing) {
    status = launcher_->Enqueue(stream.get(), work, turn);
  }
  return EndTurn(stream, work, number, std::move(turn), std::move(status));
}

absl::Status CudaDevice::Loop::SubmitRest(Stream& stream, RestItem& rest, uint64_t number) {
  TESSERA_RETURN_IF_ERROR(stream.Flush());
  Launcher::Turn turn = TurnOf(stream);
  absl::Status status = launcher_->EnqueueRest(stream.get(), *rest.beside, rest.steps, turn);
  std::move(rest.of_host.begin(), rest.of_host.end(), std::back_inserter(turn.of_host));
  rest.of_host.clear();
  return EndTurn(stream, rest.work, number, std::move(turn), std::move(status));
}

Launcher::Turn CudaDevice::Loop::TurnOf(Stream& stream) {
  const uint64_t room = stream.Room();
  return {.workspace = stream.workspace,
          .is_clear = is_clear_,
          .room = room - std::min(room, kMarks),
          .lane = stream.lane,
          .making = std::move(stream.making)};
}

absl::Status CudaDevice::Loop::EndTurn(Stream& stream, const DeviceWork& work, uint64_t number, Launcher::Turn turn,
                                       absl::Status status) {
  if (turn.replaced != nullptr) LetGoLater(turn.replaced);
  stream.wants_clear = turn.wants == Launcher::Wants::kClear;
  if (turn.wants == Launcher::Wants::kRoom) stream.wants_room = turn.operations + kMarks;
  if (turn.wants == Launcher::Wants::kMade) stream.wants_made = turn.made;
  stream.making = std::move(turn.making);
  if (turn.wants != Launcher::Wants::kNothing) return status;
  stream.making = nullptr;
  Fail(stream, stream.Submitted(turn.operations + (turn.replaced == nullptr ? 0 : 1)));  // a larger workspace's zeros
  was_at_work_ = true;
  if (stream.work_submitted_ns == 0) stream.work_submitted_ns = MonotonicNs();
  for (Launcher::Fault& fault : turn.faults) stream.faults.push_back(std::move(fault));
  const auto* kernel = std::get_if<KernelWork>(&work);
  if (turn.beside != nullptr && status.ok()) {
    RestItem rest{*kernel, turn.beside, std::move(turn.rest), std::exchange(turn.of_host, {})};
    rest.work.received = {};  // it is counted
    stream.queue.push_front({number, std::move(rest)});
  }
  // Behind this work: some of it may use them.
  for (std::shared_ptr<DeviceMemory>& memory : turn.replaced_of_library) LetGoLater(std::move(memory));
  for (std::shared_ptr<std::byte[]>& memory : turn.of_host) LetGoLater(std::shared_ptr<void>(memory, memory.get()));
  WarnOnce(launcher_->product_error(), "products are computed by the image's own kernels: ", &has_warned_of_products_);
  WarnOnce(launcher_->dnn_error(),
           "attentions and convolutions are computed by the image's own kernels: ", &has_warned_of_dnn_);
  WarnOnce(launcher_->transform_error(), "Fourier transforms are computed on the host: ", &has_warned_of_transforms_);
  WarnOnce(launcher_->solver_error(), "functions of matrices are computed on the host: ", &has_warned_of_solvers_);
  return kernel != nullptr && absl::IsUnimplemented(status) ? QueueHostStep(stream, *kernel, number) : status;
}

absl::StatusOr<bool> CudaDevice::Loop::SubmitWithNext(Stream& stream, const DeviceWork& work, Launcher::Turn& turn) {
  const auto* kernel = std::get_if<KernelWork>(&work);
  if (kernel == nullptr) return false;
  const auto* next = stream.queue.empty() ? nullptr : std::get_if<DeviceWork>(&stream.queue.front().item);
  const auto* next_kernel = next == nullptr ? nullptr : std::get_if<KernelWork>(next);
  if (next_kernel != nullptr) {
    const bool is_attention = std::holds_alternative<AttentionOp>(*kernel->call.op);
    const absl::StatusOr<bool> both = is_attention
                                          ? launcher_->EnqueueWithLogarithms(stream.get(), *kernel, *next_kernel, turn)
                                          : launcher_->EnqueueWithBias(stream.get(), *kernel, *next_kernel, turn);
    if (!both.ok() || *both) stream.queue.pop_front();
    if (!both.ok() || *both || turn.wants != Launcher::Wants::kNothing) return both;
  }
  FindRun(stream, *kernel);
  absl::StatusOr<bool> joined = false;
  if (MayBeRow(*kernel)) {
    if (run_.size() > 1) joined = launcher_->EnqueueRows(stream.get(), run_, turn);
  } else if (run_.size() > 1) {
    joined = launcher_->EnqueuePrepared(stream.get(), run_, turn);
  }
  stream.queue.erase(stream.queue.begin(), stream.queue.begin() + static_cast<std::ptrdiff_t>(turn.joined));
  return joined;
}

void CudaDevice::Loop::FindRun(Stream& stream, const KernelWork& first) {
  run_.assign(1, &first);
  const bool is_row = MayBeRow(first);
  if (!is_row && !(is_clear_ && launcher_->MayBeginPrepared(first))) return;
  const size_t most = is_row ? kMaxJoinedKernels : kMaxGraphLaunches;
  const auto may_follow = [&](const KernelWork& kernel) {
    return is_row ? kernel.received.empty() && MayJoin(first.call, kernel.call) : !MayBeRow(kernel);
  };
  int64_t until_ns = MonotonicNs() + kJoinWaitNs;
  while (run_.size() < most) {
    if (run_.size() > stream.queue.size()) {
      // An instance is handed over item by item, and a part of its kernels would be another program, or another graph.
      if (Take()) {
        until_ns = MonotonicNs() + kJoinWaitNs;
      } else if (!is_held_ || MonotonicNs() > until_ns) {
        return;
      }
      continue;
    }
    const auto* work = std::get_if<DeviceWork>(&stream.queue[run_.size() - 1].item);
    const auto* kernel = work == nullptr ? nullptr : std::get_if<KernelWork>(work);
    if (kernel == nullptr || !may_follow(*kernel)) return;
    run_.push_back(kernel);
  }
}

void CudaDevice::Loop::WarnOnce(const absl::Status& why, std::string_view what, bool* has_warned) {
  if (why.ok() || *has_warned) return;
  *has_warned = true;
  if (options_.warn) options_.warn(absl::UnavailableError(StrCat("cuda: ", what, StdView(why.message()))));
}

absl::Status CudaDevice::Loop::QueueHostStep(Stream& stream, const KernelWork& work, uint64_t number) {
  WarnOnce(launcher_->program_error(),
           "what can't be compiled for the GPU is computed on the host: ", &has_warned_of_programs_);
  const int64_t bytes = HostStepBytes(work.call);
  if (!is_clear_ && stream.host_memory.Grows(bytes)) {
    stream.wants_clear = true;
    return absl::OkStatus();
  }
  absl::StatusOr<std::byte*> memory = stream.host_memory.Reserve(bytes, options_.max_host_step_bytes);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        StrCat(ToText(*work.call.op), ": ", StdView(memory.status().message())));
  }
  const std::shared_ptr<HostStep> step = MakeHostStep(work.call, *memory);
  std::vector<StreamItem> items(step->before.begin(), step->before.end());
  HostThread& of_lane = host_[static_cast<size_t>(stream.lane)];
  items.push_back(AsyncItem{[&of_lane, step](Device::Done done) {
                              of_lane.Run([step, done = std::move(done)]() mutable { done(RunKernel(step->call)); });
                            },
                            EndsBy::kHost});
  for (const CopyWork& copy : step->after) items.push_back(DeviceWork(copy));
  while (!items.empty()) {
    stream.queue.push_front({number, std::move(items.back())});
    items.pop_back();
  }
  for (const ReceivedCount& count : work.received) *count.received_bytes += count.bytes;
  return absl::OkStatus();
}

}  // namespace tessera::cuda
