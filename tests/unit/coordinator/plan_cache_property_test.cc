#include "server/coordinator/plan_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"

namespace tessera {
namespace {

PlanKey KeyOf(double eps, double rtol) {
  PlanKey key;
  PlanKeyCall& call = key.calls.emplace_back();
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::eps, eps);
  call.attributes.Set(attribute::rtol, rtol);
  return key;
}

PlanTemplate TemplateOf(uint64_t id) {
  PlanTemplate made;
  made.id = TemplateId(id);
  made.plan = std::make_shared<const Plan>();
  made.workers = std::make_shared<const std::vector<WorkerIndex>>(2);
  return made;
}

// Other seeds by --gtest_shuffle (tools/fuzz --attributes). The model: which doubles, by their bits, have which plan,
// the most recent first.
TEST(PlanCachePropertyTest, KeysOfAnyDoublesAreFoundAndEvictedByTheirBits) {
  using Limits = std::numeric_limits<double>;
  constexpr std::array kDoubles = {0.0,
                                   -0.0,
                                   1e-5,
                                   -1e-5,
                                   Limits::infinity(),
                                   -Limits::infinity(),
                                   Limits::denorm_min(),
                                   -Limits::denorm_min(),
                                   Limits::min(),
                                   Limits::max(),
                                   Limits::quiet_NaN(),
                                   -Limits::quiet_NaN(),
                                   std::bit_cast<double>(uint64_t{0x7ff8000000000001}),   // a NaN with a payload
                                   std::bit_cast<double>(uint64_t{0x7ff4000000000000})};  // one that signals
  using Bits = std::pair<uint64_t, uint64_t>;
  constexpr size_t kMaxPlans = 20;
  PlanCache cache(kMaxPlans, int64_t{1} << 30);
  std::list<std::pair<Bits, uint64_t>> model;
  const int seed = 1 + ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const auto any = [&]() { return kDoubles[random() % kDoubles.size()]; };
  for (uint64_t id = 1; id <= 20000; ++id) {
    const double eps = any();
    const double rtol = any();
    const Bits bits{std::bit_cast<uint64_t>(eps), std::bit_cast<uint64_t>(rtol)};
    PlanKey key = KeyOf(eps, rtol);
    const auto known = std::find_if(model.begin(), model.end(), [&](const auto& each) { return each.first == bits; });
    const PlanTemplate* found = cache.Find(key);
    ASSERT_EQ(found != nullptr, known != model.end()) << "eps " << eps << ", rtol " << rtol << ", step " << id;
    std::vector<PlanTemplate> evicted;
    if (found != nullptr) {
      ASSERT_EQ(found->id, TemplateId(known->second));
      model.splice(model.begin(), model, known);
    } else {
      cache.Insert(std::move(key), TemplateOf(id), evicted);
      model.emplace_front(bits, id);
    }
    std::vector<uint64_t> gone;
    if (model.size() > kMaxPlans) {
      gone.push_back(model.back().second);
      model.pop_back();
    }
    ASSERT_EQ(evicted.size(), gone.size());
    for (size_t i = 0; i < gone.size(); ++i) ASSERT_EQ(evicted[i].id, TemplateId(gone[i]));
    ASSERT_EQ(cache.size(), model.size());
  }
}

}  // namespace
}  // namespace tessera
