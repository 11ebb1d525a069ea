#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "client/cli/command.h"
#include "client/cli/plan_command.h"
#include "schemas/types/byte_size.h"

namespace tessera {

Command AddPlanCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "What a request would do: steps, bytes, peak, time; needs no server");
  struct Options {
    std::string request;
    std::string memory;
    std::optional<int> workers_per_host;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  command
      ->add_option("request", options->request,
                   "\"SPEC -> PLACEMENTS\", \"op(SPEC, ...)\" or \"einsum('ij,jk->ik', SPEC, SPEC)\"")
      ->required();
  command
      ->add_option("--memory", options->memory, "what each worker has, like 512MiB: a matmul that needs more is split")
      ->check(CheckBytes);
  command
      ->add_option("--workers-per-host", options->workers_per_host,
                   "plan for hosts of so many workers each: 0 to N-1 on the first, and so on; else all share one")
      ->check(CLI::Range(1, 65536));
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->footer(
      "Examples:\n"
      "  tessera plan \"f32[8192,8192] @ mesh(x:4) [S(0)] -> [S(1)]\"\n"
      "  tessera plan \"f32[1024,1024] @ mesh(4) [S(0)] -> mesh(2,2) [S(0), S(1)]\"\n"
      "  tessera plan \"einsum('ij,jk->ik', f32[64,32] @ mesh(2) [S(0)], f32[32,8] @ mesh(2) [R])\"\n"
      "  tessera plan \"sum(f32[64,64] @ mesh(4) [S(0)], dims=[0], keepdims=true)\"\n"
      "  tessera plan --workers-per-host 1 \"f32[64] @ mesh(16) [P(sum)] -> [R]\"\n"
      "  tessera plan --json \"matmul(f32[1797,64] @ mesh(4) [S(0)], f32[64,1797] @ mesh(4) [S(1)])\"");
  return {command, [options] {
            std::optional<int64_t> memory_bytes;
            if (!options->memory.empty()) {
              const absl::StatusOr<int64_t> bytes = ParseBytes(options->memory);
              if (!bytes.ok()) return Failed(bytes.status());
              memory_bytes = *bytes;
            }
            const PlanOutput output = options->json ? PlanOutput::kJson : PlanOutput::kText;
            const absl::StatusOr<std::string> text =
                PlanCommandText(options->request, output, memory_bytes, options->workers_per_host);
            if (!text.ok()) return Failed(text.status());
            std::fputs(text->c_str(), stdout);
            return 0;
          }};
}

}  // namespace tessera
