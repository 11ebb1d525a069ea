#include "client/rank_page/rank_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "schemas/host/memory_file.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLine = 128;  // two cache lines: the processor fetches them in pairs
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kBufferBytes = int64_t{256} << 10;  // docs/limits.md: page_buffer

// Words of the match: a call's number, and 16 bits beside it.
constexpr int kLowBits = 16;
constexpr uint64_t kLowMask = (uint64_t{1} << kLowBits) - 1;
constexpr uint64_t Pack(uint64_t number, uint64_t low) { return number << kLowBits | low; }
constexpr uint64_t NumberOf(uint64_t word) { return word >> kLowBits; }
constexpr uint64_t LowOf(uint64_t word) { return word & kLowMask; }

constexpr int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

int64_t PartBytes(int64_t ranks) { return std::max(kPageBytes, kBufferBytes / ranks / kPageBytes * kPageBytes); }

// A signature in two words.
constexpr int kOnDevicesBit = 57;
uint64_t HeadOf(const CollectiveSignature& signature) {
  return uint64_t{signature.on_devices} << kOnDevicesBit | uint64_t{1} << 56 |
         static_cast<uint64_t>(signature.kind) << 48 | static_cast<uint64_t>(signature.op) << 40 |
         static_cast<uint64_t>(signature.dtype) << 32 | static_cast<uint32_t>(signature.root);
}
CollectiveSignature SignatureOf(uint64_t head, int64_t elements) {
  CollectiveSignature signature;
  signature.kind = static_cast<CollectiveKind>(head >> 48 & 0xff);
  signature.op = static_cast<ReduceOp>(head >> 40 & 0xff);
  signature.dtype = static_cast<DType>(head >> 32 & 0xff);
  signature.root = static_cast<int32_t>(head & 0xffffffff);
  signature.elements = elements;
  signature.on_devices = (head >> kOnDevicesBit & 1) != 0;
  return signature;
}

}  // namespace

struct RankPage::Header {
  // The call that ranks come to, and how many have.
  alignas(kLine) std::atomic<uint64_t> arrivals;
  // The last call with a verdict, and how many calls ago one was granted: 0, it was this one.
  alignas(kLine) std::atomic<uint64_t> decided;
  alignas(kLine) std::atomic<uint32_t> closed;  // 0, or 1 and the rank that is blamed
  // The ranks that sleep until there is a verdict wait on it.
  alignas(kLine) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleepers;
};

// Written by its own rank, but for the bell.
struct RankPage::Line {
  alignas(kLine) std::atomic<uint64_t> step;
  std::atomic<uint64_t> came;
  std::atomic<uint64_t> head;
  std::atomic<int64_t> elements;
  // In the arena, of calls in turn: a rank may come to the next call before others have looked at these.
  std::atomic<int64_t> input_at[2], output_at[2];
  std::atomic<uint32_t> sleeping;
  std::atomic<int32_t> login;  // the session of its process (setsid)
  alignas(kLine) std::atomic<uint32_t> bell;
};

struct RankPage::Noted {
  std::atomic<uint64_t> number;
  std::atomic<uint64_t> head;
  std::atomic<int64_t> elements;
  std::atomic<int64_t> came_ns;
  std::atomic<int64_t> granted_ns;
};

int64_t RankPage::BytesFor(int64_t ranks) {
  const int64_t words = static_cast<int64_t>(sizeof(Header)) +
                        ranks * static_cast<int64_t>(sizeof(Line) + kMaxPageFlightCalls * sizeof(Noted));
  return RoundUp(words, kPageBytes) + ranks * 2 * (ranks + 1) * PartBytes(ranks);
}

absl::StatusOr<std::unique_ptr<RankPage>> RankPage::Map(int fd, int64_t rank, int64_t ranks) {
  struct stat info;
  const int64_t bytes = BytesFor(ranks);
  if (fstat(fd, &info) != 0) return absl::InvalidArgumentError("a group's page: the descriptor is not open");
  if (info.st_size != bytes) {
    return absl::InvalidArgumentError(
        StrCat("a group's page of ", info.st_size, " bytes; that of ", ranks, " ranks has ", bytes));
  }
  TESSERA_RETURN_IF_ERROR(CheckMemoryFile(fd, F_SEAL_SHRINK | F_SEAL_GROW));
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(StrCat("a group's page of ", bytes, " bytes: mmap: ", std::strerror(errno)));
  }
  return std::unique_ptr<RankPage>(new RankPage(static_cast<std::byte*>(base), bytes, rank, ranks));
}

