#include "server/worker/rpc/file_calls.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "schemas/link/exception.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/files/decoded_file.h"
#include "server/worker/files/tensor_file.h"
#include "server/worker/rpc/bulk_parts.h"

namespace tessera {
namespace {

constexpr size_t kMaxShownPath = 200;

std::string Text(kj::ArrayPtr<const char> text) { return std::string(text.begin(), text.size()); }

std::string NameOfPath(const std::string& path) { return StrCat("file ", Printable(path, kMaxShownPath)); }

// The file that the opener is asked for: an upload's as it was when it was looked at, a download's that is being made.
struct Wanted {
  std::string path;
  bool is_decoded = false;
  bool is_upload = false;
};

absl::StatusOr<FileDescriptor> OpenWanted(const FileRoots& roots, const Wanted& wanted) {
  if (wanted.is_upload) return wanted.is_decoded ? roots.OpenFileOrFolder(wanted.path) : roots.Open(wanted.path);
  return wanted.is_decoded ? roots.OpenNewFolder(wanted.path) : roots.OpenNew(wanted.path);
}

// With a deleter that leaves it to a thread of its lane: to close a file, or to remove one that isn't committed, are
// calls that may block.
template <typename T>
std::shared_ptr<T> EndedOnThread(JobThreads& threads, size_t lane, std::shared_ptr<T> held) {
  T* const pointer = held.get();
  return std::shared_ptr<T>(pointer, [&threads, lane, held = std::move(held)](T*) mutable {
    threads.Later(lane, [held = std::exchange(held, nullptr)]() mutable { held.reset(); });
  });
}

// A file that is being made, and its places: its own, and its folder's.
struct HeldNewFile {
  std::vector<FairPlaces::Place> places;
  std::unique_ptr<NewFile> file;
};
std::shared_ptr<NewFile> NewFileOnThread(JobThreads& threads, size_t lane, std::vector<FairPlaces::Place> places,
                                         std::unique_ptr<NewFile> file) {
  auto held = std::make_shared<HeldNewFile>(HeldNewFile{std::move(places), std::move(file)});
  const std::shared_ptr<HeldNewFile> ended = EndedOnThread(threads, lane, held);
  return {ended, held->file.get()};
}

struct Seen {
  FileStamp stamp;
  std::vector<kj::byte> part;
};

absl::StatusOr<Seen> LookAt(const FileRoots& roots, const std::string& path, uint64_t from, uint32_t count) {
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor file, roots.Open(path));
  Seen seen;
  TESSERA_ASSIGN_OR_RETURN(seen.stamp, StampOf(file));
  const auto bytes = static_cast<uint64_t>(seen.stamp.bytes);
  const uint64_t offset = std::min(from, bytes);
  seen.part.resize(std::min<uint64_t>(count, bytes - offset));
  const ssize_t got = pread(file.get(), seen.part.data(), seen.part.size(), static_cast<off_t>(offset));
  if (got < 0) return absl::InternalError(StrCat("file: reading: ", std::strerror(errno)));
  seen.part.resize(static_cast<size_t>(got));
  return seen;
}

}  // namespace

DataThreads::DataThreads(kj::Timer& timer, std::chrono::milliseconds file_timeout)
    : copies({.name = "copies"}),
      downloads({.name = "downloads"}),
      files({.name = "files",
             .threads = kMaxFileThreads,
             .threads_per_lane = kMaxFolderThreads,
             .nice = kFileNice,
             .limit = file_timeout,
             .limit_name = "file_timeout"},
            &timer),
      // The decoder's own limit comes first.
      decodes({.name = "decodes",
               .nice = kFileNice,
               .limit = std::chrono::milliseconds(kDecoderTimeoutMs) + file_timeout,
               .limit_name = "decoder_timeout and file_timeout"},
              &timer) {}

FileCalls::FileCalls(const BulkParts& parts, TicketTable::TicketPointer ticket,
                     std::shared_ptr<DataConnection> connection)
    : files_(parts.files),
      decoder_(parts.decoder),
      threads_(parts.threads),
      open_files_(parts.places.open_files),
      ticket_(std::move(ticket)),
      connection_(std::move(connection)) {}

