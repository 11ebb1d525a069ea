#pragma once

// Ops whose tensors are all of this device, from torch's dispatcher to their row in Python at once.
//
// torch's own way to __torch_dispatch__ looks for overloads, makes lists of types and of arguments and looks at their
// defaults by way of their types; that is two thirds of what a small op costs. An op that is registered here has a
// kernel of its own in the place of that way: where no mode is active, all tensors are of the class
// `tessera.torch.Tensor` and the other arguments are numbers, lists of these or nothing, the kernel calls the row;
// where the row is one call of the catalog, the kernel makes that call itself (one_call.h). All else goes torch's way,
// by the kernel that was there before, and so do other classes of tensors.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/tensor_memoryformats.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "one_call.h"

namespace tessera::torch_device {

using torch::jit::Stack;

// Python gives these once: the function to call where a row refuses its operands, the classes of errors that say so,
// and the function that binds a tensor to another value.
struct Dispatching {
  PyObject* again = nullptr;
  PyObject* refusals = nullptr;
  PyObject* rebind = nullptr;
};
inline Dispatching& GetDispatching() {
  static Dispatching dispatching;
  return dispatching;
}

class RowKernel final : public c10::OperatorKernel {
 public:
  // `func` is the overload as Python has it, which has its row as `tessera_row`; `declared`, the call that it is, or
  // None.
  RowKernel(const c10::OperatorHandle& op, PyObject* func, const py::object& declared)
      : others_(op.getComputedKernelForDispatchKey(c10::DispatchKey::Python)), func_(func) {
    Py_INCREF(func);
    if (!declared.is_none()) {
      one_call_.emplace(op.schema(), py::cast<py::tuple>(declared));
      name_ = Steal(PyObject_Str(func));
    }
    for (const c10::Argument& argument : op.schema().arguments()) {
      PyObject* const name = argument.kwarg_only() ? PyUnicode_InternFromString(argument.name().c_str()) : nullptr;
      arguments_.push_back({argument.default_value(), name, MeaningOf(argument.real_type())});
    }
  }

  static bool Takes(const c10::FunctionSchema& schema) {
    if (schema.is_vararg() || schema.is_varret() || schema.returns().empty()) return false;
    for (const c10::Argument& result : schema.returns()) {
      if (result.real_type()->kind() != c10::TypeKind::TensorType) return false;
    }
    return true;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (!RunsRow(op, stack)) others_.callBoxed(op, keys, stack);
  }

 private:
  // A number means itself, or is one of torch's formats of memory or dtypes; layouts and devices go torch's way.
  enum class Meaning : uint8_t { kItself = 0, kMemoryFormat = 1, kDtype = 2, kOther = 3 };
  struct Argument {
    std::optional<c10::IValue> absent;  // its default
    PyObject* name;                     // null: it has a place
    Meaning meaning;
  };

  static Meaning MeaningOf(const c10::TypePtr& type) {
    switch (type->kind()) {
      case c10::TypeKind::OptionalType: return MeaningOf(type->castRaw<c10::OptionalType>()->getElementType());
      case c10::TypeKind::ListType: return MeaningOf(type->castRaw<c10::ListType>()->getElementType());
      case c10::TypeKind::TensorType:
      case c10::TypeKind::NumberType:
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
      case c10::TypeKind::FloatType:
      case c10::TypeKind::BoolType: return Meaning::kItself;
      case c10::TypeKind::MemoryFormatType: return Meaning::kMemoryFormat;
      case c10::TypeKind::ScalarTypeType: return Meaning::kDtype;
      default: return Meaning::kOther;
    }
  }

