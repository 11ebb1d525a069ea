// CheckPieces accepts what planners make, and finds each way in which what receivers take, what senders give and the
// totals may differ, on few workers and on 4,096.

#include "server/plan/movement/piece_check.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "tests/property/planner/host_worlds.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

using Visit = absl::FunctionRef<void(const Piece&)>;

// The views of an exchange with something changed; a change that is not given changes nothing.
struct Change {
  std::function<void(const Piece&, Visit)> taken = {};
  std::function<void(const Piece&, Visit)> given = {};
  std::function<int64_t(WorkerIndex)> received = {};  // elements more
  std::function<int64_t(WorkerIndex)> sent = {};
};

class ChangedViews : public PieceViews {
 public:
  ChangedViews(const PieceViews& real, Change change) : real_(real), change_(std::move(change)) {}

  void VisitTaken(int64_t destination, Visit visit) const override {
    real_.VisitTaken(destination,
                     [&](const Piece& piece) { change_.taken ? change_.taken(piece, visit) : visit(piece); });
  }
  void VisitGiven(WorkerIndex worker, Visit visit) const override {
    real_.VisitGiven(worker, [&](const Piece& piece) { change_.given ? change_.given(piece, visit) : visit(piece); });
  }
  void VisitTotals(absl::FunctionRef<void(WorkerIndex, int64_t)> received,
                   absl::FunctionRef<void(WorkerIndex, int64_t)> sent) const override {
    real_.VisitTotals(received, sent);
    for (int32_t worker = 0; worker < kMaxWorkers; ++worker) {
      const WorkerIndex index(worker);
      if (change_.received && change_.received(index) != 0) received(index, change_.received(index));
      if (change_.sent && change_.sent(index) != 0) sent(index, change_.sent(index));
    }
  }

  bool HasQuickTotals() const override { return real_.HasQuickTotals(); }

 private:
  static constexpr int32_t kMaxWorkers = 4096;
  const PieceViews& real_;
  const Change change_;
};

struct World {
  std::string shape;
  std::string source;
  std::string destination;
  int64_t workers = 4096;
  int64_t workers_of_a_host = 4096;
};

std::ostream& operator<<(std::ostream& out, const World& world) {
  return out << world.shape << " " << world.source << " -> " << world.destination << ", " << world.workers_of_a_host
             << " on a host";
}

std::vector<Exchange> ExchangesOf(const World& world) {
  std::vector<int32_t> hosts;
  for (int64_t worker = 0; worker < world.workers; ++worker) {
    hosts.push_back(static_cast<int32_t>(worker / world.workers_of_a_host));
  }
  const Plan plan =
      PlanOf(StrCat(world.shape, " @ ", world.source), StrCat(world.shape, " @ ", world.destination), hosts);
  std::vector<Exchange> exchanges;
  for (const Step& step : plan.steps) exchanges.push_back(std::get<ExchangeStep>(step).exchange);
  return exchanges;
}

// With a change of exchange `changed`.
absl::Status Check(const std::vector<Exchange>& exchanges, size_t changed, const Change& change) {
  std::deque<Pieces> pieces;
  std::deque<ChangedViews> views;
  std::vector<ExchangeViews> all;
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const PieceViews& real = pieces.emplace_back(exchanges[i]);
    all.push_back({&exchanges[i], &views.emplace_back(real, i == changed ? change : Change())});
  }
  return CheckPieces(all);
}

// The first and the last position, if they take something of others.
std::vector<int64_t> EndsThatTake(const Exchange& exchange) {
  const Pieces pieces(exchange);
  std::vector<int64_t> ends;
  for (const int64_t flat : {int64_t{0}, exchange.destination.mesh.size() - 1}) {
    const WorkerIndex self = exchange.destination.mesh.workers()[static_cast<size_t>(flat)];
    bool takes = false;
    pieces.VisitTaken(flat, [&](const Piece& piece) { takes = takes || piece.sources[0].worker != self; });
    if (takes) ends.push_back(flat);
  }
  return ends;
}

