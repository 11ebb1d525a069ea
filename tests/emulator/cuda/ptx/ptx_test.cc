// The interpreter: what instructions give, and that each kind of check finds its planted fault.

#include "tests/emulator/cuda/ptx/ptx.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/small_kernel.h"

namespace tessera::ptx {
namespace {

uint64_t ResultOf(std::string_view body) {
  std::vector<uint64_t> memory(1);
  EXPECT_EQ(RunBody(Text(StrCat(body, " st.global.u64 [%rd1], %rd9;")), &memory, 7, {1, 1, 1}).wrong, "") << body;
  return memory[0];
}
template <typename T>
T BitCastOf(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

TEST(Ptx, ComputesWithIntegers) {
  EXPECT_EQ(ResultOf("mov.u32 %r3, -5; cvt.s64.s32 %rd9, %r3;"), static_cast<uint64_t>(-5));
  EXPECT_EQ(ResultOf("mov.u32 %r3, -5; cvt.u64.u32 %rd9, %r3;"), 0xFFFFFFFBu);
  EXPECT_EQ(ResultOf("mul.hi.u64 %rd9, 0xFFFFFFFFFFFFFFFF, 3;"), 2u);
  EXPECT_EQ(ResultOf("mov.u64 %rd4, 5; div.u64 %rd9, %rd4, 0;"), ~uint64_t{0});
  EXPECT_EQ(ResultOf("mov.u64 %rd4, -7; rem.s64 %rd9, %rd4, 3;"), static_cast<uint64_t>(-1));
  EXPECT_EQ(ResultOf("mov.u64 %rd4, 1; shl.b64 %rd9, %rd4, 64;"), 0u);
  EXPECT_EQ(ResultOf("mov.u64 %rd4, -8; shr.s64 %rd9, %rd4, 99;"), ~uint64_t{0});
  EXPECT_EQ(ResultOf("bfe.u64 %rd9, 0xABCD, 4, 8;"), 0xBCu);
  EXPECT_EQ(ResultOf("mov.b64 %rd9, {1, -1};"), 0xFFFFFFFF00000001u);
  EXPECT_EQ(ResultOf("prmt.b32 %r3, 0x33221100, 0x77665544, 0x7310; cvt.u64.u32 %rd9, %r3;"), 0x77331100u);
  EXPECT_EQ(ResultOf("lop3.b32 %r3, 12, 10, 1, 0x96; cvt.u64.u32 %rd9, %r3;"), 12u ^ 10u ^ 1u);
  EXPECT_EQ(ResultOf("add.cc.u32 %r3, -1, 1; addc.u32 %r4, 5, 0; cvt.u64.u32 %rd9, %r4;"), 6u);
  EXPECT_EQ(ResultOf("sub.cc.u32 %r3, 1, 2; subc.u32 %r4, 5, 1; cvt.u64.u32 %rd9, %r4;"), 3u);
  EXPECT_EQ(ResultOf("sub.cc.u32 %r3, 2, 2; subc.u32 %r4, 5, 1; cvt.u64.u32 %rd9, %r4;"), 4u);
  EXPECT_EQ(ResultOf("shf.l.wrap.b32 %r3, 0x80000000, 1, 1; cvt.u64.u32 %rd9, %r3;"), 3u);
  EXPECT_EQ(ResultOf("setp.lt.s32 %p1, %r1, 8; selp.b64 %rd9, 11, 12, %p1;"), 11u);
}

TEST(Ptx, ScopesHaveRegistersOfTheirOwn) {
  EXPECT_EQ(
      ResultOf("mov.u32 %r3, 5;\n{ .reg .u32 %r3, %own; mov.u32 %r3, 8; mov.u32 %own, %r3; }\ncvt.u64.u32 %rd9, %r3;"),
      5u);
}

TEST(Ptx, LoadsExtendToTheRegister) {
  EXPECT_EQ(ResultOf("st.global.u64 [%rd1], 0xFFFFFFFA; ld.global.s8 %rd9, [%rd1];"), static_cast<uint64_t>(-6));
  EXPECT_EQ(ResultOf("st.global.u64 [%rd1], 0xFFFFFFFA; ld.global.s32 %rd9, [%rd1];"), static_cast<uint64_t>(-6));
  EXPECT_EQ(ResultOf("st.global.u64 [%rd1], 0xFFFFFFFA; ld.global.u16 %rd9, [%rd1];"), 0xFFFAu);
}

TEST(Ptx, ComputesWithFloats) {
  const auto f64 = [](std::string_view body) { return BitCastOf<double>(ResultOf(body)); };
  EXPECT_EQ(f64("add.rn.f64 %rd9, 0d3FF0000000000000, 0d4000000000000000;"), 3.0);
  EXPECT_EQ(f64("fma.rn.f64 %rd9, 0d4000000000000000, 0d4000000000000000, 0d3FF0000000000000;"), 5.0);
  EXPECT_EQ(f64("cvt.rn.f64.s32 %rd9, %r1;"), 7.0);
  EXPECT_GT(f64("div.rp.f64 %rd9, 0d3FF0000000000000, 0d4008000000000000;"), 1.0 / 3.0);
  EXPECT_EQ(ResultOf("cvt.rzi.s32.f32 %r3, 0f7F800000; cvt.u64.u32 %rd9, %r3;"), 0x7FFFFFFFu);
  EXPECT_EQ(ResultOf("cvt.rzi.s32.f32 %r3, 0f7FC00000; cvt.u64.u32 %rd9, %r3;"), 0u);
  EXPECT_EQ(ResultOf("cvt.rn.f16.f32 %r3, 0f3DCCCCCD; cvt.u64.u16 %rd9, %r3;"), 0x2E66u);
  EXPECT_EQ(ResultOf("cvt.rn.bf16.f32 %r3, 0f7FC00001; cvt.u64.u16 %rd9, %r3;"), 0x7FFFu);
  EXPECT_EQ(ResultOf("min.f32 %r3, 0f7FC00000, 0f3F800000; cvt.u64.u32 %rd9, %r3;"), 0x3F800000u);
  EXPECT_EQ(ResultOf("setp.neu.f32 %p1, 0f7FC00000, 0f3F800000; selp.b64 %rd9, 1, 2, %p1;"), 1u);
  EXPECT_EQ(ResultOf("setp.ne.f32 %p1, 0f7FC00000, 0f3F800000; selp.b64 %rd9, 1, 2, %p1;"), 2u);
}

TEST(Ptx, BranchesByTableAndCallsFunctions) {
  const std::string jumps =
      "$T: .branchtargets $A, $B;\nbrx.idx %r2, $T;\n$A: mov.u64 %rd4, 10; bra.uni $E;\n$B: mov.u64 %rd4, 20;\n$E: ";
  std::vector<uint64_t> memory(2);
  EXPECT_EQ(RunBody(Text(StrCat(kOwnPlace, jumps, "st.global.u64 [%rd2], %rd4;")), &memory, 0, {2, 1, 1}).wrong, "");
  EXPECT_EQ(memory, (std::vector<uint64_t>{10, 20}));

  const std::string doubled =
      ".func (.param .b64 out) twice(.param .b64 in)\n{\n.reg .b64 %rd<3>; .reg .pred %p<2>; ld.param.b64 %rd1, [in];\n"
      "setp.eq.s64 %p1, %rd1, 0; @%p1 bra $Z; add.s64 %rd1, %rd1, %rd1;\n$Z: st.param.b64 [out], %rd1; ret;\n}\n";
  const std::string call =
      "{ .param .b64 a; st.param.b64 [a], 21; .param .b64 b; call.uni (b), twice, (a); ld.param.b64 %rd9, [b]; }\n"
      "st.global.u64 [%rd1], %rd9;";
  EXPECT_EQ(RunBody(Text(call, doubled), &memory, 0, {1, 1, 1}).wrong, "");
  EXPECT_EQ(memory[0], 42u);
}

TEST(Ptx, ReadsVariablesOfTheModule) {
  const std::string table = ".const .align 4 .b32 table[3] = {5, 6, 7};\n";
  std::vector<uint64_t> memory(1);
  EXPECT_EQ(RunBody(Text("ld.const.u32 %r3, [table+8]; cvt.u64.u32 %rd4, %r3; st.global.u64 [%rd1], %rd4;", table),
                    &memory, 0, {1, 1, 1})
                .wrong,
            "");
  EXPECT_EQ(memory[0], 7u);
}

TEST(Ptx, TextsAreFoundInAFatbin) {
  const char bytes[] = "\x50\xED\0\0bytes\0\n\n.version 9.0\n.target sm_80\n\0more\0.version 8.0\n";
  const std::string fatbin(bytes, sizeof(bytes));
  const std::vector<std::string> texts = PtxOf({reinterpret_cast<const std::byte*>(fatbin.data()), fatbin.size()});
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0], ".version 9.0\n.target sm_80\n");
  EXPECT_EQ(texts[1].substr(0, 12), ".version 8.0");
}

TEST(Ptx, LanesExchange) {
  std::vector<uint64_t> memory(32);
  const std::string body =
      StrCat(kOwnPlace,
             "shfl.sync.down.b32 %r3|%p1, %r2, 1, 31, -1; @!%p1 mov.u32 %r3, 100;\n"
             "setp.gt.u32 %p2, %r2, 29; vote.sync.ballot.b32 %r4, %p2, -1; add.u32 %r3, %r3, %r4;\n"
             "cvt.u64.u32 %rd4, %r3; st.global.u64 [%rd2], %rd4;");
  EXPECT_EQ(RunBody(Text(body), &memory).wrong, "");
  EXPECT_EQ(memory[0], 0xC0000001u);
  EXPECT_EQ(memory[31], 0xC0000000u + 100);
}

TEST(Ptx, LanesPartAndMeetAgain) {
  // Each lane goes round as often as its number says; those that are through wait for nobody.
  std::vector<uint64_t> memory(32);
  const std::string body = StrCat(kOwnPlace,
                                  "mov.u64 %rd4, 0; mov.u32 %r3, 0;\n"
                                  "AGAIN: setp.ge.u32 %p1, %r3, %r2; @%p1 bra DONE;\n"
                                  "add.u64 %rd4, %rd4, 3; add.u32 %r3, %r3, 1; bra AGAIN;\n"
                                  "DONE: vote.sync.ballot.b32 %r4, 1, -1; cvt.u64.u32 %rd5, %r4;\n"
                                  "add.u64 %rd4, %rd4, %rd5; st.global.u64 [%rd2], %rd4;");
  const Outcome outcome = RunBody(Text(body), &memory);
  ASSERT_EQ(outcome.wrong, "");
  for (uint64_t lane = 0; lane < 32; ++lane) EXPECT_EQ(memory[lane], 0xFFFFFFFFu + 3 * lane);
  uint64_t rounds = 0;
  for (size_t i = 0; i < outcome.lines.size(); ++i) {
    if (outcome.lines[i] == 12) rounds = outcome.coverage.run_count[i];
  }
  EXPECT_EQ(rounds, 31u * 32 / 2);
}

// ---- planted faults

constexpr std::string_view kTile = ".shared .align 8 .b8 tile[512];\n";
// Each thread writes its own 8 bytes and reads those of the next.
std::string Exchange(std::string_view between) {
  return Text(
      StrCat(kOwnPlace, kTile, "mov.u64 %rd5, tile; add.s64 %rd6, %rd5, %rd3; st.shared.u64 [%rd6], %rd3;\n", between,
             "\nadd.u32 %r5, %r2, 1; and.b32 %r5, %r5, 63; mul.wide.u32 %rd7, %r5, 8; add.s64 %rd7, %rd5, %rd7;\n"
             "ld.shared.u64 %rd8, [%rd7];\nst.global.u64 [%rd2], %rd8;"));
}

TEST(PtxChecks, BarrierOrdersSharedMemory) {
  std::vector<uint64_t> memory(64);
  EXPECT_EQ(RunBody(Exchange("bar.sync 0;"), &memory, 0, {64, 1, 1}).wrong, "");
  EXPECT_EQ(memory[0], 8u);
  EXPECT_EQ(memory[63], 0u);
}

TEST(PtxChecks, MissingBarrierIsARaceOrAReadOfNothing) {
  std::vector<uint64_t> memory(64);
  const std::string wrong = RunBody(Exchange(""), &memory, 0, {64, 1, 1}).wrong;
  EXPECT_THAT(wrong, ::testing::StartsWith("k: block 0,0,0 thread "));
  EXPECT_THAT(wrong, ::testing::AnyOf(::testing::HasSubstr("nobody wrote"), ::testing::HasSubstr("race: byte ")));
  EXPECT_THAT(wrong, ::testing::HasSubstr(" line 14: "));
}

TEST(PtxChecks, TwoWritersAreARace) {
  std::vector<uint64_t> memory(64);
  const std::string body = StrCat(kTile, "mov.u64 %rd5, tile; st.shared.u32 [%rd5], %r2;");
  EXPECT_EQ(
      RunBody(Text(body), &memory, 0, {2, 1, 1}).wrong,
      "k: block 0,0,0 thread 1 line 10: race: byte 0 of shared memory was written by thread 0 with no barrier since");
}

TEST(PtxChecks, WriteAfterSeveralReadersIsARace) {
  std::vector<uint64_t> memory(64);
  const std::string body = StrCat(kTile,
                                  "mov.u64 %rd5, tile; setp.eq.u32 %p1, %r2, 0;\n@%p1 st.shared.u32 [%rd5], %r2;\n"
                                  "bar.sync 0;\nld.shared.u32 %r3, [%rd5]; setp.eq.u32 %p2, %r2, 2;\n"
                                  "@%p2 st.shared.u32 [%rd5], %r2;");
  EXPECT_EQ(
      RunBody(Text(body), &memory, 0, {3, 1, 1}).wrong,
      "k: block 0,0,0 thread 2 line 14: race: byte 0 of shared memory was read by several threads with no barrier "
      "since");
}

TEST(PtxChecks, WarpBarrierOrdersTheLanesOfOneWarpAlone) {
  std::vector<uint64_t> memory(64);
  const std::string of_lanes = Exchange("bar.warp.sync -1;");
  const std::string wrong = RunBody(of_lanes, &memory, 0, {64, 1, 1}).wrong;
  EXPECT_THAT(wrong, ::testing::HasSubstr("k: block 0,0,0 thread "));
}

TEST(PtxChecks, IllegalAddressIsNamed) {
  std::vector<uint64_t> memory(33);
  const std::string body = StrCat(kOwnPlace, "st.global.u64 [%rd2+16], %rd3;");
  const std::string wrong = RunBody(Text(body), &memory, 0, {32, 1, 1}).wrong;
  EXPECT_EQ(wrong, StrCat("k: block 0,0,0 thread 31 line 10: illegal address ",
                          reinterpret_cast<uint64_t>(memory.data() + 33), " (8 bytes, write)"));
}

TEST(PtxChecks, MisalignedAddressIsNamed) {
  std::vector<uint64_t> memory(2);
  const std::string wrong = RunBody(Text("ld.global.u64 %rd4, [%rd1+4];"), &memory, 0, {1, 1, 1}).wrong;
  EXPECT_THAT(wrong, ::testing::HasSubstr("is misaligned for 8 bytes"));
}

TEST(PtxChecks, SharedLocalAndParameterMemoryHaveBounds) {
  std::vector<uint64_t> memory(1);
  const auto wrong = [&](std::string_view body) { return RunBody(Text(body), &memory, 0, {1, 1, 1}).wrong; };
  EXPECT_THAT(wrong(StrCat(kTile, "st.shared.u64 [tile+512], %rd1;")),
              ::testing::HasSubstr("byte 512 of 512 of shared"));
  EXPECT_THAT(wrong(".local .align 8 .b8 d[8]; st.local.u64 [d+8], %rd1;"),
              ::testing::HasSubstr("byte 8 of 8 of local"));
  EXPECT_THAT(wrong(".local .align 8 .b8 d[8]; ld.local.u64 %rd4, [d];"), ::testing::HasSubstr("nobody wrote"));
  EXPECT_THAT(wrong("ld.param.u64 %rd4, [k_0+8];"), ::testing::HasSubstr("byte 8 of 12 of the parameters"));
}

TEST(PtxChecks, BarrierThatSomeThreadsNeverReach) {
  std::vector<uint64_t> memory(1);
  const std::string body = "setp.eq.u32 %p1, %r2, 3; @%p1 ret;\nbar.sync 0;";
  EXPECT_EQ(RunBody(Text(body), &memory, 0, {8, 1, 1}).wrong,
            "k: block 0,0,0 thread 0 line 10: a barrier that thread 3 never reaches");
}

TEST(PtxChecks, ThreadsAtDifferentBarriers) {
  std::vector<uint64_t> memory(1);
  const std::string body = "setp.eq.u32 %p1, %r2, 3; @%p1 bra $A;\nbar.sync 0; bra $B;\n$A: bar.sync 0;\n$B: ";
  EXPECT_EQ(RunBody(Text(body), &memory, 0, {8, 1, 1}).wrong,
            "k: block 0,0,0 thread 3 line 11: waits at another barrier than thread 0");
}

TEST(PtxChecks, LanesThatNeverCome) {
  std::vector<uint64_t> memory(1);
  const std::string body = "setp.eq.u32 %p1, %r2, 3; @%p1 ret;\nshfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;";
  EXPECT_EQ(RunBody(Text(body), &memory).wrong, "k: block 0,0,0 thread 0 line 10: waits for lanes that never come");
}

TEST(PtxChecks, LaneOutsideOfTheMask) {
  std::vector<uint64_t> memory(1);
  const std::string body = "setp.gt.u32 %p1, %r2, 15; @%p1 ret;\nshfl.sync.bfly.b32 %r3, %r2, 16, 31, 0xFFFF;";
  EXPECT_THAT(RunBody(Text(body), &memory).wrong, ::testing::HasSubstr("takes from lane 16, which is not in the mask"));
}

TEST(PtxChecks, TrapsAndWhatIsNotEmulatedAreNamed) {
  std::vector<uint64_t> memory(1);
  EXPECT_EQ(RunBody(Text("trap;"), &memory, 0, {1, 1, 1}).wrong, "k: block 0,0,0 thread 0 line 9: trap");
  EXPECT_EQ(RunBody(Text("frobnicate.b32 %r3, %r2;"), &memory).wrong,
            "ptx: k line 9: not emulated: frobnicate.b32 %r3, %r2");
  EXPECT_EQ(RunBody(Text("bra $nowhere;"), &memory).wrong, "ptx: k: there is no label $nowhere");
}

TEST(PtxChecks, LaunchesAreWithinLimits) {
  std::vector<uint64_t> memory(1);
  EXPECT_EQ(RunBody(Text(""), &memory, 0, {1025, 1, 1}).wrong, "k: 1025 threads in a block");
  EXPECT_EQ(RunBody(Text(""), &memory, 0, {1, 1, 1}, {1, 70000, 1}).wrong, "k: a grid of 1,70000,1");
}

TEST(PtxChecks, CoverageCountsInstructions) {
  std::vector<uint64_t> memory(1);
  const Outcome outcome =
      RunBody(Text("setp.eq.u32 %p1, %r1, 3;\n@%p1 bra $A;\nmov.u32 %r3, 1;\n$A: "), &memory, 3, {2, 1, 1});
  ASSERT_EQ(outcome.wrong, "");
  for (size_t i = 0; i < outcome.lines.size(); ++i) {
    const bool is_run = outcome.lines[i] != 11;
    EXPECT_EQ(outcome.coverage.run_count[i], is_run ? 2u : 0u) << "line " << outcome.lines[i];
  }
}

TEST(PtxChecks, OrderOfWarpsIsTheSeeds) {
  // The last writer of a word of global memory: what no kernel may depend on shows in some seed.
  auto module = Parse(Text("shr.u32 %r3, %r2, 5; st.global.u32 [%rd1], %r3;"));
  ASSERT_TRUE(module.ok());
  std::array<bool, 2> seen = {};
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    uint64_t word = 9;
    const Parameters given = {reinterpret_cast<uint64_t>(&word), 0};
    const auto place = [](uint64_t address, int, AccessKind) { return reinterpret_cast<std::byte*>(address); };
    ASSERT_EQ(ptx::Run(module->kernels.at("k"), {reinterpret_cast<const std::byte*>(&given), 12},
                       {.block = {64, 1, 1}, .memory = place, .seed = seed}),
              "");
    seen[word] = true;
  }
  EXPECT_TRUE(seen[0] && seen[1]);
}

