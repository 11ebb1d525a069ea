#pragma once

// NCCL's functions, taken at run time from libnccl.so.2, or from what TESSERA_NCCL=PATH names.
//
//   TESSERA_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::Load());
//   TESSERA_RETURN_IF_ERROR(nccl->Check("ncclGetUniqueId", nccl->GetUniqueId(&id)));

#include <string_view>

#include <nccl.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// X(Name): ncclName of the library, as Nccl::Name.
#define TESSERA_NCCL_FUNCTIONS(X) \
  X(GetVersion)                   \
  X(GetUniqueId)                  \
  X(CommInitRankConfig)           \
  X(CommGetAsyncError)            \
  X(CommAbort)                    \
  X(CommDestroy)                  \
  X(GetErrorString)               \
  X(GetLastError)                 \
  X(GroupStart)                   \
  X(GroupEnd)                     \
  X(Send)                         \
  X(Recv)                         \
  X(AllGather)                    \
  X(Broadcast)                    \
  X(ReduceScatter)

struct Nccl {
  // The process's one. FailedPrecondition says what of the library is missing.
  static absl::StatusOr<const Nccl*> Load();

  // OK for success and for what a non-blocking communicator goes on with; else an error that names the call and what
  // NCCL says of it.
  absl::Status Check(std::string_view call, ncclResult_t result) const;
  // Whether a non-blocking communicator still goes on with what it was told; its error, if it has failed.
  absl::StatusOr<bool> IsBusy(ncclComm_t comm) const;

#define TESSERA_NCCL_MEMBER(Name) decltype(&::nccl##Name) Name = nullptr;
  TESSERA_NCCL_FUNCTIONS(TESSERA_NCCL_MEMBER)
#undef TESSERA_NCCL_MEMBER
};

}  // namespace tessera
