// The CPU kernels against memcpy in the same run: kernels_bench [--quick] [--only TEXT]. One JSON object on
// stdout: for each kernel its seconds of processor time (best of several), the bytes it reads and writes, and its ratio
// to memcpy, in turns with it, of as many bytes read and written; or, of products, to BLAS. --only runs the kernels
// whose name contains TEXT.

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cblas.h>
#include <nlohmann/json.hpp>

#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/thin_product.h"
#include "kernels/joined_kernels.h"
#include "kernels/kernel.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/half.h"

namespace tessera::bench {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kArenaBytes = 640 * kMiB;

double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Processor time: other work on the cores costs caches, but not turns.
double Seconds(const std::function<void()>& run) {
  const double start = ProcessorSeconds();
  run();
  return ProcessorSeconds() - start;
}

void Gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) {
  const auto rows = static_cast<blasint>(m), columns = static_cast<blasint>(n), inner = static_cast<blasint>(k);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, columns, inner, 1, a, inner, b, columns, 0, c, columns);
}
void Gemm(int64_t m, int64_t n, int64_t k, const double* a, const double* b, double* c) {
  const auto rows = static_cast<blasint>(m), columns = static_cast<blasint>(n), inner = static_cast<blasint>(k);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, columns, inner, 1, a, inner, b, columns, 0, c, columns);
}

// Memory as an arena is: shared, its pages touched. Arrays lie one after another.
class Arena {
 public:
  Arena()
      : base_(static_cast<std::byte*>(
            mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0))) {
    if (base_ == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    std::memset(base_, 1, kArenaBytes);
  }
  std::byte* At(int64_t offset_bytes) const { return base_ + offset_bytes; }

 private:
  std::byte* base_;
};

struct Bench {
  int repetitions = 9;
  std::string only = {};
  Arena arena = {};
  nlohmann::json out = {};

  bool Wants(const std::string& name) const { return name.find(only) != std::string::npos; }

  // `touched_bytes`: read and written together.
  void Add(const std::string& name, int64_t touched_bytes, const std::function<void()>& run) {
    if (!Wants(name)) return;
    const int64_t half = std::min(touched_bytes / 2, kArenaBytes / 2);
    const double scale = static_cast<double>(touched_bytes) / static_cast<double>(2 * half);
    double best = 1e30, copy = 1e30;
    run();
    for (int r = 0; r < repetitions; ++r) {
      copy = std::min(copy,
                      Seconds([&] { std::memcpy(arena.At(kArenaBytes / 2), arena.At(0), static_cast<size_t>(half)); }));
      best = std::min(best, Seconds(run));
    }
    copy *= scale;
    out[name] = {{"seconds", best}, {"bytes", touched_bytes}, {"ratio_to_memcpy", best / copy}};
    std::fprintf(stderr, "%-44s %9.3f ms  %5.2f\n", name.c_str(), best * 1e3, best / copy);
  }
  void AddBesideBlas(const std::string& name, const std::function<void()>& run, const std::function<void()>& blas) {
    if (!Wants(name)) return;
    double best = 1e30, of_blas = 1e30;
    for (int r = 0; r <= repetitions; ++r) {  // the first one of each makes pages
      const double own_s = Seconds(run), blas_s = Seconds(blas);
      if (r == 0) continue;
      best = std::min(best, own_s);
      of_blas = std::min(of_blas, blas_s);
    }
    out[name] = {{"seconds", best}, {"ratio_to_blas", best / of_blas}};
    std::fprintf(stderr, "%-44s %9.3f ms  %5.2f of BLAS\n", name.c_str(), best * 1e3, best / of_blas);
  }

  void AddCopy(const std::string& name, const Shape& extents, int64_t element_bytes, int64_t source_first,
               const Strides& from, const Strides& to) {
    Add(name, 2 * NumElements(extents) * element_bytes, [&] {
      CopyStrided(extents, element_bytes, arena.At(source_first * element_bytes), from, arena.At(kArenaBytes / 2), to);
    });
  }
};

