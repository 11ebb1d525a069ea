#include "server/plan/verify_elements.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Worlds up to this many written elements are checked element by element.
constexpr int64_t kSmallWorldElements = 1 << 10;

bool IsSmallWorld(const TensorSpec& to) { return MaxShardElements(to) <= kSmallWorldElements / to.mesh.size(); }

template <typename... Ts>
absl::Status Wrong(const Ts&... pieces) {
  return absl::InternalError(StrCat(pieces...));
}

// Calls `visit(at)` with the places in the destination's shard, whose strides these are, that a transfer writes.
void ForEachElement(const Transfer& transfer, const Strides& strides, absl::FunctionRef<void(size_t)> visit) {
  const Shape piece = BoxShape(transfer.box);
  for (int64_t i = 0; i < NumElements(piece); ++i) {
    int64_t rest = i;
    int64_t at = 0;
    for (size_t d = piece.size(); d-- > 0; rest /= piece[d]) {
      at += (transfer.destination_offset[d] + rest % piece[d]) * strides[d];
    }
    visit(static_cast<size_t>(at));
  }
}

// The shards of a value, each element with the terms (positions that had them) which are reduced in it.
struct FollowedElement {
  std::set<int64_t> terms;
  size_t written_in = 0;  // the last round, from 1 on
};
using FollowedShards = std::vector<std::vector<FollowedElement>>;

// One round. `given` gets what is taken from the value itself: position and element.
absl::Status Follow(const Exchange& exchange, size_t round, FollowedShards& shards,
                    std::set<std::pair<size_t, size_t>>& given) {
  const Pieces pieces(exchange);
  const FollowedShards before = shards;
  for (size_t flat = 0; flat < shards.size(); ++flat) {
    const Position position = exchange.destination.mesh.PositionAt(static_cast<int64_t>(flat));
    const Strides strides = RowMajorStrides(BoxShape(LocalBox(exchange.destination, position)));
    for (const Transfer& transfer : pieces.ForReceiver(position)) {
      bool is_right = true;
      ForEachElement(transfer, strides, [&](size_t at) {
        std::set<int64_t> terms;
        size_t taken = 0;
        const auto take = [&](const std::set<int64_t>& more) {
          taken += more.size();
          terms.insert(more.begin(), more.end());
        };
        for (const TransferSource& source : transfer.sources) {
          const size_t giver = static_cast<size_t>(source.flat_position);
          if (exchange.is_in_place()) {
            take(before[giver][at].terms);
            if (giver != flat) given.emplace(giver, at);
          } else if (source.added_up.empty()) {
            take({source.flat_position});
          } else {
            take({source.added_up.begin(), source.added_up.end()});
          }
        }
        FollowedElement& element = shards[flat][at];
        is_right = is_right && taken > 0 && terms.size() == taken && element.written_in != round;
        element = {std::move(terms), round};
      });
      if (!is_right)
        return Wrong(ToText(transfer.box), " of position ", flat, " is taken or reduced twice, or not there");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRoundElements(const std::vector<const Exchange*>& exchanges) {
  const TensorSpec& to = exchanges[0]->destination;
  if (!IsSmallWorld(to)) return absl::OkStatus();
  FollowedShards shards;
  for (int64_t flat = 0; flat < to.mesh.size(); ++flat) {
    shards.emplace_back(static_cast<size_t>(NumElements(LocalBox(to, to.mesh.PositionAt(flat)))));
  }
  for (size_t round = 1; round <= exchanges.size(); ++round) {
    std::set<std::pair<size_t, size_t>> given;
    if (absl::Status status = Follow(*exchanges[round - 1], round, shards, given); !status.ok()) return status;
    for (const auto& [flat, at] : given) {
      if (shards[flat][at].written_in != round) continue;
      return Wrong("element ", at, " of position ", flat, " is written while it is read");
    }
  }
  const size_t terms = static_cast<size_t>(PendingTerms(exchanges[0]->source, to));
  for (size_t flat = 0; flat < shards.size(); ++flat) {
    for (size_t i = 0; i < shards[flat].size(); ++i) {
      const size_t has = shards[flat][i].terms.size();
      if (has != terms) return Wrong("element ", i, " of position ", flat, " has ", has, " of ", terms, " terms");
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
