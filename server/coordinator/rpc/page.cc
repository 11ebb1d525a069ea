#include "server/coordinator/rpc/page.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr double kNsToSeconds = 1e-9;

constexpr char kHtml[] = R"(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Tessera</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/page.css">
<header><h1>Tessera</h1><p id="head">connecting</p></header>
<section><h2>Workers</h2><div id="mesh"></div></section>
<section><h2>Tenants</h2><table id="tenants"></table></section>
<section><h2>Sessions that hold the most</h2><table id="sessions"></table></section>
<script src="/page.js"></script>
</html>
)";

constexpr char kCss[] =
    R"(body { font: 14px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; }
header { display: flex; gap: 1rem; align-items: baseline; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
.gone { color: #b00; }
#mesh { display: flex; flex-wrap: wrap; gap: 4px; }
#mesh div { width: 7.5rem; padding: .4rem; border: 2px solid #ccc; border-radius: 4px; overflow: hidden; white-space: nowrap; }
#mesh .suspect { border-color: #e90; } #mesh .lost { border-color: #b00; opacity: .6; }
#mesh .cordoned, #mesh .draining { border-style: dashed; border-color: #555; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; max-width: 18rem; overflow: hidden; text-overflow: ellipsis; }
progress { width: 8rem; }
)";

constexpr char kScript[] = R"("use strict";
const kept = [];  // states of the last seconds, oldest first
const at = (id) => document.getElementById(id);
const bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; ++i) n /= 1024;
  return (i ? n.toFixed(1) : n) + " " + units[i];
};
const percent = (x) => (100 * x).toFixed(0) + " %";
const make = (kind, text, name) => {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
};
function table(id, head, rows) {
  const line = (kind, cells) => {
    const row = make("tr");
    cells.forEach((cell, i) => row.append(cell instanceof Node ? cell : make(kind, cell, head[i][1])));
    return row;
  };
  at(id).replaceChildren(line("th", head.map((h) => h[0])), ...rows.map((row) => line("td", row)));
}
function bar(part, label) {
  const cell = make("td"), shown = make("progress");
  shown.max = 1;
  shown.value = Math.min(1, part);
  cell.append(shown, " " + label);
  return cell;
}
function show(state) {
  kept.push(state);
  while (kept.length > 2 && state.now_s - kept[0].now_s > 10) kept.shift();
  const before = kept[0], passed = Math.max(0.001, state.now_s - before.now_s);
  const of = (list, name) => list.find((one) => one.name === name);
  at("head").className = "";
  at("head").textContent = `up ${state.uptime_s.toFixed(0)} s, ${state.workers.length} workers, ${state.session_count} sessions`;
  at("mesh").replaceChildren(...state.workers.map((worker) => {
    const old = before.workers.find((one) => one.index === worker.index);
    const load = old ? Math.max(0, (worker.device_s - old.device_s) / passed) : 0;
    const box = make("div", undefined, worker.state);
    box.style.setProperty("background", `hsl(${120 - 120 * Math.min(1, load)} 70% ${95 - 25 * Math.min(1, load)}%)`);
    box.title = `worker ${worker.index}: ${worker.state}, ${worker.outstanding} instructions under way`;
    box.append(make("b", `${worker.index} ${worker.state}`), make("br"), `load ${percent(load)}`, make("br"),
               `${bytes(worker.used_bytes)} of ${bytes(worker.total_bytes)}`, make("br"), `${worker.outstanding} under way`);
    return box;
  }));
  const spent = new Map(state.tenants.map((tenant) => {
    const old = of(before.tenants, tenant.name);
    return [tenant.name, Math.max(0, tenant.device_s - (old ? old.device_s : 0))];
  }));
  let all = 0, weights = 0;
  for (const tenant of state.tenants) {
    if (spent.get(tenant.name) > 0) { all += spent.get(tenant.name); weights += tenant.weight; }
  }
  table("tenants", [["tenant", "text"], ["weight"], ["share of devices"], ["share by weight"], ["bytes of a worker"], ["at most"],
                    ["connected"], ["detached"], ["queued"]],
    state.tenants.map((tenant) => {
      const share = all ? spent.get(tenant.name) / all : 0, due = share && weights ? tenant.weight / weights : 0;
      return [tenant.name, tenant.weight, bar(share, percent(share)), bar(due, percent(due)), bytes(tenant.used_bytes),
              tenant.max_bytes < 0 ? "-" : bytes(tenant.max_bytes), tenant.connected, tenant.detached, tenant.queued];
    }));
  table("sessions", [["session"], ["tenant", "text"], ["name", "text"], ["client", "text"], ["tensors"], ["bytes of a worker"], ["queued"], ["connected"]],
    state.sessions.map((one) => [one.session, one.tenant, one.name, one.client, one.tensors, bytes(one.bytes), one.queued,
                                 one.connected ? "yes" : "no"]));
}
const events = new EventSource("/events");
events.onmessage = (event) => show(JSON.parse(event.data));
events.onerror = () => {  // a stream ends every few seconds, and is taken up again
  if (kept.length && Date.now() - heard < 5000) return;
  at("head").className = "gone";
  at("head").textContent = "the coordinator answers nothing";
};
let heard = 0;
events.addEventListener("message", () => { heard = Date.now(); });
)";