template <typename T>
kj::Promise<absl::StatusOr<T>> FileCalls::Ask(JobThreads& threads, size_t lane, const std::string& path,
                                              std::function<absl::StatusOr<T>()> call) {
  auto out = std::make_shared<absl::StatusOr<T>>(absl::FailedPreconditionError("file: the transfer is over"));
  Job job;
  job.session = ticket_->window.session.value;
  job.lane = lane;
  job.what = NameOfPath(path);
  job.step = [out, ticket = ticket_, call = std::move(call)](JobClock::time_point) {
    if (!ticket->over) *out = call();
    return JobStep::kDone;
  };
  return threads.Run(std::move(job)).then([out]() { return std::move(*out); });
}

template <typename T>
kj::Promise<absl::StatusOr<T>> FileCalls::AskFiles(const std::string& path, std::function<absl::StatusOr<T>()> call) {
  return Ask<T>(threads_.files, files_.roots.NumberOf(path), path, std::move(call));
}

// The part of an open file that is one tensor.
absl::StatusOr<std::shared_ptr<ShardFile>> FileCalls::MakeShardFile(OpenedPointer opened,
                                                                    wire::Transfer::OpenFileParams::Reader params,
                                                                    const TransferRange& range) const {
  const bool is_as_seen = opened->stamp().IsOf(static_cast<int64_t>(params.getBytes()), params.getModifiedNs());
  if (range.direction == TransferDirection::kUpload && !is_as_seen) {
    return absl::FailedPreconditionError(
        StrCat(NameOfPath(Text(params.getPath())), ": it has changed since it was looked at"));
  }
  const auto told = params.getLayout();
  const auto offset = static_cast<int64_t>(told.getOffset());
  std::vector<int64_t> strides;
  for (const int64_t stride : told.getStrides()) strides.push_back(stride);
  if (told.getIsDecoded()) {
    DecodedPlace place{Text(params.getPath()), Text(told.getMember()), offset, std::move(strides)};
    Decoder::IsWanted is_wanted = [ticket = ticket_]() { return !ticket->over; };
    return DecodedFile::Make(decoder_, std::move(opened), range.spec, std::move(place), std::move(is_wanted));
  }
  const ByteOrder order = told.getIsReversed() ? ByteOrder::kReversed : ByteOrder::kOwn;
  return TensorFile::Make(std::move(opened), range.spec, {offset, std::move(strides), order});
}

template <typename T>
kj::Promise<absl::StatusOr<T>> FileCalls::AskDecoder(const std::string& path,
                                                     std::function<absl::StatusOr<T>(const Decoder::IsWanted&)> call) {
  auto is_dropped = std::make_shared<std::atomic<bool>>(false);
  std::function<absl::StatusOr<T>()> ask = [call = std::move(call), ticket = ticket_, is_dropped]() {
    return call([&ticket, &is_dropped]() { return !ticket->over && !*is_dropped; });
  };
  return Ask<T>(threads_.decodes, 0, path, std::move(ask)).attach(kj::defer([is_dropped]() { *is_dropped = true; }));
}

absl::StatusOr<FairPlaces::Place> FileCalls::TakePlace(const std::string& path) const {
  return open_files_.Take(ticket_->window.session, StrCat(NameOfPath(path), ": open files"));
}

std::vector<FairPlaces::Place> FileCalls::TakeNewFilePlaces(const std::string& path) const {
  std::vector<FairPlaces::Place> places;
  for (int i = 0; i < 2; ++i) {
    auto place = TakePlace(path);
    ThrowIfError(place.status());
    places.push_back(*std::move(place));
  }
  return places;
}

