#pragma once

// Tensors of this device as Python has them (_tensor.py, _cell.py): made and read without a function of Python's.
//
// Law: a tensor has a cell, by which it finds its handle; a view has the steps from its cell's tensor to what it shows,
// too, and the handle that it showed last, with the cell's version then.

#include <c10/core/CPUAllocator.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <utility>

#include "calls_table.h"

namespace tessera::torch_device {

namespace py = pybind11;
using Sizes = c10::SmallVector<int64_t, 6>;

// Python gives these once: the classes of tensors and of cells, torch's dtypes by the catalog's numbers, and the
// functions of the built extension.
struct PythonSide {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* cell = nullptr;
  PyObject* dtypes = nullptr;
  const TesseraCalls* calls = nullptr;
};
inline PythonSide& GetPythonSide() {
  static PythonSide side;
  return side;
}

// The names of attributes that cells and tensors have.
struct Names {
  PyObject* const cell = PyUnicode_InternFromString("_cell");
  PyObject* const view = PyUnicode_InternFromString("_view");
  PyObject* const seen = PyUnicode_InternFromString("_seen");
  PyObject* const handle = PyUnicode_InternFromString("handle");
  PyObject* const version = PyUnicode_InternFromString("version");
  PyObject* const row_sum = PyUnicode_InternFromString("row_sum");
  PyObject* const load = PyUnicode_InternFromString("load");
  PyObject* const eps = PyUnicode_InternFromString("eps");
};
inline const Names& GetNames() {
  static const Names* const names = new Names();
  return *names;
}

// The interpreter's lock: torch lets go of it where it can, and backward has threads of its own.
struct Lock {
  const PyGILState_STATE state = PyGILState_Ensure();
  ~Lock() { PyGILState_Release(state); }
};

// While it lives, errors name the op, or the one that asked for it.
class Named {
 public:
  explicit Named(PyObject* func) : slot_(GetPythonSide().calls->op_slot()), is_outermost_(*slot_ == nullptr) {
    if (is_outermost_) *slot_ = func;
  }
  ~Named() {
    if (is_outermost_) *slot_ = nullptr;
  }

 private:
  PyObject** const slot_;
  const bool is_outermost_;
};

inline py::object Steal(PyObject* object) {
  if (object == nullptr) throw python_error();
  return py::reinterpret_steal<py::object>(object);
}
inline py::object Get(const py::handle& object, PyObject* name) { return Steal(PyObject_GetAttr(object.ptr(), name)); }
inline void Set(const py::handle& object, PyObject* name, const py::handle& value) {
  if (PyObject_SetAttr(object.ptr(), name, value.ptr()) < 0) throw python_error();
}

// `x * 2.0`: torch has made a tensor of the number. Nothing for other tensors.
inline std::optional<at::Scalar> WrappedNumber(const at::Tensor& tensor) {
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number() || !tensor.device().is_cpu()) return std::nullopt;
  switch (tensor.scalar_type()) {
    case at::kDouble: return *tensor.const_data_ptr<double>();
    case at::kLong: return *tensor.const_data_ptr<int64_t>();
    case at::kBool: return *tensor.const_data_ptr<bool>();
    default: return std::nullopt;
  }
}

// Strides and the offset of a tensor that isn't dense.
struct Layout {
  Sizes strides;
  int64_t offset = 0;
};

