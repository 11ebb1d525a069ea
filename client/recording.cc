#include "client/recording.h"

#include <algorithm>
#include <utility>

#include "client/session_impl.h"
#include "schemas/ops/catalog.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

thread_local Recording* current = nullptr;

std::string TextOf(const RecordedStep& step) {
  std::string text = ToText(*step.call);
  StrAppend(&text, " of");
  for (const RecordedOperand& operand : step.operands) {
    if (operand.value == RecordedOperand::kNumber) {
      StrAppend(&text, " a number");
    } else if (operand.value < 0) {
      StrAppend(&text, " input ", -1 - operand.value);
    } else {
      StrAppend(&text, " result ", operand.value);
    }
  }
  return text;
}

bool IsSame(const RecordedStep& a, const RecordedStep& b) {
  const auto same = [](const RecordedOperand& x, const RecordedOperand& y) {
    return x.value == y.value && x.last_use == y.last_use;
  };
  return a.call->op == b.call->op && a.call->attributes == b.call->attributes &&
         a.call->scalars.size() == b.call->scalars.size() && a.called_as == b.called_as &&
         a.result_count == b.result_count &&
         std::equal(a.operands.begin(), a.operands.end(), b.operands.begin(), b.operands.end(), same);
}

std::vector<const RecordedStep*> CallsOf(const std::vector<RecordedStep>& steps) {
  std::vector<const RecordedStep*> calls;
  for (const RecordedStep& step : steps) {
    if (step.call != nullptr) calls.push_back(&step);
  }
  return calls;
}

}  // namespace

Recording::~Recording() {
  if (current == this) current = nullptr;
}

Recording* Recording::Current() { return current; }

Recording* Recording::Strict() {
  return current != nullptr && current->strictness_ == Strictness::kStrict ? current : nullptr;
}

absl::Status Recording::Open(Strictness strictness) {
  if (current != nullptr) return absl::FailedPreconditionError("capture: this thread has a capture open already");
  strictness_ = strictness;
  current = this;
  return absl::OkStatus();
}

absl::Status Recording::Begin(Observer observer) {
  TESSERA_RETURN_IF_ERROR(Open(Strictness::kStrict));
  observer_ = std::move(observer);
  return absl::OkStatus();
}

absl::Status Recording::BeginLenient() { return Open(Strictness::kLenient); }

absl::Status Recording::Spoil(absl::Status why) {
  if (strictness_ == Strictness::kStrict) return why;
  if (spoiled_.empty()) spoiled_ = std::string(StdView(why.message()));
  return absl::OkStatus();
}

absl::Status Recording::Refuse(std::string_view what) {
  if (current == nullptr) return absl::OkStatus();
  return current->Spoil(absl::FailedPreconditionError(StrCat(
      "capture: ", what, ": what is captured is asked for again without its program, so it neither reads values nor ",
      "brings them; give it tensors as arguments, and read what it returns")));
}

void Recording::AddLiteral(SessionImpl& session, uint64_t handle, const SpecPtr& spec, std::string_view bytes) {
  if (session_ == nullptr) session_ = &session;
  if (session_ != &session || !spoiled_.empty()) return;
  literals_.push_back({ValueOf(handle, spec), std::string(bytes)});
}

int Recording::ValueOf(uint64_t handle, const SpecPtr& spec) {
  const auto [at, is_new] = values_.try_emplace(handle, -1 - static_cast<int>(inputs_.size()));
  if (is_new) inputs_.push_back({handle, spec});
  return at->second;
}

absl::Status Recording::Add(SessionImpl& session, const Record& record, absl::Span<const SpecOperand> operands,
                            absl::Span<const SpecPtr> results) {
  if (session_ == nullptr) session_ = &session;
  if (session_ != &session) return Spoil(absl::FailedPreconditionError("capture: its ops are of two sessions"));
  if (call_count_ == kMaxRecordedCalls) {
    return Spoil(absl::ResourceExhaustedError(
        StrCat("capture: it has more ops than max_recorded_calls, ", kMaxRecordedCalls, "; capture a part of it")));
  }
  return Add(record, operands, results);
}

