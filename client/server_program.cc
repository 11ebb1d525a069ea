#include "client/server_program.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool IsProgram(const fs::path& path) { return access(path.c_str(), X_OK) == 0 && !fs::is_directory(path); }

// The folder of the binary or shared object that holds this code.
fs::path OwnFolder() {
  Dl_info info{};
  std::error_code error;
  if (dladdr(reinterpret_cast<const void*>(&OwnFolder), &info) != 0 && info.dli_fname != nullptr) {
    fs::path path(info.dli_fname);
    if (fs::exists(path, error) && path.has_parent_path()) return fs::absolute(path, error).parent_path();
  }
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace

absl::StatusOr<std::string> FindServerProgram(const std::string& role, const std::string& folder) {
  const std::string name = "tessera-" + role;
  std::vector<fs::path> places;
  const char* from_env = std::getenv("TESSERA_BIN_DIR");
  std::string base = !folder.empty() ? folder : from_env != nullptr ? from_env : "";
  if (!base.empty()) {
    places = {fs::path(base) / name, fs::path(base) / "server" / role / name};
  } else {
    fs::path own = OwnFolder();
    // Beside this program, in the Python package beside its extension, of the prefix that has the library.
    places = {own / name, own / "tessera" / "bin" / name, own.parent_path() / "bin" / name};
    for (int up = 0; up < 8 && own.has_relative_path(); ++up, own = own.parent_path()) {
      places.push_back(own / "server" / role / name);
      places.push_back(own / "bazel-bin" / "server" / role / name);
    }
  }
  for (const fs::path& place : places) {
    if (IsProgram(place)) return place.string();
  }
  return absl::NotFoundError(StrCat("local_cluster: the program ", name, " is not at ", places.front().string(),
                                    " nor near it. The client is installed without servers, or they are not built: "
                                    "install the Python package with servers (tools/wheel --full), or build them with "
                                    "tools/build, or set TESSERA_BIN_DIR to their folder"));
}

}  // namespace tessera
