#include "tests/conformance/kernels/image/on_image.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <gtest/gtest.h>

#include "kernels/cuda/image.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/map_cache.h"
#include "kernels/cuda/patched_call.h"
#include "kernels/cuda/row_source.h"
#include "kernels/kernel.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/str_cat.h"
#include "tests/conformance/kernels/backend.h"
#include "tests/emulator/cuda/cufft/batch.h"
#include "tests/emulator/cuda/cusolver/operations.h"

namespace tessera::on_image {
namespace {

using cuda::Launch;
using cuda::Step;

int64_t device_items = cuda::kDeviceItems;
// An edit may have made a loop without an end.
constexpr uint64_t kMaxEditedInstructions = 1'000'000;

struct Region {
  uint64_t first = 0, last = 0;
  bool is_written = false;                  // may be
  std::vector<uint8_t>* written = nullptr;  // by byte, where a read needs a write before
};

// The memory that a call's kernels may touch.
class Memory {
 public:
  void Add(const void* data, absl::Span<const int64_t> extents, absl::Span<const int64_t> strides, int64_t bytes,
           bool is_written) {
    int64_t first = 0, last = 0;
    for (size_t d = 0; d < extents.size(); ++d) {
      if (extents[d] == 0) return;
      (strides[d] < 0 ? first : last) += (extents[d] - 1) * strides[d];
    }
    const auto base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
    regions_.push_back(
        {static_cast<uint64_t>(base + first * bytes), static_cast<uint64_t>(base + (last + 1) * bytes), is_written});
  }
  void AddPrivate(void* data, size_t bytes, std::vector<uint8_t>* written) {
    const auto base = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data));
    regions_.push_back({base, base + bytes, true, written});
  }

  std::byte* Find(uint64_t address, int bytes, ptx::AccessKind kind) {
    const uint64_t end = address + static_cast<uint64_t>(bytes);
    for (Region& region : regions_) {
      if (address < region.first || end > region.last) continue;
      if (kind != ptx::AccessKind::kRead && !region.is_written) continue;
      if (region.written != nullptr && !Track(region, address, end, kind)) return nullptr;
      return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
    }
    return nullptr;
  }

 private:
  static bool Track(Region& region, uint64_t address, uint64_t end, ptx::AccessKind kind) {
    for (uint64_t b = address - region.first; b < end - region.first; ++b) {
      if (kind != ptx::AccessKind::kRead) (*region.written)[b] = 1;
      if ((*region.written)[b] == 0) return false;
    }
    return true;
  }
  std::vector<Region> regions_;
};

struct LoadedKernel {
  const ptx::Kernel* kernel = nullptr;
  std::string family;
};

class Machine {
 public:
  static Machine& Get() {
    static Machine machine;
    return machine;
  }

  std::string Run(const Launch& launch, Memory& memory, ptx::Coverage* coverage = nullptr) {
    auto loaded = KernelOf(launch);
    if (!loaded.ok()) return std::string(loaded.status().message());
    if (!loaded->family.empty() && replaced_.empty()) {
      KernelCoverage& covered = coverage_[launch.entry];
      covered.family = loaded->family;
      coverage = &covered.coverage;
    }
    return ptx::Run(*loaded->kernel, launch.parameters,
                    {.grid = launch.grid,
                     .block = launch.block,
                     .shared_bytes = launch.shared_bytes,
                     .memory = [&memory](uint64_t address, int bytes,
                                         ptx::AccessKind kind) { return memory.Find(address, bytes, kind); },
                     .seed = ++seed_,
                     .coverage = coverage,
                     .max_instructions = replaced_.empty() ? uint64_t{200'000'000} : kMaxEditedInstructions});
  }

  const std::map<std::string, KernelCoverage>& coverage() const { return coverage_; }

