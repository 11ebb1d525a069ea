#include "client/python/convert.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "schemas/ops/check_range.h"
#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"

namespace tessera::python {

Hooks& GetHooks() {
  static Hooks* hooks = new Hooks();
  return *hooks;
}

namespace {

// The text that the hook makes of an error's. A hook that fails hides no cause. One that fails hides no cause.
nb::object Explained(nb::object text) {
  const nb::object& explain = GetHooks().explain;
  if (!explain.is_valid()) return text;
  nb::object shown = nb::steal(PyObject_CallFunctionObjArgs(explain.ptr(), text.ptr(), nullptr));
  if (shown.is_valid() && PyUnicode_Check(shown.ptr()) != 0) return shown;
  PyErr_Clear();
  return text;
}

}  // namespace

void Raise(const absl::Status& status) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  nb::object key = nb::int_(static_cast<int>(status.code()));
  if (status.GetPayload(kDTypeErrorPayload).has_value()) key = nb::str("dtype");
  if (status.GetPayload(kIndexErrorPayload).has_value()) key = nb::str("index");
  if (status.GetPayload(kLinalgErrorPayload).has_value()) key = nb::str("linalg");
  if (status.GetPayload(kNumberErrorPayload).has_value()) key = nb::str("number");
  nb::object error_class = nb::borrow(GetHooks().error_classes[key]);
  const std::string message(status.message());
  nb::object text = nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  if (absl::IsUnavailable(status)) text = Explained(std::move(text));
  PyErr_SetObject(error_class.ptr(), text.ptr());
  throw nb::python_error();
}

void RaiseIfError(const absl::Status& status) {
  if (!status.ok()) Raise(status);
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

nb::tuple ShapeToPython(absl::Span<const int64_t> shape) {
  nb::tuple out = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (size_t d = 0; d < shape.size(); ++d) {
    PyTuple_SetItem(out.ptr(), static_cast<Py_ssize_t>(d), PyLong_FromLongLong(shape[d]));
  }
  return out;
}

Shape ShapeFromPython(nb::handle shape) {
  Shape out;
  for (nb::handle extent : shape) out.push_back(nb::cast<int64_t>(extent));
  return out;
}

nb::list IntegersToPython(const std::vector<int64_t>& values) {
  nb::list out;
  for (int64_t value : values) out.append(value);
  return out;
}

static std::vector<int64_t> IntegersFromPython(nb::handle values) {
  std::vector<int64_t> out;
  for (nb::handle value : values) out.push_back(nb::cast<int64_t>(value));
  return out;
}

Position PositionFromPython(nb::handle position) {
  Position out;
  for (nb::handle coordinate : position) out.push_back(nb::cast<int64_t>(coordinate));
  return out;
}

PlacementClasses& GetPlacementClasses() {
  static PlacementClasses* classes = new PlacementClasses();
  return *classes;
}

namespace {

nb::object PlacementToPython(const Placement& placement) {
  const PlacementClasses& known = GetPlacementClasses();
  if (placement.is_replicate()) return known.replicate;
  if (placement.is_partial()) return known.partial[static_cast<size_t>(placement.reduce_op())];
  if (placement.has_sizes()) return known.shard(placement.dim(), nb::tuple(IntegersToPython(placement.sizes())));
  const size_t dim = static_cast<size_t>(placement.dim());
  return dim < known.shards.size() ? known.shards[dim] : known.shard(placement.dim());
}

Placement PlacementFromPython(nb::handle placement) {
  const PlacementClasses& known = GetPlacementClasses();
  if (placement.is(known.replicate) || nb::isinstance(placement, known.replicate.type())) return Placement::Replicate();
  if (nb::isinstance(placement, known.shard)) {
    const nb::object sizes = placement.attr("sizes");
    return Placement::Shard(nb::cast<int>(placement.attr("dim")),
                            sizes.is_none() ? std::vector<int64_t>() : IntegersFromPython(sizes));
  }
  if (nb::isinstance(placement, known.partial[0].type())) {
    return Placement::Partial(ValueOrRaise(ParseReduceOp(nb::cast<std::string>(placement.attr("reduce_op")))));
  }
  Raise(absl::InvalidArgumentError(StrCat("a placement is ", nb::cast<std::string>(nb::repr(placement)),
                                          "; it must be Shard(dim), Replicate() or Partial(reduce_op)")));
}

}  // namespace

nb::tuple PlacementsToPython(const Placements& placements) {
  nb::tuple out = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(placements.size())));
  for (size_t i = 0; i < placements.size(); ++i) {
    PyTuple_SetItem(out.ptr(), static_cast<Py_ssize_t>(i), PlacementToPython(placements[i]).release().ptr());
  }
  return out;
}

Placements PlacementsFromPython(nb::handle placements) {
  Placements out;
  for (nb::handle placement : placements) out.push_back(PlacementFromPython(placement));
  return out;
}

