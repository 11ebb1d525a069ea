#include <array>

#include "kernels/cuda/map_source.h"

namespace tessera::cuda {

absl::Span<const Header> Headers() {
  static constexpr Header kHeaders[] = {
#include "kernels/cuda/header_texts.inc"
  };
  return kHeaders;
}

}  // namespace tessera::cuda
