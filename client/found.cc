#include "client/found.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "client/ops.h"
#include "client/session_calls.h"
#include "client/session_impl.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/filter.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::StatusOr<Tensor> Along(OpId op, std::initializer_list<Operand> operands) {
  OpCall call;
  call.op = op;
  call.attributes.Set(attribute::dims, {0});
  return CallOp(call, operands);
}

absl::StatusOr<Tensor> Plain(OpId op, std::initializer_list<Operand> operands) {
  return CallOp(OpCall{op, {}, {}}, operands);
}

absl::StatusOr<Tensor> CallLater(const CallCompletion& complete, absl::Span<const Tensor> tensors) {
  std::vector<CallOperand> operands;
  for (const Tensor& tensor : tensors) operands.push_back({&tensor.state(), Scalar(), false});
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, tensors[0].session()->calls().CallLater(complete, operands));
  return Tensor(std::move(handle));
}

// The first dims as one.
absl::StatusOr<Tensor> MergeFirst(const Tensor& x, int dims) {
  if (dims == 1) return x;
  const auto merged = [dims](absl::Span<const SpecPtr> specs) -> absl::StatusOr<OpCall> {
    const Shape& extents = specs[0]->shape;
    Shape shape = {NumElements(Shape(extents.begin(), extents.begin() + dims))};
    shape.insert(shape.end(), extents.begin() + dims, extents.end());
    OpCall call;
    call.op = OpId::kReshape;
    call.attributes.Set(attribute::shape, std::move(shape));
    return call;
  };
  return CallLater(merged, {&x, 1});
}

absl::StatusOr<Tensor> Flat(const Tensor& x) { return MergeFirst(x, x.rank()); }

// A vector without some elements at its ends, as far as it has them.
absl::StatusOr<Tensor> Inner(const Tensor& x, int64_t before, int64_t behind) {
  const auto part = [before, behind](absl::Span<const SpecPtr> specs) -> absl::StatusOr<OpCall> {
    const int64_t extent = specs[0]->shape[0];
    const int64_t start = std::min(before, extent);
    const int64_t size = std::max<int64_t>(0, extent - start - behind);
    OpCall call;
    call.op = OpId::kSlice;
    call.attributes.Set(attribute::index, {{IndexItem::Kind::kSlice, start, size, 1}});
    return call;
  };
  return CallLater(part, {&x, 1});
}

absl::StatusOr<Tensor> Head(const Tensor& x) {
  const auto head = [](absl::Span<const SpecPtr> specs) -> absl::StatusOr<OpCall> {
    OpCall call;
    call.op = OpId::kSlice;
    call.attributes.Set(attribute::index, {{IndexItem::Kind::kSlice, 0, std::min<int64_t>(1, specs[0]->shape[0]), 1}});
    return call;
  };
  return CallLater(head, {&x, 1});
}

// As many elements of dim 0 as `count`; the other dims whole.
absl::StatusOr<OpCall> FirstOf(std::string_view what, const TensorSpec& tensor, int64_t count) {
  if (count < 0 || count > tensor.shape[0]) {
    return absl::InvalidArgumentError(StrCat(what, ": ", count, " elements are wanted of dim 0 of ", ToText(tensor)));
  }
  std::vector<IndexItem> index;
  for (const int64_t extent : tensor.shape) index.push_back({IndexItem::Kind::kSlice, 0, extent, 1});
  index[0].size = count;
  OpCall call;
  call.op = OpId::kSlice;
  call.attributes.Set(attribute::index, std::move(index));
  return call;
}

absl::StatusOr<std::vector<Tensor>> First(std::string_view what, absl::Span<const Tensor> tensors,
                                          const Tensor& count) {
  const TensorSpec& counted = *count.state()->KnownOrStandIn();
  if (counted.rank() != 0 || counted.dtype != DType::kI64) {
    return absl::InvalidArgumentError(StrCat(what, ": the count is ", count.state()->SpecText(), ", not a 0-d i64"));
  }
  std::vector<CountedCall> calls;
  for (const Tensor& tensor : tensors) {
    if (tensor.rank() == 0) {
      return absl::InvalidArgumentError(StrCat(what, ": ", tensor.state()->SpecText(), " has no dims"));
    }
    const auto first = [name = std::string(what)](absl::Span<const SpecPtr> specs, absl::Span<const int64_t> counts) {
      return FirstOf(name, *specs[0], counts.empty() ? specs[0]->shape[0] : counts[0]);
    };
    calls.push_back({first, {tensor.state()}});
  }
  // Its value is told from every worker's copy of it.
  const auto replicate = [](absl::Span<const SpecPtr> specs) -> absl::StatusOr<OpCall> {
    OpCall call{OpId::kRedistribute, {}, {}};
    call.attributes.Set(attribute::placements, Placements(specs[0]->placements.size(), Placement::Replicate()));
    return call;
  };
  TESSERA_ASSIGN_OR_RETURN(const Tensor replicated, CallLater(replicate, {&count, 1}));
  TESSERA_ASSIGN_OR_RETURN(std::vector<HandlePtr> handles,
                           count.session()->calls().CallCounted(what, calls, replicated.state()));
  std::vector<Tensor> out;
  for (HandlePtr& handle : handles) out.emplace_back(std::move(handle));
  return out;
}

