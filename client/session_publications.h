#pragma once

// PublicationDoor: a session's part in publications, sets of tensors under names that tenants read. Each call waits for
// the coordinator's answer.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session_impl.h"

namespace tessera {

class PublicationDoor {
 public:
  explicit PublicationDoor(SessionImpl& session) : session_(session) {}

  // Waits until the tensors are there; the version. Errors are the first cause of one that failed, and the
  // coordinator's.
  absl::StatusOr<uint64_t> Publish(const std::map<std::string, HandlePtr>& tensors, const std::string& name,
                                   const std::vector<std::string>& readers);
  struct Attached {
    PublicationReport publication;
    std::vector<HandlePtr> tensors;  // in the order of publication.tensors
  };
  absl::StatusOr<Attached> Attach(const std::string& name);
  absl::Status Unpublish(const std::string& name);
  absl::StatusOr<std::vector<PublicationReport>> List();

 private:
  absl::StatusOr<SessionImpl::RequestPtr> Ask(std::string_view what, Record::Kind kind, PublicationRecord asked,
                                              uint64_t first_result = 0);

  SessionImpl& session_;
};

}  // namespace tessera
