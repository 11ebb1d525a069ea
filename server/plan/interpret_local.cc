#include "server/plan/interpret_local.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "schemas/ops/expression.h"

namespace tessera {
namespace {

bool IsFloat(DType dtype) { return Kind(dtype) == DTypeKind::kFloat; }

ScalarValue ToScalarValue(DType dtype, double value) {
  ScalarValue scalar;
  scalar.dtype = dtype;
  if (IsFloat(dtype)) {
    scalar.f = value;
  } else {
    scalar.i = static_cast<int64_t>(value);
  }
  return scalar;
}

double FromScalarValue(const ScalarValue& value) {
  return IsFloat(value.dtype) ? value.f : static_cast<double>(value.i);
}

double Identity(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return 0;
    case ReduceOp::kProduct: return 1;
    case ReduceOp::kMin:
    case ReduceOp::kMax: break;
  }
  const bool lowest = op == ReduceOp::kMax;
  const double infinite = std::numeric_limits<double>::infinity();
  if (dtype == DType::kBool) return lowest ? 0 : 1;
  return Scalar::Float(lowest ? -infinite : infinite).As(dtype).AsDouble();
}

// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011), keyed by the seed; the counter is the
// element's global index and the stream.
std::array<uint32_t, 4> PhiloxWords(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * c[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(second >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(second),
         static_cast<uint32_t>(first >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(first)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

struct Kernels {
  const std::vector<StridedDoubles>& inputs;
  const std::vector<Scalar>& scalars;
  const Box& output_box;
  const StridedDoubles& output;
  const KernelStore store;  // of a matmul

  void operator()(const MapOp& op) const {
    std::vector<ScalarValue> arguments;
    for (const Scalar& scalar : scalars) {
      ScalarValue argument;
      argument.dtype = scalar.dtype();
      argument.f = scalar.AsDouble();
      argument.i = scalar.AsInt();
      arguments.push_back(argument);
    }
    std::vector<ScalarValue> values(inputs.size());
    ForEachIndex(output.extents, [&](const Shape& index) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const size_t missing = index.size() - inputs[i].extents.size();
        Shape from(index.begin() + static_cast<ptrdiff_t>(missing), index.end());
        for (size_t d = 0; d < from.size(); ++d) {
          if (inputs[i].extents[d] == 1) from[d] = 0;
        }
        values[i] = ToScalarValue(inputs[i].dtype, inputs[i].Read(from));
      }
      output.Write(index, FromScalarValue(EvaluateExpression(op.expression, values, arguments)));
    });
  }

  // Where results are rounded once: in memory of their own.
  void operator()(const ReduceLocalOp& op) const {
    if (AccumulatedIn(output.dtype) == output.dtype) return ReduceInto(op, output);
    std::vector<double> sums(static_cast<size_t>(NumElements(output.extents)));
    const StridedDoubles wide = {&sums, 0, RowMajorStrides(output.extents), output.extents,
                                 AccumulatedIn(output.dtype)};
    ReduceInto(op, wide);
    ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, wide.Read(index)); });
  }

