#include "server/worker/message_staging.h"

#include <algorithm>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/message_windows.h"

namespace tessera {

absl::StatusOr<std::shared_ptr<StagingMemory>> MessageStaging::New(StagingPlace place, int64_t bytes) const {
  const int64_t most = std::max(kMaxStagingBytes, arenas_.own().bytes());
  if (bytes > most) {
    return absl::ResourceExhaustedError(StrCat("worker ", arenas_.self().value, ": messages take ", bytes,
                                               " bytes beside the arena; max_phase_staging_bytes is ", most));
  }
  absl::StatusOr<std::shared_ptr<std::byte>> memory = device_.MakeStaging(bytes, place);
  if (!memory.ok() && place == StagingPlace::kDevice) memory = device_.MakeStaging(bytes, StagingPlace::kHost);
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(StrCat("worker ", arenas_.self().value, ": no host memory for messages of ",
                                               bytes, " bytes: ", StdView(memory.status().message())));
  }
  return std::make_shared<StagingMemory>(StagingMemory{*std::move(memory), bytes});
}

absl::StatusOr<std::byte*> MessageStaging::Reserve(StagingPlace place, StreamId stream, int64_t bytes,
                                                   RunRecord& record) {
  OfStream& own = streams_[static_cast<size_t>(place)][static_cast<size_t>(stream)];
  std::shared_ptr<StagingMemory> staging = own.shared.lock();
  if (staging == nullptr || staging->size < bytes) staging = own.kept;
  if (staging == nullptr || staging->size < bytes) {
    // Phases that were enqueued before keep the smaller one until they have run.
    TESSERA_ASSIGN_OR_RETURN(staging, New(place, bytes));
    own.shared = staging;
    if (bytes <= kMaxStagingBytes) own.kept = staging;
  }
  if (std::find(record.staging.begin(), record.staging.end(), staging) == record.staging.end()) {
    record.staging.push_back(staging);
  }
  return staging->bytes.get();
}

}  // namespace tessera
