#include "schemas/ops/dim_groups.h"

#include <utility>

namespace tessera {

DimGroups GroupDims(const Shape& from, const Shape& to) {
  DimGroups groups;
  size_t i = 0;
  size_t j = 0;
  const auto skip_ones = [](const Shape& shape, size_t& at) {
    while (at < shape.size() && shape[at] == 1) ++at;
  };
  for (skip_ones(from, i), skip_ones(to, j); i < from.size() && j < to.size(); skip_ones(from, i), skip_ones(to, j)) {
    DimGroup group;
    int64_t from_product = from[i];
    int64_t to_product = to[j];
    group.from.push_back(static_cast<int>(i++));
    group.to.push_back(static_cast<int>(j++));
    while (from_product != to_product) {
      if (from_product < to_product) {
        from_product *= from[i];
        if (from[i] != 1) group.from.push_back(static_cast<int>(i));
        ++i;
      } else {
        to_product *= to[j];
        if (to[j] != 1) group.to.push_back(static_cast<int>(j));
        ++j;
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace tessera
