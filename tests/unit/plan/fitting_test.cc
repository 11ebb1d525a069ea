#include "server/planner/fitting.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Fitting(std::string_view spec, int64_t free_bytes) {
  return WhatWouldFit(*ParseTensorSpec(spec), free_bytes);
}

TEST(WhatWouldFit, NamesAShardingAndAnExtent) {
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(4) [R]", 100000), "[S(0)] would fit, or [R] of f32[390,64]");
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(4) [R]", 65536), "[S(0)] would fit, or [R] of f32[256,64]");
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(4) [R]", 65535), "[R] of f32[255,64] would fit");
  EXPECT_EQ(Fitting("f64[6,100] @ mesh(2,2) [R, S(0)]", 1200), "[S(1), S(0)] would fit, or [R, S(0)] of f64[2,100]");
}

TEST(WhatWouldFit, TakesAsManyMeshDimsAsItNeeds) {
  // Of one index of dim 0 there is too much.
  EXPECT_EQ(Fitting("f64[2,200,1000] @ mesh(1) [R]", 1 << 20), "[R] of f64[2,65,1000] would fit");
  EXPECT_EQ(Fitting("f64[64] @ mesh(2,4) [R, R]", 64), "[S(0), S(0)] would fit, or [R, R] of f64[8]");
  EXPECT_EQ(Fitting("f64[64] @ mesh(2,4) [R, R]", 256), "[S(0), R] would fit, or [R, R] of f64[32]");
}

TEST(WhatWouldFit, TakesTheFewestMeshDims) {
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(2,8) [R, R]", 32768), "[R, S(0)] would fit, or [R, R] of f32[128,64]");
  EXPECT_EQ(Fitting("f64[64] @ mesh(2,2,4) [R, R, R]", 64), "[S(0), R, S(0)] would fit, or [R, R, R] of f64[8]");
}

TEST(WhatWouldFit, SaysWhenNothingWould) {
  EXPECT_EQ(Fitting("f64[] @ mesh(2) [R]", 7), "nothing of it would fit");
  EXPECT_EQ(Fitting("f64[10,10] @ mesh(2) [S(0)]", 79), "[S(0)] of f64[10,1] would fit");
  EXPECT_EQ(Fitting("f64[10,10] @ mesh(2) [S(0)]", 7), "nothing of it would fit");
}

}  // namespace
}  // namespace tessera
