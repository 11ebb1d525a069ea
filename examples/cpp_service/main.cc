// A service that answers queries with their nearest rows of a table. The table lives in shards on the workers. Each
// query is a request with a deadline; one thread asks for all of them, and a callback takes each answer.
//
//   cpp_service [ADDRESS]    an address as `tessera up` prints it; without one it starts a cluster of its own

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tessera/client/catalog_ops.h"
#include "tessera/client/client_log.h"
#include "tessera/client/cluster.h"
#include "tessera/client/completion.h"
#include "tessera/client/request.h"
#include "tessera/client/session.h"
#include "tessera/client/status_macros.h"
#include "tessera/client/values.h"

namespace {

namespace ops = tessera::ops;
using tessera::DType;
using tessera::Placement;
using tessera::Tensor;

constexpr int64_t kRows = 1000, kColumns = 16;
constexpr size_t kQueries = 5;

// Small whole numbers: sums of their products are exact.
std::vector<float> Numbers(int64_t count) {
  std::mt19937 random(7);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = static_cast<float>(random() % 9) - 4;
  return numbers;
}

// The answers of all queries, as they come. Callbacks write it on the session's thread.
class Answers {
 public:
  explicit Answers(size_t count) : answers_(count, absl::UnknownError("not answered")), missing_(count) {}
  void Set(size_t query, absl::StatusOr<int64_t> row) {
    const std::lock_guard<std::mutex> lock(mutex_);
    answers_[query] = std::move(row);
    if (--missing_ == 0) all_.notify_all();
  }
  std::vector<absl::StatusOr<int64_t>> Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_.wait(lock, [this] { return missing_ == 0; });
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  std::vector<absl::StatusOr<int64_t>> answers_;
  size_t missing_;
};

class NearestRows {
 public:
  static absl::StatusOr<NearestRows> Make(const tessera::Session& session, const std::vector<float>& numbers) {
    TESSERA_ASSIGN_OR_RETURN(const tessera::Mesh mesh, session.DefaultMesh());
    TESSERA_ASSIGN_OR_RETURN(const Tensor table,
                             Distribute(session, numbers, {kRows, kColumns}, mesh, {Placement::Shard(0)}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor squares, ops::Multiply(table, table));
    TESSERA_ASSIGN_OR_RETURN(const Tensor norms, ops::Sum(squares, {1}));
    std::printf("table:   %s\n", ToText(table.spec()).c_str());
    return NearestRows(session, mesh, table, norms);
  }

  // Returns at once; `done` is called once, at the latest when the deadline has passed.
  void Ask(absl::Span<const float> query, double timeout_s, std::function<void(absl::StatusOr<int64_t>)> done) const {
    const absl::StatusOr<tessera::Request> request = tessera::Request::Start(session_, {.timeout_s = timeout_s});
    if (!request.ok()) return done(request.status());
    const tessera::Request::Scope scope(*request);
    const absl::StatusOr<Tensor> nearest = Nearest(query);
    if (!nearest.ok()) return done(nearest.status());
    // The callback holds the request, and with it its deadline.
    Fetch(*nearest, [done = std::move(done), request = *request](absl::StatusOr<tessera::HostArray> values) {
      if (!values.ok()) return done(values.status());
      const absl::StatusOr<std::vector<int64_t>> rows = tessera::ToVector<int64_t>(*values);
      rows.ok() ? done(rows->at(0)) : done(rows.status());
    });
  }

 private:
  NearestRows(tessera::Session session, tessera::Mesh mesh, Tensor table, Tensor norms)
      : session_(std::move(session)), mesh_(std::move(mesh)), table_(std::move(table)), norms_(std::move(norms)) {}

  // The same numbers for a query and a row give the largest score: 2 * query . row - row . row.
  absl::StatusOr<Tensor> Nearest(absl::Span<const float> numbers) const {
    TESSERA_ASSIGN_OR_RETURN(const Tensor query,
                             Distribute(session_, numbers, {1, kColumns}, mesh_, {Placement::Replicate()}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor turned, ops::PermuteDims(table_, {1, 0}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor products, ops::Matmul(query, turned));
    TESSERA_ASSIGN_OR_RETURN(const Tensor doubled, ops::Multiply(products, 2.0));
    TESSERA_ASSIGN_OR_RETURN(const Tensor scores, ops::Subtract(doubled, norms_));
    return ops::Argmax(scores, {1});
  }

  tessera::Session session_;
  tessera::Mesh mesh_;
  Tensor table_, norms_;
};

void Log(const tessera::ClientLogLine& line) {
  std::fprintf(stderr, "%s: %s\n", std::string(ToText(line.level)).c_str(), std::string(line.text).c_str());
}

absl::Status Serve(const char* address) {
  tessera::SetClientLog(Log);
  std::optional<tessera::LocalCluster> cluster;
  tessera::ConnectOptions options;
  if (address != nullptr) {
    options.address = address;
  } else {
    TESSERA_ASSIGN_OR_RETURN(cluster, tessera::LocalCluster::Start({.workers = 2, .memory_bytes = 64 << 20}));
    options.address = cluster->address();
  }
  TESSERA_ASSIGN_OR_RETURN(const tessera::Session session, tessera::Session::Connect(options));
  const std::vector<float> numbers = Numbers(kRows * kColumns);
  TESSERA_ASSIGN_OR_RETURN(const NearestRows service, NearestRows::Make(session, numbers));

  // The queries are rows of the table, so that the right answers are known: 0, 200, 400, ...
  const auto row_of = [&](size_t query) { return static_cast<int64_t>(query) * (kRows / int64_t{kQueries}); };
  const auto numbers_of = [&](size_t query) {
    return absl::MakeConstSpan(numbers).subspan(static_cast<size_t>(row_of(query) * kColumns), kColumns);
  };
  Answers answers(kQueries);
  for (size_t query = 0; query < kQueries; ++query) {
    service.Ask(numbers_of(query), 30, [&answers, query](absl::StatusOr<int64_t> row) { answers.Set(query, row); });
  }
  // One that has no time is told so, and leaves the others alone.
  Answers late(1);
  service.Ask(numbers_of(0), 0, [&late](absl::StatusOr<int64_t> row) { late.Set(0, row); });
  std::printf("a request without time: %s\n", late.Wait()[0].ok() ? "answered" : "DEADLINE_EXCEEDED");

  const std::vector<absl::StatusOr<int64_t>> rows = answers.Wait();
  // For /metrics of the service, by whatever library it has.
  session.Counts().Visit([](std::string_view name, std::string_view, double value) {
    if (name == "tessera_client_requests" || name == "tessera_client_deadlines_exceeded") {
      std::printf("%s %.0f\n", std::string(name).c_str(), value);
    }
  });
  for (size_t query = 0; query < kQueries; ++query) {
    TESSERA_RETURN_IF_ERROR(rows[query].status());
    std::printf("query %d: row %d\n", static_cast<int>(query), static_cast<int>(*rows[query]));
    if (*rows[query] != row_of(query)) return absl::InternalError("that is not the row that was asked with");
  }
  return session.Close();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Serve(argc > 1 ? argv[1] : nullptr);
  if (!status.ok()) std::fprintf(stderr, "cpp_service: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
