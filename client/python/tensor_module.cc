// The Python class Tensor: operators, which are the hot path, and what its Python methods stand on.

#include "client/python/tensor_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "client/found.h"
#include "client/plan_capture.h"
#include "client/python/convert.h"
#include "client/python/einsum_module.h"
#include "client/python/index_module.h"
#include "client/python/view_module.h"
#include "client/session.h"
#include "client/session_calls.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"

namespace tessera::python {
namespace {

// While ops are planned: tensors of Python that in-place ops have bound to planned results, and what they were.
thread_local std::vector<std::pair<nb::object, Tensor>> planned_rebinds;

nb::object Wrap(HandlePtr handle) { return nb::cast(PyTensor{Tensor(std::move(handle))}); }

// Waits where it is pending.
const TensorSpec& SpecOf(const PyTensor& tensor) {
  if (tensor.value().spec_pending()) RaiseIfError(Tensor(tensor.value()).AwaitSpec());
  return tensor.value().spec();
}

const Mesh& MeshOf(const PyTensor& tensor) {
  const HandleState& state = *tensor.value().state();
  return !state.spec_known && state.deferred->has_mesh ? state.deferred->stand_in->mesh : SpecOf(tensor).mesh;
}

// Calls without attributes, made once: the hot path copies nothing.
const OpCall& PlainCall(OpId op) {
  static const std::vector<OpCall>* calls = [] {
    size_t count = 0;
    for (const OpRow& row : Catalog()) count = std::max(count, static_cast<size_t>(row.id) + 1);
    auto* all = new std::vector<OpCall>(count);
    for (size_t i = 0; i < all->size(); ++i) (*all)[i].op = static_cast<OpId>(i);
    return all;
  }();
  return (*calls)[static_cast<size_t>(op)];
}

// Fills `operand` from any object that may stand beside `self`; false when none may.
bool OtherOperand(nb::handle self, nb::handle other, nb::object* keep, CallOperand* operand) {
  if (!PyTuple_CheckExact(other.ptr()) && OperandFromPython(other, operand)) return true;
  *keep = GetHooks().convert_operand(self, other);
  if (keep->ptr() == Py_NotImplemented) return false;
  return OperandFromPython(*keep, operand);
}

// Which side of the operator the tensor stands on whose method was called.
enum class Side : uint8_t { kLeft = 0, kRight = 1 };

bool IsBool(const CallOperand& operand) {
  if (operand.tensor != nullptr) return Tensor(*operand.tensor).dtype() == DType::kBool;
  return operand.scalar.dtype() == DType::kBool;
}

// NumPy's sum of bools is whether one of them is true, and its product whether all are.
OpId OfBools(OpId op, const CallOperand (&operands)[2]) {
  if (op != OpId::kAdd && op != OpId::kMul) return op;
  if (!IsBool(operands[0]) || !IsBool(operands[1])) return op;
  return op == OpId::kAdd ? OpId::kLogicalOr : OpId::kLogicalAnd;
}

nb::object BinaryOp(OpId op, nb::handle self, nb::handle other, Side side) {
  const PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  CallOperand operands[2];
  nb::object keep;
  operands[side == Side::kRight ? 1 : 0].tensor = &tensor.value().state();
  if (!OtherOperand(self, other, &keep, &operands[side == Side::kRight ? 0 : 1])) return nb::borrow(Py_NotImplemented);
  if (tensor.value().dtype() == DType::kBool) op = OfBools(op, operands);
  return Wrap(ValueOrRaise(tensor.value().session()->calls().Call(PlainCall(op), operands)));
}

// Comparisons are elementwise beside what may stand beside a tensor. Beside anything else they are an error: Python's
// == would compare identities, and answer silently. An object that knows itself how it compares is asked with the sides
// swapped. (None does not come here: x == None is False.)
template <OpId op, int swapped>
nb::object ComparisonOp(nb::handle self, nb::handle other) {
  nb::object result = BinaryOp(op, self, other, Side::kLeft);
  if (result.ptr() != Py_NotImplemented) return result;
  if (void* const compare = PyType_GetSlot(Py_TYPE(other.ptr()), Py_tp_richcompare); compare != nullptr) {
    result = nb::steal(reinterpret_cast<richcmpfunc>(compare)(other.ptr(), self.ptr(), swapped));
    if (!result.is_valid()) throw nb::python_error();
    if (result.ptr() != Py_NotImplemented) return result;
  }
  return GetHooks().refuse_operand(std::string(NameOf(op)), self, other);
}

// The op with a result where the tensor is: the other operand comes there, even if the tensor would go to it for fewer
// bytes, which it would have to come back from. A pending tensor can only be kept on its mesh.
OpCall CallInPlace(OpId op, const TensorSpec& tensor) {
  OpCall call;
  call.op = op;
  if (op == OpId::kMatmul) return call;
  call.attributes.Set(attribute::mesh, tensor.mesh);
  if (!tensor.has_partial()) call.attributes.Set(attribute::placements, tensor.placements);
  return call;
}

void Replace(nb::handle self, Tensor value) {
  PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  // A result that is only planned leaves the tensor as it is once all is planned.
  if (value.state()->planned != nullptr && tensor.value().state()->planned == nullptr) {
    planned_rebinds.emplace_back(nb::borrow(self), tensor.value());
  }
  value.state()->RaiseOnCancel(OnCancel::kRunsOn);
  tensor.set_value(std::move(value));
}

// x has another value from here on; so has the tensor whose elements x shows, unless `is_put` (IsPutByStatement). The
// former one is gone once its last user has run, so a cancel leaves this one. A pending exception (a warning that is an
// error) is raised when x has it.
void Bind(nb::handle self, Tensor value, bool is_put = false) {
  PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  std::optional<Tensor> root = is_put ? std::nullopt : RootWith(tensor, value);
  Replace(self, std::move(value));
  if (tensor.shown != nullptr && !is_put) {
    SharedElements& elements = *tensor.shown->elements;
    tensor.shown->seen = ++elements.writes;
    if (root.has_value() && elements.root == nullptr)
      elements.kept = *std::move(root);
    else if (root.has_value())
      Replace(nb::find(*elements.root), *std::move(root));
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

// x op= y: keeps dtype, shape and placements, and rebinds the handle.
nb::object InPlaceOp(OpId op, nb::handle self, nb::handle other) {
  CheckWritable(self, NameOf(op), nb::none());
  const bool is_put = IsPutByStatement(self);
  PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  SpecOf(tensor);  // it is known from here on
  CallOperand operands[2];
  nb::object keep;
  operands[0].tensor = &tensor.value().state();
  const CurrentSpec& current = (*operands[0].tensor)->spec;
  const SpecPtr held = current;
  const TensorSpec& spec = *held;
  if (!OtherOperand(self, other, &keep, &operands[1])) return nb::borrow(Py_NotImplemented);
  SessionImpl& session = *tensor.value().session();
  SpecOperand specs[2] = {{&held, Scalar()}, {nullptr, operands[1].scalar}};
  if (operands[1].tensor != nullptr) {
    RaiseIfError(session.AwaitSpec(**operands[1].tensor));
    specs[1].spec = &(*operands[1].tensor)->spec.get();
  }
  std::shared_ptr<const SpecEntry> entry = ValueOrRaise(session.calls().specs().Resolve(PlainCall(op), specs));
  const TensorSpec& result = *entry->outputs[0];
  if (result.shape != spec.shape) {
    Raise(absl::InvalidArgumentError(
        StrCat(NameOf(op), ": an in-place op keeps the shape: ", ToText(spec), " would become ", ToShortText(result))));
  }
  if (Kind(result.dtype) != Kind(spec.dtype)) {
    Raise(DTypeError(
        StrCat(NameOf(op), ": an in-place op keeps the dtype: ", ToText(spec), " would become ", ToShortText(result))));
  }
  const bool stays = result.mesh == spec.mesh && (spec.has_partial() || result.placements == spec.placements);
  const bool is_one_call = result.dtype == spec.dtype && (stays || op != OpId::kMatmul);
  // Where others follow, the former value is there until the last one is asked for: each of them may be interrupted.
  operands[0].last_use = is_one_call && session.MayDonate(tensor.value().state());
  HandlePtr handle = ValueOfOk(session.calls().Call(stays ? PlainCall(op) : CallInPlace(op, spec), operands));
  if (result.dtype != spec.dtype) {
    OpCall cast;
    cast.op = OpId::kAsType;
    cast.attributes.Set(attribute::dtype, spec.dtype);
    const CallOperand operand{&handle, Scalar()};
    handle = ValueOfOk(session.calls().Call(cast, {&operand, 1}));
  }
  // Where both are now: a worker that was lost meanwhile has moved both.
  SpecPtr target, made;
  do {
    target = current;
    made = handle->spec;
  } while (target != current.get());
  if (!spec.has_partial() && !(made->placements == target->placements && made->mesh == target->mesh)) {
    handle = ValueOfOk(Tensor(handle).Redistribute(target->mesh, target->placements)).state();
  }
  Bind(self, Tensor(std::move(handle)), is_put);
  return nb::borrow(self);
}

// Tensors whose shape depends on values (found.h), as Python has them.
nb::tuple ToTuple(std::vector<Tensor> tensors) {
  nb::list out;
  for (Tensor& tensor : tensors) out.append(nb::cast(PyTensor{std::move(tensor)}));
  return nb::tuple(out);
}

void DefineFound(nb::module_& module) {
  module.def("find_places", [](const PyTensor& mask) { return PyTensor{ValueOrRaise(FindPlaces(mask.value()))}; });
  module.def("filter", [](const PyTensor& x, const PyTensor& mask, int dim) {
    return PyTensor(ValueOrRaise(FilterAlong(x.value(), mask.value(), dim)));
  });
  module.def("nonzero", [](const PyTensor& x) { return ToTuple(ValueOrRaise(Nonzero(x.value()))); });
  module.def("masked_select", [](const PyTensor& x, const PyTensor& mask) {
    return PyTensor{ValueOrRaise(MaskedSelect(x.value(), mask.value()))};
  });
  module.def("unique_all", [](const PyTensor& x, bool indices, bool inverse, bool counts) {
    const UniqueWanted wanted = {.indices = indices, .inverse = inverse, .counts = counts};
    UniqueElements unique = ValueOrRaise(UniqueAll(x.value(), wanted));
    std::vector<Tensor> found = {std::move(unique.values)};
    for (std::optional<Tensor>* one : {&unique.indices, &unique.inverse, &unique.counts}) {
      if (one->has_value()) found.push_back(*std::move(*one));
    }
    return ToTuple(std::move(found));
  });
}

nb::object UnaryOp(OpId op, nb::handle self) {
  const PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  const CallOperand operand{&tensor.value().state(), Scalar()};
  return Wrap(ValueOrRaise(tensor.value().session()->calls().Call(PlainCall(op), {&operand, 1})));
}

template <OpId op>
void DefineBinary(nb::class_<PyTensor>& tensor, const char* name, const char* reflected, const char* in_place) {
  tensor.def(
      name, [](nb::handle a, nb::handle b) { return BinaryOp(op, a, b, Side::kLeft); }, nb::is_operator());
  if (reflected != nullptr) {
    tensor.def(
        reflected, [](nb::handle a, nb::handle b) { return BinaryOp(op, a, b, Side::kRight); }, nb::is_operator());
  }
  if (in_place != nullptr) {
    tensor.def(
        in_place, [](nb::handle a, nb::handle b) { return InPlaceOp(op, a, b); }, nb::is_operator());
  }
}

struct PythonOperands {
  absl::InlinedVector<CallOperand, kInlineOperands> list;
  SessionImpl* session = nullptr;
};

PythonOperands OperandsFromPython(const nb::tuple& objects) {
  PythonOperands operands;
  operands.list.resize(objects.size());
  for (size_t i = 0; i < objects.size(); ++i) {
    CallOperand& operand = operands.list[i];
    if (!OperandFromPython(objects[i], &operand)) {
      Raise(absl::InvalidArgumentError("an operand is neither a tensor nor a number"));
    }
    if (operands.session == nullptr && operand.tensor != nullptr) operands.session = (*operand.tensor)->session.get();
  }
  if (operands.session == nullptr) Raise(absl::InvalidArgumentError("an op needs a tensor among its operands"));
  return operands;
}

// A tensor; a tuple for an op with several results, or none.
nb::object CallAny(int op, const nb::tuple& objects, const nb::kwargs& attributes) {
  const OpCall call = CallFromPython(op, attributes);
  const PythonOperands operands = OperandsFromPython(objects);
  SessionCalls::Results results = ValueOrRaise(operands.session->calls().CallAll(call, operands.list));
  const auto wrapped = [&](size_t number) {
    PyTensor result{Tensor(std::move(results[number]))};
    if (MakesView(call.op)) MarkOp(*nb::inst_ptr<PyTensor>(objects[0]), call, number, result);
    return nb::cast(std::move(result));
  };
  if (results.size() == 1) return wrapped(0);
  nb::list out;
  for (size_t i = 0; i < results.size(); ++i) out.append(wrapped(i));
  return nb::tuple(out);
}

// x[key] = value: a new tensor, which x is from here on. False where the key has other items than KeysFromPython knows.
bool SetItem(nb::handle self, nb::handle key, nb::handle value) {
  CheckWritable(self, "x[i] = v", key);
  const std::optional<IndexKeys> keys = KeysFromPython(key);
  if (!keys.has_value()) return false;
  PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  CallOperand written;
  nb::object keep;
  if (!OtherOperand(self, value, &keep, &written)) {
    GetHooks().refuse_operand("x[i] = v", self, value);
    throw nb::python_error();
  }
  const bool last_use = tensor.value().session()->MayDonate(tensor.value().state());
  Bind(self, ValueOfOk(WithItem(tensor.value(), *keys, written, last_use)));
  return true;
}

// x becomes what another tensor is.
void Rebind(nb::handle self, const PyTensor& other) { Bind(self, other.value()); }

// The op on a tensor that its caller does not use again and another operand: the memory of the tensor may be given to
// the result, where nobody else has the handle.
nb::object CallOnOwn(int op, nb::handle own, nb::handle other) {
  const PyTensor& tensor = nb::cast<const PyTensor&>(own);
  CallOperand operands[2];
  operands[0].tensor = &tensor.value().state();
  if (!OperandFromPython(other, &operands[1])) {
    Raise(absl::InvalidArgumentError("an operand is neither a tensor nor a number"));
  }
  SessionImpl& session = *tensor.value().session();
  operands[0].last_use = session.MayDonate(tensor.value().state());
  return Wrap(ValueOrRaise(session.calls().Call(PlainCall(static_cast<OpId>(op)), operands)));
}

// All results of an op, as a list.
nb::list CallAll(int op, const nb::tuple& objects, const nb::kwargs& attributes) {
  const OpCall call = CallFromPython(op, attributes);
  const PythonOperands operands = OperandsFromPython(objects);
  nb::list out;
  for (HandlePtr& result : ValueOrRaise(operands.session->calls().CallAll(call, operands.list))) {
    out.append(Wrap(std::move(result)));
  }
  return out;
}

// The name of a dtype that NumPy has by ml_dtypes; null for another one.
const char* NameInMlDTypes(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return "bfloat16";
    case DType::kF8E4M3: return "float8_e4m3fn";
    case DType::kF8E5M2: return "float8_e5m2";
    default: return nullptr;
  }
}

// How NumPy knows it; a dtype of ml_dtypes as its bits.
nb::dlpack::dtype ArrayDType(DType dtype) {
  const auto of = [dtype](nb::dlpack::dtype_code code) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(SizeBits(dtype)), 1};
  };
  if (NameInMlDTypes(dtype) != nullptr) return of(nb::dlpack::dtype_code::UInt);
  switch (Kind(dtype)) {
    case DTypeKind::kBool: return of(nb::dlpack::dtype_code::Bool);
    case DTypeKind::kSigned: return of(nb::dlpack::dtype_code::Int);
    case DTypeKind::kUnsigned: return of(nb::dlpack::dtype_code::UInt);
    case DTypeKind::kFloat: return of(nb::dlpack::dtype_code::Float);
    case DTypeKind::kComplex: return of(nb::dlpack::dtype_code::Complex);
  }
  return {};
}

nb::object ArrayOf(HostArray array) {
  size_t shape[kMaxRank];
  for (size_t d = 0; d < array.shape.size(); ++d) shape[d] = static_cast<size_t>(array.shape[d]);
  char* data = array.memory->data();
  auto* owned = new std::shared_ptr<HostMemory>(std::move(array.memory));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::shared_ptr<HostMemory>*>(p); });
  nb::object out =
      nb::cast(nb::ndarray<nb::numpy>(data, array.shape.size(), shape, owner, nullptr, ArrayDType(array.dtype)),
               nb::rv_policy::reference);
  const char* const name = NameInMlDTypes(array.dtype);
  return name == nullptr ? out : out.attr("view")(nb::module_::import_("tessera._dtypes").attr(name));
}