kj::Promise<absl::StatusOr<std::shared_ptr<ShardFile>>> FileCalls::Open(wire::Transfer::OpenFileParams::Reader params,
                                                                        const TransferRange& range, size_t tensor) {
  Wanted wanted{Text(params.getPath()), params.getLayout().getIsDecoded(),
                range.direction == TransferDirection::kUpload};
  paths_[tensor] = wanted.path;
  const auto key = std::make_pair(wanted.path, wanted.is_decoded);
  if (const auto found = opened_.find(key); found != opened_.end()) {
    return MakeShardFile(found->second, params, range);
  }
  auto place = TakePlace(wanted.path);
  if (!place.ok()) return absl::StatusOr<std::shared_ptr<ShardFile>>(place.status());
  auto held = std::make_shared<FairPlaces::Place>(*std::move(place));
  std::function<absl::StatusOr<OpenedPointer>()> open = [&roots = files_.roots, &threads = threads_.files, wanted,
                                                         held]() -> absl::StatusOr<OpenedPointer> {
    TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, OpenWanted(roots, wanted));
    TESSERA_ASSIGN_OR_RETURN(OpenedPointer opened, OpenedFile::Make(std::move(file), std::move(*held)));
    return EndedOnThread(threads, roots.NumberOf(wanted.path), std::move(opened));
  };
  return AskFiles<OpenedPointer>(wanted.path, std::move(open))
      .then([this, key, params,
             &range](absl::StatusOr<OpenedPointer> opened) -> absl::StatusOr<std::shared_ptr<ShardFile>> {
        if (!opened.ok()) return opened.status();
        opened_[key] = *opened;
        return MakeShardFile(*std::move(opened), params, range);
      });
}

std::string FileCalls::NameOf(size_t tensor) const {
  const auto found = paths_.find(tensor);
  return found == paths_.end() ? "file" : NameOfPath(found->second);
}

size_t FileCalls::LaneOf(size_t tensor) const {
  const auto found = paths_.find(tensor);
  return found == paths_.end() ? 0 : files_.roots.NumberOf(found->second);
}

kj::Promise<void> FileCalls::CheckUnchanged(size_t tensor, std::shared_ptr<ShardFile> file) {
  std::function<absl::StatusOr<bool>()> check = [file = std::move(file),
                                                 name = NameOf(tensor)]() -> absl::StatusOr<bool> {
    TESSERA_RETURN_IF_ERROR(file->opened().CheckUnchanged(name));
    return true;
  };
  return AskFiles<bool>(paths_.at(tensor), std::move(check)).then([](absl::StatusOr<bool> same) {
    ThrowIfError(same.status());
  });
}

kj::Promise<void> FileCalls::Look(
    capnp::CallContext<wire::Transfer::LookAtFileParams, wire::Transfer::LookAtFileResults> context) {
  auto params = context.getParams();
  const uint32_t count = params.getCount();
  if (count > kMaxFilePart) {
    ThrowIfError(absl::InvalidArgumentError(
        StrCat("file: ", count, " bytes to look at, ", kMaxFilePart, " are allowed (max_file_part)")));
  }
  const uint64_t offset = params.getOffset();
  const std::string path = Text(params.getPath());
  context.releaseParams();
  return connection_->answers().Take(count).then([=, this](AnswerWindow::Room room) mutable {
    std::function<absl::StatusOr<Seen>()> look = [&roots = files_.roots, path, offset, count]() {
      return LookAt(roots, path, offset, count);
    };
    return AskFiles<Seen>(path, std::move(look))
        .then([context](absl::StatusOr<Seen> seen) mutable {
          ThrowIfError(seen.status());
          auto results = context.getResults();
          results.setBytes(static_cast<uint64_t>(seen->stamp.bytes));
          results.setModifiedNs(seen->stamp.modified_ns);
          results.setPart(kj::arrayPtr(seen->part.data(), seen->part.size()));
        })
        .attach(kj::mv(room));
  });
}

// Whatever the decoder says fits its buffer.
kj::Promise<void> FileCalls::Describe(
    capnp::CallContext<wire::Transfer::DescribeFileParams, wire::Transfer::DescribeFileResults> context) {
  const std::string path = Text(context.getParams().getPath());
  context.releaseParams();
  return connection_->answers().Take(kDecoderBufferBytes).then([=, this](AnswerWindow::Room room) mutable {
    std::function<absl::StatusOr<OpenedPointer>()> open = [&roots = files_.roots, &threads = threads_.files,
                                                           path]() -> absl::StatusOr<OpenedPointer> {
      TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, roots.OpenFileOrFolder(path));
      TESSERA_ASSIGN_OR_RETURN(OpenedPointer opened, OpenedFile::Make(std::move(file)));
      return EndedOnThread(threads, roots.NumberOf(path), std::move(opened));
    };
    return AskFiles<OpenedPointer>(path, std::move(open))
        .then([=, this](absl::StatusOr<OpenedPointer> opened) {
          ThrowIfError(opened.status());
          const OpenedPointer file = *std::move(opened);
          const FileStamp stamp = file->stamp();
          return AskDecoder<std::string>(path,
                                         [&decoder = decoder_, file, path](const Decoder::IsWanted& is_wanted) {
                                           return decoder.Describe(file->file(), path, is_wanted);
                                         })
              .then([context, stamp](absl::StatusOr<std::string> json) mutable {
                ThrowIfError(json.status());
                auto results = context.getResults();
                results.setBytes(static_cast<uint64_t>(stamp.bytes));
                results.setModifiedNs(stamp.modified_ns);
                results.setJson(kj::StringPtr(json->c_str(), json->size()).asBytes());
              });
        })
        .attach(kj::mv(room));
  });
}

