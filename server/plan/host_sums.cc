#include "server/plan/host_sums.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace tessera {
namespace {

constexpr size_t kExactHosts = 8;

bool IsOn(const std::vector<TermHolder>& holders, int32_t host) {
  return std::any_of(holders.begin(), holders.end(), [host](const TermHolder& h) { return h.host == host; });
}

// The terms that are not on `host`, each as the set of hosts that have it, and those hosts.
struct FarTerms {
  std::vector<int32_t> hosts;          // increasing
  std::vector<size_t> terms;           // numbers
  std::vector<std::vector<bool>> has;  // by far term, by host
};

FarTerms FarFrom(const TermHolders& holders, int32_t host) {
  FarTerms far;
  for (size_t term = 0; term < holders.size(); ++term) {
    if (IsOn(holders[term], host)) continue;
    far.terms.push_back(term);
    for (const TermHolder& holder : holders[term]) far.hosts.push_back(holder.host);
  }
  std::sort(far.hosts.begin(), far.hosts.end());
  far.hosts.erase(std::unique(far.hosts.begin(), far.hosts.end()), far.hosts.end());
  for (const size_t term : far.terms) {
    std::vector<bool>& has = far.has.emplace_back(far.hosts.size(), false);
    for (const TermHolder& holder : holders[term]) {
      has[static_cast<size_t>(std::lower_bound(far.hosts.begin(), far.hosts.end(), holder.host) - far.hosts.begin())] =
          true;
    }
  }
  return far;
}

// The first of the smallest sets of hosts (as bits) that have all terms.
std::vector<bool> SmallestCover(const FarTerms& far) {
  const size_t count = far.hosts.size();
  std::vector<uint32_t> terms;
  for (const std::vector<bool>& has : far.has) {
    uint32_t bits = 0;
    for (size_t h = 0; h < count; ++h) bits |= has[h] ? uint32_t{1} << h : 0;
    terms.push_back(bits);
  }
  std::sort(terms.begin(), terms.end());
  terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
  uint32_t best = (uint32_t{1} << count) - 1;
  for (uint32_t set = 0; set < best; ++set) {
    if (std::popcount(set) >= std::popcount(best)) continue;
    if (std::all_of(terms.begin(), terms.end(), [set](uint32_t term) { return (term & set) != 0; })) best = set;
  }
  std::vector<bool> chosen(count);
  for (size_t h = 0; h < count; ++h) chosen[h] = ((best >> h) & 1) != 0;
  return chosen;
}

std::vector<bool> GreedyCover(const FarTerms& far) {
  std::vector<bool> chosen(far.hosts.size(), false);
  std::vector<bool> covered(far.has.size(), false);
  for (size_t left = far.has.size(); left > 0;) {
    std::vector<size_t> counts(far.hosts.size(), 0);
    for (size_t t = 0; t < far.has.size(); ++t) {
      for (size_t h = 0; !covered[t] && h < counts.size(); ++h) counts[h] += far.has[t][h] ? 1 : 0;
    }
    const size_t most = static_cast<size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
    chosen[most] = true;
    for (size_t t = 0; t < far.has.size(); ++t) {
      if (covered[t] || !far.has[t][most]) continue;
      covered[t] = true;
      --left;
    }
  }
  return chosen;
}

// The fewest hosts that have all terms.
std::vector<bool> SendingHosts(const FarTerms& far) {
  std::vector<bool> sends(far.hosts.size(), false);
  for (const std::vector<bool>& has : far.has) {
    if (std::count(has.begin(), has.end(), true) > 1) continue;
    sends[static_cast<size_t>(std::find(has.begin(), has.end(), true) - has.begin())] = true;
  }
  FarTerms open;  // those that the only holders of others don't have
  open.hosts = far.hosts;
  for (const std::vector<bool>& has : far.has) {
    bool is_given = false;
    for (size_t h = 0; h < has.size(); ++h) is_given = is_given || (has[h] && sends[h]);
    if (!is_given) open.has.push_back(has);
  }
  if (open.has.empty()) return sends;
  const std::vector<bool> more = open.hosts.size() <= kExactHosts ? SmallestCover(open) : GreedyCover(open);
  for (size_t h = 0; h < sends.size(); ++h) sends[h] = sends[h] || more[h];
  return sends;
}

std::vector<int64_t> HoldersOn(const std::vector<TermHolder>& holders, int32_t host) {
  std::vector<int64_t> flats;
  for (const TermHolder& holder : holders) {
    if (holder.host == host) flats.push_back(holder.flat);
  }
  return flats;
}

}  // namespace