// A row-major array of Python that a download writes, held meanwhile.
class BufferTarget {
 public:
  BufferTarget(nb::handle object, int dtype) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) throw nb::python_error();
    target_ = {static_cast<DType>(dtype), Shape(buffer_.shape, buffer_.shape + buffer_.ndim),
               static_cast<char*>(buffer_.buf)};
  }
  ~BufferTarget() { PyBuffer_Release(&buffer_); }
  BufferTarget(const BufferTarget&) = delete;
  BufferTarget& operator=(const BufferTarget&) = delete;
  const HostTarget& target() const { return target_; }

 private:
  Py_buffer buffer_{};
  HostTarget target_;
};

void FullTo(const PyTensor& t, nb::handle out, int dtype) {
  const BufferTarget buffer(out, dtype);
  RaiseIfError(Released([&, tensor = Tensor(t.value())] { return tensor.FullTensorTo(buffer.target()); }));
}

void RowsTo(const PyTensor& t, int64_t start, int64_t stop, nb::handle out, int dtype) {
  const BufferTarget buffer(out, dtype);
  RaiseIfError(Released([&, tensor = Tensor(t.value())] {
    return tensor.FullTensorTo(buffer.target(), Interval{start, stop});
  }));
}

void LocalTo(const PyTensor& t, nb::handle position, nb::handle out, int dtype) {
  const BufferTarget buffer(out, dtype);
  const Position wanted = PositionFromPython(position);
  RaiseIfError(Released([&, tensor = Tensor(t.value())] { return tensor.ToLocalTo(wanted, buffer.target()); }));
}

