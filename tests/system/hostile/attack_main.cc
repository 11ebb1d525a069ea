// tessera-attack: a client of the wire that does one thing that no honest client does, again and again, until its stdin
// ends. tests/support/hostile_sessions.py measures what its neighbours notice.
//
//   tessera-attack unix:/path#token=HEX meshes

#include <poll.h>
#include <sys/resource.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"
#include "tests/system/hostile/wire_client.h"

namespace tessera {
namespace {

constexpr uint64_t kBatchesUnderWay = 8;
constexpr unsigned kRecords = 1000;
constexpr int64_t kRoundMs = 5;

bool IsOver() {
  pollfd in{0, POLLIN, 0};
  return poll(&in, 1, 0) > 0;
}

class Attacker : private WireClient {
 public:
  explicit Attacker(const std::string& address) { UseAddress(address); }

  // Unknown: the names.
  int Run(const std::string& name) {
    const std::map<std::string, void (Attacker::*)()> attacks = {
        {"meshes", &Attacker::Meshes}, {"unread", &Attacker::Unread},           {"events", &Attacker::Events},
        {"halves", &Attacker::Halves}, {"connections", &Attacker::Connections}, {"sessions", &Attacker::Sessions}};
    const auto found = attacks.find(name);
    if (found == attacks.end()) {
      for (const auto& [known, attack] : attacks) std::fprintf(stderr, "%s\n", known.c_str());
      return 2;
    }
    int64_t rounds = 0, refusals = 0;
    std::printf("ready\n");
    std::fflush(stdout);
    for (; !IsOver(); ++rounds) {
      if (!StatusOf([&]() { (this->*found->second)(); }).ok()) {
        ++refusals;
        session_.reset();
      }
      Pause(kRoundMs);
    }
    std::printf("%lld rounds, %lld refused\n", static_cast<long long>(rounds), static_cast<long long>(refusals));
    return 0;
  }

 private:
  // The session that goes on, until it is ended; then another one.
  Opened& Session() {
    if (session_ == nullptr || !session_->client->ended.ok()) session_ = std::make_unique<Opened>(Open());
    return *session_;
  }
  bool MaySend(const Opened& opened) const {
    return opened.next_batch <= opened.client->batches_done + kBatchesUnderWay;
  }

  // [1] Calls whose meshes have as many workers as a mesh may.
  void Meshes() {
    Opened& opened = Session();
    const Mesh mesh = *Mesh::Make({65536}, {}, {});
    while (MaySend(opened)) {
      Submit(opened, kRecords,
             [&](unsigned, wire::Record::Builder record) { Full(record, ++handle_, mesh, Shape{8}); });
    }
  }

  // [2] Parts of a download that are asked for and not read.
  void Unread() {
    if (deaf_ == nullptr) {
      Opened& opened = Session();
      Submit(opened, 2, [&](unsigned i, wire::Record::Builder record) {
        if (i == 0) return Full(record, 1, *Mesh::Make({1}, {}, {}), Shape{1 << 20});
        auto download = record.initDownload();
        download.setRequest(1);
        download.setHandle(1);
      });
      for (int i = 0; i < 500 && opened.client->tickets.empty(); ++i) Pause(10);
      if (opened.client->tickets.empty()) ThrowIfError(absl::UnavailableError("no ticket"));
      deaf_ = std::make_unique<DeafWire>(io_, opened.data_addresses[0]);
      auto request = deaf_->Root<wire::BulkServer>().transferRequest();
      request.setTicket(opened.client->tickets[0].first);
      request.setSecret(opened.client->tickets[0].second);
      transfer_ = request.send().getTransfer();
    }
    for (int i = 0; i < 50 && unread_.size() < 20'000; ++i) {
      auto get = KJ_ASSERT_NONNULL(transfer_).getRequest();
      get.setCount(1 << 20);
      unread_.push_back(get.send().ignoreResult());
    }
  }

  // [3] Errors whose texts nobody acknowledges.
  void Events() {
    Opened& opened = Session();
    while (MaySend(opened)) {
      Submit(opened, kRecords, [](unsigned i, wire::Record::Builder record) {
        record.initWatch().setRequest(i + 1);  // of an unknown handle
      });
    }
  }

  // [4] Messages of which 16 bytes come, and that are to be 60 MiB.
  void Halves() {
    if (links_.size() >= 40) return;
    auto wire = std::make_unique<Wire>(io_, address_);
    auto response = WireClient::Open(*wire, wire::PROTOCOL_VERSION, token_);
    links_.push_back(OpenLink(address_, response.getLinkKey()));
    const uint32_t head[] = {0, (60 << 20) / 8, 0, 0, 0, 0};
    if (send(links_.back().get(), head, sizeof(head), MSG_NOSIGNAL) < 0) ThrowIfError(absl::UnavailableError("link"));
    sessions_.push_back(response.getSession());
    wires_.push_back(std::move(wire));
  }

  // [13] Connections to a worker that showed a ticket once, and stay.
  void Connections() {
    Opened& opened = Session();
    Submit(opened, 1, [&](unsigned, wire::Record::Builder record) {
      auto upload = record.initUpload();
      upload.setRequest(++handle_);
      upload.setResult(handle_);
      EncodeTensorSpec(*ParseTensorSpec("f64[1024] @ mesh(1) [R]"), upload.initSpec());
    });
    for (int i = 0; i < 100 && opened.client->tickets.empty(); ++i) Pause(2);
    if (opened.client->tickets.empty()) return;
    const auto [ticket, secret] = opened.client->tickets.back();
    opened.client->tickets.clear();
    wires_.push_back(std::make_unique<Wire>(io_, opened.data_addresses[0]));
    ThrowIfError(Redeem(*wires_.back(), ticket, secret));
  }

  // [14] Sessions that are kept for their lease, without a client.
  void Sessions() {
    auto wire = std::make_unique<Wire>(io_, address_);
    WireClient::Open(*wire, wire::PROTOCOL_VERSION, token_);
  }

  uint64_t handle_ = 0;
  std::unique_ptr<Opened> session_;
  std::vector<std::unique_ptr<Wire>> wires_;
  std::vector<wire::Session::Client> sessions_;
  std::vector<kj::AutoCloseFd> links_;
  std::unique_ptr<DeafWire> deaf_;
  kj::Maybe<wire::Transfer::Client> transfer_;
  std::vector<kj::Promise<void>> unread_;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "tessera-attack ADDRESS NAME\n");
    return 2;
  }
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  tessera::Attacker attacker(argv[1]);
  const int status = attacker.Run(argv[2]);
  std::fflush(nullptr);
  _exit(status);  // promises that nobody waits for are left as they are
}