  void Replace(const std::string& family, const std::string& text) {
    replaced_.erase(family);
    if (text.empty()) return;
    auto module = ptx::Parse(text);
    if (module.ok()) replaced_.emplace(family, *std::move(module));
    EXPECT_TRUE(module.ok()) << module.status();
  }

 private:
  Machine() {
    for (const cuda::ImagePart& part : cuda::Image()) {
      auto module = ptx::Parse(TextOf(std::string(part.family)));
      if (!module.ok()) ADD_FAILURE() << part.family << ": " << module.status();
      if (module.ok()) families_.emplace(part.family, *std::move(module));
    }
    const char* folder = std::getenv("TESSERA_MAP_CACHE");
    auto cache = cuda::MapCache::Open({.folder = folder == nullptr ? "" : folder});
    if (cache.ok()) cache_ = *std::move(cache);
    if (!cache.ok()) ADD_FAILURE() << cache.status();
  }

  absl::StatusOr<LoadedKernel> KernelOf(const Launch& launch) {
    if (launch.program != nullptr) return ProgramOf(launch);
    for (const auto& [family, shipped] : families_) {
      const auto other = replaced_.find(family);
      const ptx::Module& module = other == replaced_.end() ? shipped : other->second;
      const auto found = module.kernels.find(launch.entry);
      if (found != module.kernels.end()) return LoadedKernel{&found->second, family};
    }
    return absl::NotFoundError(StrCat("the image has no kernel ", launch.entry));
  }

  absl::StatusOr<LoadedKernel> ProgramOf(const Launch& launch) {
    auto found = programs_.find(launch.entry);
    if (found == programs_.end()) {
      if (cache_ == nullptr) return absl::NotFoundError("no NVRTC");
      auto text = cache_->Compile(*launch.program, "compute_80");
      if (!text.ok()) return text.status();
      auto module = ptx::Parse(*text);
      if (!module.ok()) return module.status();
      found = programs_.emplace(launch.entry, *std::move(module)).first;
    }
    return LoadedKernel{&found->second.kernels.at(launch.entry), ""};
  }

  std::map<std::string, ptx::Module> families_, replaced_, programs_;
  std::map<std::string, KernelCoverage> coverage_;
  std::unique_ptr<cuda::MapCache> cache_;
  uint32_t seed_ = 0;
};

// By the emulated library, at once.
std::string RunByLibrary(const cuda::FourierProblem& problem, Memory& memory) {
  const cuda::FourierShape& shape = problem.shape;
  const emulator::FftBatch batch{.kind = static_cast<emulator::FftKind>(shape.numbers),
                                 .is_double = shape.is_double,
                                 .is_backward = problem.is_backward,
                                 .length = shape.length,
                                 .batch = shape.batch,
                                 .input_stride = shape.input_stride,
                                 .input_distance = shape.input_distance,
                                 .output_stride = shape.output_stride,
                                 .output_distance = shape.output_distance,
                                 .input = problem.input,
                                 .output = problem.output};
  return emulator::RunBatch(batch, [&memory](uint64_t address, int64_t bytes, bool is_write) {
    return memory.Find(address, static_cast<int>(bytes), is_write ? ptx::AccessKind::kWrite : ptx::AccessKind::kRead);
  });
}

