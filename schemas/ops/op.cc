#include "schemas/ops/op.h"

#include "schemas/ops/catalog.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Joins what a call says, with commas between.
class ArgumentList {
 public:
  template <typename... Ts>
  void Add(const Ts&... pieces) {
    if (!text_.empty()) text_ += ", ";
    StrAppend(&text_, pieces...);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string IndexText(const std::vector<IndexItem>& index) {
  ArgumentList items;
  for (const IndexItem& item : index) {
    switch (item.kind) {
      case IndexItem::Kind::kNewAxis: items.Add("None"); break;
      case IndexItem::Kind::kInteger: items.Add(item.start); break;
      case IndexItem::Kind::kSlice:
        // start, number of elements, step: a stop can't be printed for every negative step.
        items.Add(item.start, "+", item.size, item.step == 1 ? "" : StrCat("*", item.step));
        break;
    }
  }
  return items.text();
}

}  // namespace

std::string ToText(const OpCall& call) {
  const absl::StatusOr<const OpRow*> row = FindOp(call.op);
  const OpAttributes& attributes = call.attributes;
  ArgumentList list;
  if (!attributes.notation.empty()) list.Add(attributes.notation);
  if (attributes.shape.has_value()) list.Add(ToText(*attributes.shape));
  for (const Scalar& scalar : call.scalars) list.Add(ToText(scalar));
  if (call.op == OpId::kSlice) list.Add("[", IndexText(attributes.index), "]");
  const bool takes_dims =
      !attributes.dims.empty() ||
      (row.ok() && ((*row)->family == OpFamily::kReduction || (*row)->family == OpFamily::kArgReduction));
  if (takes_dims) list.Add("dims=", ToText(absl::MakeConstSpan(attributes.dims)));
  if (attributes.keepdims) list.Add("keepdims=true");
  if (attributes.mesh.has_value()) list.Add(ToText(*attributes.mesh));
  if (attributes.placements.has_value()) list.Add(ToText(*attributes.placements));
  if (!attributes.placements_each.empty()) {
    ArgumentList each;
    for (const Placements& placements : attributes.placements_each) each.Add(ToText(placements));
    list.Add("[", each.text(), "]");
  }
  if (attributes.dtype.has_value()) list.Add("dtype=", ToText(*attributes.dtype));
  if (attributes.relabel) list.Add("relabel=true");
  const std::string name = row.ok() ? std::string((*row)->name) : StrCat("op", static_cast<int>(call.op));
  return StrCat(name, "(", list.text(), ")");
}

}  // namespace tessera
