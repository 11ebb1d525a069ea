// The extension module _tessera: sessions, meshes, clusters. The package `tessera` is what people import.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/cluster.h"
#include "client/python/buffer_view.h"
#include "client/python/calls_table.h"
#include "client/python/convert.h"
#include "client/python/file_module.h"
#include "client/python/interpreter.h"
#include "client/python/parts_module.h"
#include "client/python/publication_module.h"
#include "client/python/rank_module.h"
#include "client/python/recording_module.h"
#include "client/python/site_finder.h"
#include "client/python/tensor_module.h"
#include "client/session.h"
#include "client/session_calls.h"
#include "client/wait.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/address.h"
#include "schemas/types/bounds.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/version.h"

namespace tessera::python {
namespace {

// Waits let go of the interpreter and look for signals.
class PythonWaits final : public WaitObserver {
 public:
  void* Enter() override { return tessera_interpreter.holds_lock() ? PyEval_SaveThread() : nullptr; }
  void Leave(void* token) override {
    if (token != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(token));
  }
  absl::Status Poll() override {
    PyGILState_STATE state = PyGILState_Ensure();
    const bool raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(state);
    return raised ? absl::CancelledError("wait: interrupted") : absl::OkStatus();
  }
};

void WarnImplicit(const std::string& text) {
  // An exception (warnings as errors) stays pending and is raised by the caller.
  PyObject* result = PyObject_CallFunction(GetHooks().warn_implicit.ptr(), "s", text.c_str());
  Py_XDECREF(result);
}

std::optional<ImplicitPolicy> PolicyOf(std::optional<int> policy) {
  if (!policy.has_value()) return std::nullopt;
  return static_cast<ImplicitPolicy>(*policy);
}

PyTensor Distribute(const Session& session, nb::handle array, int dtype, const Mesh& mesh, nb::handle placements) {
  BufferView buffer(array, dtype);
  const Placements wanted = PlacementsFromPython(placements);
  return PyTensor{ValueOrRaise(Released([&] { return session.DistributeTensor(buffer.view(), mesh, wanted); }))};
}

// read(start, stop, memory): writes those rows to the memory, which it may not keep.
PyTensor DistributeRows(const Session& session, int dtype, nb::handle shape, const Mesh& mesh, nb::handle placements,
                        const nb::callable& read) {
  const Shape extents = ShapeFromPython(shape);
  const int64_t row_bytes =
      extents.empty() ? 0
                      : NumElements(extents) / std::max<int64_t>(extents[0], 1) * SizeBytes(static_cast<DType>(dtype));
  const auto reader = [&](Interval rows, char* destination) -> absl::Status {
    const nb::gil_scoped_acquire acquired;
    try {
      nb::object memory = nb::steal(PyMemoryView_FromMemory(destination, rows.size() * row_bytes, PyBUF_WRITE));
      read(rows.start, rows.stop, memory);
      memory.attr("release")();
      return absl::OkStatus();
    } catch (nb::python_error& error) {
      error.restore();  // and is raised as it is
      return absl::CancelledError("distribute_tensor: reading the rows failed");
    }
  };
  const Placements wanted = PlacementsFromPython(placements);
  return PyTensor{ValueOrRaise(
      Released([&] { return session.DistributeRows(static_cast<DType>(dtype), extents, mesh, wanted, reader); }))};
}

PyTensor FromLocal(const Session& session, int dtype, nb::handle shape, const Mesh& mesh, nb::handle placements,
                   const nb::list& arrays) {
  TensorSpec spec = ValueOrRaise(TensorSpec::Make("from_local", static_cast<DType>(dtype), ShapeFromPython(shape), mesh,
                                                  PlacementsFromPython(placements)));
  std::vector<std::unique_ptr<BufferView>> buffers;
  std::vector<HostView> views;
  for (nb::handle array : arrays) {
    buffers.push_back(std::make_unique<BufferView>(array, dtype));
    views.push_back(buffers.back()->view());
  }
  return PyTensor{ValueOrRaise(Released([&] { return session.FromLocal(spec, views); }))};
}

PyTensor Create(const Session& session, int op, const nb::kwargs& attributes) {
  const OpCall call = CallFromPython(op, attributes);
  return PyTensor{Tensor(ValueOrRaise(session.impl()->calls().Call(call, {})))};
}

nb::list CreateAll(const Session& session, int op, const nb::kwargs& attributes) {
  const OpCall call = CallFromPython(op, attributes);
  nb::list out;
  for (HandlePtr& result : ValueOrRaise(session.impl()->calls().CallAll(call, {}))) {
    out.append(nb::cast(PyTensor{Tensor(std::move(result))}));
  }
  return out;
}

// The session holds a Python object until it is closed, or its last tensor is gone.
void KeepUntilClosed(const Session& session, nb::object needed) {
  session.impl()->KeepUntilClosed(std::shared_ptr<void>(needed.release().ptr(), [](void* object) {
    if (!Py_IsInitialized()) return;
    const nb::gil_scoped_acquire acquired;
    Py_DECREF(static_cast<PyObject*>(object));
  }));
}

nb::tuple CommEnd(const Session& session, uint64_t number) {
  CommReport report = ValueOrRaise(Released([&] { return session.CommEnd(number); }));
  nb::dict counts;
  for (const auto& [name, count] : report.collective_counts) counts[nb::str(name.c_str())] = count;
  return nb::make_tuple(IntegersToPython(report.received_bytes), IntegersToPython(report.sent_bytes),
                        IntegersToPython(report.uploaded_bytes), IntegersToPython(report.downloaded_bytes), counts,
                        nb::make_tuple(report.ops.first_op, report.ops.end_op));
}

nb::object ExplainRedistribute(const PyTensor& tensor, const nb::kwargs& attributes) {
  const Attributes wanted = CallFromPython(static_cast<int>(OpId::kRedistribute), attributes).attributes;
  const DType* dtype = wanted.Get(attribute::dtype);
  const RedistributeOptions options = {
      dtype == nullptr ? std::nullopt : std::optional<DType>(*dtype),
      wanted.Get(attribute::relabel) ? WorkerOrder::kMovesLeast : WorkerOrder::kAsGiven};
  const Tensor value = tensor.value();
  RaiseIfError(value.AwaitSpec());
  const TensorSpec& spec = value.spec();
  const Mesh* given_mesh = wanted.Get(attribute::mesh);
  const Mesh mesh = given_mesh == nullptr ? spec.mesh : *given_mesh;
  const Placements* given = wanted.Get(attribute::placements);
  const Placements placements = given == nullptr ? spec.placements : *given;
  return PlanToPython(ValueOrRaise(Released([&] { return value.ExplainRedistribute(mesh, placements, options); })));
}

void DefineMesh(nb::module_& module) {
  nb::class_<Mesh>(module, "Mesh")
      .def_static("make",
                  [](const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                     const std::vector<int32_t>& workers) {
                    std::vector<WorkerIndex> indexes;
                    for (int32_t worker : workers) indexes.emplace_back(worker);
                    return ValueOrRaise(Mesh::Make(shape, names, indexes));
                  })
      .def_prop_ro("shape", [](const Mesh& m) { return ShapeToPython(m.shape()); })
      .def_prop_ro("names", [](const Mesh& m) { return m.names(); })
      .def_prop_ro("workers",
                   [](const Mesh& m) {
                     nb::list out;
                     for (WorkerIndex worker : m.workers()) out.append(worker.value);
                     return nb::tuple(out);
                   })
      .def_prop_ro("size", [](const Mesh& m) { return m.size(); })
      .def_prop_ro("text", [](const Mesh& m) { return ToText(m); })
      .def("flatten", [](const Mesh& m, const std::string& name) { return ValueOrRaise(m.Flatten(name)); })
      .def("same", [](const Mesh& a, const Mesh& b) { return a == b; })
      .def("hash", [](const Mesh& m) { return static_cast<int64_t>(absl::HashOf(m) >> 1); });
  module.def("auto_placements", [](int dtype, nb::handle shape, const Mesh& mesh) {
    return PlacementsToPython(AutoPlacements(static_cast<DType>(dtype), ShapeFromPython(shape), mesh));
  });
  // Boxes of every position, in row-major order, of a spec given by its parts.
  module.def("boxes", [](int dtype, nb::handle shape, const Mesh& mesh, nb::handle placements) {
    TensorSpec spec = ValueOrRaise(TensorSpec::Make("box", static_cast<DType>(dtype), ShapeFromPython(shape), mesh,
                                                    PlacementsFromPython(placements)));
    nb::list out;
    for (int64_t flat = 0; flat < mesh.size(); ++flat) {
      nb::list box;
      for (const Interval& i : LocalBox(spec, mesh.PositionAt(flat))) box.append(nb::make_tuple(i.start, i.stop));
      out.append(box);
    }
    return out;
  });
}

void DefineSession(nb::module_& module) {
  nb::class_<Session>(module, "Session", nb::dynamic_attr(), nb::is_weak_referenceable())
      .def_static(
          "_connect",
          [](const std::string& address, const std::string& token, const std::string& name, const std::string& resume,
             double timeout_s, double lease_s, double stall_timeout_s, const std::string& client, const std::string& ca,
             const std::string& host_id, const std::string& door) {
            ConnectOptions options{address,      token,   "",        client,          name, resume, host_id,
                                   {"", "", ca}, lease_s, timeout_s, stall_timeout_s, door};
            return ValueOrRaise(Released([&] { return Session::Connect(options); }));
          })
      .def_prop_ro("id", &Session::id)
      .def_prop_ro("worker_count", &Session::worker_count)
      .def_prop_ro("resume_text", &Session::ResumeText, "What ts.connect(resume=) takes to come back to this session.")
      .def_prop_ro(
          "state", [](const Session& s) { return std::string(ToText(s.state())); },
          "\"open\", \"reconnecting\" while a connection that broke is made again, or \"closed\".")
      .def_prop_ro("_lease_s", [](const Session& s) { return s.impl()->welcome().lease_s; })
      .def("_find",
           [](const Session& s, const std::string& name) {
             return PyTensor{ValueOrRaise(Released([&] { return s.Find(name); }))};
           })
      .def("_detach", [](const Session& s) { RaiseIfError(Released([&] { return s.Detach(); })); })
      .def_prop_ro("_address", [](const Session& s) { return s.impl()->address(); })
      .def_prop_ro("_key", [](const Session& s) { return reinterpret_cast<uintptr_t>(s.impl().get()); })
      .def_prop_ro("_open", [](const Session& s) { return s.impl()->Check().ok(); })
      .def_prop_ro("_membership_version", [](const Session& s) { return s.impl()->membership_version(); })
      .def("_default_mesh_now", [](const Session& s) { return ValueOrRaise(s.DefaultMesh()); })
      .def_prop_ro("_lost", [](const Session& s) { return s.impl()->lost_workers(); })
      .def(
          "_counts",
          [](const Session& s) {
            nb::dict counts;
            s.Counts().Visit([&](std::string_view name, std::string_view, double value) {
              counts[nb::str(name.data(), name.size())] = nb::int_(static_cast<int64_t>(value));
            });
            return counts;
          },
          "What it has done since it connected, by the names that Session::Counts of C++ has.")
      .def("_check", [](const Session& s) { RaiseIfError(s.impl()->Check()); })
      .def("_mesh",
           [](const Session& s, const std::vector<int64_t>& shape, const std::vector<std::string>& names,
              const std::vector<int32_t>& workers, const std::string& device_type) {
             std::vector<WorkerIndex> indexes;
             for (int32_t worker : workers) indexes.emplace_back(worker);
             return ValueOrRaise(s.InitDeviceMesh(shape, names, indexes, ParseDeviceKind(device_type)));
           })
      .def("_device_type", [](const Session& s, const Mesh& mesh) { return std::string(ToText(s.DeviceKindOf(mesh))); })
      .def("_lost_of",
           [](const Session& s, const Mesh& mesh) {
             std::vector<int32_t> numbers;
             for (const WorkerIndex worker : s.LostWorkers(mesh)) numbers.push_back(worker.value);
             return numbers;
           })
      .def("_distribute", &Distribute)
      .def("_distribute_rows", &DistributeRows)
      .def("_from_local", &FromLocal)
      .def("_create", &Create)
      .def("_create_all", &CreateAll)
      .def("_status",
           [](const Session& s) { return ClusterToPython(ValueOrRaise(Released([&] { return s.Status(); }))); })
      .def("_sync", [](const Session& s) { RaiseIfError(Released([&] { return s.Sync(); })); })
      .def("_close", [](const Session& s) { RaiseIfError(Released([&] { return s.Close(); })); })
      .def("_kill_worker",
           [](const Session& s, int32_t worker, const std::string& reason) {
             RaiseIfError(Released([&] { return s.KillWorker(WorkerIndex(worker), reason); }));
           })
      .def("_keep_until_closed", &KeepUntilClosed)
      .def("_comm_begin", [](const Session& s) { return ValueOrRaise(s.CommBegin()); })
      .def("_comm_end", &CommEnd)
      .def("_profile",
           [](const Session& s, uint64_t first_op, uint64_t end_op) {
             return ProfileToPython(ValueOrRaise(Released([&] { return s.Profile({first_op, end_op}); })));
           })
      .def("_tensor",
           [](const Session& s, uint64_t handle, const std::string& spec, const std::string& name) {
             return PyTensor{Tensor(s.impl()->Adopt(handle, ValueOrRaise(ParseTensorSpec(spec)), name))};
           })
      .def("_let_go", [](const Session& s, const PyTensor& t) { s.impl()->LetGo(*t.value().state()); })
      .def("_implicit_policy", [](const Session& s) { return static_cast<int>(s.impl()->calls().implicit_policy()); })
      .def("_set_implicit_policy", [](const Session& s, int policy) {
        s.impl()->calls().SetImplicitPolicy(static_cast<ImplicitPolicy>(policy));
      });
  module.def(
      "set_thread_policy", [](std::optional<int> policy) { SetThreadImplicitPolicy(PolicyOf(policy)); },
      nb::arg().none());
  module.def("thread_policy", []() -> std::optional<int> {
    std::optional<ImplicitPolicy> policy = ThreadImplicitPolicy();
    if (!policy.has_value()) return std::nullopt;
    return static_cast<int>(*policy);
  });
  module.def("called_as", [] { return std::string(NameOf(ThreadCalledAs())); });
  module.def("set_called_as", [](const std::string& name) { SetThreadCalledAs(CalledAsOf(name)); });
  module.def("explain_redistribute", &ExplainRedistribute);
}

void DefineCluster(nb::module_& module) {
  nb::class_<LocalCluster>(module, "LocalCluster", nb::is_weak_referenceable())
      .def_static("_start",
                  [](int workers, int64_t memory_bytes, const std::string& device, const std::string& transport,
                     const std::string& socket_path, double start_timeout_s,
                     const std::vector<std::string>& coordinator_flags, const std::vector<std::string>& files,
                     const std::string& decoder, const std::vector<std::string>& worker_flags) {
                    ClusterOptions options;
                    options.workers = workers;
                    options.memory_bytes = memory_bytes;
                    options.device = ParseDeviceKind(device).value_or(DeviceKind::kCpu);
                    options.transport = transport;
                    options.socket_path = socket_path;
                    options.start_timeout_s = start_timeout_s;
                    options.coordinator_flags = coordinator_flags;
                    options.files = files;
                    options.decoder = decoder;
                    options.worker_flags = worker_flags;
                    return ValueOrRaise(Released([&] { return LocalCluster::Start(options); }));
                  })
      .def_prop_ro("address", &LocalCluster::address)
      .def_prop_ro("admin_address", &LocalCluster::admin_address)
      .def_prop_ro("coordinator_pid", &LocalCluster::coordinator_pid)
      .def_prop_ro("worker_pids", [](const LocalCluster& c) { return c.worker_pids(); })
      .def("_log_tail", &LocalCluster::LogTail)
      .def("_join_command", &LocalCluster::JoinCommand)
      .def("_take_ended",
           [](LocalCluster& c) {
             nb::list ended;
             for (const LocalCluster::Ended& one : c.TakeEnded()) ended.append(nb::make_tuple(one.worker, one.reason));
             return ended;
           })
      .def("_stop", [](LocalCluster& c) { Released([&] { c.Stop(); }); });
}

// The counter of the bytes of a thread's transfers.
struct Meter {
  std::shared_ptr<TransferMeter> counts = std::make_shared<TransferMeter>();
};

void DefineMeter(nb::module_& module) {
  nb::class_<Meter>(module, "TransferMeter")
      .def(nb::init<>())
      .def_prop_ro("expected_bytes", [](const Meter& m) { return m.counts->expected_bytes.load(); })
      .def_prop_ro("moved_bytes", [](const Meter& m) { return m.counts->moved_bytes.load(); })
      .def_prop_ro(
          "is_used", [](const Meter& m) { return m.counts.use_count() > 1; }, "By a thread, or a transfer under way.");
  module.def(
      "set_thread_meter", [](const Meter* meter) { SetThreadMeter(meter == nullptr ? nullptr : meter->counts); },
      nb::arg().none());
}

// ts.blocking(): waits after each op while it is entered.
class BlockingBlock {
 public:
  BlockingBlock() = default;
  BlockingBlock(const BlockingBlock&) = delete;
  BlockingBlock& operator=(const BlockingBlock&) = delete;
  void Enter() { scopes_.push_back(std::make_unique<Blocking>()); }
  void Exit(const nb::args&) { scopes_.pop_back(); }

