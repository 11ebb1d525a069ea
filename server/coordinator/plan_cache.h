#pragma once

// PlanCache: plans by (ops, attributes, inputs' specs and strides, topology version, limits), each a template
// that workers know by id. When the cache is full, in plans or in bytes, the least recently used ones go, and the
// workers forget them.

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "schemas/ops/op.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/fair_turns.h"
#include "server/coordinator/lanes.h"
#include "server/coordinator/layout_table.h"
#include "server/plan/plan.h"
#include "server/planner/scalar_recipes.h"

namespace tessera {

struct PlanKeyInput {
  SharedLayout layout = UnknownLayout();
  friend bool operator==(const PlanKeyInput& a, const PlanKeyInput& b) {
    return a.layout == b.layout || *a.layout == *b.layout;
  }
  template <typename H>
  friend H AbslHashValue(H h, const PlanKeyInput& i) {
    return H::combine(std::move(h), i.layout->hash);
  }
};
// A tensor is input `value`, or, where that is negative, the result of call -1 - value.
struct PlanKeyOperand {
  int32_t value = kNumber;
  DType scalar_dtype = DType::kF64;
  ScalarStrength scalar_strength = ScalarStrength::kWeak;
  uint8_t scalar_special_dtypes = 0;  // Scalar::SpecialDTypes: terms may not stay pending then
  bool scalar_is_negative = false;    // where a pending maximum may become a minimum by it
  static constexpr int32_t kNumber = INT32_MIN;
  bool operator==(const PlanKeyOperand&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PlanKeyOperand& o) {
    return H::combine(std::move(h), o.value, o.scalar_dtype, o.scalar_strength, o.scalar_special_dtypes,
                      o.scalar_is_negative);
  }
};
struct PlanKeyCall {
  OpId op{};
  Attributes attributes;
  absl::InlinedVector<PlanKeyOperand, 2> operands;
  // The call's own numbers: how many there are, and of which dtypes, shapes a composite's graph.
  std::vector<PlanKeyOperand> scalars = {};
  bool operator==(const PlanKeyCall&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PlanKeyCall& c) {
    return H::combine(std::move(h), c.op, c.attributes, c.operands, c.scalars);
  }
};
// A call, or a segment of several in its canonical form: handles are left out, and numbers' values.
struct PlanKey {
  absl::InlinedVector<PlanKeyInput, 2> inputs;
  absl::InlinedVector<PlanKeyCall, 1> calls;
  absl::InlinedVector<int32_t, 1> kept;  // calls of a segment whose results stay; none: those of the last call
  uint64_t topology_version = 0;
  int64_t temporary_bytes = kNoLimit;  // what PlanLimits says
  static constexpr int64_t kNoLimit = -1;
  bool operator==(const PlanKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PlanKey& k) {
    return H::combine(std::move(h), k.inputs, k.calls, k.kept, k.topology_version, k.temporary_bytes);
  }
};

// An op of a segment, for messages.
struct WayStep {
  std::string_view name;
  TensorSpec result;
};

// How a plan touches one of its buffers; phases count from 1, 0 is never.
struct BufferUse {
  int first_read = 0;
  int first_peer_read = 0;
  int first_write = 0;
};

// The time of a plan on the slowest of its workers, as they say it: a moving average of the instances that have ended,
// a quarter of it the last one's.
struct MeasuredCost {
  int64_t ticks = 0;      // of kTicksPerUs; 0: nobody has measured one
  int64_t under_way = 0;  // instances

  // At least 1; `predicted_us` while nothing was measured.
  int64_t CostUs(int64_t predicted_us) const {
    return ticks == 0 ? predicted_us : (ticks + kTicksPerUs - 1) / kTicksPerUs;
  }
};

struct PlanTemplate {
  TemplateId id;
  std::shared_ptr<const Plan> plan;         // null: of a snapshot, until it is made again (StateMachine::MakeAgain)
  std::shared_ptr<const std::string> text;  // until its workers know it
  uint64_t text_hash = 0;
  ScalarRecipes recipes;
  std::shared_ptr<const std::vector<WayStep>> way;  // of a segment: its ops; null of one op
  std::vector<BufferUse> uses;                      // by buffer
  std::vector<SharedLayout> results;                // by output
  std::vector<WorkerGroup> buffer_workers;          // by buffer
  WorkerGroup workers;                              // all that run it
  std::vector<std::pair<std::string, uint64_t>> collectives;
  int64_t cost_us = 0;                                                        // predicted
  std::shared_ptr<MeasuredCost> measured = std::make_shared<MeasuredCost>();  // shared with its ops
  StreamId stream = StreamId::kCompute;                                       // in the batch lane
  std::vector<WorkerIndex> defined_on;                                        // workers that know it, sorted
};

std::vector<BufferUse> BufferUses(const Plan& plan);

// The cache counts the template, its plan, the program that a worker keeps of it (about 1 KiB for each piece that it
// takes or gives), and the key. So the limit bounds what the coordinator keeps, and about what each worker does.
int64_t MemoryBytes(const PlanTemplate& value);
int64_t MemoryBytes(const PlanKey& key);

class PlanCache {
 public:
  PlanCache(int64_t max_plans, int64_t max_bytes) : max_plans_(max_plans), max_bytes_(max_bytes) {}

  PlanTemplate* Find(const PlanKey& key);
  // The key is in the cache no more than once: Find has just said that it is not there. Takes the template over, and
  // keeps it until the next one comes, however large it is. Templates that had to go are appended to `evicted`.
  PlanTemplate* Insert(PlanKey key, PlanTemplate value, std::vector<PlanTemplate>& evicted);
  // A worker that is new knows none of them.
  void ForgetWorker(WorkerIndex worker);
  uint64_t size() const { return index_.size(); }
  int64_t bytes() const { return bytes_; }
  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }

 private:
  friend class Snapshot;
  struct Entry {
    PlanKey key;
    PlanTemplate value;
    int64_t bytes = 0;
  };
  using Place = std::list<Entry>::iterator;
  static const PlanKey& KeyOf(const PlanKey& key) { return key; }
  static const PlanKey& KeyOf(Place place) { return place->key; }
  // Entries by their keys, which they alone hold.
  struct Hash {
    using is_transparent = void;
    template <typename T>
    size_t operator()(const T& at) const {
      return absl::Hash<PlanKey>()(KeyOf(at));
    }
  };
  struct Equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return KeyOf(a) == KeyOf(b);
    }
  };

  int64_t max_plans_;
  int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::list<Entry> entries_;  // most recent first
  absl::flat_hash_set<Place, Hash, Equal> index_;
  uint64_t hits_ = 0;
  uint64_t misses_ = 0;
};

}  // namespace tessera
