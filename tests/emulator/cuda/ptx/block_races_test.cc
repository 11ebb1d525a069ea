// Races between blocks: each kind is found, in whatever order the blocks run, and no protocol that orders them is taken
// for one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/ptx/block_order.h"
#include "tests/emulator/cuda/ptx/ptx.h"
#include "tests/emulator/cuda/ptx/small_kernel.h"

namespace tessera::ptx {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint32_t kSeeds = 20;

// Runs a kernel of some blocks, which begins with %r3, its block, and gives the fault of each seed; one text for all
// that are the same.
std::vector<std::string> WrongOf(std::string_view body, uint32_t blocks = 2, uint32_t threads = 1) {
  std::vector<std::string> all;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::vector<uint64_t> memory(8192);
    const std::string text = Text(StrCat("mov.u32 %r3, %ctaid.x;\n", body));
    all.push_back(RunBody(text, &memory, 0, {threads, 1, 1}, {blocks, 1, 1}, seed).wrong);
  }
  return all;
}
void ExpectNoRace(std::string_view body, uint32_t blocks = 2, uint32_t threads = 1) {
  EXPECT_THAT(WrongOf(body, blocks, threads), ::testing::Each(""));
}
template <typename M>
void ExpectRace(std::string_view body, const M& race, uint32_t blocks = 2, uint32_t threads = 1) {
  EXPECT_THAT(WrongOf(body, blocks, threads), ::testing::Each(AllOf(StartsWith("k: block "), race)));
}
const auto kReadAfterWrite = AllOf(HasSubstr("race: plain read of byte "), HasSubstr(" after a plain write by block "));

// %rd2: the block's 8 bytes, %rd4 those of the block after it.
constexpr std::string_view kBlocksPlace =
    "mul.wide.u32 %rd3, %r3, 8; add.s64 %rd2, %rd1, %rd3; add.s64 %rd4, %rd2, 8;\n";

// ---- plain accesses

TEST(BlockRaces, ErrorNamesKernelBlocksAccessesAndTheByte) {
  std::vector<uint64_t> memory(4);
  const std::string text = Text("mov.u32 %r3, %ctaid.x;\nst.global.u64 [%rd1+8], %rd1;");
  const std::string wrong = RunBody(text, &memory, 0, {1, 1, 1}, {2, 1, 1}).wrong;
  const auto race = [&](int block, int other) {
    return StrCat("k: block ", block, ",0,0 thread 0 line 10: race: plain write of byte ",
                  reinterpret_cast<uint64_t>(memory.data() + 1), " of global memory after a plain write by block ",
                  other, ",0,0, with no release and acquire between");
  };
  EXPECT_THAT(wrong, AnyOf(race(0, 1), race(1, 0)));
}

TEST(BlockRaces, ABlockHasItsPlaceInTheGrid) {
  std::vector<uint64_t> memory(1);
  const std::string text = Text("mov.u32 %r3, %ctaid.z; setp.eq.u32 %p1, %r3, 1; @%p1 st.global.u64 [%rd1], %rd1;");
  const std::string wrong = RunBody(text, &memory, 0, {1, 1, 1}, {2, 1, 2}).wrong;
  EXPECT_THAT(wrong, AnyOf(AllOf(StartsWith("k: block 0,0,1 "), HasSubstr("by block 1,0,1,")),
                           AllOf(StartsWith("k: block 1,0,1 "), HasSubstr("by block 0,0,1,"))));
}

TEST(BlockRaces, ReadAndWriteOfOneByteAreARaceInEitherOrder) {
  const std::vector<std::string> wrong =
      WrongOf(StrCat(kBlocksPlace, "st.global.u64 [%rd2], %rd1; ld.global.u64 %rd5, [%rd4];"));
  EXPECT_THAT(wrong, ::testing::Contains(kReadAfterWrite));
  EXPECT_THAT(wrong, ::testing::Contains(
                         AllOf(HasSubstr("race: plain write of byte "), HasSubstr(" after a plain read by block "))));
  EXPECT_THAT(wrong, ::testing::Each(HasSubstr("race: ")));
}

TEST(BlockRaces, TheSameValueWrittenTwiceIsARace) {
  ExpectRace("st.global.u64 [%rd1], 7;", HasSubstr("plain write of byte "));
}

