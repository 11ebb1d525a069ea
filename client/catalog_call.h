#pragma once

// CatalogCall: a call of a row, from operands and typed attributes. The functions of catalog_ops.h are made of it; they
// are generated from the rows (generate_ops.cc), and nothing here knows any of them.

#include "client/require_cxx20.h"

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ops.h"
#include "schemas/ops/catalog.h"

namespace tessera {

// The result of an op without operands. Its numbers are the row's: full the value; arange start and step; eye k; rand
// seed and stream. op_forms.h has typed forms.
struct Creation {
  DType dtype = DType::kF64;
  Shape shape{};
  Mesh mesh{};
  std::optional<Placements> placements{};  // absent: by its size
};

class CatalogCall {
 public:
  explicit CatalogCall(OpId op) { call_.op = op; }

  void Add(const Operand& operand) { operands_.push_back(operand); }
  void Add(const std::optional<Operand>& operand) {
    if (operand.has_value()) operands_.push_back(*operand);
  }
  void Add(absl::Span<const Operand> operands) { operands_.insert(operands_.end(), operands.begin(), operands.end()); }
  void AddNumber(const std::optional<Scalar>& number) {
    if (number.has_value()) call_.scalars.push_back(*number);
  }
  template <typename T>
  void Set(AttributeId id, const std::optional<T>& value) {
    if (value.has_value()) call_.attributes.Set(id, AttributeValue(*value));
  }
  // Dims may be negative, and are brought into increasing order; absent: all of the first tensor's, or as `absent`
  // says.
  enum class Absent : uint8_t { kAllDims, kNone };
  void SetAxes(const std::optional<std::vector<int64_t>>& axes, Absent absent);
  // A permutation: in the order that is given.
  void SetOrder(const std::vector<int64_t>& axes);
  void Place(const Creation& creation);

  absl::StatusOr<Tensor> One() const;
  absl::StatusOr<std::vector<Tensor>> All() const;
  absl::StatusOr<Tensor> Create(const Session& session) const;

 private:
  absl::StatusOr<int> RankOfFirst() const;
  absl::Status Normalize(const std::vector<int64_t>& axes, std::vector<int64_t>* out) const;

  OpCall call_;
  std::vector<Operand> operands_;
  absl::Status failure_;
};

}  // namespace tessera
