#include "client/basic_index.h"

#include <algorithm>
#include <utility>

#include "client/session_calls.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// As Python shows a tuple.
std::string TupleText(const Shape& shape) {
  std::string text = "(";
  for (size_t d = 0; d < shape.size(); ++d) StrAppend(&text, d == 0 ? "" : ", ", shape[d]);
  return StrCat(text, shape.size() == 1 ? ",)" : ")");
}

// Python's rules of slices (PySlice_AdjustIndices).
IndexItem SliceOf(const IndexKey& key, int64_t extent) {
  const int64_t first = key.step < 0 ? -1 : 0, last = key.step < 0 ? extent - 1 : extent;
  const auto clamped = [&](int64_t place) {
    return place < 0 ? std::max(place + extent, first) : std::min(place, last);
  };
  const int64_t start = clamped(key.start), stop = clamped(key.stop);
  int64_t size = 0;
  if (key.step < 0 && stop < start) size = (start - stop - 1) / -key.step + 1;
  if (key.step > 0 && start < stop) size = (stop - start - 1) / key.step + 1;
  return {IndexItem::Kind::kSlice, start, size, size > 1 ? key.step : 1};
}

absl::StatusOr<IndexItem> ItemOf(const IndexKey& key, const Shape& shape, size_t dim) {
  if (key.kind == IndexKey::Kind::kSlice) return SliceOf(key, shape[dim]);
  const int64_t extent = shape[dim];
  if (key.start < -extent || key.start >= extent) {
    return IndexOutOfRangeError(
        StrCat("index: ", key.start, " is out of range for dim ", dim, " of shape ", TupleText(shape)));
  }
  return IndexItem{IndexItem::Kind::kInteger, key.start < 0 ? key.start + extent : key.start, 1, 1};
}

absl::StatusOr<OpCall> CallOf(OpId op, absl::Span<const IndexKey> keys, const Shape& shape) {
  OpCall call;
  call.op = op;
  TESSERA_ASSIGN_OR_RETURN(std::vector<IndexItem> index, NormaliseIndex(keys, shape));
  call.attributes.Set(attribute::index, std::move(index));
  return call;
}

absl::StatusOr<Tensor> CallIndexed(OpId op, const Tensor& x, const IndexKeys& keys,
                                   absl::Span<const CallOperand> operands) {
  SessionImpl& session = *x.session();
  if (!x.spec_pending()) {
    TESSERA_ASSIGN_OR_RETURN(const OpCall call, CallOf(op, keys, x.spec().shape));
    TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, session.calls().Call(call, operands));
    return Tensor(std::move(handle));
  }
  const auto complete = [op, keys](absl::Span<const SpecPtr> specs) { return CallOf(op, keys, specs[0]->shape); };
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, session.calls().CallLater(complete, operands));
  return Tensor(std::move(handle));
}

}  // namespace

absl::StatusOr<std::vector<IndexItem>> NormaliseIndex(absl::Span<const IndexKey> keys, const Shape& shape) {
  size_t named = 0, dots = 0;
  for (const IndexKey& key : keys) {
    named += key.kind == IndexKey::Kind::kSlice || key.kind == IndexKey::Kind::kInteger ? 1 : 0;
    dots += key.kind == IndexKey::Kind::kEllipsis ? 1 : 0;
  }
  if (dots > 1) return absl::InvalidArgumentError("index: only one Ellipsis may stand in an index");
  if (named > shape.size()) {
    return IndexOutOfRangeError(StrCat("index: ", named, " indices for shape ", TupleText(shape)));
  }
  std::vector<IndexItem> items;
  items.reserve(keys.size() - dots + shape.size() - named);
  size_t dim = 0;
  const auto take_whole = [&](size_t dims) {
    for (const size_t end = dim + dims; dim < end; ++dim) items.push_back({IndexItem::Kind::kSlice, 0, shape[dim], 1});
  };
  for (const IndexKey& key : keys) {
    if (key.kind == IndexKey::Kind::kEllipsis) {
      take_whole(shape.size() - named);
    } else if (key.kind == IndexKey::Kind::kNewAxis) {
      items.push_back({IndexItem::Kind::kNewAxis, 0, 1, 1});
    } else {
      TESSERA_ASSIGN_OR_RETURN(const IndexItem item, ItemOf(key, shape, dim));
      items.push_back(item);
      ++dim;
    }
  }
  take_whole(shape.size() - dim);
  return items;
}

absl::StatusOr<Tensor> GetItem(const Tensor& x, const IndexKeys& keys) {
  const CallOperand operand{&x.state(), Scalar(), false};
  return CallIndexed(OpId::kSlice, x, keys, {&operand, 1});
}

absl::StatusOr<Tensor> WithItem(const Tensor& x, const IndexKeys& keys, CallOperand value, bool last_use) {
  const CallOperand operands[] = {{&x.state(), Scalar(), last_use}, std::move(value)};
  return CallIndexed(OpId::kAssign, x, keys, operands);
}

}  // namespace tessera
