#include "tests/emulator/cuda/nccl/meeting.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace tessera::emulator::nccl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoot = "/dev/shm";
constexpr std::string_view kPrefix = "tessera-nccl-";

struct Header {
  int64_t count = 0;
  int64_t dtype = 0;
};

std::string Text(const Part& part) {
  return std::string(part.is_send ? "send " : "recv ") + std::to_string(part.peer) + " " + std::to_string(part.number);
}

// A reader sees all of it or nothing.
void WriteWhole(const std::string& path, const std::string& bytes, const std::string& unique) {
  const std::string beside = path + ".part" + unique;
  std::ofstream(beside, std::ios::binary) << bytes;
  std::error_code ignored;
  fs::rename(beside, path, ignored);
}

std::optional<std::string> ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace

// A process that is killed leaves its folders; the next one that makes any takes them away.
std::string Meeting::MakeFolder() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(kRoot, ignored)) {
    const std::string name = entry.path().filename();
    if (name.compare(0, kPrefix.size(), kPrefix) != 0) continue;
    const pid_t owner = std::atoi(name.c_str() + kPrefix.size());
    if (owner > 0 && kill(owner, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), ignored);
  }
  std::string path = std::string(kRoot) + "/" + std::string(kPrefix) + std::to_string(getpid()) + "-XXXXXX";
  return mkdtemp(path.data()) == nullptr ? "" : path;
}

std::string Meeting::PathOf(int from, int to, uint64_t number) const {
  return Path(std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number));
}

bool Meeting::Exists(const std::string& name) const {
  std::error_code ignored;
  return fs::exists(Path(name), ignored);
}

void Meeting::Come() const {
  const char* host = std::getenv("NCCL_HOSTID");
  const std::string who = std::to_string(getpid()) + " " + (host == nullptr ? "" : host);
  WriteWhole(Path("rank-" + std::to_string(self_)), who, std::to_string(self_));
}

std::optional<std::string> Meeting::FindSharedGpu() const {
  std::map<std::string, std::pair<std::string, int>> hosts;  // the process and the rank
  for (int rank = 0; rank < ranks_; ++rank) {
    std::istringstream who(ReadWhole(Path("rank-" + std::to_string(rank))).value_or(""));
    std::string process, host;
    who >> process >> host;
    const auto [known, is_new] = hosts.try_emplace(host, process, rank);
    if (is_new || known->second.first == process) continue;
    return "Duplicate GPU detected : rank " + std::to_string(known->second.second) + " and rank " +
           std::to_string(rank) + " both on CUDA device 0";
  }
  return std::nullopt;
}

bool Meeting::HaveAllCome() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!Exists("rank-" + std::to_string(rank))) return false;
  }
  return true;
}

bool Meeting::IsGone() const { return access(folder_.c_str(), F_OK) != 0; }

std::optional<std::string> Meeting::Error() const { return ReadWhole(Path("error")); }

void Meeting::Fail(const std::string& text) const { WriteWhole(Path("error"), text, std::to_string(self_)); }

void Meeting::PublishHead(const std::vector<Part>& parts) const {
  std::string text;
  for (const Part& part : parts) {
    if (!part.is_done) text += Text(part) + "\n";
  }
  WriteWhole(Path("head-" + std::to_string(self_)), text, std::to_string(self_));
}

std::optional<std::string> Meeting::FindOtherOrder(const std::vector<Part>& parts, const Passed& passed) const {
  const auto matching = [](Part part, int peer) {
    part.is_send = !part.is_send;
    part.peer = peer;
    return Text(part);
  };
  for (const Part& mine : parts) {
    if (mine.is_done) continue;
    const std::optional<std::string> head = ReadWhole(Path("head-" + std::to_string(mine.peer)));
    if (!head.has_value()) continue;
    std::istringstream lines(*head);
    bool has_mine = false;
    std::string waits;  // of the peer's, what it wants of this rank that isn't at this head
    for (std::string line; std::getline(lines, line);) {
      has_mine = has_mine || line == matching(mine, self_);
      std::istringstream words(line);
      Part theirs;
      std::string kind;
      words >> kind >> theirs.peer >> theirs.number;
      theirs.is_send = kind == "send";
      const bool is_here = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
        return part.peer == mine.peer && part.is_send != theirs.is_send && part.number == theirs.number;
      });
      const auto before = passed.find({!theirs.is_send, mine.peer});
      const bool is_passed = before != passed.end() && theirs.number < before->second;
      if (theirs.peer == self_ && !is_here && !is_passed) waits = line;
    }
    if (mine.is_send && IsTaken(mine)) continue;  // before the peer came to that head
    if (!has_mine && !waits.empty()) {
      return "ranks " + std::to_string(std::min(self_, mine.peer)) + " and " +
             std::to_string(std::max(self_, mine.peer)) + " have another order: \"" + Text(mine) + "\" of rank " +
             std::to_string(self_) + " against \"" + waits + "\" of rank " + std::to_string(mine.peer);
    }
  }
  return std::nullopt;
}

void Meeting::Announce(const Part& send, const std::byte* bytes) const {
  const Header header{send.count, send.dtype};
  std::string all(reinterpret_cast<const char*>(&header), sizeof(header));
  all.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(send.bytes));
  WriteWhole(PathOf(self_, send.peer, send.number), all, std::to_string(self_));
}

