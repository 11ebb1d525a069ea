#pragma once

// Libraries of CUDA, opened at run time: a worker without them starts, too.
//
//   TESSERA_ASSIGN_OR_RETURN(void* library, OpenLibrary({.variable = "TESSERA_CUDNN", .file = "libcudnn.so.9"}));
//
// If the variable is set, it names the library, and nothing else is looked at. Else the first that can be opened: by
// its name, where the loader looks; in the toolkit's folder (TESSERA_CUDA_HOME, else /usr/local/cuda); among the
// packages of pip (nvidia/*/lib) of the Pythons in PATH.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::cuda {

struct LibraryName {
  const char* variable = nullptr;
  const char* file = nullptr;  // with its major version
};
// In the order in which they are tried.
std::vector<std::string> PlacesOf(const LibraryName& name);
// NotFound says of each place why not. An opened library stays open.
absl::StatusOr<void*> OpenLibrary(const LibraryName& name);

}  // namespace tessera::cuda
