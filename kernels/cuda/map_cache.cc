#include "kernels/cuda/map_cache.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/map_source.h"
#include "schemas/types/library_functions.h"

namespace tessera::cuda {

// NVRTC's C interface: programs are opaque, results are 0 when all went well.
struct MapCache::Library {
  void* handle = nullptr;
  int (*version)(int*, int*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*destroy)(void**) = nullptr;
  int (*compile)(void*, int, const char* const*) = nullptr;
  int (*log_size)(void*, size_t*) = nullptr;
  int (*log)(void*, char*) = nullptr;
  int (*ptx_size)(void*, size_t*) = nullptr;
  int (*ptx)(void*, char*) = nullptr;
  int (*cubin_size)(void*, size_t*) = nullptr;
  int (*cubin)(void*, char*) = nullptr;
  std::string version_text;

  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }

  // The first function that there is none of, else empty.
  std::string TakeAll() {
    LibraryFunctions take([this](const char* name) { return dlsym(handle, name); });
    take("nvrtcVersion", version);
    take("nvrtcGetErrorString", error_text);
    take("nvrtcCreateProgram", create);
    take("nvrtcDestroyProgram", destroy);
    take("nvrtcCompileProgram", compile);
    take("nvrtcGetProgramLogSize", log_size);
    take("nvrtcGetProgramLog", log);
    take("nvrtcGetPTXSize", ptx_size);
    take("nvrtcGetPTX", ptx);
    take("nvrtcGetCUBINSize", cubin_size);
    take("nvrtcGetCUBIN", cubin);
    return take.missing();
  }
};

namespace {

uint64_t Fnv(std::string_view text, uint64_t hash = 0xCBF29CE484222325) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash;
}

// Reads a file that Write wrote; nothing of one that is cut off or changed.
absl::StatusOr<std::string> Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  std::string bytes = all.str();
  uint64_t hash = 0;
  if (!file || bytes.size() <= sizeof(hash)) return absl::NotFoundError(path);
  std::memcpy(&hash, bytes.data() + bytes.size() - sizeof(hash), sizeof(hash));
  bytes.resize(bytes.size() - sizeof(hash));
  if (Fnv(bytes) != hash) return absl::DataLossError(path);
  return bytes;
}
// Under another name first: readers see all of it or nothing. A file that can't be kept is no error.
void Write(const std::string& path, const std::string& bytes) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string unfinished = absl::StrCat(path, ".", getpid());
  const uint64_t hash = Fnv(bytes);
  {
    std::ofstream file(unfinished, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.write(reinterpret_cast<const char*>(&hash), sizeof(hash));
    if (!file.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::rename(unfinished, path, error);
  if (error) std::filesystem::remove(unfinished, error);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MapCache>> MapCache::Open(MapCacheOptions options) {
  std::string tried;
  for (const std::string& name : options.libraries) {
    auto library = std::make_unique<Library>();
    library->handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    std::string why;
    if (library->handle == nullptr) {
      why = dlerror();
    } else if (const std::string missing = library->TakeAll(); !missing.empty()) {
      why = absl::StrCat(name, " has no ", missing);
    }
    if (!why.empty()) {
      absl::StrAppend(&tried, tried.empty() ? "" : "; ", why);
      continue;
    }
    int major = 0, minor = 0;
    library->version(&major, &minor);
    library->version_text = absl::StrCat(major, ".", minor);
    return std::unique_ptr<MapCache>(new MapCache(std::move(options), std::move(library)));
  }
  return absl::NotFoundError(absl::StrCat("maps: no NVRTC: ", tried));
}

MapCache::MapCache(MapCacheOptions options, std::unique_ptr<Library> library)
    : options_(std::move(options)), library_(std::move(library)) {}
MapCache::~MapCache() = default;

MapCache::Counts MapCache::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

std::string MapCache::PathOf(const MapProgram& program, std::string_view architecture) const {
  uint64_t hash = Fnv(program.source);
  for (const Header& header : Headers()) hash = Fnv(header.text, hash);
  hash = Fnv(library_->version_text, hash);
  return absl::StrCat(options_.folder, "/", program.entry, "-", absl::Hex(hash, absl::kZeroPad16), ".",
                      std::string(architecture));
}

absl::StatusOr<std::string> MapCache::Compile(const MapProgram& program, std::string_view architecture) {
  const std::string path = options_.folder.empty() ? "" : PathOf(program, architecture);
  if (!path.empty()) {
    if (auto kept = Read(path); kept.ok()) {
      absl::MutexLock lock(&mutex_);
      ++counts_.found;
      return kept;
    }
  }
  auto compiled = CompileNow(program, architecture);
  if (compiled.ok() && !path.empty()) Write(path, *compiled);
  return compiled;
}

absl::StatusOr<std::string> MapCache::CompileNow(const MapProgram& program, std::string_view architecture) {
  {
    absl::MutexLock lock(&mutex_);
    ++counts_.compiled;
  }
  const Library& l = *library_;
  std::vector<std::string> names, texts;
  for (const Header& header : Headers()) {
    names.emplace_back(header.name);
    texts.emplace_back(header.text);
  }
  std::vector<const char*> name_pointers, text_pointers;
  for (size_t h = 0; h < names.size(); ++h) {
    name_pointers.push_back(names[h].c_str());
    text_pointers.push_back(texts[h].c_str());
  }
  void* compiling = nullptr;
  const auto failed = [&](int result, std::string_view log) {
    return absl::InvalidArgumentError(
        absl::StrCat("maps: NVRTC ", l.version_text, ": ", l.error_text(result), " ", std::string(log)));
  };
  if (const int result = l.create(&compiling, program.source.c_str(), program.entry.c_str(),
                                  static_cast<int>(names.size()), text_pointers.data(), name_pointers.data());
      result != 0) {
    return failed(result, "");
  }
  const std::string target = absl::StrCat("--gpu-architecture=", std::string(architecture));
  const char* const options[] = {target.c_str(), "--fmad=false", "--std=c++20", "-default-device"};
  const int result = l.compile(compiling, static_cast<int>(std::size(options)), options);
  const bool is_virtual = architecture.substr(0, 8) == "compute_";
  size_t size = 0;
  std::string text;
  if (result != 0) {
    l.log_size(compiling, &size);
    text.resize(size);
    l.log(compiling, text.data());
    l.destroy(&compiling);
    return failed(result, text.c_str());
  }
  (is_virtual ? l.ptx_size : l.cubin_size)(compiling, &size);
  text.resize(size);
  (is_virtual ? l.ptx : l.cubin)(compiling, text.data());
  l.destroy(&compiling);
  if (is_virtual) text.resize(std::strlen(text.c_str()));
  return text;
}

}  // namespace tessera::cuda