// Likewise a matrix after the other.
std::string RunByLibrary(const cuda::SolverProblem& p, Memory& memory) {
  emulator::DeviceSide side(&memory, [](void* all, uint64_t address, int64_t bytes, int is_write) -> void* {
    return static_cast<Memory*>(all)->Find(address, static_cast<int>(bytes),
                                           is_write != 0 ? ptx::AccessKind::kWrite : ptx::AccessKind::kRead);
  });
  const bool d = p.is_double;
  const int64_t bytes = d ? 8 : 4, least = std::min(p.m, p.n);
  for (int64_t i = 0; i < p.batch; ++i) {
    const auto at = [i](uint64_t first, int64_t distance) {
      return reinterpret_cast<void*>(static_cast<uintptr_t>(first + static_cast<uint64_t>(i * distance)));
    };
    void *matrix = at(p.matrix, p.matrix_distance * bytes), *right = at(p.right, p.right_distance * bytes);
    void *vector = at(p.vector, p.vector_distance * bytes), *pivots = at(p.vector, p.vector_distance * 8);
    emulator::Matrix a = side.Read(matrix, d, p.m, p.n, p.m);
    emulator::Matrix column(least, 1);
    std::vector<int64_t> changes;
    int info = 0;
    switch (p.call) {
      case cuda::SolverCall::kPotrf: info = emulator::Potrf(a, p.is_upper); break;
      case cuda::SolverCall::kGetrf:
        info = emulator::Getrf(a, changes);
        side.WritePivots(pivots, changes);
        break;
      case cuda::SolverCall::kGetrs: {
        emulator::Matrix x = side.Read(right, d, p.n, p.k, p.n);
        emulator::Getrs(a, side.ReadPivots(pivots, p.n), p.is_transposed, x);
        side.Write(right, d, x, p.n);
        break;
      }
      case cuda::SolverCall::kTrsm: {
        emulator::Matrix x = side.Read(right, d, p.k, p.n, p.k);
        emulator::TrsmRight(a, p.is_upper, p.is_transposed, p.has_unit_diagonal, x);
        side.Write(right, d, x, p.k);
        break;
      }
      case cuda::SolverCall::kGeqrf:
        emulator::Geqrf(a, column.data);
        side.Write(vector, d, column, least);
        break;
      case cuda::SolverCall::kOrgqr:
        a.data.resize(static_cast<size_t>(p.m * p.k));
        a.columns = p.k;
        emulator::Orgqr(a, side.Read(vector, d, p.n, 1, p.n).data);
        break;
      case cuda::SolverCall::kSyevd:
        info = emulator::Syevd(a, p.is_upper, column.data);
        side.Write(vector, d, column, least);
        break;
      case cuda::SolverCall::kGesvdj: {
        emulator::Matrix u(p.m, !p.has_vectors ? 0 : p.is_full ? p.m : least);
        emulator::Matrix v(p.n, !p.has_vectors ? 0 : p.is_full ? p.n : least);
        info = emulator::Gesvdj(a, u, column.data, v);
        column.data.resize(static_cast<size_t>(least));
        side.Write(vector, d, column, least);
        side.Write(right, d, u, p.m);
        side.Write(at(p.other, p.other_distance * bytes), d, v, p.n);
        a.data.assign(a.data.size(), 777);
        break;
      }
    }
    side.Write(matrix, d, a, p.m);
    if (p.info != 0) side.WriteInfo(static_cast<int*>(at(p.info, 4)), info);
  }
  return side.wrong();
}

std::string RunSteps(const std::vector<Step>& steps, Memory& memory) {
  for (const Step& step : steps) {
    if (const auto* launch = std::get_if<Launch>(&step)) {
      if (std::string wrong = Machine::Get().Run(*launch, memory); !wrong.empty()) return wrong;
    } else if (const auto* product = std::get_if<cuda::MatmulProblem>(&step)) {
      for (const Launch& plain : product->otherwise) {
        if (std::string wrong = Machine::Get().Run(plain, memory); !wrong.empty()) return wrong;
      }
    } else if (const auto* dnn = std::get_if<cuda::DnnProblem>(&step)) {
      for (const Launch& plain : dnn->otherwise) {
        if (std::string wrong = Machine::Get().Run(plain, memory); !wrong.empty()) return wrong;
      }
      if (dnn->make_otherwise == nullptr) continue;
      const cuda::OtherSteps other = dnn->make_otherwise();
      if (!other.steps.ok()) return std::string(other.steps.status().message());
      if (std::string wrong = RunSteps(*other.steps, memory); !wrong.empty()) return wrong;
    } else if (const auto* transform = std::get_if<cuda::FourierProblem>(&step)) {
      if (std::string wrong = RunByLibrary(*transform, memory); !wrong.empty()) return wrong;
    } else if (const auto* solver = std::get_if<cuda::SolverProblem>(&step)) {
      if (std::string wrong = RunByLibrary(*solver, memory); !wrong.empty()) return wrong;
    } else {
      const auto& fill = std::get<cuda::Fill>(step);
      std::byte* place = memory.Find(fill.address, static_cast<int>(fill.bytes), ptx::AccessKind::kWrite);
      if (place == nullptr) return StrCat("fill of ", fill.bytes, " bytes at ", fill.address);
      std::memset(place, fill.value, static_cast<size_t>(fill.bytes));
    }
  }
  return "";
}