TEST(BlockRaces, WriteOfWhatSeveralBlocksReadIsARace) {
  // The atomic lets other blocks have their turn.
  const std::string_view body =
      "ld.global.u64 %rd5, [%rd1]; setp.eq.u32 %p1, %r3, 0; red.global.add.u32 [%rd1+8], 1;\n"
      "@%p1 st.global.u64 [%rd1], %rd5;";
  ExpectRace(body, AnyOf(HasSubstr("plain write"), HasSubstr("plain read")), 4);
  EXPECT_THAT(WrongOf(body, 4), ::testing::Contains(HasSubstr("after a plain read by several blocks")));
}

TEST(BlockRaces, BlocksReadWhatNobodyWritesAndWriteWhatIsTheirs) {
  ExpectNoRace(StrCat(kBlocksPlace,
                      "ld.global.u64 %rd5, [%rd1+64]; st.global.u64 [%rd2], %rd5;\n"
                      "ld.global.u64 %rd6, [%rd2]; add.u64 %rd6, %rd6, 1; st.global.u64 [%rd2], %rd6;"),
               8);
}

TEST(BlockRaces, BytesSideBySideAreNoRaceAndOneByteIs) {
  ExpectRace("st.global.u8 [%rd1+1], 1;", HasSubstr("plain write of byte "));
  ExpectNoRace("cvt.u64.u32 %rd3, %r3; add.s64 %rd2, %rd1, %rd3; st.global.u8 [%rd2], 1;", 16);
}

// A warp's row of 32 vectors over the end of a page of cells, and its first vector alone.
TEST(BlockRaces, RowsOfAWarpAreLookedAtWhole) {
  const auto body = [](int distance) {
    return StrCat("mul.lo.u32 %r4, %r3, ", distance, "; mad.lo.u32 %r4, %r2, 16, %r4; cvt.u64.u32 %rd3, %r4;\n",
                  "add.s64 %rd2, %rd1, %rd3; st.global.v4.u32 [%rd2], {%r3, %r3, %r3, %r3};");
  };
  ExpectNoRace(body(512), 40, 32);
  ExpectRace(body(496), HasSubstr("plain write of byte "), 40, 32);
}

TEST(BlockRaces, ARowGoesOverTheEndOfAPage) {
  // A page has 1,024 vectors; block 0 writes 16 before its end and 16 behind, block 1 one of these.
  ExpectRace(
      "add.s64 %rd2, %rd1, 16383; and.b64 %rd2, %rd2, -16384; add.s64 %rd2, %rd2, 16128;\n"
      "mad.lo.u32 %r4, %r3, 384, 0; setp.eq.u32 %p1, %r3, 0; mul.lo.u32 %r5, %r2, 16; @%p1 add.u32 %r4, %r4, %r5;\n"
      "cvt.u64.u32 %rd3, %r4; add.s64 %rd2, %rd2, %rd3; setp.eq.u32 %p2, %r2, 0; or.pred %p1, %p1, %p2;\n"
      "@%p1 st.global.v4.u32 [%rd2], {%r3, %r3, %r3, %r3};",
      HasSubstr("plain write of byte "), 2, 32);
}

TEST(BlockRaces, LaunchesAreOrdered) {
  auto module =
      Parse(Text("mov.u32 %r3, %ctaid.x; add.u32 %r3, %r3, %r1; and.b32 %r3, %r3, 3;\n"
                 "mul.wide.u32 %rd3, %r3, 8; add.s64 %rd2, %rd1, %rd3; st.global.u64 [%rd2], %rd1;"));
  ASSERT_TRUE(module.ok());
  std::vector<uint64_t> memory(4);
  const auto place = [](uint64_t address, int, AccessKind) { return reinterpret_cast<std::byte*>(address); };
  for (uint32_t launch = 0; launch < 8; ++launch) {
    const Parameters given = {reinterpret_cast<uint64_t>(memory.data()), launch};
    EXPECT_EQ(ptx::Run(module->kernels.at("k"), {reinterpret_cast<const std::byte*>(&given), 12},
                       {.grid = {4, 1, 1}, .memory = place, .seed = launch}),
              "");
  }
}

// ---- a word that hands on

// The first block writes 8 bytes and then the flag, the other one waits for the flag and reads them.
std::string Pass(std::string_view store, std::string_view load, std::string_view before_store = "",
                 std::string_view after_load = "") {
  return StrCat("atom.global.add.u32 %r5, [%rd1+16], 1; setp.ne.u32 %p1, %r5, 0; @%p1 bra SECOND;\n",
                "st.global.u64 [%rd1], 5; ", before_store, "\n", store, " [%rd1+8], 1; bra DONE;\n", "SECOND: ", load,
                " %rd4, [%rd1+8]; setp.eq.u64 %p2, %rd4, 0; @%p2 bra SECOND;\n", after_load,
                " ld.global.u64 %rd5, [%rd1]; st.global.u64 [%rd1+24], %rd5;\nDONE:");
}

