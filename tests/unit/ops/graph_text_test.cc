// Texts of graphs: what is written is read as the same call, what comes from outside is refused in words, and a call
// of the row has the specs that its ops have one by one.

#include "schemas/ops/graph_text.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

OpCall GraphCall(std::string notation) {
  OpCall call{kGraphOp, {}, {}};
  call.attributes.Set(attribute::notation, std::move(notation));
  return call;
}

absl::StatusOr<OpResolution> ResolveGraph(std::string notation, const std::vector<std::string>& operands) {
  std::vector<OperandSpec> specs;
  for (const std::string& text : operands) specs.emplace_back(*ParseTensorSpec(text));
  return ResolveOp(GraphCall(std::move(notation)), specs);
}

std::vector<GraphLine> LinesOfAllKinds() {
  std::vector<GraphLine> lines;
  GraphLine& sum = lines.emplace_back(GraphLine{{OpId::kSum, {}, {}}, {0}});
  sum.call.attributes.Set(attribute::dims, {0, 2});
  sum.call.attributes.Set(attribute::keepdims, true);
  GraphLine& slice = lines.emplace_back(GraphLine{{OpId::kSlice, {}, {}}, {1}});
  slice.call.attributes.Set(attribute::index, {{IndexItem::Kind::kSlice, 7, 4, -2},
                                               {IndexItem::Kind::kNewAxis, 0, 1, 1},
                                               {IndexItem::Kind::kInteger, 3, 1, 1},
                                               {IndexItem::Kind::kSlice, 0, 0, 1}});
  GraphLine& full = lines.emplace_back(GraphLine{{OpId::kFull, {}, {Scalar::Float(-0.0)}}, {}});
  full.call.attributes.Set(attribute::shape, {2, 3});
  full.call.attributes.Set(attribute::dtype, DType::kBF16);
  full.call.attributes.Set(attribute::mesh, ParseTensorSpec("f32[2] @ mesh(x:2,y:2) [R, R]")->mesh);
  full.call.attributes.Set(attribute::placements, {Placement::Shard(1), Placement::Partial(ReduceOp::kMax)});
  GraphLine& einsum = lines.emplace_back(GraphLine{{OpId::kEinsum, {}, {}}, {0, 1}});
  einsum.call.attributes.Set(attribute::notation, "bij,bjk->bik");
  GraphLine& variance = lines.emplace_back(GraphLine{{OpId::kVar, {}, {}}, {2}});
  variance.call.attributes.Set(attribute::correction, 0.1);
  lines.push_back({{OpId::kAdd, {}, {}}, {3, Scalar::Int(3, ScalarStrength::kStrong)}});
  lines.push_back({{OpId::kMul, {}, {}}, {Scalar::Float(0.1).As(DType::kF32), 3}});
  lines.push_back({{OpId::kMul, {}, {}}, {Scalar::Complex({1.5, -0.0}), 3}});
  lines.push_back({{OpId::kMaximum, {}, {}}, {3, Scalar::Float(-std::numeric_limits<double>::infinity())}});
  lines.push_back({{OpId::kMaximum, {}, {}}, {3, Scalar::Float(std::numeric_limits<double>::quiet_NaN())}});
  lines.push_back({{OpId::kLogicalAnd, {}, {}}, {3, Scalar::Bool(true)}});
  return lines;
}