RankPage::RankPage(std::byte* base, int64_t bytes, int64_t rank, int64_t ranks)
    : base_(base), bytes_(bytes), rank_(rank), ranks_(ranks), part_bytes_(PartBytes(ranks)) {
  line(rank).login = getsid(0);
}

RankPage::~RankPage() { munmap(base_, static_cast<size_t>(bytes_)); }

RankPage::Header& RankPage::header() const { return *reinterpret_cast<Header*>(base_); }
RankPage::Line& RankPage::line(int64_t rank) const { return reinterpret_cast<Line*>(base_ + sizeof(Header))[rank]; }
RankPage::Noted* RankPage::flight(int64_t rank) const {
  std::byte* const first = base_ + sizeof(Header) + static_cast<size_t>(ranks_) * sizeof(Line);
  return reinterpret_cast<Noted*>(first) + static_cast<size_t>(rank) * kMaxPageFlightCalls;
}
std::byte* RankPage::buffer(int64_t rank, uint64_t turn) const {
  const int64_t buffer_bytes = (ranks_ + 1) * part_bytes_;
  std::byte* const first = base_ + (bytes_ - ranks_ * 2 * buffer_bytes);
  return first + (rank * 2 + static_cast<int64_t>(turn & 1)) * buffer_bytes;
}

// ---- the match

void RankPage::Come(uint64_t number, const CollectiveSignature& signature, const Places& places) {
  Line& own = line(rank_);
  own.input_at[number & 1].store(places.input, std::memory_order_relaxed);
  own.output_at[number & 1].store(places.output, std::memory_order_relaxed);
  own.head.store(HeadOf(signature), std::memory_order_relaxed);
  own.elements.store(signature.elements, std::memory_order_relaxed);
  own.came.store(number, std::memory_order_relaxed);
  Noted& noted = flight(rank_)[number % kMaxPageFlightCalls];
  noted.number.store(0, std::memory_order_relaxed);
  noted.head.store(HeadOf(signature), std::memory_order_relaxed);
  noted.elements.store(signature.elements, std::memory_order_relaxed);
  noted.came_ns.store(SteadyNs(), std::memory_order_relaxed);
  noted.granted_ns.store(-1, std::memory_order_relaxed);
  noted.number.store(number, std::memory_order_release);
  std::atomic<uint64_t>& arrivals = header().arrivals;
  uint64_t known = arrivals.load(std::memory_order_acquire), next = 0;
  do {
    if (NumberOf(known) > number) return;  // the others have it asked
    // This rank has the verdict of the call before: nobody counts on who came to that.
    next = NumberOf(known) == number ? known + 1 : Pack(number, 1);
  } while (!arrivals.compare_exchange_weak(known, next, std::memory_order_acq_rel));
  if (LowOf(next) == static_cast<uint64_t>(ranks_)) {
    Decide(number, AreAllTheSame() ? Verdict::kGranted : Verdict::kAsked);
  }
}

RankPage::Places RankPage::PlacesOf(int64_t rank, uint64_t number) const {
  const Line& other = line(rank);
  return {other.input_at[number & 1].load(std::memory_order_relaxed),
          other.output_at[number & 1].load(std::memory_order_relaxed)};
}

bool RankPage::AreAllTheSame() const {
  const Line& own = line(rank_);
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const Line& other = line(rank);
    if (other.head.load(std::memory_order_relaxed) != own.head.load(std::memory_order_relaxed) ||
        other.elements.load(std::memory_order_relaxed) != own.elements.load(std::memory_order_relaxed)) {
      return false;
    }
  }
  return true;
}

void RankPage::Decide(uint64_t number, Verdict verdict) {
  std::atomic<uint64_t>& decided = header().decided;
  uint64_t known = decided.load(std::memory_order_acquire);
  if (NumberOf(known) >= number) return;
  const uint64_t ago = verdict == Verdict::kGranted ? 0 : std::min(LowOf(known) + 1, kLowMask);
  // Where it fails, another rank has given this call a verdict.
  if (decided.compare_exchange_strong(known, Pack(number, ago), std::memory_order_acq_rel))
    RingIfAsleep(verdict_bell());
}

RankPage::Verdict RankPage::VerdictOf(uint64_t number) const {
  const uint64_t known = header().decided.load(std::memory_order_acquire);
  const uint64_t last = NumberOf(known);
  if (last < number) return Verdict::kOpen;
  // After the last call that all came to, all were asked: those are more than this rank came to.
  const bool is_granted = LowOf(known) != kLowMask && last - LowOf(known) == number;
  return is_granted ? Verdict::kGranted : Verdict::kAsked;
}

