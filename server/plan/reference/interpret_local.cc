#include "server/plan/reference/interpret_local.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

#include "schemas/ops/check_range.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"
#include "server/plan/reference/interpret_attention.h"
#include "server/plan/reference/interpret_fourier.h"
#include "server/plan/reference/interpret_matrices.h"
#include "server/plan/reference/interpret_windows.h"

namespace tessera {
namespace {

Number Identity(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return CastTo(dtype, 0);
    case ReduceOp::kProduct: return CastTo(dtype, 1);
    case ReduceOp::kBand: return CastTo(dtype, dtype == DType::kBool ? 1 : -1);
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return CastTo(dtype, 0);
    case ReduceOp::kMin:
    case ReduceOp::kMax: break;
  }
  const bool lowest = op == ReduceOp::kMax;
  const double infinite = std::numeric_limits<double>::infinity();
  if (dtype == DType::kBool) return CastTo(dtype, lowest ? 0 : 1);
  return CastTo(dtype, lowest ? -infinite : infinite);
}

// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011), keyed by the seed.
std::array<uint32_t, 4> PhiloxWords(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
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

using PlacedNumbers = std::vector<std::pair<Number, int64_t>>;

// The order of sorted elements: a NaN is above all numbers.
bool IsBelow(DType dtype, const Number& a, const Number& b) { return b.is_nan() ? !a.is_nan() : IsLess(dtype, a, b); }

// As SortOp says: equal ones stay in their order; among values -0 is before 0.
void SortStably(PlacedNumbers& elements, DType dtype, SortOrder order, bool is_values) {
  std::stable_sort(elements.begin(), elements.end(), [&](const auto& a, const auto& b) {
    const auto& [low, high] = order == SortOrder::kAscending ? std::tie(a.first, b.first) : std::tie(b.first, a.first);
    if (is_values && low == 0 && high == 0) return low.is_negative() && !high.is_negative();
    return IsBelow(dtype, low, high);
  });
}

struct Kernels {
  const std::vector<StridedNumbers>& inputs;
  const std::vector<Scalar>& scalars;
  const Box& output_box;
  const Box& input_box;  // of the first input
  const StridedNumbers& output;
  const KernelStore store;  // of a matmul
  absl::Status* const failed;

  void operator()(const MapOp& op) const {
    ForEachIndex(output.extents, [&](const Shape& index) {
      Shape global = index;
      for (size_t d = 0; d < output_box.size(); ++d) global[d] += output_box[d].start;
      output.Write(index, ValueOf(op.expression, index, global));
    });
  }

  // The expression's value of the inputs at the index, where an extent of 1 is broadcast.
  Number ValueOf(const Expression& expression, const Shape& index, const Shape& global) const {
    std::vector<ScalarValue> arguments;
    for (const Scalar& scalar : scalars) arguments.push_back(ToScalarValue(scalar));
    std::vector<ScalarValue> values(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const size_t missing = index.size() - inputs[i].extents.size();
      Shape from(index.begin() + static_cast<ptrdiff_t>(missing), index.end());
      for (size_t d = 0; d < from.size(); ++d) {
        if (inputs[i].extents[d] == 1) from[d] = 0;
      }
      values[i] = CastTo(inputs[i].dtype, inputs[i].Read(from)).value();
    }
    return Number(EvaluateExpression(expression, values, arguments, global));
  }

  // Where results are rounded once: in memory of their own.
  void operator()(const ReduceLocalOp& op) const {
    if (AccumulatedIn(output.dtype) == output.dtype) return ReduceInto(op, output);
    std::vector<Number> sums(static_cast<size_t>(NumElements(output.extents)));
    const StridedNumbers wide = {&sums, 0, RowMajorStrides(output.extents), output.extents,
                                 AccumulatedIn(output.dtype)};
    ReduceInto(op, wide);
    ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, wide.Read(index)); });
  }

  void ReduceInto(const ReduceLocalOp& op, const StridedNumbers& output) const {
    const DType dtype = output.dtype;
    ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, Identity(op.op, dtype)); });
    // Inputs of a map are broadcast against each other.
    Shape extents(output.extents.size(), 1);
    for (const StridedNumbers& input : inputs) {
      const size_t missing = extents.size() - input.extents.size();
      for (size_t d = missing; d < extents.size(); ++d) {
        if (input.extents[d - missing] != 1) extents[d] = input.extents[d - missing];
      }
    }
    ForEachIndex(extents, [&](const Shape& index) {
      Shape to = index;
      for (const int64_t dim : op.dims) to[static_cast<size_t>(dim)] = 0;
      const Number value = op.map.has_value() ? ValueOf(*op.map, index, index) : inputs[0].Read(index);
      output.Write(to, ReduceTwo(op.op, dtype, output.Read(to), value));
    });
  }

  void operator()(const ArgReduceOp& op) const {
    const StridedNumbers& input = inputs[0];
    Shape reduced;
    for (const int64_t dim : op.dims) reduced.push_back(input.extents[static_cast<size_t>(dim)]);
    const Strides strides = RowMajorStrides(op.whole);
    ForEachIndex(output.extents, [&](const Shape& index) {
      Number best;
      int64_t best_number = op.whole.empty() ? 0 : -1, seen = 0;
      ForEachIndex(reduced, [&](const Shape& inner) {
        Shape at = index;
        for (size_t d = 0; d < inner.size(); ++d) at[static_cast<size_t>(op.dims[d])] = inner[d];
        const Number value = input.Read(at);
        int64_t number = inputs.size() == 2 ? inputs[1].Read(at).ToInt() : seen;
        if (number < 0) return;
        if (!op.whole.empty()) {
          number = 0;
          for (size_t d = 0; d < op.dims.size(); ++d) {
            const size_t dim = static_cast<size_t>(op.dims[d]);
            number += (input_box[dim].start + at[dim]) * strides[d];
          }
        }
        const bool is_better =
            op.extreme == Extreme::kMin ? IsLess(input.dtype, value, best) : IsLess(input.dtype, best, value);
        const bool is_nan_first = value.is_nan() && !best.is_nan();
        const bool is_equal = AreAlike(value, best);
        if (seen++ == 0 || is_nan_first || is_better || (is_equal && number < best_number)) {
          best = value;
          best_number = number;
        }
      });
      output.Write(index, Number::Whole(best_number));
    });
  }

  void operator()(const PickOp& op) const {
    const Strides strides = RowMajorStrides(op.whole);
    ForEachIndex(output.extents, [&](const Shape& index) {
      int64_t number = inputs[1].Read(index).ToInt();
      if (number < 0) return output.Write(index, 0.0);
      Shape at = index;
      for (size_t d = 0; d < op.dims.size(); ++d) {
        const size_t dim = static_cast<size_t>(op.dims[d]);
        at[dim] = number / strides[d] - input_box[dim].start;
        number %= strides[d];
      }
      output.Write(index, inputs[0].Read(at));
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
      const DType wide = AddedUpIn(output.dtype);
      Number sum = store == KernelStore::kAdd ? output.Read(outer) : Number(0);
      ForEachIndex(inner_extents, [&](const Shape& summed) {
        const Number product =
            ReduceTwo(ReduceOp::kProduct, wide, inputs[0].Read(index_of(notation.left, outer, summed)),
                      inputs[1].Read(index_of(notation.right, outer, summed)));
        sum = ReduceTwo(ReduceOp::kSum, wide, sum, product);
      });
      output.Write(outer, sum);
    });
  }

  void operator()(const FillOp&) const {
    const Number value(ToScalarValue(scalars[0].As(output.dtype)));
    ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, value); });
  }

  void operator()(const ArangeOp&) const {
    ForEachIndex(output.extents, [&](const Shape& index) {
      const int64_t i = output_box[0].start + index[0];
      // Integers wrap.
      const DType wide = Kind(output.dtype) == DTypeKind::kFloat ? DType::kF64 : DType::kI64;
      const Number start(ToScalarValue(scalars[0])), step(ToScalarValue(scalars[1]));
      output.Write(index, Apply(ScalarOp::kAdd, wide, start, Apply(ScalarOp::kMul, wide, step, Number::Whole(i))));
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

  void operator()(const PlaceOp& op) const {
    if (op.base == PlaceBase::kScalar) (*this)(FillOp{});
    const size_t first = op.base == PlaceBase::kInput ? 1 : 0;
    if (first == 1)
      ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, inputs[0].Read(index)); });
    for (size_t p = 0; p < op.starts.size(); ++p) {
      const StridedNumbers& piece = inputs[first + p];
      ForEachIndex(piece.extents, [&](const Shape& index) {
        Shape to = index;
        for (size_t d = 0; d < to.size(); ++d) {
          // The first of the piece's elements that lies in the box, then one after the other.
          int64_t at = op.starts[p][d];
          while (at < output_box[d].start) at += op.step[d];
          to[d] = at + op.step[d] * index[d] - output_box[d].start;
        }
        output.Write(to, piece.Read(index));
      });
    }
  }

  void operator()(const RandOp& op) const {
    const Strides strides = RowMajorStrides(op.global_shape);
    const size_t key = op.distribution == Distribution::kNormal ? 2 : 0;  // the seed's place
    ForEachIndex(output.extents, [&](const Shape& index) {
      int64_t global = 0;
      for (size_t d = 0; d < index.size(); ++d) global += (output_box[d].start + index[d]) * strides[d];
      // A counter's words are those of four elements, or of two of f64.
      const int64_t shared = output.dtype == DType::kF64 ? 2 : 4, place = global % shared;
      const auto words =
          PhiloxWords(static_cast<uint64_t>(scalars[key].AsInt()), static_cast<uint64_t>(scalars[key + 1].AsInt()),
                      static_cast<uint64_t>(global / shared));
      const auto word = [&](int64_t at) { return uint64_t{words[static_cast<size_t>(at)]}; };
      const auto two = [&](int64_t at) { return word(at) << 32 | word(at + 1); };
      if (op.distribution == Distribution::kNormal) {
        const int64_t pair = place / 2 * 2;
        const auto half_of = [](uint64_t bits, int shift) {
          return std::ldexp(static_cast<double>(bits >> shift) + 0.5, shift - 64);
        };
        const double u = shared == 2 ? half_of(two(0), 12) : half_of(word(pair) << 32, 33);
        const double turn = std::ldexp(static_cast<double>(shared == 2 ? two(2) >> 12 : word(pair + 1) << 20), -52);
        const double angle = 2 * std::numbers::pi * turn, radius = std::sqrt(-2 * std::log(u));
        const double drawn = radius * (place % 2 == 0 ? std::cos(angle) : std::sin(angle));
        output.Write(index, scalars[0].AsDouble() + scalars[1].AsDouble() * drawn);
        return;
      }
      const uint64_t drawn = shared == 4 ? word(place) << 32 : two(2 * place);
      const int bits = output.dtype == DType::kBF16  ? 8
                       : output.dtype == DType::kF16 ? 11
                       : output.dtype == DType::kF32 ? 24
                                                     : 53;
      output.Write(index, std::ldexp(static_cast<double>(drawn >> (64 - bits)), -bits));
    });
  }

  void operator()(const AttentionOp& op) const {
    const StridedNumbers &q = inputs[0], &k = inputs[1], &v = inputs[2];
    const size_t row = output.extents.size() - 2, column = row + 1;
    const double scale = scalars[0].AsDouble();
    ForEachIndex(output.extents, [&](const Shape& index) {
      std::vector<double> scores;
      Shape at = index;
      for (int64_t s = 0; s < k.extents[row]; ++s) {
        double score = 0;
        for (int64_t e = 0; e < q.extents[column]; ++e) {
          at[row] = index[row], at[column] = e;
          const double query = static_cast<double>(q.Read(at));
          at[row] = s;
          score += query * static_cast<double>(k.Read(at));
        }
        score *= scale;
        if (op.is_causal && s > output_box[row].start + index[row]) score = -INFINITY;
        if (inputs.size() > 3) {
          Shape place = index;
          place[column] = s;
          place.erase(place.begin(), place.end() - static_cast<ptrdiff_t>(inputs[3].extents.size()));
          for (size_t d = 0; d < place.size(); ++d) {
            if (inputs[3].extents[d] == 1) place[d] = 0;
          }
          const double given = static_cast<double>(inputs[3].Read(place));
          score = inputs[3].dtype != DType::kBool ? score + given : given != 0 ? score : -INFINITY;
        }
        scores.push_back(score);
      }
      const double largest = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
      double total = 0, sum = 0;
      for (size_t s = 0; s < scores.size(); ++s) {
        const double e = std::exp(scores[s] - largest);
        at = index;
        at[row] = static_cast<int64_t>(s);
        total += e;
        sum += e * static_cast<double>(v.Read(at));
      }
      output.Write(index, sum / total);
    });
  }

  void operator()(const AttentionLogarithmsOp& op) const {
    InterpretAttentionLogarithms(op, inputs, scalars[0].AsDouble(), output_box.back().start, output);
  }

  void operator()(const AttentionGradientsOp& op) const {
    InterpretAttentionGradients(op, inputs, scalars[0].AsDouble(), output);
  }

  // The element of the line through `index` along the dim.
  static Shape At(Shape index, int64_t dim, int64_t place) {
    index[static_cast<size_t>(dim)] = place;
    return index;
  }
  // Calls visit(index) for the first element of each line along the dim.
  template <typename Visit>
  void ForEachLine(int64_t dim, Visit&& visit) const {
    Shape lines = output.extents;
    lines[static_cast<size_t>(dim)] = std::min<int64_t>(1, lines[static_cast<size_t>(dim)]);
    ForEachIndex(lines, visit);
  }

  void operator()(const ScanOp& op) const {
    const int64_t n = output.extents[static_cast<size_t>(op.dim)];
    const DType dtype = AccumulatedIn(output.dtype);
    ForEachLine(op.dim, [&](const Shape& line) {
      const bool is_seeded = inputs.size() == 2;
      Number running = is_seeded ? inputs[1].Read(line) : Identity(op.op, dtype);
      for (int64_t i = 0; i < n; ++i) {
        const Shape at = At(line, op.dim, op.direction == ScanDirection::kReverse ? n - 1 - i : i);
        const Number before = running, element = CastTo(dtype, inputs[0].Read(at));
        running = i == 0 && !is_seeded ? element : ReduceTwo(op.op, dtype, running, element);
        output.Write(at, op.span == ScanSpan::kExclusive ? before : running);
      }
    });
  }

  void operator()(const SortOp& op) const {
    const int64_t n = output.extents[static_cast<size_t>(op.dim)];
    const int64_t all = inputs[0].extents[static_cast<size_t>(op.dim)];
    const bool is_values = op.result == SortResult::kValues;
    ForEachLine(op.dim, [&](const Shape& line) {
      PlacedNumbers elements;
      for (int64_t i = 0; i < all; ++i) elements.emplace_back(inputs[0].Read(At(line, op.dim, i)), i);
      SortStably(elements, inputs[0].dtype, op.order, is_values);
      for (int64_t i = 0; i < n; ++i) {
        const auto& [value, place] = elements[static_cast<size_t>(i)];
        output.Write(At(line, op.dim, i), is_values ? value : Number::Whole(place));
      }
    });
  }

  void operator()(const MergeOp& op) const {
    const std::vector<int64_t> places = MergedPlaces(op, inputs[0]);
    for (int64_t i = 0; i < output.extents[0]; ++i) {
      const int64_t place = places[static_cast<size_t>(output_box[0].start + i)];
      const auto run = std::upper_bound(op.runs.begin(), op.runs.end(), place) - 1;
      const bool is_values = op.result == SortResult::kValues;
      output.Write({i}, is_values ? inputs[0].Read({place}) : Number::Whole(*run + inputs[1].Read({place}).ToInt()));
    }
  }

  void operator()(const SearchSortedOp& op) const {
    ForEachIndex(output.extents, [&](const Shape& index) {
      const Number value = inputs[1].Read(index);
      int64_t below = 0;
      for (int64_t i = 0; i < inputs[0].extents[0]; ++i) {
        const Number element = inputs[0].Read({i});
        below += (op.side == SearchSide::kLeft ? IsBelow(inputs[0].dtype, element, value)
                                               : !IsBelow(inputs[0].dtype, value, element))
                     ? 1
                     : 0;
      }
      output.Write(index, Number::Whole(below));
    });
  }

  void operator()(const FilterOp& op) const {
    const auto dim = static_cast<size_t>(op.dim);
    const StridedNumbers& mask = inputs.back();
    Shape kept;
    for (int64_t i = 0; i < mask.extents[0]; ++i) {
      if (mask.Read({i}).ToInt() != 0) kept.push_back(i);
    }
    if (static_cast<int64_t>(kept.size()) != output.extents[dim]) {
      *failed = FilterMismatch(static_cast<int64_t>(kept.size()), output.extents[dim]);
      return;
    }
    ForEachIndex(output.extents, [&](const Shape& index) {
      const int64_t from = kept[static_cast<size_t>(index[dim])];
      output.Write(index, op.result == FilterResult::kPlaces ? Number::Whole(input_box[0].start + from)
                                                             : inputs[0].Read(At(index, op.dim, from)));
    });
  }

  // Where the index for the element stands in an extent; an index outside is told, and -1.
  int64_t IndexFor(const Shape& index, int64_t dim, int64_t extent, const char* op) const {
    return IndexFor(inputs[1], index, dim, extent, op, failed);
  }
  static int64_t IndexFor(const StridedNumbers& indices, const Shape& index, int64_t dim, int64_t extent,
                          const char* op, absl::Status* failed) {
    Shape at;
    if (indices.extents.size() == 1 && index.size() > 1) {
      at = {index[static_cast<size_t>(dim)]};
    } else {
      at.assign(index.end() - static_cast<ptrdiff_t>(indices.extents.size()), index.end());
      for (size_t d = 0; d < at.size(); ++d) {
        if (indices.extents[d] == 1) at[d] = 0;
      }
    }
    const int64_t given = indices.Read(at).ToInt(), place = given < 0 ? given + extent : given;
    if (place >= 0 && place < extent) return place;
    *failed =
        IndexOutOfRangeError(StrCat(op, ": index ", given, " is out of range for dim ", dim, " of extent ", extent));
    return -1;
  }

  void operator()(const GatherOp& op) const {
    const int64_t extent = op.whole.value_or(inputs[0].extents[static_cast<size_t>(op.dim)]);
    const Interval own = op.whole.has_value() ? input_box[static_cast<size_t>(op.dim)] : Interval{0, extent};
    ForEachIndex(output.extents, [&](const Shape& index) {
      const int64_t place = IndexFor(index, op.dim, extent, "gather");
      if (place < 0) return;
      const bool is_here = place >= own.start && place < own.stop;
      output.Write(index, is_here ? inputs[0].Read(At(index, op.dim, place - own.start)) : Number());
    });
  }

  void operator()(const ScatterOp& op) const {
    const int64_t extent = op.whole.value_or(output.extents[static_cast<size_t>(op.dim)]);
    const Interval own = op.whole.has_value() ? input_box[static_cast<size_t>(op.dim)] : Interval{0, extent};
    const StridedNumbers& updates = inputs[2];
    ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, inputs[0].Read(index)); });
    ForEachIndex(updates.extents, [&](const Shape& index) {
      const int64_t place = IndexFor(index, op.dim, extent, "scatter");
      if (place < own.start || place >= own.stop) return;
      const Shape to = At(index, op.dim, place - own.start);
      constexpr std::array<ReduceOp, 4> kOps = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
      const Number update = updates.Read(index);
      output.Write(to, op.mode == ScatterMode::kSet ? update
                                                    : ReduceTwo(kOps[static_cast<size_t>(op.mode)],
                                                                AccumulatedIn(output.dtype), output.Read(to), update));
    });
  }

  void operator()(const CheckRangeOp& op) const {
    ForEachIndex(output.extents, [&](const Shape& index) {
      const Number number = inputs[0].Read(index);
      const Scalar as_scalar =
          output.dtype == DType::kI64 ? Scalar::Int(number.ToInt()) : Scalar::Float(double(number));
      if (failed->ok() && !IsInRange(as_scalar, scalars)) *failed = NumberOutOfRange(op, as_scalar, scalars);
      output.Write(index, number);
    });
  }

  void operator()(const GroupedMatmulOp& op) const {
    const bool is_rows = op.grouped == GroupedDim::kRows;
    const StridedNumbers &a = inputs[0], &b = inputs[1], &offsets = inputs[2];
    std::vector<int64_t> ends;
    for (int64_t g = 0; g < offsets.extents[0]; ++g) {
      const int64_t end = offsets.Read({g}).ToInt(), before = ends.empty() ? 0 : ends.back();
      if (end < before || end > op.whole) {
        *failed = IndexOutOfRangeError(
            StrCat("grouped_matmul: offset ", end, " of group ", g, " is not from ", before, " to ", op.whole));
        return;
      }
      ends.push_back(end);
    }
    const auto group_of = [&](int64_t place) {
      return std::upper_bound(ends.begin(), ends.end(), place) - ends.begin();
    };
    const DType wide = AccumulatedIn(output.dtype);
    ForEachIndex(output.extents, [&](const Shape& index) {
      Number sum = CastTo(wide, 0);
      const int64_t own = is_rows ? group_of(output_box[0].start + index[0]) : output_box[0].start + index[0];
      if (is_rows && (own < input_box[0].start || own >= input_box[0].stop)) return output.Write(index, sum);
      for (int64_t k = 0; k < a.extents[1]; ++k) {
        if (!is_rows && group_of(input_box[1].start + k) != own) continue;
        const Number left = is_rows ? b.Read({index[0], k}) : a.Read({index[1], k});
        const Number right = is_rows ? a.Read({own - input_box[0].start, k, index[1]}) : b.Read({k, index[2]});
        sum = ReduceTwo(ReduceOp::kSum, wide, sum, ReduceTwo(ReduceOp::kProduct, wide, left, right));
      }
      output.Write(index, sum);
    });
  }

  void operator()(const LinalgOp& op) const { *failed = InterpretLinalg(op, inputs, output); }
  void operator()(const FourierOp& op) const { InterpretFourier(op, inputs[0], output); }
  void operator()(const ConvOp& op) const { InterpretConv(op, inputs, output); }
  void operator()(const ConvGradientOp& op) const { InterpretConvGradient(op, inputs, output); }
  void operator()(const PoolOp& op) const { InterpretPool(op, inputs[0], output); }
};

}  // namespace

