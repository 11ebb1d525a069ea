#include "server/worker/rpc/file_calls.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "schemas/codec/exception.h"
#include "schemas/codec/refusals.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/files/decoded_file.h"
#include "server/worker/files/tensor_file.h"

namespace tessera {
namespace {

std::string Text(kj::ArrayPtr<const char> text) { return std::string(text.begin(), text.size()); }

}  // namespace

absl::StatusOr<FileDescriptor> FileCalls::OpenToRead(wire::Transfer::OpenFileParams::Reader params) const {
  const std::string path = Text(params.getPath());
  const bool is_decoded = params.getLayout().getIsDecoded();
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file,
                           is_decoded ? files_.roots.OpenFileOrFolder(path) : files_.roots.Open(path));
  const FileStamp given{static_cast<int64_t>(params.getBytes()), params.getModifiedNs()};
  TESSERA_ASSIGN_OR_RETURN(const FileStamp now, StampOf(file));
  if (now != given) {
    return absl::FailedPreconditionError(StrCat("file ", Printable(path), ": it has changed since it was looked at"));
  }
  return file;
}

absl::StatusOr<FileDescriptor> FileCalls::OpenToWrite(wire::Transfer::OpenFileParams::Reader params) const {
  const std::string path = Text(params.getPath());
  return params.getLayout().getIsDecoded() ? files_.roots.OpenNewFolder(path) : files_.roots.OpenNew(path);
}

absl::StatusOr<std::shared_ptr<ShardFile>> FileCalls::Open(wire::Transfer::OpenFileParams::Reader params,
                                                           const TransferRange& range) const {
  const bool is_upload = range.direction == TransferDirection::kUpload;
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, is_upload ? OpenToRead(params) : OpenToWrite(params));
  const auto told = params.getLayout();
  const auto offset = static_cast<int64_t>(told.getOffset());
  std::vector<int64_t> strides;
  for (const int64_t stride : told.getStrides()) strides.push_back(stride);
  if (told.getIsDecoded()) {
    DecodedPlace place{Text(params.getPath()), Text(told.getMember()), offset, std::move(strides)};
    return DecodedFile::Make(decoder_, std::move(file), range.spec, std::move(place));
  }
  const ByteOrder order = told.getIsReversed() ? ByteOrder::kReversed : ByteOrder::kOwn;
  return TensorFile::Make(std::move(file), range.spec, {offset, std::move(strides), order});
}

absl::Status FileCalls::Look(
    capnp::CallContext<wire::Transfer::LookAtFileParams, wire::Transfer::LookAtFileResults> context) const {
  auto params = context.getParams();
  if (params.getCount() > kMaxFilePart) {
    return absl::InvalidArgumentError(
        StrCat("file: ", params.getCount(), " bytes to look at, ", kMaxFilePart, " are allowed (max_file_part)"));
  }
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor file, files_.roots.Open(Text(params.getPath())));
  TESSERA_ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(file));
  const uint64_t offset = std::min(params.getOffset(), static_cast<uint64_t>(stamp.bytes));
  std::vector<kj::byte> part(std::min<uint64_t>(params.getCount(), static_cast<uint64_t>(stamp.bytes) - offset));
  const ssize_t count = pread(file.get(), part.data(), part.size(), static_cast<off_t>(offset));
  if (count < 0) return absl::InternalError(StrCat("file: reading: ", std::strerror(errno)));
  auto results = context.getResults();
  results.setBytes(static_cast<uint64_t>(stamp.bytes));
  results.setModifiedNs(stamp.modified_ns);
  results.setPart(kj::arrayPtr(part.data(), static_cast<size_t>(count)));
  return absl::OkStatus();
}

kj::Promise<void> FileCalls::Describe(
    capnp::CallContext<wire::Transfer::DescribeFileParams, wire::Transfer::DescribeFileResults> context) {
  struct Seen {
    absl::Status status;
    FileStamp stamp;
    std::string json;
  };
  auto seen = std::make_shared<Seen>();
  auto job = [seen, &roots = files_.roots, &decoder = decoder_, path = Text(context.getParams().getPath())]() {
    seen->status = [&]() -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const FileDescriptor file, roots.OpenFileOrFolder(path));
      TESSERA_ASSIGN_OR_RETURN(seen->stamp, StampOf(file));
      TESSERA_ASSIGN_OR_RETURN(seen->json, decoder.Describe(file, path));
      return absl::OkStatus();
    }();
  };
  context.releaseParams();
  return decodes_.Run(std::move(job)).then([seen, context]() mutable {
    ThrowIfError(seen->status);
    auto results = context.getResults();
    results.setBytes(static_cast<uint64_t>(seen->stamp.bytes));
    results.setModifiedNs(seen->stamp.modified_ns);
    results.setJson(kj::StringPtr(seen->json.c_str(), seen->json.size()).asBytes());
  });
}

// Reserving the bytes of a large file, and having them on the disk, take their time.
kj::Promise<void> FileCalls::Create(
    capnp::CallContext<wire::Transfer::CreateFileParams, wire::Transfer::CreateFileResults> context) {
  auto params = context.getParams();
  auto made = std::make_shared<absl::StatusOr<std::unique_ptr<NewFile>>>(absl::UnknownError(""));
  auto job = [&roots = files_.roots, made, path = Text(params.getPath()), name = Text(params.getName()),
              bytes = params.getBytes(), head = Text(params.getHead().asChars())]() {
    *made = bytes > static_cast<uint64_t>(kMaxFileBytes)
                ? absl::InvalidArgumentError(StrCat("file: ", bytes, " bytes, ", kMaxFileBytes, " are allowed"))
                : roots.Create(path, name, static_cast<int64_t>(bytes), head);
  };
  context.releaseParams();
  return copies_.Run(std::move(job)).then([this, made]() {
    ThrowIfError(made->status());
    new_file_ = *std::move(*made);
  });
}

kj::Promise<void> FileCalls::CreateFolder(
    capnp::CallContext<wire::Transfer::CreateFolderParams, wire::Transfer::CreateFolderResults> context) {
  auto made = std::make_shared<absl::StatusOr<std::unique_ptr<NewFile>>>(absl::UnknownError(""));
  auto params = context.getParams();
  auto job = [&roots = files_.roots, &decoder = decoder_, made, path = Text(params.getPath()),
              name = Text(params.getName()), json = Text(params.getJson().asChars())]() {
    *made = roots.CreateFolder(path, name);
    if (!made->ok()) return;
    if (absl::Status status = decoder.Create((**made)->file(), path, json); !status.ok()) *made = status;
  };
  context.releaseParams();
  return decodes_.Run(std::move(job)).then([this, made]() {
    ThrowIfError(made->status());
    new_file_ = *std::move(*made);
  });
}

kj::Promise<void> FileCalls::Commit() {
  if (new_file_ == nullptr) ThrowIfError(absl::FailedPreconditionError("commit: no file was made"));
  auto committed = std::make_shared<absl::Status>();
  return copies_.Run([file = new_file_, committed]() { *committed = file->Commit(); }).then([committed]() {
    ThrowIfError(*committed);
  });
}

}  // namespace tessera
