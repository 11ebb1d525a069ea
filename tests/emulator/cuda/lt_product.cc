#include "tests/emulator/cuda/lt_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "schemas/types/float8.h"

namespace tessera::emulator {
namespace {

constexpr uint64_t kLongSum = 32;  // of elements: it is cut in two
constexpr uint64_t kWorkspaceAlignment = 256;
constexpr uint64_t kBiasAlignment = 16;

int64_t BytesOf(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return 1;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_32F: return 4;
    case CUDA_R_64F: return 8;
    default: return 0;
  }
}

template <typename A>
A Load(cudaDataType_t type, const std::byte* from) {
  const auto as = [from](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return static_cast<A>(value);
  };
  const auto as_float = [from](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return static_cast<A>(static_cast<float>(value));
  };
  switch (type) {
    case CUDA_R_8F_E4M3: return as_float(F8E4M3{});
    case CUDA_R_8F_E5M2: return as_float(F8E5M2{});
    case CUDA_R_16F: return as_float(F16{});
    case CUDA_R_16BF: return as_float(BF16{});
    case CUDA_R_64F: return as(double{});
    default: return as(float{});
  }
}

template <typename A>
void Store(cudaDataType_t type, A value, std::byte* to) {
  const auto as = [to](auto rounded) { std::memcpy(to, &rounded, sizeof(rounded)); };
  switch (type) {
    case CUDA_R_16F: return as(F16(value));
    case CUDA_R_16BF: return as(BF16(value));
    case CUDA_R_64F: return as(static_cast<double>(value));
    default: return as(static_cast<float>(value));
  }
}

// With 10 bits of mantissa, to the nearest one, of two the even one.
float RoundedToTf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7F800000) == 0x7F800000) return value;
  bits = (bits + 0xFFF + ((bits >> 13) & 1)) & ~uint32_t{0x1FFF};
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

bool IsRowMajor(const LtMatrix& matrix) { return matrix.order == CUBLASLT_ORDER_ROW; }
uint64_t Lines(const LtMatrix& m) { return IsRowMajor(m) ? m.rows : m.columns; }
uint64_t LineElements(const LtMatrix& m) { return IsRowMajor(m) ? m.columns : m.rows; }

std::string WrongWithMatrix(const LtMatrix& matrix, const char* name) {
  const std::string of = std::string(" of ") + name;
  if (BytesOf(matrix.type) == 0) return "an unknown type" + of;
  if (matrix.order != CUBLASLT_ORDER_COL && matrix.order != CUBLASLT_ORDER_ROW) return "an unknown order" + of;
  if (matrix.rows == 0 || matrix.columns == 0) return "no elements" + of;
  if (matrix.leading_dimension < static_cast<int64_t>(LineElements(matrix))) return "the leading dimension" + of;
  if (matrix.batch < 1 || matrix.batch_stride < 0) return "the batches" + of;
  return "";
}

enum class Epilogues { kLeftOut, kCounted };

uint64_t Hash(const LtShapes& shapes, Epilogues epilogues) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&hash](auto value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001B3; };
  const LtOperation& o = shapes.operation;
  for (const int64_t value : {int64_t{o.compute}, int64_t{o.scale}, int64_t{o.pointer_mode}, int64_t{o.transpose_a},
                              int64_t{o.transpose_b}}) {
    add(value);
  }
  if (epilogues == Epilogues::kCounted) add(int64_t{o.epilogue});
  for (const LtMatrix* m : {&shapes.a, &shapes.b, &shapes.c, &shapes.d}) {
    for (const int64_t value : {int64_t{m->type}, static_cast<int64_t>(m->rows), static_cast<int64_t>(m->columns),
                                m->leading_dimension, int64_t{m->order}, int64_t{m->batch}, m->batch_stride}) {
      add(value);
    }
  }
  return hash;
}

bool IsFloat8(const LtMatrix& matrix) { return matrix.type == CUDA_R_8F_E4M3 || matrix.type == CUDA_R_8F_E5M2; }

// Floats of 8 bits are multiplied where both factors are dense along the inner dim, of lines of whole 16 bytes, and not
// both of e5m2 (cuBLAS, "cublasLtMatmul()", the table of FP8 data types).
std::string WrongWithFloat8(const LtShapes& s) {
  if (s.operation.transpose_a != CUBLAS_OP_T || s.operation.transpose_b != CUBLAS_OP_N) return "no TN layout of FP8";
  if (s.a.type == CUDA_R_8F_E5M2 && s.b.type == CUDA_R_8F_E5M2) return "two factors of e5m2";
  for (const LtMatrix* m : {&s.a, &s.b, &s.d}) {
    if (m->leading_dimension * BytesOf(m->type) % 16 != 0) return "lines of FP8 that aren't of whole 16 bytes";
  }
  return "";
}

