// Files of the workers' host, as tessera/_files.py uses them.

#include "client/python/file_module.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "client/python/convert.h"
#include "client/python/tensor_module.h"
#include "client/session.h"
#include "client/session_files.h"

namespace tessera::python {
namespace {

nb::tuple Look(FileDoor& door, const std::string& path, uint64_t offset, uint32_t count) {
  const FilePart seen = ValueOrRaise(Released([&] { return door.Look(path, offset, count); }));
  return nb::make_tuple(seen.file_bytes, seen.modified_ns, nb::bytes(seen.part.data(), seen.part.size()));
}

nb::tuple Describe(FileDoor& door, const std::string& path) {
  const FilePart seen = ValueOrRaise(Released([&] { return door.Describe(path); }));
  return nb::make_tuple(seen.file_bytes, seen.modified_ns, nb::bytes(seen.part.data(), seen.part.size()));
}

PyTensor Load(FileDoor& door, int dtype, nb::handle shape, const Mesh& mesh, nb::handle placements,
              const std::string& path, int64_t offset, const std::vector<int64_t>& strides, bool is_reversed,
              int64_t file_bytes, int64_t modified_ns, std::optional<std::string> member) {
  const TensorSpec spec = ValueOrRaise(TensorSpec::Make("load", static_cast<DType>(dtype), ShapeFromPython(shape), mesh,
                                                        PlacementsFromPython(placements)));
  FilePlace place{path, offset, strides, is_reversed, file_bytes, modified_ns, std::move(member)};
  return PyTensor{Tensor(ValueOrRaise(Released([&] { return door.Load(spec, std::move(place)); })))};
}

// tensors: a list of (tensor, path, offset, strides, member or None).
void Write(FileDoor& door, const nb::list& tensors) {
  std::vector<std::pair<HandlePtr, FilePlace>> places;
  for (nb::handle one : tensors) {
    FilePlace place;
    place.path = nb::cast<std::string>(one[1]);
    place.offset_bytes = nb::cast<int64_t>(one[2]);
    place.strides = nb::cast<std::vector<int64_t>>(one[3]);
    place.member = nb::cast<std::optional<std::string>>(one[4]);
    places.emplace_back(nb::cast<const PyTensor&>(one[0]).value.state(), std::move(place));
  }
  RaiseIfError(Released([&] { return door.Write(places); }));
}

}  // namespace

void DefineFiles(nb::module_& module) {
  nb::class_<FileDoor>(module, "FileDoor")
      .def_static("open",
                  [](const Session& session, int worker) {
                    auto door = Released([&] { return FileDoor::Open(session.impl(), WorkerIndex(worker)); });
                    return ValueOrRaise(std::move(door));
                  })
      .def("look", &Look)
      .def("describe", &Describe)
      .def("load", &Load, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg().none())
      .def("create",
           [](FileDoor& door, const std::string& path, const std::string& name, int64_t bytes, const nb::bytes& head) {
             const std::string text(head.c_str(), head.size());
             RaiseIfError(Released([&] { return door.Create(path, name, bytes, text); }));
           })
      .def("create_folder",
           [](FileDoor& door, const std::string& path, const std::string& name, const std::string& json) {
             RaiseIfError(Released([&] { return door.CreateFolder(path, name, json); }));
           })
      .def("write", &Write)
      .def("commit", [](FileDoor& door) { RaiseIfError(Released([&] { return door.Commit(); })); });
}

}  // namespace tessera::python
