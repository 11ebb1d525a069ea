// A service that answers queries with their nearest rows of a table. The table lives in shards on the workers; a batch
// of queries goes there, and one row number for each comes back.
//
//   cpp_service [ADDRESS]    an address as `tessera up` prints it; without one it starts a cluster of its own

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "client/cluster.h"
#include "client/ops.h"
#include "client/session.h"
#include "schemas/types/status_macros.h"

namespace {

using tessera::DType;
using tessera::Matmul;
using tessera::Multiply;
using tessera::Placement;
using tessera::Tensor;

constexpr int64_t kRows = 1000, kColumns = 16, kQueries = 5;

// Small whole numbers: sums of their products are exact.
std::vector<float> Numbers(int64_t count) {
  std::mt19937 random(7);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = static_cast<float>(random() % 9) - 4;
  return numbers;
}

// The same numbers for a query and a row give the largest score: 2 * query . row - row . row.
absl::StatusOr<std::vector<int64_t>> NearestRows(const Tensor& table, const Tensor& queries) {
  TESSERA_ASSIGN_OR_RETURN(const Tensor turned, PermuteDims(table, {1, 0}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor products, Matmul(queries, turned));
  TESSERA_ASSIGN_OR_RETURN(const Tensor doubled, Multiply(products, 2.0));
  TESSERA_ASSIGN_OR_RETURN(const Tensor squares, Multiply(table, table));
  TESSERA_ASSIGN_OR_RETURN(const Tensor norms, Sum(squares, {1}));
  TESSERA_ASSIGN_OR_RETURN(const Tensor scores, Subtract(doubled, norms));
  TESSERA_ASSIGN_OR_RETURN(const Tensor nearest, ArgMax(scores, {1}));
  std::printf("scores:  %s\n", ToText(scores.spec()).c_str());
  TESSERA_ASSIGN_OR_RETURN(const tessera::HostArray rows, nearest.FullTensor());  // all of the above runs; this waits
  std::vector<int64_t> numbers(static_cast<size_t>(kQueries));
  std::memcpy(numbers.data(), rows.memory->data(), numbers.size() * sizeof(int64_t));
  return numbers;
}

absl::Status Serve(const char* address) {
  std::optional<tessera::LocalCluster> cluster;
  tessera::ConnectOptions options;
  if (address != nullptr) {
    options.address = address;
  } else {
    TESSERA_ASSIGN_OR_RETURN(cluster, tessera::LocalCluster::Start({.workers = 2, .memory_bytes = 64 << 20}));
    options.address = cluster->address();
  }
  TESSERA_ASSIGN_OR_RETURN(const tessera::Session session, tessera::Session::Connect(options));
  TESSERA_ASSIGN_OR_RETURN(const tessera::Mesh mesh, session.DefaultMesh());

  const std::vector<float> numbers = Numbers(kRows * kColumns);
  TESSERA_ASSIGN_OR_RETURN(const Tensor table,
                           session.DistributeTensor(MakeHostView(DType::kF32, {kRows, kColumns}, numbers.data()), mesh,
                                                    {Placement::Shard(0)}));
  // The queries are rows of the table, so that the right answers are known: 0, 200, 400, ...
  std::vector<float> asked;
  for (int64_t query = 0; query < kQueries; ++query) {
    const auto row = numbers.begin() + query * (kRows / kQueries) * kColumns;
    asked.insert(asked.end(), row, row + kColumns);
  }
  TESSERA_ASSIGN_OR_RETURN(const Tensor queries,
                           session.DistributeTensor(MakeHostView(DType::kF32, {kQueries, kColumns}, asked.data()), mesh,
                                                    {Placement::Replicate()}));
  std::printf("table:   %s\nqueries: %s\n", ToText(table.spec()).c_str(), ToText(queries.spec()).c_str());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> rows, NearestRows(table, queries));
  for (int64_t query = 0; query < kQueries; ++query) {
    const int64_t row = rows[static_cast<size_t>(query)];
    std::printf("query %d: row %d\n", static_cast<int>(query), static_cast<int>(row));
    if (row != query * (kRows / kQueries)) return absl::InternalError("that is not the row that was asked with");
  }
  return session.Close();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Serve(argc > 1 ? argv[1] : nullptr);
  if (!status.ok()) std::fprintf(stderr, "cpp_service: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
