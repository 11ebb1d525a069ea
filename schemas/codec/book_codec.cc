#include "schemas/codec/book_codec.h"

#include <utility>

namespace tessera {
namespace {

std::string Text(capnp::Text::Reader text) { return {text.begin(), text.size()}; }
kj::StringPtr Pointer(const std::string& text) { return {text.c_str(), text.size()}; }

BookCursor DecodeCursor(wire::Cursor::Reader reader) { return {reader.getTimeMs(), reader.getRow()}; }
void EncodeCursor(const BookCursor& cursor, wire::Cursor::Builder builder) {
  builder.setTimeMs(cursor.time_ms);
  builder.setRow(cursor.row);
}

}  // namespace

void EncodeBookQuery(const BookQuery& query, wire::BookQuery::Builder builder) {
  builder.setTable(query.table == BookTable::kUsage ? wire::BookQuery::Table::USAGE : wire::BookQuery::Table::AUDIT);
  builder.setSinceMs(query.since_ms);
  builder.setTenant(Pointer(query.tenant));
  builder.setVerb(Pointer(query.verb));
  builder.setBySession(query.by_session);
  EncodeCursor(query.after, builder.initAfter());
}

BookQuery DecodeBookQuery(wire::BookQuery::Reader reader) {
  return {.table = reader.getTable() == wire::BookQuery::Table::USAGE ? BookTable::kUsage : BookTable::kAudit,
          .since_ms = reader.getSinceMs(),
          .tenant = Text(reader.getTenant()),
          .verb = Text(reader.getVerb()),
          .by_session = reader.getBySession(),
          .after = DecodeCursor(reader.getAfter())};
}

void EncodeBookPage(const BookPage& page, wire::BookPage::Builder builder) {
  auto audit = builder.initAudit(static_cast<unsigned>(page.audit.size()));
  for (unsigned i = 0; i < audit.size(); ++i) {
    const AuditRow& row = page.audit[i];
    audit[i].setTimeMs(row.time_ms);
    audit[i].setVerb(Pointer(row.verb));
    audit[i].setTenant(Pointer(row.tenant));
    audit[i].setToken(Pointer(row.token));
    audit[i].setSession(row.session);
    audit[i].setObject(Pointer(row.object));
    audit[i].setDecision(Pointer(row.decision));
    audit[i].setWhy(Pointer(row.why));
  }
  auto usage = builder.initUsage(static_cast<unsigned>(page.usage.size()));
  for (unsigned i = 0; i < usage.size(); ++i) {
    const UsageTotal& row = page.usage[i];
    usage[i].setTenant(Pointer(row.tenant));
    usage[i].setSession(row.session);
    usage[i].setName(Pointer(row.name));
    usage[i].setDeviceNs(row.device_ns);
    usage[i].setMostBytes(row.most_bytes);
    usage[i].setUploadedBytes(row.uploaded_bytes);
    usage[i].setDownloadedBytes(row.downloaded_bytes);
    usage[i].setRefused(row.refused);
  }
  EncodeCursor(page.next, builder.initNext());
  builder.setHasMore(page.has_more);
}

BookPage DecodeBookPage(wire::BookPage::Reader reader) {
  BookPage page;
  for (const auto row : reader.getAudit()) {
    page.audit.push_back({row.getTimeMs(), Text(row.getVerb()), Text(row.getTenant()), Text(row.getToken()),
                          row.getSession(), Text(row.getObject()), Text(row.getDecision()), Text(row.getWhy())});
  }
  for (const auto row : reader.getUsage()) {
    page.usage.push_back({Text(row.getTenant()), row.getSession(), Text(row.getName()), row.getDeviceNs(),
                          row.getMostBytes(), row.getUploadedBytes(), row.getDownloadedBytes(), row.getRefused()});
  }
  page.next = DecodeCursor(reader.getNext());
  page.has_more = reader.getHasMore();
  return page;
}

void EncodeUpgradeState(const UpgradeState& state, wire::UpgradeState::Builder builder) {
  builder.setPhase(static_cast<wire::UpgradeState::Phase>(state.phase));
  builder.setWhy(Pointer(state.why));
  builder.setEpoch(state.epoch);
  builder.setVersion(Pointer(state.version));
  builder.setPid(state.pid);
}

UpgradeState DecodeUpgradeState(wire::UpgradeState::Reader reader) {
  using Phase = UpgradeState::Phase;
  Phase phase = Phase::kServing;
  if (reader.getPhase() == wire::UpgradeState::Phase::LOOKING) phase = Phase::kLooking;
  if (reader.getPhase() == wire::UpgradeState::Phase::REFUSED) phase = Phase::kRefused;
  return {phase, Text(reader.getWhy()), reader.getEpoch(), Text(reader.getVersion()), reader.getPid()};
}

}  // namespace tessera
