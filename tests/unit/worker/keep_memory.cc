// For tests that record who touches which memory: nothing is given back. A block that one worker frees and another one
// takes would be memory that both touch, in an order that no wait makes; the allocator's own order isn't recorded. Not
// under the sanitizers, where all that is kept would be more than a machine has.

#include <cstdlib>
#include <new>

#ifndef TESSERA_SANITIZED
void operator delete(void*) noexcept {}
void operator delete(void*, std::size_t) noexcept {}
void operator delete[](void*) noexcept {}
void operator delete[](void*, std::size_t) noexcept {}
#endif