// An array of the program in memory that workers map.
nb::object MakeHostArray(const std::string& op, int dtype, nb::handle shape) {
  const WorkerIndex workers[] = {WorkerIndex(0)};
  const Mesh mesh = ValueOrRaise(Mesh::Make({1}, {}, workers));
  const TensorSpec spec = ValueOrRaise(
      TensorSpec::Make(op, static_cast<DType>(dtype), ShapeFromPython(shape), mesh, {Placement::Replicate()}));
  const int64_t bytes = NumElements(spec.shape) * SizeBytes(spec.dtype);
  return ArrayOf({spec.dtype, spec.shape, ValueOrRaise(Released([bytes] { return HostMemory::MakeShared(bytes); }))});
}

absl::StatusOr<HostArray> FullReleased(const Tensor& tensor) {
  nb::gil_scoped_release release;
  return tensor.FullTensor();
}

absl::StatusOr<HostArray> LocalReleased(const Tensor& tensor, const Position& position) {
  nb::gil_scoped_release release;
  return tensor.ToLocal(position);
}

void WaitReleased(const Tensor& tensor, std::optional<double> timeout_s) {
  absl::Status status;
  {
    nb::gil_scoped_release release;
    status = tensor.Wait(timeout_s);
  }
  RaiseIfError(status);
}

