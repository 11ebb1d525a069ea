#pragma once

// GraphBuilder: how a composite row is written. A value stands for a tensor, or for a number beside tensors; ops on
// values add nodes, and each is resolved as it is added, so that shapes and placements are known.
//
//   void Softplus(GraphBuilder& g) { g.Return(g.Map(OpId::kLogAddExp, g.operand(0), 0.0)); }
//
// The first error stays, and what is asked for after it adds nothing: a composite need not look. A value of an op that
// failed, and a number where a tensor is meant, have the spec of the first tensor operand, so rank and extents can
// still be asked for. For schemas/ops alone.

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "schemas/ops/graph.h"
#include "schemas/ops/resolve_internal.h"

namespace tessera {

class GraphBuilder;

class GraphValue {
 public:
  GraphValue(double number) : operand_(Scalar::Float(number)) {}  // NOLINT: implicit; weak, as in Python
  GraphValue(int number) : operand_(Scalar::Int(number)) {}       // NOLINT
  GraphValue(int64_t number) : operand_(Scalar::Int(number)) {}   // NOLINT
  GraphValue(Scalar number) : operand_(number) {}                 // NOLINT
  GraphValue(GraphBuilder* builder, GraphOperand operand) : builder_(builder), operand_(operand) {}

  bool is_tensor() const { return std::holds_alternative<int>(operand_); }
  const GraphOperand& operand() const { return operand_; }
  GraphBuilder* builder() const { return builder_; }  // null of a number that the row wrote itself
  // A tensor's spec; the reference holds until the next op is added. A number that stands where the row wants a tensor
  // refuses the call.
  const TensorSpec& spec() const;
  int rank() const { return spec().rank(); }
  DType dtype() const { return spec().dtype; }
  int64_t extent(int64_t dim) const;  // 1 where there is no such dim

 private:
  GraphBuilder* builder_ = nullptr;
  GraphOperand operand_;
};

using Dims = std::vector<int64_t>;
enum class Keep : uint8_t { kNo = 0, kDims = 1 };

class GraphBuilder {
 public:
  explicit GraphBuilder(const ResolveInput& input);

  // ---- the call ----
  size_t operand_count() const { return operands_.size(); }
  // Refuses the call where it has fewer.
  const GraphValue& operand(size_t i);
  const Attributes& attributes() const { return input_.call.attributes; }
  absl::Span<const Scalar> scalars() const { return input_.call.scalars; }
  // The way that a composite with two of them takes.
  Saving saving() const { return input_.saving; }
  // The call's dims; all of x's where none are given. Refuses dims that x hasn't, and one given twice.
  Dims DimsOf(const GraphValue& x);
  // The one dim of a call that goes along it; 0 of what is refused for having none, or one that x hasn't.
  int64_t DimOf(const GraphValue& x);
  // Refuses the call: "softmax: WHY: x is f32[2]".
  void Refuse(std::string_view why);
  void RefuseDType(std::string_view why);
  void RefuseIndex(std::string_view why);
  bool failed() const { return !status_.ok(); }
  // Nodes so far, those of composites too.
  size_t node_count() const { return graph_.nodes.size(); }
  const OpRow& row_of(size_t node) const { return *graph_.nodes[node].row; }

  // ---- ops ----
  GraphValue Call(OpId op, Attributes attributes, std::vector<GraphValue> operands, std::vector<Scalar> scalars = {});
  // All results of an op that has several.
  std::vector<GraphValue> CallAll(OpId op, Attributes attributes, std::vector<GraphValue> operands,
                                  std::vector<Scalar> scalars = {});
  GraphValue Map(OpId op, std::vector<GraphValue> operands) { return Call(op, {}, std::move(operands)); }
  GraphValue Reduce(OpId op, const GraphValue& x, const Dims& dims, Keep keep);
  GraphValue AsType(const GraphValue& x, DType dtype);
  // Integers and bool as f64, floats as they are.
  GraphValue AsFloat(const GraphValue& x);
  GraphValue Reshape(const GraphValue& x, Shape shape);
  GraphValue Permute(const GraphValue& x, Dims dims);
  GraphValue Slice(const GraphValue& x, std::vector<IndexItem> index);
  // Elements [start, start + size) of one dim, by a step.
  GraphValue SliceDim(const GraphValue& x, int64_t dim, int64_t start, int64_t size, int64_t step = 1);
  // With copies of the number around x: `width` has how many before and after each dim, in turns.
  GraphValue Pad(const GraphValue& x, std::vector<int64_t> width, const Scalar& value = Scalar::Int(0));
  // A dim of extent 1 before `dim`.
  GraphValue ExpandDim(const GraphValue& x, int64_t dim);
  // Without the dims, whose extents are 1.
  GraphValue DropDims(const GraphValue& x, const Dims& dims);
  GraphValue BroadcastTo(const GraphValue& x, Shape shape);
  GraphValue Where(const GraphValue& condition, const GraphValue& x1, const GraphValue& x2);
  // A tensor of one number on the mesh of `like`.
  GraphValue Full(const GraphValue& like, DType dtype, const Shape& shape, Scalar value);
  // 0, 1, ... along one dim of a tensor of extents 1 elsewhere, of the rank of `like` and on its mesh.
  GraphValue Iota(const GraphValue& like, int64_t dim, int64_t extent, DType dtype = DType::kI64);
  GraphValue Concat(std::vector<GraphValue> pieces, int64_t dim);

  // ---- results ----
  void Return(const GraphValue& value) { Return(std::vector<GraphValue>{value}); }
  void Return(std::vector<GraphValue> values);
  // Nothing is to be called after it.
  absl::StatusOr<Graph> Finish() &&;

 private:
  friend class GraphValue;
  GraphValue Placeholder() { return GraphValue(this, GraphOperand(0)); }
  const TensorSpec& SpecOf(const GraphOperand& operand);
  void Fail(absl::Status status);
  // The value in this graph of each value of a composite's own.
  std::vector<int> Inline(const Graph& inner, const std::vector<GraphValue>& operands);

  const ResolveInput& input_;
  Graph graph_;
  std::vector<GraphValue> operands_;
  GraphValue missing_;
  absl::Status status_;
};

GraphValue operator+(const GraphValue& a, const GraphValue& b);
GraphValue operator-(const GraphValue& a, const GraphValue& b);
GraphValue operator*(const GraphValue& a, const GraphValue& b);
GraphValue operator/(const GraphValue& a, const GraphValue& b);
GraphValue operator-(const GraphValue& a);

}  // namespace tessera
