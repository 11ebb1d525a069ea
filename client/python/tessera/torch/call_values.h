#pragma once

// The operands and attributes of a call of the catalog, read from torch's arguments as Python has declared the call
// (one_call.h).

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cells.h"

namespace tessera::torch_device {

// The attributes that a call takes from arguments, by their names in _one_call.py.
enum class Taken : uint8_t {
  kDims = 0,
  kRows = 1,
  kFlag = 2,
  kInteger = 3,
  kNumber = 4,
  kText = 5,
  kScalar = 6,
  kAdded = 7
};
// Operands that have terms to be reduced go to the row; or those of which a dim that the call goes along is cut, too.
enum class Settled : uint8_t { kAny = 0, kReduced = 1, kWhole = 2 };

// How it was declared, in the order of OneCall of _one_call.py.
struct Declared {
  explicit Declared(const py::tuple& fields)
      : op(fields[0].is_none() ? -1 : py::cast<int64_t>(fields[0])),
        dtypes(py::cast<uint64_t>(fields[1])),
        number_dtypes(py::cast<uint64_t>(fields[2])),
        settled(static_cast<Settled>(py::cast<int>(fields[3]))),
        first_alike(py::cast<size_t>(fields[4])),
        later(py::reinterpret_borrow<py::object>(fields[5])),
        is_product(py::cast<bool>(fields[7])),
        notation(py::cast<uint32_t>(fields[9])),
        add(py::cast<uint32_t>(fields[10])) {
    for (const py::handle one : fields[6]) {
      const auto entry = py::cast<py::tuple>(one);
      takes.push_back(
          {py::cast<std::string>(entry[0]), static_cast<Taken>(py::cast<int>(entry[1])), py::cast<uint32_t>(entry[2])});
    }
    for (const py::handle one : fields[8]) notations.push_back(py::cast<std::string>(one));
  }
  // The text of a product of these operands; null where there is none.
  const std::string* NotationOf(uint32_t first_rank, uint32_t second_rank) const {
    const size_t at = notations.size() == 1 ? 0 : first_rank - 1;
    if (at >= notations.size()) return nullptr;
    const std::string& text = notations[at];
    const size_t comma = text.find(',');
    return comma == first_rank && text.find('-') == comma + 1 + second_rank ? &text : nullptr;
  }
  struct Take {
    std::string argument;
    Taken meaning;
    uint32_t attribute;
  };
  int64_t op;  // negative: none, the result is the operand's value
  uint64_t dtypes;
  uint64_t number_dtypes;  // beside which a number may stand
  Settled settled;
  size_t first_alike;  // operands from this one on have one dtype, which is one of `dtypes`
  py::object later;    // None, or the function that gives results after the first when they are read
  std::vector<Take> takes;
  bool is_product;                     // TF32 is the row's
  std::vector<std::string> notations;  // of einsum, by the number of the first operand's dims, from 1; or one
  uint32_t notation;                   // the attribute
  uint32_t add;                        // the op that adds what is taken as kAdded
};

// The operands of a call, and what keeps them.
struct Operands {
  c10::SmallVector<TesseraOperand, 4> list;
  c10::SmallVector<Known, 4> known;  // of those that are tensors
  bool Add(const Declared& declared, const at::Tensor& tensor);
  bool Add(const Declared& declared, const c10::IValue& value);
  bool AddNumber(const at::Scalar& number);
  bool HasNumbers() const { return list.size() > known.size(); }
};

inline bool Operands::AddNumber(const at::Scalar& number) {
  if (number.isFloatingPoint()) {
    list.push_back({nullptr, 1, 0, number.toDouble()});
  } else if (number.isIntegral(/*includeBool=*/false)) {
    list.push_back({nullptr, 0, number.toLong(), 0});
  } else {
    return false;
  }
  return true;
}

inline bool Operands::Add(const Declared& declared, const at::Tensor& tensor) {
  if (const std::optional<at::Scalar> number = WrappedNumber(tensor)) return AddNumber(*number);
  const auto object = Steal(THPVariable_Wrap(tensor));
  if (Py_TYPE(object.ptr()) != GetPythonSide().tensor) return false;
  std::optional<Known> found = FindKnown(object);
  if (!found.has_value()) return false;
  if (list.size() >= declared.first_alike) {
    if ((declared.dtypes >> found->spec.dtype & 1) == 0) return false;
    if (known.size() > declared.first_alike && known.back().spec.dtype != found->spec.dtype) return false;
  }
  if (declared.settled != Settled::kAny && found->spec.is_pending != 0) return false;
  list.push_back({found->handle.ptr(), 0, 0, 0});
  known.push_back(*std::move(found));
  return true;
}

inline bool Operands::Add(const Declared& declared, const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && Add(declared, value.toTensor());
  if (value.isTensorList()) {
    const auto tensors = value.toTensorVector();
    return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& one) { return Add(declared, one); });
  }
  return value.isScalar() && AddNumber(value.toScalar());
}

// The attributes of a call, and what keeps their values.
struct AttributeList {
  c10::SmallVector<TesseraAttribute, 4> list;
  c10::SmallVector<double, 2> scalars;
  Sizes dims;  // sorted; of calls that go along some
  std::string text;
  double number = 0;
  std::optional<Known> added;  // to the result
  uint64_t DimsMask() const {
    uint64_t mask = 0;
    for (const int64_t dim : dims) mask |= uint64_t{1} << dim;
    return mask;
  }
};

// Sorted, not negative; all of them for nothing and for an empty list.
inline bool ReadDims(const c10::IValue* value, int64_t rank, Sizes& dims) {
  if (value != nullptr && value->isInt()) {
    dims.push_back(value->toInt());
  } else if (value != nullptr && value->isIntList()) {
    for (const int64_t dim : value->toIntList()) dims.push_back(dim);
  } else if (value != nullptr && !value->isNone()) {
    return false;
  }
  if (dims.empty()) {
    for (int64_t dim = 0; dim < rank; ++dim) dims.push_back(dim);
    return true;
  }
  for (int64_t& dim : dims) {
    if (dim < -rank || dim >= rank) return false;
    if (dim < 0) dim += rank;
  }
  std::sort(dims.begin(), dims.end());
  return std::adjacent_find(dims.begin(), dims.end()) == dims.end();
}

// The last dims, whose extents a norm is told.
inline bool ReadRows(const c10::IValue& value, const TesseraSpec& spec, Sizes& dims) {
  if (!value.isIntList()) return false;
  const auto extents = value.toIntVector();
  if (extents.empty() || extents.size() > spec.rank) return false;
  const size_t lead = spec.rank - extents.size();
  if (!std::equal(extents.begin(), extents.end(), spec.shape + lead)) return false;
  for (size_t dim = lead; dim < spec.rank; ++dim) dims.push_back(static_cast<int64_t>(dim));
  return true;
}

}  // namespace tessera::torch_device
