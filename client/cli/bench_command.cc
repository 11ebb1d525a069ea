// tessera bench: what a cluster does in a second, measured through a session as any client has one. Each figure is of
// the best and of the middle of several runs; copies stand beside one by this process alone, made in the same minute.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cluster.h"
#include "client/ops.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kRuns = 5;
constexpr int64_t kRows = 2048;         // of f32: 16 MiB
constexpr int64_t kChainLength = 2000;  // tiny ops that are asked for at once
constexpr int64_t kFetches = 50;

struct BenchOptions {
  AddressOption address;
  int workers = 2;
  std::string memory = "256MiB";
  bool is_local = false;
  bool as_json = false;
};

struct Figure {
  std::string name;
  std::string what;
  std::string unit;
  double amount = 0;  // of units without the second, that one run does
  std::vector<double> seconds;
  double Best() const { return amount / *std::min_element(seconds.begin(), seconds.end()); }
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return amount / sorted[sorted.size() / 2];
  }
};

class Bench {
 public:
  Bench(Session session, Mesh mesh) : session_(std::move(session)), mesh_(std::move(mesh)) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(MakeTensors());
    TESSERA_RETURN_IF_ERROR(TinyOps());
    TESSERA_RETURN_IF_ERROR(Copies());
    return Ops();
  }
  const std::vector<Figure>& figures() const { return figures_; }

 private:
  // Runs it once to warm up, and kRuns times more.
  absl::Status Measure(Figure figure, const std::function<absl::Status()>& run) {
    TESSERA_RETURN_IF_ERROR(run());
    for (int i = 0; i < kRuns; ++i) {
      const auto start = std::chrono::steady_clock::now();
      TESSERA_RETURN_IF_ERROR(run());
      figure.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    figures_.push_back(std::move(figure));
    return absl::OkStatus();
  }

  Placements First(const Placement& placement) const {
    Placements placements(static_cast<size_t>(mesh_.ndim()), Placement::Replicate());
    placements[0] = placement;
    return placements;
  }
  HostView View() const { return MakeHostView(DType::kF32, {kRows, kRows}, data_.data()); }
  double Gigabytes() const { return static_cast<double>(data_.size() * sizeof(float)) * 1e-9; }

  absl::Status MakeTensors() {
    data_.assign(static_cast<size_t>(kRows * kRows), 0.5F);
    other_.assign(data_.size(), 0.0F);
    TESSERA_ASSIGN_OR_RETURN(rows_, session_.DistributeTensor(View(), mesh_, First(Placement::Shard(0))));
    TESSERA_ASSIGN_OR_RETURN(whole_, session_.DistributeTensor(View(), mesh_, First(Placement::Replicate())));
    const float one = 1;
    TESSERA_ASSIGN_OR_RETURN(
        tiny_, session_.DistributeTensor(MakeHostView(DType::kF32, {}, &one), mesh_, First(Placement::Replicate())));
    return session_.Sync();
  }

  absl::Status TinyOps() {
    const Figure chained{"tiny_ops",
                         StrCat(kChainLength, " chained additions to a number"),
                         "ops/s",
                         static_cast<double>(kChainLength),
                         {}};
    TESSERA_RETURN_IF_ERROR(Measure(chained, [this]() -> absl::Status {
      Tensor x = *tiny_;
      for (int64_t i = 0; i < kChainLength; ++i) {
        TESSERA_ASSIGN_OR_RETURN(x, Add(x, 1.0));
      }
      return x.Wait();
    }));
    const Figure fetched{
        "op_and_fetch", "an addition to a number, and the number fetched", "ops/s", static_cast<double>(kFetches), {}};
    return Measure(fetched, [this]() -> absl::Status {
      for (int64_t i = 0; i < kFetches; ++i) {
        TESSERA_ASSIGN_OR_RETURN(const Tensor x, Add(*tiny_, 1.0));
        TESSERA_RETURN_IF_ERROR(x.FullTensor().status());
      }
      return absl::OkStatus();
    });
  }

  absl::Status Copies() {
    const std::string size = ShowBytes(static_cast<int64_t>(data_.size() * sizeof(float)));
    TESSERA_RETURN_IF_ERROR(
        Measure({"memcpy", StrCat(size, " copied by this process, for comparison"), "GB/s", Gigabytes(), {}}, [this] {
          std::memcpy(other_.data(), data_.data(), data_.size() * sizeof(float));
          return absl::OkStatus();
        }));
    TESSERA_RETURN_IF_ERROR(
        Measure({"upload", StrCat(size, " to rows on the workers"), "GB/s", Gigabytes(), {}}, [this]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(const Tensor x,
                                   session_.DistributeTensor(View(), mesh_, First(Placement::Shard(0))));
          return x.Wait();
        }));
    return Measure({"download", StrCat(size, " of rows on the workers"), "GB/s", Gigabytes(), {}}, [this] {
      return rows_->FullTensorTo({DType::kF32, {kRows, kRows}, reinterpret_cast<char*>(other_.data())});
    });
  }

  absl::Status Move(const Tensor& x, const Placement& placement) const {
    TESSERA_ASSIGN_OR_RETURN(const Tensor y, x.Redistribute(First(placement)));
    return y.Wait();
  }

  absl::Status Ops() {
    const std::string size = ShowBytes(static_cast<int64_t>(data_.size() * sizeof(float)));
    TESSERA_RETURN_IF_ERROR(Measure({"rows_to_columns", StrCat(size, " from S(0) to S(1)"), "GB/s", Gigabytes(), {}},
                                    [this] { return Move(*rows_, Placement::Shard(1)); }));
    TESSERA_RETURN_IF_ERROR(Measure({"all_gather", StrCat(size, " from S(0) to R"), "GB/s", Gigabytes(), {}},
                                    [this] { return Move(*rows_, Placement::Replicate()); }));
    TESSERA_RETURN_IF_ERROR(
        Measure({"sum", StrCat(size, " added up over all"), "GB/s", Gigabytes(), {}}, [this]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(const Tensor y, Sum(*rows_, {}));
          return y.FullTensor().status();
        }));
    const double flops = 2e-9 * static_cast<double>(kRows * kRows * kRows);
    return Measure({"matmul", StrCat("f32 ", kRows, "^3, S(0) times R"), "GFLOP/s", flops, {}},
                   [this]() -> absl::Status {
                     TESSERA_ASSIGN_OR_RETURN(const Tensor y, Matmul(*rows_, *whole_));
                     return y.Wait();
                   });
  }

  Session session_;
  Mesh mesh_;
  std::vector<float> data_;
  std::vector<float> other_;
  std::optional<Tensor> rows_;
  std::optional<Tensor> whole_;
  std::optional<Tensor> tiny_;
  std::vector<Figure> figures_;
};

