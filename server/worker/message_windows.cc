#include "server/worker/message_windows.h"

#include <algorithm>

namespace tessera {
namespace {

using IsMapped = absl::FunctionRef<bool(WorkerIndex)>;

bool IsKernel(const Instruction& instruction) { return std::holds_alternative<KernelInstruction>(instruction); }

int64_t ReceiveWindow(const Phase& phase, IsMapped is_mapped) {
  const bool has_kernels = std::any_of(phase.instructions.begin(), phase.instructions.end(), IsKernel);
  for (const InstructionPiece& piece : phase.messages.pieces) {
    int chunk = -1;
    for (const StagedOperand& operand : piece.operands) {
      if (is_mapped(phase.messages.incoming[static_cast<size_t>(operand.message)].from)) continue;
      // Products run in their order, and long enough that all that is needed should be under way before.
      if (IsKernel(phase.instructions[static_cast<size_t>(piece.instruction)])) return kWholeMessage;
      // A window has one chunk of each message, the same one, when its turn comes.
      const bool agrees = chunk < 0 || chunk == operand.place.last;
      if (!agrees || operand.place.first != operand.place.last) return kWholeMessage;
      chunk = operand.place.last;
    }
  }
  return has_kernels ? kMaxMessageWindow : kMessageWindow;
}

int64_t SendWindow(const Phase& phase, IsMapped is_mapped) {
  for (const OutgoingMessage& message : phase.messages.outgoing) {
    if (is_mapped(message.to)) continue;
    for (const MessagePart& part : message.parts) {
      if (part.place.first != part.place.last) return kWholeMessage;
    }
  }
  const bool has_kernels = !phase.instructions.empty() && IsKernel(phase.instructions[0]);
  const bool is_contraction =
      has_kernels && IsKernel(phase.instructions.back()) && !phase.buffers.reads_of_peers.empty();
  return is_contraction ? kWholeMessage : has_kernels ? kMaxMessageWindow : kMessageWindow;
}

}  // namespace

MessageWindows ChooseWindows(const Phase& phase, IsMapped is_mapped) {
  int64_t largest = 1, count = 0;
  const auto add = [&](WorkerIndex peer, int64_t bytes, const std::vector<MessageChunk>& chunks) {
    if (bytes == 0 || is_mapped(peer)) return;
    ++count;
    for (const MessageChunk& chunk : chunks) largest = std::max(largest, chunk.bytes);
  };
  for (const OutgoingMessage& message : phase.messages.outgoing) add(message.to, message.bytes, message.chunks);
  for (const IncomingMessage& message : phase.messages.incoming) add(message.from, message.bytes, message.chunks);
  const int64_t longest = std::max<int64_t>(1, kMaxStagingBytes / largest / std::max<int64_t>(1, count));
  const auto fitting = [longest](int64_t window) {
    return window == kWholeMessage ? window : std::min(window, longest);
  };
  return {fitting(ReceiveWindow(phase, is_mapped)), fitting(SendWindow(phase, is_mapped))};
}

}  // namespace tessera
