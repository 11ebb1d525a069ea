#pragma once

// The parts that texts of generated kernels are made of: an expression's nodes as statements, a program and its name,
// parameters as the compiler lays them out. Private to kernels/cuda.
//
//   NodeWriter("add:f32(in0:f32, in1:f32)").Write(...)
//     "    const float n0 = a0;\n    const float n1 = a1;\n    const float n2 = Add(n0, n1);\n"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/cuda/steps.h"
#include "schemas/ops/expression.h"

namespace tessera::cuda {

// The type of the dtype's elements in memory. A node's value has that type, too, but for bool.
std::string_view StoredType(DType dtype);

// Whether a node is many instructions, so that a thread has few copies of the expression.
bool HasLongNodes(const Expression& expression);

// Writes the statements of an expression's nodes, n0 and so on.
class NodeWriter {
 public:
  // The arguments of the expression are the program's from this number on.
  explicit NodeWriter(const Expression& expression, size_t first_argument = 0)
      : nodes_(expression.nodes), first_argument_(first_argument) {}

  // `input_text` gives an input's element, as it is stored, and `index_text` the index along a dim: of their nodes.
  using LeafText = absl::FunctionRef<std::string(const ExpressionNode& leaf)>;
  std::string Write(LeafText input_text, LeafText index_text) const;
  // The last node's value as it is stored.
  std::string Result() const { return Stored(nodes_.size() - 1); }

 private:
  DType DTypeOf(int32_t node) const { return nodes_[static_cast<size_t>(node)].dtype; }
  std::string Stored(size_t n) const;
  // An operand as its function takes it: halves as float.
  std::string Operand(int32_t node, ScalarOp op) const;
  std::string Inner(const ExpressionNode& node) const;

  const std::vector<ExpressionNode>& nodes_;
  const size_t first_argument_;
};

// The parameters of a program, laid out as the compiler lays its struct out.
class ParameterWriter {
 public:
  template <typename T>
  void Put(const T& value) {
    Align(alignof(T));
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, static_cast<const void*>(&value), sizeof(T));
  }
  void PutNest(const Loops& loops);
  std::vector<std::byte> Finish() {
    Align(16);
    return std::move(bytes_);
  }

 private:
  void PutDims(absl::Span<const int64_t> dims);
  void Align(size_t to) { bytes_.resize((bytes_.size() + to - 1) / to * to); }
  std::vector<std::byte> bytes_;
};

std::vector<Element> ArgumentsOf(const Expression& expression, absl::Span<const Scalar> scalars);
// The places of these elements in parameters that begin with them.
std::vector<LaunchArgument> PlacesOfArguments(const Expression& expression);
// Calls visit for the inputs that the expression reads; for one that it reads in several nodes, several times.
void ForEachInput(const Expression& expression, absl::FunctionRef<void(size_t input, DType dtype)> visit);
// The dims whose index the expression reads, each once.
std::vector<int32_t> IndexedDims(const Expression& expression);

// The entry's name is the prefix and a hash of the text around it.
std::shared_ptr<const MapProgram> ProgramOf(std::string_view prefix, const std::string& before_name,
                                            const std::string& after_name);

// Unimplemented where the parameters are more than a launch takes.
absl::Status CheckParameterBytes(const char* what, const Launch& launch);

}  // namespace tessera::cuda
