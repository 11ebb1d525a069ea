// Wants of work before it can be enqueued: kernels that are loaded, plans of libraries, a turn that is clear, room.

#include <algorithm>
#include <utility>
#include <variant>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/launcher.h"

namespace tessera::cuda {
namespace {

constexpr uint64_t kOperationsOfDnnCall = 4;    // a call may be several kernels and fills
constexpr uint64_t kOperationsOfSolver = 32;    // likewise: a factorization goes block by block
constexpr uint64_t kOperationsOfTransform = 8;  // likewise: a kernel for a few factors of the length

const absl::Status& NoteError(const absl::Status& status, absl::Status& first) {
  if (first.ok()) first = status;
  return status;
}

}  // namespace

absl::StatusOr<bool> Launcher::Admit(const std::vector<Step>& steps, Turn& turn) {
  Wanted wanted;
  TESSERA_RETURN_IF_ERROR(Add(steps, turn, wanted));
  if (turn.made != nullptr) turn.wants = Wants::kMade;
  if (turn.wants == Wants::kNothing && wanted.needs_clear && !turn.is_clear) turn.wants = Wants::kClear;
  if (turn.wants == Wants::kNothing && wanted.operations > turn.room) turn.wants = Wants::kRoom;
  turn.operations = wanted.operations;
  return turn.wants == Wants::kNothing;
}

absl::Status Launcher::Add(const std::vector<Step>& steps, Turn& turn, Wanted& wanted) {
  for (const Step& step : steps) {
    uint64_t of_step = 1;
    if (const auto* launch = std::get_if<Launch>(&step); launch != nullptr) {
      AddLoads(*launch, turn, wanted);
      of_step = std::max<uint64_t>(1, launch->otherwise.size());
    } else if (const auto* product = std::get_if<MatmulProblem>(&step); product != nullptr) {
      of_step = product->otherwise.size();
      if (products_.ok()) {
        const std::vector<LtProblem> problems = LtProblemsOf(*product);
        TESSERA_ASSIGN_OR_RETURN(const bool is_the_librarys, (*products_)->HasAlgorithms(problems));
        wanted.needs_clear = is_the_librarys || wanted.needs_clear;
        if (is_the_librarys) of_step = problems.size();
      }
      for (const Launch& other : product->otherwise) AddLoads(other, turn, wanted);
    } else if (const auto* dnn = std::get_if<DnnProblem>(&step); dnn != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(of_step, AddOfDnn(*dnn, turn, wanted));
    } else if (const auto* transform = std::get_if<FourierProblem>(&step); transform != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(of_step, AddOfTransform(*transform, turn, wanted));
    } else if (const auto* solver = std::get_if<SolverProblem>(&step); solver != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(of_step, AddOfSolver(*solver, turn, wanted));
    }
    wanted.operations += of_step;
  }
  return absl::OkStatus();
}

void Launcher::AddLoads(const Launch& launch, Turn& turn, Wanted& wanted) {
  for (const Launch& other : launch.otherwise) AddLoads(other, turn, wanted);
  if (launch.program != nullptr && !kernels_.contains(launch.entry)) {
    Program& program = programs_->Find(*launch.program, turn.lane);
    const bool is_compiled = program.is_compiled();
    if (!is_compiled) turn.made = &program.is_compiled();
    if (!is_compiled || !program.code().ok()) return;  // it isn't launched, or not yet
    if (!program.kernel.has_value()) {
      wanted.needs_clear = true;
      return;
    }
  }
  if (launch.shared_bytes <= kDefaultSharedBytes) return;
  const absl::StatusOr<CUkernel> kernel = KernelOf(launch);
  if (!kernel.ok()) return;  // it isn't launched
  const auto known = shared_bytes_.find(*kernel);
  if (known == shared_bytes_.end() || known->second < launch.shared_bytes) wanted.needs_clear = true;
}

absl::StatusOr<bool> Launcher::AwaitsLibrary(const Missing& missing, Turn& turn) {
  if (!library_thread_.is_free()) {
    turn.made = &library_thread_.is_free();
    return true;
  }
  if (missing.is_made()) return false;
  if (turn.making == nullptr) {
    turn.making = library_thread_.Begin(missing.making());
    turn.made = &turn.making->is_made;
    return true;
  }
  // An error that isn't kept, or something that was made and let go of since.
  TESSERA_RETURN_IF_ERROR(turn.making->status);
  return false;
}

absl::StatusOr<uint64_t> Launcher::AddOfDnn(const DnnProblem& dnn, Turn& turn, Wanted& wanted) {
  if (dnn.call.multiplications >= least_dnn_multiplications_) {
    const auto has_plans = [&](const DnnCall& call) { return (**dnn_)->Has(call, dnn.max_workspace_bytes); };
    const auto is_made = [&] {
      if (!dnn_.has_value() || !dnn_->ok()) return dnn_.has_value();
      return std::all_of(dnn.before.begin(), dnn.before.end(), has_plans) && has_plans(dnn.call);
    };
    const auto making = [&]() -> absl::AnyInvocable<absl::Status()> {
      return [this, dnn] { return MakeDnnPlans(dnn).status(); };
    };
    TESSERA_ASSIGN_OR_RETURN(const bool awaits, AwaitsLibrary({is_made, making}, turn));
    if (awaits) return dnn.otherwise.size();
    if (!dnn_->ok()) NoteError(dnn_->status(), dnn_error_);
  }
  if (IsForDnn(dnn) && !turn.is_clear) {
    wanted.needs_clear = true;
    return dnn.otherwise.size();
  }
  if (IsForDnn(dnn)) {
    const absl::StatusOr<DnnPlans::Parts> parts = PrepareByDnn(dnn);
    if (parts.ok()) return kOperationsOfDnnCall * parts->calls.size();
    if (!absl::IsUnimplemented(parts.status())) return parts.status();
  }
  if (dnn.make_otherwise == nullptr) return dnn.otherwise.size();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Step> steps, dnn.make_otherwise().steps);
  TESSERA_RETURN_IF_ERROR(Add(steps, turn, wanted));
  return 0;
}