// The stable order of a vector's elements; complex ones lie by their real parts, then by their imaginary ones.
absl::StatusOr<Tensor> OrderOf(const Tensor& x) {
  if (Kind(x.dtype()) != DTypeKind::kComplex) return Along(OpId::kArgSort, {x});
  TESSERA_ASSIGN_OR_RETURN(const Tensor imaginary, Plain(OpId::kImag, {x}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor by_imaginary, Along(OpId::kArgSort, {imaginary}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor real, Plain(OpId::kReal, {x}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor ordered, Along(OpId::kTakeAlongAxis, {real, by_imaginary}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor by_real, Along(OpId::kArgSort, {ordered}));
  return Along(OpId::kTakeAlongAxis, {by_imaginary, by_real});
}

// Whether each element of a sorted vector differs from the one before it; the first, where there is one, does.
absl::StatusOr<Tensor> StartsOf(const Tensor& ordered) {
  TESSERA_ASSIGN_OR_RETURN(const Tensor head, Head(ordered));
  TESSERA_ASSIGN_OR_RETURN(const Tensor same, Equal(head, head));
  TESSERA_ASSIGN_OR_RETURN(const Tensor other, NotEqual(head, head));
  TESSERA_ASSIGN_OR_RETURN(const Tensor begins, Plain(OpId::kLogicalOr, {same, other}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor later, Inner(ordered, 1, 0));
  TESSERA_ASSIGN_OR_RETURN(const Tensor earlier, Inner(ordered, 0, 1));
  TESSERA_ASSIGN_OR_RETURN(const Tensor differs, NotEqual(later, earlier));
  return Along(OpId::kConcat, {begins, differs});
}

// How long the runs are that begin at `places`: each ends where the next one begins, the last one behind all.
absl::StatusOr<Tensor> LengthsOf(const Tensor& starts, const Tensor& places) {
  TESSERA_ASSIGN_OR_RETURN(const Tensor every, Equal(starts, starts));
  TESSERA_ASSIGN_OR_RETURN(const Tensor ones, AsType(every, DType::kI64));
  const int64_t all[] = {0};
  TESSERA_ASSIGN_OR_RETURN(const Tensor number, Sum(ones, all, KeepDims::kYes));
  TESSERA_ASSIGN_OR_RETURN(const Tensor next, Inner(places, 1, 0));
  TESSERA_ASSIGN_OR_RETURN(const Tensor ends, Along(OpId::kConcat, {next, number}));
  return Subtract(ends, places);
}

// The number of each element's run, by element of x.
absl::StatusOr<Tensor> RunsOf(const Tensor& x, const Tensor& starts, const Tensor& order) {
  TESSERA_ASSIGN_OR_RETURN(const Tensor steps, AsType(starts, DType::kI64));
  TESSERA_ASSIGN_OR_RETURN(const Tensor sums, Along(OpId::kCumulativeSum, {steps}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor ranks, Subtract(sums, 1));
  TESSERA_ASSIGN_OR_RETURN(Tensor runs, Along(OpId::kScatter, {ranks, order, ranks}));
  if (x.rank() == 1) return runs;
  TESSERA_RETURN_IF_ERROR(x.AwaitSpec());
  return Reshape(runs, x.shape());
}

// Whether what each shard counts fits in an event. A mask that more workers share takes one number.
bool CanBeTold(const Tensor& mask) {
  const auto shards = static_cast<uint64_t>(mask.state()->KnownOrStandIn()->mesh.size());
  return shards * sizeof(int64_t) <= mask.session()->welcome().max_inline_bytes;
}

// Without lengths the greatest that x's shards along the dim can have.
absl::StatusOr<OpCall> FilterCall(const TensorSpec& x, int dim, absl::Span<const int64_t> lengths) {
  OpCall call;
  call.op = OpId::kFilter;
  call.attributes.Set(attribute::dims, {dim});
  call.attributes.Set(attribute::lengths,
                      lengths.empty() ? ShardLengths(x, dim) : std::vector<int64_t>(lengths.begin(), lengths.end()));
  return call;
}

std::string_view NameOfCaller() { return ThreadCalledAs() == CalledAs::kOp ? "index" : NameOf(ThreadCalledAs()); }

absl::StatusOr<Tensor> Counted(CountedCall call, const Tensor& counts) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<HandlePtr> handles,
                           counts.session()->calls().CallCounted(NameOfCaller(), {&call, 1}, counts.state()));
  return Tensor(std::move(handles[0]));
}

// A dim of the mask has the extent of x's or none: it then chooses nothing, as in the array API.
absl::Status CheckMask(const TensorSpec& x, const TensorSpec& mask) {
  if (mask.dtype != DType::kBool) {
    return DTypeError(StrCat("index: ", ToText(mask), " is no mask: its dtype is not bool"));
  }
  const auto fits_dim = [](int64_t of_mask, int64_t of_x) { return of_mask == of_x || of_mask == 0; };
  const bool fits =
      mask.rank() <= x.rank() && std::equal(mask.shape.begin(), mask.shape.end(), x.shape.begin(), fits_dim);
  if (fits) return absl::OkStatus();
  return IndexOutOfRangeError(StrCat("index: a mask of shape ", ToText(mask.shape), " for ", ToText(x)));
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> TakeFirst(absl::Span<const Tensor> tensors, const Tensor& count) {
  return First("take_first", tensors, count);
}

absl::StatusOr<Tensor> FindPlaces(const Tensor& mask) {
  TESSERA_ASSIGN_OR_RETURN(const Tensor flat, Flat(mask));
  if (CanBeTold(flat)) {
    TESSERA_ASSIGN_OR_RETURN(const Tensor counts, Plain(OpId::kShardCounts, {flat}));
    const auto places = [](absl::Span<const SpecPtr> specs, absl::Span<const int64_t> lengths) {
      return FilterCall(PlaceFilter(*specs[0], *specs[0], 0).x, 0, lengths);
    };
    return Counted({places, {flat.state()}}, counts);
  }
  // False elements are sorted behind the true ones, and left out.
  TESSERA_ASSIGN_OR_RETURN(const Tensor count, Along(OpId::kCountNonzero, {flat}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor is_not, Plain(OpId::kLogicalNot, {flat}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor keys, AsType(is_not, DType::kU8));
  TESSERA_ASSIGN_OR_RETURN(const Tensor order, Along(OpId::kArgSort, {keys}));
  TESSERA_ASSIGN_OR_RETURN(std::vector<Tensor> first, First(NameOfCaller(), {&order, 1}, count));
  return std::move(first[0]);
}

absl::StatusOr<std::vector<Tensor>> Nonzero(const Tensor& x) {
  const CalledAsScope scope(CalledAs::kNonzero);
  if (x.rank() == 0) {
    TESSERA_RETURN_IF_ERROR(x.AwaitSpec());
    return absl::InvalidArgumentError(StrCat("nonzero: ", ToText(x.spec()), " has no dims"));
  }
  TESSERA_ASSIGN_OR_RETURN(const Tensor mask, NotEqual(x, 0));
  TESSERA_ASSIGN_OR_RETURN(Tensor places, FindPlaces(mask));
  if (x.rank() == 1) return std::vector<Tensor>{std::move(places)};
  TESSERA_RETURN_IF_ERROR(x.AwaitSpec());
  std::vector<Tensor> out;
  for (int d = x.rank(); d-- > 0;) {
    const int64_t extent = std::max<int64_t>(1, x.shape()[d]);
    TESSERA_ASSIGN_OR_RETURN(Tensor index, Plain(OpId::kRemainder, {places, extent}));
    out.push_back(std::move(index));
    if (d == 0) break;
    TESSERA_ASSIGN_OR_RETURN(places, Plain(OpId::kFloorDivide, {places, extent}));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// The rows along `dim` where a vector is true. `check` is asked again when the specs are known.
static absl::StatusOr<Tensor> Filter(const Tensor& x, const Tensor& mask, int dim,
                                     const std::function<absl::Status()>& check) {
  if (!CanBeTold(x)) {
    TESSERA_ASSIGN_OR_RETURN(const Tensor places, FindPlaces(mask));
    const auto take = [check, dim](absl::Span<const SpecPtr>) -> absl::StatusOr<OpCall> {
      TESSERA_RETURN_IF_ERROR(check());
      OpCall call;
      call.op = OpId::kTakeAlongAxis;
      call.attributes.Set(attribute::dims, {dim});
      return call;
    };
    return CallLater(take, {x, places});
  }
  const auto count = [dim](absl::Span<const SpecPtr>) -> absl::StatusOr<OpCall> {
    OpCall call;
    call.op = OpId::kShardCounts;
    call.attributes.Set(attribute::dims, {dim});
    return call;
  };
  TESSERA_ASSIGN_OR_RETURN(const Tensor counts, CallLater(count, {mask, x}));
  const auto filter = [check, dim](absl::Span<const SpecPtr> specs,
                                   absl::Span<const int64_t> lengths) -> absl::StatusOr<OpCall> {
    TESSERA_RETURN_IF_ERROR(check());
    return FilterCall(PlaceFilter(*specs[0], *specs[1], dim).x, dim, lengths);
  };
  return Counted({filter, {x.state(), mask.state()}, dim}, counts);
}

absl::StatusOr<Tensor> MaskedSelect(const Tensor& x, const Tensor& mask) {
  if (!x.spec_pending() && !mask.spec_pending()) TESSERA_RETURN_IF_ERROR(CheckMask(x.spec(), mask.spec()));
  if (mask.rank() == 0 || mask.rank() > x.rank()) {
    TESSERA_RETURN_IF_ERROR(x.AwaitSpec());
    TESSERA_RETURN_IF_ERROR(mask.AwaitSpec());
    return IndexOutOfRangeError(StrCat("index: a mask of shape ", ToText(mask.shape()), " for ", ToText(x.spec())));
  }
  TESSERA_ASSIGN_OR_RETURN(const Tensor merged, MergeFirst(x, mask.rank()));
  TESSERA_ASSIGN_OR_RETURN(const Tensor flat, Flat(mask));
  // By when the counts are known both shapes are. While they are not, stand-ins stand for them.
  const auto check = [x, mask] {
    return x.spec_pending() || mask.spec_pending() ? absl::OkStatus() : CheckMask(x.spec(), mask.spec());
  };
  return Filter(merged, flat, 0, check);
}

absl::StatusOr<Tensor> FilterAlong(const Tensor& x, const Tensor& mask, int dim) {
  const auto check = [x, mask, dim]() -> absl::Status {
    if (x.spec_pending() || mask.spec_pending()) return absl::OkStatus();
    if (mask.shape()[0] == x.shape()[static_cast<size_t>(dim)] || mask.shape()[0] == 0) return absl::OkStatus();
    return IndexOutOfRangeError(
        StrCat(NameOfCaller(), ": a mask of shape ", ToText(mask.shape()), " for dim ", dim, " of ", ToText(x.spec())));
  };
  if (mask.rank() != 1 || dim < 0 || dim >= x.rank()) {
    return IndexOutOfRangeError(
        StrCat(NameOfCaller(), ": a mask of ", mask.rank(), " dims for dim ", dim, " of ", x.state()->SpecText()));
  }
  TESSERA_RETURN_IF_ERROR(check());
  return Filter(x, mask, dim, check);
}

absl::StatusOr<UniqueElements> UniqueAll(const Tensor& x, const UniqueWanted& wanted) {
  const CalledAsScope scope(CalledAs::kUniqueAll);
  TESSERA_ASSIGN_OR_RETURN(const Tensor flat, Flat(x));
  const DTypeKind kind = Kind(x.dtype());
  // An element that equals itself is found among the values; a NaN isn't.
  const bool is_found = kind == DTypeKind::kSigned || kind == DTypeKind::kUnsigned;
  // Numbers are sorted by themselves; complex ones have an order only by their parts.
  const bool is_complex = kind == DTypeKind::kComplex;
  std::optional<Tensor> order;
  if (is_complex || wanted.indices || (wanted.inverse && !is_found)) {
    TESSERA_ASSIGN_OR_RETURN(order, OrderOf(flat));
  }
  TESSERA_ASSIGN_OR_RETURN(const Tensor ordered,
                           is_complex ? Along(OpId::kTakeAlongAxis, {flat, *order}) : Along(OpId::kSort, {flat}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor starts, StartsOf(ordered));
  TESSERA_ASSIGN_OR_RETURN(Tensor values, FilterAlong(ordered, starts, 0));
  UniqueElements found = {std::move(values), std::nullopt, std::nullopt, std::nullopt};
  if (wanted.indices) {
    TESSERA_ASSIGN_OR_RETURN(found.indices, FilterAlong(*order, starts, 0));
  }
  if (wanted.counts) {
    TESSERA_ASSIGN_OR_RETURN(const Tensor places, FindPlaces(starts));
    TESSERA_ASSIGN_OR_RETURN(found.counts, LengthsOf(starts, places));
  }
  if (wanted.inverse) {
    TESSERA_ASSIGN_OR_RETURN(found.inverse,
                             is_found ? Plain(OpId::kSearchSorted, {found.values, x}) : RunsOf(x, starts, *order));
  }
  return found;
}

}  // namespace tessera
