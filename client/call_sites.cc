#include "client/call_sites.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "schemas/ops/called_as.h"
#include "schemas/ops/catalog.h"
#include "schemas/types/call_origin.h"
#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kSiteBits = 24;
static_assert(kMaxSites < size_t{1} << kSiteBits);

struct SiteTable {
  std::mutex mutex;
  std::deque<CallSite> sites;  // by number, from 1; a site stays where it is
  absl::flat_hash_map<std::pair<std::string, std::string>, SiteId> numbers;
};

SiteTable& Table() {
  static SiteTable* const table = new SiteTable();
  return *table;
}

std::atomic<SiteFinder> site_finder{nullptr};
thread_local SiteId thread_site = 0;

bool IsOpName(std::string_view word) {
  return word == "upload" || FindOpByName(word).ok() || CalledAsOf(word) != CalledAs::kOp;
}

}  // namespace

SiteId InternSite(const CallSite& site) {
  SiteTable& table = Table();
  const std::lock_guard<std::mutex> lock(table.mutex);
  const auto found = table.numbers.find(std::pair(site.place, site.op));
  if (found != table.numbers.end()) return found->second;
  if (table.sites.size() >= kMaxSites) return 0;
  table.sites.push_back(site);
  const auto number = static_cast<SiteId>(table.sites.size());
  table.numbers.emplace(std::pair(site.place, site.op), number);
  return number;
}

const CallSite* FindSite(SiteId site) {
  if (site == 0) return nullptr;
  SiteTable& table = Table();
  const std::lock_guard<std::mutex> lock(table.mutex);
  return &table.sites[site - 1];
}

void SetSiteFinder(SiteFinder finder) { site_finder = finder; }

SiteId SiteOfCall() {
  if (thread_site != 0) return thread_site;
  const SiteFinder finder = site_finder.load(std::memory_order_relaxed);
  return finder == nullptr ? 0 : finder();
}

SiteScope::SiteScope(SiteId site) : outer_(thread_site) {
  if (outer_ == 0) thread_site = site;
}
SiteScope::~SiteScope() { thread_site = outer_; }

absl::Status InWordsOf(const CallSite& site, const absl::Status& status) {
  const std::string_view message = StdView(status.message());
  const size_t colon = message.find(": ");
  if (site.op.empty() || colon == std::string_view::npos || !IsOpName(message.substr(0, colon))) return status;
  return WithMessage(status, StrCat(site.op, message.substr(colon)));
}

absl::Status AtSite(const CallSite& site, const absl::Status& status) {
  const absl::Status said = InWordsOf(site, status);
  const std::string_view message = StdView(said.message());
  const size_t way = std::min(message.rfind(kOnTheWay), message.size());
  return WithMessage(said, StrCat(message.substr(0, way), ", at ", site.place, message.substr(way)));
}

SiteLog::SiteLog() : notes_(new std::atomic<uint64_t>[kRememberedSites] {}) {}

void SiteLog::Note(uint64_t first_result, SiteId site) {
  notes_[first_result % kRememberedSites].store((first_result / kRememberedSites) << kSiteBits | site,
                                                std::memory_order_relaxed);
}

SiteId SiteLog::Find(uint64_t first_result) const {
  const uint64_t note = notes_[first_result % kRememberedSites].load(std::memory_order_relaxed);
  const uint64_t round = first_result / kRememberedSites << kSiteBits >> kSiteBits;
  return note >> kSiteBits == round ? static_cast<SiteId>(note & ((uint64_t{1} << kSiteBits) - 1)) : 0;
}

}  // namespace tessera