std::string SizeText(int64_t bytes) {
  return bytes < kMiB ? std::to_string(bytes >> 10) + "KiB" : std::to_string(bytes / kMiB) + "MiB";
}

// A square of `bytes` in elements of every size: whole, in halves of rows, transposed, reversed.
void AddSquares(Bench& bench, int64_t bytes) {
  for (int64_t element : {1, 2, 4, 8, 16}) {
    int64_t n = 1;
    while (n * n * element < bytes) n *= 2;
    const int64_t m = bytes / element / n;  // n rows of m
    const std::string size = "_" + SizeText(bytes) + "_of_" + std::to_string(element);
    bench.AddCopy("copy_dense" + size, {n, m}, element, 0, {m, 1}, {m, 1});
    bench.AddCopy("copy_half_rows" + size, {n, m / 2}, element, m / 2, {m, 1}, {m / 2, 1});
    bench.AddCopy("copy_into_half_rows" + size, {n, m / 2}, element, 0, {m / 2, 1}, {m, 1});
    bench.AddCopy("copy_transposed" + size, {n, m}, element, 0, {1, n}, {m, 1});
    bench.AddCopy("copy_transposed_odd" + size, {n - 5, m - 3}, element, 0, {1, n - 5}, {m - 3, 1});
    bench.AddCopy("copy_reversed" + size, {n, m}, element, m - 1, {m, -1}, {m, 1});
    bench.AddCopy("copy_every_second" + size, {n, m / 2}, element, 0, {m, 2}, {m / 2, 1});
  }
}

// A cube's dims in every order, and thin ones.
void AddCubes(Bench& bench, int64_t bytes, int64_t element) {
  struct Case {
    const char* name;
    int64_t a, b, c;
  };
  const int64_t n = bytes / element;
  for (const Case& e : {Case{"cube", 256, 256, n / 65536}, Case{"thin_last", n / 2048, 64, 32},
                        Case{"tiny_last", n / 512, 128, 4}, Case{"odd", 99, 301, n / 29799}}) {
    const std::string name = std::string("copy_") + e.name + "_" + SizeText(bytes) + "_of_" + std::to_string(element);
    const Shape extents = {e.a, e.b, e.c};
    const Strides rows = {e.b * e.c, e.c, 1};
    bench.AddCopy(name + "_bac", extents, element, 0, {e.c, e.a * e.c, 1}, rows);
    bench.AddCopy(name + "_acb", extents, element, 0, {e.b * e.c, 1, e.b}, rows);
    bench.AddCopy(name + "_cab", extents, element, 0, {e.b, 1, e.a * e.b}, rows);
    bench.AddCopy(name + "_cba", extents, element, 0, {1, e.a, e.a * e.b}, rows);
  }
}

// Products with a short inner dim or few columns against BLAS, in turns, on one thread.
template <typename T>
void AddThinProducts(Bench& bench, const char* dtype) {
  struct Size {
    int64_t rows, columns, inner;
  };
  for (const auto& [m, n, k] : {Size{2048, 4096, 8},
                                {4096, 256, 2048},
                                {2048, 4096, 32},
                                {2048, 4096, 64},
                                {2048, 4096, 128},
                                {1024, 1024, 64},
                                {64, 65536, 64},
                                {65536, 96, 64}}) {
    const std::string name = std::string("thin_product_") + dtype + "_" + std::to_string(m) + "x" + std::to_string(n) +
                             "x" + std::to_string(k);
    T* const a = reinterpret_cast<T*>(bench.arena.At(0));
    T* const b = a + m * k;
    T* const c = reinterpret_cast<T*>(bench.arena.At(128 * kMiB));
    if (bench.Wants(name)) std::fill(a, b + k * n, T{1});
    const cpu::ThinProduct<T> product{.rows = m,
                                      .columns = n,
                                      .inner = k,
                                      .a = a,
                                      .a_row_stride = k,
                                      .a_inner_stride = 1,
                                      .b = b,
                                      .b_inner_stride = n,
                                      .b_column_stride = 1,
                                      .c = c,
                                      .c_row_stride = n};
    bench.AddBesideBlas(
        name, [&] { cpu::RunThinProduct(product); }, [&] { Gemm(m, n, k, a, b, c); });
  }
}

