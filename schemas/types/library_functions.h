#pragma once

// Functions of a library that is opened at run time, each into its place of a table.
//
//   LibraryFunctions take([&](const char* name) { return dlsym(library, name); });
//   take("cuInit", driver.Init);
//   if (!take.missing().empty()) return absl::NotFoundError(...);

#include <functional>
#include <string>
#include <utility>

namespace tessera {

class LibraryFunctions {
 public:
  // find: where the function of a name is; null where the library has none.
  explicit LibraryFunctions(std::function<void*(const char* name)> find) : find_(std::move(find)) {}

  template <typename Function>
  void operator()(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(find_(name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  // The first name that the library doesn't have, else empty.
  const std::string& missing() const { return missing_; }

 private:
  const std::function<void*(const char*)> find_;
  std::string missing_;
};

}  // namespace tessera
