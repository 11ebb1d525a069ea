// Products by index notation: the letters of a role are one dim, where memory allows it; an operand whose letters don't
// merge is brought together first. The product of the matrices is cuBLASLt's where it has one, with the plain kernel in
// its place: then every operand is brought together that isn't dense in row-major order and aligned, since the library
// adds up in another order where one is. That costs a copy of the operand, at the speed of memory, and no bits.
//
// A product of large operands is cut in two along a letter that isn't summed over, and each half again, so that copies
// stay small beside the device's memory. Law: extents alone say where, so parts are the same however operands lie.

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr uint32_t kTile = 16;
constexpr int64_t kMaxGridY = 65535;
constexpr int64_t kMaxProductBytes = int64_t{128} << 20;  // docs/limits.md: max_gpu_product_bytes
constexpr int64_t kPartUnit = 128;                        // rows or columns that the library's kernels have whole

// An operand as batches of matrices: three dims of extents and strides, its letters in order by role.
struct Matrices {
  Shape extents;                       // of its letters
  Strides strides;                     // of its letters
  std::array<size_t, 3> letters = {};  // how many are of each role
  std::array<int64_t, 3> sizes = {1, 1, 1};
  std::array<int64_t, 3> steps = {0, 0, 0};
  bool is_merged = true;
};

Matrices MatricesOf(const Contraction& notation, std::string_view letters, absl::Span<const int64_t> extents,
                    absl::Span<const int64_t> strides, std::array<LetterRole, 3> roles) {
  Matrices m;
  for (size_t r = 0; r < 3; ++r) {
    Shape of_role;
    Strides role_strides;
    for (const char letter : LettersOf(notation, roles[r])) {
      const int dim = DimOf(letters, letter);
      if (dim < 0) continue;
      of_role.push_back(extents[static_cast<size_t>(dim)]);
      role_strides.push_back(strides[static_cast<size_t>(dim)]);
    }
    const Loops loops = MergedLoops(of_role, {role_strides});
    m.letters[r] = of_role.size();
    m.sizes[r] = loops.size;
    m.steps[r] = loops.strides[0].back();
    m.is_merged = m.is_merged && loops.extents.size() == 1;
    m.extents.insert(m.extents.end(), of_role.begin(), of_role.end());
    m.strides.insert(m.strides.end(), role_strides.begin(), role_strides.end());
  }
  return m;
}
// The same, dense in the order of the letters.
Matrices Dense(Matrices m) {
  m.strides = RowMajorStrides(m.extents);
  m.steps = {m.sizes[1] * m.sizes[2], m.sizes[2], 1};
  m.is_merged = true;
  return m;
}

// The library multiplies floats of 8 bits where both factors are dense along the inner dim.
bool IsOfFloat8(const KernelCall& call) { return IsFloat8(call.inputs[0].dtype); }

struct Operands {
  // Left [batch, row, inner], right [batch, inner, column] (of floats of 8 bits [batch, column, inner]), output [batch,
  // row, column].
  std::array<Matrices, 3> all;
};
Operands OperandsOf(const Contraction& n, const KernelCall& call) {
  using R = LetterRole;
  const KernelInput &a = call.inputs[0], &b = call.inputs[1];
  const std::array<R, 3> of_right = IsOfFloat8(call) ? std::array<R, 3>{R::kBatch, R::kRight, R::kInner}
                                                     : std::array<R, 3>{R::kBatch, R::kInner, R::kRight};
  return {{MatricesOf(n, n.left, a.extents, StridesOf(a), {R::kBatch, R::kLeft, R::kInner}),
           MatricesOf(n, n.right, b.extents, StridesOf(b), of_right),
           MatricesOf(n, n.output, call.output_extents, call.output_strides, {R::kBatch, R::kLeft, R::kRight})}};
}

std::string EntryOf(const KernelCall& call) {
  const DType dtype = call.output_dtype;
  if (IsOfFloat8(call)) return "matmul_" + NameOf(call.inputs[0].dtype) + "_" + NameOf(call.inputs[1].dtype);
  switch (Kind(dtype)) {
    case DTypeKind::kSigned:
    case DTypeKind::kUnsigned: return absl::StrCat("matmul_", SizeBits(dtype));
    default: return "matmul_" + NameOf(dtype);
  }
}

Launch PlainProduct(const MatmulParameters& p, const KernelCall& call) {
  const auto tiles = [](int64_t extent) { return (extent + kTile - 1) / kTile; };
  return MakeLaunch(EntryOf(call), p,
                    {static_cast<uint32_t>(tiles(p.columns)), static_cast<uint32_t>(std::min(tiles(p.rows), kMaxGridY)),
                     static_cast<uint32_t>(std::min<int64_t>(p.batch, kMaxGridY))},
                    {kTile, kTile, 1});
}

