#include "server/worker/files/decoder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/files/decoder_reply.h"

namespace tessera {
namespace {

// Where the child has the line, and the buffer.
constexpr int kLineFd = 3, kBufferFd = 4;
constexpr std::string_view kOwnVariables = "TESSERA_";  // tokens are among them
constexpr size_t kMaxShownPath = 200;

// The ending of the last name: the folders on the way may have dots, too.
std::string_view EndingOf(std::string_view path) {
  if (const size_t slash = path.rfind('/'); slash != std::string_view::npos) path.remove_prefix(slash + 1);
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot);
}

void AppendList(std::string* line, std::string_view name, const std::vector<int64_t>& numbers) {
  StrAppend(line, ",\"", name, "\":[");
  for (size_t i = 0; i < numbers.size(); ++i) StrAppend(line, i == 0 ? "" : ",", numbers[i]);
  line->append("]");
}

// A line of JSON; text from strangers, a name or JSON, follows it as it is.
std::string RequestText(std::string_view what, std::string_view ending, const DecodedPart* part,
                        std::string_view text) {
  std::string request = StrCat("{\"do\":\"", what, "\",\"format\":\"");
  for (const char c : ending) {
    const bool is_plain = c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_plain) request.push_back(c);
  }
  request.append("\"");
  if (part != nullptr) {
    StrAppend(&request, ",\"offset\":", part->offset_bytes, ",\"item\":", part->element_bytes);
    AppendList(&request, "extents", part->extents);
    AppendList(&request, "strides", part->strides);
  }
  StrAppend(&request, "}\n", text);
  return request;
}

// Above what the child's own are moved to.
FileDescriptor Raised(FileDescriptor fd) { return FileDescriptor(fcntl(fd.get(), F_DUPFD_CLOEXEC, kBufferFd + 1)); }

absl::Status SpawnPython(const DecoderOptions& options, int line, int buffer, pid_t* process) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  posix_spawn_file_actions_adddup2(&actions, line, kLineFd);
  posix_spawn_file_actions_adddup2(&actions, buffer, kBufferFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kBufferFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  // -P: nothing is imported from the current folder, which may be one of data.
  std::vector<std::string> arguments = {options.python,
                                        "-P",
                                        "-m",
                                        "tessera.decoder",
                                        StrCat(options.memory_bytes),
                                        StrCat(options.umask),
                                        options.may_be_unconfined ? "unconfined" : "confined"};
  arguments.insert(arguments.end(), options.folders.begin(), options.folders.end());
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, kOwnVariables.data(), kOwnVariables.size()) != 0) envp.push_back(*entry);
  }
  // A core is a worker's; and each thread's arena of malloc counts as memory.
  std::array<std::string, 3> own = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MALLOC_ARENA_MAX=2"};
  for (std::string& entry : own) envp.push_back(entry.data());
  envp.push_back(nullptr);
  const int error = posix_spawnp(process, options.python.c_str(), &actions, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return absl::OkStatus();
  *process = -1;
  return absl::FailedPreconditionError(
      StrCat("decoder: ", Printable(options.python), " does not start: ", std::string_view(strerror(error))));
}

// A process's buffer: what it is given, and where the worker has it.
struct Buffer {
  FileDescriptor memory;
  std::byte* base;
};

// Its size is sealed: a page that the decoder takes away would end the worker.
absl::StatusOr<Buffer> MakeBuffer() {
  FileDescriptor memory(memfd_create("tessera-decoder", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || posix_fallocate(memory.get(), 0, kDecoderBufferBytes) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return absl::ResourceExhaustedError(StrCat("decoder: no memory for a buffer of ", kDecoderBufferBytes, " bytes"));
  }
  void* const base = mmap(nullptr, kDecoderBufferBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) return absl::ResourceExhaustedError("decoder: its buffer can't be mapped");
  return Buffer{Raised(std::move(memory)), static_cast<std::byte*>(base)};
}

// Whether the process of a pidfd has ended, or does so in time.
bool HasEnded(const FileDescriptor& exit, int timeout_ms) {
  pollfd over{exit.get(), POLLIN, 0};
  return exit.get() >= 0 && poll(&over, 1, timeout_ms) > 0;
}

}  // namespace

