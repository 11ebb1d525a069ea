#include "client/python/view_module.h"

#include <nanobind/stl/string.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "client/ops.h"
#include "client/python/interpreter.h"
#include "client/session_calls.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"

namespace tessera::python {
namespace {

using Steps = std::vector<const View*>;

// From the tensor that has the elements.
Steps StepsTo(const View* view) {
  Steps steps;
  for (; view != nullptr; view = view->base.get()) steps.insert(steps.begin(), view);
  return steps;
}

const Tensor& RootValue(const SharedElements& elements) {
  return elements.root != nullptr ? elements.root->value() : *elements.kept;
}

// Nobody else shows these elements, and it has all writes.
bool IsAlone(const Shown& shown) {
  return shown.view != nullptr && shown.elements.use_count() == 1 && shown.seen == shown.elements->writes;
}

Tensor CallOne(const OpCall& call, std::initializer_list<const Tensor*> tensors) {
  std::vector<CallOperand> operands;
  for (const Tensor* tensor : tensors) operands.push_back({&tensor->state(), Scalar()});
  return Tensor(ValueOfOk((*tensors.begin())->session()->calls().Call(call, operands)));
}

Tensor Apply(const View& view, const Tensor& base) {
  if (const auto* keys = std::get_if<IndexKeys>(&view.step)) return ValueOfOk(GetItem(base, *keys));
  if (const auto* shape = std::get_if<Shape>(&view.step)) return ValueOfOk(Reshape(base, *shape));
  return CallOne(std::get<OpCall>(view.step), {&base});
}

std::vector<int64_t> DimsOf(const OpCall& call, size_t rank) {
  std::vector<int64_t> dims = call.attributes.Get(attribute::dims);
  for (int64_t& dim : dims) dim += dim < 0 ? static_cast<int64_t>(rank) : 0;
  return dims;
}

// The inverse of a step: the value in the shape and order that its base has.
Tensor Undo(const OpCall& call, const Tensor& base, const Tensor& value) {
  switch (call.op) {
    case OpId::kTranspose: {
      const std::vector<int64_t> dims = DimsOf(call, base.rank());
      std::vector<int64_t> inverse(dims.size());
      for (size_t d = 0; d < dims.size(); ++d) inverse[static_cast<size_t>(dims[d])] = static_cast<int64_t>(d);
      OpCall back;
      back.op = OpId::kTranspose;
      back.attributes.Set(attribute::dims, std::move(inverse));
      return CallOne(back, {&value});
    }
    case OpId::kReal:
    case OpId::kImag: {
      if (Kind(base.dtype()) != DTypeKind::kComplex) return value;
      OpCall other, both;
      other.op = call.op == OpId::kReal ? OpId::kImag : OpId::kReal;
      both.op = OpId::kComplex;
      const Tensor stays = CallOne(other, {&base});
      return call.op == OpId::kReal ? CallOne(both, {&value, &stays}) : CallOne(both, {&stays, &value});
    }
    default: return CallOne(call, {&value});  // flip
  }
}

// The base of a step when what the step shows becomes `value`. `last_use`: the base's memory may be the result's.
Tensor BaseWith(const View& view, const Tensor& base, const Tensor& value, bool last_use) {
  if (const auto* keys = std::get_if<IndexKeys>(&view.step)) {
    return ValueOfOk(WithItem(base, *keys, {&value.state(), Scalar()}, last_use));
  }
  RaiseIfError(Tensor(base).AwaitSpec());
  const Tensor back = std::holds_alternative<Shape>(view.step) ? ValueOfOk(Reshape(value, base.spec().shape))
                                                               : Undo(std::get<OpCall>(view.step), base, value);
  // As an item, so that the base keeps its mesh and placements.
  IndexKeys whole;
  whole.emplace_back().kind = IndexKey::Kind::kEllipsis;
  return ValueOfOk(WithItem(base, whole, {&back.state(), Scalar()}, last_use));
}

// Where NumPy would have the view's elements; nothing where a shape waits for values.
std::optional<NumPyStrides> StridesOf(const PyTensor& tensor) {
  if (!tensor.shown->elements->strides.has_value()) return std::nullopt;
  NumPyStrides strides = *tensor.shown->elements->strides;
  for (const View* view : StepsTo(tensor.shown->view.get())) {
    if (const auto* keys = std::get_if<IndexKeys>(&view->step)) {
      strides = strides.Indexed(ValueOfOk(NormaliseIndex(*keys, strides.shape)));
    } else if (const auto* shape = std::get_if<Shape>(&view->step)) {
      std::optional<NumPyStrides> reshaped = strides.Reshaped(*shape);
      if (!reshaped.has_value()) return std::nullopt;
      strides = *std::move(reshaped);
    } else {
      const auto& call = std::get<OpCall>(view->step);
      if (call.op == OpId::kTranspose) strides = strides.Permuted(DimsOf(call, strides.shape.size()));
      if (call.op == OpId::kFlip) strides = strides.Flipped(DimsOf(call, strides.shape.size()));
      if (call.op == OpId::kBroadcastTo || call.op == OpId::kDiagonal) return std::nullopt;
    }
  }
  return strides;
}

void BecomeRoot(PyTensor& tensor, std::optional<NumPyStrides> strides) {
  tensor.shown = std::make_unique<Shown>(Shown{std::make_shared<SharedElements>(), nullptr});
  tensor.shown->elements->root = &tensor;
  tensor.shown->elements->strides = std::move(strides);
}

// A view whose elements nobody else shows any more has them itself.
void LeaveAlone(PyTensor& tensor) {
  if (tensor.shown != nullptr && IsAlone(*tensor.shown)) BecomeRoot(tensor, StridesOf(tensor));
}

void Mark(PyTensor& base, View step, PyTensor& view) {
  LeaveAlone(base);
  if (base.shown == nullptr) {
    const Tensor& value = base.value();
    BecomeRoot(base, value.spec_pending() ? std::nullopt : std::optional(NumPyStrides::RowMajor(value.spec().shape)));
  }
  step.base = base.shown->view;
  const uint64_t seen = base.shown->elements->writes;
  view.shown =
      std::make_unique<Shown>(Shown{base.shown->elements, std::make_shared<const View>(std::move(step)), seen});
}

bool IsReadOnly(const View& view, const Tensor& root) {
  const auto* call = std::get_if<OpCall>(&view.step);
  if (call == nullptr) return false;
  return call->op == OpId::kBroadcastTo || call->op == OpId::kDiagonal ||
         (call->op == OpId::kImag && Kind(root.dtype()) != DTypeKind::kComplex);
}

// Nobody but the interpreter's stack has it.
bool IsTemporary(nb::handle object) {
  if (tessera_interpreter.is_temporary != nullptr) return tessera_interpreter.is_temporary(object.ptr()) != 0;
  return Py_REFCNT(object.ptr()) == 1;
}

// How a view was made: (name of the op, what it got) each.
nb::list StepsToPython(const PyTensor& tensor) {
  nb::list out;
  for (const View* view : StepsTo(tensor.shown == nullptr ? nullptr : tensor.shown->view.get())) {
    if (std::holds_alternative<IndexKeys>(view->step)) {
      out.append(nb::make_tuple("index", view->key));
    } else if (const auto* shape = std::get_if<Shape>(&view->step)) {
      out.append(nb::make_tuple("reshape", ShapeToPython(*shape)));
    } else {
      const auto& call = std::get<OpCall>(view->step);
      out.append(nb::make_tuple(std::string(NameOf(call.op)), IntegersToPython(DimsOf(call, 0))));
    }
  }
  return out;
}

}  // namespace

PyTensor::PyTensor(Tensor value) : value_(std::move(value)) {}

PyTensor::PyTensor(PyTensor&& other) noexcept : shown(std::move(other.shown)), value_(std::move(other.value_)) {
  if (shown != nullptr && shown->elements->root == &other) shown->elements->root = this;
}

PyTensor::~PyTensor() {
  if (shown == nullptr) return;
  SharedElements& elements = *shown->elements;
  const long others = shown->elements.use_count() - 1;
  if (elements.root == this) {
    elements.root = nullptr;
    // One view alone that has all writes shows nobody's elements any more.
    if (others > 1 || (others == 1 && elements.writes > 0)) elements.kept = std::move(value_);
  } else if (elements.root == nullptr && others == 1 && elements.writes == 0) {
    elements.kept.reset();
  }
}

void PyTensor::TakeAnew() const {
  SharedElements& elements = *shown->elements;
  while (!elements.awaited.empty()) nb::object(elements.awaited.back())();
  if (shown->view == nullptr || shown->seen == elements.writes) return;
  const Steps steps = StepsTo(shown->view.get());
  Tensor now = Apply(*steps[0], RootValue(elements));
  for (size_t i = 1; i < steps.size(); ++i) now = Apply(*steps[i], now);
  value_ = std::move(now);
  shown->seen = elements.writes;
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

void Await(PyTensor& tensor, nb::object take) {
  if (tensor.shown == nullptr) BecomeRoot(tensor, NumPyStrides::RowMajor(tensor.value().spec().shape));
  tensor.shown->elements->awaited.push_back(std::move(take));
}

void ForgetAwaited(PyTensor& tensor, nb::handle take) {
  if (tensor.shown == nullptr) return;
  std::erase_if(tensor.shown->elements->awaited, [take](const nb::object& known) { return known.is(take); });
}

void MarkIndex(PyTensor& base, IndexKeys keys, nb::object key, PyTensor& view) {
  Mark(base, {nullptr, std::move(keys), std::move(key)}, view);
}

void MarkReshape(PyTensor& base, const Shape& shape, PyTensor& view) {
  LeaveAlone(base);
  if (base.shown != nullptr && !view.value().spec_pending()) {
    const std::optional<NumPyStrides> strides = StridesOf(base);
    if (strides.has_value() && !strides->Reshaped(view.value().spec().shape).has_value()) return;  // NumPy copies
  }
  Mark(base, {nullptr, view.value().spec_pending() ? shape : view.value().spec().shape, nb::none()}, view);
}

void MarkOp(PyTensor& base, const OpCall& call, size_t number, PyTensor& view) {
  if (call.op == OpId::kUnstack) {
    IndexKeys keys;
    nb::list key;
    for (int64_t d = DimsOf(call, base.value().rank())[0]; d > 0; --d) {
      keys.push_back({IndexKey::Kind::kSlice, 0, std::numeric_limits<int64_t>::max(), 1});
      key.append(nb::slice(nb::none(), nb::none(), nb::none()));
    }
    keys.push_back({IndexKey::Kind::kInteger, static_cast<int64_t>(number), 0, 1});
    key.append(number);
    return MarkIndex(base, std::move(keys), nb::tuple(key), view);
  }
  if (const Shape* shape = call.op == OpId::kReshape ? call.attributes.Get(attribute::shape) : nullptr) {
    return MarkReshape(base, *shape, view);
  }
  Mark(base, {nullptr, call, nb::none()}, view);
}

bool MakesView(OpId op) {
  switch (op) {
    case OpId::kTranspose:
    case OpId::kReshape:
    case OpId::kBroadcastTo:
    case OpId::kFlip:
    case OpId::kUnstack:
    case OpId::kDiagonal:
    case OpId::kReal:
    case OpId::kImag: return true;
    default: return false;
  }
}

bool IsPutByStatement(nb::handle self) {
  const PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  return tensor.shown != nullptr && tensor.shown->view != nullptr && IsTemporary(self);
}

void CheckWritable(nb::handle self, std::string_view op, nb::handle key) {
  const PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  if (tensor.shown == nullptr || tensor.shown->view == nullptr || IsAlone(*tensor.shown)) return;
  const Tensor& root = RootValue(*tensor.shown->elements);
  for (const View* view = tensor.shown->view.get(); view != nullptr; view = view->base.get()) {
    if (!IsReadOnly(*view, root)) continue;
    GetHooks().refuse_write(std::string(op), self, key);
    throw nb::python_error();
  }
}

std::optional<Tensor> RootWith(const PyTensor& view, const Tensor& value) {
  if (view.shown == nullptr || view.shown->view == nullptr || IsAlone(*view.shown)) return std::nullopt;
  const Steps steps = StepsTo(view.shown->view.get());
  const Tensor& root = RootValue(*view.shown->elements);
  std::vector<Tensor> between;  // what each step but the last one shows
  for (size_t i = 0; i + 1 < steps.size(); ++i) between.push_back(Apply(*steps[i], i == 0 ? root : between[i - 1]));
  Tensor now = value;
  for (size_t i = steps.size(); i-- > 1;) now = BaseWith(*steps[i], between[i - 1], now, false);
  return BaseWith(*steps[0], root, now, root.session()->MayDonate(root.state()));
}

void DefineViews(nb::class_<PyTensor>& tensor) {
  tensor
      .def_prop_ro("_shares_elements",
                   [](const PyTensor& t) { return t.shown != nullptr && t.shown->elements.use_count() > 1; })
      .def_prop_ro("_view_steps", &StepsToPython)
      .def("_check_write", [](nb::handle self, const std::string& op) { CheckWritable(self, op, nb::none()); });
}

}  // namespace tessera::python