// A workspace of its own for each call.
class OwnWorkspace {
 public:
  OwnWorkspace(int64_t bytes, Memory* memory) : bytes_(static_cast<size_t>(bytes) + 256), written_(bytes_.size()) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    auto* aligned = reinterpret_cast<std::byte*>((address + 255) / 256 * 256);
    std::memset(aligned, 0xC3, static_cast<size_t>(bytes));
    memory->AddPrivate(aligned, static_cast<size_t>(bytes), &written_);
    memory->AddPrivate(&fault_, sizeof(fault_), nullptr);
    memory->Add(zeros_, {}, {}, sizeof(zeros_), false);
    workspace_ = {reinterpret_cast<uintptr_t>(aligned), bytes, reinterpret_cast<uintptr_t>(&fault_),
                  reinterpret_cast<uintptr_t>(zeros_), device_items};
  }
  const cuda::Workspace& get() const { return workspace_; }
  int64_t fault() const { return fault_; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<uint8_t> written_;
  int64_t fault_ = 0;
  alignas(16) std::byte zeros_[16] = {};
  cuda::Workspace workspace_;
};

std::string TextOf(const Launch& launch) {
  std::string text = StrCat(launch.entry, " ", launch.program == nullptr ? "" : launch.program->source, " ",
                            launch.grid[0], "x", launch.grid[1], "x", launch.grid[2], " of ", launch.block[0], "x",
                            launch.block[1], "x", launch.block[2], " + ", launch.shared_bytes, "\n");
  text.append(reinterpret_cast<const char*>(launch.parameters.data()), launch.parameters.size());
  for (const Launch& other : launch.otherwise) text += TextOf(other);
  return text;
}

// The text of steps that PatchedCall takes.
std::string TextOf(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) {
    if (const auto* launch = std::get_if<Launch>(&step)) {
      text += TextOf(*launch);
    } else if (const auto* fill = std::get_if<cuda::Fill>(&step)) {
      text += StrCat("fill ", fill->address, " ", fill->bytes, " ", fill->value, "\n");
    } else if (const auto* product = std::get_if<cuda::MatmulProblem>(&step)) {
      text += StrCat("product ", product->left, " ", product->right, " ", product->output, "\n");
      for (const Launch& other : product->otherwise) text += TextOf(other);
    }
  }
  return text;
}

