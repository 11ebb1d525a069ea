#include "schemas/ops/op.h"

#include "schemas/ops/catalog.h"
#include "schemas/types/str_cat.h"

namespace tessera {

std::string ToText(const OpCall& call) {
  const absl::StatusOr<const OpRow*> row = FindOp(call.op);
  std::string text = ToText(call.attributes);
  for (const Scalar& scalar : call.scalars) StrAppend(&text, text.empty() ? "" : ", ", ToText(scalar));
  const std::string name = row.ok() ? std::string((*row)->name) : StrCat("op", static_cast<int>(call.op));
  return StrCat(name, "(", text, ")");
}

}  // namespace tessera