TEST(PtxChecks, LanesGoTogetherOnlyWhereTheKernelSaysSo) {
  // Each lane writes a word and reads that of the lane 16 behind, with nothing between: in some seed it is too early.
  auto module = Parse(Text(StrCat(kOwnPlace,
                                  "st.global.u64 [%rd2], 1; add.u32 %r3, %r2, 16; and.b32 %r3, %r3, 31;\n"
                                  "mul.wide.u32 %rd5, %r3, 8; add.s64 %rd6, %rd1, %rd5; ld.global.u64 %rd7, [%rd6];\n"
                                  "st.global.u64 [%rd2+256], %rd7;")));
  ASSERT_TRUE(module.ok());
  std::array<bool, 2> is_seen = {};
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::vector<uint64_t> memory(64);
    const Parameters given = {reinterpret_cast<uint64_t>(memory.data()), 0};
    const auto place = [](uint64_t address, int, AccessKind) { return reinterpret_cast<std::byte*>(address); };
    ASSERT_EQ(ptx::Run(module->kernels.at("k"), {reinterpret_cast<const std::byte*>(&given), 12},
                       {.block = {32, 1, 1}, .memory = place, .seed = seed}),
              "");
    is_seen[std::accumulate(memory.begin() + 32, memory.end(), uint64_t{0}) == 32 ? 1 : 0] = true;
  }
  EXPECT_TRUE(is_seen[0] && is_seen[1]);
}

