#pragma once

// SpecCache: what ResolveOp says of a call, remembered. In a loop the same op comes with the same specs
// again and again; a hit costs a tenth of a resolution. Specs are compared by identity, and a result's
// spec is the entry's own, so that chains hit too.
//
// Law: an entry depends only on the op, its attributes, the operands' specs, and of a scalar on its
// dtype, strength, sign, in which float dtypes it is zero, infinite or NaN, and which integer dtypes it fits. Values of
// scalars are not part of it.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/record.h"
#include "schemas/ops/op.h"

namespace tessera {

using SpecPtr = std::shared_ptr<const TensorSpec>;

inline constexpr size_t kMaxSpecCacheEntries = 8192;  // docs/limits.md: max_spec_cache_entries
// Counts operands and results of all entries: an op on many tensors counts as many.
inline constexpr size_t kMaxSpecCacheSpecs = 32'768;  // docs/limits.md: max_spec_cache_specs

// An operand that has to be redistributed before the op, without being asked for.
struct ImplicitMove {
  int operand = 0;
  TensorSpec source;
  TensorSpec destination;
  int64_t bytes = 0;  // the closed-form bound
};

struct SpecEntry {
  std::shared_ptr<const OpCall> call;  // without scalars
  absl::InlinedVector<SpecPtr, 1> outputs;
  std::vector<ImplicitMove> implicit;
  int64_t implicit_bytes = 0;
  // Whether the op takes pending operands as they are, though it is better given values: a composite that reduces them
  // on the way, and a product, whose result may be larger.
  bool takes_values = false;
};

// A tensor's spec, or a scalar when the spec is null.
struct SpecOperand {
  const SpecPtr* spec = nullptr;
  Scalar scalar;
};

class SpecCache {
 public:
  // The errors are ResolveOp's.
  absl::StatusOr<std::shared_ptr<const SpecEntry>> Resolve(const OpCall& call, absl::Span<const SpecOperand> operands);
  // The one pointer for equal specs.
  SpecPtr Intern(const TensorSpec& spec);
  // Counts the specs of the remembered calls.
  size_t spec_count();

 private:
  struct Key {
    OpId op{};
    Attributes attributes;
    absl::InlinedVector<SpecPtr, kInlineOperands> specs;     // null for a scalar
    absl::InlinedVector<uint32_t, kInlineOperands> scalars;  // the scalar's class, plus one
    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& k) {
      for (const SpecPtr& spec : k.specs) h = H::combine(std::move(h), spec.get());
      return H::combine(std::move(h), k.op, k.attributes, k.scalars);
    }
  };

  std::mutex mutex_;
  absl::flat_hash_map<Key, std::shared_ptr<const SpecEntry>> entries_;
  size_t spec_count_ = 0;
  absl::flat_hash_map<TensorSpec, SpecPtr> interned_;
};

}  // namespace tessera