TEST(BlockRaces, AcquireOfAReleaseOrders) {
  ExpectNoRace(Pass("st.release.gpu.global.u64", "ld.acquire.gpu.global.u64"));
  ExpectNoRace(Pass("st.release.sys.global.u64", "ld.acquire.sys.u64"));
  ExpectNoRace(Pass("red.release.gpu.global.add.u64", "ld.acquire.gpu.global.u64"));
}

TEST(BlockRaces, FencesBesideStrongAccessesOrder) {
  for (const std::string_view fence : {"fence.acq_rel.gpu;", "fence.sc.sys;", "membar.gl;", "membar.sys;"}) {
    ExpectNoRace(Pass("st.relaxed.gpu.global.u64", "ld.relaxed.gpu.global.u64", fence, fence));
    ExpectNoRace(Pass("st.volatile.global.u64", "ld.volatile.global.u64", fence, fence));
    ExpectNoRace(Pass("red.global.add.u64", "ld.acquire.gpu.global.u64", fence));
  }
}

TEST(BlockRaces, AFlagWithoutAFenceOrdersNothing) {
  ExpectRace(Pass("st.relaxed.gpu.global.u64", "ld.relaxed.gpu.global.u64"), kReadAfterWrite);
  ExpectRace(Pass("st.volatile.global.u64", "ld.volatile.global.u64"), kReadAfterWrite);
  ExpectRace(Pass("st.release.gpu.global.u64", "ld.relaxed.gpu.global.u64"), kReadAfterWrite);
  ExpectRace(Pass("st.relaxed.gpu.global.u64", "ld.acquire.gpu.global.u64"), kReadAfterWrite);
  ExpectRace(Pass("st.relaxed.gpu.global.u64", "ld.relaxed.gpu.global.u64", "fence.acq_rel.gpu;"), kReadAfterWrite);
  ExpectRace(Pass("st.relaxed.gpu.global.u64", "ld.relaxed.gpu.global.u64", "", "fence.acq_rel.gpu;"), kReadAfterWrite);
}

TEST(BlockRaces, TheScopeOfABlockOrdersNoBlocks) {
  ExpectRace(Pass("st.relaxed.gpu.global.u64", "ld.acquire.gpu.global.u64", "fence.acq_rel.cta;"), kReadAfterWrite);
  ExpectRace(Pass("st.relaxed.gpu.global.u64", "ld.acquire.gpu.global.u64", "membar.cta;"), kReadAfterWrite);
  // Then the flag itself is a race.
  ExpectRace(Pass("st.release.cta.global.u64", "ld.acquire.gpu.global.u64"),
             AnyOf(AllOf(HasSubstr("strong read of byte "), HasSubstr("after a plain write")),
                   AllOf(HasSubstr("plain write of byte "), HasSubstr("after a strong read"))));
  ExpectRace(Pass("st.release.gpu.global.u64", "ld.acquire.cta.global.u64"),
             AnyOf(AllOf(HasSubstr("plain read of byte "), HasSubstr("after a strong write")),
                   AllOf(HasSubstr("strong write of byte "), HasSubstr("after a plain read"))));
}

TEST(BlockRaces, AReleaseHandsOnWhatCameBeforeIt) {
  // A word that is written behind the fence, or behind the release.
  ExpectRace(
      Pass("st.relaxed.gpu.global.u64", "ld.acquire.gpu.global.u64", "fence.acq_rel.gpu; st.global.u64 [%rd1], 6;"),
      kReadAfterWrite);
  ExpectRace(Pass("st.release.gpu.global.u64 [%rd1+8], 1; st.global.u64 [%rd1], 6; st.relaxed.gpu.global.u64",
                  "ld.acquire.gpu.global.u64"),
             AnyOf(kReadAfterWrite, HasSubstr("plain write of byte ")));
}

TEST(BlockRaces, AFlagThatIsReadPlainlyIsARace) {
  ExpectRace("setp.eq.u32 %p1, %r3, 0; @%p1 st.release.gpu.global.u64 [%rd1+8], 1; ld.global.u64 %rd4, [%rd1+8];",
             AnyOf(HasSubstr("race: plain read"), HasSubstr("race: strong write")));
}