void WaitAllReleased(const nb::list& waited, std::optional<double> timeout_s) {
  std::vector<Tensor> tensors;
  for (nb::handle tensor : waited) tensors.emplace_back(nb::cast<const PyTensor&>(tensor).value());
  absl::Status status;
  {
    nb::gil_scoped_release release;
    status = WaitAll(tensors, timeout_s);
  }
  RaiseIfError(status);
}

// Tensors that in-place ops have bound to planned results are what they were when the scope ends.
class RebindScope {
 public:
  RebindScope() : first_(planned_rebinds.size()) {}
  ~RebindScope() {
    for (size_t i = planned_rebinds.size(); i-- > first_;) {
      PyTensor& tensor = *nb::inst_ptr<PyTensor>(planned_rebinds[i].first);
      tensor.set_value(planned_rebinds[i].second);
      if (tensor.shown != nullptr) ++tensor.shown->elements->writes;
    }
    planned_rebinds.erase(planned_rebinds.begin() + static_cast<std::ptrdiff_t>(first_), planned_rebinds.end());
  }
  RebindScope(const RebindScope&) = delete;
  RebindScope& operator=(const RebindScope&) = delete;

 private:
  const size_t first_;
};

// The plans of the ops that `function` asks for when it is called; none of them runs.
nb::list PlansOf(const nb::callable& function) {
  const RebindScope rebinds;
  PlanCapture capture;
  function();
  nb::list out;
  for (const PlanReport& plan : capture.plans()) out.append(PlanToPython(plan));
  return out;
}

