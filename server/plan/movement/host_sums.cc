#include "server/plan/movement/host_sums.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

namespace tessera {
namespace {

constexpr size_t kExactHosts = 8;

// Terms, each as the numbers of the hosts that have it, increasing.
using HostsOfTerms = std::vector<std::vector<size_t>>;

bool Has(const std::vector<size_t>& hosts, size_t host) { return std::binary_search(hosts.begin(), hosts.end(), host); }

// The first of the smallest sets of hosts (as bits of numbers in `hosts`) that have all terms.
std::vector<size_t> SmallestCover(const HostsOfTerms& terms, const std::vector<size_t>& hosts) {
  std::vector<uint32_t> sets;
  for (const std::vector<size_t>& term : terms) {
    uint32_t bits = 0;
    for (size_t h = 0; h < hosts.size(); ++h) bits |= Has(term, hosts[h]) ? uint32_t{1} << h : 0;
    sets.push_back(bits);
  }
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  const uint32_t all = (uint32_t{1} << hosts.size()) - 1;
  uint32_t best = all;
  for (uint32_t set = 0; set < all; ++set) {
    if (std::popcount(set) >= std::popcount(best)) continue;
    if (std::all_of(sets.begin(), sets.end(), [set](uint32_t term) { return (term & set) != 0; })) best = set;
  }
  std::vector<size_t> chosen;
  for (size_t h = 0; h < hosts.size(); ++h) {
    if (((best >> h) & 1) != 0) chosen.push_back(hosts[h]);
  }
  return chosen;
}

std::vector<size_t> GreedyCover(const HostsOfTerms& terms, size_t host_count) {
  std::vector<size_t> chosen;
  std::vector<size_t> counts(host_count, 0);  // of terms that are not covered
  for (const std::vector<size_t>& term : terms) {
    for (const size_t host : term) ++counts[host];
  }
  std::vector<bool> covered(terms.size(), false);
  for (size_t left = terms.size(); left > 0;) {
    const size_t most = static_cast<size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
    chosen.push_back(most);
    for (size_t t = 0; t < terms.size(); ++t) {
      if (covered[t] || !Has(terms[t], most)) continue;
      covered[t] = true;
      --left;
      for (const size_t host : terms[t]) --counts[host];
    }
  }
  return chosen;
}

// The fewest hosts that have all of some terms, increasing.
std::vector<size_t> SendingHosts(const HostsOfTerms& terms, size_t host_count) {
  std::vector<size_t> sends;
  std::vector<bool> has_some(host_count, false);
  for (const std::vector<size_t>& term : terms) {
    for (const size_t host : term) has_some[host] = true;
    if (term.size() == 1) sends.push_back(term[0]);
  }
  const auto sort = [&] {
    std::sort(sends.begin(), sends.end());
    sends.erase(std::unique(sends.begin(), sends.end()), sends.end());
  };
  sort();
  HostsOfTerms open;  // those that the only holders of others don't have
  for (const std::vector<size_t>& term : terms) {
    if (std::none_of(term.begin(), term.end(), [&](size_t host) { return Has(sends, host); })) open.push_back(term);
  }
  if (open.empty()) return sends;
  std::vector<size_t> hosts;
  for (size_t host = 0; host < host_count; ++host) {
    if (has_some[host]) hosts.push_back(host);
  }
  const std::vector<size_t> more =
      hosts.size() <= kExactHosts ? SmallestCover(open, hosts) : GreedyCover(open, host_count);
  sends.insert(sends.end(), more.begin(), more.end());
  sort();
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

TermsByHost::TermsByHost(TermHolders holders) {
  std::map<int32_t, HostTerms> hosts;
  for (const std::vector<TermHolder>& term : holders) {
    for (const TermHolder& holder : term) {
      HostTerms& has = hosts[holder.host];
      has.host = holder.host;
    }
  }
  are_apart_ = std::all_of(holders.begin(), holders.end(), [](const std::vector<TermHolder>& term) {
    return std::all_of(term.begin(), term.end(), [&](const TermHolder& h) { return h.host == term[0].host; });
  });
  for (const std::vector<TermHolder>& term : holders) {
    if (!are_apart_) break;
    HostTerms& has = hosts.at(term[0].host);
    has.holders.push_back(HoldersOn(term, has.host));
    has.packers.insert(has.packers.end(), has.holders.back().begin(), has.holders.back().end());
  }
  for (auto& [host, has] : hosts) {
    std::sort(has.packers.begin(), has.packers.end());
    hosts_.push_back(std::move(has));
  }
  if (are_apart_) return;
  terms_of_hosts_.resize(hosts_.size());
  for (const std::vector<TermHolder>& term : holders) {
    std::vector<size_t>& on = hosts_of_terms_.emplace_back();
    for (const TermHolder& holder : term) on.push_back(static_cast<size_t>(Find(holder.host) - hosts_.data()));
    std::sort(on.begin(), on.end());
    on.erase(std::unique(on.begin(), on.end()), on.end());
    for (const size_t host : on) terms_of_hosts_[host].push_back(hosts_of_terms_.size() - 1);
  }
  holders_ = std::move(holders);
}

const std::vector<size_t>& TermsByHost::TermsOn(int32_t host) const {
  static const std::vector<size_t>* const kNone = new std::vector<size_t>();
  const HostTerms* const found = Find(host);
  return found == nullptr ? *kNone : terms_of_hosts_[static_cast<size_t>(found - hosts_.data())];
}

const std::vector<HostTerms>& TermsByHost::SendersOfOthers(const std::vector<size_t>& near) const {
  const auto [at, is_new] = senders_.try_emplace(near);
  std::vector<HostTerms>& senders = at->second;  // stays where it is
  if (!is_new) return senders;
  std::vector<size_t> terms;
  HostsOfTerms hosts_of_terms;
  for (size_t term = 0; term < holders_.size(); ++term) {
    if (Has(near, term)) continue;
    terms.push_back(term);
    hosts_of_terms.push_back(hosts_of_terms_[term]);
  }
  std::vector<bool> is_given(terms.size(), false);
  for (const size_t host : SendingHosts(hosts_of_terms, hosts_.size())) {
    HostTerms& from = senders.emplace_back();
    from.host = hosts_[host].host;
    for (size_t t = 0; t < terms.size(); ++t) {
      if (is_given[t] || !Has(hosts_of_terms[t], host)) continue;
      is_given[t] = true;
      const std::vector<int64_t>& on_host = from.holders.emplace_back(HoldersOn(holders_[terms[t]], from.host));
      from.packers.insert(from.packers.end(), on_host.begin(), on_host.end());
    }
    std::sort(from.packers.begin(), from.packers.end());
  }
  return senders;
}

const HostTerms* TermsByHost::Find(int32_t host) const {
  const auto at = std::lower_bound(hosts_.begin(), hosts_.end(), host,
                                   [](const HostTerms& terms, int32_t wanted) { return terms.host < wanted; });
  return at == hosts_.end() || at->host != host ? nullptr : &*at;
}

int64_t TermsByHost::CountSendingHosts(int32_t host) const {
  if (are_apart_) return static_cast<int64_t>(hosts_.size()) - (Find(host) == nullptr ? 0 : 1);
  return static_cast<int64_t>(SendersOfOthers(TermsOn(host)).size());
}

HostSums::HostSums(const TermsByHost& terms, int32_t host, int64_t length) : host_(host) {
  if (terms.are_apart_) {
    if (const HostTerms* near = terms.Find(host); near != nullptr) near_ = *near;
    far_ = &terms.hosts_;
  } else {
    const std::vector<size_t>& near = terms.TermsOn(host);
    for (const size_t term : near) near_.holders.push_back(HoldersOn(terms.holders_[term], host));
    far_ = &terms.SendersOfOthers(near);
  }
  for (const std::vector<int64_t>& holders : near_.holders) AddLine(holders.size(), length);
  VisitFar(std::nullopt, [&](const HostTerms& from) { AddLine(from.packers.size(), length); });
}

void HostSums::VisitFar(std::optional<int32_t> from_host, absl::FunctionRef<void(const HostTerms&)> visit) const {
  auto from = far_->begin();
  auto end = far_->end();
  if (from_host.has_value()) {
    const auto is_before = [](const HostTerms& terms, int32_t host) { return terms.host < host; };
    from = std::lower_bound(far_->begin(), far_->end(), *from_host, is_before);
    end = from == far_->end() || from->host != *from_host ? from : from + 1;
  }
  for (; from != end; ++from) {
    if (from->host != host_) visit(*from);
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
                     std::optional<int32_t> from_host,
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
      if (from_host.value_or(host_) != host_) break;
      const bool is_own = std::find(holders.begin(), holders.end(), own_flat) != holders.end();
      const int64_t giver = is_own ? own_flat : holders[giver_of(holders.size())];
      given.push_back({giver, {giver}});
    }
    VisitFar(from_host, [&](const HostTerms& host) {
      const size_t number = giver_of(host.packers.size());
      GivenTerms& sum = given.emplace_back(GivenTerms{host.packers[number], {}});
      for (const std::vector<int64_t>& holders : host.holders) {
        const bool is_own = std::find(holders.begin(), holders.end(), sum.giver) != holders.end();
        sum.terms.push_back(is_own ? sum.giver : holders[number % holders.size()]);
      }
    });
    visit(from, to, given);
    from = to;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (at[i] + 1 < parts[i].size() && parts[i][at[i]].high <= from) ++at[i];
    }
  }
}

}  // namespace tessera
