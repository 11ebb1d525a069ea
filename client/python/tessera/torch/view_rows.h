#pragma once

// The rows of views by their names, each from torch's arguments to what the view is (views.h).

#include <functional>
#include <limits>

#include "views.h"

namespace tessera::torch_device {

// The arguments after the tensor. One that is left out, or None, is its default.
class ViewArguments {
 public:
  ViewArguments(PyObject* const* values, Py_ssize_t count) : values_(values), count_(count) {}
  bool Has(Py_ssize_t i) const { return i < count_ && values_[i] != Py_None; }
  int64_t Integer(Py_ssize_t i) const { return IntegerOf(At(i)); }
  int64_t Integer(Py_ssize_t i, int64_t absent) const { return Has(i) ? Integer(i) : absent; }
  // A list of integers, or one.
  Sizes Integers(Py_ssize_t i) const {
    if (PyLong_Check(At(i))) return {Integer(i)};
    const auto sequence = Steal(PySequence_Fast(At(i), "takes a list of integers"));
    Sizes out;
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(sequence.ptr()); ++at) {
      out.push_back(IntegerOf(PySequence_Fast_GET_ITEM(sequence.ptr(), at)));
    }
    return out;
  }

 private:
  PyObject* At(Py_ssize_t i) const {
    TORCH_CHECK_TYPE(i < count_, "a view takes ", i + 1, " arguments after the tensor, not ", count_);
    return values_[i];
  }
  static int64_t IntegerOf(PyObject* object) {
    const auto index = Steal(PyNumber_Index(object));
    const int64_t value = PyLong_AsLongLong(index.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) throw python_error();
    return value;
  }
  PyObject* const* values_;
  Py_ssize_t count_;
};

// With the extent that -1 stands for.
inline Sizes InferredShape(const char* op, const Viewed& x, Sizes shape) {
  const int64_t own = x.tensor.numel();
  int64_t rest = 1;
  int64_t* inferred = nullptr;
  bool fits = true;
  for (int64_t& extent : shape) {
    if (extent != -1) {
      rest *= extent;
      continue;
    }
    fits = fits && inferred == nullptr;
    inferred = &extent;
  }
  const Sizes asked = shape;
  if (inferred != nullptr && fits) {
    fits = rest != 0 && own % rest == 0;
    if (fits) *inferred = own / rest;
  } else {
    fits = fits && rest == own;
  }
  TORCH_CHECK(fits, op, ": shape '", c10::IntArrayRef(asked), "' is invalid for input of size ", own, ": ", x.Text());
  return shape;
}

inline py::object View(const Viewed& x, const ViewArguments& given) {
  Sizes shape = InferredShape("view", x, given.Integers(0));
  std::optional<Sizes> strides;
  if (!x.tensor.is_contiguous()) {
    const auto found = at::detail::computeStride(x.sizes(), x.strides(), c10::IntArrayRef(shape));
    TORCH_CHECK(found.has_value(),
                "view size is not compatible with input tensor's size and stride (at least one dimension spans across "
                "two contiguous subspaces). Use .reshape(...) instead: ",
                x.Text(), " as ", c10::IntArrayRef(shape));
    strides.emplace(found->begin(), found->end());
  }
  return Show(x, {StepKind::kReshape, std::move(shape), std::move(strides), x.offset()});
}

inline py::object ReshapeAlias(const Viewed& x, const ViewArguments& given) {
  return Show(x, {StepKind::kReshape, InferredShape("reshape", x, given.Integers(0)), given.Integers(1), x.offset()});
}

inline py::object Unsqueeze(const Viewed& x, const ViewArguments& given) {
  const int64_t dim = x.Dim("unsqueeze", given.Integer(0), 1);
  Sizes strides = StridesOf(x);
  strides.insert(strides.begin() + dim, dim < x.rank() ? x.sizes()[dim] * strides[dim] : 1);
  Sizes items = WholeIndex(x);
  const int64_t added[] = {kNew, 0, 1, 1};
  items.insert(items.begin() + 4 * dim, std::begin(added), std::end(added));
  return Show(x, {StepKind::kIndex, std::move(items), std::move(strides), x.offset()});
}

inline py::object Squeeze(const Viewed& x, const ViewArguments& given) {
  std::vector<bool> is_asked(static_cast<size_t>(x.rank()), !given.Has(0));
  if (given.Has(0)) {
    for (const int64_t dim : given.Integers(0)) {
      const int64_t at = x.Dim("squeeze", dim);
      if (at < x.rank()) is_asked[at] = true;
    }
  }
  Sizes items = WholeIndex(x), strides;
  for (int64_t dim = 0; dim < x.rank(); ++dim) {
    if (is_asked[dim] && x.sizes()[dim] == 1) {
      SetItem(items, dim, kInteger, 0, 1, 1);
    } else {
      strides.push_back(x.strides()[dim]);
    }
  }
  if (static_cast<int64_t>(strides.size()) == x.rank()) return Alias(x);
  return Show(x, {StepKind::kIndex, std::move(items), std::move(strides), x.offset()});
}

inline py::object Expand(const Viewed& x, const ViewArguments& given) {
  Sizes shape = given.Integers(0);
  const int64_t extra = static_cast<int64_t>(shape.size()) - x.rank();
  TORCH_CHECK(extra >= 0, "expand: the number of sizes provided (", shape.size(),
              ") must be at least the number of dims of ", x.Text());
  Sizes strides(shape.size(), 0);
  for (int64_t dim = 0; dim < x.rank(); ++dim) {
    const int64_t own = x.sizes()[dim];
    int64_t& extent = shape[dim + extra];
    if (extent == -1) extent = own;
    TORCH_CHECK(own == 1 || own == extent, "expand: size ", extent, " at dim ", dim + extra, " doesn't fit extent ",
                own, " of ", x.Text());
    if (own == extent) strides[dim + extra] = x.strides()[dim];
  }
  return Show(x, {StepKind::kExpand, std::move(shape), std::move(strides), x.offset()});
}