TEST(GraphText, AWrittenLineIsReadAsTheSameCall) {
  const std::vector<GraphLine> lines = LinesOfAllKinds();
  std::string text;
  for (const GraphLine& line : lines) text += WriteGraphLine(line).value();
  const absl::StatusOr<GraphText> read = ParseGraphText(text + WriteGraphOutputs({4, 0}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->outputs, std::vector<int>({4, 0}));
  ASSERT_EQ(read->lines.size(), lines.size());
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(read->lines[i], lines[i]) << *WriteGraphLine(lines[i]);
}

TEST(GraphText, ATextWithAMarkInItIsNotWritten) {
  for (const char* bad : {"a|b", "a\nb"}) {
    GraphLine line{{OpId::kSum, {}, {}}, {0}};
    line.call.attributes.Set(attribute::mode, bad);
    EXPECT_EQ(WriteGraphLine(line), std::nullopt) << bad;
  }
}

TEST(GraphText, ResultsHaveTheSpecsThatTheOpsHaveOneByOne) {
  const std::string notation = "multiply|%0|$2\nsum|%2|@dims=[1]\nadd|%2|%1\nreturn|%4|%3";
  const auto graph = ResolveGraph(notation, {"f32[4,6] @ mesh(2) [S(1)]", "f64[6] @ mesh(2) [S(0)]"});
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(graph->outputs.size(), 2u);
  EXPECT_EQ(ToText(graph->outputs[0]), "f64[4,6] @ mesh(2) [S(1)]");
  EXPECT_EQ(ToText(graph->outputs[1]), "f32[4] @ mesh(2) [P(sum)]");
  EXPECT_EQ(graph->graph->nodes.size(), 3u);
}

TEST(GraphText, WhatIsWrongInItIsRefusedInWords) {
  const auto said = [](std::string notation) {
    return std::string(StdView(ResolveGraph(std::move(notation), {"f32[4] @ mesh(2) [R]"}).status().message()));
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "doesn't end with"},
      {"exp|%0\n", "doesn't end with"},
      {"return", "no results"},
      {"return|%1", "value 1, a result, is not there"},
      {"exp|%1\nreturn|%1", "value 1 is not there yet"},
      {"exp|%-1\nreturn|%1", "no value: %-1"},
      {"exp|%0x\nreturn|%1", "no value: %0x"},
      {"exp|%99999999999\nreturn|%1", "no value"},
      {"exp||%0\nreturn|%1", "no value: "},
      {"nothing|%0\nreturn|%1", "unknown op \"nothing\""},
      {"graph|%0|@notation=return\nreturn|%1", "a graph within a graph"},
      {"sum|%0|@dims=[0]|@dims=[0]\nreturn|%1", "dims is given twice"},
      {"sum|%0|@size=[0]\nreturn|%1", "unknown attribute"},
      {"slice|%0|@index=[0+4*0]\nreturn|%1", "index is not [0+4*0]"},
      {"slice|%0|@index=0+4\nreturn|%1", "index is not 0+4"},
      {"exp|%0\nreturn|%1\nexp|%0", "goes on behind"},
      {"add|%0|$x\nreturn|%1", "not a number"},
      {"full|#1|@shape=[2]|@dtype=f32|@mesh=mesh(2; workers=5,6)|@placements=[R]\nreturn|%1",
       "on a mesh that is not the call's"},
      {"sum|%0|@dims=[3]\nreturn|%1", "graph: "},
  };
  for (const auto& [notation, why] : cases) {
    EXPECT_NE(said(notation).find(why), std::string::npos) << notation << "\n" << said(notation);
  }
}

TEST(GraphText, LengthsHaveLimits) {
  std::string lines;
  for (size_t i = 0; i <= kMaxGraphLines; ++i) lines += "exp|%0\n";
  EXPECT_NE(std::string(StdView(ParseGraphText(lines + "return|%1").status().message())).find("max_graph_lines"),
            std::string::npos);
  const std::string long_text(kMaxGraphTextBytes + 1, 'x');
  EXPECT_NE(std::string(StdView(ParseGraphText(long_text).status().message())).find("max_graph_text_bytes"),
            std::string::npos);
  const auto said_of = [](size_t count, const std::string& line) {
    std::string many;
    for (size_t i = 0; i < count; ++i) many += line + "\n";
    return std::string(StdView(ResolveGraph(many + "return|%1", {"f32[4,4] @ mesh(2) [R]"}).status().message()));
  };
  EXPECT_EQ(said_of(kMaxGraphNodes, "exp|%0"), "");
  EXPECT_NE(said_of(kMaxGraphNodes + 1, "exp|%0").find("max_graph_nodes"), std::string::npos);
  EXPECT_NE(said_of(1000, "gelu|%0").find("max_graph_nodes"), std::string::npos) << "each is made of others";
  const size_t steps = kMaxGraphWeight / kGraphWeightOfStep;
  EXPECT_EQ(said_of(steps, "cumulative_sum|%0|@dims=[0]"), "");
  EXPECT_NE(said_of(steps + 1, "cumulative_sum|%0|@dims=[0]").find("max_graph_weight"), std::string::npos);
  EXPECT_NE(said_of(300, "layer_norm|%0").find("max_graph_weight"), std::string::npos) << "each is made of others";
}

}  // namespace
}  // namespace tessera
