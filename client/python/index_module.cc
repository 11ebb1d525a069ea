#include "client/python/index_module.h"

#include <utility>

#include "client/ops.h"
#include "client/python/view_module.h"

namespace tessera::python {
namespace {

// A number of NumPy's.
bool IsNumPyInteger(PyObject* object) {
  static PyObject* const integer = nb::module_::import_("numpy").attr("integer").inc_ref().ptr();
  return PyObject_IsInstance(object, integer) == 1;
}

bool KeyFromPython(PyObject* item, IndexKey* key) {
  if (item == Py_None || item == Py_Ellipsis) {
    key->kind = item == Py_None ? IndexKey::Kind::kNewAxis : IndexKey::Kind::kEllipsis;
    return true;
  }
  if (PySlice_Check(item)) {
    Py_ssize_t start = 0, stop = 0, step = 0;
    if (PySlice_Unpack(item, &start, &stop, &step) < 0) {
      PyErr_Clear();
      return false;
    }
    *key = {IndexKey::Kind::kSlice, start, stop, step};
    return true;
  }
  if (!PyLong_CheckExact(item) && !IsNumPyInteger(item)) return false;
  const Py_ssize_t number = PyNumber_AsSsize_t(item, nullptr);  // beyond 64 bits it is the last one there is
  *key = {IndexKey::Kind::kInteger, number, 0, 1};
  return true;
}

// None where the index has other items than KeysFromPython knows.
nb::object GetItemOf(PyTensor& x, nb::handle key) {
  const std::optional<IndexKeys> keys = KeysFromPython(key);
  if (!keys.has_value()) return nb::none();
  PyTensor item{ValueOrRaise(GetItem(x.value(), *keys))};
  MarkIndex(x, *keys, nb::borrow(key), item);
  return nb::cast(std::move(item));
}

// (kind, start, size, step) for each item, or None.
nb::object NormaliseOf(nb::handle key, nb::handle shape) {
  const std::optional<IndexKeys> keys = KeysFromPython(key);
  if (!keys.has_value()) return nb::none();
  nb::list out;
  for (const IndexItem& item : ValueOrRaise(NormaliseIndex(*keys, ShapeFromPython(shape)))) {
    out.append(nb::make_tuple(static_cast<int>(item.kind), item.start, item.size, item.step));
  }
  return out;
}

}  // namespace

std::optional<IndexKeys> KeysFromPython(nb::handle key) {
  IndexKeys keys;
  const bool is_tuple = PyTuple_Check(key.ptr());
  const Py_ssize_t count = is_tuple ? PyTuple_Size(key.ptr()) : 1;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!KeyFromPython(is_tuple ? PyTuple_GetItem(key.ptr(), i) : key.ptr(), &keys.emplace_back())) return std::nullopt;
  }
  return keys;
}

void DefineIndexing(nb::module_& module) {
  module.def("get_item", &GetItemOf, nb::arg(), nb::arg().none());
  module.def("normalise_index", &NormaliseOf, nb::arg().none(), nb::arg());
  module.def("reshape", [](PyTensor& x, nb::handle shape) {
    const Shape wanted = ShapeFromPython(shape);
    PyTensor reshaped{ValueOrRaise(Reshape(x.value(), wanted))};
    MarkReshape(x, wanted, reshaped);
    return reshaped;
  });
}

}  // namespace tessera::python
