#include "server/device/cuda/library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <sstream>

#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

std::vector<std::string> Matching(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

}  // namespace

std::vector<std::string> PlacesOf(const LibraryName& name) {
  if (const char* path = std::getenv(name.variable); path != nullptr) return {path};
  const char* home = std::getenv("TESSERA_CUDA_HOME");
  std::vector<std::string> places = {name.file,
                                     StrCat(home == nullptr ? "/usr/local/cuda" : home, "/lib64/", name.file)};
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (std::string& found : Matching(StrCat(folder, "/../lib/python3*/", packages, "/nvidia/*/lib/", name.file))) {
        places.push_back(std::move(found));
      }
    }
  }
  return places;
}

absl::StatusOr<void*> OpenLibrary(const LibraryName& name) {
  std::string tried;
  for (const std::string& place : PlacesOf(name)) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
    const char* why = dlerror();
    tried += StrCat(tried.empty() ? "" : "; ", why == nullptr ? place : std::string(why));
  }
  return absl::NotFoundError(StrCat("no ", name.file, ": ", tried));
}

}  // namespace tessera::cuda
