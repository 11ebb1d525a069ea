#include "tests/emulator/cuda/cudnn/graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <regex>
#include <set>

#include "schemas/types/half.h"
#include "server/device/cuda/cudnn_constants.h"

namespace tessera::emulator {
namespace {

namespace dnn = cuda::dnn;

constexpr int64_t kMaxFeatures = 256, kFeatureMultiple = 8;
constexpr uint64_t kWorkspaceAlignment = 16;
constexpr int kNondeterministic = 0, kFewerBits = 1, kExact = 5;

int64_t BytesOf(int type) {
  switch (type) {
    case dnn::kDataHalf:
    case dnn::kDataBFloat16: return 2;
    case dnn::kDataBoolean: return 1;
    default: return 4;
  }
}

float Rounded(int type, float value) {
  switch (type) {
    case dnn::kDataHalf: return static_cast<float>(F16(value));
    case dnn::kDataBFloat16: return static_cast<float>(BF16(value));
    default: return value;
  }
}

float Load(int type, const std::byte* from) {
  uint16_t half = 0;
  float value = 0;
  switch (type) {
    case dnn::kDataHalf: std::memcpy(&half, from, 2); return static_cast<float>(std::bit_cast<F16>(half));
    case dnn::kDataBFloat16: std::memcpy(&half, from, 2); return static_cast<float>(std::bit_cast<BF16>(half));
    default: std::memcpy(&value, from, 4); return value;
  }
}

void Store(int type, float value, std::byte* to) {
  const F16 half(value);
  const BF16 brain(value);
  switch (type) {
    case dnn::kDataHalf: std::memcpy(to, &half, 2); break;
    case dnn::kDataBFloat16: std::memcpy(to, &brain, 2); break;
    default: std::memcpy(to, &value, 4);
  }
}

// With so few bits of mantissa.
float WithBits(float value, int bits) {
  if (!std::isfinite(value)) return value;
  const uint32_t low = (uint32_t{1} << (23 - bits)) - 1;
  const uint32_t word = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((word + low / 2 + ((word >> (23 - bits)) & 1)) & ~low);
}

// Goes over all elements in row-major order: run(place among all, index by dim).
template <typename Run>
void ForEach(const std::vector<int64_t>& dims, Run run) {
  int64_t all = 1;
  for (const int64_t dim : dims) all *= dim;
  std::vector<int64_t> at(dims.size(), 0);
  for (int64_t i = 0; i < all; ++i) {
    run(static_cast<size_t>(i), at);
    for (size_t d = dims.size(); d-- > 0;) {
      if (++at[d] < dims[d]) break;
      at[d] = 0;
    }
  }
}

// The place of an index in a dense tensor whose dims of one element count for all.
size_t PlaceOf(const std::vector<int64_t>& dims, const std::vector<int64_t>& at) {
  int64_t place = 0;
  for (size_t d = 0; d < dims.size(); ++d) place = place * dims[d] + (dims[d] == 1 ? 0 : at[d] % dims[d]);
  return static_cast<size_t>(place);
}

uint64_t Mixed(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * uint64_t{0x9E3779B97F4A7C15} + (hash >> 29);
}

// By how all lies, sums begin elsewhere.
uint64_t LayoutOf(const DnnGraph& graph) {
  uint64_t hash = 17;
  for (const auto& [id, tensor] : graph.tensors) {
    for (const int64_t stride : tensor.strides) hash = Mixed(hash, stride);
    for (const int64_t dim : tensor.dims) hash = Mixed(hash, dim);
  }
  return hash >> 7;
}

// The tensors of a convolution, whatever of it is computed.
struct Convolution {
  const DnnTensor *x, *w, *out;
};
Convolution ConvolutionOf(const DnnGraph& graph) {
  const DnnOperation& of = graph.operations.front();
  const DnnTensor &x = graph.tensors.at(of.x), &b = graph.tensors.at(of.b), &y = graph.tensors.at(of.y);
  if (of.name == "dgrad") return {.x = &y, .w = &b, .out = &x};
  if (of.name == "wgrad") return {.x = &b, .w = &y, .out = &x};
  return {.x = &x, .w = &b, .out = &y};
}

class Interpreter {
 public:
  Interpreter(const DnnExecution& execution, const DnnMemory& memory) : from_(execution), memory_(memory) {
    salt_ = LayoutOf(from_.graph) + (from_.engine == kNondeterministic ? from_.call : 0);
  }