inline py::object Permuted(const Viewed& x, Sizes order) {
  Sizes strides;
  for (const int64_t dim : order) strides.push_back(x.strides()[dim]);
  return Show(x, {StepKind::kPermute, std::move(order), std::move(strides), x.offset()});
}

inline py::object Permute(const Viewed& x, const ViewArguments& given) {
  const Sizes asked = given.Integers(0);
  Sizes order;
  for (const int64_t dim : asked) order.push_back(x.Dim("permute", dim));
  Sizes sorted = order;
  std::sort(sorted.begin(), sorted.end());
  const bool is_each = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  TORCH_CHECK_VALUE(is_each && static_cast<int64_t>(order.size()) == x.rank(), "permute: ", c10::IntArrayRef(asked),
                    " is no permutation of the dims of ", x.Text());
  return Permuted(x, std::move(order));
}

inline py::object Transpose(const Viewed& x, const ViewArguments& given) {
  const int64_t a = x.Dim("transpose", given.Integer(0)), b = x.Dim("transpose", given.Integer(1));
  if (a == b) return Alias(x);
  Sizes order;
  for (int64_t dim = 0; dim < x.rank(); ++dim) order.push_back(dim == a ? b : dim == b ? a : dim);
  return Permuted(x, std::move(order));
}

inline py::object T(const Viewed& x, const ViewArguments&) {
  TORCH_CHECK(x.rank() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", x.Text());
  return x.rank() == 2 ? Permuted(x, {1, 0}) : Alias(x);
}

// Python's rule for a slice's bounds.
inline int64_t Bound(int64_t bound, int64_t extent) {
  return std::clamp<int64_t>(bound < 0 ? bound + extent : bound, 0, extent);
}

inline py::object Slice(const Viewed& x, const ViewArguments& given) {
  const int64_t dim = x.Dim("slice", given.Integer(0, 0)), step = given.Integer(3, 1);
  TORCH_CHECK(dim < x.rank(), "slice() cannot be applied to a 0-dim tensor: ", x.Text());
  TORCH_CHECK(step > 0, "slice step must be positive: ", step, " of ", x.Text());
  const int64_t extent = x.sizes()[dim];
  const int64_t first = Bound(given.Integer(1, 0), extent);
  const int64_t last = Bound(given.Integer(2, std::numeric_limits<int64_t>::max()), extent);
  const int64_t size = last <= first ? 0 : (last - first - 1) / step + 1;
  if (size == extent && step == 1) return Alias(x);
  Sizes items = WholeIndex(x), strides = StridesOf(x);
  SetItem(items, dim, kSlice, first, size, size > 1 ? step : 1);
  const int64_t offset = x.tensor.storage_offset() + first * strides[dim];
  strides[dim] *= step;
  return Show(x, {StepKind::kIndex, std::move(items), std::move(strides), offset});
}

inline py::object Select(const Viewed& x, const ViewArguments& given) {
  const int64_t dim = x.Dim("select", given.Integer(0)), index = given.Integer(1);
  TORCH_CHECK_INDEX(x.rank() > 0, "select() cannot be applied to a 0-dim tensor: ", x.Text());
  const int64_t extent = x.sizes()[dim];
  TORCH_CHECK_INDEX(index >= -extent && index < extent, "select(): index ", index, " out of range for dim ", dim,
                    " of ", x.Text());
  const int64_t at = index < 0 ? index + extent : index;
  Sizes items = WholeIndex(x), strides = StridesOf(x);
  SetItem(items, dim, kInteger, at, 1, 1);
  const int64_t offset = x.tensor.storage_offset() + at * strides[dim];
  strides.erase(strides.begin() + dim);
  return Show(x, {StepKind::kIndex, std::move(items), std::move(strides), offset});
}

inline py::object Aliased(const Viewed& x, const ViewArguments&) { return Alias(x); }

using ViewRow = py::object (*)(const Viewed&, const ViewArguments&);

// row(x, ...) of Python: the C function of one row. The keyword `implicit` of expand says nothing here.
template <ViewRow row>
PyObject* RunViewRow(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject*) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count > 0, "a view is of a tensor");
  const Viewed x(args[0]);
  return row(x, {args + 1, count - 1}).release().ptr();
  END_HANDLE_TH_ERRORS
}

template <ViewRow row>
PyMethodDef MethodOf(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&RunViewRow<row>)), METH_FASTCALL | METH_KEYWORDS,
          nullptr};
}

// The rows by their names.
inline py::dict ViewRows() {
  static PyMethodDef rows[] = {MethodOf<View>("view"),           MethodOf<ReshapeAlias>("reshape_alias"),
                               MethodOf<Unsqueeze>("unsqueeze"), MethodOf<Squeeze>("squeeze"),
                               MethodOf<Expand>("expand"),       MethodOf<Permute>("permute"),
                               MethodOf<Transpose>("transpose"), MethodOf<T>("t"),
                               MethodOf<Slice>("slice"),         MethodOf<Select>("select"),
                               MethodOf<Aliased>("alias")};
  py::dict out;
  for (PyMethodDef& row : rows) out[row.ml_name] = Steal(PyCFunction_New(&row, nullptr));
  return out;
}

}  // namespace tessera::torch_device
