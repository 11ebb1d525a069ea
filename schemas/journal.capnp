@0xd1e7f3a25b90c846;
# The coordinator's inputs, in order. Replayed through Apply they give the same effects, bit for bit. Behind each message
# stands XXH3 of its bytes, as a little-endian UInt64.

using Cxx = import "/capnp/c++.capnp";
using V = import "values.capnp";
using S = import "session.capnp";
using W = import "worker.capnp";
$Cxx.namespace("tessera::wire");

struct JournalHeader {
  protocolVersion @0 :UInt32;
  config @1 :Text;
  # The state machine's configuration as JSON.
}

struct JournalEvent {
  nowUs @0 :Int64;
  # Time is an input, like everything else.
  union {
    sessionOpened @1 :SessionOpened;
    sessionClosed @2 :UInt64;
    connectionLost @3 :UInt64;
    # Reserved, as sessionResumed and sessionWentOn are: `disconnected` and `connected` have the connection, too.
    batch @4 :SessionBatch;
    workerJoined @5 :WorkerJoined;
    workerLost @6 :WorkerGone;
    report @7 :WorkerReport;
    tick @8 :Void;
    acknowledged @9 :Acknowledged;
    # No event of the machine's: the session's client has its events up to there. Written once in a while.
    heard @10 :Int32;
    # A worker answered a ping.
    sessionResumed @11 :UInt64;
    continued @12 :Void;
    # The machine went on with what it had.
    sessionWentOn @13 :UInt64;
    # Resumed by the client that had it.
    started @14 :UInt64;
    # Reserved: `startedAs` has the peer key, too.
    connected @15 :SessionConnection;
    disconnected @16 :SessionConnection;
    heardAtWork @17 :Int32;
    # As `heard`, of a worker whose device has worked since.
    tenantsChanged @18 :List(S.TenantLimits);
    # All that are listed from then on. Tokens are never here.
    sessionCharged @19 :SessionCharged;
    startedAs @20 :Started;
    tenantEvicted @21 :Evicted;
    workerAdmits @22 :WorkerAdmits;
    workerDrained @23 :WorkerGone;
    # It is told to end; workerLost follows when it has.
    committed @24 :UInt64;
    # No event of the machine's: so many events, from the first on, are on the disk. A log at the level `disk` has it.
    joinTokenUsed @25 :JoinTokenUse;
    joinTokenForgotten @26 :Text;
    # The id of a token that the tenants file has no more.
  }
}

struct JoinTokenUse {
  token @0 :Text;
  # Its id. The token itself is never here.
  worker @1 :Int32;
}

struct Evicted {
  tenant @0 :Text;
  reason @1 :Text;
}

struct WorkerAdmits {
  index @0 :Int32;
  admits @1 :UInt8;
  # everyone formerSessions nobody
}

struct Started {
  epoch @0 :UInt64;
  peerKey @1 :UInt64;
}

struct SessionCharged {
  # Charges a session for the coordinator's work beside its records.
  session @0 :UInt64;
  us @1 :Int64;
}

struct SessionOpened {
  session @0 :UInt64;
  secret @1 :UInt64;
  tenant @2 :Text;
  client @3 :Text;
  leaseUs @4 :Int64;
  role @5 :UInt8;
  # client admin
  name @6 :Text;
  connection @7 :UInt64;
  uid @8 :Int64 = -1;
  # The user of the client's process, on a unix socket; -1 where nobody knows it.
}

struct SessionConnection {
  session @0 :UInt64;
  connection @1 :UInt64;
  goesOn @2 :Bool;
  # True of a new connection by the client that had the session.
}

struct SessionBatch {
  session @0 :UInt64;
  batch @1 :S.Batch;
}

struct Acknowledged {
  session @0 :UInt64;
  event @1 :UInt64;
}

struct WorkerJoined {
  index @0 :Int32;
  incarnation @1 :UInt64;
  hello @2 :W.WorkerHello;
}

struct WorkerGone {
  index @0 :Int32;
  incarnation @1 :UInt64;
  reason @2 :Text;
}

struct WorkerReport {
  index @0 :Int32;
  incarnation @1 :UInt64;
  completions @2 :List(W.Completion);
  transfers @3 :List(W.TransferDone);
  taken @4 :UInt64;
}