// A position that has not what `flat` takes of another one first. On few workers, where each sender is looked at, any
// other one.
std::optional<int64_t> AnotherGiver(const Exchange& exchange, int64_t flat) {
  const TensorSpec& spec = exchange.is_in_place() ? exchange.destination : exchange.source;
  const WorkerIndex self = exchange.destination.mesh.workers()[static_cast<size_t>(flat)];
  std::optional<int64_t> right;
  Pieces(exchange).VisitTaken(flat, [&](const Piece& piece) {
    if (!right.has_value() && piece.sources[0].worker != self) right = piece.sources[0].flat_position;
  });
  for (int64_t other = 0; other < spec.mesh.size(); ++other) {
    const Box box = LocalBox(spec, spec.mesh.PositionAt(other));
    const bool is_few = spec.mesh.size() < 64 && other != flat && other != *right;
    if (is_few || box != LocalBox(spec, spec.mesh.PositionAt(*right))) return other;
  }
  return std::nullopt;
}

class PieceWorlds : public testing::TestWithParam<World> {
 protected:
  void ExpectFound(size_t changed, const Change& change, const std::string& what) {
    const absl::Status status = Check(exchanges_, changed, change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << what << " in exchange " << changed;
  }
  const std::vector<Exchange> exchanges_ = ExchangesOf(GetParam());
};

TEST_P(PieceWorlds, Agree) {
  const absl::Status status = Check(exchanges_, 0, {});
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(PieceWorlds, WrongReceiversAreFound) {
  for (size_t i = 0; i < exchanges_.size(); ++i) {
    const Mesh& givers = exchanges_[i].is_in_place() ? exchanges_[i].destination.mesh : exchanges_[i].source.mesh;
    for (const int64_t flat : EndsThatTake(exchanges_[i])) {
      const WorkerIndex self = exchanges_[i].destination.mesh.workers()[static_cast<size_t>(flat)];
      // Changes the position's first piece that comes from elsewhere.
      const auto change = [&](const std::function<void(Piece, Visit)>& changed) {
        return Change{.taken = [=, is_done = std::make_shared<bool>(false)](const Piece& piece, Visit visit) {
          if (piece.taker != flat || *is_done || piece.sources[0].worker == self) return visit(piece);
          *is_done = true;
          changed(piece, visit);
        }};
      };
      ExpectFound(i, change([](Piece, Visit) {}), "a piece that is not taken");
      ExpectFound(i, change([](const Piece& piece, Visit visit) { visit(piece), visit(piece); }),
                  "a piece taken twice");
      ExpectFound(i, change([](Piece piece, Visit visit) { --piece.high, visit(piece); }),
                  "an element that is missing");
      ExpectFound(i, change([](Piece piece, Visit visit) { ++piece.high, visit(piece); }), "an element too many");
      ExpectFound(i, change([](Piece piece, Visit visit) { ++piece.cell, visit(piece); }), "another cell");
      const std::optional<int64_t> other = AnotherGiver(exchanges_[i], flat);
      if (other.has_value()) {
        ExpectFound(i, change([&](Piece piece, Visit visit) {
                      std::vector<TransferSource> sources(piece.sources.begin(), piece.sources.end());
                      sources[0] = {givers.workers()[static_cast<size_t>(*other)], *other, {}};
                      piece.sources = sources;
                      visit(piece);
                    }),
                    "another giver");
      }
      ExpectFound(i, change([&](Piece piece, Visit visit) {
                    piece.sources = piece.sources.subspan(1);
                    visit(piece);
                  }),
                  "a term that is missing");
      ExpectFound(i, change([&](Piece piece, Visit visit) {
                    std::vector<TransferSource> sources(piece.sources.begin(), piece.sources.end());
                    sources.push_back(sources[0]);
                    piece.sources = sources;
                    visit(piece);
                  }),
                  "a term that comes twice");
    }
  }
}

TEST_P(PieceWorlds, WrongSendersAreFound) {
  for (size_t i = 0; i < exchanges_.size(); ++i) {
    if (EndsThatTake(exchanges_[i]).empty()) continue;
    const auto change = [](const std::function<void(Piece, Visit)>& changed) {
      return Change{.given = [=](const Piece& piece, Visit visit) { changed(piece, visit); }};
    };
    const int64_t takers = exchanges_[i].destination.mesh.size();
    ExpectFound(i, change([](Piece, Visit) {}), "nothing is given");
    ExpectFound(i, change([](const Piece& piece, Visit visit) { visit(piece), visit(piece); }), "all is given twice");
    ExpectFound(i, change([](Piece piece, Visit visit) { ++piece.low, visit(piece); }), "an element too few");
    ExpectFound(i, change([](Piece piece, Visit visit) { ++piece.cell, visit(piece); }), "other cells");
    // A spread to all alike differs at takers that are not looked at.
    if (exchanges_[i].is_in_place() && takers == 4096) continue;
    ExpectFound(i, change([=](Piece piece, Visit visit) {
                  piece.taker = (piece.taker + 1) % takers;
                  visit(piece);
                }),
                "another taker");
  }
}

TEST_P(PieceWorlds, WrongTotalsAreFound) {
  for (size_t i = 0; i < exchanges_.size(); ++i) {
    if (GetParam().workers == 4096 && !Pieces(exchanges_[i]).HasQuickTotals()) continue;
    const WorkerIndex first = exchanges_[i].destination.mesh.workers()[0];
    const auto one = [=](WorkerIndex worker) { return worker == first ? int64_t{1} : int64_t{0}; };
    ExpectFound(i, {.received = one}, "an element more is received");
    ExpectFound(i, {.sent = one}, "an element more is sent");
    const bool adds_up = exchanges_[i].reduces() && exchanges_[i].hosts.several();
    if (!adds_up) ExpectFound(i, {.received = one, .sent = one}, "an element more is received, and sent");
  }
}

INSTANTIATE_TEST_SUITE_P(Few, PieceWorlds,
                         testing::Values(World{"f32[24,10]", "mesh(2,3) [S(0), S(1)]", "mesh(2,3) [S(1), S(0)]", 6, 6},
                                         World{"f32[24,10]", "mesh(2,3) [R, S(1)]", "mesh(2,3) [S(0), R]", 6, 6},
                                         World{"f32[24,10]", "mesh(6) [P(sum)]", "mesh(6) [R]", 6, 6},
                                         World{"f32[24,10]", "mesh(2,3) [P(sum), S(0)]", "mesh(2,3) [S(1), R]", 6, 6},
                                         World{"f32[24,10]", "mesh(6) [S(0)]", "mesh(6) [R]", 6, 2},
                                         World{"f32[24,10]", "mesh(6) [P(sum)]", "mesh(6) [R]", 6, 2},
                                         World{"f32[24,10]", "mesh(2,3) [P(sum), S(0)]", "mesh(2,3) [R, S(0)]", 6, 3}));
INSTANTIATE_TEST_SUITE_P(
    Many, PieceWorlds,
    testing::Values(World{"f32[65536,49152]", "mesh(64,64) [S(0), S(1)]", "mesh(64,64) [S(1), S(0)]"},
                    World{"f32[65537,4999]", "mesh(64,64) [S(0), S(0)]", "mesh(64,64) [S(1), S(1)]"},
                    World{"f32[65537,4999]", "mesh(64,64) [R, S(0)]", "mesh(64,64) [S(1), S(0)]"},
                    World{"f32[65537,4999]", "mesh(64,64) [P(sum), P(sum)]", "mesh(64,64) [R, R]"},
                    World{"f32[65537,4999]", "mesh(64,64) [P(sum), S(0)]", "mesh(64,64) [S(1), R]"},
                    World{"f32[65537,4999]", "mesh(64,64) [S(0), R]", "mesh(64,64) [R, S(1)]", 4096, 8},
                    World{"f32[65537,4999]", "mesh(64,64) [S(0), P(sum)]", "mesh(64,64) [S(0), R]", 4096, 8}));

}  // namespace
}  // namespace tessera
