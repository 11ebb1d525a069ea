#pragma once

// The kernels as they ship: fatbins for sm_80, sm_90a, sm_100 and as PTX, not compressed, one per family. They are
// loaded all at the start (loading later synchronises the device); an entry's name is in one of them alone.

#include <cstddef>
#include <string_view>

#include "absl/types/span.h"

namespace tessera::cuda {

struct ImagePart {
  std::string_view family;  // "copy", "reduce", ...
  absl::Span<const std::byte> fatbin;
};
absl::Span<const ImagePart> Image();

// The maps that ship as well (common_maps.h), by the entries of their programs.
ImagePart CommonMapsImage();

}  // namespace tessera::cuda
