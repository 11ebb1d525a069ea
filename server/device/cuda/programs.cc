#include "server/device/cuda/programs.h"

#include <utility>

namespace tessera::cuda {

void Program::SetCode(absl::StatusOr<std::string> code) {
  code_ = std::move(code);
  is_compiled_.store(true, std::memory_order_release);
  is_compiled_.notify_all();
}

Programs::Programs(MapCacheOptions options, std::string architecture)
    : cache_(MapCache::Open(std::move(options))), architecture_(std::move(architecture)) {}

Program& Programs::Find(const MapProgram& source, Lane lane) {
  const auto known = by_source_.find(source.source);
  if (known != by_source_.end()) return known->second;
  Program& program = by_source_[source.source];
  if (!cache_.ok()) {
    program.SetCode(cache_.status());
  } else {
    threads_[static_cast<size_t>(lane)].Run(
        [this, &program, source] { program.SetCode((*cache_)->Compile(source, architecture_)); });
  }
  return program;
}

}  // namespace tessera::cuda