bool IsTf32(const LtShapes& shapes) { return shapes.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32; }

uint64_t ImplementationOf(const LtShapes& shapes) {
  uint64_t flags = CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA;
  flags |= shapes.operation.compute == CUBLAS_COMPUTE_64F ? CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_64F
                                                          : CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F;
  switch (shapes.a.type) {
    case CUDA_R_8F_E4M3: return flags | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E4M3;
    case CUDA_R_8F_E5M2: return flags | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E5M2;
    case CUDA_R_16F: return flags | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F;
    case CUDA_R_16BF: return flags | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF;
    case CUDA_R_64F: return flags | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_64F;
    default:
      return flags |
             (IsTf32(shapes) ? CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 : CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F);
  }
}

uint64_t InnerOf(const LtShapes& shapes) {
  return shapes.operation.transpose_a == CUBLAS_OP_N ? shapes.a.columns : shapes.a.rows;
}

bool HasBias(const LtShapes& shapes) { return shapes.operation.epilogue == CUBLASLT_EPILOGUE_BIAS; }
uint64_t SumBytes(const LtShapes& shapes) { return shapes.operation.compute == CUBLAS_COMPUTE_64F ? 8 : 4; }

bool IsAligned(uint64_t address, uint64_t bytes) { return bytes != 0 && address % bytes == 0; }

// One batch of a matrix in memory: only what its lines hold is looked at, not what lies between them.
class Lined {
 public:
  Lined(const LtMatrix& matrix, uint64_t address, int64_t batch)
      : matrix_(matrix),
        bytes_(BytesOf(matrix.type)),
        base_(address + static_cast<uint64_t>(batch * matrix.batch_stride * bytes_)) {}
  bool Touch(const LtTouch& touch, bool is_write) {
    places_.clear();
    for (uint64_t line = 0; line < Lines(matrix_); ++line) {
      const uint64_t at = base_ + line * static_cast<uint64_t>(matrix_.leading_dimension * bytes_);
      places_.push_back(touch(at, static_cast<int64_t>(LineElements(matrix_)) * bytes_, is_write));
      if (places_.back() == nullptr) return false;
    }
    return true;
  }
  std::byte* At(uint64_t row, uint64_t column) const {
    const uint64_t line = IsRowMajor(matrix_) ? row : column, element = IsRowMajor(matrix_) ? column : row;
    return places_[line] + element * static_cast<uint64_t>(bytes_);
  }

 private:
  const LtMatrix& matrix_;
  const int64_t bytes_;
  const uint64_t base_;
  std::vector<std::byte*> places_;
};

// Where a sum begins: as the library's kernels do, in another order for other layouts, alignments and extents, and for
// another epilogue.
uint64_t FirstOf(const LtAlgorithm& algorithm, uint64_t terms) {
  uint64_t mixed = algorithm.order;
  for (const uint32_t alignment : algorithm.alignment) mixed = (mixed ^ alignment) * 0x100000001B3;
  return (mixed >> 17) % terms;
}

// The sign of a sum that is zero is nobody's promise. The same one each time, as all bits are.
bool IsNegativeZero(const LtAlgorithm& algorithm, uint64_t row, uint64_t column) {
  const uint64_t mixed = ((algorithm.order ^ row) * 0x100000001B3 ^ column) * 0x100000001B3;
  return (mixed >> 23) % 2 != 0;
}

// Sums [first, last) of the inner dim, from one of them on and round.
template <typename A>
A PartOf(const LtCall& call, const Lined& a, const Lined& b, uint64_t row, uint64_t column, uint64_t first,
         uint64_t last) {
  const LtShapes& s = call.shapes;
  A sum = 0;
  const bool is_tf32 = IsTf32(s);
  const uint64_t terms = last - first, begin = FirstOf(call.algorithm, terms);
  for (uint64_t i = 0; i < terms; ++i) {
    const uint64_t k = first + (begin + i) % terms;
    A left = Load<A>(s.a.type, s.operation.transpose_a == CUBLAS_OP_N ? a.At(row, k) : a.At(k, row));
    A right = Load<A>(s.b.type, s.operation.transpose_b == CUBLAS_OP_N ? b.At(k, column) : b.At(column, k));
    if (is_tf32) {
      left = RoundedToTf32(static_cast<float>(left));
      right = RoundedToTf32(static_cast<float>(right));
    }
    sum += left * right;
  }
  return sum;
}