namespace {

nb::list TextsToPython(const std::vector<std::string>& texts) {
  nb::list out;
  for (const std::string& text : texts) out.append(text);
  return out;
}

nb::list WorkersToPython(absl::Span<const WorkerIndex> workers) {
  nb::list out;
  for (const WorkerIndex worker : workers) out.append(worker.value);
  return out;
}

nb::dict WorkerToPython(const WorkerReport& worker) {
  nb::dict out;
  out["index"] = worker.index;
  out["state"] = std::string(ToText(worker.state));
  out["host"] = worker.host;
  out["device"] = std::string(ToText(worker.device));
  out["pid"] = worker.pid;
  out["memory_bytes"] = worker.memory_bytes;
  out["used_bytes"] = worker.used_bytes;
  out["spilled_bytes"] = worker.spilled_bytes;
  out["spilled_to_host_bytes"] = worker.spilled_to_host_bytes;
  out["received_bytes"] = worker.received_bytes;
  out["outstanding"] = worker.outstanding;
  return out;
}

[[noreturn]] void RaiseTooLarge(nb::handle object) {
  Raise(DTypeError(StrCat("operand: the integer ", std::string(nb::str(object).c_str()), " does not fit 64 bits")));
}

int64_t IntegerFromPython(nb::handle object) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow != 0) RaiseTooLarge(object);
  return value;
}

// 2^63 and more: a number of u64 alone.
Scalar LargeFromPython(nb::handle object) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(object.ptr());
  if (PyErr_Occurred() == nullptr) return Scalar::FromBits(DType::kU64, ScalarStrength::kStrong, value);
  PyErr_Clear();
  RaiseTooLarge(object);
}

bool IsLarge(nb::handle object) {
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return overflow > 0;
}

Scalar ComplexFromPython(nb::handle object) {
  nb::object number = nb::borrow(object);
  if (!PyComplex_CheckExact(object.ptr())) {
    number = nb::borrow(reinterpret_cast<PyObject*>(&PyComplex_Type))(object);
  }
  return Scalar::Complex({PyComplex_RealAsDouble(number.ptr()), PyComplex_ImagAsDouble(number.ptr())});
}

Scalar StrongScalar(DType dtype, nb::handle value) {
  constexpr ScalarStrength kStrong = ScalarStrength::kStrong;
  switch (Kind(dtype)) {
    case DTypeKind::kBool: return Scalar::Bool(nb::cast<bool>(value), kStrong);
    case DTypeKind::kComplex: return ComplexFromPython(value).As(dtype);
    case DTypeKind::kFloat:
      return Scalar::FromBits(dtype, kStrong, Scalar::Float(nb::cast<double>(value)).As(dtype).bits());
    default:
      if (IsLarge(value)) return LargeFromPython(value).As(dtype);
      return Scalar::FromBits(dtype, kStrong, Scalar::Int(IntegerFromPython(value)).As(dtype).bits());
  }
}

}  // namespace

nb::object PlanToPython(const PlanReport& plan) {
  nb::dict out;
  out["text"] = plan.text;
  out["steps"] = TextsToPython(plan.steps);
  out["implicit"] = TextsToPython(plan.implicit);
  out["bytes_received"] = IntegersToPython(plan.received_bytes);
  out["bytes_sent"] = IntegersToPython(plan.sent_bytes);
  out["peak_bytes"] = IntegersToPython(plan.peak_bytes);
  out["predicted_seconds"] = plan.predicted_seconds;
  nb::list placements, outputs;
  for (const TensorSpec& output : plan.outputs) {
    placements.append(PlacementsToPython(output.placements));
    outputs.append(ToText(output));
  }
  out["placements"] = placements;
  out["outputs"] = outputs;
  out["grid"] = plan.grid;
  out["runners_up"] = TextsToPython(plan.runners_up);
  out["workers"] = WorkersToPython(plan.workers);
  nb::list flows;
  for (const StepFlowsReport& step : plan.flows) {
    nb::dict one;
    one["title"] = step.title;
    one["workers"] = WorkersToPython(step.workers);
    one["is_exchange"] = step.is_exchange;
    one["joins_last"] = step.joins_last;
    nb::list pairs;
    for (const auto& flow : step.flows) pairs.append(nb::make_tuple(flow.from.value, flow.to.value, flow.bytes));
    one["flows"] = pairs;
    flows.append(one);
  }
  out["flows"] = flows;
  return out;
}

nb::object ClusterToPython(const ClusterReport& report) {
  nb::dict out;
  out["epoch"] = report.epoch;
  out["uptime_s"] = report.uptime_s;
  nb::list workers, sessions, tensors;
  for (const WorkerReport& worker : report.workers) workers.append(WorkerToPython(worker));
  for (const SessionReport& session : report.sessions) {
    nb::dict one;
    one["id"] = session.id;
    one["tenant"] = session.tenant;
    one["client"] = session.client;
    one["name"] = session.name;
    one["tensors"] = session.tensors;
    one["bytes"] = session.bytes;
    one["spilled_bytes"] = session.spilled_bytes;
    one["queued"] = session.queued;
    one["connected"] = session.connected;
    sessions.append(one);
  }
  for (const TensorReport& tensor : report.tensors) {
    nb::dict one;
    one["handle"] = tensor.handle;
    one["spec"] = ToText(tensor.spec);
    one["workers"] = WorkersToPython(tensor.spec.mesh.workers());
    one["bytes_per_worker"] = tensor.bytes_per_worker;
    one["state"] = std::string(ToText(tensor.state));
    one["name"] = tensor.name;
    one["error"] = std::string(tensor.status.message());
    tensors.append(one);
  }
  out["workers"] = workers;
  out["sessions"] = sessions;
  out["tensors"] = tensors;
  out["session_count"] = report.session_count;
  out["tensor_count"] = report.tensor_count;
  out["next_ordinal"] = report.next_ordinal;
  out["plans_cached"] = report.plans_cached;
  out["plan_hits"] = report.plan_hits;
  out["plan_misses"] = report.plan_misses;
  return out;
}

