@0xc2b6a1f04d7e9310;
# The values of the contract: what schemas/types and schemas/ops hold, as records. schemas/codec turns
# them into C++ values and validates them; nothing else reads these records.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tessera::wire");

struct Status {
  # absl::Status. `code` is absl's number (0 is ok).
  code @0 :UInt16;
  message @1 :Text;
  payloads @2 :List(Text);
  # Names of payloads that the message carries (tessera/dtype, tessera/index): they choose the Python class.
  retryAfterMs @3 :UInt32;
  # Unavailable only: when to try again; 0 is unsaid.
}

struct Mesh {
  shape @0 :List(Int64);
  names @1 :List(Text);
  # Empty, or one per dim.
  workers @2 :List(Int32);
  # Empty: 0..n-1 in row-major order.
}

struct Placement {
  kind @0 :Kind;
  dim @1 :Int32;
  # shard only.
  reduceOp @2 :UInt8;
  # partial only: sum avg min max product.
  sizes @3 :List(Int64);
  # shard only: explicit sizes, written S(0;3,1,5); empty: as torch.chunk splits.
  enum Kind { replicate @0; shard @1; partial @2; }
}

struct TensorSpec {
  dtype @0 :UInt8;
  shape @1 :List(Int64);
  mesh @2 :Mesh;
  placements @3 :List(Placement);
}

struct Scalar {
  dtype @0 :UInt8;
  weak @1 :Bool;
  bits @2 :UInt64;
  # Two's complement, or the bits of an f64 when dtype is a float, or of the real part.
  imaginaryBits @3 :UInt64;
  # The bits of an f64; for complex dtypes alone.
}

struct IndexItem {
  kind @0 :UInt8;
  # slice integer newAxis
  start @1 :Int64;
  size @2 :Int64;
  step @3 :Int64;
}

struct Attribute {
  # A value of schemas/ops/attributes.h, of the kind that its table has for the name.
  id @0 :UInt16;
  union {
    flag @1 :Bool;
    integer @2 :Int64;
    number @3 :Float64;
    dtype @4 :UInt8;
    text @5 :Text;
    integers @6 :List(Int64);
    # Also a shape.
    mesh @7 :Mesh;
    placements @8 :List(Placement);
    placementsEach @9 :List(List(Placement));
    index @10 :List(IndexItem);
  }
}

struct OpCall {
  # One operation, generic over the catalog.
  op @0 :UInt16;
  scalars @1 :List(Scalar);
  attributes @2 :List(Attribute);
  # Each at most once.
  group @3 :Group;
  # Reserved: a c10d collective's group and its number in the group's sequence.
}

struct Group {
  # Reserved for c10d: client ranks whose k-th calls the coordinator matches.
  id @0 :UInt64;
  rank @1 :Int32;
  sequence @2 :UInt64;
}