nlohmann::ordered_json FiguresJson(const std::vector<Figure>& figures, int64_t workers, std::string_view device) {
  nlohmann::ordered_json json = {{"workers", workers}, {"device", std::string(device)}, {"runs", kRuns}};
  json["figures"] = nlohmann::ordered_json::array();
  for (const Figure& figure : figures) {
    json["figures"].push_back({{"name", figure.name},
                               {"what", figure.what},
                               {"unit", figure.unit},
                               {"best", figure.Best()},
                               {"median", figure.Median()},
                               {"seconds", figure.seconds}});
  }
  return json;
}

std::string FiguresText(const std::vector<Figure>& figures) {
  std::vector<std::vector<std::string>> rows = {{"FIGURE", "BEST", "MEDIAN", "UNIT", "WHAT"}};
  for (const Figure& figure : figures) {
    const auto show = [&](double value) {
      return figure.Best() < 100 ? absl::StrFormat("%.2f", value) : absl::StrFormat("%.0f", value);
    };
    rows.push_back({figure.name, show(figure.Best()), show(figure.Median()), figure.unit, figure.what});
  }
  return ShowTable(rows);
}

absl::StatusOr<LocalCluster> StartCluster(const BenchOptions& bench) {
  ClusterOptions options;
  options.workers = bench.workers;
  TESSERA_ASSIGN_OR_RETURN(options.memory_bytes, ParseBytes(bench.memory));
  return LocalCluster::Start(options);
}

absl::Status RunBench(const BenchOptions& options) {
  std::optional<LocalCluster> cluster;
  std::optional<Session> session;
  const bool is_local = options.is_local || !options.address.IsGiven();
  if (is_local) {
    TESSERA_ASSIGN_OR_RETURN(cluster, StartCluster(options));
    TESSERA_ASSIGN_OR_RETURN(session, cluster->Connect());
  } else {
    TESSERA_ASSIGN_OR_RETURN(session, options.address.Connect());
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, session->DefaultMesh());
  const std::string_view device = ToText(session->DeviceKindOf(mesh));
  if (!options.as_json) {
    std::printf("%d %s workers%s\n", session->worker_count(), std::string(device).c_str(),
                is_local ? " of a cluster of this command's own" : "");
    std::fflush(stdout);
  }
  Bench bench(*session, mesh);
  TESSERA_RETURN_IF_ERROR(bench.Run());
  if (options.as_json) {
    std::printf("%s\n", FiguresJson(bench.figures(), session->worker_count(), device).dump(2).c_str());
  } else {
    std::printf("%s", FiguresText(bench.figures()).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

Command AddBenchCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench", "How fast a cluster is: tiny ops, copies, redistributions, a product");
  auto options = std::make_shared<BenchOptions>();
  options->address.AddTo(*command);
  command->add_flag("--local", options->is_local,
                    "starts a cluster on this host and measures that, as it does where no address is given");
  command->add_option("--workers", options->workers, "of the cluster that it starts")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--memory", options->memory, "of each worker of it: 512MiB, 4GiB")
      ->check(CheckBytes)
      ->capture_default_str();
  command->add_flag("--json", options->as_json,
                    "one JSON object on stdout: workers, device, runs and figures (name, what, unit, best, median, "
                    "seconds of each run)");
  command->footer(
      "Examples:\n  tessera bench --local --workers 4\n  tessera bench --address unix:/run/tessera.sock#token=HEX "
      "--json\n"
      "It takes some seconds, and 100 MiB of each worker. What else runs on the machine shows in the figures.");
  return {command, [options] {
            const absl::Status status = RunBench(*options);
            return status.ok() ? 0 : Failed(status);
          }};
}

}  // namespace tessera
