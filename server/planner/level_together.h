#pragma once

// LevelTogether: who gives what of several tensors that move in one plan. Alone each of them has its holders give equal
// parts; together the busiest worker is to give least, and some hold one tensor and some several.
//
//   x on workers 0 and 1, y on 0 and 2, z on 0, 96 bytes each, all to worker 3: workers 0 to 2 give 96 bytes each
//   (Exchange::given_besides), and not worker 0 192 and the others 48.

#include "server/plan/plan.h"

namespace tessera {

inline constexpr int64_t kMaxLevelledPositions = 64;  // docs/limits.md: max_levelled_positions

// Says in the exchanges what their holders give besides, where the busiest worker gives a twentieth less so. Not on
// several hosts. One exchange after another is levelled beside all others, in turns: the sum of squares of what
// workers give only falls, and its least point has the least maximum (Veinott, "Least d-majorized network flows",
// 1971).
void LevelTogether(Plan& plan);

}  // namespace tessera
