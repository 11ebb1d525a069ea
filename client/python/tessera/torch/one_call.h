#pragma once

// Rows that are one call of the catalog, from torch's arguments to the tensor without a function of Python's.
//
// Python says of a row which call it is (_one_call.py): the op, the dtypes for which it is that, and which of torch's
// arguments are attributes. Tensors and numbers without a default are the operands, in their order; all other arguments
// have to be their defaults. Where something is otherwise (another dtype, a tensor that waits for values, operands that
// are to be brought together first, an error) nothing has happened, and the row is asked.
//
//   sum.dim_IntList(x, dim=[1], keepdim=True)  ->  sum(x, dims=[1], keepdims=true)

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "call_values.h"

namespace tessera::torch_device {

using Results = c10::SmallVector<at::Tensor, 3>;

class OneCall {
 public:
  OneCall(const c10::FunctionSchema& schema, const py::tuple& declared) : declared_(declared) {
    for (const c10::Argument& argument : schema.arguments()) {
      const auto same = [&](const Declared::Take& take) { return take.argument == argument.name(); };
      const bool is_taken = std::any_of(declared_.takes.begin(), declared_.takes.end(), same);
      arguments_.push_back({argument.default_value(), is_taken});
    }
    for (const Declared::Take& take : declared_.takes) {
      sources_.push_back(schema.argumentIndexWithName(take.argument));
    }
    const c10::AliasInfo* const alias = schema.arguments().front().alias_info();
    writes_ = alias != nullptr && alias->isWrite();
    result_count_ = schema.returns().size();
  }

  // `rebind(name, tensor, handle)` is asked where a result that is written isn't as the tensor was.
  bool Run(const c10::IValue* values, PyObject* name, PyObject* rebind, Results& results) const {
    Operands operands;
    if (!ReadOperands(values, operands)) return false;
    AttributeList attributes;
    if (!ReadAttributes(values, operands.known[0].spec, attributes) || !ReadNotation(operands, attributes))
      return false;
    if (declared_.settled == Settled::kWhole && (operands.known[0].spec.cut_dims & attributes.DimsMask()) != 0)
      return false;
    const Known result = ResultOf(operands, attributes);
    if (!result.handle) return false;
    if (writes_) {
      Write(values[0].toTensor(), operands.known[0].spec, result, name, rebind);
      results.push_back(values[0].toTensor());
      return true;
    }
    results.push_back(THPVariable_Unpack(WrapHandle(result.handle, result.spec).ptr()));
    if (result_count_ > 1) AddLater(operands.known[0], attributes, results);
    return true;
  }

 private:
  struct Argument {
    std::optional<c10::IValue> absent;  // its default
    bool is_taken;
  };

  bool ReadOperands(const c10::IValue* values, Operands& operands) const {
    bool has_ended = false;  // an operand is left out
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const Argument& argument = arguments_[i];
      if (argument.is_taken) continue;
      if (argument.absent.has_value()) {
        if (!IsAbsent(values[i], *argument.absent)) return false;
      } else if (values[i].isNone()) {
        has_ended = true;
      } else if (has_ended || !operands.Add(declared_, values[i])) {
        return false;
      }
    }
    if (operands.known.empty()) return false;
    return !operands.HasNumbers() || (declared_.number_dtypes >> operands.known.back().spec.dtype & 1) != 0;
  }

  static bool IsAbsent(const c10::IValue& value, const c10::IValue& absent) {
    return absent.isNone() ? value.isNone() : !value.isNone() && absent == value;
  }

  bool ReadAttributes(const c10::IValue* values, const TesseraSpec& spec, AttributeList& out) const {
    for (size_t i = 0; i < sources_.size(); ++i) {
      const Declared::Take& take = declared_.takes[i];
      const c10::IValue* const value = sources_[i].has_value() ? values + *sources_[i] : nullptr;
      TesseraAttribute attribute = {take.attribute, 0, 0, nullptr, nullptr, 0};
      switch (take.meaning) {
        case Taken::kDims:
        case Taken::kRows: {
          const bool is_read =
              take.meaning == Taken::kDims ? ReadDims(value, spec.rank, out.dims) : ReadRows(*value, spec, out.dims);
          if (!is_read) return false;
          attribute.integers = out.dims.data();
          attribute.count = out.dims.size();
          break;
        }
        case Taken::kFlag: attribute.integer = value != nullptr && value->toBool() ? 1 : 0; break;
        case Taken::kInteger: attribute.integer = value->toInt(); break;
        case Taken::kNumber:
          if (!value->isDouble()) return false;
          attribute.number = out.number = value->toDouble();
          break;
        case Taken::kText:
          out.text = value->toStringRef();
          attribute.text = out.text.c_str();
          break;
        case Taken::kScalar: out.scalars.push_back(value->toScalar().toDouble()); continue;
        case Taken::kAdded:
          if (!ReadAdded(*value, spec, out)) return false;
          continue;
      }
      out.list.push_back(attribute);
    }
    return true;
  }

