// The device `tessera` in torch: what an extension of a device has to give in C++, for the Python beside it to do the
// rest.
//
// No memory is behind the device, and nothing here computes: tensors are wrapper subclasses, whose ops go to
// __torch_dispatch__ (_tensor.py). These parts can't be Python: the guard, which the autograd engine calls from
// destructors while an exception is under way; the choice of the attention op, which keeps attention whole; the ops
// that autocast casts; generators, which are a seed and the number of the next call; and what makes a tensor, once or
// more for each op.

#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_backward_ops.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/matmul_ops.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "dispatch.h"
#include "view_rows.h"

#include <iterator>
#include <map>
#include <memory>
#include <mutex>

namespace {

constexpr auto kTessera = c10::DeviceType::PrivateUse1;

// One device, one stream, in issue order: there is nothing to switch and nothing to wait for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  explicit Guard(c10::DeviceType) {}
  Guard() = default;
  c10::DeviceType type() const override { return kTessera; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return c10::Device(kTessera, 0); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getDefaultStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override { WaitForAll(); }
  bool queryStream(const c10::Stream&) const override { return false; }  // waiting says it, asking costs as much
  void synchronizeStream(const c10::Stream&) const override { WaitForAll(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { WaitForAll(); }

 private:
  static void WaitForAll() {
    const pybind11::gil_scoped_acquire gil;
    pybind11::module_::import("tessera.torch._device").attr("synchronize")();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Where a storage is asked for by name: without an allocator torch would go through a null pointer.
struct NoMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(bytes == 0, "a storage of ", bytes,
                " bytes on tessera: tensors lie on workers and have no storage in this process; tensor.to(\"tessera\") "
                "brings one there");
    return c10::DataPtr(nullptr, c10::Device(kTessera, 0));
  }
  void copy_data(void*, const void*, std::size_t) const override {}  // of no bytes
};

NoMemory no_memory;
REGISTER_ALLOCATOR(kTessera, &no_memory);

// Pinned memory is the process's own: no device reads it by itself. It is known by its addresses, for is_pinned().
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto own = std::make_unique<c10::DataPtr>(c10::GetCPUAllocator()->allocate(bytes));
    void* const at = own->get();
    if (at == nullptr) return std::move(*own);
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.insert_or_assign(reinterpret_cast<uintptr_t>(at), Block{bytes, std::move(own)});
    return c10::DataPtr(at, at, &Free, c10::Device(c10::kCPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool Has(const void* data) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto behind = blocks_.upper_bound(reinterpret_cast<uintptr_t>(data));
    if (behind == blocks_.begin()) return false;
    const auto& [at, block] = *std::prev(behind);
    return reinterpret_cast<uintptr_t>(data) < at + block.bytes;
  }
  static PinnedMemory& Instance() {
    static auto* memory = new PinnedMemory();  // tensors outlive all that ends before the process
    return *memory;
  }

 private:
  struct Block {
    size_t bytes = 0;
    std::unique_ptr<c10::DataPtr> memory;
  };
  static void Free(void* at) {
    std::unique_ptr<c10::DataPtr> memory;  // goes without the lock
    const std::lock_guard<std::mutex> lock(Instance().mutex_);
    const auto found = Instance().blocks_.find(reinterpret_cast<uintptr_t>(at));
    if (found == Instance().blocks_.end()) return;
    memory = std::move(found->second.memory);
    Instance().blocks_.erase(found);
  }
  mutable std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
};

// A seed and the number of the next random call, which is its offset.
struct CallGenerator final : c10::GeneratorImpl {
  CallGenerator() : GeneratorImpl(c10::Device(kTessera, 0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom() >> 1);
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
                "set_state: the state of a generator on tessera is 16 bytes (uint8), not ", state.numel(),
                " elements of ", state.dtype());
    const auto* numbers = static_cast<const uint64_t*>(state.data());
    seed_ = numbers[0];
    offset_ = numbers[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* numbers = reinterpret_cast<uint64_t*>(state.mutable_data_ptr());
    numbers[0] = seed_;
    numbers[1] = offset_;
    return state.getIntrusivePtr();
  }
  CallGenerator* clone_impl() const override {
    auto* copy = new CallGenerator();
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

 private:
  uint64_t seed_ = 0;
  uint64_t offset_ = 0;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const auto* generator = new at::Generator(at::make_generator<CallGenerator>());
    return *generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<CallGenerator>(); }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::Instance().Has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::Instance(); }
};

const bool kHooksAreRegistered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

int64_t ChooseAttention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                        double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::overrideable);
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &ChooseAttention);
}

// Autocast: the lists that CUDA has.
namespace at::autocast {
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TESSERA_CAST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(TESSERA_CAST)
#undef TESSERA_CAST
#define TESSERA_CAST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(TESSERA_CAST)
#undef TESSERA_CAST
#define TESSERA_CAST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TESSERA_CAST)
#undef TESSERA_CAST
#define TESSERA_CAST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TESSERA_CAST)
#undef TESSERA_CAST
}
}  // namespace at::autocast

