#pragma once

// The versions of a state folder's files. A program reads its own version and the one before, so that a coordinator is
// upgraded in place, and refuses a newer one by name.
//
// | log | snapshot | changes |
// |---|---|---|
// | 1 | 2 | |
// | 2 | 3 | a segment's header has its version and level; records of what is committed; the epoch in which a worker
// joined |
// | 3 | 4 | the numbers for which join tokens are used |
//
// Whoever changes a form adds a line here, and a test that reads a folder with the numbers of the line before
// (tests/unit/coordinator/versions_test.cc).

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "schemas/types/str_cat.h"

namespace tessera {

inline constexpr uint32_t kLogVersion = 3, kOldestLogVersion = 2;
inline constexpr uint32_t kSnapshotVersion = 4, kOldestSnapshotVersion = 3;

// FailedPrecondition that names both versions, and which program reads the file.
inline absl::Status CheckFileVersion(std::string_view what, uint32_t version, uint32_t oldest, uint32_t newest) {
  if (version >= oldest && version <= newest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat(what, " is of version ", version, "; this program reads the versions ", oldest, " to ", newest, ": start ",
             version > newest ? "the newer program that wrote it" : "a program of the version before on it first"));
}

}  // namespace tessera
