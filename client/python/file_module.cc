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

nb::tuple Look(FileClient& files, const std::string& path, uint64_t offset, uint32_t count) {
  const FilePart seen = ValueOrRaise(Released([&] { return files.Look(path, offset, count); }));
  return nb::make_tuple(seen.file_bytes, seen.modified_ns, nb::bytes(seen.part.data(), seen.part.size()));
}

nb::tuple Describe(FileClient& files, const std::string& path) {
  const FilePart seen = ValueOrRaise(Released([&] { return files.Describe(path); }));
  return nb::make_tuple(seen.file_bytes, seen.modified_ns, nb::bytes(seen.part.data(), seen.part.size()));
}

// tensors: a list of (dtype, shape, mesh, placements, offset, strides, is_reversed, member or None).
nb::list Load(FileClient& files, const std::string& path, int64_t file_bytes, int64_t modified_ns,
              const nb::list& tensors) {
  std::vector<FileTensor> asked;
  for (nb::handle one : tensors) {
    FileTensor& tensor = asked.emplace_back();
    tensor.spec =
        ValueOrRaise(TensorSpec::Make("load", static_cast<DType>(nb::cast<int>(one[0])), ShapeFromPython(one[1]),
                                      nb::cast<const Mesh&>(one[2]), PlacementsFromPython(one[3])));
    tensor.place = {path,
                    nb::cast<int64_t>(one[4]),
                    nb::cast<std::vector<int64_t>>(one[5]),
                    nb::cast<bool>(one[6]),
                    file_bytes,
                    modified_ns,
                    nb::cast<std::optional<std::string>>(one[7])};
  }
  nb::list loaded;
  for (HandlePtr& handle : ValueOrRaise(Released([&] { return files.Load(std::move(asked)); }))) {
    loaded.append(PyTensor{Tensor(std::move(handle))});
  }
  return loaded;
}

// tensors: a list of (tensor, path, offset, strides, member or None).
void Write(FileClient& files, const nb::list& tensors) {
  std::vector<std::pair<HandlePtr, FilePlace>> places;
  for (nb::handle one : tensors) {
    FilePlace place;
    place.path = nb::cast<std::string>(one[1]);
    place.offset_bytes = nb::cast<int64_t>(one[2]);
    place.strides = nb::cast<std::vector<int64_t>>(one[3]);
    place.member = nb::cast<std::optional<std::string>>(one[4]);
    places.emplace_back(nb::cast<const PyTensor&>(one[0]).value().state(), std::move(place));
  }
  RaiseIfError(Released([&] { return files.Write(places); }));
}

}  // namespace

void DefineFiles(nb::module_& module) {
  nb::class_<FileClient>(module, "FileClient")
      .def_static("open",
                  [](const Session& session, int worker) {
                    auto files = Released([&] { return FileClient::Open(session.impl(), WorkerIndex(worker)); });
                    return ValueOrRaise(std::move(files));
                  })
      .def("look", &Look)
      .def("describe", &Describe)
      .def("load", &Load)
      .def("create",
           [](FileClient& files, const std::string& path, const std::string& name, int64_t bytes,
              const nb::bytes& head) {
             const std::string text(head.c_str(), head.size());
             RaiseIfError(Released([&] { return files.Create(path, name, bytes, text); }));
           })
      .def("create_folder",
           [](FileClient& files, const std::string& path, const std::string& name, const std::string& json) {
             RaiseIfError(Released([&] { return files.CreateFolder(path, name, json); }));
           })
      .def("write", &Write)
      .def("commit", [](FileClient& files) { RaiseIfError(Released([&] { return files.Commit(); })); });
}

}  // namespace tessera::python
