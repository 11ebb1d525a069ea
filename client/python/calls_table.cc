#include "client/python/calls_table.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "client/python/convert.h"
#include "client/python/site_finder.h"
#include "client/python/tessera/torch/calls_table.h"
#include "client/session_calls.h"

namespace tessera::python {
namespace {

nb::handle TensorType() {
  static const nb::handle type = nb::type<PyTensor>();
  return type;
}

const PyTensor* TensorOf(PyObject* object) {
  return nb::handle(object).type().is(TensorType()) ? nb::inst_ptr<PyTensor>(object) : nullptr;
}

// As nb::cast, without looking for the type and for an object that has the value already.
PyObject* NewTensor(HandlePtr handle) {
  nb::object made = nb::inst_alloc(TensorType());
  new (nb::inst_ptr<PyTensor>(made)) PyTensor(Tensor(std::move(handle)));
  nb::inst_mark_ready(made);
  return made.release().ptr();
}

void Fill(const TensorSpec& spec, TesseraSpec* out) {
  *out = {static_cast<uint32_t>(spec.dtype), static_cast<uint32_t>(spec.rank()), spec.shape.data(), 0, 0, &spec};
  for (const Placement& placement : spec.placements) {
    if (placement.is_partial()) out->is_pending = 1;
    if (placement.is_shard()) out->cut_dims |= uint64_t{1} << placement.dim();
  }
}

int SpecOf(PyObject* handle, TesseraSpec* out) {
  const PyTensor* const tensor = TensorOf(handle);
  if (tensor == nullptr || tensor->shown != nullptr) return 0;
  const HandleState& state = *tensor->value().state();
  if (!state.spec_known) return 0;
  Fill(*state.spec, out);
  return 1;
}

int Show(PyObject* handle, TesseraSpec* out) {
  try {
    const PyTensor& tensor = nb::cast<const PyTensor&>(nb::handle(handle));
    const HandlePtr state = tensor.value().state();
    state->RaiseOnCancel(OnCancel::kSpreads);
    if (!state->spec_known) RaiseIfError(Tensor(tensor.value()).AwaitSpec());
    Fill(*state->spec, out);
    return 1;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  }
  return 0;
}

std::vector<IndexItem> IndexOf(const TesseraAttribute& attribute) {
  std::vector<IndexItem> index;
  index.reserve(attribute.count / 4);
  for (const int64_t* item = attribute.integers; item != attribute.integers + attribute.count; item += 4) {
    index.push_back({static_cast<IndexItem::Kind>(item[0]), item[1], item[2], item[3]});
  }
  return index;
}

// The kinds that calls of kernels have; an attribute of another kind isn't set, and the call is refused without it.
void SetAttribute(const TesseraAttribute& attribute, Attributes& attributes) {
  const auto id = static_cast<AttributeId>(attribute.id);
  const int64_t* const end = attribute.integers + attribute.count;
  switch (KindOf(id)) {
    case AttributeKind::kFlag: return attributes.Set(id, attribute.integer != 0);
    case AttributeKind::kInteger: return attributes.Set(id, attribute.integer);
    case AttributeKind::kNumber: return attributes.Set(id, attribute.number);
    case AttributeKind::kText: return attributes.Set(id, std::string(attribute.text));
    case AttributeKind::kIntegers: return attributes.Set(id, std::vector<int64_t>(attribute.integers, end));
    case AttributeKind::kShape: return attributes.Set(id, Shape(attribute.integers, end));
    case AttributeKind::kIndex: return attributes.Set(id, IndexOf(attribute));
    default: return;
  }
}

PyObject* Call(const TesseraOpCall* asked, TesseraSpec* spec) {
  absl::InlinedVector<CallOperand, kInlineOperands> operands(asked->operand_count);
  SessionImpl* session = nullptr;
  for (size_t i = 0; i < operands.size(); ++i) {
    const TesseraOperand& given = asked->operands[i];
    if (given.handle == nullptr) {
      operands[i].scalar = given.is_float != 0 ? Scalar::Float(given.number) : Scalar::Int(given.integer);
      continue;
    }
    const PyTensor* const tensor = TensorOf(given.handle);
    if (tensor == nullptr) return nullptr;
    operands[i].tensor = &tensor->value().state();
    if (session == nullptr) session = (*operands[i].tensor)->session.get();
  }
  if (session == nullptr) return nullptr;
  OpCall call;
  call.op = static_cast<OpId>(asked->op);
  for (size_t i = 0; i < asked->attribute_count; ++i) SetAttribute(asked->attributes[i], call.attributes);
  for (size_t i = 0; i < asked->scalar_count; ++i) call.scalars.push_back(Scalar::Float(asked->scalars[i]));
  absl::StatusOr<HandlePtr> result = session->calls().Call(call, operands);
  if (!result.ok() || PyErr_Occurred() != nullptr) return nullptr;
  (*result)->RaiseOnCancel(OnCancel::kSpreads);
  try {
    if ((*result)->spec_known) {
      Fill(*(*result)->spec, spec);
      return NewTensor(*std::move(result));
    }
    const nb::object made = nb::steal(NewTensor(*std::move(result)));
    return Show(made.ptr(), spec) == 0 ? nullptr : made.inc_ref().ptr();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

}  // namespace

void DefineCallsTable(nb::module_& module) {
  module.def("calls_table", [] {
    static const TesseraCalls table = {TESSERA_CALLS_VERSION, &TorchOpSlot, &SpecOf, &Show, &Call};
    return reinterpret_cast<uintptr_t>(&table);
  });
}

}  // namespace tessera::python
