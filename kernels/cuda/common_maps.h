#pragma once

// Maps that the image has: those that most programs begin with, so that their first use compiles nothing and they run
// where there is no NVRTC. All others are compiled when they are met (map_cache.h).
//
//   CommonMaps()  {"cast:f32(in0:bf16)", "add:f32(in0:f32, in1:f32)", "mul:f32(in0:f32, arg0:f32)", ...}
//
// The list is made from the catalog: each scalar function of one or two operands in f32, those that arithmetic has in
// bf16, f64 and i64 as well, of two operands, and of one with a number on either side. Beside these stand casts and
// choices by a mask. Functions that a plan has made one map aren't there: they are too many.
//
// The image's build writes their kernels as one source: the text of each is what NVRTC would be given (map_source.h),
// so the entry, which is named by a hash of the text, says that a program is in the image.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::cuda {

// Expressions, each once.
std::vector<std::string> CommonMaps();

// CUDA C++ with a kernel for each.
absl::StatusOr<std::string> SourceOf(const std::vector<std::string>& maps);

}  // namespace tessera::cuda