TEST(BlockRaces, KnowledgeIsHandedOnFromBlockToBlock) {
  // A chain by tickets: the last block reads what the first one wrote.
  ExpectNoRace(
      "atom.global.add.u32 %r5, [%rd1+808], 1; mul.wide.u32 %rd3, %r5, 8; add.s64 %rd2, %rd1, %rd3;\n"
      "setp.eq.u32 %p1, %r5, 0; @%p1 st.global.u64 [%rd1+816], 9; @%p1 bra FIRST;\n"
      "WAIT: ld.acquire.gpu.global.u64 %rd4, [%rd2]; setp.eq.u64 %p2, %rd4, 0; @%p2 bra WAIT;\n"
      "FIRST: st.release.gpu.global.u64 [%rd2+8], 1; setp.eq.u32 %p3, %r5, 19; @%p3 ld.global.u64 %rd5, [%rd1+816];",
      20);
}

// The first block hands on by the flag, the second one changes the flag, the third one sees the change alone.
std::string PassOn(std::string_view change) {
  return StrCat(
      "atom.global.add.u32 %r5, [%rd1+16], 1; setp.eq.u32 %p1, %r5, 1; @%p1 bra SECOND; setp.eq.u32 %p1, %r5, 2;\n"
      "@%p1 bra THIRD;\nst.global.u64 [%rd1], 5; st.release.gpu.global.u64 [%rd1+8], 1; bra DONE;\n"
      "SECOND: ld.relaxed.gpu.global.u64 %rd4, [%rd1+8]; setp.ne.u64 %p2, %rd4, 1; @%p2 bra SECOND;\n",
      change,
      " bra DONE;\nTHIRD: ld.acquire.gpu.global.u64 %rd4, [%rd1+8]; setp.ne.u64 %p2, %rd4, 2; @%p2 bra THIRD;\n"
      "ld.global.u64 %rd5, [%rd1];\nDONE:");
}
TEST(BlockRaces, AnAtomicHandsOnWhatItFoundAndAStoreDoesNot) {
  ExpectNoRace(PassOn("atom.relaxed.gpu.global.add.u64 %rd6, [%rd1+8], 1;"), 3);
  // The third block may see the first one's store, too, before the second one's.
  EXPECT_THAT(WrongOf(PassOn("st.relaxed.gpu.global.u64 [%rd1+8], 2;"), 3), ::testing::Contains(kReadAfterWrite));
}

// ---- atomics

TEST(BlockRaces, AtomicsAreNoRaceAmongEachOther) {
  ExpectNoRace(
      "atom.global.add.u32 %r5, [%rd1], 1; red.global.max.u32 [%rd1], 4; ld.relaxed.gpu.global.u32 %r6, [%rd1];", 5,
      32);
}

TEST(BlockRaces, AtomicsBesidePlainAccessesAreARace) {
  ExpectRace("red.global.add.u32 [%rd1], 1; ld.global.u32 %r5, [%rd1];",
             AnyOf(HasSubstr("plain read"), HasSubstr("strong atomic")), 3);
  ExpectRace("ld.global.u32 %r5, [%rd1]; red.global.add.u32 [%rd1], 1;",
             AnyOf(HasSubstr("plain read"), HasSubstr("strong atomic")), 3);
  ExpectRace("setp.eq.u32 %p1, %r3, 0; @%p1 st.global.u32 [%rd1], 0; atom.global.add.u32 %r5, [%rd1], 1;",
             AnyOf(HasSubstr("plain write"), HasSubstr("strong atomic")), 3);
  ExpectRace("setp.eq.u32 %p1, %r3, 0; @%p1 st.global.u32 [%rd1], 0; ld.relaxed.gpu.global.u32 %r5, [%rd1];",
             AnyOf(HasSubstr("plain write"), HasSubstr("strong read")), 3);
}

TEST(BlockRaces, AtomicsInTheScopeOfABlockAreARace) {
  ExpectRace("atom.cta.global.add.u32 %r5, [%rd1], 1;", HasSubstr("race: plain atomic of byte "));
}

// ---- blocks of several warps