nb::dict ProfileToPython(const ProfileReport& report) {
  nb::list ops;
  for (const ProfiledOp& op : report.ops) {
    nb::list segment, runs;
    for (const std::string& name : op.segment) segment.append(name);
    for (const ProfiledRun& run : op.runs) {
      runs.append(nb::make_tuple(run.worker, run.started_ns, run.ended_ns, run.work_ns, run.received_bytes,
                                 run.pushed_bytes, run.transferred_bytes));
    }
    ops.append(nb::make_tuple(op.number, op.name, segment, op.output, op.predicted_us, op.failure, runs, op.place));
  }
  nb::dict errors;
  for (const ProfileReport::Clock& clock : report.clocks) errors[nb::int_(clock.worker)] = clock.error_ns;
  nb::dict out;
  out["ops"] = ops;
  out["forgotten_ops"] = report.forgotten_ops;
  out["ops_under_way"] = report.ops_under_way;
  out["clock_errors_ns"] = errors;
  return out;
}

bool OperandFromPython(nb::handle object, CallOperand* out) {
  PyTensor* tensor = nullptr;
  if (nb::try_cast<PyTensor*>(object, tensor) && tensor != nullptr) {
    out->tensor = &tensor->value().state();
    return true;
  }
  PyObject* raw = object.ptr();
  if (PyFloat_CheckExact(raw)) {
    out->scalar = Scalar::Float(PyFloat_AsDouble(raw));
  } else if (PyBool_Check(raw)) {
    out->scalar = Scalar::Bool(raw == Py_True);
  } else if (PyLong_CheckExact(raw)) {
    out->scalar = IsLarge(object) ? LargeFromPython(object) : Scalar::Int(IntegerFromPython(object));
  } else if (PyComplex_CheckExact(raw)) {
    out->scalar = ComplexFromPython(object);
  } else if (PyTuple_CheckExact(raw) && PyTuple_Size(raw) == 2) {
    out->scalar = StrongScalar(static_cast<DType>(nb::cast<int>(object[0])), object[1]);
  } else {
    return false;
  }
  return true;
}

Scalar ScalarFromPython(nb::handle object) {
  CallOperand operand;
  if (!OperandFromPython(object, &operand) || operand.tensor != nullptr) {
    Raise(absl::InvalidArgumentError(StrCat("a number is wanted here, not ", std::string(nb::repr(object).c_str()))));
  }
  return operand.scalar;
}

namespace {

AttributeValue AttributeFromPython(AttributeKind kind, nb::handle value) {
  switch (kind) {
    case AttributeKind::kFlag: return nb::cast<bool>(value);
    case AttributeKind::kInteger: return nb::cast<int64_t>(value);
    case AttributeKind::kNumber: return nb::cast<double>(value);
    case AttributeKind::kDType: return static_cast<DType>(nb::cast<int>(value));
    case AttributeKind::kText: return nb::cast<std::string>(value);
    case AttributeKind::kIntegers: return IntegersFromPython(value);
    case AttributeKind::kShape: return ShapeFromPython(value);
    case AttributeKind::kMesh: return nb::cast<Mesh>(value);
    case AttributeKind::kPlacements: return PlacementsFromPython(value);
    case AttributeKind::kPlacementsEach: {
      std::vector<Placements> each;
      for (nb::handle placements : value) each.push_back(PlacementsFromPython(placements));
      return each;
    }
    case AttributeKind::kIndex: break;
  }
  std::vector<IndexItem> index;
  for (nb::handle item : value) {
    index.push_back({static_cast<IndexItem::Kind>(nb::cast<int>(item[0])), nb::cast<int64_t>(item[1]),
                     nb::cast<int64_t>(item[2]), nb::cast<int64_t>(item[3])});
  }
  return index;
}

}  // namespace

OpCall CallFromPython(int op, const nb::kwargs& attributes) {
  OpCall call;
  call.op = static_cast<OpId>(op);
  for (auto [key, value] : attributes) {
    if (value.is_none()) continue;
    const std::string name = nb::cast<std::string>(key);
    if (name == "scalars") {
      for (nb::handle scalar : value) call.scalars.push_back(ScalarFromPython(scalar));
      continue;
    }
    const AttributeId id = ValueOrRaise(FindAttributeByName(name));
    call.attributes.Set(id, AttributeFromPython(KindOf(id), value));
  }
  return call;
}

}  // namespace tessera::python
