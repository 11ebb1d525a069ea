#pragma once

// LayoutTable: specs and strides of tensors, each pair once for all tensors that have it.
//
//   LayoutTable layouts;
//   layouts.Of(spec, strides) == layouts.Of(spec, strides)   // the same pointer

#include <cstddef>
#include <memory>

#include "absl/container/flat_hash_set.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/plan.h"

namespace tessera {

inline constexpr size_t kMaxKeptLayouts = 4096;  // docs/limits.md: max_kept_layouts

struct TensorLayout {
  TensorSpec spec;
  Strides strides;  // of elements, in every worker's shard
  size_t hash = 0;  // of both
  friend bool operator==(const TensorLayout& a, const TensorLayout& b) {
    return a.hash == b.hash && a.spec == b.spec && a.strides == b.strides;
  }
};
// Never null.
using SharedLayout = std::shared_ptr<const TensorLayout>;

// No dims, no workers: a tensor that was refused, and of which nothing is known, has it.
const SharedLayout& UnknownLayout();

class LayoutTable {
 public:
  // Beyond max_kept_layouts all are forgotten; a holder of a layout keeps it.
  SharedLayout Of(const TensorSpec& spec, const Strides& strides);
  size_t size() const { return layouts_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(const SharedLayout& layout) const { return layout->hash; }
    size_t operator()(const TensorLayout& layout) const { return layout.hash; }
  };
  struct Equal {
    using is_transparent = void;
    static const TensorLayout& Get(const SharedLayout& layout) { return *layout; }
    static const TensorLayout& Get(const TensorLayout& layout) { return layout; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Get(a) == Get(b);
    }
  };
  absl::flat_hash_set<SharedLayout, Hash, Equal> layouts_;
};

}  // namespace tessera