template <typename A>
std::string RunIn(const LtCall& call, const LtTouch& touch) {
  const LtShapes& s = call.shapes;
  const uint64_t inner = InnerOf(s), parts = call.algorithm.parts;
  const bool is_in_workspace = call.algorithm.workspace_bytes > 0;
  std::byte* scratch = nullptr;
  if (is_in_workspace) {
    const auto bytes = static_cast<int64_t>(CheckAlgorithm(s, call.algorithm).value_or(0));
    scratch = touch(call.workspace, bytes, true);
    if (scratch == nullptr || touch(call.workspace, bytes, false) == nullptr) return "no memory of the workspace";
  }
  const std::byte* bias = nullptr;
  if (HasBias(s)) {
    bias = touch(s.operation.bias, static_cast<int64_t>(s.d.rows) * BytesOf(s.d.type), false);
    if (bias == nullptr) return "no memory of the bias";
  }
  for (int64_t batch = 0; batch < s.d.batch; ++batch) {
    Lined a(s.a, call.a, batch), b(s.b, call.b, batch), c(s.c, call.c, batch), d(s.d, call.d, batch);
    if (!a.Touch(touch, false)) return "no memory of a";
    if (!b.Touch(touch, false)) return "no memory of b";
    if (call.beta != 0 && !c.Touch(touch, false)) return "no memory of c";
    if (!d.Touch(touch, true)) return "no memory of d";
    for (uint64_t column = 0; column < s.d.columns; ++column) {
      for (uint64_t row = 0; row < s.d.rows; ++row) {
        A sum = 0;
        for (uint64_t part = 0; part < parts; ++part) {
          const bool is_turned = call.algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE && call.is_odd;
          const uint64_t p = is_turned ? parts - 1 - part : part;
          A added = PartOf<A>(call, a, b, row, column, inner * p / parts, inner * (p + 1) / parts);
          if (is_in_workspace) {
            std::byte* const place = scratch + sizeof(A) * (part * s.d.rows * s.d.columns + column * s.d.rows + row);
            std::memcpy(place, &added, sizeof(A));
            std::memcpy(&added, place, sizeof(A));
          }
          sum += added;
          if (call.algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ||
              call.algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) {
            std::byte rounded[sizeof(double)];
            Store(s.d.type, sum, rounded);
            sum = Load<A>(s.d.type, rounded);
          }
        }
        if (sum == 0) sum = IsNegativeZero(call.algorithm, row, column) ? -A{0} : A{0};
        A value = static_cast<A>(call.alpha) * sum;
        if (call.beta != 0) value += static_cast<A>(call.beta) * Load<A>(s.c.type, c.At(row, column));
        if (bias != nullptr) value += Load<A>(s.d.type, bias + row * static_cast<uint64_t>(BytesOf(s.d.type)));
        Store(s.d.type, value, d.At(row, column));
      }
    }
  }
  return "";
}

}  // namespace

