#include "server/planner/fitting.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Fitting(std::string_view spec, int64_t free_bytes) {
  return WhatWouldFit(*ParseTensorSpec(spec), free_bytes);
}

TEST(WhatWouldFit, NamesAShardingAndAnExtent) {
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(4) [R]", 100000),
            "f32[1024,64] @ mesh(4) [R] would fit with placements [S(0)], or shortened to f32[390,64]");
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(4) [R]", 65536),
            "f32[1024,64] @ mesh(4) [R] would fit with placements [S(0)], or shortened to f32[256,64]");
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(4) [R]", 65535),
            "f32[1024,64] @ mesh(4) [R] would fit shortened to f32[255,64]");
  EXPECT_EQ(Fitting("f64[6,100] @ mesh(2,2) [R, S(0)]", 1200),
            "f64[6,100] @ mesh(2,2) [R, S(0)] would fit with placements [S(1), S(0)], or shortened to f64[2,100]");
}

TEST(WhatWouldFit, TakesAsManyMeshDimsAsItNeeds) {
  // One index of dim 0 is too much already.
  EXPECT_EQ(Fitting("f64[2,200,1000] @ mesh(1) [R]", 1 << 20),
            "f64[2,200,1000] @ mesh(1) [R] would fit shortened to f64[2,65,1000]");
  EXPECT_EQ(Fitting("f64[64] @ mesh(2,4) [R, R]", 64),
            "f64[64] @ mesh(2,4) [R, R] would fit with placements [S(0), S(0)], or shortened to f64[8]");
  EXPECT_EQ(Fitting("f64[64] @ mesh(2,4) [R, R]", 256),
            "f64[64] @ mesh(2,4) [R, R] would fit with placements [S(0), R], or shortened to f64[32]");
}

TEST(WhatWouldFit, TakesTheFewestMeshDims) {
  EXPECT_EQ(Fitting("f32[1024,64] @ mesh(2,8) [R, R]", 32768),
            "f32[1024,64] @ mesh(2,8) [R, R] would fit with placements [R, S(0)], or shortened to f32[128,64]");
  EXPECT_EQ(Fitting("f64[64] @ mesh(2,2,4) [R, R, R]", 64),
            "f64[64] @ mesh(2,2,4) [R, R, R] would fit with placements [S(0), R, S(0)], or shortened to f64[8]");
}

TEST(WhatWouldFit, SaysWhenNothingWould) {
  EXPECT_EQ(Fitting("f64[] @ mesh(2) [R]", 7), "nothing of f64[] @ mesh(2) [R] would fit");
  EXPECT_EQ(Fitting("f64[10,10] @ mesh(2) [S(0)]", 79), "f64[10,10] @ mesh(2) [S(0)] would fit shortened to f64[10,1]");
  EXPECT_EQ(Fitting("f64[10,10] @ mesh(2) [S(0)]", 7), "nothing of f64[10,10] @ mesh(2) [S(0)] would fit");
}

}  // namespace
}  // namespace tessera
