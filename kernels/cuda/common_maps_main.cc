// Writes the source of the image's maps:
//
//   common_maps_main > common_maps.cu      common_maps_main list      their expressions, a line each

#include <cstdio>
#include <string>
#include <string_view>

#include "kernels/cuda/common_maps.h"

int main(int argc, char** argv) {
  const std::vector<std::string> maps = tessera::cuda::CommonMaps();
  if (argc > 1 && std::string_view(argv[1]) == "list") {
    for (const std::string& map : maps) std::printf("%s\n", map.c_str());
    return 0;
  }
  const absl::StatusOr<std::string> source = tessera::cuda::SourceOf(maps);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", source.status().ToString().c_str());
    return 1;
  }
  std::fputs(source->c_str(), stdout);
  return 0;
}
