// Publications, as tessera/_publications.py uses them.

#include "client/python/publication_module.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "client/python/convert.h"
#include "client/session.h"

namespace tessera::python {
namespace {

// Other tenants gave the names: bytes that are no text stay different.
nb::object NameToPython(const std::string& name) {
  return nb::steal(PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "backslashreplace"));
}

uint64_t Publish(const Session& session, const nb::dict& tensors, const std::string& name,
                 const std::vector<std::string>& readers) {
  std::map<std::string, Tensor> named;
  for (const auto& [key, tensor] : tensors) {
    named.emplace(nb::cast<std::string>(key), nb::cast<const PyTensor&>(tensor).value());
  }
  return ValueOrRaise(Released([&] { return session.Publish(named, name, readers); }));
}

nb::tuple Attach(const Session& session, const std::string& name) {
  AttachedPublication attached = ValueOrRaise(Released([&] { return session.Attach(name); }));
  nb::dict tensors;
  for (auto& [key, tensor] : attached.tensors) tensors[NameToPython(key)] = PyTensor{std::move(tensor)};
  return nb::make_tuple(attached.version, tensors);
}

nb::list Published(const Session& session) {
  nb::list out;
  for (const PublicationReport& one : ValueOrRaise(Released([&] { return session.Published(); }))) {
    nb::list readers;
    for (const std::string& reader : one.readers) readers.append(NameToPython(reader));
    nb::dict shown;
    shown["name"] = NameToPython(one.name);
    shown["version"] = one.version;
    shown["tensors"] = one.tensor_count;
    shown["bytes"] = one.bytes;
    shown["readers"] = readers;
    out.append(shown);
  }
  return out;
}

}  // namespace

void DefinePublications(nb::module_& module) {
  module.def("publish", &Publish);
  module.def("attach", &Attach);
  module.def("unpublish", [](const Session& session, const std::string& name) {
    RaiseIfError(Released([&] { return session.Unpublish(name); }));
  });
  module.def("published", &Published);
}

}  // namespace tessera::python