void AddReductions(Bench& bench, int64_t bytes) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kBool}) {
    for (int64_t count : {2, 3, 4, 8}) {
      if (dtype != DType::kF32 && count != 2) continue;
      const int64_t element = SizeBytes(dtype), n = bytes / element, side = 1024;
      const std::string name =
          "_" + std::to_string(count) + "_terms_" + SizeText(bytes) + "_" + std::string(ToText(dtype));
      std::vector<ReduceTerm> dense, rows, turned;
      for (int64_t t = 0; t < count; ++t) {
        const std::byte* data = bench.arena.At(t * bytes);
        dense.push_back({data, {side, 1}});
        rows.push_back({data, {side * 2, 1}});
        turned.push_back({data, t == 0 ? Strides{1, n / side} : Strides{side, 1}});
      }
      std::byte* to = bench.arena.At(count * bytes);
      const Shape extents = {n / side, side};
      bench.Add("reduce" + name, (count + 1) * bytes, [&] {
        ReduceTerms(ReduceOp::kSum, dtype, extents, dense, to, {side, 1});
      });
      bench.Add("reduce_half_rows" + name, (count + 1) * bytes / 2, [&] {
        ReduceTerms(ReduceOp::kSum, dtype, {n / side / 2, side}, rows, to, {side, 1});
      });
      bench.Add("reduce_one_turned" + name, (count + 1) * bytes, [&] {
        ReduceTerms(ReduceOp::kSum, dtype, extents, turned, to, {side, 1});
      });
      const std::vector<ReduceDestination> places = {{to, {side, 1}}, {to + bytes, {side, 1}}};
      if (count <= 4) {
        bench.Add("reduce_to_two_places" + name, (count + 2) * bytes, [&] {
          ReduceTermsInto(ReduceOp::kSum, dtype, extents, dense, static_cast<int64_t>(dense.size()), places);
        });
      }
    }
  }
}

KernelInput Input(const std::byte* data, const Shape& extents) {
  return {.data = data, .dtype = DType::kF32, .extents = extents, .strides = RowMajorStrides(extents)};
}

void AddFamilies(Bench& bench, int64_t n) {
  const int64_t bytes = n * n * 4;
  const std::string size = "_" + SizeText(bytes);
  const std::byte *a = bench.arena.At(0), *b = bench.arena.At(bytes);
  const Shape square{n, n};
  for (int64_t dim : {0, 1}) {
    const LocalOp op = ReduceLocalOp{ReduceOp::kSum, {dim}};
    Shape kept = square;
    kept[static_cast<size_t>(dim)] = 1;
    const KernelInput inputs[] = {Input(a, square)};
    const KernelCall call{.op = &op,
                          .inputs = inputs,
                          .output = bench.arena.At(2 * bytes),
                          .output_dtype = DType::kF32,
                          .output_extents = kept,
                          .output_strides = RowMajorStrides(kept)};
    bench.Add("sum_dim" + std::to_string(dim) + size, bytes, [&] { RunKernel(call).IgnoreError(); });
  }
  for (ScalarOp scalar_op : {ScalarOp::kAdd, ScalarOp::kExp}) {
    Expression expression{{{ScalarOp::kInput, DType::kF32, 0}}};
    const bool binary = Arity(scalar_op) == 2;
    if (binary) expression.nodes.push_back({ScalarOp::kInput, DType::kF32, 1});
    expression.nodes.push_back({scalar_op, DType::kF32, 0, binary ? 1 : 0});
    const LocalOp op = MapOp{expression};
    const KernelInput inputs[] = {Input(a, square), Input(b, square)};
    KernelCall call{.op = &op,
                    .inputs = absl::MakeConstSpan(inputs).first(binary ? 2 : 1),
                    .output = bench.arena.At(2 * bytes),
                    .output_dtype = DType::kF32,
                    .output_extents = square,
                    .output_strides = RowMajorStrides(square)};
    bench.Add(std::string(ToText(scalar_op)) + size, bytes * (Arity(scalar_op) + 1),
              [&] { RunKernel(call).IgnoreError(); });
  }
}

