#include "schemas/ops/graph_builder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

GraphValue Two(OpId op, const GraphValue& a, const GraphValue& b) {
  GraphBuilder* builder = a.builder() != nullptr ? a.builder() : b.builder();
  TESSERA_CHECK(builder != nullptr);
  return builder->Map(op, {a, b});
}

IndexItem Whole(int64_t extent) { return {IndexItem::Kind::kSlice, 0, extent, 1}; }

}  // namespace

const TensorSpec& GraphValue::spec() const {
  TESSERA_CHECK(builder_ != nullptr);
  return builder_->SpecOf(operand_);
}

int64_t GraphValue::extent(int64_t dim) const {
  return dim >= 0 && dim < rank() ? spec().shape[static_cast<size_t>(dim)] : 1;
}

GraphBuilder::GraphBuilder(const ResolveInput& input) : input_(input), missing_(this, GraphOperand(0)) {
  for (const OperandSpec& operand : input.operands) {
    if (const auto* spec = std::get_if<TensorSpec>(&operand)) {
      operands_.emplace_back(this, GraphOperand(static_cast<int>(graph_.specs.size())));
      graph_.specs.push_back(*spec);
    } else {
      operands_.emplace_back(this, GraphOperand(std::get<Scalar>(operand)));
    }
  }
  graph_.input_count = static_cast<int>(graph_.specs.size());
}

const GraphValue& GraphBuilder::operand(size_t i) {
  if (i < operands_.size()) return operands_[i];
  Refuse(StrCat("needs ", i + 1, " operands, not ", operands_.size()));
  return missing_;
}

const TensorSpec& GraphBuilder::SpecOf(const GraphOperand& operand) {
  static const TensorSpec kNone;
  const int* value = std::get_if<int>(&operand);
  if (value == nullptr) Refuse("a number can't stand here");
  const size_t number = static_cast<size_t>(value == nullptr ? 0 : *value);
  return number < graph_.specs.size() ? graph_.specs[number] : kNone;
}

Dims GraphBuilder::DimsOf(const GraphValue& x) {
  Dims all(static_cast<size_t>(x.rank()));
  std::iota(all.begin(), all.end(), int64_t{0});
  const Dims& dims = attributes().Get(attribute::dims);
  if (dims.empty()) return all;
  std::vector<bool> is_named(all.size());
  for (const int64_t dim : dims) {
    if (dim < 0 || dim >= x.rank()) {
      RefuseIndex(StrCat("dim ", dim, " is out of range"));
      return all;
    }
    if (is_named[static_cast<size_t>(dim)]) {
      Refuse(StrCat("dim ", dim, " is given twice"));
      return all;
    }
    is_named[static_cast<size_t>(dim)] = true;
  }
  return dims;
}

int64_t GraphBuilder::DimOf(const GraphValue& x) {
  const Dims& dims = attributes().Get(attribute::dims);
  if (dims.size() != 1) {
    Refuse(StrCat("needs one dim, not ", dims.size()));
    return 0;
  }
  if (dims[0] >= 0 && dims[0] < x.rank()) return dims[0];
  RefuseIndex(StrCat("dim ", dims[0], " is out of range"));
  return 0;
}

void GraphBuilder::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void GraphBuilder::Refuse(std::string_view why) { Fail(OperandError(input_, why)); }
void GraphBuilder::RefuseDType(std::string_view why) { Fail(OperandDTypeError(input_, why)); }
void GraphBuilder::RefuseIndex(std::string_view why) {
  Fail(IndexOutOfRangeError(StrCat(input_.row.name, ": ", why, ": ", DescribeOperands(input_))));
}

std::vector<int> GraphBuilder::Inline(const Graph& inner, const std::vector<GraphValue>& operands) {
  std::vector<int> numbers;
  for (const GraphValue& operand : operands) {
    if (operand.is_tensor()) numbers.push_back(std::get<int>(operand.operand()));
  }
  for (const GraphNode& node : inner.nodes) {
    GraphNode& added = graph_.nodes.emplace_back(node);
    for (GraphOperand& operand : added.operands) {
      if (int* value = std::get_if<int>(&operand)) *value = numbers[static_cast<size_t>(*value)];
    }
    added.first_result = static_cast<int>(graph_.specs.size());
    for (const TensorSpec& output : node.resolution.outputs) {
      numbers.push_back(static_cast<int>(graph_.specs.size()));
      graph_.specs.push_back(output);
    }
  }
  return numbers;
}

