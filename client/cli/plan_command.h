#pragma once

// The `plan` command: what a request would do, without any server.
//
//   tessera plan "f32[8192,8192] @ mesh(x:4) [S(0)] -> [S(1)]"
//   tessera plan "f32[1024,1024] @ mesh(4) [S(0)] -> mesh(2,2) [S(0), S(1)]"
//   tessera plan "matmul(f32[1797,64] @ mesh(4) [S(0)], f32[64,1797] @ mesh(4) [S(1)])"
//   tessera plan "einsum('bij,bjk->bik', f32[8,64,32] @ mesh(4) [S(0)], f32[8,32,64] @ mesh(4) [R])"
//   tessera plan --memory 64MiB "matmul(f64[4096,1024] @ mesh(2) [P(max)], f64[1024,4096] @ mesh(2) [S(1)])"
//   tessera plan --workers-per-host 8 "f32[64] @ mesh(512) [P(sum)] -> [R]"
//   tessera plan "sum(f32[64,64] @ mesh(4) [S(0)], dims=[0], keepdims=true)"
//
// Any op of the catalog goes by its name, with specs and numbers as operands, then attributes:
// dims= keepdims= notation= dtype= shape= mesh= placements=. einsum has its notation in quotes of either kind, anywhere
// among its arguments; without an arrow the output has the letters that stand once, as NumPy's has. dims is all dims of
// a reduction and the reversed ones of permute_dims when it is not given. Creation ops take their numbers first.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

enum class PlanOutput : uint8_t { kText = 0, kJson = 1 };

// The text to print, with its last newline. kJson: one object with steps, bytes_received, bytes_sent and
// peak_bytes (by position; by worker when meshes differ), predicted_seconds, placements, implicit,
// output, grid, runners_up and plan (its whole text). InvalidArgument: what doesn't parse, and
// the planner's errors. With `memory_bytes`: the plan on workers that have so much for operands, temporaries and
// output together; ResourceExhausted when there is none. With `workers_per_host`: the plan on hosts of so many workers
// each, by their numbers; else all share one host.
absl::StatusOr<std::string> PlanCommandText(std::string_view request, PlanOutput format,
                                            std::optional<int64_t> memory_bytes = std::nullopt,
                                            std::optional<int> workers_per_host = std::nullopt);

}  // namespace tessera
