// The Python class Recording: ops that were asked for, and that are asked for again.

#include "client/python/recording_module.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "client/python/convert.h"
#include "client/recorded_graph.h"
#include "client/recording.h"
#include "client/session_calls.h"
#include "schemas/types/str_cat.h"

namespace tessera::python {
namespace {

nb::object NumberToPython(const Scalar& scalar) {
  switch (Kind(scalar.dtype())) {
    case DTypeKind::kBool: return nb::bool_(scalar.AsBool());
    case DTypeKind::kSigned:
    case DTypeKind::kUnsigned: return nb::int_(scalar.AsInt());
    case DTypeKind::kFloat: return nb::float_(scalar.AsDouble());
    case DTypeKind::kComplex: break;
  }
  const std::complex<double> value = scalar.AsComplex();
  return nb::steal(PyComplex_FromDoubles(value.real(), value.imag()));
}

// The observer is called with the list of a call's numbers; the call raises what it raises.
void Begin(Recording& recording, nb::callable observer) {
  RaiseIfError(recording.Begin([observer = std::move(observer)](absl::Span<const Scalar> numbers) {
    const nb::gil_scoped_acquire acquired;
    if (PyErr_Occurred() != nullptr) return;
    nb::list list;
    for (const Scalar& number : numbers) list.append(NumberToPython(number));
    PyObject* result = PyObject_CallFunctionObjArgs(observer.ptr(), list.ptr(), nullptr);
    Py_XDECREF(result);
  }));
}

// Cell.bind of tessera.torch.
void BindCell(nb::handle cell, nb::handle value) {
  static const nb::object& version = *new nb::object(nb::str("version"));
  cell.attr("handle") = value;
  nb::setattr(cell, version, nb::getattr(cell, version) + nb::int_(1));
  cell.attr("reduced") = nb::none();
  cell.attr("row_sum") = nb::none();
}

// `given_up`: of each input, whether its owner has a result in its place from now on; it counts where nobody else has
// the object. `cells`: (cell, number of the result that it is bound to). Between the replay and the bindings no code of
// Python runs, so that no Ctrl-C leaves a cell with an input that was given up. None: an input is of another spec than
// it was.
nb::object Replay(Recording& recording, const nb::list& inputs, const nb::list& given_up,
                  const std::vector<std::pair<size_t, nb::object>>& numbers, const nb::list& cells) {
  constexpr Py_ssize_t kOwnReferences = 2;  // of who gives it up, and of the list
  std::vector<ReplayInput> list;
  list.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const nb::handle object = inputs[i];
    const PyTensor& tensor = nb::cast<const PyTensor&>(object);
    PyObject* const raw = PyList_GetItem(inputs.ptr(), static_cast<Py_ssize_t>(i));
    const HandlePtr& state = tensor.value().state();
    RaiseIfError(Tensor(tensor.value()).AwaitSpec());
    if (i < recording.inputs().size() && !recording.Fits(i, state->spec)) return nb::none();
    list.push_back({&state, nb::cast<bool>(given_up[i]) && Py_REFCNT(raw) == kOwnReferences && state.use_count() == 1});
  }
  std::vector<ReplayNumber> replaced;
  for (const auto& [number, value] : numbers) replaced.push_back({number, ScalarFromPython(value)});
  nb::list out;
  if (list.empty()) Raise(absl::InvalidArgumentError("capture: it takes no tensors"));
  SessionImpl& session = *(*list[0].tensor)->session;
  for (HandlePtr& handle : ValueOfOk(session.calls().Replay(recording, list, replaced))) {
    out.append(nb::cast(PyTensor{Tensor(std::move(handle))}));
  }
  for (nb::handle one : cells) BindCell(one[0], out[nb::cast<size_t>(one[1])]);
  return nb::object(out);
}

// Handles are numbered by session.
nb::tuple NameOf(const Recording& recording, uint64_t handle) {
  return nb::make_tuple(reinterpret_cast<uintptr_t>(recording.session()), handle);
}

nb::object DifferenceOf(const Recording& recording, const Recording& other) {
  const std::optional<Recording::Difference> found = recording.DifferenceFrom(other);
  if (!found.has_value()) return nb::none();
  return nb::make_tuple(found->call, found->text);
}

// (notation, numbers of the inputs that are its operands, mesh of a call without operands or None); or why there is
// none, as a text.
nb::object GraphOf(const Recording& recording, const std::vector<int>& results) {
  const absl::StatusOr<RecordedGraph> graph = MakeRecordedGraph(recording, results);
  if (!graph.ok()) return nb::cast(std::string(StdView(graph.status().message())));
  return nb::make_tuple(graph->notation, graph->inputs, graph->mesh);
}

bool IsAllowed(const SessionImpl& session) {
  return ThreadImplicitPolicy().value_or(session.calls().implicit_policy()) == ImplicitPolicy::kAllow;
}

// The key of a recorded function's tensors, by which it knows a call: their specs, and which of them are the same. None
// where the calls are to go op by op: a recording, a plan or a wait for each op is wanted, or notice of what moves; or
// a spec is pending, or a tensor is, whose reduced value ops share.
nb::object GraphKey(const nb::list& tensors) {
  if (Recording::Current() != nullptr || PlanCapture::Current() != nullptr || Blocking::IsOn()) return nb::none();
  std::string key;
  std::vector<const HandleState*> states;
  for (const nb::handle object : tensors) {
    const PyTensor& tensor = nb::cast<const PyTensor&>(object);
    const HandlePtr& state = tensor.value().state();
    if (!state->spec_known || state->spec->has_partial() || !IsAllowed(*state->session)) return nb::none();
    const auto same = std::find(states.begin(), states.end(), state.get());
    StrAppend(&key, ToText(*state->spec), " ", same - states.begin(), ";");
    states.push_back(state.get());
  }
  return nb::cast(key);
}

}  // namespace

void DefineRecording(nb::module_& module) {
  nb::class_<Recording>(module, "Recording")
      .def(nb::init<>())
      .def("begin", &Begin)
      .def("begin_lenient", [](Recording& r) { RaiseIfError(r.BeginLenient()); })
      .def("end", &Recording::End)
      .def_prop_ro("spoiled", &Recording::spoiled)
      .def_prop_ro("literals",
                   [](const Recording& r) {
                     nb::list out;
                     for (const RecordedLiteral& literal : r.literals()) {
                       const uint64_t handle = r.inputs()[static_cast<size_t>(-1 - literal.value)].handle;
                       out.append(nb::make_tuple(literal.value, NameOf(r, handle)));
                     }
                     return out;
                   })
      .def("graph", &GraphOf)
      .def_prop_ro("inputs",
                   [](const Recording& r) {
                     nb::list out;
                     for (const RecordedInput& input : r.inputs()) out.append(NameOf(r, input.handle));
                     return out;
                   })
      .def_prop_ro("kept",
                   [](const Recording& r) {
                     nb::list out;
                     for (const int value : r.kept()) out.append(nb::make_tuple(value, NameOf(r, r.HandleOf(value))));
                     return out;
                   })
      .def_prop_ro("call_count", &Recording::call_count)
      .def_prop_ro("number_count", &Recording::number_count)
      .def("constant",
           [](const Recording& r, size_t input) -> nb::object {
             HandlePtr live = r.session()->FindLive(r.inputs()[input].handle);
             return live == nullptr ? nb::none() : nb::cast(PyTensor{Tensor(std::move(live))});
           })
      .def("keep", &Recording::Keep)
      .def("difference", &DifferenceOf)
      .def("replay", &Replay);
  module.def("graph_key", &GraphKey);
}

}  // namespace tessera::python