// A patched call's steps are those of LaunchKernel, at the call's addresses and at others.
void ExpectSameSteps(const KernelCall& call, const cuda::Workspace& workspace, const std::vector<Step>& steps) {
  absl::StatusOr<cuda::PatchedCall> patched = cuda::PatchedCall::Make(call, workspace.device_items);
  if (!patched.ok()) {
    EXPECT_EQ(patched.status().code(), absl::StatusCode::kUnimplemented) << patched.status();
    return;
  }
  if (!patched->Fits(call)) return;
  EXPECT_EQ(patched->workspace_bytes(), cuda::WorkspaceBytes(call, workspace.device_items));
  EXPECT_EQ(TextOf(patched->StepsOf(call, workspace)), TextOf(steps)) << ToText(*call.op);
  const auto moved = [](const void* data) {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) + (uintptr_t{1} << 20));
  };
  std::vector<KernelInput> inputs(call.inputs.begin(), call.inputs.end());
  for (KernelInput& input : inputs) input.data = moved(input.data);
  std::vector<KernelOutput> more_outputs(call.more_outputs.begin(), call.more_outputs.end());
  for (KernelOutput& output : more_outputs) output.data = moved(output.data);
  std::vector<Scalar> scalars(call.scalars.begin(), call.scalars.end());
  for (Scalar& scalar : scalars) scalar = Scalar::Int(scalar.AsInt() + 1);
  KernelCall other = call;
  other.inputs = inputs;
  other.output = moved(call.output);
  other.more_outputs = more_outputs;
  if (std::holds_alternative<MapOp>(*call.op)) other.scalars = scalars;
  cuda::Workspace elsewhere = workspace;
  elsewhere.address += 1 << 12;
  const absl::StatusOr<std::vector<Step>> anew = cuda::LaunchKernel(other, elsewhere);
  if (!anew.ok()) return;
  ASSERT_TRUE(patched->Fits(other)) << ToText(*call.op);
  EXPECT_EQ(TextOf(patched->StepsOf(other, elsewhere)), TextOf(*anew)) << ToText(*call.op);
}

// To destinations of any dtype.
std::string TryReduceTermsTo(ReduceOp op, DType dtype, absl::Span<const int64_t> extents,
                             absl::Span<const ReduceTerm> terms, int64_t term_count, DType destination_dtype,
                             absl::Span<const ReduceDestination> destinations) {
  Memory memory;
  for (const ReduceTerm& term : terms) memory.Add(term.data, extents, term.strides, SizeBytes(dtype), false);
  for (const ReduceDestination& destination : destinations) {
    memory.Add(destination.data, extents, destination.strides, SizeBytes(destination_dtype), true);
  }
  OwnWorkspace workspace(cuda::ReduceTermsWorkspaceBytes(dtype, extents, terms, destinations), &memory);
  auto steps =
      cuda::LaunchReduceTerms(op, dtype, extents, terms, term_count, destination_dtype, destinations, workspace.get());
  return steps.ok() ? RunSteps(*steps, memory) : steps.status().ToString();
}

}  // namespace

const std::map<std::string, KernelCoverage>& CoverageSoFar() { return Machine::Get().coverage(); }
void ReplaceFamily(const std::string& family, const std::string& text) { Machine::Get().Replace(family, text); }
std::string TryReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents,
                           absl::Span<const ReduceTerm> terms, int64_t term_count,
                           absl::Span<const ReduceDestination> destinations) {
  return TryReduceTermsTo(op, dtype, extents, terms, term_count, dtype, destinations);
}
absl::StatusOr<size_t> RunRows(absl::Span<const KernelCall* const> calls, const cuda::RowLimits& limits,
                               ptx::Coverage* coverage) {
  const std::optional<cuda::RowProgram> program = cuda::MakeRowProgram(calls, limits);
  if (!program.has_value()) return 0;
  static cuda::RowLaunches launches;
  const absl::StatusOr<Launch> launch = launches.LaunchOf(*program), anew = cuda::RowLaunches().LaunchOf(*program);
  if (!launch.ok()) return launch.status();
  if (launch->program->source != anew->program->source) return absl::InternalError("a text of another program");
  Memory memory;
  const auto add = [&](size_t number, bool is_written) {
    const cuda::RowPlaces& places = program->places[number];
    Shape extents = {places.is_wide ? program->count : 1};
    Strides strides = {places.element};
    int64_t end = program->rows;
    for (auto loop = places.loops.rbegin(); loop != places.loops.rend(); ++loop) {
      extents.push_back(end / loop->rows);
      strides.push_back(loop->stride);
      end = loop->rows;
    }
    memory.Add(reinterpret_cast<const void*>(static_cast<uintptr_t>(places.address)), extents, strides,
               places.element_bytes, is_written);
  };
  for (const cuda::RowValue& value : program->values) {
    if (value.read.has_value()) add(*value.read, false);
    if (value.stored.has_value()) add(*value.stored, true);
  }
  const std::string wrong = Machine::Get().Run(*launch, memory, coverage);
  if (!wrong.empty()) return absl::InternalError(wrong);
  return program->steps.size();
}
std::string TextOf(const std::string& family) {
  std::string all;
  for (const cuda::ImagePart& part : cuda::Image()) {
    if (part.family != family) continue;
    for (const std::string& text : ptx::PtxOf(part.fatbin)) all += text;
  }
  return all;
}

}  // namespace tessera::on_image

