#pragma once

// Where a tensor lies in a file of the workers' host.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct FilePlace {
  std::string path;
  int64_t offset_bytes = 0;      // of the element with indices 0
  std::vector<int64_t> strides;  // in bytes, by tensor dim
  bool is_reversed = false;      // the bytes of each number are in the other order
  // Size and time of a file that is read, when it was looked at: it is refused if it has changed.
  int64_t file_bytes = 0;
  int64_t modified_ns = 0;
  // The tensor's name in a file that a worker's decoder reads or writes; the layout is of its row-major bytes.
  std::optional<std::string> member;
};

// LookAtFile's answer.
struct FilePart {
  int64_t file_bytes = 0;
  int64_t modified_ns = 0;
  std::string part;
};

}  // namespace tessera