double DeviceSecondsOf(const MetricsSnapshot& snapshot, WorkerIndex worker) {
  int64_t ns = 0;
  const auto at = static_cast<size_t>(worker.value);
  for (const auto& [tenant, metrics] : snapshot.tenants) {
    if (at >= metrics.device_ns.size()) continue;
    for (const int64_t lane_ns : metrics.device_ns[at]) ns += lane_ns;
  }
  return static_cast<double>(ns) * kNsToSeconds;
}

const char* StateOf(const MetricsSnapshot::Worker& worker) {
  if (worker.state == WorkerState::kDead) return "lost";
  if (worker.is_draining) return "draining";
  if (worker.state == WorkerState::kSuspect) return "suspect";
  return worker.is_cordoned ? "cordoned" : "alive";
}

}  // namespace

PageFile FindPageFile(std::string_view path) {
  if (path == "/") return {"text/html; charset=utf-8", kHtml};
  if (path == "/page.js") return {"text/javascript; charset=utf-8", kScript};
  if (path == "/page.css") return {"text/css; charset=utf-8", kCss};
  return {};
}

std::string PageEvent(const MetricsSnapshot& snapshot) {
  nlohmann::json state = {{"now_s", static_cast<double>(snapshot.now_us) * 1e-6},
                          {"uptime_s", snapshot.uptime_s},
                          {"session_count", snapshot.session_count},
                          {"workers", nlohmann::json::array()},
                          {"tenants", nlohmann::json::array()},
                          {"sessions", nlohmann::json::array()}};
  for (const MetricsSnapshot::Worker& worker : snapshot.workers) {
    state["workers"].push_back({{"index", worker.index.value},
                                {"state", StateOf(worker)},
                                {"used_bytes", worker.used_bytes},
                                {"total_bytes", worker.total_bytes},
                                {"outstanding", worker.outstanding[0] + worker.outstanding[1]},
                                {"device_s", DeviceSecondsOf(snapshot, worker.index)}});
  }
  for (const auto& [name, share] : snapshot.shares) {
    const auto sessions = snapshot.sessions.find(name);
    const MetricsSnapshot::Sessions counts =
        sessions == snapshot.sessions.end() ? MetricsSnapshot::Sessions{} : sessions->second;
    int64_t most = 0;
    for (const int64_t bytes : share.used_bytes) most = std::max(most, bytes);
    state["tenants"].push_back({{"name", name},
                                {"weight", share.weight},
                                {"device_s", static_cast<double>(share.device_ns) * kNsToSeconds},
                                {"used_bytes", most},
                                {"max_bytes", share.max_bytes},
                                {"connected", counts.connected},
                                {"detached", counts.detached},
                                {"queued", counts.pending_records}});
  }
  for (const MetricsSnapshot::Holder& holder : snapshot.holders) {
    state["sessions"].push_back({{"session", holder.session.value},
                                 {"tenant", holder.tenant},
                                 {"name", holder.name},
                                 {"client", holder.client},
                                 {"tensors", holder.tensors},
                                 {"bytes", holder.bytes},
                                 {"queued", holder.queued},
                                 {"connected", holder.is_connected}});
  }
  return StrCat("data: ", state.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace), "\n\n");
}

}  // namespace tessera