  void ReduceInto(const ReduceLocalOp& op, const StridedDoubles& output) const {
    const DType dtype = output.dtype;
    ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, Identity(op.op, dtype)); });
    const StridedDoubles& input = inputs[0];
    const bool truncates = IsFloat(input.dtype) && !IsFloat(dtype);
    ForEachIndex(input.extents, [&](const Shape& index) {
      Shape to = index;
      for (const int64_t dim : op.dims) to[static_cast<size_t>(dim)] = 0;
      const double element = truncates ? std::trunc(input.Read(index)) : RoundTo(dtype, input.Read(index));
      output.Write(to, ReduceTwo(op.op, dtype, output.Read(to), element));
    });
  }

  void operator()(const ArgReduceOp& op) const {
    const StridedDoubles& input = inputs[0];
    const size_t dim = static_cast<size_t>(op.dim);
    ForEachIndex(output.extents, [&](const Shape& index) {
      Shape at = index;
      double best = 0;
      int64_t best_index = 0;
      for (int64_t i = 0; i < input.extents[dim]; ++i) {
        at[dim] = i;
        const double value = input.Read(at);
        const bool better = op.extreme == Extreme::kMin ? value < best : value > best;
        if (i == 0 || (!std::isnan(best) && (better || std::isnan(value)))) {
          best = value;
          best_index = i;
        }
      }
      output.Write(index, static_cast<double>(best_index));
    });
  }

  void operator()(const MatmulOp& op) const {
    const Contraction& notation = op.notation;
    const std::string inner = LettersOf(notation, LetterRole::kInner);
    Shape inner_extents;
    for (const char letter : inner) {
      inner_extents.push_back(inputs[0].extents[static_cast<size_t>(DimOf(notation.left, letter))]);
    }
    // The index of a letter, from the output's indexes or the inner ones; a unit letter has none.
    const auto index_of = [&](const std::string& letters, const Shape& outer, const Shape& summed) {
      Shape index;
      for (const char letter : letters) {
        const int in_output = DimOf(notation.output, letter);
        const int in_inner = DimOf(inner, letter);
        index.push_back(in_output >= 0  ? outer[static_cast<size_t>(in_output)]
                        : in_inner >= 0 ? summed[static_cast<size_t>(in_inner)]
                                        : 0);
      }
      return index;
    };
    ForEachIndex(output.extents, [&](const Shape& outer) {
      double sum = store == KernelStore::kAdd ? output.Read(outer) : 0;
      ForEachIndex(inner_extents, [&](const Shape& summed) {
        sum += inputs[0].Read(index_of(notation.left, outer, summed)) *
               inputs[1].Read(index_of(notation.right, outer, summed));
      });
      output.Write(outer, sum);
    });
  }

  void operator()(const FillOp&) const {
    const double value = scalars[0].As(output.dtype).AsDouble();
    ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, value); });
  }

  void operator()(const ArangeOp&) const {
    ForEachIndex(output.extents, [&](const Shape& index) {
      const int64_t i = output_box[0].start + index[0];
      output.Write(index, scalars[0].AsDouble() + scalars[1].AsDouble() * static_cast<double>(i));
    });
  }

  void operator()(const EyeOp&) const {
    const int64_t diagonal = scalars[0].AsInt();
    ForEachIndex(output.extents, [&](const Shape& index) {
      const int64_t row = output_box[0].start + index[0];
      const int64_t column = output_box[1].start + index[1];
      output.Write(index, column - row == diagonal ? 1 : 0);
    });
  }

  void operator()(const RandOp& op) const {
    const Strides strides = RowMajorStrides(op.global_shape);
    ForEachIndex(output.extents, [&](const Shape& index) {
      int64_t global = 0;
      for (size_t d = 0; d < index.size(); ++d) global += (output_box[d].start + index[d]) * strides[d];
      const auto words = PhiloxWords(static_cast<uint64_t>(scalars[0].AsInt()),
                                     static_cast<uint64_t>(scalars[1].AsInt()), static_cast<uint64_t>(global));
      const int bits = output.dtype == DType::kBF16  ? 8
                       : output.dtype == DType::kF16 ? 11
                       : output.dtype == DType::kF32 ? 24
                                                     : 53;
      const uint64_t drawn = (uint64_t{words[0]} << 32 | words[1]) >> (64 - bits);
      output.Write(index, std::ldexp(static_cast<double>(drawn), -bits));
    });
  }
};

}  // namespace

double RoundTo(DType dtype, double value) {
  if (dtype == DType::kBool) return value != 0 ? 1 : 0;
  if (IsFloat(dtype)) return Scalar::Float(value).As(dtype).AsDouble();
  // Integers wrap; those of 64 bits are doubles that stay in range here.
  return SizeBits(dtype) == 64 ? value : Scalar::Int(static_cast<int64_t>(value)).As(dtype).AsDouble();
}

double CastTo(DType to, DType from, double value) {
  return FromScalarValue(EvaluateScalarOp(ScalarOp::kCast, to, ToScalarValue(from, RoundTo(from, value)), {}, {}));
}

double ReduceTwo(ReduceOp op, DType dtype, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return RoundTo(dtype, a + b);
    case ReduceOp::kProduct: return RoundTo(dtype, a * b);
    case ReduceOp::kMin: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::min(a, b);
    case ReduceOp::kMax: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
  }
  return a;
}

double StridedDoubles::Read(absl::Span<const int64_t> index) const {
  if (is_zero) return 0;
  int64_t at = offset;
  for (size_t d = 0; d < index.size(); ++d) at += index[d] * strides[d];
  return data->at(static_cast<size_t>(at));
}

void StridedDoubles::Write(absl::Span<const int64_t> index, double value) const {
  int64_t at = offset;
  for (size_t d = 0; d < index.size(); ++d) at += index[d] * strides[d];
  data->at(static_cast<size_t>(at)) = RoundTo(dtype, value);
}

absl::Status InterpretLocalOp(const LocalOp& op, const std::vector<StridedDoubles>& inputs,
                              const std::vector<Scalar>& scalars, const Box& output_box, const StridedDoubles& output,
                              KernelStore store) {
  if (absl::Status status = ValidateLocalOp(op, static_cast<int>(inputs.size()), static_cast<int>(scalars.size()));
      !status.ok()) {
    return status;
  }
  std::visit(Kernels{inputs, scalars, output_box, output, store}, op);
  return absl::OkStatus();
}

}  // namespace tessera