 private:
  std::vector<std::unique_ptr<Blocking>> scopes_;
};

void DefineBlocking(nb::module_& module) {
  nb::class_<BlockingBlock>(module, "Blocking")
      .def(nb::init<>())
      .def("__enter__", [](BlockingBlock& block) { block.Enter(); })
      .def("__exit__", &BlockingBlock::Exit);
  module.def("is_blocking", &Blocking::IsOn);
}

nb::list CatalogToPython() {
  nb::list out;
  for (const OpRow& row : Catalog()) {
    out.append(nb::make_tuple(static_cast<int>(row.id), std::string(row.name), static_cast<int>(row.family),
                              row.max_operands, std::string(row.signature), std::string(row.doc)));
  }
  return out;
}

}  // namespace
}  // namespace tessera::python

NB_MODULE(_tessera, module) {
  using namespace tessera;
  using namespace tessera::python;
  nb::set_leak_warnings(false);
  if (const char* const missing = TesseraFindInterpreter(); missing != nullptr) {
    throw nb::import_error(StrCat("tessera: this version of Python has no ", missing).c_str());
  }
  static PythonWaits waits;
  SetWaitObserver(&waits);
  SetImplicitObserver(&WarnImplicit);
  DefineMesh(module);
  DefineTensor(module);
  DefineRecording(module);
  DefineSession(module);
  DefineCluster(module);
  DefineFiles(module);
  DefinePublications(module);
  DefineParts(module);
  DefineMeter(module);
  DefineSites(module);
  DefineCallsTable(module);
  DefineBlocking(module);
  DefineRanks(module);
  module.def("set_hooks", [](nb::object error_classes, nb::object convert_operand, nb::object warn_implicit,
                             nb::object refuse_operand, nb::object refuse_write) {
    GetHooks() = {std::move(error_classes),  std::move(convert_operand), std::move(warn_implicit),
                  std::move(refuse_operand), std::move(refuse_write),    nb::object()};
  });
  module.def("set_placements", [](nb::object replicate, nb::object shard, const nb::list& partial) {
    PlacementClasses& classes = GetPlacementClasses();
    classes = {std::move(replicate), std::move(shard), {}, {}};
    for (int dim = 0; dim < kMaxRank; ++dim) classes.shards.push_back(classes.shard(dim));
    for (nb::handle op : partial) classes.partial.push_back(nb::borrow(op));
  });
  module.def("set_explain_hook", [](nb::object explain) { GetHooks().explain = std::move(explain); });
  module.def(
      "promote",
      [](int a, int b) {
        const absl::StatusOr<DType> joined = Promote(static_cast<DType>(a), static_cast<DType>(b));
        return joined.ok() ? static_cast<int>(*joined) : -1;
      },
      "The common dtype of two, or -1.");
  module.def(
      "attributes",
      [] {
        static constexpr const char* kKinds[] = {"flag",       "integer",         "number", "dtype",
                                                 "text",       "integers",        "shape",  "mesh",
                                                 "placements", "placements_each", "index"};
        nb::list out;
        for (const AttributeRow& row : AttributeTable()) {
          out.append(nb::make_tuple(std::string(row.name), kKinds[static_cast<size_t>(row.kind)]));
        }
        return out;
      },
      "What an op may be given besides operands: (name, kind).");
  module.def("catalog", &CatalogToPython, "Rows of the op catalog: (number, name, family, operands, signature, doc).");
  module.attr("version") = kVersion;
  module.def("parse_bytes", [](const std::string& text) { return ValueOrRaise(ParseBytes(text)); });
  module.def("parse_address", [](const std::string& what, const std::string& text) {
    const Address address = ValueOrRaise(ParseAddress(what, text));
    return nb::make_tuple(address.is_unix() ? address.socket_path : HostAndPort(address), address.token);
  });
  module.def("promote", [](int a, int b) {
    return static_cast<int>(ValueOrRaise(Promote(static_cast<DType>(a), static_cast<DType>(b))));
  });
  module.def("dtype_names", [] {
    nb::list out;
    for (int i = 0; i < kDTypeCount; ++i) {
      out.append(std::string(ToText(static_cast<DType>(i))));
    }
    return out;
  });
}