namespace tessera::testing {

// As the CUDA math library's documentation says of its functions, and the C library's beside it; a composition of
// several functions has their errors.
int BackendUlps(ScalarOp op, DType operand) {
  // The size of a complex number is hypot's.
  if (Kind(operand) == DTypeKind::kComplex) return op == ScalarOp::kAbs || op == ScalarOp::kSign ? 4 : 0;
  switch (op) {
    case ScalarOp::kAtan2:
    case ScalarOp::kHypot: return 4;
    case ScalarOp::kLogAddExp: return 8;
    default: return MaxUlps(op);
  }
}
void SetBackendItems(int64_t items) { on_image::device_items = items; }
bool BackendScansInOrder() { return false; }
absl::Status BackendImplements(const LocalOp& op, absl::Span<const DType> inputs, DType output) {
  return cuda::Implements(op, inputs, output);
}

}  // namespace tessera::testing

namespace tessera {

using on_image::Memory;
using on_image::OwnWorkspace;
using on_image::RunSteps;

void SetKernelThreads(int) {}

absl::Status RunKernel(const KernelCall& call) {
  Memory memory;
  for (const KernelInput& input : call.inputs) {
    if (!input.is_zero && input.extents.size() == input.strides.size()) {
      memory.Add(input.data, input.extents, input.strides, SizeBytes(input.dtype), false);
    }
  }
  if (call.output_extents.size() == call.output_strides.size()) {
    memory.Add(call.output, call.output_extents, call.output_strides, SizeBytes(call.output_dtype), true);
  }
  for (const KernelOutput& output : call.more_outputs) {
    memory.Add(output.data, output.extents, output.strides, SizeBytes(output.dtype), true);
  }
  OwnWorkspace workspace(call.op == nullptr ? 0 : cuda::WorkspaceBytes(call, on_image::device_items), &memory);
  auto steps = cuda::LaunchKernel(call, workspace.get());
  if (!steps.ok()) return steps.status();
  on_image::ExpectSameSteps(call, workspace.get(), *steps);
  if (std::string wrong = RunSteps(*steps, memory); !wrong.empty()) return absl::InternalError(wrong);
  return cuda::FaultOf(call, workspace.fault());
}

void CopyStrided(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
                 absl::Span<const int64_t> source_strides, void* destination,
                 absl::Span<const int64_t> destination_strides) {
  Memory memory;
  memory.Add(source, extents, source_strides, element_bytes, false);
  memory.Add(destination, extents, destination_strides, element_bytes, true);
  auto steps = cuda::LaunchCopy(extents, element_bytes, source, source_strides, destination, destination_strides);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(RunSteps(*steps, memory), "");
}

void ReduceTermsInto(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                     int64_t term_count, DType destination_dtype, absl::Span<const ReduceDestination> destinations) {
  EXPECT_EQ(on_image::TryReduceTermsTo(op, dtype, extents, terms, term_count, destination_dtype, destinations), "");
}

void ReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                 void* destination, absl::Span<const int64_t> destination_strides) {
  const ReduceDestination one = {destination, Strides(destination_strides.begin(), destination_strides.end())};
  ReduceTermsInto(op, dtype, extents, terms, static_cast<int64_t>(terms.size()), {&one, 1});
}

}  // namespace tessera
