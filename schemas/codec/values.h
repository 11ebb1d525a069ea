#pragma once

// Records to values and back, for schemas/values.capnp. Decoding validates: a decoded value is as
// valid as one made by Make or Parse, or it is an InvalidArgument that says which field is wrong.
// Sizes are checked before anything is allocated.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schemas/ops/op.h"
#include "schemas/types/tensor_spec.h"
#include "schemas/values.capnp.h"

namespace tessera {

std::string TextOf(capnp::Text::Reader text);

void EncodeStatus(const absl::Status& status, wire::Status::Builder builder);
absl::Status DecodeStatus(wire::Status::Reader reader);

void EncodeMesh(const Mesh& mesh, wire::Mesh::Builder builder);
absl::StatusOr<Mesh> DecodeMesh(wire::Mesh::Reader reader);

void EncodeTensorSpec(const TensorSpec& spec, wire::TensorSpec::Builder builder);
absl::StatusOr<TensorSpec> DecodeTensorSpec(wire::TensorSpec::Reader reader);

// In elements, of a tensor's shards; none are the default ones. InvalidArgument: not one per dim, or a reach of more
// than 2^63-1 bytes.
absl::StatusOr<Strides> DecodeStrides(const TensorSpec& spec, capnp::List<int64_t>::Reader reader);

void EncodeScalar(const Scalar& scalar, wire::Scalar::Builder builder);
absl::StatusOr<Scalar> DecodeScalar(wire::Scalar::Reader reader);

void EncodeOpCall(const OpCall& call, wire::OpCall::Builder builder);
absl::StatusOr<OpCall> DecodeOpCall(wire::OpCall::Reader reader);

Box DecodeBox(capnp::List<int64_t>::Reader starts, capnp::List<int64_t>::Reader stops);

}  // namespace tessera