std::vector<GraphValue> GraphBuilder::CallAll(OpId op, Attributes attributes, std::vector<GraphValue> operands,
                                              std::vector<Scalar> scalars) {
  if (failed()) return {Placeholder()};
  GraphNode node;
  node.call = {op, std::move(attributes), std::move(scalars)};
  std::vector<OperandSpec> specs;
  for (const GraphValue& operand : operands) {
    node.operands.push_back(operand.operand());
    if (operand.is_tensor()) {
      specs.emplace_back(operand.spec());
    } else {
      specs.emplace_back(std::get<Scalar>(operand.operand()));
    }
  }
  absl::StatusOr<const OpRow*> row = FindOp(op);
  absl::StatusOr<OpResolution> resolution = ResolveOp(node.call, specs, saving());
  if (!row.ok() || !resolution.ok()) {
    // Said by the composite, which the user called.
    const absl::Status& status = row.ok() ? resolution.status() : row.status();
    const std::string_view message = StdView(status.message());
    const size_t colon = message.find(": ");
    Fail(WithMessage(status, StrCat(input_.row.name, colon == message.npos ? ": " : "",
                                    message.substr(colon == message.npos ? 0 : colon))));
    return {Placeholder()};
  }
  std::vector<GraphValue> results;
  if (resolution->graph != nullptr) {
    const std::vector<int> numbers = Inline(*resolution->graph, operands);
    for (const int output : resolution->graph->outputs)
      results.emplace_back(this, numbers[static_cast<size_t>(output)]);
    return results;
  }
  node.row = *row;
  node.first_result = static_cast<int>(graph_.specs.size());
  for (const TensorSpec& output : resolution->outputs) {
    results.emplace_back(this, static_cast<int>(graph_.specs.size()));
    graph_.specs.push_back(output);
  }
  node.resolution = *std::move(resolution);
  graph_.nodes.push_back(std::move(node));
  return results;
}

GraphValue GraphBuilder::Call(OpId op, Attributes attributes, std::vector<GraphValue> operands,
                              std::vector<Scalar> scalars) {
  return CallAll(op, std::move(attributes), std::move(operands), std::move(scalars))[0];
}

GraphValue GraphBuilder::Reduce(OpId op, const GraphValue& x, const Dims& dims, Keep keep) {
  Attributes attributes;
  attributes.Set(attribute::dims, dims);
  attributes.Set(attribute::keepdims, keep == Keep::kDims);
  return Call(op, std::move(attributes), {x});
}

GraphValue GraphBuilder::AsType(const GraphValue& x, DType dtype) {
  if (!x.is_tensor()) {
    const Scalar& number = std::get<Scalar>(x.operand());
    if (!MayCast(number.dtype(), dtype)) RefuseDType(StrCat(ToText(number), " doesn't fit dtype ", ToText(dtype)));
    return GraphValue(this, GraphOperand(number.As(dtype)));
  }
  if (x.dtype() == dtype) return x;
  Attributes attributes;
  attributes.Set(attribute::dtype, dtype);
  return Call(OpId::kAsType, std::move(attributes), {x});
}

GraphValue GraphBuilder::AsFloat(const GraphValue& x) {
  const DTypeKind kind = Kind(x.dtype());
  return kind == DTypeKind::kFloat || kind == DTypeKind::kComplex ? x : AsType(x, DType::kF64);
}

GraphValue GraphBuilder::Reshape(const GraphValue& x, Shape shape) {
  if (x.spec().shape == shape) return x;
  Attributes attributes;
  attributes.Set(attribute::shape, std::move(shape));
  return Call(OpId::kReshape, std::move(attributes), {x});
}

GraphValue GraphBuilder::Permute(const GraphValue& x, Dims dims) {
  Attributes attributes;
  attributes.Set(attribute::dims, std::move(dims));
  return x.rank() < 2 ? x : Call(OpId::kTranspose, std::move(attributes), {x});
}

GraphValue GraphBuilder::Slice(const GraphValue& x, std::vector<IndexItem> index) {
  Attributes attributes;
  attributes.Set(attribute::index, std::move(index));
  return x.rank() == 0 && attributes.Get(attribute::index).empty() ? x : Call(OpId::kSlice, std::move(attributes), {x});
}

GraphValue GraphBuilder::SliceDim(const GraphValue& x, int64_t dim, int64_t start, int64_t size, int64_t step) {
  if (start == 0 && size == x.extent(dim) && step == 1) return x;
  std::vector<IndexItem> index;
  for (int d = 0; d < x.rank(); ++d)
    index.push_back(d == dim ? IndexItem{IndexItem::Kind::kSlice, start, size, size > 1 ? step : 1}
                             : Whole(x.extent(d)));
  return Slice(x, std::move(index));
}