ExpressionNode Read(int number) { return {ScalarOp::kInput, DType::kF32, number}; }
ExpressionNode Node(ScalarOp op, int a, int b = 0) { return {op, DType::kF32, a, b}; }

// The steps of a normalisation of rows, which take turns. Argument 0 is the rows' length, argument 1 is small.
class Steps {
 public:
  explicit Steps(Shape rows) : rows_(std::move(rows)), of_row_(rows_) {
    scalars_ = {Scalar::Float(static_cast<double>(rows_.back())), Scalar::Float(1e-5)};
    of_row_.back() = 1;
  }
  struct Place {
    std::byte* data = nullptr;
    bool is_of_row = false;
  };
  void Add(LocalOp op, const std::vector<Place>& from, Place to, int readers = 0) {
    ops_.push_back(std::move(op));
    std::vector<KernelInput>& inputs = inputs_.emplace_back();
    for (const Place& place : from) inputs.push_back(Input(place.data, place.is_of_row ? of_row_ : rows_));
    const Shape& extents = to.is_of_row ? of_row_ : rows_;
    calls_.push_back({.op = &ops_.back(),
                      .inputs = inputs,
                      .output = to.data,
                      .output_dtype = DType::kF32,
                      .output_extents = extents,
                      .output_strides = RowMajorStrides(extents),
                      .scalars = scalars_});
    calls_.back().output_readers = readers;
  }
  void Run() const {
    std::vector<const KernelCall*> list;
    for (const KernelCall& call : calls_) list.push_back(&call);
    RunJoined(list).status().IgnoreError();
  }

 private:
  Shape rows_, of_row_;
  std::vector<Scalar> scalars_;
  std::deque<LocalOp> ops_;
  std::deque<std::vector<KernelInput>> inputs_;
  std::vector<KernelCall> calls_;
};

void AddNormalisations(Bench& bench, int64_t rows, int64_t columns) {
  const int64_t bytes = rows * columns * 4;
  const auto at = [&](int64_t place) { return bench.arena.At(place * bytes); };
  auto* const x = reinterpret_cast<float*>(at(0));
  for (int64_t i = 0; i < rows * columns; ++i) x[i] = static_cast<float>(i % 17) * 0.125F - 1;
  // `e`: the exponentials, which its readers alone want.
  const Steps::Place in{at(0)}, e{at(1)}, out{at(2)}, most{at(3), true}, sum{at(3) + 4 * rows, true},
      squared{at(3) + 8 * rows, true};
  const Expression shifted_exp = {{Read(0), Read(1), Node(ScalarOp::kSub, 0, 1), Node(ScalarOp::kExp, 2)}};
  Steps softmax({rows, columns});
  softmax.Add(ReduceLocalOp{ReduceOp::kMax, {1}}, {in}, most);
  softmax.Add(MapOp{shifted_exp}, {in, most}, e, 2);
  softmax.Add(ReduceLocalOp{ReduceOp::kSum, {1}}, {e}, sum);
  softmax.Add(MapOp{{{Read(0), Read(1), Node(ScalarOp::kDiv, 0, 1)}}}, {e, sum}, out);
  bench.Add("softmax_" + std::to_string(rows) + "x" + std::to_string(columns), 2 * bytes, [&] { softmax.Run(); });
  const Expression squares = {{Read(0), Read(1), Node(ScalarOp::kSub, 0, 1), Node(ScalarOp::kMul, 2, 2)}};
  const Expression mean = {{Read(0), {ScalarOp::kArgument, DType::kF32, 0}, Node(ScalarOp::kDiv, 0, 1)}};
  const Expression root = {
      {Read(0), {ScalarOp::kArgument, DType::kF32, 1}, Node(ScalarOp::kAdd, 0, 1), Node(ScalarOp::kSqrt, 2)}};
  const Expression normal = {{Read(0), Read(1), Read(2), Node(ScalarOp::kSub, 1, 2), Node(ScalarOp::kDiv, 3, 0)}};
  Steps layer_norm({rows, columns});
  layer_norm.Add(ReduceLocalOp{ReduceOp::kSum, {1}}, {in}, most);
  layer_norm.Add(MapOp{mean}, {most}, sum);
  layer_norm.Add(ReduceLocalOp{ReduceOp::kSum, {1}, squares}, {in, sum}, most);
  layer_norm.Add(MapOp{mean}, {most}, squared);
  layer_norm.Add(MapOp{root}, {squared}, most);
  layer_norm.Add(MapOp{normal}, {most, in, sum}, out);
  bench.Add("layer_norm_" + std::to_string(rows) + "x" + std::to_string(columns), 2 * bytes, [&] { layer_norm.Run(); });
}

