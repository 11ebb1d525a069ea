#include "client/session_publications.h"

#include <iterator>
#include <utility>

#include "client/recording.h"
#include "client/session_calls.h"
#include "client/session_request.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Texts of the wire end with a byte 0.
absl::Status CheckText(std::string_view op, std::string_view what, const std::string& text) {
  if (text.empty()) return absl::InvalidArgumentError(StrCat(op, ": the ", what, " is empty"));
  if (text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(StrCat(op, ": the ", what, " \"", Printable(text), "\" has a byte 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SessionImpl::RequestPtr> PublicationDoor::Ask(std::string_view what, Record::Kind kind,
                                                             PublicationRecord asked, uint64_t first_result) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(what));
  auto [number, request] = session_.NewRequest();
  Record record;
  record.kind = kind;
  record.request = number;
  record.handle = first_result;
  record.publication = std::make_shared<const PublicationRecord>(std::move(asked));
  absl::Status status = session_.Enqueue(std::move(record));
  if (status.ok()) status = session_.WaitFor(what, request);
  if (!status.ok()) session_.EndRequest(number, request);
  TESSERA_RETURN_IF_ERROR(status);
  return request;
}

absl::StatusOr<uint64_t> PublicationDoor::Publish(const std::map<std::string, HandlePtr>& tensors,
                                                  const std::string& name, const std::vector<std::string>& readers) {
  TESSERA_RETURN_IF_ERROR(CheckText("publish", "name", name));
  if (tensors.empty() || tensors.size() > kMaxPublishedTensors) {
    return absl::InvalidArgumentError(StrCat("publish: ", tensors.size(), " tensors for \"", Printable(name),
                                             "\"; a publication has 1 to max_published_tensors, ",
                                             kMaxPublishedTensors));
  }
  PublicationRecord asked{name, {}, readers};
  for (const std::string& reader : readers) TESSERA_RETURN_IF_ERROR(CheckText("publish", "name of a reader", reader));
  for (const auto& [key, handle] : tensors) {
    TESSERA_RETURN_IF_ERROR(CheckText("publish", "name of a tensor", key));
    if (handle->session.get() != &session_) {
      return absl::InvalidArgumentError(StrCat("publish: \"", Printable(key), "\" of \"", Printable(name), "\", ",
                                               handle->SpecText(), ", is of another session"));
    }
    TESSERA_RETURN_IF_ERROR(session_.Watch(*handle));
  }
  for (const auto& [key, handle] : tensors) {
    TESSERA_RETURN_IF_ERROR(session_.Wait(*handle, std::nullopt));
    asked.tensors.emplace_back(key, handle->id);
  }
  TESSERA_ASSIGN_OR_RETURN(const SessionImpl::RequestPtr request,
                           Ask("publish", Record::Kind::kPublish, std::move(asked)));
  return request->publications.at(0).version;
}

absl::StatusOr<PublicationDoor::Attached> PublicationDoor::Attach(const std::string& name) {
  TESSERA_RETURN_IF_ERROR(CheckText("attach", "name", name));
  const uint64_t first = session_.next_handle_.fetch_add(kMaxPublishedTensors);
  TESSERA_ASSIGN_OR_RETURN(const SessionImpl::RequestPtr request,
                           Ask("attach", Record::Kind::kAttach, {name, {}, {}}, first));
  return Attached{std::move(request->publications.at(0)), std::move(request->attached)};
}

absl::Status PublicationDoor::Unpublish(const std::string& name) {
  TESSERA_RETURN_IF_ERROR(CheckText("unpublish", "name", name));
  return Ask("unpublish", Record::Kind::kUnpublish, {name, {}, {}}).status();
}

absl::StatusOr<std::vector<PublicationReport>> PublicationDoor::List() {
  std::vector<PublicationReport> all;
  for (bool has_more = true; has_more;) {
    const std::string after = all.empty() ? "" : all.back().name;
    TESSERA_ASSIGN_OR_RETURN(const SessionImpl::RequestPtr request,
                             Ask("published", Record::Kind::kListPublished, {after, {}, {}}));
    has_more = request->has_more && !request->publications.empty();
    all.insert(all.end(), std::make_move_iterator(request->publications.begin()),
               std::make_move_iterator(request->publications.end()));
  }
  return all;
}

}  // namespace tessera
