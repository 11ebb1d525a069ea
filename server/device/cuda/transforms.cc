#include "server/device/cuda/transforms.h"

#include <algorithm>
#include <string>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

std::string TextOf(const FourierShape& shape) {
  const char* numbers = shape.numbers == FourierNumbers::kComplex    ? "complex numbers"
                        : shape.numbers == FourierNumbers::kFromReal ? "real numbers"
                                                                     : "numbers that are real afterwards";
  return StrCat(shape.batch, " transforms of ", shape.length, " ", numbers);
}

}  // namespace

class Transforms::Plan {
 public:
  explicit Plan(const Cufft& library) : library_(library) {}
  ~Plan() {
    if (is_made_) library_.Destroy(handle_);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  int64_t workspace_bytes() const { return workspace_bytes_; }

  absl::Status Create() {
    TESSERA_RETURN_IF_ERROR(Cufft::Check("cufftCreate", library_.Create(&handle_)));
    is_made_ = true;
    return Cufft::Check("cufftSetAutoAllocation", library_.SetAutoAllocation(handle_, 0));
  }
  cufftResult Make(const FourierShape& shape) {
    const bool from_real = shape.numbers == FourierNumbers::kFromReal,
               to_real = shape.numbers == FourierNumbers::kToReal;
    const cudaDataType real = shape.is_double ? CUDA_R_64F : CUDA_R_32F,
                       complex = shape.is_double ? CUDA_C_64F : CUDA_C_32F;
    long long length = shape.length;
    long long input_length = to_real ? length / 2 + 1 : length, output_length = from_real ? length / 2 + 1 : length;
    size_t bytes = 0;
    const cufftResult result =
        library_.XtMakePlanMany(handle_, 1, &length, &input_length, shape.input_stride, shape.input_distance,
                                from_real ? real : complex, &output_length, shape.output_stride, shape.output_distance,
                                to_real ? real : complex, shape.batch, &bytes, complex);
    workspace_bytes_ = static_cast<int64_t>(bytes);
    return result;
  }
  absl::Status Run(CUstream stream, const FourierProblem& problem, CUdeviceptr workspace) {
    if (stream_ != stream) {
      TESSERA_RETURN_IF_ERROR(Cufft::Check("cufftSetStream", library_.SetStream(handle_, stream)));
      stream_ = stream;
    }
    if (workspace_bytes_ > 0 && workspace_ != workspace) {
      TESSERA_RETURN_IF_ERROR(
          Cufft::Check("cufftSetWorkArea", library_.SetWorkArea(handle_, reinterpret_cast<void*>(workspace))));
      workspace_ = workspace;
    }
    return Cufft::Check("cufftXtExec", library_.XtExec(handle_, reinterpret_cast<void*>(problem.input),
                                                       reinterpret_cast<void*>(problem.output),
                                                       problem.is_backward ? CUFFT_INVERSE : CUFFT_FORWARD));
  }

 private:
  const Cufft& library_;
  cufftHandle handle_ = CUFFT_PLAN_NULL;
  bool is_made_ = false;
  int64_t workspace_bytes_ = 0;
  CUstream stream_ = nullptr;
  CUdeviceptr workspace_ = 0;
};

absl::StatusOr<std::unique_ptr<Transforms>> Transforms::Open(const Gpu& gpu, size_t max_plans) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<const Cufft> library, Cufft::Open());
  return std::unique_ptr<Transforms>(new Transforms(std::move(library), max_plans));
}

absl::StatusOr<std::shared_ptr<Transforms::Plan>> Transforms::MakePlan(const FourierShape& shape, bool* is_final) {
  auto plan = std::make_shared<Plan>(*library_);
  TESSERA_RETURN_IF_ERROR(plan->Create());
  const cufftResult result = plan->Make(shape);
  *is_final = result == CUFFT_INVALID_SIZE || result == CUFFT_INVALID_VALUE || result == CUFFT_INVALID_TYPE ||
              result == CUFFT_NOT_IMPLEMENTED || result == CUFFT_NOT_SUPPORTED;
  if (absl::Status made = Cufft::Check("cufftXtMakePlanMany", result); !made.ok()) {
    return absl::UnimplementedError(StrCat(StdView(made.message()), ", for ", TextOf(shape)));
  }
  return plan;
}

absl::StatusOr<std::shared_ptr<Transforms::Plan>> Transforms::PlanOf(const FourierShape& shape) {
  if (const auto known = kept_.find(shape); known != kept_.end()) {
    uses_.splice(uses_.begin(), uses_, known->second.use);
    return known->second.plan;
  }
  bool is_final = false;
  absl::StatusOr<std::shared_ptr<Plan>> plan = MakePlan(shape, &is_final);
  // A call that failed otherwise (memory that is short) is asked again.
  if (!plan.ok() && !is_final) return plan;
  if (kept_.size() >= max_plans_) {
    const FourierShape* last = uses_.back();
    uses_.pop_back();
    kept_.erase(kept_.find(*last));
  }
  const auto added = kept_.emplace(shape, Kept{plan, uses_.end()}).first;
  uses_.push_front(&added->first);
  added->second.use = uses_.begin();
  return plan;
}

absl::Status Transforms::Add(const FourierProblem& problem, int64_t max_workspace_bytes, Parts* parts) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Plan> plan, PlanOf(problem.shape));
  if (plan->workspace_bytes() <= max_workspace_bytes) {
    parts->workspace_bytes = std::max(parts->workspace_bytes, plan->workspace_bytes());
    parts->calls.emplace_back(problem, std::move(plan));
    return absl::OkStatus();
  }
  const std::optional<std::pair<FourierProblem, FourierProblem>> halves = HalvesOf(problem);
  if (!halves.has_value()) {
    return absl::UnimplementedError(StrCat("cuFFT wants ", plan->workspace_bytes(), " bytes of memory, and may have ",
                                           max_workspace_bytes, ", for ", TextOf(problem.shape)));
  }
  TESSERA_RETURN_IF_ERROR(Add(halves->first, max_workspace_bytes, parts));
  return Add(halves->second, max_workspace_bytes, parts);
}

absl::StatusOr<Transforms::Parts> Transforms::Prepare(const FourierProblem& problem, int64_t max_workspace_bytes) {
  Parts parts;
  TESSERA_RETURN_IF_ERROR(Add(problem, max_workspace_bytes, &parts));
  return parts;
}

bool Transforms::Has(const FourierProblem& problem, int64_t max_workspace_bytes) const {
  const auto known = kept_.find(problem.shape);
  if (known == kept_.end()) return false;
  const absl::StatusOr<std::shared_ptr<Plan>>& plan = known->second.plan;
  if (!plan.ok() || (*plan)->workspace_bytes() <= max_workspace_bytes) return true;
  const std::optional<std::pair<FourierProblem, FourierProblem>> halves = HalvesOf(problem);
  return !halves.has_value() || (Has(halves->first, max_workspace_bytes) && Has(halves->second, max_workspace_bytes));
}

absl::Status Transforms::Enqueue(CUstream stream, const Parts& parts, CUdeviceptr workspace) {
  for (const auto& [problem, plan] : parts.calls) TESSERA_RETURN_IF_ERROR(plan->Run(stream, problem, workspace));
  return absl::OkStatus();
}

}  // namespace tessera::cuda