// max((x * a + b) * a - b, b) * a, one map of six nodes, and x * a.
void AddChain(Bench& bench, int64_t elements) {
  Expression chain = {{Read(0), {ScalarOp::kArgument, DType::kF32, 0}, {ScalarOp::kArgument, DType::kF32, 1}}};
  int last = 0;
  const auto then = [&](ScalarOp op, int number) {
    chain.nodes.push_back(Node(op, last, 1 + number));
    last = static_cast<int>(chain.nodes.size()) - 1;
  };
  const auto add = [&](const std::string& name) {
    Steps step({elements});
    step.Add(MapOp{chain}, {{bench.arena.At(0)}}, {bench.arena.At(4 * elements)});
    bench.Add(name + std::to_string(elements), 8 * elements, [&] { step.Run(); });
  };
  then(ScalarOp::kMul, 0);
  add("map_of_1_");
  then(ScalarOp::kAdd, 1);
  then(ScalarOp::kMul, 0);
  then(ScalarOp::kSub, 1);
  then(ScalarOp::kMaximum, 1);
  then(ScalarOp::kMul, 0);
  add("map_of_6_");
}

// AdamW's three maps over the parameter, its moments and the gradient, in place, which take turns.
void AddAdamW(Bench& bench, int64_t elements) {
  const auto at = [&](int64_t place) { return Steps::Place{bench.arena.At(place * elements * 4)}; };
  auto* const numbers = reinterpret_cast<float*>(at(0).data);
  for (int64_t i = 0; i < 4 * elements; ++i) numbers[i] = static_cast<float>(i % 17 + 1) * 0.0625F;
  const auto given = [](int number) { return ExpressionNode{ScalarOp::kArgument, DType::kF32, number}; };
  // in0 * arg0 + in1 * arg1, and with in1 * in1
  const Expression mean = {{Read(0), given(0), Node(ScalarOp::kMul, 0, 1), Read(1), given(1),
                            Node(ScalarOp::kMul, 3, 4), Node(ScalarOp::kAdd, 2, 5)}};
  const Expression square = {{Read(0), given(0), Node(ScalarOp::kMul, 0, 1), Read(1), Node(ScalarOp::kMul, 3, 3),
                              given(1), Node(ScalarOp::kMul, 4, 5), Node(ScalarOp::kAdd, 2, 6)}};
  // in0 * arg0 - in1 / (sqrt(in2) / arg0 + arg1) * arg1
  const Expression moved = {{Read(0), given(0), Node(ScalarOp::kMul, 0, 1), Read(1), Read(2), Node(ScalarOp::kSqrt, 4),
                             Node(ScalarOp::kDiv, 5, 1), given(1), Node(ScalarOp::kAdd, 6, 7),
                             Node(ScalarOp::kDiv, 3, 8), Node(ScalarOp::kMul, 9, 7), Node(ScalarOp::kSub, 2, 10)}};
  Steps step({elements});
  step.Add(MapOp{mean}, {at(1), at(3)}, at(1));
  step.Add(MapOp{square}, {at(2), at(3)}, at(2));
  step.Add(MapOp{moved}, {at(0), at(1), at(2)}, at(0));
  bench.Add("adamw_" + std::to_string(elements), 28 * elements, [&] { step.Run(); });
}