int64_t CountSendingHosts(const TermHolders& holders, int32_t host) {
  const std::vector<bool> sends = SendingHosts(FarFrom(holders, host));
  return std::count(sends.begin(), sends.end(), true);
}

HostSums::HostSums(const TermHolders& holders, int32_t host, int64_t length) {
  for (const std::vector<TermHolder>& term : holders) {
    if (!IsOn(term, host)) continue;
    near_.holders.push_back(HoldersOn(term, host));
    AddLine(near_.holders.back().size(), length);
  }
  const FarTerms far = FarFrom(holders, host);
  const std::vector<bool> sends = SendingHosts(far);
  std::vector<bool> is_given(far.terms.size(), false);
  for (size_t h = 0; h < far.hosts.size(); ++h) {
    if (!sends[h]) continue;
    FromHost& from = far_.emplace_back();
    for (size_t t = 0; t < far.terms.size(); ++t) {
      if (is_given[t] || !far.has[t][h]) continue;
      is_given[t] = true;
      std::vector<int64_t>& on_host = from.holders.emplace_back(HoldersOn(holders[far.terms[t]], far.hosts[h]));
      from.packers.insert(from.packers.end(), on_host.begin(), on_host.end());
    }
    std::sort(from.packers.begin(), from.packers.end());
    AddLine(from.packers.size(), length);
  }
}

void HostSums::AddLine(size_t givers, int64_t length) {
  const auto has_givers = [givers](const SharedLine& line) { return line.givers().size() == givers; };
  if (givers < 2 || std::any_of(lines_.begin(), lines_.end(), has_givers)) return;
  std::vector<int64_t> numbers(givers);
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  lines_.emplace_back(std::move(numbers), length);
}

void HostSums::Visit(int64_t start, absl::Span<const int64_t> shape, int64_t low, int64_t high, int64_t own_flat,
                     absl::FunctionRef<void(int64_t, int64_t, absl::Span<const GivenTerms>)> visit) const {
  // By line: the ends of its parts and who has each.
  struct Part {
    int64_t high = 0;
    size_t giver = 0;
  };
  std::vector<std::vector<Part>> parts(lines_.size());
  for (size_t i = 0; i < lines_.size(); ++i) {
    lines_[i].Visit(start, shape, low, high, [&](int64_t giver, int64_t, int64_t part_high) {
      parts[i].push_back({part_high, static_cast<size_t>(giver)});
    });
  }
  std::vector<size_t> at(lines_.size(), 0);
  const auto giver_of = [&](size_t givers) -> size_t {
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i].givers().size() == givers) return parts[i][at[i]].giver;
    }
    return 0;
  };
  std::vector<GivenTerms> given;
  for (int64_t from = low; from < high;) {
    int64_t to = high;
    for (size_t i = 0; i < parts.size(); ++i) to = std::min(to, parts[i][at[i]].high);
    given.clear();
    for (const std::vector<int64_t>& holders : near_.holders) {
      const bool is_own = std::find(holders.begin(), holders.end(), own_flat) != holders.end();
      const int64_t giver = is_own ? own_flat : holders[giver_of(holders.size())];
      given.push_back({giver, {giver}});
    }
    for (const FromHost& host : far_) {
      const size_t number = giver_of(host.packers.size());
      GivenTerms& sum = given.emplace_back(GivenTerms{host.packers[number], {}});
      for (const std::vector<int64_t>& holders : host.holders) {
        const bool is_own = std::find(holders.begin(), holders.end(), sum.giver) != holders.end();
        sum.terms.push_back(is_own ? sum.giver : holders[number % holders.size()]);
      }
    }
    visit(from, to, given);
    from = to;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (at[i] + 1 < parts[i].size() && parts[i][at[i]].high <= from) ++at[i];
    }
  }
}

}  // namespace tessera