  static bool ReadAdded(const c10::IValue& value, const TesseraSpec& spec, AttributeList& out) {
    if (value.isNone()) return true;
    out.added = FindKnown(Steal(THPVariable_Wrap(value.toTensor())));
    return out.added.has_value() && out.added->spec.dtype == spec.dtype;
  }

  bool ReadNotation(const Operands& operands, AttributeList& out) const {
    if (declared_.is_product && at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST)
      return false;
    if (declared_.notations.empty()) return true;
    if (operands.known.size() != 2) return false;
    const std::string* const text = declared_.NotationOf(operands.known[0].spec.rank, operands.known[1].spec.rank);
    if (text == nullptr) return false;
    out.list.push_back({declared_.notation, 0, 0, text->c_str(), nullptr, 0});
    return true;
  }

  // Without a handle: refused.
  Known ResultOf(const Operands& operands, const AttributeList& attributes) const {
    if (declared_.op < 0) return operands.known[0];
    Known result =
        Ask({static_cast<uint32_t>(declared_.op), operands.list.data(), operands.list.size(), attributes.list.data(),
             attributes.list.size(), attributes.scalars.data(), attributes.scalars.size()});
    if (!result.handle || !attributes.added.has_value()) return result;
    const TesseraOperand both[] = {{result.handle.ptr(), 0, 0, 0}, {attributes.added->handle.ptr(), 0, 0, 0}};
    return Ask({declared_.add, both, 2, nullptr, 0, nullptr, 0});
  }

  static void Write(const at::Tensor& tensor, const TesseraSpec& own, const Known& result, PyObject* name,
                    PyObject* rebind) {
    const py::object object = Steal(THPVariable_Wrap(tensor));
    if (result.spec.identity == own.identity && Get(object, GetNames().view).is_none()) {
      Bind(Get(object, GetNames().cell), result.handle);
    } else {
      Steal(PyObject_CallFunctionObjArgs(rebind, name, object.ptr(), result.handle.ptr(), nullptr));
    }
  }

  // Statistics of rows, as a function gives them when one is read: later(list that they share, handle, dims, number,
  // which). They are of extent 1 along the dims, and of halves in f32.
  void AddLater(const Known& operand, const AttributeList& attributes, Results& results) const {
    static PyObject* const partial = py::object(py::module_::import("functools").attr("partial")).release().ptr();
    Sizes extents(operand.spec.shape, operand.spec.shape + operand.spec.rank);
    py::list dims;
    for (const int64_t dim : attributes.dims) {
      extents[static_cast<size_t>(dim)] = 1;
      dims.append(dim);
    }
    const at::ScalarType own = ScalarTypeOf(operand.spec.dtype);
    const at::ScalarType dtype = at::isReducedFloatingType(own) ? at::kFloat : own;
    const py::list shared;
    const py::float_ number(attributes.number);
    for (size_t i = 1; i < result_count_; ++i) {
      const py::int_ which(i - 1);
      const py::object cell = MakeCell(py::none());
      Set(cell, GetNames().load,
          Steal(PyObject_CallFunctionObjArgs(partial, declared_.later.ptr(), shared.ptr(), operand.handle.ptr(),
                                             dims.ptr(), number.ptr(), which.ptr(), nullptr)));
      if (i + 1 == result_count_) Set(cell, GetNames().eps, number);
      results.push_back(THPVariable_Unpack(MakeWithCell(extents, dtype, cell).ptr()));
    }
  }

  Declared declared_;
  std::vector<Argument> arguments_;
  std::vector<std::optional<int>> sources_;  // of each of `takes`; nothing: this overload has no such argument
  bool writes_ = false;
  size_t result_count_ = 1;
};

}  // namespace tessera::torch_device
