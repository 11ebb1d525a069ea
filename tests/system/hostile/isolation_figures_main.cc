// tessera-isolation-figures: how long a tenant waits for the answer to a record that names what another tenant has, and
// to the same record for what isn't there, as JSON. tests/bench/hostile_figures.py runs it.
//
//   tessera-isolation-figures bazel-bin
//
// Each record has the medians of both in microseconds, and `told_apart`: the probability that an answer for what is
// there takes longer than one for what isn't (the area under the ROC curve, by Mann and Whitney's U; ties count half).
// 0.5 tells nothing.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "schemas/types/str_cat.h"
#include "tests/system/hostile/isolation_cases.h"

namespace tessera {
namespace {

constexpr int kRounds = 300, kWarmups = 20;

struct Times {
  std::string what;
  std::vector<double> foreign_us, absent_us;
};

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double ToldApart(const Times& times) {
  double above = 0;
  for (const double a : times.foreign_us) {
    for (const double b : times.absent_us) above += a > b ? 1 : a == b ? 0.5 : 0;
  }
  return above / static_cast<double>(times.foreign_us.size() * times.absent_us.size());
}

class Figures : private WireClient {
 public:
  explicit Figures(const std::string& binaries) {
    const std::string path = folder_ + "/tenants.toml";
    std::ofstream(path) << kTenants << kTokensOfTenants;
    ClusterOptions options;
    options.workers = 2;
    options.memory_bytes = 16 << 20;
    options.binary_dir = binaries;
    options.coordinator_flags = {"--tenants=" + path};
    auto cluster = LocalCluster::Start(options);
    if (!cluster.ok()) ThrowIfError(cluster.status());
    cluster_ = std::make_unique<LocalCluster>(*std::move(cluster));
    UseAddress(cluster_->address());
    token_ = "a-token";
    owner_ = std::make_unique<Opened>(Open());
    Submit(*owner_, kOwnedRecords, FillOwned);
    for (int i = 0; i < 500 && owner_->client->tickets.empty(); ++i) Pause(10);
    if (owner_->client->tickets.empty()) ThrowIfError(absl::DeadlineExceededError("the owner's upload has no ticket"));
    token_ = "b-token";
  }
  ~Figures() { std::filesystem::remove_all(folder_); }

  std::vector<Times> Measure() {
    std::vector<Times> all;
    const size_t numbers = RecordCases(1, 1).size(), names = NameCases(1).size();
    for (size_t i = 0; i < numbers + names; ++i) all.push_back(MeasureCase(i, numbers));
    return all;
  }

 private:
  // In a session of its own: events that nobody acknowledges are kept for it, as far as a limit.
  Times MeasureCase(size_t number, size_t records) {
    Times times;
    other_ = std::make_unique<Opened>(Open());
    Submit(*other_, 1,
           [](unsigned, wire::Record::Builder record) { Full(record, kMine, *Mesh::Make({2}, {}, {}), Shape{8}); });
    const uint64_t ticket = owner_->client->tickets[0].first;
    for (int round = 0; round < kRounds + kWarmups; ++round) {
      const bool foreign_first = random_() % 2 == 0;
      for (const bool is_foreign : {foreign_first, !foreign_first}) {
        double us = 0;
        if (number < records) {
          const RecordCase one = RecordCases(ticket, ++next_result_)[number];
          times.what = one.what;
          us = AnsweredUs([&](wire::Record::Builder record) { one.fill(record, is_foreign ? one.foreign : kAbsent); });
        } else {
          const NameCase one = NameCases(++next_result_)[number - records];
          times.what = one.what;
          us = AnsweredUs(
              [&](wire::Record::Builder record) { one.fill(record, is_foreign ? one.foreign : one.absent); });
        }
        if (round >= kWarmups) (is_foreign ? times.foreign_us : times.absent_us).push_back(us);
      }
    }
    return times;
  }

  // Until the answer to a watch of no handle behind the record, which comes in its turn. A session that ended throws.
  double AnsweredUs(const std::function<void(wire::Record::Builder)>& fill) {
    const auto began = std::chrono::steady_clock::now();
    const uint64_t request = ++next_result_;
    Submit(*other_, 2, [&](unsigned i, wire::Record::Builder record) {
      i == 0 ? fill(record) : record.initWatch().setRequest(request);
    });
    while (other_->client->settled != request) {
      ThrowIfError(other_->client->ended);
      io_.waitScope.poll();
    }
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count();
  }

  const std::string folder_ = [] {
    std::string made = std::filesystem::temp_directory_path() / "tessera-isolation-XXXXXX";
    if (mkdtemp(made.data()) == nullptr) ThrowIfError(absl::UnavailableError(made));
    return made;
  }();
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Opened> owner_, other_;
  uint64_t next_result_ = 10'000;
  std::mt19937 random_;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 2) {
    std::fprintf(stderr, "tessera-isolation-figures FOLDER: that of the binaries\n");
    return 2;
  }
  const std::vector<Times> all = Figures(argv[1]).Measure();
  std::printf("{");
  for (size_t i = 0; i < all.size(); ++i) {
    std::printf("%s\"%s\": {\"there_us\": %.1f, \"absent_us\": %.1f, \"told_apart\": %.3f}", i == 0 ? "" : ", ",
                all[i].what.c_str(), MedianOf(all[i].foreign_us), MedianOf(all[i].absent_us), ToldApart(all[i]));
  }
  std::printf("}\n");
  return 0;
}
