// tessera-hostile-figures: what some attacks of hostile_test.cc cost a coordinator, as JSON: milliseconds of its event
// loop (the processor time of its first thread), and bytes by which it grew. tests/bench/hostile_figures.py runs it.
//
//   tessera-hostile-figures bazel-bin

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/system/hostile/wire_client.h"

namespace tessera {
namespace {

constexpr unsigned kRecords = 2000, kBatches = 4;
constexpr int kSessions = 1024;
constexpr int64_t kTakenUpMs = 60'000;

struct Cost {
  double loop_ms = 0;
  double grown_mib = 0;
};

class Figures : private WireClient {
 public:
  explicit Figures(const std::string& binaries) {
    ClusterOptions options;
    options.workers = 2;
    options.memory_bytes = 16 << 20;
    options.binary_dir = binaries;
    options.coordinator_flags = {"--max-sessions=2048", "--max-sessions-per-uid=2048"};
    auto cluster = LocalCluster::Start(options);
    if (!cluster.ok()) ThrowIfError(cluster.status());
    cluster_ = std::make_unique<LocalCluster>(*std::move(cluster));
    UseAddress(cluster_->address());
  }

  // 8,000 calls of `full` on a mesh of so many workers. The first ones of a session take what later ones have.
  Cost Calls(int64_t workers) {
    Opened opened = Open();
    const Mesh mesh = *Mesh::Make({workers}, {}, {});
    uint64_t handle = 0;
    const auto send = [&](unsigned batches) {
      for (unsigned batch = 0; batch < batches; ++batch) {
        Submit(opened, kRecords,
               [&](unsigned, wire::Record::Builder record) { Full(record, ++handle, mesh, Shape{8}); });
      }
      for (int64_t i = 0; i < kTakenUpMs && opened.client->batches_done + 1 < opened.next_batch; ++i) Pause(1);
    };
    send(1);
    return Measure(opened.pid, [&] { send(kBatches); });
  }

  Cost Explain(unsigned operands) {
    Opened opened = Open();
    const auto ask = [&] {
      static_cast<void>(StatusOf([&] {
        auto request = opened.session.explainRequest();
        OpCall call;
        call.op = OpId::kConcat;
        EncodeOpCall(call, request.initCall());
        const TensorSpec spec = *ParseTensorSpec("f32[65536] @ mesh(65536) [S(0)]");
        for (auto operand : request.initOperands(operands)) EncodeTensorSpec(spec, operand.initSpec());
        request.send().wait(io_.waitScope);
      }));
    };
    ask();
    return Measure(opened.pid, ask);
  }

  // Sessions of which each says that 60 MiB are to come, and sends 24 bytes of them.
  Cost Halves() {
    std::vector<std::unique_ptr<Wire>> wires;
    std::vector<wire::Session::Client> sessions;
    std::vector<kj::AutoCloseFd> links;
    int pid = 0;
    for (int i = 0; i < kSessions; ++i) {
      wires.push_back(std::make_unique<Wire>(io_, address_));
      auto response = WireClient::Open(*wires.back(), wire::PROTOCOL_VERSION, token_);
      pid = response.getWelcome().getPid();
      links.push_back(OpenLink(address_, response.getLinkKey()));
      sessions.push_back(response.getSession());
    }
    Pause(500);
    return Measure(pid, [&] {
      const uint32_t head[] = {0, (60 << 20) / 8, 0, 0, 0, 0};
      for (const kj::AutoCloseFd& link : links) {
        if (send(link.get(), head, sizeof(head), MSG_NOSIGNAL) < 0) ThrowIfError(absl::UnavailableError("link"));
      }
      Pause(1000);
    });
  }

 private:
  // The time of the process's first thread on a processor.
  static double LoopMs(int pid) {
    int64_t ns = 0;
    const std::string number = std::to_string(pid);
    std::ifstream("/proc/" + number + "/task/" + number + "/schedstat") >> ns;
    return static_cast<double>(ns) * 1e-6;
  }
  static Cost Measure(int pid, const std::function<void()>& attack) {
    const double ms = LoopMs(pid);
    const int64_t bytes = ResidentBytesOf(pid);
    attack();
    return {LoopMs(pid) - ms, static_cast<double>(ResidentBytesOf(pid) - bytes) / (1 << 20)};
  }

  std::unique_ptr<LocalCluster> cluster_;
};

void Print(const char* name, const Cost& cost, const char* end) {
  std::printf("\"%s\": {\"loop_ms\": %.2f, \"grown_mib\": %.2f}%s", name, cost.loop_ms, cost.grown_mib, end);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "tessera-hostile-figures FOLDER_OF_THE_PROGRAMS\n");
    return 2;
  }
  std::printf("{");
  {
    tessera::Figures figures(argv[1]);
    tessera::Print("8000 calls on mesh(2)", figures.Calls(2), ", ");
  }
  tessera::Figures figures(argv[1]);
  tessera::Print("8000 calls on mesh(65536)", figures.Calls(65536), ", ");
  tessera::Print("explain of 8000 operands", figures.Explain(8000), ", ");
  tessera::Print("1024 sessions with 24 bytes", figures.Halves(), "}\n");
  std::fflush(nullptr);
  return 0;
}