absl::Status Recording::Add(const Record& record, absl::Span<const SpecOperand> operands,
                            absl::Span<const SpecPtr> results) {
  RecordedStep& step = steps_.emplace_back();
  step.call = record.call;
  step.called_as = record.called_as;
  step.site = SiteOfCall();
  step.first_number = number_count_;
  absl::InlinedVector<Scalar, 8> numbers(record.call->scalars.begin(), record.call->scalars.end());
  for (size_t i = 0; i < operands.size(); ++i) {
    RecordedOperand& operand = step.operands.emplace_back();
    operand.last_use = record.operands[i].last_use;
    if (operands[i].spec == nullptr) {
      operand.scalar = record.operands[i].scalar;
      numbers.push_back(operand.scalar);
      continue;
    }
    operand.value = ValueOf(record.operands[i].handle, *operands[i].spec);
    if (operand.last_use && operand.value < 0) inputs_[static_cast<size_t>(-1 - operand.value)].is_dropped = true;
  }
  step.first_result = static_cast<int>(results_.size());
  step.result_count = results.size();
  for (size_t i = 0; i < results.size(); ++i) {
    const uint64_t handle = i == 0 ? record.handle : record.more_results[i - 1];
    values_.emplace(handle, static_cast<int>(results_.size()));
    results_.push_back(results[i]);
    result_handles_.push_back(handle);
    result_dropped_.push_back(false);
  }
  ++call_count_;
  number_count_ += numbers.size();
  if (observer_ != nullptr) observer_(numbers);
  return absl::OkStatus();
}

void Recording::AddDrop(const SessionImpl& session, uint64_t handle) {
  if (&session != session_) return;
  const auto found = values_.find(handle);
  if (found == values_.end()) return;
  const int value = found->second;
  if (value < 0) {
    inputs_[static_cast<size_t>(-1 - value)].is_dropped = true;
  } else {
    result_dropped_[static_cast<size_t>(value)] = true;
  }
  if (steps_.empty() || steps_.back().call != nullptr) steps_.emplace_back();
  steps_.back().drops.push_back(value);
}

void Recording::End() {
  if (current == this) current = nullptr;
  observer_ = nullptr;
  std::vector<int> gone;
  for (size_t i = 0; i < results_.size(); ++i) {
    if (result_dropped_[i]) continue;
    // One that another thread let go of is there no more, though nobody said so here.
    (session_->FindLive(result_handles_[i]) == nullptr ? gone : kept_).push_back(static_cast<int>(i));
  }
  if (!gone.empty()) steps_.emplace_back().drops = std::move(gone);
}

void Recording::Keep(std::vector<int> results) {
  std::vector<int> gone;
  for (const int value : kept_) {
    if (std::find(results.begin(), results.end(), value) == results.end()) gone.push_back(value);
  }
  if (!gone.empty()) steps_.emplace_back().drops = std::move(gone);
  kept_ = std::move(results);
}

Scalar Recording::NumberAt(size_t number) const {
  for (const RecordedStep& step : steps_) {
    if (step.call == nullptr) continue;
    size_t at = step.first_number;
    for (const Scalar& scalar : step.call->scalars) {
      if (at++ == number) return scalar;
    }
    for (const RecordedOperand& operand : step.operands) {
      if (operand.value == RecordedOperand::kNumber && at++ == number) return operand.scalar;
    }
  }
  return Scalar();
}

std::optional<Recording::Difference> Recording::DifferenceFrom(const Recording& other) const {
  const std::vector<const RecordedStep*> mine = CallsOf(steps_), others = CallsOf(other.steps_);
  for (size_t c = 0; c < std::min(mine.size(), others.size()); ++c) {
    if (!IsSame(*mine[c], *others[c])) {
      return Difference{c, StrCat(TextOf(*others[c]), " where it was ", TextOf(*mine[c]))};
    }
  }
  if (mine.size() != others.size()) {
    const bool is_shorter = mine.size() < others.size();
    return Difference{std::min(mine.size(), others.size()),
                      is_shorter ? StrCat(TextOf(*others[mine.size()]), " where it was over")
                                 : StrCat("it is over where it was ", TextOf(*mine[others.size()]))};
  }
  return std::nullopt;
}

}  // namespace tessera
