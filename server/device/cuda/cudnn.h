#pragma once

// cuDNN's backend API, taken at run time from libcudnn.so.9: descriptors that get attributes and are finalized.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<const Cudnn> library, Cudnn::Open());
//   DnnDescriptor tensor(*library);
//   TESSERA_RETURN_IF_ERROR(tensor.Make(dnn::kTensor));
//   TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorUniqueId, dnn::kInt64, {id}));
//   TESSERA_RETURN_IF_ERROR(tensor.Finalize());

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device/cuda/cudnn_constants.h"

namespace tessera::cuda {

using DnnHandle = void*;

struct Cudnn {
  // NotFound where there is no library (library.h; TESSERA_CUDNN=PATH says where it is), FailedPrecondition by both
  // versions where it is of another major version, or by name of what it lacks.
  static absl::StatusOr<std::unique_ptr<const Cudnn>> Open();

  // OK, or an error that names the call and what the library says: Unimplemented where it doesn't support what is asked
  // for, ResourceExhausted where memory is short, else Internal.
  absl::Status Check(std::string_view call, int result) const;

  size_t (*GetVersion)() = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
  void (*GetLastErrorString)(char* text, size_t bytes) = nullptr;
  int (*Create)(DnnHandle*) = nullptr;
  int (*Destroy)(DnnHandle) = nullptr;
  int (*SetStream)(DnnHandle, void* stream) = nullptr;
  int (*BackendCreateDescriptor)(int kind, void** descriptor) = nullptr;
  int (*BackendDestroyDescriptor)(void*) = nullptr;
  int (*BackendFinalize)(void*) = nullptr;
  int (*BackendSetAttribute)(void*, int attribute, int type, int64_t count, const void* elements) = nullptr;
  int (*BackendGetAttribute)(void*, int attribute, int type, int64_t wanted, int64_t* count, void* elements) = nullptr;
  int (*BackendExecute)(DnnHandle, void* plan, void* variant_pack) = nullptr;
};

class DnnDescriptor {
 public:
  explicit DnnDescriptor(const Cudnn& library) : library_(&library) {}
  DnnDescriptor(DnnDescriptor&& other) noexcept
      : library_(other.library_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  DnnDescriptor& operator=(DnnDescriptor&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~DnnDescriptor() {
    if (descriptor_ != nullptr) library_->BackendDestroyDescriptor(descriptor_);
  }
  void* get() const { return descriptor_; }

  absl::Status Make(dnn::Kind kind);
  absl::Status Finalize();
  template <typename T>
  absl::Status Set(dnn::Attribute attribute, dnn::Type type, const std::vector<T>& elements) {
    return SetAll(attribute, type, static_cast<int64_t>(elements.size()), elements.data());
  }
  template <typename T>
  absl::Status Set(dnn::Attribute attribute, dnn::Type type, std::initializer_list<T> elements) {
    return SetAll(attribute, type, static_cast<int64_t>(elements.size()), elements.begin());
  }
  // The number of elements that there are; the first of them are put into `elements`.
  template <typename T>
  absl::StatusOr<int64_t> Get(dnn::Attribute attribute, dnn::Type type, absl::Span<T> elements) const {
    return GetAll(attribute, type, static_cast<int64_t>(elements.size()), elements.data());
  }

 private:
  absl::Status SetAll(dnn::Attribute attribute, dnn::Type type, int64_t count, const void* elements);
  absl::StatusOr<int64_t> GetAll(dnn::Attribute attribute, dnn::Type type, int64_t count, void* elements) const;

  const Cudnn* library_;
  void* descriptor_ = nullptr;
};

}  // namespace tessera::cuda
