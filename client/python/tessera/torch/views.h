#pragma once

// Rows of views: functions that Python sees as its own, and that enter none of its functions.
//
// A view is a step from what a tensor shows (_cell.py), one call of the catalog, and the strides and the offset that
// torch has for it, by which code sees what a view is of:
//
//   x f32[3,4], strides (4, 1)    select(x, 1, 2)   Index [0:3, 2]      f32[3], strides (4,), offset 2
//                                 transpose(x, 0, 1) Permute [1, 0]     f32[4,3], strides (1, 4)

#include <ATen/TensorUtils.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cells.h"

namespace tessera::torch_device {

// The steps, each with its op of the catalog and the attribute that has the step's values.
enum class StepKind : uint8_t { kReshape = 0, kPermute = 1, kIndex = 2, kExpand = 3 };
constexpr size_t kStepKinds = 4;
struct StepClass {
  PyTypeObject* type = nullptr;
  PyObject* field = nullptr;  // of the class, which has the values
  uint32_t op = 0;
  uint32_t attribute = 0;
};
// Python gives these once: the classes, and its handle_of.
struct ViewParts {
  StepClass steps[kStepKinds];
  PyObject* handle_of = nullptr;
};
inline ViewParts& GetViewParts() {
  static ViewParts parts;
  return parts;
}

// The tensor that is viewed.
struct Viewed {
  explicit Viewed(PyObject* given) : object(py::reinterpret_borrow<py::object>(given)) {
    const int is_here = PyObject_IsInstance(given, reinterpret_cast<PyObject*>(GetPythonSide().tensor));
    if (is_here < 0) throw python_error();
    TORCH_CHECK_TYPE(is_here == 1, "a view is of a tensor on tessera, not of a ", Py_TYPE(given)->tp_name);
    tensor = THPVariable_Unpack(given);
    steps = Get(object, GetNames().view);
  }
  c10::IntArrayRef sizes() const { return tensor.sizes(); }
  c10::IntArrayRef strides() const { return tensor.strides(); }
  int64_t rank() const { return tensor.dim(); }
  int64_t offset() const { return steps.is_none() ? 0 : tensor.storage_offset(); }
  std::string Text() const { return py::repr(object); }
  // Not negative.
  int64_t Dim(const char* op, int64_t dim, int64_t extra = 0) const {
    const int64_t most = std::max<int64_t>(rank() + extra, 1);
    TORCH_CHECK_INDEX(dim >= -most && dim < most, op, ": Dimension out of range (expected to be in range of [", -most,
                      ", ", most - 1, "], but got ", dim, "): ", Text());
    return dim < 0 ? dim + most : dim;
  }

  py::object object;
  at::Tensor tensor;
  py::object steps;  // a tuple, or None
};

// A step, and how torch sees what it shows; strides that are left out are those of a dense tensor.
struct ViewPlan {
  StepKind kind;
  Sizes values;  // of an index four for each item: kind, start, size, step
  std::optional<Sizes> strides;
  int64_t offset;
};

constexpr int64_t kSlice = 0, kInteger = 1, kNew = 2;

// The whole of each dim.
inline Sizes WholeIndex(const Viewed& x) {
  Sizes items;
  for (const int64_t extent : x.sizes()) items.append({kSlice, 0, extent, 1});
  return items;
}
inline void SetItem(Sizes& items, int64_t dim, int64_t kind, int64_t start, int64_t size, int64_t step) {
  const int64_t values[] = {kind, start, size, step};
  std::copy(std::begin(values), std::end(values), items.begin() + 4 * dim);
}
inline Sizes StridesOf(const Viewed& x) { return {x.strides().begin(), x.strides().end()}; }

inline py::object ToList(c10::IntArrayRef values) {
  py::list out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = py::int_(values[i]);
  return std::move(out);
}

inline py::object MakeStep(const ViewPlan& plan) {
  const StepClass& kind = GetViewParts().steps[static_cast<size_t>(plan.kind)];
  py::object values;
  if (plan.kind == StepKind::kIndex) {
    py::list items(plan.values.size() / 4);
    for (size_t i = 0; i < items.size(); ++i) {
      const int64_t* const item = plan.values.data() + 4 * i;
      items[i] = py::make_tuple(item[0], item[1], item[2], item[3]);
    }
    values = std::move(items);
  } else {
    values = ToList(plan.values);
  }
  py::object step = Steal(kind.type->tp_alloc(kind.type, 0));
  Set(step, kind.field, values);
  return step;
}

// The result of the step; where the call is refused, the step itself has the error.
inline Known Take(const ViewPlan& plan, const py::object& step, const py::object& handle) {
  const StepClass& kind = GetViewParts().steps[static_cast<size_t>(plan.kind)];
  const TesseraOperand operand = {handle.ptr(), 0, 0, 0};
  const TesseraAttribute attribute = {kind.attribute, 0, 0, nullptr, plan.values.data(), plan.values.size()};
  Known shown = Ask({kind.op, &operand, 1, &attribute, 1, nullptr, 0});
  if (shown.handle) return shown;
  shown.handle = step.attr("take")(handle);
  if (GetPythonSide().calls->show(shown.handle.ptr(), &shown.spec) == 0) throw python_error();
  return shown;
}

// Within inference_mode, too, a tensor that autograd knows has views that it knows.
inline py::object MakeBeside(const Viewed& base, c10::IntArrayRef sizes, at::ScalarType dtype, const Layout* layout) {
  std::optional<c10::InferenceMode> recorded;
  if (c10::InferenceMode::is_enabled() && !base.tensor.is_inference()) recorded.emplace(false);
  return MakeTensor(GetPythonSide().tensor, sizes, dtype, layout);
}

inline Sizes DenseStrides(c10::IntArrayRef sizes) {
  Sizes strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

inline py::object Show(const Viewed& x, const ViewPlan& plan) {
  const Names& names = GetNames();
  py::object handle = KnownHandle(x.object);
  if (!handle) handle = Steal(PyObject_CallOneArg(GetViewParts().handle_of, x.object.ptr()));
  const py::object step = MakeStep(plan);
  const Known shown = Take(plan, step, handle);
  std::optional<Layout> layout;
  if (plan.strides.has_value()) {
    layout = Layout{*plan.strides, plan.offset};
  } else if (plan.offset != 0) {
    layout = Layout{DenseStrides(ShapeOf(shown.spec)), plan.offset};
  }
  py::object out =
      MakeBeside(x, ShapeOf(shown.spec), ScalarTypeOf(shown.spec.dtype), layout.has_value() ? &*layout : nullptr);
  const py::object cell = Get(x.object, names.cell);
  Set(out, names.cell, cell);
  const py::object last = py::make_tuple(step);
  Set(out, names.view, x.steps.is_none() ? last : Steal(PySequence_Concat(x.steps.ptr(), last.ptr())));
  Set(out, names.seen, py::make_tuple(Get(cell, names.version), shown.handle));
  return out;
}

// Another tensor of the same cell and steps.
inline py::object Alias(const Viewed& x) {
  const Names& names = GetNames();
  const Layout layout = {StridesOf(x), x.offset()};
  py::object out = MakeBeside(x, x.sizes(), x.tensor.scalar_type(), x.steps.is_none() ? nullptr : &layout);
  Set(out, names.cell, Get(x.object, names.cell));
  if (!x.steps.is_none()) {
    Set(out, names.view, x.steps);
    Set(out, names.seen, Get(x.object, names.seen));
  }
  return out;
}

}  // namespace tessera::torch_device
