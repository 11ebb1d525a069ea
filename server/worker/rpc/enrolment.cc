#include "server/worker/rpc/enrolment.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <future>
#include <optional>
#include <utility>

#include <kj/async-io.h>
#include <spdlog/spdlog.h>

#include "schemas/enroll.capnp.h"
#include "schemas/link/authority.h"
#include "schemas/link/dialer.h"
#include "schemas/link/exception.h"
#include "schemas/link/pinned_server.h"
#include "schemas/link/two_party.h"
#include "schemas/session.capnp.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kHandshakeTimeoutS = 10;
constexpr std::time_t kMaxClockSkewS = 1800;  // docs/limits.md: max_clock_skew
constexpr std::time_t kToldClockSkewS = 60;
constexpr std::chrono::milliseconds kFirstPause{100}, kLongestPause{1000};  // docs/limits.md: join_pause
constexpr std::chrono::seconds kRenewalPause{10};                           // docs/limits.md: renewal_pause

// Text in memory under the name of a descriptor. -1: the host gives no memory.
int MemoryOf(const std::string& text) {
  const int fd = memfd_create("tessera-certificate", MFD_CLOEXEC);
  if (fd >= 0 && write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    close(fd);
    return -1;
  }
  return fd;
}

std::string NameOf(int fd) { return StrCat("/proc/self/fd/", fd); }

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  std::ifstream in(file);
  std::string token, more;
  if (in >> token && !(in >> more)) return token;
  return absl::InvalidArgumentError(
      StrCat("--join-token-file ", Printable(file, 200), ": ",
             in.is_open() ? "it has one word, the workers' token" : std::strerror(errno)));
}

// The state of one call, by a connection of its own.
struct Asked {
  const EnrolmentOptions& options;
  const TlsFiles& files;
  const std::string& key_request;
  int index;
  bool renews;
  std::time_t former_ends_at;
  const std::string& proof;
};
struct Answered {
  std::string certificate;
  std::time_t ends_at = 0, now = 0;
  int index = -1;
  int workers_port = 0;
  std::string proof;
};

absl::StatusOr<Answered> Ask(const Asked& asked) {
  TESSERA_ASSIGN_OR_RETURN(const Address address, ParseAddress("--join", asked.options.address));
  auto io = kj::setupAsyncIo();
  TlsFiles authority;
  authority.ca = asked.files.ca;
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Dialer> dialer,
                           Dialer::Make("join", address, DialedServer::kCoordinator, authority, io));
  Answered answered;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                 auto& timer = io.provider->getTimer();
                 const auto late = static_cast<int64_t>(kHandshakeTimeoutS * 1e6) * kj::MICROSECONDS;
                 DialedConnection connection(dialer->kind(),
                                             timer.timeoutAfter(late, dialer->Connect()).wait(io.waitScope));
                 auto call = connection.Bootstrap<wire::Enrolment>().enrollRequest();
                 auto request = call.initRequest();
                 request.setProtocolVersion(wire::PROTOCOL_VERSION);
                 request.setJoinToken(asked.options.token.c_str());
                 request.setIndex(asked.index);
                 request.setKeyRequest(asked.key_request.c_str());
                 request.setRenews(asked.renews);
                 request.setFormerEndsAtS(asked.former_ends_at);
                 request.setProof(asked.proof.c_str());
                 std::vector<std::string> hosts = asked.options.hosts;
                 if (!asked.options.own_name.empty()) hosts.push_back(asked.options.own_name);
                 auto list = request.initHosts(static_cast<kj::uint>(hosts.size()));
                 for (kj::uint i = 0; i < list.size(); ++i) list.set(i, hosts[i].c_str());
                 auto response = timer.timeoutAfter(late, call.send()).wait(io.waitScope);
                 const auto answer = response.getAnswer();
                 answered = {
                     answer.getCertificate().cStr(), answer.getEndsAtS(),     answer.getNowS(), answer.getIndex(),
                     answer.getWorkersPort(),        answer.getProof().cStr()};
               })) {
    if (exception->getType() == kj::Exception::Type::UNIMPLEMENTED) {
      return absl::FailedPreconditionError(
          StrCat("join: the coordinator at ", asked.options.address, " is of another version, and enrols nobody: take ",
                 "the same version for both, or --coordinator with --tls-cert, --tls-key and --tls-ca"));
    }
    return FromException(*exception);
  }
  return answered;
}

bool MayPass(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsAlreadyExists(status); }

}  // namespace

absl::StatusOr<std::unique_ptr<Enrolment>> Enrolment::Make(EnrolmentOptions options) {
  signal(SIGPIPE, SIG_IGN);
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout_s));
  std::unique_ptr<Enrolment> enrolment(new Enrolment(std::move(options)));
  bool is_told = false;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    absl::Status status = enrolment->FindAuthority();
    // A loop of its own: this thread's may be set up later, for signals that are captured by then.
    if (status.ok()) {
      status = std::async(std::launch::async, [&enrolment]() { return enrolment->Enroll(Asks::kFirst); }).get();
    }
    if (status.ok()) return enrolment;
    if (!MayPass(status) || Clock::now() + pause > end) return status;
    if (!is_told) {
      spdlog::info("{}; waiting up to {} s (--join-timeout)", std::string(status.message()),
                   enrolment->options_.timeout_s);
    }
    is_told = true;
    // Between two tries of a process that does nothing else.
    std::promise<void> never;
    never.get_future().wait_for(pause);
  }
}