// Attention of heads of 2048 x 64 against BLAS's two products of each, with the whole matrix of scores in memory and
// nothing done to it, in turns, on one thread.
void AddAttention(Bench& bench, int64_t heads, int64_t rows, int64_t features) {
  const Shape extents{heads, rows, features};
  const int64_t elements = NumElements(extents);
  float* const q = reinterpret_cast<float*>(bench.arena.At(0));
  for (int64_t i = 0; i < 3 * elements; ++i) q[i] = static_cast<float>((i * 2654435761) % 1024) / 512.0f - 1.0f;
  const float *const k = q + elements, *const v = k + elements;
  float *const out = q + 3 * elements, *const scores = out + elements;
  const std::vector<Scalar> scale = {Scalar::Float(0.125)};
  for (const bool is_causal : {false, true}) {
    const LocalOp op = AttentionOp{.is_causal = is_causal};
    std::vector<KernelInput> inputs;
    for (const float* data : {static_cast<const float*>(q), k, v}) {
      inputs.push_back(Input(reinterpret_cast<const std::byte*>(data), extents));
    }
    const KernelCall call{.op = &op,
                          .inputs = inputs,
                          .output = out,
                          .output_dtype = DType::kF32,
                          .output_extents = extents,
                          .output_strides = RowMajorStrides(extents),
                          .output_box = {{0, heads}, {0, rows}, {0, features}},
                          .scalars = scale};
    const std::string name = std::string("attention_") + (is_causal ? "causal_" : "") + std::to_string(heads) + "x" +
                             std::to_string(rows) + "x" + std::to_string(features);
    bench.AddBesideBlas(
        name, [&] { RunKernel(call).IgnoreError(); },
        [&] {
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t at = h * rows * features;
            const auto n = static_cast<blasint>(rows), d = static_cast<blasint>(features);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, d, 1, q + at, d, k + at, d, 0, scores, n);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, d, n, 1, scores, n, v + at, d, 0, out + at, d);
          }
        });
  }
}

// The gradients of such an attention against BLAS's five products of each head, likewise.
void AddAttentionGradients(Bench& bench, int64_t heads, int64_t rows, int64_t features) {
  const Shape extents{heads, rows, features};
  const int64_t elements = NumElements(extents), of_head = rows * features;
  float* const g = reinterpret_cast<float*>(bench.arena.At(0));
  for (int64_t i = 0; i < 4 * elements; ++i) g[i] = static_cast<float>((i * 2654435761) % 1024) / 512.0f - 1.0f;
  const float *const q = g + elements, *const k = q + elements, *const v = k + elements;
  float *const out = g + 4 * elements, *const p = out + 3 * elements, *const ds = p + rows * rows;
  const std::vector<Scalar> scale = {Scalar::Float(0.125)};
  for (const bool is_causal : {false, true}) {
    const LocalOp op = AttentionGradientsOp{.is_causal = is_causal};
    std::vector<KernelInput> inputs;
    for (const float* data : {static_cast<const float*>(g), q, k, v}) {
      inputs.push_back(Input(reinterpret_cast<const std::byte*>(data), extents));
    }
    const KernelCall call{.op = &op,
                          .inputs = inputs,
                          .output = out,
                          .output_dtype = DType::kF32,
                          .output_extents = {heads, 3 * of_head},
                          .output_strides = {3 * of_head, 1},
                          .output_box = {{0, heads}, {0, 3 * of_head}},
                          .scalars = scale};
    const std::string name = std::string("attention_gradients_") + (is_causal ? "causal_" : "") +
                             std::to_string(heads) + "x" + std::to_string(rows) + "x" + std::to_string(features);
    bench.AddBesideBlas(
        name, [&] { RunKernel(call).IgnoreError(); },
        [&] {
          const auto n = static_cast<blasint>(rows), d = static_cast<blasint>(features);
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t at = h * of_head;
            float* const to = out + 3 * at;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, d, 1, q + at, d, k + at, d, 0, p, n);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, d, 1, g + at, d, v + at, d, 0, ds, n);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, d, n, 1, ds, n, k + at, d, 0, to, d);
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, d, n, 1, ds, n, q + at, d, 0, to + of_head, d);
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, d, n, 1, p, n, g + at, d, 0, to + 2 * of_head, d);
          }
        });
  }
}