// Products come whole to __torch_dispatch__, and of such torch has one derivative: the first, backward, of real
// numbers. For all others they are taken apart into products that have them.
namespace {

// torch's own kernel, which records the whole product. It is that of every key of autograd but those of devices whose
// product is taken apart, and what is under it runs by the keys below.
c10::DispatchKeySet ToOwnKernel(c10::DispatchKeySet keys) {
  return keys.remove(c10::DispatchKey::AutogradFunctionality).add(c10::DispatchKey::AutogradNestedTensor);
}

bool HasForwardGrad(const at::Tensor& x) { return x.defined() && x._fw_grad(/*level=*/0).defined(); }
bool IsApart(const at::Tensor& x) { return x.is_complex() || HasForwardGrad(x); }

at::Tensor Matmul(c10::DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b) {
  if (IsApart(a) || IsApart(b)) return at::native::matmul(a, b);
  return at::_ops::matmul::redispatch(ToOwnKernel(keys), a, b);
}

at::Tensor Linear(c10::DispatchKeySet keys, const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  const at::Tensor added = bias.value_or(at::Tensor());
  if (IsApart(x) || IsApart(weight) || HasForwardGrad(added)) {
    const at::Tensor product = at::native::matmul(x, weight.t());
    return added.defined() ? product + added : product;
  }
  return at::_ops::linear::redispatch(ToOwnKernel(keys), x, weight, bias);
}

std::tuple<at::Tensor, at::Tensor> MatmulBackward(c10::DispatchKeySet keys, const at::Tensor& grad, const at::Tensor& a,
                                                  const at::Tensor& b, std::array<bool, 2> wanted) {
  const bool is_recorded =
      at::GradMode::is_enabled() && (grad.requires_grad() || a.requires_grad() || b.requires_grad());
  if (!is_recorded && !HasForwardGrad(grad) && !HasForwardGrad(a) && !HasForwardGrad(b)) {
    return at::_ops::matmul_backward::redispatch(keys & c10::after_autograd_keyset, grad, a, b, wanted);
  }
  // Vectors as matrices of one row, one column.
  const at::Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a;
  const at::Tensor right = b.dim() == 1 ? b.unsqueeze(1) : b;
  at::Tensor g = b.dim() == 1 ? grad.unsqueeze(-1) : grad;
  if (a.dim() == 1) g = g.unsqueeze(-2);
  at::Tensor of_left;
  at::Tensor of_right;
  if (wanted[0]) of_left = at::sum_to(at::matmul(g, right.mT().conj()), left.sizes()).reshape(a.sizes());
  if (wanted[1]) of_right = at::sum_to(at::matmul(left.mT().conj(), g), right.sizes()).reshape(b.sizes());
  return {of_left, of_right};
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("matmul", Matmul);
  m.impl("linear", Linear);
  m.impl("matmul_backward", MatmulBackward);
}

}  // namespace

// Functions by which Python makes tensors.
namespace {

namespace py = pybind11;
using tessera::torch_device::GetPythonSide;
using tessera::torch_device::Layout;
using tessera::torch_device::Sizes;

Sizes ReadInts(PyObject* tuple) {
  TORCH_CHECK(PyTuple_Check(tuple), "make: takes tuples of ints");
  Sizes out(static_cast<size_t>(PyTuple_GET_SIZE(tuple)));
  for (size_t d = 0; d < out.size(); ++d) {
    out[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(d)));
    if (out[d] == -1 && PyErr_Occurred() != nullptr) throw python_error();
  }
  return out;
}

