#include "server/transport/loopback/loopback.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "schemas/types/str_cat.h"

namespace tessera {

class LoopbackHub::State {
 public:
  using Done = MessageTransport::Done;
  // (from, to, ordinal, phase, chunk)
  using Key = std::tuple<int32_t, int32_t, uint64_t, uint32_t, uint32_t>;
  struct Post {
    const std::byte* source = nullptr;  // of a send
    std::byte* destination = nullptr;   // of a receive
    size_t bytes = 0;
    Done done;
  };

  State() : thread_([this] { Loop(); }) {}
  ~State() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      for (auto& [key, post] : posts_) {
        Finish(std::move(post.done), absl::CancelledError("transport: closed"));
      }
      posts_.clear();
    }
    wake_.notify_all();
    thread_.join();
  }

  void Match(const Key& key, Post post) {
    std::unique_lock lock(mutex_);
    const bool is_send = post.destination == nullptr;
    const auto [from, to, ordinal, phase, chunk] = key;
    const int32_t self = is_send ? from : to, peer = is_send ? to : from;
    if (dead_.count({self, peer}) != 0 || gone_.count(peer) != 0) {
      return Finish(std::move(post.done), Lost(peer));
    }
    if (ordinal <= broken_ordinal_) return Finish(std::move(post.done), Broken(peer));
    auto it = posts_.find(key);
    const bool pairs = it != posts_.end() && (it->second.destination == nullptr) != is_send;
    if (!pairs) {
      if (it != posts_.end())
        return Finish(std::move(post.done), absl::InternalError("transport: a tag was used twice"));
      posts_.emplace(key, std::move(post));
      return;
    }
    Post other = std::move(it->second);
    posts_.erase(it);
    Post& send = is_send ? post : other;
    Post& receive = is_send ? other : post;
    absl::Status status;
    if (send.bytes != receive.bytes) {
      status = absl::InvalidArgumentError(
          StrCat("worker ", from, ": a message of ", send.bytes, " bytes, expected ", receive.bytes));
    } else if (send.bytes > 0) {
      std::memcpy(receive.destination, send.source, send.bytes);
    }
    Finish(std::move(send.done), absl::OkStatus());
    Finish(std::move(receive.done), status);
  }

  void MarkDead(int32_t self, int32_t peer) {
    std::lock_guard lock(mutex_);
    dead_.insert({self, peer});
    EndPosts([&](int32_t owner, int32_t other) { return owner == self && other == peer; }, Lost);
  }

  // The peer has started again.
  void Connect(int32_t self, int32_t peer) {
    std::lock_guard lock(mutex_);
    dead_.erase({self, peer});
  }

  // The transport of `self` is gone: its posts end, its peers' posts with it too.
  void Close(int32_t self) {
    std::unique_lock lock(mutex_);
    gone_.insert(self);
    EndPosts([&](int32_t owner, int32_t other) { return owner == self || other == self; }, Lost);
    // No Done may come after the transport is gone.
    drained_.wait(lock, [&] { return ready_.empty() && !running_; });
  }
  // All that waits for its other side ends, and what would have met it.
  void Break() {
    std::lock_guard lock(mutex_);
    for (const auto& [key, post] : posts_) broken_ordinal_ = std::max(broken_ordinal_, std::get<2>(key));
    EndPosts([](int32_t owner, int32_t other) { return true; }, Broken);
  }
  void Open(int32_t self) {
    std::lock_guard lock(mutex_);
    gone_.erase(self);
  }

 private:
  static absl::Status Lost(int32_t peer) { return absl::UnavailableError(StrCat("worker ", peer, ": lost")); }
  static absl::Status Broken(int32_t peer) {
    return absl::UnavailableError(StrCat("worker ", peer, ": the connection broke"));
  }

  // mutex_ is held.
  template <typename Which, typename Why>
  void EndPosts(const Which& which, const Why& why) {
    for (auto it = posts_.begin(); it != posts_.end();) {
      const auto [from, to, ordinal, phase, chunk] = it->first;
      const bool is_send = it->second.destination == nullptr;
      const int32_t owner = is_send ? from : to, other = is_send ? to : from;
      if (which(owner, other)) {
        Finish(std::move(it->second.done), why(other));
        it = posts_.erase(it);
      } else {
        ++it;
      }
    }
  }
  void Finish(Done done, absl::Status status) {
    ready_.emplace_back(std::move(done), std::move(status));
    wake_.notify_one();
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || !ready_.empty(); });
      if (ready_.empty()) return;
      auto [done, status] = std::move(ready_.front());
      ready_.pop_front();
      running_ = true;
      lock.unlock();
      done(std::move(status));
      done = nullptr;
      lock.lock();
      running_ = false;
      if (ready_.empty()) drained_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, drained_;
  std::map<Key, Post> posts_;
  std::set<std::pair<int32_t, int32_t>> dead_;
  std::set<int32_t> gone_;
  uint64_t broken_ordinal_ = 0;
  std::deque<std::pair<Done, absl::Status>> ready_;
  bool stopping_ = false;
  bool running_ = false;
  std::thread thread_;
};

namespace {

class LoopbackTransport : public MessageTransport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub::State> hub, WorkerIndex self) : hub_(std::move(hub)), self_(self) {
    hub_->Open(self_.value);
  }
  ~LoopbackTransport() override { hub_->Close(self_.value); }

  std::string Address() const override { return StrCat("loopback:", self_.value); }

  absl::Status Connect(WorkerIndex peer, std::string_view address) override {
    if (address != StrCat("loopback:", peer.value)) {
      return absl::InvalidArgumentError(
          StrCat("worker ", peer.value, ": not a loopback address: ", Printable(address)));
    }
    hub_->Connect(self_.value, peer.value);
    return absl::OkStatus();
  }
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override {
    hub_->Match({self_.value, peer.value, tag.ordinal, tag.phase, tag.chunk},
                {.source = bytes.data(), .destination = nullptr, .bytes = bytes.size(), .done = std::move(done)});
  }
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override {
    // A receive is known by its destination: an empty one gets an address that is not written.
    static std::byte nowhere;
    hub_->Match({peer.value, self_.value, tag.ordinal, tag.phase, tag.chunk},
                {.source = nullptr,
                 .destination = bytes.empty() ? &nowhere : bytes.data(),
                 .bytes = bytes.size(),
                 .done = std::move(done)});
  }
  void MarkDead(WorkerIndex peer) override { hub_->MarkDead(self_.value, peer.value); }

 private:
  std::shared_ptr<LoopbackHub::State> hub_;
  WorkerIndex self_;
};

}  // namespace

LoopbackHub::LoopbackHub() : state_(std::make_shared<State>()) {}
LoopbackHub::~LoopbackHub() = default;

void LoopbackHub::Break() { state_->Break(); }

std::unique_ptr<MessageTransport> LoopbackHub::Make(WorkerIndex self) {
  return std::make_unique<LoopbackTransport>(state_, self);
}

}  // namespace tessera