bool Meeting::IsTaken(const Part& send) const {
  return access(PathOf(self_, send.peer, send.number).c_str(), F_OK) != 0 && !IsGone();
}

bool Meeting::Take(const Part& receive, std::byte* bytes) const {
  const std::string path = PathOf(receive.peer, self_, receive.number);
  const std::optional<std::string> all = ReadWhole(path);
  if (!all.has_value() || all->size() < sizeof(Header)) return false;
  Header header;
  std::copy_n(all->data(), sizeof(header), reinterpret_cast<char*>(&header));
  if (header.count != receive.count || header.dtype != receive.dtype) {
    Fail("rank " + std::to_string(receive.peer) + " sends " + std::to_string(header.count) + " of dtype " +
         std::to_string(header.dtype) + ", rank " + std::to_string(self_) + " receives " +
         std::to_string(receive.count) + " of dtype " + std::to_string(receive.dtype));
    return false;
  }
  std::copy(all->begin() + sizeof(Header), all->end(), reinterpret_cast<char*>(bytes));
  return unlink(path.c_str()) == 0;
}

std::string ToText(const Collective::Call& call) {
  static constexpr const char* kNames[] = {"AllGather", "Broadcast", "ReduceScatter"};
  std::string text = std::string(kNames[static_cast<int>(call.kind)]) + " of " + std::to_string(call.count) +
                     " of dtype " + std::to_string(call.dtype);
  if (call.kind == Collective::Kind::kBroadcast) text += " from " + std::to_string(call.root);
  return text;
}

std::string Meeting::NameOfAll(int rank, uint64_t number) const {
  return "all-" + std::to_string(rank) + "-" + std::to_string(number);
}

void Meeting::AnnounceAll(uint64_t number, const std::vector<Collective::Call>& calls,
                          const std::vector<std::string>& given) const {
  std::string all;
  for (size_t c = 0; c < calls.size(); ++c) {
    const auto size = static_cast<uint64_t>(given[c].size());
    all.append(reinterpret_cast<const char*>(&calls[c]), sizeof(calls[c]));
    all.append(reinterpret_cast<const char*>(&size), sizeof(size));
    all.append(given[c]);
  }
  WriteWhole(Path(NameOfAll(self_, number)), all, std::to_string(self_));
}

std::optional<Meeting::Given> Meeting::TakeAll(uint64_t number, const std::vector<Collective::Call>& calls) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!Exists(NameOfAll(rank, number))) return std::nullopt;
  }
  Given given(calls.size());
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::optional<std::string> all = ReadWhole(Path(NameOfAll(rank, number)));
    if (!all.has_value()) return std::nullopt;  // the folder goes
    size_t at = 0, c = 0;
    std::string theirs;
    for (; at < all->size(); ++c) {
      Collective::Call call;
      uint64_t size = 0;
      std::copy_n(all->data() + at, sizeof(call), reinterpret_cast<char*>(&call));
      std::copy_n(all->data() + at + sizeof(call), sizeof(size), reinterpret_cast<char*>(&size));
      at += sizeof(call) + sizeof(size);
      if (c >= calls.size() || !(call == calls[c])) {
        theirs = ToText(call);
        break;
      }
      given[c].push_back(all->substr(at, size));
      at += size;
    }
    if (theirs.empty() && c == calls.size()) continue;
    Fail("rank " + std::to_string(rank) + " calls " + (theirs.empty() ? "nothing more" : theirs) + ", rank " +
         std::to_string(self_) + " " + (c < calls.size() ? ToText(calls[c]) : "nothing more"));
    return std::nullopt;
  }
  return given;
}

void Meeting::ForgetAll(uint64_t number) const { unlink(Path(NameOfAll(self_, number)).c_str()); }

std::optional<std::string> Meeting::FindPartBefore(uint64_t number, const Passed& passed) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == self_ || Exists(NameOfAll(rank, number))) continue;
    std::istringstream lines(ReadWhole(Path("head-" + std::to_string(rank))).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string kind;
      int peer = 0;
      uint64_t part = 0;
      words >> kind >> peer >> part;
      const auto before = passed.find({kind == "recv", rank});
      if (peer != self_ || (before != passed.end() && part < before->second)) continue;
      return "ranks " + std::to_string(std::min(self_, rank)) + " and " + std::to_string(std::max(self_, rank)) +
             " have another order: a collective of rank " + std::to_string(self_) + " against \"" + line +
             "\" of rank " + std::to_string(rank);
    }
  }
  return std::nullopt;
}

void Meeting::RemoveFolder() const {
  // At once: a message of a folder that is half gone would look taken.
  std::error_code failed;
  fs::rename(folder_, folder_ + ".gone", failed);
  if (!failed) fs::remove_all(folder_ + ".gone", failed);
}

void Meeting::Leave() const {
  WriteWhole(Path("left-" + std::to_string(self_)), "", std::to_string(self_));
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!Exists("left-" + std::to_string(rank))) return;
  }
  RemoveFolder();
}

}  // namespace tessera::emulator::nccl
