#pragma once

// Recording: the ops that a thread asks of a session while it is open, in order, with the drops between them, so that
// they can be asked for again with other tensors and numbers: a step of a loop without the program that said it.
//
//   Recording recording;  recording.Begin(observer);
//   t = x * 2;  y = t + b;  t goes away
//   recording.End();                 inputs x, b; results t, y; kept y
//   session.calls().Replay(recording, {x2, b}, {{0, Scalar(3)}})  ->  y of x2 * 3 + b, as one message
//
// A recording is strict, or lenient: it then changes nothing of what is asked for, and says afterwards what in it can't
// be said again. A lenient one may be said as one op (recorded_graph.h).
//
// Law: a recorded call has run. Values are numbered as they come: results from 0 on, inputs from -1 down, by their
// first use. Numbers are those of the calls in order: each call's own scalars, then its scalar operands. A call that
// reads values, or brings them, would not be said again: a strict recording refuses it, a lenient one is spoiled by it,
// but for the few values that come in a record of their own (literals).
//
// One thread opens, fills and ends it. After End it doesn't change, but for Keep, and any thread may replay it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/call_sites.h"
#include "client/record.h"
#include "client/spec_cache.h"

namespace tessera {

class SessionImpl;
struct HandleState;

inline constexpr size_t kMaxRecordedCalls = 16'384;  // docs/limits.md: max_recorded_calls

struct RecordedInput {
  uint64_t handle = 0;
  SpecPtr spec;
  bool is_dropped = false;  // on the way: its memory may be given to a result
};

struct RecordedOperand {
  static constexpr int kNumber = INT32_MIN;
  int value = kNumber;
  bool last_use = false;
  Scalar scalar;
};

// A tensor that was brought by value: in a lenient recording, an input whose elements are known.
struct RecordedLiteral {
  int value = 0;
  std::string bytes;  // row-major
};

// A call, or the drop of values behind it.
struct RecordedStep {
  std::shared_ptr<const OpCall> call;  // null: a drop
  CalledAs called_as = CalledAs::kOp;
  std::vector<RecordedOperand> operands;
  int first_result = 0;
  size_t result_count = 0;
  size_t first_number = 0;
  SiteId site = 0;
  std::vector<int> drops;
};

// An input of a replay. `is_given_up`: nobody here uses it afterwards, so it is dropped where the recording says so.
struct ReplayInput {
  const std::shared_ptr<HandleState>* tensor = nullptr;
  bool is_given_up = false;
};
// A number in the place of a recorded one.
struct ReplayNumber {
  size_t number = 0;
  Scalar value;
};

class Recording {
 public:
  // Is told of each call before it is queued, with its numbers.
  using Observer = std::function<void(absl::Span<const Scalar>)>;

  Recording() = default;
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // FailedPrecondition while the thread has another one open.
  absl::Status Begin(Observer observer);
  absl::Status BeginLenient();
  void End();
  // The calling thread's open one, or null.
  static Recording* Current();
  // The same, where it is strict.
  static Recording* Strict();
  // `what` can't be said again: FailedPrecondition while the thread has a strict one open; a lenient one is spoiled.
  static absl::Status Refuse(std::string_view what);

  // ---- of the session ----
  absl::Status Add(SessionImpl& session, const Record& record, absl::Span<const SpecOperand> operands,
                   absl::Span<const SpecPtr> results);
  void AddDrop(const SessionImpl& session, uint64_t handle);
  void AddLiteral(SessionImpl& session, uint64_t handle, const SpecPtr& spec, std::string_view bytes);

  // Whether one of its calls gave the tensor.
  bool Gives(uint64_t handle) const {
    const auto found = values_.find(handle);
    return found != values_.end() && found->second >= 0;
  }

  // ---- what is in it ----
  const std::vector<RecordedInput>& inputs() const { return inputs_; }
  const std::vector<RecordedStep>& steps() const { return steps_; }
  const std::vector<SpecPtr>& results() const { return results_; }
  // Whether a tensor of that spec may be input i.
  bool Fits(size_t i, const SpecPtr& spec) const { return spec == inputs_[i].spec || *spec == *inputs_[i].spec; }
  absl::Span<const RecordedLiteral> literals() const { return literals_; }
  // Names the call that can't be said again; empty where all can.
  const std::string& spoiled() const { return spoiled_; }
  size_t call_count() const { return call_count_; }
  size_t number_count() const { return number_count_; }
  Scalar NumberAt(size_t number) const;
  SessionImpl* session() const { return session_; }
  // The results that are there when it ends: their values, and their handles.
  const std::vector<int>& kept() const { return kept_; }
  uint64_t HandleOf(int result) const { return result_handles_[static_cast<size_t>(result)]; }
  // A replay gives these of the kept ones.
  void Keep(std::vector<int> results);

  // The first call that the other one has otherwise, and its text there; the call is call_count() of the shorter one
  // where it ends. Numbers are not compared. Nothing: they are the same.
  struct Difference {
    size_t call = 0;
    std::string text;
  };
  std::optional<Difference> DifferenceFrom(const Recording& other) const;

 private:
  enum class Strictness : uint8_t { kStrict, kLenient };
  absl::Status Open(Strictness strictness);
  absl::Status Add(const Record& record, absl::Span<const SpecOperand> operands, absl::Span<const SpecPtr> results);
  // A strict recording ends with this error, a lenient one is spoiled.
  absl::Status Spoil(absl::Status why);
  int ValueOf(uint64_t handle, const SpecPtr& spec);

  Strictness strictness_ = Strictness::kStrict;
  std::string spoiled_;
  std::vector<RecordedLiteral> literals_;
  Observer observer_;
  SessionImpl* session_ = nullptr;
  absl::flat_hash_map<uint64_t, int> values_;  // by handle
  std::vector<RecordedInput> inputs_;
  std::vector<RecordedStep> steps_;
  std::vector<SpecPtr> results_;
  std::vector<uint64_t> result_handles_;
  std::vector<bool> result_dropped_;
  std::vector<int> kept_;
  size_t call_count_ = 0;
  size_t number_count_ = 0;
};

}  // namespace tessera
