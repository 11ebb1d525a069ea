#include "server/coordinator/layout_table.h"

#include <utility>

#include "absl/hash/hash.h"

namespace tessera {
namespace {

TensorLayout WithHash(TensorSpec spec, Strides strides) {
  const size_t hash = absl::HashOf(spec, strides);
  return {std::move(spec), std::move(strides), hash};
}

}  // namespace

const SharedLayout& UnknownLayout() {
  static const auto* const kUnknown = new SharedLayout(std::make_shared<const TensorLayout>(WithHash({}, {})));
  return *kUnknown;
}

SharedLayout LayoutTable::Of(const TensorSpec& spec, const Strides& strides) {
  TensorLayout layout = WithHash(spec, strides);
  if (const auto known = layouts_.find(layout); known != layouts_.end()) return *known;
  if (layouts_.size() >= kMaxKeptLayouts) layouts_.clear();
  return *layouts_.insert(std::make_shared<const TensorLayout>(std::move(layout))).first;
}

}  // namespace tessera
