#pragma once

// The first include of every public header: an older C++ standard ends here, with one line in place of pages about
// templates.

#if __cplusplus < 202002L
#error "tessera: C++20 or newer is needed: compile with -std=c++20 (CMake: target_compile_features(... cxx_std_20))"
// There is no such file: this ends the compilation, where #error alone would go on.
#include <tessera_needs_cxx20>
#endif
