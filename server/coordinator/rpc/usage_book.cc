#include "server/coordinator/rpc/usage_book.h"

#include <utility>

namespace tessera {
namespace {

UsageRow Since(const SessionUsage& told, const SessionUsage& now) {
  UsageRow row;
  row.device_ns = now.device_ns - told.device_ns;
  row.uploaded_bytes = now.uploaded_bytes - told.uploaded_bytes;
  row.downloaded_bytes = now.downloaded_bytes - told.downloaded_bytes;
  row.refused = now.refused - told.refused;
  return row;
}

}  // namespace

void UsageBook::Begin(const StateMachine& machine) {
  for (const auto& [id, session] : machine.sessions()) told_[id] = session.usage;
}

std::vector<UsageRow> UsageBook::Minute(const StateMachine& machine) {
  std::vector<UsageRow> rows;
  for (const auto& [id, session] : machine.sessions()) {
    SessionUsage& told = told_[id];
    if (told == session.usage && session.bytes == 0) continue;
    UsageRow& row = rows.emplace_back(Since(told, session.usage));
    row.tenant = session.info.tenant;
    row.session = id.value;
    row.name = session.info.name;
    row.held_bytes = session.bytes;
    told = session.usage;
  }
  return rows;
}

std::vector<UsageRow> UsageBook::Last(const EndSession& end) {
  const auto found = told_.extract(end.session);
  const SessionUsage told = found.empty() ? SessionUsage{} : found.mapped();
  if (told == end.usage) return {};
  UsageRow row = Since(told, end.usage);
  row.tenant = end.tenant;
  row.session = end.session.value;
  row.name = end.name;
  return {std::move(row)};
}

}  // namespace tessera
