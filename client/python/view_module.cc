#include "client/python/view_module.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"

namespace tessera::python {
namespace {

// Nobody but the interpreter's stack has it, as the result of x[0] in `x[0] += 1`: what is written into it goes where
// the statement puts it.
bool IsTemporary(nb::handle object) {
#if PY_VERSION_HEX >= 0x030E0000
  return PyUnstable_Object_IsUniqueReferencedTemporary(object.ptr()) != 0;
#else
  return Py_REFCNT(object.ptr()) == 1;
#endif
}

// How a view was made, from the tensor that is none: (name of the op, key) each.
nb::list StepsOf(const PyTensor& tensor) {
  nb::list steps;
  for (const View* view = tensor.shown == nullptr ? nullptr : tensor.shown->view.get(); view != nullptr;
       view = view->base.get()) {
    steps.insert(0, nb::make_tuple(std::string(NameOf(view->op)), view->key));
  }
  return steps;
}

}  // namespace

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

void MarkView(PyTensor& base, OpId op, nb::object key, PyTensor& view) {
  if (base.shown == nullptr) base.shown = std::make_unique<Shown>(Shown{std::make_shared<SharedElements>(), nullptr});
  view.shown = std::make_unique<Shown>(
      Shown{base.shown->elements, std::make_shared<const View>(View{base.shown->view, op, std::move(key)})});
}

void CheckWrite(nb::handle self, std::string_view op, Write write, nb::handle key) {
  const PyTensor& tensor = *nb::inst_ptr<PyTensor>(self);
  if (tensor.shown == nullptr || tensor.shown->view == nullptr || tensor.shown->elements.use_count() == 1) return;
  if (write == Write::kWhole && IsTemporary(self)) return;
  GetHooks().refuse_write(std::string(op), self, key);
  throw nb::python_error();
}

void DefineViews(nb::class_<PyTensor>& tensor) {
  tensor.def_prop_ro("_view_steps", &StepsOf).def("_check_write", [](nb::handle self, const std::string& op) {
    CheckWrite(self, op, Write::kWhole, nb::none());
  });
}

}  // namespace tessera::python
