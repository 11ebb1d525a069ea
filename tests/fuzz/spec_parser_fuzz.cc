// Every parser of the shared notation, on any bytes: no crash, no hang, and what is accepted prints a
// text that parses to the same value.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/address.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {
namespace {

template <typename Value, typename Parse>
void CheckRoundTrip(std::string_view text, const Parse& parse) {
  const absl::StatusOr<Value> value = parse(text);
  if (!value.ok()) return;
  const absl::StatusOr<Value> again = parse(ToText(*value));
  TESSERA_CHECK(again.ok());
  TESSERA_CHECK(*again == *value);
}

void CheckLayout(std::string_view text) {
  const absl::StatusOr<TensorSpec> spec = ParseTensorSpec(text);
  if (!spec.ok()) return;
  const Position last = spec->mesh.PositionAt(spec->mesh.size() - 1);
  const Box box = LocalBox(*spec, last);
  for (size_t d = 0; d < box.size(); ++d) {
    TESSERA_CHECK(0 <= box[d].start && box[d].start <= box[d].stop && box[d].stop <= spec->shape[d]);
  }
  TESSERA_CHECK(MaxShardElements(*spec) >= NumElements(box));
}

void CheckAddress(std::string_view text) {
  const absl::StatusOr<Address> address = ParseAddress("fuzz", text);
  if (!address.ok() || ToText(*address).find("#token=") != std::string::npos) return;
  TESSERA_CHECK(address->is_unix() != address->socket_path.empty());
  const absl::StatusOr<Address> again = ParseAddress("fuzz", ToText(*address));
  TESSERA_CHECK(again.ok() && ToText(*again) == ToText(*address));
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckRoundTrip<TensorSpec>(text, [](std::string_view t) { return ParseTensorSpec(t); });
  CheckRoundTrip<Mesh>(text, [](std::string_view t) { return ParseMesh(t); });
  CheckRoundTrip<Expression>(text, [](std::string_view t) { return ParseExpression(t); });
  CheckRoundTrip<LocalOp>(text, [](std::string_view t) { return ParseLocalOp(t); });
  CheckRoundTrip<Scalar>(text, [](std::string_view t) { return ParseScalar(t); });
  CheckLayout(text);
  CheckAddress(text);
  return 0;
}
