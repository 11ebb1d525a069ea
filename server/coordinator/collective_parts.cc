#include "server/coordinator/collective_parts.h"

#include <numeric>

namespace tessera {
namespace {

std::vector<int32_t> AllOf(int64_t ranks) {
  std::vector<int32_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

CollectiveParts PartsOf(const CollectiveSignature& signature, int64_t ranks) {
  const int64_t e = signature.elements;
  const Placement copies = Placement::Replicate(), shards = Placement::Shard(0);
  const Placement terms = Placement::Partial(signature.op);
  const std::vector<int32_t> all = AllOf(ranks), root = {signature.root};
  switch (signature.kind) {
    case CollectiveKind::kAllReduce: return {all, all, {e}, terms, copies};
    case CollectiveKind::kReduce: return {all, root, {e}, terms, copies};
    case CollectiveKind::kBroadcast: {
      std::vector<int32_t> others = all;
      std::erase(others, signature.root);
      return {root, others, {e}, copies, copies};
    }
    case CollectiveKind::kAllGather: return {all, all, {ranks, e}, shards, copies};
    case CollectiveKind::kGather: return {all, root, {ranks, e}, shards, copies};
    case CollectiveKind::kScatter: return {root, all, {ranks, e}, copies, shards};
    case CollectiveKind::kReduceScatter: return {all, all, {ranks, e}, terms, shards};
    case CollectiveKind::kAllToAll: return {all, all, {ranks, ranks, e}, shards, Placement::Shard(1)};
    default: return {};
  }
}

CollectiveParts PartsOfMessage(const CollectiveSignature& signature, int32_t source, int32_t destination) {
  return {{source}, {destination}, {signature.elements}, Placement::Replicate(), Placement::Replicate()};
}

}  // namespace tessera
