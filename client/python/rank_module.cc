#include "client/python/rank_module.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <utility>

#include "client/process_group.h"
#include "client/python/convert.h"
#include "client/python/interpreter.h"
#include "client/python/rank_table.h"
#include "client/python/view_module.h"

namespace tessera::python {
namespace {

// A group that this process has joined. Python's objects that use it share the C++ one.
struct PyGroup {
  std::shared_ptr<TesseraGroup> group;
  ProcessGroup& joined() const { return *group->memory.group(); }
};

struct PyGroupWork {
  GroupWork work;
};

// Bytes of Python that a call reads or writes.
class HeldBuffer {
 public:
  HeldBuffer(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw nb::python_error();
  }
  ~HeldBuffer() { PyBuffer_Release(&buffer_); }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  char* data() const { return static_cast<char*>(buffer_.buf); }
  int64_t size() const { return buffer_.len; }

 private:
  Py_buffer buffer_{};
};

// A call on arrays of this process, which stay until it is done, whoever drops the work.
class PyMemoryWork {
 public:
  PyMemoryWork(PyGroup group, int dtype, nb::handle input, nb::handle output)
      : group_(std::move(group)), dtype_(static_cast<DType>(dtype)) {
    if (!input.is_none()) held_->input.emplace(input, PyBUF_C_CONTIGUOUS);
    if (!output.is_none()) held_->output.emplace(output, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  }
  PyMemoryWork(PyMemoryWork&&) = default;
  PyMemoryWork(const PyMemoryWork&) = delete;
  PyMemoryWork& operator=(const PyMemoryWork&) = delete;
  ~PyMemoryWork() {
    if (work_ == nullptr) return;
    work_->WhenDone(group_.group->memory, [held = std::move(held_)](const absl::Status&) mutable {
      if (!Py_IsInitialized()) return;
      const nb::gil_scoped_acquire acquired;
      held.reset();
    });
  }

  void Start(const GroupCallOptions& call) {
    std::optional<HostView> input;
    std::optional<HostTarget> output;
    const auto elements_of = [this](const HeldBuffer& buffer) { return buffer.size() / SizeBytes(dtype_); };
    if (held_->input.has_value()) input = MakeHostView(dtype_, {elements_of(*held_->input)}, held_->input->data());
    if (held_->output.has_value()) output = HostTarget{dtype_, {elements_of(*held_->output)}, held_->output->data()};
    work_ = ValueOrRaise(Released([&] { return group_.group->memory.Start(call, input, output); }));
  }
  void Wait(std::optional<double> timeout_s) const {
    RaiseIfError(Released([&] { return work_->Wait(timeout_s); }));
  }
  bool IsDone() const {
    return Released([&] { return work_->IsDone(); });
  }
  int32_t source() const { return work_->source(); }

 private:
  struct Held {
    std::optional<HeldBuffer> input, output;
  };
  PyGroup group_;
  DType dtype_;
  std::shared_ptr<Held> held_ = std::make_shared<Held>();
  std::shared_ptr<MemoryWork> work_;
};

PyMemoryWork RunOnMemory(const PyGroup& group, int kind, int op, int peer, int tag, int dtype, nb::handle input,
                         nb::handle output, double timeout_s, bool is_waited_for) {
  PyMemoryWork work(group, dtype, input, output);
  work.Start({static_cast<CollectiveKind>(kind), static_cast<ReduceOp>(op), peer, tag, timeout_s, is_waited_for});
  return work;
}

PyGroup Join(const Session& session, const std::string& key, int64_t size, int64_t rank, int32_t worker,
             double timeout_s) {
  const GroupOptions options{key, size, rank, WorkerIndex(worker), timeout_s};
  auto joined = ValueOrRaise(Released([&] { return ProcessGroup::Join(session, options); }));
  // Its thread may be in a callback that waits for the interpreter.
  const auto end = [](TesseraGroup* group) {
    if (tessera_interpreter.holds_lock() == 0) {
      delete group;
      return;
    }
    nb::gil_scoped_release release;
    delete group;
  };
  return {std::shared_ptr<TesseraGroup>(new TesseraGroup(std::move(joined)), end)};
}

// `result`: (dtype number, shape), or None where the rank takes nothing.
PyGroupWork Run(const PyGroup& group, int kind, int op, int peer, int tag, nb::handle operand, nb::handle result,
                double timeout_s) {
  const GroupCallOptions call{static_cast<CollectiveKind>(kind), static_cast<ReduceOp>(op), peer, tag, timeout_s};
  const Tensor* given = operand.is_none() ? nullptr : &nb::cast<const PyTensor&>(operand).value();
  std::optional<Shape> shape;
  std::optional<DType> dtype;
  if (!result.is_none()) {
    dtype = static_cast<DType>(nb::cast<int>(result[0]));
    shape = ShapeFromPython(result[1]);
  }
  return {ValueOrRaise(Released([&] { return group.joined().Run(call, given, shape, dtype); }))};
}

nb::object SecondsOrNone(double seconds) { return seconds < 0 ? nb::none() : nb::cast(seconds); }

// {"members": [{...}, ...], "calls": [{...}, ...]}: distributed.flight_record.
nb::dict FlightToPython(const FlightReport& report) {
  nb::list members, calls;
  for (const FlightReport::Member& member : report.members) {
    nb::dict one;
    one["process"] = member.process;
    one["state"] = !member.why_gone.empty() ? "gone" : member.connected ? "here" : "away";
    one["why"] = member.why_gone;
    one["calls"] = member.next_call - 1;
    members.append(one);
  }
  for (const FlightReport::Call& call : report.calls) {
    nb::dict one;
    nb::list arrived;
    for (const double seconds : call.arrived_s) arrived.append(SecondsOrNone(seconds));
    one["call"] = call.number;
    one["what"] = call.what;
    one["arrived"] = arrived;
    one["matched"] = SecondsOrNone(call.matched_s);
    one["failure"] = call.failure;
    calls.append(one);
  }
  nb::dict out;
  out["members"] = members;
  out["calls"] = calls;
  return out;
}

}  // namespace

void DefineRanks(nb::module_& module) {
  nb::class_<PyGroupWork>(module, "GroupWork")
      .def(
          "wait",
          [](const PyGroupWork& w, std::optional<double> timeout_s) {
            RaiseIfError(Released([&] { return w.work.Wait(timeout_s); }));
          },
          nb::arg("timeout").none() = nb::none())
      .def_prop_ro("is_done", [](const PyGroupWork& w) { return w.work.IsDone(); })
      .def_prop_ro("source", [](const PyGroupWork& w) { return w.work.source(); })
      .def_prop_ro("is_late", [](const PyGroupWork& w) { return w.work.is_late(); })
      // A late one waits for its message.
      .def_prop_ro("result", [](const PyGroupWork& w) -> nb::object {
        if (w.work.is_late()) return nb::cast(PyTensor{ValueOrRaise(Released([&] { return w.work.LateResult(); }))});
        if (!w.work.result().has_value()) return nb::none();
        return nb::cast(PyTensor{*w.work.result()});
      });
  nb::class_<PyMemoryWork>(module, "MemoryWork")
      .def("wait", &PyMemoryWork::Wait, nb::arg("timeout").none() = nb::none())
      .def_prop_ro("is_done", &PyMemoryWork::IsDone)
      .def_prop_ro("source", &PyMemoryWork::source)
      .def_prop_ro("is_late", [](const PyMemoryWork&) { return false; })
      .def_prop_ro("result", [](const PyMemoryWork&) { return nb::none(); });
  nb::class_<PyGroup>(module, "RankGroup")
      .def("run_on_memory", &RunOnMemory, nb::arg("kind"), nb::arg("op"), nb::arg("peer"), nb::arg("tag"),
           nb::arg("dtype"), nb::arg("input").none(), nb::arg("output").none(), nb::arg("timeout"),
           nb::arg("is_waited_for"))
      .def("run", &Run, nb::arg("kind"), nb::arg("op"), nb::arg("peer"), nb::arg("tag"), nb::arg("operand").none(),
           nb::arg("result").none(), nb::arg("timeout"))
      // Raises where a message of this rank couldn't be taken, and nothing has told it; the group is left.
      .def("leave",
           [](const PyGroup& g) {
             RaiseIfError(Released([&] {
               const absl::Status complaint = g.joined().TakeComplaint();
               g.joined().Leave();
               return complaint;
             }));
           })
      .def("tell", [](const PyGroup& g) { RaiseIfError(g.joined().TakeComplaint()); })
      .def("flight",
           [](const PyGroup& g, uint32_t last_calls) {
             return FlightToPython(ValueOrRaise(Released([&] { return g.joined().Flight(last_calls); })));
           })
      .def_prop_ro("rank", [](const PyGroup& g) { return g.joined().rank(); })
      .def_prop_ro("size", [](const PyGroup& g) { return g.joined().size(); })
      .def_prop_ro("key", [](const PyGroup& g) { return g.joined().key(); })
      .def_prop_ro("members",
                   [](const PyGroup& g) {
                     nb::list out;
                     for (const GroupMemberReport& member : g.joined().members()) {
                       out.append(nb::make_tuple(member.worker, member.process));
                     }
                     return out;
                   })
      .def_prop_ro("table", [](const PyGroup&) { return reinterpret_cast<uintptr_t>(&RankTable()); })
      .def_prop_ro("group", [](const PyGroup& g) { return reinterpret_cast<uintptr_t>(g.group.get()); });
  module.def("join_group", &Join, nb::arg("session"), nb::arg("key"), nb::arg("size"), nb::arg("rank"),
             nb::arg("worker"), nb::arg("timeout"));
  // take: writes what a tensor receives, before anybody reads it.
  module.def("await_value",
             [](nb::handle tensor, nb::object take) { Await(*nb::inst_ptr<PyTensor>(tensor), std::move(take)); });
  module.def("forget_awaited",
             [](nb::handle tensor, nb::handle take) { ForgetAwaited(*nb::inst_ptr<PyTensor>(tensor), take); });
}

}  // namespace tessera::python
