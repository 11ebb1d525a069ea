#include "tests/conformance/kernels/backend.h"

namespace tessera::testing {

int BackendUlps(ScalarOp op, DType operand) { return Kind(operand) == DTypeKind::kComplex ? 0 : MaxUlps(op); }
void SetBackendItems(int64_t) {}
bool BackendScansInOrder() { return true; }
absl::Status BackendImplements(const LocalOp&, absl::Span<const DType>, DType) { return absl::OkStatus(); }

}  // namespace tessera::testing
