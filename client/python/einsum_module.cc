#include "client/python/einsum_module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "client/tensor.h"
#include "schemas/ops/einsum_steps.h"

namespace tessera::python {
namespace {

const char* NameOf(EinsumStepKind kind) {
  switch (kind) {
    case EinsumStepKind::kDiagonal: return "diagonal";
    case EinsumStepKind::kCast: return "cast";
    case EinsumStepKind::kSum: return "sum";
    case EinsumStepKind::kProduct: return "product";
    case EinsumStepKind::kPermute: return "permute";
  }
  return "";
}

// Waits for operands whose specs are pending.
nb::tuple StepsOf(const std::string& notation, nb::handle tensors) {
  std::vector<Tensor> named;
  std::vector<EinsumOperand> operands;
  for (nb::handle tensor : tensors) {
    Tensor x = nb::cast<const PyTensor&>(tensor).value();
    RaiseIfError(Released([&] { return x.AwaitSpec(); }));
    operands.push_back({x.shape(), x.dtype()});
    named.push_back(std::move(x));
  }
  const auto name_of = [&](size_t i) { return ToText(named[i].spec()); };
  const EinsumSteps plan = ValueOrRaise(PlanEinsum(notation, operands, name_of));
  nb::list steps;
  for (const EinsumStep& step : plan.steps) {
    steps.append(nb::make_tuple(NameOf(step.kind), step.slot, step.other, nb::cast(step.dims), step.notation));
  }
  return nb::make_tuple(static_cast<int>(plan.dtype), plan.result, steps);
}

}  // namespace

void DefineEinsum(nb::module_& module) {
  module.def("einsum_steps", &StepsOf, nb::arg("notation"), nb::arg("operands"),
             "The ops of an einsum: (dtype, slot of the result, [(kind, slot, other slot, dims, notation)]).");
  module.def("tensordot_notation",
             [](int left_rank, int right_rank, const std::vector<int64_t>& left, const std::vector<int64_t>& right) {
               return ValueOrRaise(TensordotNotation(left_rank, right_rank, left, right));
             });
}

}  // namespace tessera::python
