// Uploads that several processes bring, as tessera/ray.py uses them.

#include "client/python/parts_module.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>

#include "client/python/buffer_view.h"
#include "client/python/convert.h"
#include "client/session.h"
#include "client/session_parts.h"
#include "schemas/types/layout.h"

namespace tessera::python {
namespace {

TensorSpec SpecOf(int dtype, nb::handle shape, const Mesh& mesh, nb::handle placements) {
  return ValueOrRaise(TensorSpec::Make("from_ray", static_cast<DType>(dtype), ShapeFromPython(shape), mesh,
                                       PlacementsFromPython(placements)));
}

// An upload that several processes bring: the tensor, and the ticket and its secret for them.
nb::tuple OpenUpload(const Session& session, int dtype, nb::handle shape, const Mesh& mesh, nb::handle placements) {
  const TensorSpec spec = SpecOf(dtype, shape, mesh, placements);
  const auto opened = ValueOrRaise(Released([&] { return PartsDoor(*session.impl()).Open(spec); }));
  return nb::make_tuple(PyTensor{Tensor(opened.handle)}, opened.ticket, opened.secret);
}

// parts: of each, the flat position whose shard it is of, its first row in the tensor, and an array of whole rows.
void SendParts(const Session& session, uint64_t ticket, uint64_t secret, int dtype, nb::handle shape, const Mesh& mesh,
               nb::handle placements, const nb::list& parts) {
  const TensorSpec spec = SpecOf(dtype, shape, mesh, placements);
  std::vector<std::unique_ptr<BufferView>> buffers;
  std::vector<UploadPiece> pieces;
  for (nb::handle part : parts) {
    const auto flat = nb::cast<int64_t>(part[0]), first = nb::cast<int64_t>(part[1]);
    buffers.push_back(std::make_unique<BufferView>(part[2], dtype));
    UploadPiece piece;
    piece.source = buffers.back()->view();
    piece.box = LocalBox(spec, mesh.PositionAt(flat));
    piece.box[0] = Intersect(piece.box[0], {first, first + piece.source.shape[0]});
    piece.workers = {mesh.workers()[static_cast<size_t>(flat)]};
    piece.origin = Shape(spec.shape.size(), 0);
    piece.origin[0] = first;
    pieces.push_back(std::move(piece));
  }
  RaiseIfError(Released([&] { return PartsDoor(*session.impl()).Send(ticket, secret, spec, pieces); }));
}

void GiveUpUpload(const Session& session, const PyTensor& tensor, uint64_t ticket, const std::string& why) {
  PartsDoor(*session.impl()).GiveUp(tensor.value().handle(), ticket, absl::AbortedError(why));
}

}  // namespace

void DefineParts(nb::module_& module) {
  module.def("open_upload", &OpenUpload);
  module.def("send_parts", &SendParts);
  module.def("give_up_upload", &GiveUpUpload);
}

}  // namespace tessera::python