// Whether products of the dtype may be cuBLASLt's.
bool IsLibrarys(DType dtype) { return Kind(dtype) == DTypeKind::kFloat; }

// Whether an operand is brought together before the product (the output: is written behind it). The image's kernel
// takes any strides of three dims; operands for the library lie in one way.
bool IsPacked(const Matrices& m, const void* data, DType dtype) {
  if (!m.is_merged || !IsLibrarys(dtype)) return !m.is_merged;
  const std::array<int64_t, 3> dense = {m.sizes[1] * m.sizes[2], m.sizes[2], 1};
  bool is_dense = AddressOf(data) % kProductAlignment == 0;
  for (size_t d = 0; d < 3; ++d) is_dense = is_dense && (m.sizes[d] == 1 || m.steps[d] == dense[d]);
  return !is_dense;
}

// The letter along which the product is cut: the longest of its largest operand. 0 where all are small, or where a
// single row or column is none: then nothing is won.
char LetterToCut(const Contraction& n, const KernelCall& call) {
  const std::array<std::pair<std::string_view, absl::Span<const int64_t>>, 3> operands = {
      {{n.left, call.inputs[0].extents}, {n.right, call.inputs[1].extents}, {n.output, call.output_extents}}};
  int64_t inner_bytes = SizeBytes(call.output_dtype);
  for (size_t d = 0; d < n.left.size(); ++d) {
    if (RoleOf(n, n.left[d]) == LetterRole::kInner) inner_bytes *= operands[0].second[d];
  }
  const auto* largest = &operands[0];
  for (const auto& operand : operands) {
    if (NumElements(operand.second) > NumElements(largest->second)) largest = &operand;
  }
  if (inner_bytes > kMaxProductBytes) return 0;
  if (NumElements(largest->second) <= kMaxProductBytes / SizeBytes(call.output_dtype)) return 0;
  char letter = 0;
  int64_t extent = 1;
  for (size_t d = 0; d < largest->first.size(); ++d) {
    if (RoleOf(n, largest->first[d]) == LetterRole::kInner || largest->second[d] <= extent) continue;
    letter = largest->first[d];
    extent = largest->second[d];
  }
  return letter;
}

// Narrows an operand with the letter to so many of its indexes, from `start` on.
template <typename Pointer>
void Narrow(std::string_view letters, char letter, int64_t start, int64_t count, int64_t element_bytes,
            const Strides& strides, Shape* extents, Pointer* data) {
  const int dim = DimOf(letters, letter);
  if (dim < 0) return;
  (*extents)[static_cast<size_t>(dim)] = count;
  if (strides.empty()) return;  // zeros
  const auto shift = static_cast<uintptr_t>(start * strides[static_cast<size_t>(dim)] * element_bytes);
  *data = reinterpret_cast<Pointer>(reinterpret_cast<uintptr_t>(*data) + shift);
}

// run(half) for both, the first one in whole units where there are several.
template <typename Run>
void ForHalves(const Contraction& n, const KernelCall& whole, char letter, Run run) {
  const int of_left = DimOf(n.left, letter);
  const int64_t extent = of_left >= 0 ? whole.inputs[0].extents[static_cast<size_t>(of_left)]
                                      : whole.inputs[1].extents[static_cast<size_t>(DimOf(n.right, letter))];
  const int64_t units = extent / kPartUnit;
  const int64_t first = units > 1 ? (units + 1) / 2 * kPartUnit : extent / 2;
  const auto narrow_input = [&](std::string_view letters, int64_t start, int64_t count, KernelInput* input) {
    Narrow(letters, letter, start, count, SizeBytes(input->dtype), input->strides, &input->extents, &input->data);
  };
  for (const auto& [start, count] : {std::pair(int64_t{0}, first), std::pair(first, extent - first)}) {
    std::array<KernelInput, 2> inputs = {whole.inputs[0], whole.inputs[1]};
    KernelCall half = whole;
    narrow_input(n.left, start, count, &inputs[0]);
    narrow_input(n.right, start, count, &inputs[1]);
    Narrow(n.output, letter, start, count, SizeBytes(whole.output_dtype), half.output_strides, &half.output_extents,
           &half.output);
    half.inputs = inputs;
    run(half);
  }
}

}  // namespace

