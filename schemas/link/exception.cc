#include "schemas/link/exception.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr absl::string_view kMark = "tessera:";

kj::Exception::Type TypeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted: return kj::Exception::Type::OVERLOADED;
    case absl::StatusCode::kUnimplemented: return kj::Exception::Type::UNIMPLEMENTED;
    default: return kj::Exception::Type::FAILED;
  }
}

}  // namespace

kj::Exception ToException(const absl::Status& status) {
  std::string payloads;
  status.ForEachPayload([&](absl::string_view name, const absl::Cord&) { StrAppend(&payloads, name, ","); });
  return kj::Exception(TypeOf(status), __FILE__, __LINE__,
                       kj::heapString(StrCat(kMark, status.raw_code(), ":", payloads, ":", status.message()).c_str()));
}

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) kj::throwFatalException(ToException(status));
}

absl::Status FromException(const kj::Exception& exception) {
  absl::string_view text(exception.getDescription().cStr(), exception.getDescription().size());
  // The far side's RPC layer puts "remote exception: " in front.
  if (size_t at = text.find(kMark); at != absl::string_view::npos) {
    std::vector<absl::string_view> parts = absl::StrSplit(text.substr(at + kMark.size()), absl::MaxSplits(':', 2));
    int code = 0;
    if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &code) && code > 0 && code <= 16) {
      absl::Status status(static_cast<absl::StatusCode>(code), parts[2]);
      for (absl::string_view name : absl::StrSplit(parts[1], ',', absl::SkipEmpty()))
        status.SetPayload(name, absl::Cord(""));
      return status;
    }
  }
  switch (exception.getType()) {
    case kj::Exception::Type::DISCONNECTED: return absl::UnavailableError(StrCat("the connection was lost: ", text));
    case kj::Exception::Type::OVERLOADED: return absl::UnavailableError(text);
    case kj::Exception::Type::UNIMPLEMENTED: return absl::UnimplementedError(text);
    default: return absl::InternalError(text);
  }
}

}  // namespace tessera