GraphValue GraphBuilder::Pad(const GraphValue& x, std::vector<int64_t> width, const Scalar& value) {
  if (std::all_of(width.begin(), width.end(), [](int64_t n) { return n == 0; })) return x;
  Attributes attributes;
  attributes.Set(attribute::pad_width, std::move(width));
  return Call(OpId::kPad, std::move(attributes), {x}, {value});
}

GraphValue GraphBuilder::ExpandDim(const GraphValue& x, int64_t dim) {
  std::vector<IndexItem> index;
  for (int d = 0; d < x.rank(); ++d) index.push_back(Whole(x.extent(d)));
  index.insert(index.begin() + std::min<int64_t>(dim, x.rank()), IndexItem{IndexItem::Kind::kNewAxis, 0, 1, 1});
  return Slice(x, std::move(index));
}

GraphValue GraphBuilder::DropDims(const GraphValue& x, const Dims& dims) {
  std::vector<IndexItem> index;
  for (int d = 0; d < x.rank(); ++d) {
    const bool drops = std::find(dims.begin(), dims.end(), d) != dims.end();
    index.push_back(drops ? IndexItem{IndexItem::Kind::kInteger, 0, 1, 1} : Whole(x.extent(d)));
  }
  return dims.empty() ? x : Slice(x, std::move(index));
}

GraphValue GraphBuilder::BroadcastTo(const GraphValue& x, Shape shape) {
  if (x.spec().shape == shape) return x;
  Attributes attributes;
  attributes.Set(attribute::shape, std::move(shape));
  return Call(OpId::kBroadcastTo, std::move(attributes), {x});
}

GraphValue GraphBuilder::Where(const GraphValue& condition, const GraphValue& x1, const GraphValue& x2) {
  return Map(OpId::kWhere, {condition, x1, x2});
}

GraphValue GraphBuilder::Full(const GraphValue& like, DType dtype, const Shape& shape, Scalar value) {
  Attributes attributes;
  attributes.Set(attribute::dtype, dtype);
  attributes.Set(attribute::shape, shape);
  attributes.Set(attribute::mesh, like.spec().mesh);
  attributes.Set(attribute::placements, Placements(static_cast<size_t>(like.spec().mesh.ndim())));
  return Call(OpId::kFull, std::move(attributes), {}, {value});
}

GraphValue GraphBuilder::Iota(const GraphValue& like, int64_t dim, int64_t extent, DType dtype) {
  Attributes attributes;
  attributes.Set(attribute::dtype, dtype);
  attributes.Set(attribute::shape, {extent});
  attributes.Set(attribute::mesh, like.spec().mesh);
  attributes.Set(attribute::placements, Placements(static_cast<size_t>(like.spec().mesh.ndim())));
  const GraphValue numbers = Call(OpId::kArange, std::move(attributes), {}, {Scalar::Int(0), Scalar::Int(1)});
  Shape shape(static_cast<size_t>(like.rank()), 1);
  shape[static_cast<size_t>(dim)] = extent;
  return Reshape(numbers, shape);
}

GraphValue GraphBuilder::Concat(std::vector<GraphValue> pieces, int64_t dim) {
  Attributes attributes;
  attributes.Set(attribute::dims, {dim});
  return pieces.size() == 1 ? pieces[0] : Call(OpId::kConcat, std::move(attributes), std::move(pieces));
}

void GraphBuilder::Return(std::vector<GraphValue> values) {
  for (const GraphValue& value : values) {
    if (!value.is_tensor()) return Refuse("a number can't stand here");
    int output = std::get<int>(value.operand());
    // A result has memory of its own, which nothing would write where it is an operand, or another result.
    const bool is_result = std::find(graph_.outputs.begin(), graph_.outputs.end(), output) != graph_.outputs.end();
    if (output < graph_.input_count || is_result) {
      Attributes attributes;
      attributes.Set(attribute::dtype, value.dtype());
      output = std::get<int>(Call(OpId::kAsType, std::move(attributes), {value}).operand());
    }
    graph_.outputs.push_back(output);
  }
}

absl::StatusOr<Graph> GraphBuilder::Finish() && {
  if (!status_.ok()) return status_;
  return std::move(graph_);
}

GraphValue operator+(const GraphValue& a, const GraphValue& b) { return Two(OpId::kAdd, a, b); }
GraphValue operator-(const GraphValue& a, const GraphValue& b) { return Two(OpId::kSub, a, b); }
GraphValue operator*(const GraphValue& a, const GraphValue& b) { return Two(OpId::kMul, a, b); }
GraphValue operator/(const GraphValue& a, const GraphValue& b) { return Two(OpId::kDiv, a, b); }
GraphValue operator-(const GraphValue& a) {
  TESSERA_CHECK(a.builder() != nullptr);
  return a.builder()->Map(OpId::kNeg, {a});
}

}  // namespace tessera