int64_t MatmulWorkspaceBytes(const MatmulOp& op, const KernelCall& call) {
  if (const char letter = LetterToCut(op.notation, call); letter != 0) {
    int64_t most = 0;
    ForHalves(op.notation, call, letter,
              [&](const KernelCall& half) { most = std::max(most, MatmulWorkspaceBytes(op, half)); });
    return most;
  }
  const Operands operands = OperandsOf(op.notation, call);
  // Where zeros lie is not known yet; they are packed whatever it is, but for a single one.
  const std::array<const void*, 3> data = {call.inputs[0].data, call.inputs[1].data, call.output};
  int64_t bytes = 0;
  for (size_t o = 0; o < 3; ++o) {
    const Matrices& m = operands.all[o];
    const bool is_zero = o < 2 && call.inputs[o].is_zero;
    if ((is_zero && IsLibrarys(call.output_dtype)) || IsPacked(m, data[o], call.output_dtype)) {
      const DType dtype = o < 2 ? call.inputs[o].dtype : call.output_dtype;
      bytes += Pieces::Rounded(NumElements(m.extents) * SizeBytes(dtype));
    }
  }
  return bytes;
}

absl::StatusOr<Steps> LaunchMatmul(const MatmulOp& op, const KernelCall& call, const Workspace& workspace) {
  if (NumElements(call.output_extents) == 0) return Steps();
  if (const char letter = LetterToCut(op.notation, call); letter != 0) {
    absl::StatusOr<Steps> all = Steps();
    ForHalves(op.notation, call, letter, [&](const KernelCall& half) {
      if (!all.ok()) return;
      absl::StatusOr<Steps> steps = LaunchMatmul(op, half, workspace);
      if (!steps.ok()) return void(all = steps.status());
      for (Step& step : *steps) all->push_back(std::move(step));
    });
    return all;
  }
  const int64_t bytes = SizeBytes(call.output_dtype);
  Operands operands = OperandsOf(op.notation, call);
  auto& [left, right, output] = operands.all;
  const bool adds = call.store == KernelStore::kAdd;
  Steps steps, after;
  if (left.sizes[2] == 0) {
    if (adds) return steps;
    AddCopy(call.output_extents, bytes, reinterpret_cast<const void*>(static_cast<uintptr_t>(workspace.zeros)),
            Strides(call.output_extents.size(), 0), call.output, call.output_strides, &steps);
    return steps;
  }
  Pieces pieces(workspace);
  std::array<const void*, 2> from = {DataOf(call.inputs[0], workspace), DataOf(call.inputs[1], workspace)};
  for (size_t o = 0; o < 2; ++o) {
    Matrices& m = operands.all[o];
    if (!IsPacked(m, from[o], call.output_dtype)) continue;
    const int64_t element_bytes = SizeBytes(call.inputs[o].dtype);
    TESSERA_ASSIGN_OR_RETURN(void* packed, pieces.Take(NumElements(m.extents) * element_bytes));
    const Matrices dense = Dense(m);
    AddCopy(m.extents, element_bytes, from[o], m.strides, packed, dense.strides, &steps);
    from[o] = packed;
    m = dense;
  }
  void* to = call.output;
  if (IsPacked(output, call.output, call.output_dtype)) {
    TESSERA_ASSIGN_OR_RETURN(to, pieces.Take(NumElements(output.extents) * bytes));
    const Matrices dense = Dense(output);
    if (adds) AddCopy(output.extents, bytes, call.output, output.strides, to, dense.strides, &steps);
    AddCopy(output.extents, bytes, to, dense.strides, call.output, output.strides, &after);
    output = dense;
  }
  MatmulParameters p;
  p.left = from[0];
  p.right = from[1];
  p.output = to;
  p.batch = output.sizes[0];
  p.rows = output.sizes[1];
  p.columns = output.sizes[2];
  p.inner = left.sizes[2];
  std::tie(p.left_batch, p.left_row, p.left_inner) = std::tie(left.steps[0], left.steps[1], left.steps[2]);
  const size_t inner = IsOfFloat8(call) ? 2 : 1;
  std::tie(p.right_batch, p.right_inner, p.right_column) =
      std::tie(right.steps[0], right.steps[inner], right.steps[3 - inner]);
  std::tie(p.output_batch, p.output_row, p.output_column) = std::tie(output.steps[0], output.steps[1], output.steps[2]);
  p.adds = adds ? 1 : 0;
  Launch plain = PlainProduct(p, call);
  if (IsLibrarys(call.output_dtype)) {
    MatmulProblem problem = {.dtype = call.output_dtype,
                             .precision = op.notation.precision,
                             .batch = p.batch,
                             .rows = p.rows,
                             .columns = p.columns,
                             .inner = p.inner,
                             .left = AddressOf(p.left),
                             .right = AddressOf(p.right),
                             .output = AddressOf(p.output),
                             .store = call.store};
    if (IsOfFloat8(call)) problem.factors = {call.inputs[0].dtype, call.inputs[1].dtype};
    problem.otherwise.push_back(std::move(plain));
    steps.push_back(std::move(problem));
  } else {
    steps.push_back(std::move(plain));
  }
  for (Step& step : after) steps.push_back(std::move(step));
  return steps;
}

}  // namespace tessera::cuda
