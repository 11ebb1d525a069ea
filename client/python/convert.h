#pragma once

// Between Python objects and the client library's values, and errors as Python's classes. Everything
// here needs the interpreter lock.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session_impl.h"
#include "client/tensor.h"

namespace tessera::python {

namespace nb = nanobind;

struct Shown;  // which tensors share elements (view_module.h)

// The contents of the Python class Tensor. `x += y` rebinds the value.
class PyTensor {
 public:
  explicit PyTensor(Tensor value);
  PyTensor(PyTensor&& other) noexcept;
  PyTensor& operator=(PyTensor&&) = delete;
  ~PyTensor();

  // The value now. A view whose elements were written through another tensor takes them anew, which may raise.
  const Tensor& value() const {
    if (shown != nullptr) TakeAnew();
    return value_;
  }
  void set_value(Tensor value) { value_ = std::move(value); }

  mutable std::unique_ptr<Shown> shown;  // null: nobody was ever made a view of it, nor it one

 private:
  void TakeAnew() const;
  mutable Tensor value_;
};

// The Python side's parts that C++ calls: error classes by code, and hooks. Set once on import.
struct Hooks {
  nb::object error_classes;    // dict: code number, "dtype" or "index" -> class
  nb::object convert_operand;  // (tensor, object) -> Tensor | (dtype number, number) | NotImplemented
  nb::object warn_implicit;    // (text) -> None
  nb::object refuse_operand;   // (op, tensor, object) raises
  nb::object refuse_write;     // (op, view, key of an item or None) raises
  nb::object explain;          // (text of an Unavailable error) -> the text that is shown; none: as it is
};
Hooks& GetHooks();

// Runs a function that may block: other threads of Python go on. Calls within it have the site of the line that called.
template <typename Function>
auto Released(Function function) {
  const SiteScope site(SiteOfCall());
  nb::gil_scoped_release release;
  return function();
}

// Raises the Python error for a status; a pending Python exception (Ctrl-C) is raised as it is.
[[noreturn]] void Raise(const absl::Status& status);
void RaiseIfError(const absl::Status& status);
template <typename T>
T ValueOrRaise(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return *std::move(value);
}

// The value, whatever exception is pending: its caller raises that when it has put the value in its place.
template <typename T>
T ValueOfOk(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  return *std::move(value);
}

// Placements in Python are values of the classes Replicate, Shard and Partial of tessera/_placements.py. The module
// gives the one object that it has for a placement without sizes, so that equal ones are mostly identical. Set once on
// import.
struct PlacementClasses {
  nb::object replicate;             // a value
  nb::object shard;                 // the class: shard(dim) or shard(dim, sizes)
  std::vector<nb::object> shards;   // by dim
  std::vector<nb::object> partial;  // values, by reduce op
};
PlacementClasses& GetPlacementClasses();
nb::tuple PlacementsToPython(const Placements& placements);
Placements PlacementsFromPython(nb::handle placements);
nb::tuple ShapeToPython(absl::Span<const int64_t> shape);
Shape ShapeFromPython(nb::handle shape);
nb::list IntegersToPython(const std::vector<int64_t>& values);
Position PositionFromPython(nb::handle position);
nb::object PlanToPython(const PlanReport& plan);
nb::object ClusterToPython(const ClusterReport& report);
nb::dict ProfileToPython(const ProfileReport& report);

// An operand of an op: a Tensor, a plain number (weak), or (dtype number, number) (strong). False for
// anything else, with nothing raised. A tensor is pointed to: `object` outlives the operand.
bool OperandFromPython(nb::handle object, CallOperand* out);
Scalar ScalarFromPython(nb::handle object);

// Attributes of a call from keyword arguments: dtype shape mesh placements dims keepdims relabel index notation
// scalars.
OpCall CallFromPython(int op, const nb::kwargs& attributes);

}  // namespace tessera::python