RankPage::Verdict RankPage::Ask(uint64_t number) {
  line(rank_).came.store(number, std::memory_order_relaxed);
  Decide(number, Verdict::kAsked);
  return VerdictOf(number);
}

uint64_t RankPage::LastCallOf(int64_t rank) const { return line(rank).came.load(std::memory_order_relaxed); }

void RankPage::NoteGranted(uint64_t number) {
  flight(rank_)[number % kMaxPageFlightCalls].granted_ns.store(SteadyNs(), std::memory_order_relaxed);
}

// ---- the steps

std::byte* RankPage::Part(int64_t rank, int64_t part) const { return buffer(rank, turn_) + part * part_bytes_; }
std::byte* RankPage::NextPart(int64_t part) const { return buffer(rank_, turn_ + 1) + part * part_bytes_; }

void RankPage::PublishNext() {
  ++turn_;
  seen_ = 0;
  line(rank_).step.store(++step_, std::memory_order_release);
  WakeForStep();
}

bool RankPage::HaveAllPublished() {
  while (seen_ < ranks_ && line(seen_).step.load(std::memory_order_acquire) >= step_) ++seen_;
  return seen_ == ranks_;
}

// The fence of PublishNext lies between this rank's step and its look at `closed`.
RankPage::StepState RankPage::LookAtStep() {
  if (is_closed()) return StepState::kClosed;
  return HaveAllPublished() ? StepState::kPublished : StepState::kOpen;
}

int64_t RankPage::FindMissing() const {
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    if (line(rank).step.load(std::memory_order_acquire) < step_) return rank;
  }
  return -1;
}

void RankPage::Close(int64_t missing) {
  uint32_t open = 0;
  header().closed.compare_exchange_strong(open, static_cast<uint32_t>(missing) + 1, std::memory_order_seq_cst);
  RingIfAsleep(verdict_bell());
  WakeForStep();
}
bool RankPage::is_closed() const { return header().closed.load(std::memory_order_relaxed) != 0; }
int64_t RankPage::blamed() const {
  const int64_t rank = int64_t{header().closed.load(std::memory_order_relaxed)} - 1;
  return std::clamp<int64_t>(rank, 0, ranks_ - 1);
}

// ---- waiting

Bell RankPage::verdict_bell() const { return {header().bell, header().sleepers}; }
Bell RankPage::step_bell(int64_t rank) const { return {line(rank).bell, line(rank).sleeping}; }

void RankPage::WakeForStep() {
  FenceBeforeBells();
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) RingIfSeenAsleep(step_bell(rank));
  }
}

void RankPage::Wake() {
  Ring(line(rank_).bell);
  Ring(header().bell);
}

bool RankPage::HasStrangers() {
  if (has_strangers_.has_value()) return *has_strangers_;
  const int32_t login = line(rank_).login.load(std::memory_order_relaxed);
  has_strangers_ = false;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    if (line(rank).login.load(std::memory_order_relaxed) != login) has_strangers_ = true;
  }
  return *has_strangers_;
}

void RankPage::Await(News news, absl::FunctionRef<bool()> done, int64_t until_ns) {
  const Bell bell = news == News::kVerdict ? verdict_bell() : step_bell(rank_);
  AwaitBell(bell, PatienceOf(ranks_, HasStrangers()), linger_, done, until_ns);
}

std::vector<RankPage::FlightCall> RankPage::FlightOf(int64_t rank) const {
  std::vector<FlightCall> calls;
  for (size_t i = 0; i < kMaxPageFlightCalls; ++i) {
    const Noted& noted = flight(rank)[i];
    const uint64_t number = noted.number.load(std::memory_order_acquire);
    const uint64_t head = noted.head.load(std::memory_order_acquire);
    const int64_t elements = noted.elements.load(std::memory_order_acquire);
    const int64_t came_ns = noted.came_ns.load(std::memory_order_acquire);
    const int64_t granted_ns = noted.granted_ns.load(std::memory_order_acquire);
    if (number == 0 || noted.number.load(std::memory_order_acquire) != number) continue;
    const CollectiveSignature signature = SignatureOf(head, elements);
    if (signature.kind > kLastCollectiveKind || signature.op > kLastReduceOp ||
        !DTypeFromWire(static_cast<int>(signature.dtype)).ok()) {
      continue;  // damaged
    }
    calls.push_back({number, signature, came_ns, granted_ns});
  }
  std::sort(calls.begin(), calls.end(), [](const FlightCall& a, const FlightCall& b) { return a.number < b.number; });
  return calls;
}

}  // namespace tessera