  std::string Run() {
    if (std::string wrong = WriteWorkspace(); !wrong.empty()) return wrong;
    for (const DnnOperation& operation : from_.graph.operations) {
      for (const int64_t id : {operation.x, operation.b, operation.t}) {
        if (id == 0 || values_.contains(id)) continue;
        if (std::string wrong = Read(id); !wrong.empty()) return wrong;
      }
      const DnnTensor& y = TensorOf(operation.y);
      std::vector<float>& result = values_[operation.y];
      result.assign(static_cast<size_t>(y.elements()), 0);
      Apply(operation, y, &result);
      for (float& value : result) value = Rounded(y.type, value);
      if (y.is_virtual) continue;
      if (std::string wrong = Write(operation.y, result); !wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  const DnnTensor& TensorOf(int64_t id) const { return from_.graph.tensors.at(id); }

  std::string WriteWorkspace() {
    if (from_.workspace_bytes == 0) return "";
    std::byte* place = memory_(from_.workspace, from_.workspace_bytes, true);
    if (place == nullptr) return "a workspace that is no memory of the device";
    std::memset(place, 0xA5, static_cast<size_t>(from_.workspace_bytes));
    return "";
  }

  template <typename Element>
  std::string Touch(int64_t id, bool is_write, Element element) {
    const DnnTensor& tensor = TensorOf(id);
    const uint64_t base = from_.addresses.at(id);
    const int64_t bytes = BytesOf(tensor.type);
    std::string wrong;
    ForEach(tensor.dims, [&](size_t place, const std::vector<int64_t>& at) {
      int64_t offset = 0;
      for (size_t d = 0; d < at.size(); ++d) offset += at[d] * tensor.strides[d];
      std::byte* there = memory_(base + static_cast<uint64_t>(offset * bytes), bytes, is_write);
      if (there == nullptr) {
        wrong = "tensor " + std::to_string(id) + " lies beyond the memory";
      } else {
        element(place, there);
      }
    });
    return wrong;
  }

  std::string Read(int64_t id) {
    const DnnTensor& tensor = TensorOf(id);
    std::vector<float>& values = values_[id];
    values.resize(static_cast<size_t>(tensor.elements()));
    if (tensor.is_by_value) {
      values[0] = static_cast<float>(from_.numbers.at(id));
      return "";
    }
    return Touch(id, false, [&](size_t place, const std::byte* from) {
      const float value = Load(tensor.type, from);
      const bool is_short = tensor.type == dnn::kDataFloat && from_.engine != kExact && from_.graph.is_convolution();
      values[place] = from_.engine == kFewerBits ? WithBits(value, 3) : is_short ? WithBits(value, 10) : value;
    });
  }

  std::string Write(int64_t id, const std::vector<float>& values) {
    const int type = TensorOf(id).type;
    return Touch(id, true, [&](size_t place, std::byte* to) { Store(type, values[place], to); });
  }

  // A sum of terms that begins somewhere.
  template <typename Term>
  float SumOf(int64_t terms, Term term) const {
    if (terms == 0) return 0;
    const int64_t first = static_cast<int64_t>(salt_ % static_cast<uint64_t>(terms));
    float sum = 0;
    for (int64_t i = first; i < terms; ++i) sum += term(i);
    for (int64_t i = 0; i < first; ++i) sum += term(i);
    return sum;
  }

  void Apply(const DnnOperation& operation, const DnnTensor& y, std::vector<float>* result) {
    if (operation.name == "matmul") return Multiply(operation, y, result);
    if (operation.name == "reshape") return Turn(operation, y, result);
    if (from_.graph.is_convolution()) return Convolve(operation, y, result);
    if (operation.name == "max" || operation.name == "sum") return Reduce(operation, y, result);
    const DnnTensor& x = TensorOf(operation.x);
    const std::vector<float>& of_x = values_.at(operation.x);
    const auto operand = [&](int64_t id, const std::vector<int64_t>& at) {
      return id == 0 ? 0.0F : values_.at(id)[PlaceOf(TensorOf(id).dims, at)];
    };
    ForEach(y.dims, [&](size_t place, const std::vector<int64_t>& at) {
      const float a = of_x[PlaceOf(x.dims, at)], b = operand(operation.b, at);
      float& to = (*result)[place];
      if (operation.name == "add") to = a + b;
      if (operation.name == "sub") to = a - b;
      if (operation.name == "mul") to = a * b;
      if (operation.name == "div") to = a / b;
      if (operation.name == "exp") to = std::exp(a);
      if (operation.name == "log") to = std::log(a);
      if (operation.name == "ge") to = a >= b ? 1 : 0;
      if (operation.name == "index") to = static_cast<float>(at[static_cast<size_t>(operation.axis)]);
      if (operation.name == "select") to = operand(operation.t, at) != 0 ? a : b;
    });
  }

  void Multiply(const DnnOperation& operation, const DnnTensor& y, std::vector<float>* result) {
    const std::vector<int64_t>&a = TensorOf(operation.x).dims, &b = TensorOf(operation.b).dims;
    const std::vector<float>&of_a = values_.at(operation.x), &of_b = values_.at(operation.b);
    const size_t row = y.dims.size() - 2, column = row + 1;
    const int64_t inner = a[column];
    ForEach(y.dims, [&](size_t place, const std::vector<int64_t>& at) {
      std::vector<int64_t> in_a = at, in_b = at;
      // Heads of keys and values are for several of queries each.
      for (size_t d = 0; d < row; ++d) {
        in_a[d] = at[d] * a[d] / y.dims[d];
        in_b[d] = at[d] * b[d] / y.dims[d];
      }
      in_a[column] = in_b[row] = 0;
      const size_t first_a = PlaceOf(a, in_a), first_b = PlaceOf(b, in_b);
      const auto step = static_cast<size_t>(b[column]);
      (*result)[place] = SumOf(inner, [&](int64_t k) {
        return of_a[first_a + static_cast<size_t>(k)] * of_b[first_b + static_cast<size_t>(k) * step];
      });
    });
  }

  // The last two dims the other way round, as WrongWith has seen.
  void Turn(const DnnOperation& operation, const DnnTensor& y, std::vector<float>* result) {
    const std::vector<int64_t>& dims = TensorOf(operation.x).dims;
    const std::vector<float>& of_x = values_.at(operation.x);
    ForEach(y.dims, [&](size_t place, std::vector<int64_t> at) {
      std::swap(at[at.size() - 2], at.back());
      (*result)[place] = of_x[PlaceOf(dims, at)];
    });
  }

  void Reduce(const DnnOperation& operation, const DnnTensor& y, std::vector<float>* result) {
    const std::vector<int64_t>& dims = TensorOf(operation.x).dims;
    const std::vector<float>& of_x = values_.at(operation.x);
    size_t dim = 0;  // that is reduced, as a whole or, of heads that share one, in part
    while (dim + 1 < dims.size() && dims[dim] == y.dims[dim]) ++dim;
    const int64_t width = dims[dim] / y.dims[dim];
    ForEach(y.dims, [&](size_t place, std::vector<int64_t> at) {
      at[dim] *= width;
      const auto term = [&, first = at[dim]](int64_t k) {
        at[dim] = first + k;
        return of_x[PlaceOf(dims, at)];
      };
      if (operation.name == "sum") {
        (*result)[place] = SumOf(width, term);
        return;
      }
      float most = -std::numeric_limits<float>::infinity();
      for (int64_t k = 0; k < width; ++k) most = std::isnan(term(k)) || term(k) > most ? term(k) : most;
      (*result)[place] = most;
    });
  }

  // The terms of each element of the result are products of a window's elements with the weight's: of all the
  // convolution's terms, those that have the element.
  void Convolve(const DnnOperation& operation, const DnnTensor& y, std::vector<float>* result) {
    const Convolution of = ConvolutionOf(from_.graph);
    const std::vector<int64_t>&x = of.x->dims, &w = of.w->dims, &out = of.out->dims;
    const int64_t per_group = w[0] / (x[1] / w[1]);
    const std::vector<float>&of_first = values_.at(operation.x), &of_second = values_.at(operation.b);
    std::vector<std::vector<std::pair<size_t, size_t>>> terms(result->size());
    ForEach(out, [&](size_t out_place, const std::vector<int64_t>& at) {
      std::vector<int64_t> window = w;
      window[0] = 1;
      ForEach(window, [&](size_t, std::vector<int64_t> in_w) {
        std::vector<int64_t> in_x = {at[0], at[1] / per_group * w[1] + in_w[1]};
        for (size_t d = 2; d < x.size(); ++d) {
          in_x.push_back(at[d] * operation.stride[d - 2] + in_w[d] * operation.dilation[d - 2] -
                         operation.padding[d - 2]);
          if (in_x[d] < 0 || in_x[d] >= x[d]) return;
        }
        in_w[0] = at[1];
        const size_t x_place = PlaceOf(x, in_x), w_place = PlaceOf(w, in_w);
        if (operation.name == "conv") terms[out_place].emplace_back(x_place, w_place);
        if (operation.name == "dgrad") terms[x_place].emplace_back(out_place, w_place);
        if (operation.name == "wgrad") terms[w_place].emplace_back(out_place, x_place);
      });
    });
    ForEach(y.dims, [&](size_t place, const std::vector<int64_t>&) {
      const auto& own = terms[place];
      (*result)[place] = SumOf(static_cast<int64_t>(own.size()), [&](int64_t term) {
        const auto& [first, second] = own[static_cast<size_t>(term)];
        return of_first[first] * of_second[second];
      });
    });
  }

  const DnnExecution& from_;
  const DnnMemory& memory_;
  uint64_t salt_ = 0;
  std::map<int64_t, std::vector<float>> values_;  // dense, row-major
};

std::string PatternOf(const DnnGraph& graph) {
  std::string pattern;
  for (const DnnOperation& operation : graph.operations) pattern += operation.name + " ";
  return pattern;
}

// A tensor that is multiplied in memory: dense along one of its last two dims.
std::string RefusalOfOperand(const DnnTensor& tensor, int type) {
  if (tensor.dims.size() != 4) return "tensors of other than four dims";
  if (tensor.type != type || (type != dnn::kDataHalf && type != dnn::kDataBFloat16)) return "dtypes";
  const size_t dense = tensor.strides[3] == 1 ? 3 : 2;
  if (tensor.strides[dense] != 1) return "features that don't lie densely";
  if (tensor.dims[dense] > kMaxFeatures || tensor.dims[dense] % kFeatureMultiple != 0) return "features";
  for (size_t d = 0; d < 4; ++d) {
    if (d != dense && tensor.strides[d] % kFeatureMultiple != 0) return "strides that aren't multiples of 16 bytes";
  }
  return "";
}

// A dim of one element is read as if it lay densely.
std::string RefusalOfLine(const DnnTensor& tensor) {
  const int64_t rows = tensor.dims[2], heads = tensor.dims[1];
  const bool is_dense = tensor.dims[3] == 1 && tensor.strides[2] == 1 && (heads == 1 || tensor.strides[1] == rows) &&
                        (tensor.dims[0] == 1 || tensor.strides[0] == heads * rows);
  return tensor.type == dnn::kDataFloat && is_dense ? "" : "statistics that don't lie densely";
}

bool IsOfGradients(const DnnGraph& graph) { return graph.operations[0].name == "mul"; }

std::string RefusalOfGradients(const DnnGraph& graph) {
  static const std::regex kKnown(
      "mul sum mul matmul mul (add )?sub (index index ge select )?exp reshape matmul (sum )?matmul sub mul mul reshape "
      "matmul (sum )?reshape matmul ");
  const std::string pattern = PatternOf(graph);
  if (!std::regex_match(pattern, kKnown)) return "no pattern that is known: " + pattern;
  const int type = graph.tensors.at(graph.operations[0].x).type;
  const int64_t mask = graph.operations[5].name == "add" ? graph.operations[5].b : 0;
  for (const auto& [id, tensor] : graph.tensors) {
    if (tensor.is_virtual || tensor.is_by_value || id == mask) continue;
    const std::string refusal = tensor.dims[3] == 1 ? RefusalOfLine(tensor) : RefusalOfOperand(tensor, type);
    if (!refusal.empty()) return refusal;
  }
  return "";
}

std::string RefusalOfAttention(const DnnGraph& graph) {
  if (IsOfGradients(graph)) return RefusalOfGradients(graph);
  const std::string pattern = PatternOf(graph);
  static const std::regex kKnown(
      "matmul mul (add )?(index index (add )?ge select )?max sub exp sum log add div matmul ");
  if (!std::regex_match(pattern, kKnown)) return "no pattern that is known: " + pattern;
  const DnnOperation &first = graph.operations.front(), &last = graph.operations.back();
  const DnnTensor &q = graph.tensors.at(first.x), &k = graph.tensors.at(first.b), &v = graph.tensors.at(last.b);
  const DnnTensor &out = graph.tensors.at(last.y), &weights = graph.tensors.at(last.x);
  for (const DnnTensor* tensor : {&q, &k, &v, &out}) {
    if (std::string refusal = RefusalOfOperand(*tensor, q.type); !refusal.empty()) return refusal;
  }
  if (weights.type != q.type) return "weights that aren't rounded to the values' dtype";
  return "";
}

std::string RefusalOfConvolution(const DnnGraph& graph) {
  const DnnOperation& conv = graph.operations.front();
  const DnnTensor &x = graph.tensors.at(conv.x), &w = graph.tensors.at(conv.b), &y = graph.tensors.at(conv.y);
  for (const DnnTensor* tensor : {&x, &w, &y}) {
    if (tensor->dims.size() != 4 && tensor->dims.size() != 5) return "tensors of other than four or five dims";
    if (tensor->type != x.type) return "tensors of several dtypes";
    for (const int64_t stride : tensor->strides) {
      if (stride <= 0) return "a stride that isn't positive";
    }
  }
  if (x.type != dnn::kDataFloat && x.type != dnn::kDataHalf && x.type != dnn::kDataBFloat16) return "dtypes";
  return "";
}

}  // namespace

int64_t DnnTensor::elements() const {
  int64_t all = 1;
  for (const int64_t dim : dims) all *= dim;
  return all;
}

std::string WrongWith(const DnnGraph& graph) {
  std::set<int64_t> made;
  for (const DnnOperation& operation : graph.operations) {
    for (const int64_t id : {operation.x, operation.b, operation.t}) {
      if (id == 0) continue;
      if (graph.tensors.at(id).is_virtual && !made.contains(id)) {
        return operation.name + " reads virtual tensor " + std::to_string(id) + ", which nothing made before";
      }
    }
    const DnnTensor &x = graph.tensors.at(operation.x), &y = graph.tensors.at(operation.y);
    if (y.dims.size() != x.dims.size() || y.dims.size() != y.strides.size()) return operation.name + ": ranks differ";
    if (operation.name == "reshape") {
      std::vector<int64_t> dims = x.dims, strides = x.strides;
      std::swap(dims[dims.size() - 2], dims.back());
      std::swap(strides[strides.size() - 2], strides.back());
      // Strides of what has one element, or lies nowhere and is cut, say nothing.
      const bool turns = y.dims == dims && y.strides[2] == strides[2] && y.strides[3] == strides[3];
      if (dims.size() != 4 || !turns) return "a reshape that isn't of two dims the other way round";
    }
    if (operation.name == "matmul") {
      const DnnTensor& b = graph.tensors.at(operation.b);
      const size_t row = y.dims.size() - 2;
      if (x.dims[row] != y.dims[row] || b.dims[row + 1] != y.dims[row + 1] || x.dims[row + 1] != b.dims[row]) {
        return "matmul of matrices that don't fit";
      }
    }
    if (graph.is_convolution()) {
      const Convolution of = ConvolutionOf(graph);
      const std::vector<int64_t>&image = of.x->dims, &w = of.w->dims, &out = of.out->dims;
      if (image[0] != out[0] || w[0] != out[1] || w[1] == 0 || image[1] % w[1] != 0 || w[0] % (image[1] / w[1]) != 0) {
        return operation.name + " of tensors that don't fit";
      }
      for (size_t d = 2; d < image.size(); ++d) {
        const int64_t reach = operation.dilation[d - 2] * (w[d] - 1) + 1;
        const int64_t windows = (image[d] + 2 * operation.padding[d - 2] - reach) / operation.stride[d - 2] + 1;
        if (windows != out[d]) {
          return operation.name + ": " + std::to_string(windows) + " windows in a dim, and not as many results";
        }
      }
    }
    made.insert(operation.y);
  }
  return "";
}

std::string RefusalOf(const DnnGraph& graph) {
  for (const auto& [id, tensor] : graph.tensors) {
    const bool is_in_memory = !tensor.is_virtual && !tensor.is_by_value;
    if (is_in_memory && tensor.alignment < 16 && !graph.is_convolution()) return "an alignment of less than 16 bytes";
  }
  return graph.is_convolution() ? RefusalOfConvolution(graph) : RefusalOfAttention(graph);
}

const std::vector<DnnEngine>& EnginesOf() {
  static const std::vector<DnnEngine> engines = {
      {.notes = {dnn::kTensorCore, dnn::kNondeterministic}},
      {.notes = {dnn::kTensorCore, dnn::kDownConvertInputs}},
      {.notes = {dnn::kWinograd, dnn::kWinogradTile6}},
      {.notes = {dnn::kTensorCore}, .fails_to_finalize = true},
      {.notes = {dnn::kTensorCore}},
      {.notes = {}},
  };
  return engines;
}

std::vector<int> HeuristicA(const DnnGraph& graph) {
  return graph.is_convolution() ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0, 1, 3};
}
std::vector<int> HeuristicFallback(const DnnGraph& graph) {
  return graph.is_convolution() ? std::vector<int>{4, 5} : std::vector<int>{4};
}

int64_t WorkspaceOf(const DnnGraph& graph, int64_t per_part) {
  const DnnTensor& y = graph.tensors.at(graph.operations.back().y);
  const bool has_batch_alone = graph.is_convolution() && graph.operations[0].name != "wgrad";
  if (per_part > 0) return per_part * y.dims[0] * (has_batch_alone ? 1 : y.dims[1]);
  constexpr int64_t kOfAttention = 256;
  if (!graph.is_convolution() && !IsOfGradients(graph)) return kOfAttention;
  // The gradients of scores, in two bytes each.
  if (!graph.is_convolution()) return 2 * graph.tensors.at(graph.operations[3].y).elements();
  // A tensor that isn't channels-last is brought there.
  int64_t bytes = 0;
  for (const auto& [id, tensor] : graph.tensors) {
    if (tensor.strides[1] != 1) bytes += tensor.elements() * BytesOf(tensor.type);
  }
  return bytes;
}

std::string Execute(const DnnExecution& execution, const DnnMemory& memory) {
  for (const auto& [id, address] : execution.addresses) {
    const int64_t alignment = execution.graph.tensors.at(id).alignment;
    if (alignment > 0 && address % static_cast<uint64_t>(alignment) != 0) {
      return "tensor " + std::to_string(id) + " isn't aligned as it was said";
    }
  }
  if (execution.workspace % kWorkspaceAlignment != 0) return "a workspace that isn't aligned";
  return Interpreter(execution, memory).Run();
}

}  // namespace tessera::emulator
