#include "server/device/cuda/cudnn.h"

#include <dlfcn.h>

#include <string>

#include "schemas/types/library_functions.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/library.h"

namespace tessera::cuda {
namespace {

constexpr int kCategory = 1000;
constexpr size_t kVersionsOfAMajor = 10000;

}  // namespace

absl::StatusOr<std::unique_ptr<const Cudnn>> Cudnn::Open() {
  TESSERA_ASSIGN_OR_RETURN(void* library, OpenLibrary({.variable = "TESSERA_CUDNN", .file = "libcudnn.so.9"}));
  auto table = std::make_unique<Cudnn>();
  LibraryFunctions take([library](const char* name) { return dlsym(library, name); });
  take("cudnnGetVersion", table->GetVersion);
  take("cudnnGetErrorString", table->GetErrorString);
  take("cudnnGetLastErrorString", table->GetLastErrorString);
  take("cudnnCreate", table->Create);
  take("cudnnDestroy", table->Destroy);
  take("cudnnSetStream", table->SetStream);
  take("cudnnBackendCreateDescriptor", table->BackendCreateDescriptor);
  take("cudnnBackendDestroyDescriptor", table->BackendDestroyDescriptor);
  take("cudnnBackendFinalize", table->BackendFinalize);
  take("cudnnBackendSetAttribute", table->BackendSetAttribute);
  take("cudnnBackendGetAttribute", table->BackendGetAttribute);
  take("cudnnBackendExecute", table->BackendExecute);
  if (!take.missing().empty()) return absl::FailedPreconditionError(StrCat("cuDNN has no ", take.missing()));
  const size_t version = table->GetVersion();
  if (version / kVersionsOfAMajor != static_cast<size_t>(dnn::kMajorVersion)) {
    return absl::FailedPreconditionError(
        StrCat("cuDNN is of version ", version, ", and one of ", dnn::kMajorVersion, ".* is needed"));
  }
  return table;
}

absl::Status Cudnn::Check(std::string_view call, int result) const {
  if (result == dnn::kSuccess) return absl::OkStatus();
  char why[512] = {};
  GetLastErrorString(why, sizeof(why) - 1);
  const char* name = GetErrorString(result);
  const std::string message = StrCat("cuda: ", call, ": ", name == nullptr ? "an error" : name, " (", result, ")",
                                     why[0] == 0 ? "" : ": ", std::string_view(why));
  if (result == dnn::kOutOfDeviceMemory) return absl::ResourceExhaustedError(message);
  if (result / kCategory * kCategory == dnn::kNotSupported) return absl::UnimplementedError(message);
  return absl::InternalError(message);
}

absl::Status DnnDescriptor::Make(dnn::Kind kind) {
  const int result = library_->BackendCreateDescriptor(kind, &descriptor_);
  return result == dnn::kSuccess
             ? absl::OkStatus()
             : library_->Check(StrCat("cudnnBackendCreateDescriptor ", static_cast<int>(kind)), result);
}

absl::Status DnnDescriptor::Finalize() {
  return library_->Check("cudnnBackendFinalize", library_->BackendFinalize(descriptor_));
}

absl::Status DnnDescriptor::SetAll(dnn::Attribute attribute, dnn::Type type, int64_t count, const void* elements) {
  const int result = library_->BackendSetAttribute(descriptor_, attribute, type, count, elements);
  return result == dnn::kSuccess
             ? absl::OkStatus()
             : library_->Check(StrCat("cudnnBackendSetAttribute ", static_cast<int>(attribute)), result);
}

absl::StatusOr<int64_t> DnnDescriptor::GetAll(dnn::Attribute attribute, dnn::Type type, int64_t count,
                                              void* elements) const {
  int64_t found = 0;
  const int result = library_->BackendGetAttribute(descriptor_, attribute, type, count, &found, elements);
  if (result == dnn::kSuccess) return found;
  return library_->Check(StrCat("cudnnBackendGetAttribute ", static_cast<int>(attribute)), result);
}

}  // namespace tessera::cuda
