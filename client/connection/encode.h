#pragma once

// Records, events and reports as wire records. Decoding validates what the codec validates.

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/connection/connection.h"
#include "schemas/session.capnp.h"

namespace tessera {

void EncodeRecords(absl::Span<const Record> records, capnp::List<wire::Record>::Builder builder);
void EncodeHello(const ConnectionOptions& options, const std::optional<ResumeToken>& resume, Returning returning,
                 wire::ClientHello::Builder builder);
void EncodeExplainOperand(const ExplainOperand& explained, wire::ExplainOperand::Builder builder);
void EncodeHeldMemory(const HeldMemory& held, wire::HeldMemory::Builder builder);

// Nothing for an event that only the connection itself looks at.
std::optional<ClientEvent> DecodeEvent(wire::Event::Reader reader);
WelcomeReport DecodeWelcome(wire::Welcome::Reader reader);
absl::StatusOr<ClusterReport> DecodeClusterStatus(wire::ClusterStatus::Reader reader);
DrainStep DecodeDrain(wire::DrainReport::Reader reader);
std::vector<TenantReport> DecodeTenants(capnp::List<wire::TenantInfo>::Reader reader);
FlightReport DecodeFlightRecord(wire::FlightRecord::Reader reader);
ProfileReport DecodeProfile(wire::Profile::Reader reader);
absl::StatusOr<PlanReport> DecodePlanText(wire::PlanText::Reader reader);

}  // namespace tessera