kj::Promise<void> FileCalls::Create(
    capnp::CallContext<wire::Transfer::CreateFileParams, wire::Transfer::CreateFileResults> context) {
  auto params = context.getParams();
  const std::string path = Text(params.getPath());
  auto held = std::make_shared<std::vector<FairPlaces::Place>>(TakeNewFilePlaces(path));
  using Made = std::shared_ptr<NewFile>;
  std::function<absl::StatusOr<Made>()> create = [&roots = files_.roots, &threads = threads_.files, held, path,
                                                  name = Text(params.getName()), bytes = params.getBytes(),
                                                  head = Text(params.getHead().asChars())]() -> absl::StatusOr<Made> {
    if (bytes > static_cast<uint64_t>(kMaxFileBytes)) {
      return absl::InvalidArgumentError(StrCat("file: ", bytes, " bytes, ", kMaxFileBytes, " are allowed"));
    }
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<NewFile> made,
                             roots.Create(path, name, static_cast<int64_t>(bytes), head));
    return NewFileOnThread(threads, roots.NumberOf(path), std::move(*held), std::move(made));
  };
  context.releaseParams();
  return AskFiles<Made>(path, std::move(create)).then([this, path](absl::StatusOr<Made> made) {
    ThrowIfError(made.status());
    new_path_ = path;
    new_file_ = *std::move(made);
  });
}

kj::Promise<void> FileCalls::CreateFolder(
    capnp::CallContext<wire::Transfer::CreateFolderParams, wire::Transfer::CreateFolderResults> context) {
  auto params = context.getParams();
  const std::string path = Text(params.getPath());
  const std::string json = Text(params.getJson().asChars());
  auto held = std::make_shared<std::vector<FairPlaces::Place>>(TakeNewFilePlaces(path));
  using Made = std::shared_ptr<NewFile>;
  std::function<absl::StatusOr<Made>()> create = [&roots = files_.roots, &threads = threads_.files, held, path,
                                                  name = Text(params.getName())]() -> absl::StatusOr<Made> {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<NewFile> made, roots.CreateFolder(path, name));
    return NewFileOnThread(threads, roots.NumberOf(path), std::move(*held), std::move(made));
  };
  context.releaseParams();
  return AskFiles<Made>(path, std::move(create)).then([this, path, json](absl::StatusOr<Made> folder) {
    ThrowIfError(folder.status());
    const Made made = *std::move(folder);
    const auto fill = [&decoder = decoder_, made, path,
                       json](const Decoder::IsWanted& is_wanted) -> absl::StatusOr<Made> {
      TESSERA_RETURN_IF_ERROR(decoder.Create(made->file(), path, json, is_wanted));
      return made;
    };
    return AskDecoder<Made>(path, fill).then([this, path](absl::StatusOr<Made> filled) {
      ThrowIfError(filled.status());
      new_path_ = path;
      new_file_ = *std::move(filled);
    });
  });
}

kj::Promise<void> FileCalls::Commit() {
  if (new_file_ == nullptr) ThrowIfError(absl::FailedPreconditionError("commit: no file was made"));
  std::function<absl::StatusOr<bool>()> commit = [file = new_file_]() -> absl::StatusOr<bool> {
    TESSERA_RETURN_IF_ERROR(file->Commit());
    return true;
  };
  return AskFiles<bool>(new_path_, std::move(commit)).then([](absl::StatusOr<bool> committed) {
    ThrowIfError(committed.status());
  });
}

void FileCalls::LetGo() {
  opened_.clear();
  new_file_.reset();
}

}  // namespace tessera
