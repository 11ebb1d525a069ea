#pragma once

// Values of a pool's book to records and back (schemas/book.capnp).

#include "schemas/book.capnp.h"
#include "schemas/types/book.h"

namespace tessera {

void EncodeBookQuery(const BookQuery& query, wire::BookQuery::Builder builder);
BookQuery DecodeBookQuery(wire::BookQuery::Reader reader);

void EncodeBookPage(const BookPage& page, wire::BookPage::Builder builder);
BookPage DecodeBookPage(wire::BookPage::Reader reader);

void EncodeUpgradeState(const UpgradeState& state, wire::UpgradeState::Builder builder);
UpgradeState DecodeUpgradeState(wire::UpgradeState::Reader reader);

}  // namespace tessera