  // Null without an error: it isn't one that this way takes.
  static PyObject* ToPython(const c10::IValue& value, Meaning meaning) {
    if (meaning == Meaning::kItself || value.isNone()) return ToPython(value);
    if (meaning == Meaning::kOther || !value.isInt()) return nullptr;
    PyObject* const shared = meaning == Meaning::kDtype
                                 ? reinterpret_cast<PyObject*>(torch::getTHPDtype(value.toScalarType()))
                                 : torch::utils::getTHPMemoryFormat(value.toMemoryFormat());
    Py_XINCREF(shared);
    return shared;
  }
  static PyObject* ToPython(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) Py_RETURN_NONE;
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return NumberOf(tensor);
      PyObject* const object = THPVariable_Wrap(tensor);
      if (object == nullptr) throw python_error();
      if (Py_TYPE(object) == GetPythonSide().tensor) return object;
      Py_DECREF(object);
      return nullptr;
    }
    if (value.isNone()) Py_RETURN_NONE;
    if (value.isInt()) return PyLong_FromLongLong(value.toInt());
    if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
    if (value.isBool()) return PyBool_FromLong(value.toBool() ? 1 : 0);
    if (value.isIntList()) return ToList(value.toIntVector(), [](int64_t one) { return PyLong_FromLongLong(one); });
    if (value.isBoolList()) return ToList(value.toBoolList().vec(), [](bool one) { return PyBool_FromLong(one); });
    if (value.isTensorList())
      return ToList(value.toTensorVector(), [](const at::Tensor& one) { return ToPython(one); });
    return nullptr;
  }

  static PyObject* NumberOf(const at::Tensor& tensor) {
    const std::optional<at::Scalar> number = WrappedNumber(tensor);
    if (!number.has_value()) return nullptr;
    if (number->isFloatingPoint()) return PyFloat_FromDouble(number->toDouble());
    return number->isBoolean() ? PyBool_FromLong(number->toBool() ? 1 : 0) : PyLong_FromLongLong(number->toLong());
  }

  template <class Values, class Convert>
  static PyObject* ToList(const Values& values, Convert convert) {
    PyObject* const list = PyList_New(static_cast<Py_ssize_t>(values.size()));
    if (list == nullptr) return nullptr;
    for (size_t i = 0; i < values.size(); ++i) {
      PyObject* const one = convert(values[i]);
      if (one == nullptr) {
        Py_DECREF(list);
        return nullptr;
      }
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), one);
    }
    return list;
  }

  // The arguments of a call, as Python takes them.
  struct Given {
    c10::SmallVector<PyObject*, 8> objects;  // those with a place, and then the others
    c10::SmallVector<PyObject*, 4> names;    // of the others
    ~Given() {
      for (PyObject* const one : objects) Py_DECREF(one);
    }
  };

  // As torch gives them: defaults at the end and those of arguments with a name are left out.
  bool Convert(const c10::IValue* values, Given& given) const {
    size_t count = arguments_.size();
    while (count > 0 && (arguments_[count - 1].name != nullptr || IsAbsent(values, count - 1))) --count;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (i >= count && (arguments_[i].name == nullptr || IsAbsent(values, i))) continue;
      PyObject* const object = ToPython(values[i], arguments_[i].meaning);
      if (object == nullptr) return false;
      given.objects.push_back(object);
      if (arguments_[i].name != nullptr) given.names.push_back(arguments_[i].name);
    }
    return true;
  }

  bool IsAbsent(const c10::IValue* values, size_t i) const {
    const std::optional<c10::IValue>& absent = arguments_[i].absent;
    if (!absent.has_value()) return false;
    return absent->isNone() ? values[i].isNone() : !values[i].isNone() && *absent == values[i];
  }

  bool RunsRow(const c10::OperatorHandle& op, Stack* stack) const {
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return false;
    const size_t count = arguments_.size();
    const c10::IValue* const values = stack->data() + (stack->size() - count);
    const Lock lock;
    if (one_call_.has_value() && RunsOneCall(stack, values)) return true;
    py::object result;
    {
      Given given;
      if (!Convert(values, given)) {
        PyErr_Clear();
        return false;
      }
      // Within an op autograd and what else is above Python's key is done already.
      const c10::impl::ExcludeDispatchKeyGuard guard(kAbovePython);
      result = Call(given);
    }
    torch::jit::drop(*stack, count);
    PushResults(op, result, stack);
    return true;
  }

  bool RunsOneCall(Stack* stack, const c10::IValue* values) const {
    Results results;
    {
      const Named named(func_);
      if (!one_call_->Run(values, name_.ptr(), GetDispatching().rebind, results)) return false;
    }
    torch::jit::drop(*stack, arguments_.size());
    for (at::Tensor& result : results) stack->emplace_back(std::move(result));
    return true;
  }

  py::object Call(const Given& given) const {
    static PyObject* const attribute = PyUnicode_InternFromString("tessera_row");
    const Named named(func_);
    const auto row = py::reinterpret_steal<py::object>(PyObject_GetAttr(func_, attribute));
    py::object result;
    if (row) {
      const size_t places = given.objects.size() - given.names.size();
      const py::tuple names = NamesOf(given);
      result = py::reinterpret_steal<py::object>(
          PyObject_Vectorcall(row.ptr(), given.objects.data(), places, given.names.empty() ? nullptr : names.ptr()));
      if (!result && PyErr_ExceptionMatches(GetDispatching().refusals)) result = Again(given, row, names);
    }
    if (!result) throw python_error();
    return result;
  }

  static py::tuple NamesOf(const Given& given) {
    if (given.names.empty()) return py::tuple();
    py::tuple names(given.names.size());
    for (size_t i = 0; i < given.names.size(); ++i) names[i] = py::handle(given.names[i]);
    return names;
  }

  // again(func, row, args, kwargs, error), or its error.
  py::object Again(const Given& given, const py::object& row, const py::tuple& names) const {
    PyObject *type = nullptr, *error = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != nullptr) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    const auto refusal = py::reinterpret_steal<py::object>(error);
    const size_t places = given.objects.size() - given.names.size();
    py::tuple args(places);
    for (size_t i = 0; i < places; ++i) args[i] = py::handle(given.objects[i]);
    py::dict kwargs;
    for (size_t i = places; i < given.objects.size(); ++i) kwargs[names[i - places]] = py::handle(given.objects[i]);
    return py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
        GetDispatching().again, func_, row.ptr(), args.ptr(), kwargs.ptr(), refusal.ptr(), nullptr));
  }

  static void PushResults(const c10::OperatorHandle& op, const py::object& result, Stack* stack) {
    const size_t count = op.schema().returns().size();
    if (count == 1) {
      stack->emplace_back(ToTensor(op, result.ptr()));
      return;
    }
    const auto results = py::reinterpret_steal<py::object>(PySequence_Tuple(result.ptr()));
    if (!results) throw python_error();
    TORCH_CHECK(static_cast<size_t>(PyTuple_GET_SIZE(results.ptr())) == count, op.schema().name(), ": the row gave ",
                PyTuple_GET_SIZE(results.ptr()), " results, not ", count);
    for (size_t i = 0; i < count; ++i) {
      stack->emplace_back(ToTensor(op, PyTuple_GET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i))));
    }
  }

  static at::Tensor ToTensor(const c10::OperatorHandle& op, PyObject* object) {
    if (object == Py_None) return {};
    TORCH_CHECK(THPVariable_Check(object), op.schema().name(), ": the row gave a ", Py_TYPE(object)->tp_name,
                ", not a tensor");
    return THPVariable_Unpack(object);
  }

  static constexpr auto kAbovePython = c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^
                                       (c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python) |
                                        c10::DispatchKeySet(c10::DispatchKey::Python));

  c10::SafeKernelFunction others_;
  PyObject* func_;
  std::optional<OneCall> one_call_;
  py::object name_;  // of the overload, for errors
  std::vector<Argument> arguments_;
};

}  // namespace tessera::torch_device
