#include "client/completion.h"

#include <utility>
#include <vector>

#include "client/completions.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

void OnReady(const Tensor& tensor, std::function<void(const absl::Status&)> done) {
  Completions(*tensor.session()).OnReady(tensor.state(), std::move(done));
}

void Fetch(const Tensor& tensor, std::function<void(absl::StatusOr<HostArray>)> done) {
  const auto fetch = [](const Tensor& of, std::function<void(absl::StatusOr<HostArray>)> told) {
    if (!of.spec().has_partial()) return Completions(*of.session()).Fetch(of.state(), std::move(told));
    const absl::StatusOr<Tensor> reduced = of.Redistribute(ReducedPlacements(of.spec()));
    if (!reduced.ok()) return told(reduced.status());
    Completions(*of.session()).Fetch(reduced->state(), std::move(told));
  };
  if (!tensor.spec_pending()) return fetch(tensor, std::move(done));
  // Whether it has pending terms is in its spec.
  OnReady(tensor, [tensor, fetch, done = std::move(done)](const absl::Status& status) {
    status.ok() ? fetch(tensor, done) : done(status);
  });
}

absl::StatusOr<size_t> WaitAny(absl::Span<const Tensor> tensors, std::optional<double> timeout_s) {
  if (tensors.empty()) return absl::InvalidArgumentError("wait: none of 0 tensors will be there");
  std::vector<HandlePtr> handles;
  for (const Tensor& tensor : tensors) {
    if (tensor.session() != tensors[0].session()) {
      return absl::InvalidArgumentError(StrCat("wait: tensor ", handles.size(), " of ", tensors.size(),
                                               " is of session ", tensor.session()->welcome().session_id,
                                               ", the first one is of session ",
                                               tensors[0].session()->welcome().session_id));
    }
    handles.push_back(tensor.state());
  }
  return Completions(*tensors[0].session()).WaitAny(handles, timeout_s);
}

}  // namespace tessera
