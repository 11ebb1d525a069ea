// Speeds that plain processes reach without a service, for the figures of tests/bench to stand beside. One JSON object
// on stdout: every sample in seconds, by variant; the fastest variant is the limit.
//
//   limits_bench redistribute --extents 8192,8192 --mesh 2 --source 0 --destination 1 [--element-bytes 8]
//   limits_bench collective --kind all_reduce --elements 16777216 [--processes 2] [--asked through_one]
//   limits_bench product --m 2048 --n 2048 --k 2048 --split rows [--processes 2]
//   limits_bench pass --kind softmax --rows 4096 --columns 4096 [--processes 2]
//   limits_bench sockets --listen 10.0.0.1 | --connect 10.0.0.1 --port 7000 --bytes 1000000
//   limits_bench blas        {"core": the kernels that OpenBLAS takes here, for peers to take the same}

#include <cstdio>
#include <map>
#include <string>

#include <cblas.h>
#include <CLI/CLI.hpp>

#include "kernels/cpu/blas_core.h"
#include "tests/bench/limits/chains.h"
#include "tests/bench/limits/collectives.h"
#include "tests/bench/limits/passes.h"
#include "tests/bench/limits/products.h"
#include "tests/bench/limits/redistribution.h"
#include "tests/bench/limits/sockets.h"

namespace tessera::bench {
namespace {

int Main(int argc, char** argv) {
  CLI::App app{"limits_bench: what plain processes reach without a service"};
  app.require_subcommand(1);
  RedistributionCase boxes;
  CLI::App* redistribute = app.add_subcommand("redistribute", "shards to shards by copy loops");
  redistribute->add_option("--extents", boxes.extents)->delimiter(',')->required();
  redistribute->add_option("--mesh", boxes.mesh)->delimiter(',')->required();
  redistribute->add_option("--source", boxes.source, "tensor dim per mesh dim, -1: whole")->delimiter(',')->required();
  redistribute->add_option("--destination", boxes.destination)->delimiter(',')->required();
  redistribute->add_option("--element-bytes", boxes.element_bytes);
  redistribute->add_option("--repetitions", boxes.repetitions);
  CollectiveCase flat;
  CLI::App* collective = app.add_subcommand("collective", "direct collectives of f32");
  collective->add_option("--kind", flat.kind)
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather"}))
      ->required();
  collective->add_option("--elements", flat.elements)->required();
  collective->add_option("--processes", flat.processes);
  collective->add_option("--repetitions", flat.repetitions);
  const std::map<std::string, Asked> asked = {{"directly", Asked::kDirectly}, {"through_one", Asked::kThroughOne}};
  collective->add_option("--asked", flat.asked, "by processes that are asked each time, over unix sockets")
      ->transform(CLI::CheckedTransformer(asked));
  ChainCase loops;
  CLI::App* chain = app.add_subcommand("chain", "six ops on each element of f32 in one loop");
  chain->add_option("--elements", loops.elements)->required();
  chain->add_option("--processes", loops.processes);
  chain->add_option("--repetitions", loops.repetitions);
  ProductCase matrices;
  CLI::App* product = app.add_subcommand("product", "a dgemm in each process");
  product->add_option("--m", matrices.m)->required();
  product->add_option("--n", matrices.n)->required();
  product->add_option("--k", matrices.k)->required();
  product->add_option("--split", matrices.split)->check(CLI::IsMember({"rows", "columns", "inner"}))->required();
  product->add_option("--processes", matrices.processes);
  product->add_option("--repetitions", matrices.repetitions);
  PassCase rows;
  CLI::App* pass = app.add_subcommand("pass", "loops over rows of f32, once through memory");
  pass->add_option("--kind", rows.kind)->check(CLI::IsMember({"var", "softmax", "layer_norm", "cumsum"}))->required();
  pass->add_option("--rows", rows.rows)->required();
  pass->add_option("--columns", rows.columns)->required();
  pass->add_option("--processes", rows.processes);
  pass->add_option("--repetitions", rows.repetitions);
  SocketCase bytes;
  CLI::App* sockets = app.add_subcommand("sockets", "bytes each way between two processes by TCP");
  sockets->add_option("--listen", bytes.listen);
  sockets->add_option("--connect", bytes.connect)->excludes("--listen");
  sockets->add_option("--port", bytes.port)->required();
  sockets->add_option("--bytes", bytes.bytes)->required();
  sockets->add_option("--repetitions", bytes.repetitions);
  const CLI::App* blas = app.add_subcommand("blas", "which kernels BLAS takes");
  CLI11_PARSE(app, argc, argv);

  nlohmann::json out;
  if (redistribute->parsed()) out = MeasureRedistribution(boxes);
  if (collective->parsed()) out = MeasureCollective(flat);
  if (chain->parsed()) out = MeasureChain(loops);
  if (product->parsed()) out = MeasureProduct(matrices);
  if (pass->parsed()) out = MeasurePass(rows);
  if (sockets->parsed()) out = MeasureSockets(bytes);
  if (blas->parsed()) out = {{"core", openblas_get_corename()}};
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::RestartWithKnownBlasCore(argv);  // the same BLAS kernels as a worker has
  return tessera::bench::Main(argc, argv);
}