Decoder::~Decoder() {
  if (process_.number >= 0) kill(process_.number, SIGKILL);
  End();
}

absl::Status Decoder::Start() {
  if (options_.python.empty()) {
    return absl::FailedPreconditionError(
        "decoder: this worker has none: it was started without --decoder, the Python that reads such files");
  }
  if (!options_.missing_confinement.empty() && !options_.may_be_unconfined) {
    return absl::FailedPreconditionError(
        StrCat("decoder: this worker decodes nothing: its kernel has no ", options_.missing_confinement,
               ", so nothing would confine a decoder; its operator may allow that by --decoder-unconfined"));
  }
  if (process_.number >= 0 && HasEnded(process_.exit, 0)) End();
  if (process_.number >= 0) return absl::OkStatus();
  if (const size_t count = CountEnding(); count >= kMaxEndingDecoders) {
    return absl::UnavailableError(StrCat("decoder: ", count, " processes that were ended are still there, as those do ",
                                         "that wait for a disk (max_ending_decoders)"));
  }
  TESSERA_ASSIGN_OR_RETURN(Buffer buffer, MakeBuffer());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    munmap(buffer.base, kDecoderBufferBytes);
    return absl::ResourceExhaustedError(StrCat("decoder: no socket: ", std::string_view(strerror(errno))));
  }
  process_.buffer = buffer.base;
  process_.line = Raised(FileDescriptor(ends[0]));
  const FileDescriptor theirs = Raised(FileDescriptor(ends[1]));
  absl::Status started = SpawnPython(options_, theirs.get(), buffer.memory.get(), &process_.number);
  if (started.ok()) {
    process_.exit = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, process_.number, 0)));
    if (process_.exit.get() >= 0) return absl::OkStatus();
    started =
        absl::ResourceExhaustedError(StrCat("decoder: its end can't be watched: ", std::string_view(strerror(errno))));
    kill(process_.number, SIGKILL);
  }
  End();
  return started;
}

size_t Decoder::CountEnding() {
  const auto has_gone = [](pid_t process) { return waitpid(process, nullptr, WNOHANG) != 0; };
  ending_.erase(std::remove_if(ending_.begin(), ending_.end(), has_gone), ending_.end());
  return ending_.size();
}

std::string Decoder::End() {
  const Process process = std::exchange(process_, Process());
  if (process.buffer != nullptr) munmap(process.buffer, kDecoderBufferBytes);
  if (process.number < 0) return "";
  shutdown(process.line.get(), SHUT_RDWR);
  // A process that ends by itself, as it does when its line is closed or a signal came, says why.
  const bool ends_itself = HasEnded(process.exit, kDecoderEndMs);
  if (!ends_itself) {
    kill(process.number, SIGKILL);
    HasEnded(process.exit, kDecoderEndMs);
  }
  int status = 0;
  if (waitpid(process.number, &status, WNOHANG) == 0) {
    ending_.push_back(process.number);
    return "it was ended";
  }
  if (!ends_itself) return "it was ended";
  if (WIFSIGNALED(status)) {
    return StrCat("killed by signal ", WTERMSIG(status), " (", std::string_view(strsignal(WTERMSIG(status))), ")");
  }
  return StrCat("exit status ", WEXITSTATUS(status));
}

