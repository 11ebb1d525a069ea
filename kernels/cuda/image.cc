#include "kernels/cuda/image.h"

#include <array>

// Each is a fatbin that the linker took as it is (third_party/cuda/cuda.bzl).
#define TESSERA_FAMILIES(F) \
  F(arg_reduce)             \
  F(attention)              \
  F(attention_gradients)    \
  F(copy)                   \
  F(create)                 \
  F(fourier)                \
  F(index)                  \
  F(matmul)                 \
  F(matrix) F(order) F(radix) F(reduce) F(reduce_columns) F(reduce_rows) F(scan) F(scatter) F(select) F(terms) F(window)

extern "C" {
#define TESSERA_DECLARE(name) extern const std::byte _binary_##name##_fatbin_start[], _binary_##name##_fatbin_end[];
TESSERA_FAMILIES(TESSERA_DECLARE)
TESSERA_DECLARE(common_maps)
#undef TESSERA_DECLARE
}

#define TESSERA_PART(name)                  \
  ImagePart{#name,                          \
            {_binary_##name##_fatbin_start, \
             static_cast<size_t>(_binary_##name##_fatbin_end - _binary_##name##_fatbin_start)}},

namespace tessera::cuda {

absl::Span<const ImagePart> Image() {
  static const auto kParts = std::to_array<ImagePart>({TESSERA_FAMILIES(TESSERA_PART)});
  return kParts;
}

ImagePart CommonMapsImage() {
  static const auto kParts = std::to_array<ImagePart>({TESSERA_PART(common_maps)});
  return kParts[0];
}

}  // namespace tessera::cuda