// Each thread writes its 8 bytes; the block that counts as the last one reads all.
std::string LastBlock(std::string_view before_count, std::string_view after_count) {
  return StrCat("mov.u32 %r6, %ntid.x; mad.lo.u32 %r4, %r3, %r6, %r2; mul.wide.u32 %rd3, %r4, 8;\n",
                ".shared .align 4 .b8 last[4];\nadd.s64 %rd2, %rd1, %rd3; st.global.u64 [%rd2+64], 1;\n", before_count,
                "\nsetp.ne.u32 %p1, %r2, 0; @%p1 bra OTHERS; atom.global.add.u32 %r5, [%rd1], 1;\n",
                "st.shared.u32 [last], %r5;\nOTHERS: ", after_count,
                "\nld.shared.u32 %r5, [last]; setp.ne.u32 %p2, %r5, 2; @%p2 bra DONE;\n",
                "add.s64 %rd4, %rd1, 64; mov.u32 %r7, 0;\nNEXT: ld.global.u64 %rd5, [%rd4]; add.s64 %rd4, %rd4, 8;\n",
                "add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 192; @%p3 bra NEXT;\nDONE:");
}
TEST(BlockRaces, TheLastBlockMayReadWhatAllWrote) {
  ExpectNoRace(LastBlock("fence.acq_rel.gpu; bar.sync 0; fence.acq_rel.gpu;", "fence.acq_rel.gpu; bar.sync 0;"), 3, 64);
}
TEST(BlockRaces, TheLastBlockNeedsAFenceBehindItsCount) {
  ExpectRace(LastBlock("bar.sync 0; fence.acq_rel.gpu;", "bar.sync 0;"), kReadAfterWrite, 3, 64);
}
TEST(BlockRaces, TheLastBlockNeedsAFenceBeforeItsCount) {
  ExpectRace(LastBlock("bar.sync 0;", "fence.acq_rel.gpu; bar.sync 0;"), kReadAfterWrite, 3, 64);
}
TEST(BlockRaces, AReleaseWithoutABarrierHandsOnItsOwnWarpAlone) {
  const std::string body = LastBlock("bar.warp.sync -1; fence.acq_rel.gpu;", "fence.acq_rel.gpu; bar.sync 0;");
  ExpectNoRace(body, 3, 32);
  ExpectRace(body, kReadAfterWrite, 3, 64);
}
TEST(BlockRaces, AnAcquireIsItsOwnWarpsUntilABarrier) {
  const auto body = [](std::string_view between) {
    return StrCat(
        "atom.global.add.u32 %r5, [%rd1+16], 1; and.b32 %r6, %r3, 1; setp.eq.u32 %p1, %r6, 1; @%p1 bra SECOND;\n",
        "setp.ne.u32 %p2, %r2, 0; @%p2 bra DONE;\nst.global.u64 [%rd1], 5; st.release.gpu.global.u64 [%rd1+8], "
        "1;\nbra DONE;\nSECOND: setp.ne.u32 %p2, %r2, 0; @%p2 bra READ;\n",
        "WAIT: ld.acquire.gpu.global.u64 %rd4, [%rd1+8]; setp.eq.u64 %p3, %rd4, 0; @%p3 bra WAIT;\nREAD: ", between,
        " ld.global.u64 %rd5, [%rd1];\nDONE:");
  };
  ExpectNoRace(body("bar.sync 0;"), 2, 64);
  ExpectRace(body(""), AnyOf(kReadAfterWrite, HasSubstr("after a plain read by block ")), 2, 64);
}

TEST(BlockOrder, AReleaseHandsOnItsOwnWarpAndItsBlockUpToTheBarrier) {
  Moments moments(1);
  BlockOrder order(2, &moments);
  order.Begin(7);
  const uint32_t before = order.Now(1);
  order.Barrier();
  const uint32_t own = order.Now(0), others = order.Now(1);
  const Known released = order.Release(0);
  EXPECT_TRUE(released->Has(moments.Of(before)));
  EXPECT_TRUE(released->Has(moments.Of(own)));
  EXPECT_FALSE(released->Has(moments.Of(others)));
  EXPECT_FALSE(released->Has(moments.Of(order.Now(0))));
  // Another block in its place has passed no barrier.
  order.Begin(8);
  const uint32_t of_next = order.Now(1);
  EXPECT_FALSE(order.Release(0)->Has(moments.Of(of_next)));
}

// All blocks read a word, count, and wait for each other; then the first one writes it.
std::string GridBarrier(std::string_view count, std::string_view load) {
  return StrCat("ld.global.u64 %rd5, [%rd1];\n", count, " [%rd1+8], 1;\nWAIT: ", load,
                " %r6, [%rd1+8]; setp.lt.u32 %p1, %r6, 2; @%p1 bra WAIT;\n",
                "setp.eq.u32 %p2, %r3, 0; @%p2 st.global.u64 [%rd1], 1;");
}
TEST(BlockRaces, ABarrierOfTheGridOrdersAllThatRead) {
  ExpectNoRace(GridBarrier("red.release.gpu.global.add.u32", "ld.acquire.gpu.global.u32"));
  ExpectRace(GridBarrier("red.global.add.u32", "ld.acquire.gpu.global.u32"),
             AnyOf(HasSubstr("after a plain read by block "), kReadAfterWrite));
}

}  // namespace
}  // namespace tessera::ptx