Number StridedNumbers::Read(absl::Span<const int64_t> index) const {
  if (is_zero) return CastTo(dtype, 0);
  int64_t at = offset;
  for (size_t d = 0; d < index.size(); ++d) at += index[d] * strides[d];
  return data->at(static_cast<size_t>(at));
}

void StridedNumbers::Write(absl::Span<const int64_t> index, const Number& value) const {
  int64_t at = offset;
  for (size_t d = 0; d < index.size(); ++d) at += index[d] * strides[d];
  data->at(static_cast<size_t>(at)) = CastTo(dtype, value);
}

int64_t GatheredPlace(const StridedNumbers& indices, const Shape& index, int64_t dim, int64_t extent) {
  absl::Status failed;
  return Kernels::IndexFor(indices, index, dim, extent, "gather", &failed);
}

std::vector<int64_t> MergedPlaces(const MergeOp& op, const StridedNumbers& runs) {
  PlacedNumbers elements;
  for (int64_t i = 0; i < runs.extents[0]; ++i) elements.emplace_back(runs.Read({i}), i);
  SortStably(elements, runs.dtype, op.order, op.result == SortResult::kValues);
  std::vector<int64_t> places;
  for (const auto& element : elements) places.push_back(element.second);
  return places;
}

absl::Status InterpretLocalOp(const LocalOp& op, const std::vector<StridedNumbers>& inputs,
                              const std::vector<Scalar>& scalars, const Box& output_box, const Box& input_box,
                              const StridedNumbers& output, KernelStore store) {
  if (absl::Status status = ValidateLocalOp(op, static_cast<int>(inputs.size()), static_cast<int>(scalars.size()));
      !status.ok()) {
    return status;
  }
  absl::Status failed;
  std::visit(Kernels{inputs, scalars, output_box, input_box, output, store, &failed}, op);
  return failed;
}

}  // namespace tessera
