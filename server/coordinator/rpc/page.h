#pragma once

// The page that a browser shows of a pool: who holds what, queues, shares beside weights, workers coloured by load. Its
// files are here; its numbers come as Server-Sent Events, of which each is a whole state with counters that only grow:
// the page's script shows differences.
//
// Law: a name that people gave gets into the page as text (textContent), never as markup.

#include <string>
#include <string_view>

#include "server/coordinator/rpc/metrics_text.h"

namespace tessera {

struct PageFile {
  std::string_view type;  // of its content
  std::string_view text;
};
// The file at "/", "/page.js" or "/page.css"; with an empty type for another path.
PageFile FindPageFile(std::string_view path);

// For the page's headers: nothing from elsewhere is loaded, and no script that stands in the page is run.
inline constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

// "data: {...}\n\n".
std::string PageEvent(const MetricsSnapshot& snapshot);

}  // namespace tessera
