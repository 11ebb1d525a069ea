// Replay: what a recording has, asked for again.

#include <utility>

#include "client/recording.h"
#include "client/session_calls.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The calls and drops of a recording as records, with new handles.
class Replayer {
 public:
  Replayer(absl::Span<const ReplayInput> inputs, absl::Span<const ReplayNumber> numbers, uint64_t first_handle)
      : inputs_(inputs), numbers_(numbers), first_handle_(first_handle) {}

  std::vector<Record> Run(const Recording& recording) {
    std::vector<Record> records;
    records.reserve(recording.steps().size());
    for (const RecordedStep& step : recording.steps()) {
      if (step.call != nullptr) {
        records.push_back(CallOf(step));
      } else if (Record drop = DropOf(step); !drop.drops.empty()) {
        records.push_back(std::move(drop));
      }
    }
    return records;
  }

 private:
  bool IsInput(int value) const { return value < 0; }
  const ReplayInput& InputAt(int value) const { return inputs_[static_cast<size_t>(-1 - value)]; }
  uint64_t HandleOf(int value) const {
    return IsInput(value) ? (*InputAt(value).tensor)->id : first_handle_ + static_cast<uint64_t>(value);
  }

  // The number in its place, where there is a new one. Numbers are asked for in order.
  void Replace(size_t number, Scalar& scalar) {
    while (next_ < numbers_.size() && numbers_[next_].number < number) ++next_;
    if (next_ < numbers_.size() && numbers_[next_].number == number) scalar = numbers_[next_].value;
  }

  Record CallOf(const RecordedStep& step) {
    Record record;
    record.called_as = step.called_as;
    record.call = step.call;
    size_t number = step.first_number;
    if (!step.call->scalars.empty()) {
      OpCall call = *step.call;
      for (Scalar& scalar : call.scalars) Replace(number++, scalar);
      record.call = std::make_shared<const OpCall>(std::move(call));
    }
    record.operands.reserve(step.operands.size());
    for (const RecordedOperand& operand : step.operands) {
      if (operand.value == RecordedOperand::kNumber) {
        RecordOperand& out = record.operands.emplace_back();
        out.kind = RecordOperand::Kind::kScalar;
        out.scalar = operand.scalar;
        Replace(number++, out.scalar);
        continue;
      }
      const bool is_last = operand.last_use && (!IsInput(operand.value) || InputAt(operand.value).is_given_up);
      record.operands.push_back({RecordOperand::Kind::kHandle, is_last, HandleOf(operand.value), Scalar()});
    }
    if (step.result_count > 0) record.handle = HandleOf(step.first_result);
    for (size_t i = 1; i < step.result_count; ++i) {
      record.more_results.push_back(HandleOf(step.first_result + static_cast<int>(i)));
    }
    return record;
  }

  Record DropOf(const RecordedStep& step) const {
    Record record;
    record.kind = Record::Kind::kDrop;
    for (const int value : step.drops) {
      if (!IsInput(value) || InputAt(value).is_given_up) record.drops.push_back(HandleOf(value));
    }
    return record;
  }

  const absl::Span<const ReplayInput> inputs_;
  const absl::Span<const ReplayNumber> numbers_;
  const uint64_t first_handle_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<HandlePtr>> SessionCalls::Replay(const Recording& recording,
                                                            absl::Span<const ReplayInput> inputs,
                                                            absl::Span<const ReplayNumber> numbers) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_RETURN_IF_ERROR(session_.AwaitRoom());
  TESSERA_RETURN_IF_ERROR(Recording::Refuse("another capture, called in it"));
  if (PlanCapture::Current() != nullptr) {
    return absl::FailedPreconditionError("capture: what is captured is not planned anew by explain; explain its ops");
  }
  if (inputs.size() != recording.inputs().size()) {
    return absl::InvalidArgumentError(
        StrCat("capture: ", inputs.size(), " inputs are given where it has ", recording.inputs().size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    HandleState& given = **inputs[i].tensor;
    if (given.session.get() == &session_) TESSERA_RETURN_IF_ERROR(session_.AwaitSpec(given));
    if (given.session.get() != &session_ || !recording.Fits(i, given.spec)) {
      return absl::InvalidArgumentError(StrCat("capture: input ", i, " is ", given.SpecText(), " where it was ",
                                               ToText(*recording.inputs()[i].spec)));
    }
  }
  const uint64_t first = session_.next_handle_.fetch_add(recording.results().size());
  std::vector<HandlePtr> results;
  results.reserve(recording.kept().size());
  for (const int kept : recording.kept()) {
    results.push_back(
        session_.NewHandle(recording.results()[static_cast<size_t>(kept)], first + static_cast<uint64_t>(kept)));
    results.back()->on_cancel = OnCancel::kSpreads;
  }
  for (const RecordedStep& step : recording.steps()) {
    if (step.result_count > 0) session_.sites_.Note(first + static_cast<uint64_t>(step.first_result), step.site);
  }
  std::vector<Record> records = Replayer(inputs, numbers, first).Run(recording);
  {
    // They are dropped where the recording says so, not by who has the handle.
    std::lock_guard<std::mutex> lock(session_.mutex_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].is_given_up && recording.inputs()[i].is_dropped) (*inputs[i].tensor)->keeper = Keeper::kSession;
    }
  }
  if (session_.connection_->EnqueueAll(std::move(records)) >= kMaxQueuedRecords) session_.queue_is_full_ = true;
  return results;
}

}  // namespace tessera
