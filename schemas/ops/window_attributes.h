#pragma once

// The windows and groups that a call's attributes say. Private to schemas/ops.

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/window_op.h"

namespace tessera {

inline Windows WindowsOf(const Attributes& attributes) {
  return {attributes.Get(attribute::stride), attributes.Get(attribute::padding), attributes.Get(attribute::dilation)};
}
inline int64_t GroupsOf(const Attributes& attributes) {
  const int64_t* const groups = attributes.Get(attribute::groups);
  return groups == nullptr ? 1 : *groups;
}

}  // namespace tessera
