#pragma once

// CollectiveKind: torch.distributed's collectives, which the members of a process group call. docs/ranks.md has what
// each takes and gives.
//
//   ToText(CollectiveKind::kAllReduce) == "all_reduce"

#include <cstdint>
#include <string_view>

namespace tessera {

// The numbers are on the wire: append only.
enum class CollectiveKind : uint8_t {
  kAllReduce = 0,
  kReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kGather = 4,
  kScatter = 5,
  kReduceScatter = 6,
  kAllToAll = 7,
  kBarrier = 8,
  kSend = 9,
  kRecv = 10,
};
inline constexpr CollectiveKind kLastCollectiveKind = CollectiveKind::kRecv;

constexpr std::string_view ToText(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "all_reduce";
    case CollectiveKind::kReduce: return "reduce";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kGather: return "gather";
    case CollectiveKind::kScatter: return "scatter";
    case CollectiveKind::kReduceScatter: return "reduce_scatter";
    case CollectiveKind::kAllToAll: return "all_to_all";
    case CollectiveKind::kBarrier: return "barrier";
    case CollectiveKind::kSend: return "send";
    case CollectiveKind::kRecv: return "recv";
  }
  return "unknown collective";
}

// Whether two members alone are in it, matched by their ranks and a tag; all others are matched by their number.
constexpr bool IsPointToPoint(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
}
constexpr bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter;
}
constexpr bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kReduce || kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kScatter;
}

// A recv of whatever rank sends first.
inline constexpr int32_t kAnySource = -1;

}  // namespace tessera