// The tensor itself where nothing is pending.
nb::object Reduced(nb::handle self, nb::handle beside) {
  const PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  if (!SpecOf(tensor).has_partial()) return nb::borrow(self);
  const HandlePtr* other = beside.is_none() ? nullptr : &nb::cast<const PyTensor&>(beside).value().state();
  return Wrap(ValueOrRaise(tensor.value().session()->calls().Reduced(tensor.value().state(), other)));
}

void DefineReading(nb::class_<PyTensor>& tensor) {
  tensor.def_prop_ro("shape", [](const PyTensor& t) { return ShapeToPython(SpecOf(t).shape); })
      .def_prop_ro("ndim", [](const PyTensor& t) { return t.value().rank(); })
      .def_prop_ro("size", [](const PyTensor& t) { return NumElements(SpecOf(t).shape); })
      .def_prop_ro("nbytes",
                   [](const PyTensor& t) { return NumElements(SpecOf(t).shape) * SizeBytes(t.value().dtype()); })
      .def_prop_ro(
          "spec_pending", [](const PyTensor& t) { return t.value().spec_pending(); },
          "Whether the shape depends on values that are not there yet: dtype and ndim are known, shape waits.")
      .def_prop_ro("_dtype", [](const PyTensor& t) { return static_cast<int>(t.value().dtype()); })
      .def_prop_ro("_mesh", [](const PyTensor& t) { return MeshOf(t); })
      .def_prop_ro("_placements", [](const PyTensor& t) { return PlacementsToPython(SpecOf(t).placements); })
      .def_prop_ro("_mesh_ndim", [](const PyTensor& t) { return MeshOf(t).ndim(); })
      .def_prop_ro("_has_partial", [](const PyTensor& t) { return SpecOf(t).has_partial(); })
      .def_prop_ro("_spec", [](const PyTensor& t) { return ToText(SpecOf(t)); })
      .def_prop_ro("_spec_now", [](const PyTensor& t) { return t.value().state()->SpecText(); })
      .def_prop_rw(
          "_name", [](const PyTensor& t) { return t.value().name(); },
          [](const PyTensor& t, const std::string& name) { RaiseIfError(t.value().SetName(name)); })
      .def_prop_ro("_handle", [](const PyTensor& t) { return t.value().handle(); })
      .def_prop_ro("_session_key",
                   [](const PyTensor& t) { return reinterpret_cast<uintptr_t>(t.value().session().get()); })
      .def_prop_ro("_session", [](const PyTensor& t) { return Session(t.value().session()); })
      .def("_copy", [](const PyTensor& t) { return PyTensor{t.value()}; })
      .def("_reduced", &Reduced, nb::arg("beside").none() = nb::none(),
           "The value without pending terms, which is reduced once: as shards of `beside`, if that is cut and has the "
           "same shape, "
           "else whole.")
      .def("_run_on", [](const PyTensor& t) { t.value().state()->RaiseOnCancel(OnCancel::kSpreads); })
      .def(
          "_wait", [](const PyTensor& t, std::optional<double> s) { WaitReleased(Tensor(t.value()), s); },
          nb::arg().none())
      .def(
          "is_ready", [](const PyTensor& t) { return t.value().IsReady(); },
          "Whether everything that led here has run, or failed. Never blocks.")
      .def("_full", [](const PyTensor& t) { return ArrayOf(ValueOrRaise(FullReleased(Tensor(t.value())))); })
      .def("_local",
           [](const PyTensor& t, nb::handle position) {
             return ArrayOf(ValueOrRaise(LocalReleased(Tensor(t.value()), PositionFromPython(position))));
           })
      .def("_full_to", &FullTo)
      .def("_rows_to", &RowsTo)
      .def("_local_to", &LocalTo)
      .def("_box", [](const PyTensor& t, nb::handle position) {
        nb::list out;
        for (const Interval& i : ValueOrRaise(t.value().BoxAt(PositionFromPython(position)))) {
          out.append(nb::make_tuple(i.start, i.stop));
        }
        return out;
      });
}

}  // namespace