absl::Status Decoder::Send(std::string_view request, int file) {
  iovec part{const_cast<char*>(request.data()), request.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  // Not more than one question is under way, so the socket has room for it.
  if (sendmsg(process_.line.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
  return absl::UnavailableError(StrCat("decoder: no question reaches it: ", std::string_view(strerror(errno))));
}

absl::StatusOr<int64_t> Decoder::Receive(const IsWanted& is_wanted) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const auto asked = Clock::now();
  const auto end = [this](const absl::Status& why) {
    kill(process_.number, SIGKILL);
    End();
    return why;
  };
  for (;;) {
    const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - asked).count();
    if (passed >= options_.timeout_ms) {
      return end(
          absl::DeadlineExceededError(StrCat("decoder: no answer within ", options_.timeout_ms, " ms; it was ended")));
    }
    if (passed >= kDecoderUnwantedMs && is_wanted && !is_wanted()) {
      return end(absl::CancelledError("decoder: nobody waits for its answer any more; it was ended"));
    }
    // A process that it left may hold the line open, so its own end counts, too.
    std::array<pollfd, 2> ready = {pollfd{process_.line.get(), POLLIN, 0}, pollfd{process_.exit.get(), POLLIN, 0}};
    const int64_t left = options_.timeout_ms - passed;
    const int count =
        poll(ready.data(), ready.size(), static_cast<int>(is_wanted ? std::min(left, kDecoderLookMs) : left));
    if (count <= 0) continue;
    std::array<char, kMaxDecoderReply + 1> packet;
    const ssize_t bytes = recv(process_.line.get(), packet.data(), packet.size(), MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return absl::UnavailableError(StrCat("decoder: it ended before it answered: ", End()));
    return ParseDecoderReply(std::string_view(packet.data(), static_cast<size_t>(bytes)), kDecoderBufferBytes);
  }
}

absl::StatusOr<int64_t> Decoder::Ask(const Question& question) {
  const auto told = [&question](const absl::Status& status) {
    return absl::Status(status.code(),
                        StrCat("file ", Printable(question.path, kMaxShownPath), ": ", StdView(status.message())));
  };
  const std::string request = RequestText(question.what, EndingOf(question.path), question.part, question.text);
  if (request.size() > kMaxDecoderRequest) {
    return told(absl::InvalidArgumentError(StrCat("decoder: a question of ", request.size(), " bytes, ",
                                                  kMaxDecoderRequest, " are allowed (max_decoder_request)")));
  }
  const auto begin = [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(Start());
    if (question.fill) question.fill(process_.buffer);
    return absl::OkStatus();
  };
  if (absl::Status begun = begin(); !begun.ok()) return told(begun);
  if (!Send(request, question.file.get()).ok()) {  // it has ended since Start looked
    End();
    if (absl::Status begun = begin(); !begun.ok()) return told(begun);
    if (!Send(request, question.file.get()).ok()) {
      return told(absl::UnavailableError(StrCat("decoder: it ended before it answered: ", End())));
    }
  }
  absl::StatusOr<int64_t> bytes = Receive(question.is_wanted);
  if (absl::IsInternal(bytes.status())) End();  // what it says makes no sense
  if (!bytes.ok()) return told(bytes.status());
  return bytes;
}

absl::StatusOr<std::string> Decoder::Describe(const FileDescriptor& file, std::string_view path,
                                              const IsWanted& is_wanted) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                           Ask({.what = "describe", .file = file, .path = path, .is_wanted = is_wanted}));
  return std::string(reinterpret_cast<const char*>(process_.buffer), static_cast<size_t>(bytes));
}

absl::Status Decoder::Create(const FileDescriptor& folder, std::string_view path, std::string_view json,
                             const IsWanted& is_wanted) {
  return Ask({.what = "create", .file = folder, .path = path, .text = json, .is_wanted = is_wanted}).status();
}

absl::Status Decoder::Read(const FileDescriptor& file, std::string_view path, const DecodedPart& part,
                           const IsWanted& is_wanted) {
  int64_t wanted = part.element_bytes;
  for (const int64_t extent : part.extents) wanted *= extent;
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t bytes,
      Ask({.what = "read", .file = file, .path = path, .part = &part, .text = part.member, .is_wanted = is_wanted}));
  if (bytes == wanted) return absl::OkStatus();
  return absl::InternalError(
      StrCat("file ", Printable(path, kMaxShownPath), ": decoder: ", bytes, " bytes, ", wanted, " were asked for"));
}

absl::Status Decoder::Write(const FileDescriptor& folder, std::string_view path, const DecodedPart& part,
                            const std::function<void(std::byte*)>& fill) {
  return Ask({.what = "write", .file = folder, .path = path, .part = &part, .text = part.member, .fill = fill})
      .status();
}

}  // namespace tessera
