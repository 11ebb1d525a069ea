#include "schemas/types/placement.h"

#include <array>
#include <limits>

#include "absl/strings/str_join.h"
#include "schemas/types/mesh.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 8> kReduceNames = {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"};

}  // namespace

std::string_view ToText(ReduceOp op) { return kReduceNames[static_cast<size_t>(op)]; }

absl::StatusOr<ReduceOp> ParseReduceOp(std::string_view text) {
  for (size_t i = 0; i < kReduceNames.size(); ++i) {
    if (kReduceNames[i] == text) return static_cast<ReduceOp>(i);
  }
  return absl::InvalidArgumentError(
      StrCat("unknown reduce op \"", Printable(text, 40), "\"; known: ", "sum avg min max product band bor bxor"));
}

Placement Placement::Shard(int dim, std::vector<int64_t> sizes) {
  Placement placement = Shard(dim);
  if (!sizes.empty()) placement.sizes_ = std::make_shared<const std::vector<int64_t>>(std::move(sizes));
  return placement;
}

const std::vector<int64_t>& Placement::sizes() const {
  static const std::vector<int64_t> kNone;
  return sizes_ == nullptr ? kNone : *sizes_;
}

std::string ToText(const Placement& placement) {
  switch (placement.kind()) {
    case Placement::Kind::kReplicate: return "R";
    case Placement::Kind::kShard:
      return StrCat("S(", placement.dim(), placement.has_sizes() ? ";" : "", absl::StrJoin(placement.sizes(), ","),
                    ")");
    case Placement::Kind::kPartial: return StrCat("P(", ToText(placement.reduce_op()), ")");
  }
  return "?";
}

std::string ToText(const Placements& placements) {
  return StrCat(
      "[", absl::StrJoin(placements, ", ", [](std::string* out, const Placement& p) { StrAppend(out, ToText(p)); }),
      "]");
}

absl::StatusOr<Placement> ParsePlacement(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  if (name == "R") return Placement::Replicate();
  if (name == "S") {
    TESSERA_RETURN_IF_ERROR(scanner.Take("("));
    TESSERA_ASSIGN_OR_RETURN(const int64_t dim, scanner.TakeInteger());
    if (dim < std::numeric_limits<int32_t>::min() || dim > std::numeric_limits<int32_t>::max()) {
      return scanner.Error("a tensor dim before here");
    }
    std::vector<int64_t> sizes;
    if (scanner.TryTake(";")) {
      do {
        if (sizes.size() == static_cast<size_t>(kMaxMeshSize)) return scanner.Error("fewer sizes");
        TESSERA_ASSIGN_OR_RETURN(sizes.emplace_back(), scanner.TakeInteger());
      } while (scanner.TryTake(","));
    }
    TESSERA_RETURN_IF_ERROR(scanner.Take(")"));
    return Placement::Shard(static_cast<int>(dim), std::move(sizes));
  }
  if (name == "P") {
    TESSERA_RETURN_IF_ERROR(scanner.Take("("));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view op_name, scanner.TakeIdentifier());
    TESSERA_ASSIGN_OR_RETURN(const ReduceOp op, ParseReduceOp(op_name));
    TESSERA_RETURN_IF_ERROR(scanner.Take(")"));
    return Placement::Partial(op);
  }
  return scanner.Error("a placement (S(d), R or P(op)) before here");
}

absl::StatusOr<Placements> ParsePlacements(Scanner& scanner) {
  TESSERA_RETURN_IF_ERROR(scanner.Take("["));
  Placements placements;
  if (scanner.TryTake("]")) return placements;
  do {
    if (placements.size() == static_cast<size_t>(kMaxMeshDims)) {
      return scanner.Error(StrCat("at most ", kMaxMeshDims, " placements"));
    }
    TESSERA_ASSIGN_OR_RETURN(const Placement placement, ParsePlacement(scanner));
    placements.push_back(placement);
  } while (scanner.TryTake(","));
  TESSERA_RETURN_IF_ERROR(scanner.Take("]"));
  return placements;
}

absl::StatusOr<Placement> ParsePlacement(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(const Placement placement, ParsePlacement(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  return placement;
}

absl::StatusOr<Placements> ParsePlacements(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(Placements placements, ParsePlacements(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  return placements;
}

}  // namespace tessera