std::string WrongWith(const LtShapes& s) {
  for (const auto& [matrix, name] :
       {std::pair(&s.a, "a"), std::pair(&s.b, "b"), std::pair(&s.c, "c"), std::pair(&s.d, "d")}) {
    if (std::string wrong = WrongWithMatrix(*matrix, name); !wrong.empty()) return wrong;
    if (matrix->batch != s.d.batch) return "other batches than d's";
  }
  const LtOperation& o = s.operation;
  const bool is_double = o.compute == CUBLAS_COMPUTE_64F && o.scale == CUDA_R_64F && s.a.type == CUDA_R_64F;
  const bool is_single = o.compute == CUBLAS_COMPUTE_32F && o.scale == CUDA_R_32F && s.a.type != CUDA_R_64F;
  const bool is_tf32 = IsTf32(s) && o.scale == CUDA_R_32F && s.a.type == CUDA_R_32F;
  if (!is_double && !is_single && !is_tf32) return "types that are not computed so";
  const bool is_float8 = IsFloat8(s.a) && IsFloat8(s.b);
  if ((s.b.type != s.a.type && !is_float8) || s.c.type != s.d.type || (s.d.type != s.a.type && s.d.type != o.scale)) {
    return "types that don't go together";
  }
  if (o.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return "scales that are not the host's";
  if (o.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !HasBias(s)) return "an epilogue";
  for (const int32_t transpose : {o.transpose_a, o.transpose_b}) {
    if (transpose != CUBLAS_OP_N && transpose != CUBLAS_OP_T) return "an unknown operation";
  }
  const bool a_as_it_is = o.transpose_a == CUBLAS_OP_N, b_as_it_is = o.transpose_b == CUBLAS_OP_N;
  const bool fits =
      (a_as_it_is ? s.a.rows : s.a.columns) == s.d.rows && (b_as_it_is ? s.b.columns : s.b.rows) == s.d.columns &&
      (b_as_it_is ? s.b.rows : s.b.columns) == InnerOf(s) && s.c.rows == s.d.rows && s.c.columns == s.d.columns;
  if (!fits) return "extents that don't go together";
  return is_float8 ? WrongWithFloat8(s) : "";
}

std::optional<LtAlgorithm> ChooseAlgorithm(const LtShapes& shapes, const LtPreference& preference) {
  if (!WrongWith(shapes).empty()) return std::nullopt;
  const uint64_t needs = ImplementationOf(shapes);
  if ((needs & preference.implementations) != needs) return std::nullopt;
  LtAlgorithm algorithm;
  algorithm.of = Hash(shapes, Epilogues::kLeftOut);
  algorithm.order = Hash(shapes, Epilogues::kCounted);
  const LtMatrix* const matrices[] = {&shapes.a, &shapes.b, &shapes.c, &shapes.d};
  for (size_t m = 0; m < 4; ++m) {
    const uint32_t promised = preference.alignment[m];
    if (promised % static_cast<uint32_t>(BytesOf(matrices[m]->type)) != 0) return std::nullopt;
    algorithm.alignment[m] = promised;
  }
  if (InnerOf(shapes) < kLongSum || preference.schemes == CUBLASLT_REDUCTION_SCHEME_NONE) return algorithm;
  constexpr uint64_t kParts = 2;
  const uint64_t bytes = kParts * shapes.d.rows * shapes.d.columns * SumBytes(shapes);
  for (const uint32_t scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
                                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) {
    if ((preference.schemes & scheme) == 0) continue;
    const uint64_t wanted = scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ? 0 : bytes;
    if (wanted > preference.workspace_bytes) continue;
    algorithm.scheme = scheme;
    algorithm.parts = kParts;
    algorithm.workspace_bytes = wanted;
    break;
  }
  return algorithm;
}

std::optional<uint64_t> CheckAlgorithm(const LtShapes& shapes, const LtAlgorithm& algorithm) {
  if (!WrongWith(shapes).empty() || algorithm.of != Hash(shapes, Epilogues::kLeftOut)) return std::nullopt;
  const uint64_t bytes = algorithm.workspace_bytes;
  if (!HasBias(shapes)) return bytes;
  if (IsFloat8(shapes.a) || shapes.d.rows % 2 != 0 || !IsAligned(shapes.operation.bias, kBiasAlignment))
    return std::nullopt;
  // The parts of a sum are put together there before the bias comes.
  return bytes == 0 ? 0 : bytes + shapes.d.rows * shapes.d.columns * SumBytes(shapes);
}

std::string WrongWith(const LtCall& call) {
  const LtAlgorithm& algorithm = call.algorithm;
  if (algorithm.of != Hash(call.shapes, Epilogues::kLeftOut)) return "an algorithm of other shapes";
  if (HasBias(call.shapes) && call.shapes.operation.bias == 0) return "no bias";
  const std::optional<uint64_t> workspace_bytes = CheckAlgorithm(call.shapes, algorithm);
  if (!workspace_bytes.has_value()) return "an algorithm that doesn't add the bias";
  const uint64_t addresses[] = {call.a, call.b, call.c, call.d};
  for (size_t m = 0; m < 4; ++m) {
    if (addresses[m] == 0) return std::string("no ") + "abcd"[m];
    if (!IsAligned(addresses[m], algorithm.alignment[m])) {
      return std::string("less alignment than was promised of ") + "abcd"[m];
    }
  }
  if (*workspace_bytes > call.workspace_bytes) return "a workspace that is too small";
  if (*workspace_bytes > 0 && (call.workspace == 0 || !IsAligned(call.workspace, kWorkspaceAlignment))) {
    return "a workspace that isn't aligned to 256";
  }
  return "";
}

std::string RunProduct(const LtCall& call, const LtTouch& touch) {
  return call.shapes.operation.compute == CUBLAS_COMPUTE_64F ? RunIn<double>(call, touch) : RunIn<float>(call, touch);
}

}  // namespace tessera::emulator