void DefineTensor(nb::module_& module) {
  nb::class_<PyTensor> tensor(module, "Tensor", nb::is_weak_referenceable());
  DefineBinary<OpId::kAdd>(tensor, "__add__", "__radd__", "__iadd__");
  DefineBinary<OpId::kSub>(tensor, "__sub__", "__rsub__", "__isub__");
  DefineBinary<OpId::kMul>(tensor, "__mul__", "__rmul__", "__imul__");
  DefineBinary<OpId::kDiv>(tensor, "__truediv__", "__rtruediv__", "__itruediv__");
  DefineBinary<OpId::kMatmul>(tensor, "__matmul__", "__rmatmul__", "__imatmul__");
  DefineBinary<OpId::kFloorDivide>(tensor, "__floordiv__", "__rfloordiv__", "__ifloordiv__");
  DefineBinary<OpId::kRemainder>(tensor, "__mod__", "__rmod__", "__imod__");
  DefineBinary<OpId::kPow>(tensor, "__pow__", "__rpow__", "__ipow__");
  DefineBinary<OpId::kBitwiseAnd>(tensor, "__and__", "__rand__", "__iand__");
  DefineBinary<OpId::kBitwiseOr>(tensor, "__or__", "__ror__", "__ior__");
  DefineBinary<OpId::kBitwiseXor>(tensor, "__xor__", "__rxor__", "__ixor__");
  DefineBinary<OpId::kShiftLeft>(tensor, "__lshift__", "__rlshift__", "__ilshift__");
  DefineBinary<OpId::kShiftRight>(tensor, "__rshift__", "__rrshift__", "__irshift__");
  tensor.def("__invert__", [](nb::handle a) { return UnaryOp(OpId::kBitwiseInvert, a); });
  tensor.def("__abs__", [](nb::handle a) { return UnaryOp(OpId::kAbs, a); });
  constexpr const char* kEqualDoc =
      "Elementwise, a bool tensor. x == None is False; of a list, a tuple or a text it is a TypeError.";
  constexpr const char* kNotEqualDoc =
      "Elementwise, a bool tensor. x != None is True; of a list, a tuple or a text it is a TypeError.";
  tensor.def("__eq__", &ComparisonOp<OpId::kEqual, Py_EQ>, nb::is_operator(), kEqualDoc)
      .def("__ne__", &ComparisonOp<OpId::kNotEqual, Py_NE>, nb::is_operator(), kNotEqualDoc)
      .def("__lt__", &ComparisonOp<OpId::kLess, Py_GT>, nb::is_operator())
      .def("__le__", &ComparisonOp<OpId::kLessEqual, Py_GE>, nb::is_operator())
      .def("__gt__", &ComparisonOp<OpId::kGreater, Py_LT>, nb::is_operator())
      .def("__ge__", &ComparisonOp<OpId::kGreaterEqual, Py_LE>, nb::is_operator());
  tensor.def("__neg__", [](nb::handle a) { return UnaryOp(OpId::kNeg, a); });
  DefineReading(tensor);
  DefineViews(tensor);
  DefineFound(module);
  DefineEinsum(module);
  DefineIndexing(module);

  module.def("host_array", &MakeHostArray);
  module.def("wait_all", &WaitAllReleased, nb::arg(), nb::arg().none());
  module.def("call", &CallAny);
  module.def("set_item", &SetItem, nb::arg(), nb::arg().none(), nb::arg().none());
  module.def("rebind", &Rebind);
  module.def("call_on_own", &CallOnOwn);
  module.def("call_all", &CallAll);
  module.def("plans_of", &PlansOf);
}

}  // namespace tessera::python