absl::StatusOr<uint64_t> Launcher::AddOfTransform(const FourierProblem& transform, Turn& turn, Wanted& wanted) {
  const auto is_made = [&] {
    if (!transforms_.has_value() || !transforms_->ok()) return transforms_.has_value();
    return (**transforms_)->Has(transform, kMaxFourierWorkspaceBytes);
  };
  const auto making = [&]() -> absl::AnyInvocable<absl::Status()> {
    return [this, transform] { return MakeTransforms(transform).status(); };
  };
  const absl::StatusOr<bool> awaits = AwaitsLibrary({is_made, making}, turn);
  if (!awaits.ok()) return NoteError(awaits.status(), transform_error_);
  if (*awaits) return 1;
  if (!transforms_->ok()) return absl::UnimplementedError(NoteError(transforms_->status(), transform_error_).message());
  wanted.needs_clear = true;
  if (!turn.is_clear) return 1;
  TESSERA_ASSIGN_OR_RETURN(const Transforms::Parts parts, PrepareTransforms(transform));
  return kOperationsOfTransform * parts.calls.size();
}

absl::StatusOr<uint64_t> Launcher::AddOfSolver(const SolverProblem& solver, Turn& turn, Wanted& wanted) {
  if (solver.least_extent < least_solver_extent_) return absl::UnimplementedError("cuda: matrices that are small");
  const auto is_made = [this] { return solvers_.has_value(); };
  const auto making = [this]() -> absl::AnyInvocable<absl::Status()> {
    return [this] { return (solvers_ = Solvers::Open(gpu_))->status(); };
  };
  TESSERA_ASSIGN_OR_RETURN(const bool awaits, AwaitsLibrary({is_made, making}, turn));
  if (awaits) return 1;
  if (!solvers_->ok()) return absl::UnimplementedError(NoteError(solvers_->status(), solver_error_).message());
  wanted.needs_clear = true;
  if (turn.is_clear) TESSERA_RETURN_IF_ERROR(RoomOfSolver(solver).status());
  // More of a large batch than a queue has room for are let through: a call that is clear may wait.
  return kOperationsOfSolver;
}

bool Launcher::IsForDnn(const DnnProblem& problem) {
  return problem.call.multiplications >= least_dnn_multiplications_ && !(dnn_.has_value() && !dnn_->ok());
}

absl::StatusOr<DnnPlans::Parts> Launcher::MakeDnnPlans(const DnnProblem& problem) {
  if (!dnn_.has_value()) dnn_ = DnnPlans::Open(gpu_);
  if (!dnn_->ok()) return absl::UnimplementedError(dnn_->status().message());
  DnnPlans::Parts all;
  const auto add = [&](const DnnCall& call) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(DnnPlans::Parts parts, (**dnn_)->Prepare(call, problem.max_workspace_bytes));
    for (auto& part : parts.calls) all.calls.push_back(std::move(part));
    all.workspace_bytes = std::max(all.workspace_bytes, parts.workspace_bytes);
    return absl::OkStatus();
  };
  for (const DnnCall& call : problem.before) TESSERA_RETURN_IF_ERROR(add(call));
  TESSERA_RETURN_IF_ERROR(add(problem.call));
  return all;
}

absl::StatusOr<DnnPlans::Parts> Launcher::PrepareByDnn(const DnnProblem& problem) {
  absl::StatusOr<DnnPlans::Parts> parts = MakeDnnPlans(problem);
  if (!dnn_->ok()) NoteError(dnn_->status(), dnn_error_);
  return parts;
}

absl::StatusOr<Transforms::Parts> Launcher::MakeTransforms(const FourierProblem& problem) {
  if (!transforms_.has_value()) transforms_ = Transforms::Open(gpu_);
  if (!transforms_->ok()) return absl::UnimplementedError(transforms_->status().message());
  return (**transforms_)->Prepare(problem, kMaxFourierWorkspaceBytes);
}

absl::StatusOr<Transforms::Parts> Launcher::PrepareTransforms(const FourierProblem& problem) {
  absl::StatusOr<Transforms::Parts> parts = MakeTransforms(problem);
  NoteError(parts.status(), transform_error_);
  return parts;
}

absl::StatusOr<Solvers::Room> Launcher::RoomOfSolver(const SolverProblem& problem) {
  if (!solvers_.has_value()) solvers_ = Solvers::Open(gpu_);
  absl::StatusOr<Solvers::Room> room =
      solvers_->ok() ? (**solvers_)->RoomFor(problem)
                     : absl::StatusOr<Solvers::Room>(absl::UnimplementedError(solvers_->status().message()));
  NoteError(room.status(), solver_error_);
  return room;
}

}  // namespace tessera::cuda