inline at::Tensor MakeImpl(c10::IntArrayRef sizes, at::ScalarType dtype, const Layout* layout) {
  constexpr auto kTessera = c10::DeviceType::PrivateUse1;
  const auto meta = at::scalarTypeToTypeMeta(dtype);
  c10::Storage storage(c10::Storage::use_byte_size_t(), c10::multiply_integers(sizes) * meta.itemsize(),
                       c10::DataPtr(nullptr, c10::Device(kTessera, 0)), /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
  c10::TensorImpl* const impl = made.unsafeGetTensorImpl();
  if (layout == nullptr) {
    impl->set_sizes_contiguous(sizes);
  } else {
    TORCH_CHECK(layout->strides.size() == sizes.size(), "make: ", sizes.size(), " dims with ", layout->strides.size(),
                " strides");
    impl->set_sizes_and_strides(sizes, layout->strides, layout->offset);
  }
  impl->set_python_dispatch(true);
  return made;
}

// torch.Tensor._make_wrapper_subclass of this device: without its argument parser, in a fifth of its time. Without a
// layout the tensor is dense.
inline py::object MakeTensor(PyTypeObject* type, c10::IntArrayRef sizes, at::ScalarType dtype, const Layout* layout) {
  return Steal(THPVariable_Wrap(MakeImpl(sizes, dtype, layout), type));
}

inline at::ScalarType ScalarTypeOf(PyObject* dtype) { return reinterpret_cast<THPDtype*>(dtype)->scalar_type; }

inline at::ScalarType ScalarTypeOf(uint32_t dtype) {
  PyObject* const found = PyList_GetItem(GetPythonSide().dtypes, static_cast<Py_ssize_t>(dtype));
  if (found == nullptr) throw python_error();
  return ScalarTypeOf(found);
}

inline py::object MakeCell(const py::handle& handle) {
  PyTypeObject* const type = GetPythonSide().cell;
  py::object cell = Steal(type->tp_alloc(type, 0));
  Set(cell, GetNames().handle, handle);
  return cell;
}

inline py::object MakeWithCell(c10::IntArrayRef sizes, at::ScalarType dtype, const py::object& cell) {
  py::object made = MakeTensor(GetPythonSide().tensor, sizes, dtype, nullptr);
  Set(made, GetNames().cell, cell);
  return made;
}

inline c10::IntArrayRef ShapeOf(const TesseraSpec& spec) { return {spec.shape, spec.rank}; }

// A tensor with a cell of its own.
inline py::object WrapHandle(const py::handle& handle, const TesseraSpec& spec) {
  return MakeWithCell(ShapeOf(spec), ScalarTypeOf(spec.dtype), MakeCell(handle));
}

// A tensor's handle, where it has one that is known now: `handle_of` of Python loads and takes the others. Null: none.
inline py::object KnownHandle(const py::handle& tensor) {
  const Names& names = GetNames();
  const py::object cell = Get(tensor, names.cell);
  if (Get(tensor, names.view).is_none()) {
    py::object handle = Get(cell, names.handle);
    return handle.is_none() ? py::object() : handle;
  }
  const py::object seen = Get(tensor, names.seen);
  if (!PyTuple_CheckExact(seen.ptr()) || PyTuple_GET_SIZE(seen.ptr()) != 2) return {};
  const py::object version = Get(cell, names.version);
  const int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(seen.ptr(), 0), version.ptr(), Py_EQ);
  if (same < 0) throw python_error();
  return same == 1 ? py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(seen.ptr(), 1)) : py::object();
}

// The handle, and its spec; nothing where one of them isn't known.
struct Known {
  py::object handle;
  TesseraSpec spec{};
};
inline std::optional<Known> FindKnown(const py::handle& tensor) {
  Known known;
  known.handle = KnownHandle(tensor);
  if (!known.handle || GetPythonSide().calls->spec_of(known.handle.ptr(), &known.spec) == 0) return std::nullopt;
  return known;
}

// Makes a call. No handle: it was refused.
inline Known Ask(const TesseraOpCall& call) {
  Known made;
  made.handle = py::reinterpret_steal<py::object>(GetPythonSide().calls->call(&call, &made.spec));
  if (!made.handle && PyErr_Occurred() != nullptr) throw python_error();
  return made;
}

// Cell.bind: the tensor and all that share its cell have the value from here on.
inline void Bind(const py::handle& cell, const py::handle& handle) {
  const Names& names = GetNames();
  Set(cell, names.handle, handle);
  const auto one = py::reinterpret_steal<py::object>(PyLong_FromLong(1));
  Set(cell, names.version, Steal(PyNumber_Add(Get(cell, names.version).ptr(), one.ptr())));
  Set(cell, names.row_sum, py::none());
}

}  // namespace tessera::torch_device