PyObject* Make(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK((count == 3 || count == 5) && PyType_Check(args[0]) && THPDtype_Check(args[2]),
              "make: takes a type, a shape and a dtype, and perhaps strides and an offset");
  auto* const type = reinterpret_cast<PyTypeObject*>(args[0]);
  const at::ScalarType dtype = tessera::torch_device::ScalarTypeOf(args[2]);
  const Sizes sizes = ReadInts(args[1]);
  if (count == 3) return tessera::torch_device::MakeTensor(type, sizes, dtype, nullptr).release().ptr();
  const Layout layout = {ReadInts(args[3]), PyLong_AsLongLong(args[4])};
  if (layout.offset == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return tessera::torch_device::MakeTensor(type, sizes, dtype, &layout).release().ptr();
  END_HANDLE_TH_ERRORS
}

// wrap(handle): a tensor with a cell of its own. wrap(tensor class, cell class, dtypes, address of the extension's
// functions): what it makes them of, once.
PyObject* Wrap(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  tessera::torch_device::PythonSide& side = GetPythonSide();
  if (count == 4) {
    TORCH_CHECK(PyType_Check(args[0]) && PyType_Check(args[1]) && PyList_Check(args[2]) && PyLong_Check(args[3]),
                "wrap: takes two classes, a list and an address");
    const auto* const calls = static_cast<const TesseraCalls*>(PyLong_AsVoidPtr(args[3]));
    TORCH_CHECK(calls->version == TESSERA_CALLS_VERSION, "wrap: the extension's functions are of version ",
                calls->version, ", and the device is compiled for ", TESSERA_CALLS_VERSION,
                "; compile it again: python -m tessera.torch_device");
    for (Py_ssize_t i = 0; i < 3; ++i) Py_INCREF(args[i]);
    side = {reinterpret_cast<PyTypeObject*>(args[0]), reinterpret_cast<PyTypeObject*>(args[1]), args[2], calls};
    Py_RETURN_NONE;
  }
  TORCH_CHECK(count == 1 && side.tensor != nullptr, "wrap: takes a handle");
  TesseraSpec spec;
  if (side.calls->show(args[0], &spec) == 0) return nullptr;
  return tessera::torch_device::WrapHandle(args[0], spec).release().ptr();
  END_HANDLE_TH_ERRORS
}

// view_rows(handle_of, [(class of a step, its field, op, attribute), ...]), once: the rows of views by their names.
PyObject* MakeViewRows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 2 && PyList_Check(args[1]) && PyList_GET_SIZE(args[1]) == tessera::torch_device::kStepKinds,
              "view_rows: takes a function and the classes of steps");
  tessera::torch_device::ViewParts& parts = tessera::torch_device::GetViewParts();
  TORCH_CHECK(parts.handle_of == nullptr, "view_rows: is called once");
  Py_INCREF(args[0]);
  parts.handle_of = args[0];
  for (size_t i = 0; i < tessera::torch_device::kStepKinds; ++i) {
    auto entry = py::cast<py::tuple>(py::handle(PyList_GET_ITEM(args[1], static_cast<Py_ssize_t>(i))));
    TORCH_CHECK(PyType_Check(entry[0].ptr()), "view_rows: a step is a class");
    parts.steps[i] = {reinterpret_cast<PyTypeObject*>(py::object(entry[0]).release().ptr()),
                      py::object(entry[1]).release().ptr(), py::cast<uint32_t>(entry[2]), py::cast<uint32_t>(entry[3])};
  }
  return tessera::torch_device::ViewRows().release().ptr();
  END_HANDLE_TH_ERRORS
}

// Gives a tensor the device, dtype, shape and storage of another one, as `tensor.data = other` does. torch allows that
// assignment only between devices that it knows to be alike, and never changes whether a tensor's ops go to
// __torch_dispatch__. The tensor keeps its identity, its hooks and requires_grad.
PyObject* Become(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 2 && THPVariable_Check(args[0]) && THPVariable_Check(args[1]), "become: takes two tensors");
  const at::Tensor& tensor = THPVariable_Unpack(args[0]);
  const at::Tensor& other = THPVariable_Unpack(args[1]);
  // The node that adds up gradients knows the device of before; torch makes a new one when it is asked for.
  if (torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    const std::lock_guard<std::mutex> lock(meta->mutex_);
    meta->grad_accumulator_.reset();
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  tensor.unsafeGetTensorImpl()->set_python_dispatch(other.unsafeGetTensorImpl()->is_python_dispatch());
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// dispatch(again, refusals, rebind, [(name, overload's name, overload, the one call that it is or None), ...]), once.
PyObject* Dispatch(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 4 && PyList_Check(args[3]),
              "dispatch: takes a function, classes of errors, a function and a list of ops");
  tessera::torch_device::Dispatching& dispatching = tessera::torch_device::GetDispatching();
  TORCH_CHECK(dispatching.again == nullptr, "dispatch: is called once");
  for (Py_ssize_t i = 0; i < 3; ++i) Py_INCREF(args[i]);
  dispatching = {args[0], args[1], args[2]};
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Python, __FILE__, __LINE__);
  for (const py::handle one : py::reinterpret_borrow<py::list>(args[3])) {
    const auto entry = py::cast<py::tuple>(one);
    const c10::OperatorName name("aten::" + py::cast<std::string>(entry[0]), py::cast<std::string>(entry[1]));
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || !tessera::torch_device::RowKernel::Takes(op->schema())) continue;
    auto kernel = std::make_unique<tessera::torch_device::RowKernel>(*op, entry[2].ptr(), entry[3]);
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace

// make(type, shape, dtype, strides, offset) as Python calls it. _library.py asks for it by name.
extern "C" PyObject* tessera_make() {
  static PyMethodDef method = {"make", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Make)), METH_FASTCALL,
                               nullptr};
  return PyCFunction_New(&method, nullptr);
}

// become(tensor, other).
extern "C" PyObject* tessera_become() {
  static PyMethodDef method = {"become", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Become)), METH_FASTCALL,
                               nullptr};
  return PyCFunction_New(&method, nullptr);
}

// wrap(handle).
extern "C" PyObject* tessera_wrap() {
  static PyMethodDef method = {"wrap", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Wrap)), METH_FASTCALL,
                               nullptr};
  return PyCFunction_New(&method, nullptr);
}

// view_rows(...).
extern "C" PyObject* tessera_view_rows() {
  static PyMethodDef method = {"view_rows", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(MakeViewRows)),
                               METH_FASTCALL, nullptr};
  return PyCFunction_New(&method, nullptr);
}

// dispatch(...).
extern "C" PyObject* tessera_dispatch() {
  static PyMethodDef method = {"dispatch", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Dispatch)),
                               METH_FASTCALL, nullptr};
  return PyCFunction_New(&method, nullptr);
}