// ---- blocks that look at each other

// A chain of blocks: each adds 1 to what the one before wrote. %r5 is its place in the chain.
std::string Chain(std::string_view place) {
  return Text(StrCat(place, R"(
mul.wide.u32 %rd3, %r5, 8; add.s64 %rd2, %rd1, %rd3;
setp.eq.u32 %p1, %r5, 0; mov.u64 %rd4, 1; @%p1 bra FIRST;
WAIT: ld.acquire.gpu.global.u64 %rd4, [%rd2]; setp.eq.u64 %p2, %rd4, 0; @%p2 bra WAIT;
FIRST: add.u64 %rd5, %rd4, 1; st.release.gpu.global.u64 [%rd2+8], %rd5;)"));
}

TEST(Blocks, ATicketOrdersThemHoweverTheyStart) {
  std::vector<uint64_t> memory(102);
  const Outcome outcome = RunBody(Chain("atom.global.add.u32 %r5, [%rd1+808], 1;"), &memory, 0, {1, 1, 1}, {100, 1, 1});
  EXPECT_EQ(outcome.wrong, "");
  EXPECT_EQ(memory[100], 101u);
}

TEST(Blocks, TheOrderOfTheirNumbersIsNoneThatTheyStartIn) {
  std::vector<uint64_t> memory(102);
  const Outcome outcome = RunBody(Chain("mov.u32 %r5, %ctaid.x;"), &memory, 0, {1, 1, 1}, {100, 1, 1});
  EXPECT_THAT(outcome.wrong, ::testing::HasSubstr("resident blocks wait for blocks that never start"));
}

TEST(Blocks, AWordThatNobodyWrites) {
  std::vector<uint64_t> memory(4);
  const Outcome outcome = RunBody(Chain("mov.u32 %r5, 1;"), &memory, 0, {1, 1, 1}, {2, 1, 1});
  EXPECT_THAT(outcome.wrong, ::testing::HasSubstr("2 resident blocks wait for each other"));
}

}  // namespace
}  // namespace tessera::ptx
