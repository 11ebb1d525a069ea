#pragma once

// cuFFT's functions, taken at run time from libcufft.so.12: a worker without it starts, too.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<const Cufft> library, Cufft::Open());
//   TESSERA_RETURN_IF_ERROR(library->Check("cufftCreate", library->Create(&handle)));

#include <memory>
#include <string_view>

#include <cufft.h>
#include <cufftXt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::cuda {

// X(Name): cufftName of the library, as Cufft::Name.
#define TESSERA_CUFFT_FUNCTIONS(X) \
  X(Create)                        \
  X(Destroy)                       \
  X(GetVersion)                    \
  X(SetAutoAllocation)             \
  X(SetStream)                     \
  X(SetWorkArea)                   \
  X(XtExec)                        \
  X(XtMakePlanMany)

struct Cufft {
  // NotFound where there is no library (library.h; TESSERA_CUFFT=PATH says where it is), FailedPrecondition by both
  // versions where it is of another major version, or by name of what it lacks.
  static absl::StatusOr<std::unique_ptr<const Cufft>> Open();

  // OK, or Unimplemented, which names the call and the library's error.
  static absl::Status Check(std::string_view call, cufftResult result);

#define TESSERA_CUFFT_MEMBER(Name) decltype(&::cufft##Name) Name = nullptr;
  TESSERA_CUFFT_FUNCTIONS(TESSERA_CUFFT_MEMBER)
#undef TESSERA_CUFFT_MEMBER
};

}  // namespace tessera::cuda
