#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/blas_core.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Large enough that OpenBLAS packs the factors, for which it maps memory.
constexpr int kExtent = 256;

bool ProductIsRight() {
  const std::vector<float> ones(size_t{kExtent} * kExtent, 1.0f);
  std::vector<float> product(ones.size());
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kExtent, kExtent, kExtent, 1.0f, ones.data(), kExtent,
              ones.data(), kExtent, 0.0f, product.data(), kExtent);
  return std::all_of(product.begin(), product.end(), [](float each) { return each == kExtent; });
}

}  // namespace

absl::Status ProveBlas(std::chrono::milliseconds deadline, const std::function<void(const absl::Status&)>& end_now) {
  const auto what = StrCat("a product of two ", kExtent, "x", kExtent, " matrices at the start ");
  try {
    std::packaged_task<bool()> task(ProductIsRight);
    std::future<bool> is_right = task.get_future();
    std::thread thread(std::move(task));
    if (is_right.wait_for(deadline) != std::future_status::ready) {
      end_now(absl::DeadlineExceededError(
          StrCat(what, "was not done after ", deadline.count(),
                 " ms: OpenBLAS waits for ever for memory that it may not map. See what `ulimit -v` says "
                 "(RLIMIT_AS), and lift it, or give the worker less --memory")));
    }
    thread.join();
    if (!is_right.get())
      return absl::InternalError(StrCat(what, "was wrong: see OPENBLAS_CORETYPE in the environment"));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(StrCat(what, "found no memory: see what `ulimit -v` says (RLIMIT_AS)"));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        StrCat(what, "got no thread (", error.what(), "): see what `ulimit -v` and `ulimit -u` say"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