// A product of bf16 against BLAS's of f32 of the same extents.
void AddBf16Product(Bench& bench, int64_t m, int64_t n, int64_t k, bool is_transposed) {
  float* const floats = reinterpret_cast<float*>(bench.arena.At(0));
  for (int64_t i = 0; i < m * k + k * n; ++i) floats[i] = static_cast<float>((i * 2654435761) % 1024) / 512.0f - 1.0f;
  auto* const halves = reinterpret_cast<BF16*>(bench.arena.At(256 * kMiB));
  for (int64_t i = 0; i < m * k + k * n; ++i) halves[i] = BF16(floats[i]);
  float* const c = reinterpret_cast<float*>(bench.arena.At(128 * kMiB));
  const LocalOp op = MatmulOp{*ParseContraction("mk,kn->mn")};
  const KernelInput inputs[] = {{.data = halves, .dtype = DType::kBF16, .extents = {m, k}, .strides = {k, 1}},
                                {.data = halves + m * k,
                                 .dtype = DType::kBF16,
                                 .extents = {k, n},
                                 .strides = is_transposed ? Strides{1, k} : Strides{n, 1}}};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = bench.arena.At(384 * kMiB),
                        .output_dtype = DType::kBF16,
                        .output_extents = {m, n},
                        .output_strides = {n, 1}};
  const std::string name = "bf16_product_" + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  bench.AddBesideBlas(
      name + (is_transposed ? "_transposed" : ""), [&] { RunKernel(call).IgnoreError(); },
      [&] { Gemm(m, n, k, floats, floats + m * k, c); });
}

int Main(int argc, char** argv) {
  Bench bench;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--quick") {
      quick = true;
    } else if (std::string(argv[i]) == "--only" && i + 1 < argc) {
      bench.only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: kernels_bench [--quick] [--only TEXT]\n");
      return 2;
    }
  }
  if (quick) bench.repetitions = 3;
  SetKernelThreads(1);
  const int64_t large = (quick ? 32 : 128) * kMiB;
  AddSquares(bench, kMiB);
  AddSquares(bench, large);
  AddCubes(bench, kMiB, 4);
  AddCubes(bench, large, 4);
  AddCubes(bench, large, 8);
  AddReductions(bench, kMiB);
  AddReductions(bench, (quick ? 16 : 64) * kMiB);
  AddThinProducts<float>(bench, "f32");
  AddThinProducts<double>(bench, "f64");
  AddBf16Product(bench, 1024, 2048, 2048, false);
  AddBf16Product(bench, 1024, 2048, 2048, true);
  AddBf16Product(bench, 1, 4096, 4096, false);
  AddBf16Product(bench, 1, 4096, 4096, true);
  AddBf16Product(bench, 96, 96, 96, false);
  AddAttention(bench, 4, 2048, 64);
  AddAttentionGradients(bench, 4, 2048, 64);
  AddNormalisations(bench, 2048, 4096);
  AddNormalisations(bench, 8, 4096);
  AddChain(bench, int64_t{1} << 23);
  AddChain(bench, int64_t{1} << 15);
  AddAdamW(bench, int64_t{1} << 22);
  AddAdamW(bench, int64_t{1} << 16);
  AddFamilies(bench, 512);
  AddFamilies(bench, quick ? 2048 : 6144);
  std::printf("%s\n", bench.out.dump(2).c_str());
  return bench.out.empty() ? 2 : 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::RestartWithKnownBlasCore(argv);
  return tessera::bench::Main(argc, argv);
}
