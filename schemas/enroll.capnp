@0xaa9b569e6e9c75bc;
# Enrolment: a worker that has one address and one secret gets a certificate of the coordinator's CA, and its number. The
# bootstrap capability of the coordinator's addresses for clients is one of these, too: a worker that has no certificate
# yet can show none, as an address for workers asks.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tessera::wire");

interface Enrolment {
  enroll @0 (request :EnrolRequest) -> (answer :EnrolAnswer);
}

struct EnrolRequest {
  protocolVersion @0 :UInt32;
  joinToken @1 :Text;
  index @2 :Int32;
  # Wanted number; -1: the next free one, which is kept for the worker until it joins.
  keyRequest @3 :Text;
  # The worker's key, to be certified: PKCS #10 in PEM. Only the key is taken from it.
  hosts @4 :List(Text);
  # Names and addresses by which others reach the worker.
  renews @5 :Bool;
  # The worker has its number, and is here.
  formerEndsAtS @6 :Int64;
  # A worker that renews says the end of the certificate that it has,
  proof @7 :Text;
  # and what it got with that. With both, its token may have expired, or be used up.
}

struct EnrolAnswer {
  certificate @0 :Text;
  # In PEM.
  endsAtS @1 :Int64;
  # Seconds since 1970.
  nowS @2 :Int64;
  # By the coordinator's clock, when it signed.
  index @3 :Int32;
  workersPort @4 :UInt16;
  # The port of the same host where workers join, with the certificate.
  proof @5 :Text;
  # The coordinator's word that the number has a certificate with that end: a secret of the worker.
}