absl::Status Enrolment::FindAuthority() {
  TESSERA_ASSIGN_OR_RETURN(const Address address, ParseAddress("--join", options_.address));
  if (options_.ca_pin.empty() && options_.ca_file.empty()) {
    return absl::InvalidArgumentError(
        "--join needs --ca-pin sha256:..., as `tessera up` prints it, or --tls-ca FILE: who signs the coordinator's "
        "certificate");
  }
  std::string ca;
  std::string own_address;
  if (options_.ca_pin.empty()) {
    std::ifstream in(options_.ca_file);
    ca.assign(std::istreambuf_iterator<char>(in), {});
    if (!in.is_open() || ca.empty()) {
      return absl::NotFoundError(StrCat("--tls-ca ", options_.ca_file, ": ", std::strerror(errno)));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string pin, PinOf(ca));
    TESSERA_ASSIGN_OR_RETURN(const PinnedServer found, FindPinnedServer("join", address, pin, kHandshakeTimeoutS));
    own_address = found.own_address;
  } else {
    TESSERA_ASSIGN_OR_RETURN(PinnedServer found,
                             FindPinnedServer("join", address, options_.ca_pin, kHandshakeTimeoutS));
    ca = std::move(found.ca);
    own_address = found.own_address;
  }
  if (options_.hosts.empty()) options_.hosts.push_back(own_address);
  if (ca_fd_ >= 0) return absl::OkStatus();
  ca_fd_ = MemoryOf(ca);
  if (ca_fd_ < 0) return absl::ResourceExhaustedError(StrCat("join: memory for a CA: ", std::strerror(errno)));
  files_.ca = NameOf(ca_fd_);
  return absl::OkStatus();
}

absl::Status Enrolment::Enroll(Asks asks) {
  TESSERA_ASSIGN_OR_RETURN(const KeyRequest own, MakeKeyRequest());
  if (!options_.token_file.empty()) {
    TESSERA_ASSIGN_OR_RETURN(options_.token, ReadToken(options_.token_file));
  }
  const bool renews = asks == Asks::kAgain;
  TESSERA_ASSIGN_OR_RETURN(const Answered answered, Ask({options_, files_, own.request,
                                                         renews ? index_ : options_.index, renews, ends_at_, proof_}));
  TESSERA_RETURN_IF_ERROR(CheckClock(answered.now));
  TESSERA_RETURN_IF_ERROR(PutLeaf(answered.certificate, own.key));
  starts_at_ = answered.now;
  ends_at_ = answered.ends_at;
  proof_ = answered.proof;
  if (renews) return absl::OkStatus();
  index_ = answered.index;
  TESSERA_ASSIGN_OR_RETURN(Address address, ParseAddress("--join", options_.address));
  address.port = answered.workers_port;
  address.token.clear();
  coordinator_ = ToText(address);
  return absl::OkStatus();
}

absl::Status Enrolment::CheckClock(std::time_t coordinators) const {
  const std::time_t ahead = std::time(nullptr) - coordinators;
  const std::string how = StrCat("this machine's clock is ", std::abs(ahead), " s ", ahead > 0 ? "ahead of" : "behind",
                                 " that of the coordinator at ", options_.address);
  if (std::abs(ahead) > kMaxClockSkewS) {
    return absl::FailedPreconditionError(
        StrCat("join: ", how, ": certificates would not be valid on both; set the clock of one (max_clock_skew)"));
  }
  if (std::abs(ahead) > kToldClockSkewS) spdlog::warn("{}; set the clock of one", how);
  return absl::OkStatus();
}

absl::Status Enrolment::PutLeaf(const std::string& certificate, const std::string& key) {
  // Both in one: a reader never finds the key of another certificate.
  const int made = MemoryOf(StrCat(certificate, key));
  if (made < 0) return absl::ResourceExhaustedError(StrCat("join: memory for a certificate: ", std::strerror(errno)));
  if (leaf_fd_ < 0) {
    leaf_fd_ = made;
    files_.certificate = files_.key = NameOf(leaf_fd_);
    return absl::OkStatus();
  }
  const bool is_placed = dup3(made, leaf_fd_, O_CLOEXEC) == leaf_fd_;
  close(made);
  if (is_placed) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("join: a new certificate's place: ", std::strerror(errno)));
}

void Enrolment::KeepRenewed(std::function<void()> renewed) {
  renewed_ = std::move(renewed);
  // Signals go to the loop's thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this]() { RenewForever(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Enrolment::RenewForever() {
  std::promise<void> never;
  const std::future<void> end = never.get_future();
  for (;;) {
    const std::time_t due = starts_at_ + (ends_at_ - starts_at_) * 2 / 3;
    end.wait_for(std::chrono::seconds(std::max<std::time_t>(1, due - std::time(nullptr))));
    const absl::Status status = Enroll(Asks::kAgain);
    if (status.ok()) {
      spdlog::info("worker {}: its certificate is renewed, for {} s", index_, ends_at_ - std::time(nullptr));
      renewed_();
      continue;
    }
    const std::time_t left = ends_at_ - std::time(nullptr);
    spdlog::warn("worker {}: its certificate is not renewed: {}; it {}", index_, std::string(status.message()),
                 left > 0 ? StrCat("is good for ", left, " s more")
                          : "has expired: connections that are there go on, and no new ones are made with it");
    end.wait_for(
        std::min<std::chrono::seconds>(kRenewalPause, std::chrono::seconds(std::max<std::time_t>(1, left / 4))));
  }
}

}  // namespace tessera
