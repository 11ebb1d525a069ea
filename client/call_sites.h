#pragma once

// Where a program asked for its ops: a place ("train.py:42") and, where a program has its own word for the op, that
// ("embedding" for a take_along_axis). Nothing of it travels. A call notes its site under the number of its first
// result; a failure that comes later names the call that it began with by that number (schemas/types/call_origin.h),
// and the site is put into its words:
//
//   inv: singular matrix, at train.py:42; on the way here: add f64[3,3]
//
// A program in C++ sets the site (SiteScope). The Python package has a finder that looks at the frames of the calling
// thread. A session remembers the newest kRememberedSites results; a failure that began with an older one
// names no place, nor does one of another process's call.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

struct CallSite {
  std::string place;
  std::string op;  // empty: as the op says itself
};

using SiteId = uint32_t;  // 0: not known

inline constexpr size_t kMaxSites = 1 << 20;         // docs/limits.md: max_call_sites
inline constexpr size_t kRememberedSites = 1 << 18;  // docs/limits.md: remembered_call_sites

// The process's table of sites. The same site has the same number; it is 0 where there are kMaxSites.
SiteId InternSite(const CallSite& site);
// Null for 0. Lives for ever.
const CallSite* FindSite(SiteId site);

// The site of a call that the calling thread makes now: that of the outermost SiteScope, else what the finder
// says. The finder is set once for the process.
using SiteFinder = SiteId (*)();
void SetSiteFinder(SiteFinder finder);
SiteId SiteOfCall();

// While it lives, the calling thread's calls are of a site. The outermost counts.
class SiteScope {
 public:
  explicit SiteScope(SiteId site);
  ~SiteScope();
  SiteScope(const SiteScope&) = delete;
  SiteScope& operator=(const SiteScope&) = delete;

 private:
  const SiteId outer_;
};

// `einsum: WHY` in the program's own word for the op, `linear: WHY`.
absl::Status InWordsOf(const CallSite& site, const absl::Status& status);
// The same, and where it was asked for.
absl::Status AtSite(const CallSite& site, const absl::Status& status);

// The sites of a session's newest calls, by the number of their first result. Any thread.
class SiteLog {
 public:
  SiteLog();
  void Note(uint64_t first_result, SiteId site);
  SiteId Find(uint64_t first_result) const;

 private:
  // The number, but for its low bits, which are the place in the list; and the site.
  const std::unique_ptr<std::atomic<uint64_t>[]> notes_;
};

}  // namespace tessera
