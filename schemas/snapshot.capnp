@0xe1b7d2f46a0c9583;
# A coordinator's state at one moment: the one to which its log led up to there. A file of parts, each a SnapshotPart
# with its size and its checksum before it (server/coordinator/rpc/snapshot.h); rows of one table may come in several
# parts.
#
# Layouts, groups, measured costs, buffers and tensors are named by their place in their table, from 1; 0 is none.

using Cxx = import "/capnp/c++.capnp";
using V = import "values.capnp";
using S = import "session.capnp";
using W = import "worker.capnp";
using J = import "journal.capnp";
$Cxx.namespace("tessera::wire");

struct SegmentHeader {
  # JournalHeader, of a log in several files.
  protocolVersion @0 :UInt32;
  config @1 :Text;
  segment @2 :UInt64;
  # This one's number, from 1. 0: it is the only one.
  eventsBefore @3 :UInt64;
  # In the segments before it.
  level @4 :UInt8;
  # process disk: an end of the machine may have left holes behind what is committed.
  version @5 :UInt32;
  # The form of the log (server/coordinator/rpc/versions.h). 0: a program wrote it that had no number, which is version 1.
}

struct SnapshotPart {
  union {
    header @0 :SnapshotHeader;
    # The first part.
    numbers @1 :SnapshotNumbers;
    tenants @2 :List(SnapshotTenant);
    listedTenants @3 :List(Text);
    workers @4 :List(SnapshotWorker);
    layouts @5 :List(SnapshotLayout);
    groups @6 :List(List(Int32));
    measured @7 :List(SnapshotMeasured);
    buffers @8 :List(SnapshotBuffer);
    tensors @9 :List(SnapshotTensor);
    # Each that its session has under its first handle is that session's.
    sessions @10 :List(SnapshotSession);
    heldTensors @11 :List(SnapshotHeld);
    # Other handles of sessions.
    queued @12 :List(SnapshotQueued);
    plans @13 :List(SnapshotPlan);
    # The one that was used last first.
    ops @14 :List(SnapshotOp);
    tickets @15 :List(SnapshotTicket);
    freed @16 :List(SnapshotFreed);
    touched @17 :List(UInt32);
    # Buffers that have a history; 0: one that is gone.
    turns @18 :SnapshotTurns;
    losses @19 :List(SnapshotLoss);
    sweep @20 :SnapshotSweep;
    givenUp @21 :List(SnapshotGivenUp);
    processGroups @22 :List(SnapshotGroup);
    sessionLines @23 :List(SnapshotSessionLine);
    workerLines @24 :List(SnapshotWorkerLine);
    end @25 :UInt64;
    # The last part: how many were before it.
    publications @26 :List(SnapshotPublication);
    publishers @27 :List(SnapshotPublisher);
    joinTokens @28 :List(SnapshotJoinToken);
  }
}

struct SnapshotJoinToken {
  id @0 :Text;
  workers @1 :List(Int32);
  # The numbers for which it is used.
}

struct SnapshotHeader {
  version @0 :UInt32;
  config @1 :Text;
  # The state machine's, as JSON.
  segment @2 :UInt64;
  # The log's, which begins where this state is.
  events @3 :UInt64;
  # The number of events that led to it.
}

struct SnapshotNumbers {
  nowUs @0 :Int64;
  epoch @1 :UInt64;
  session @2 :UInt64;
  connection @3 :UInt64;
  incarnation @4 :UInt64;
  joins @5 :UInt64;
  hasLost @6 :Bool;
  rejoined @7 :Bool;
  hasMore @8 :Bool;
  lossesAreSeen @9 :Bool;
  closedWindows @10 :UInt64;
  nextOrdinal @11 :UInt64;
  nextTemplate @12 :UInt64;
  nextTicket @13 :UInt64;
  nextGroup @14 :UInt64;
  topologyVersion @15 :UInt64;
  hosts @16 :List(Int32);
  # By worker, as the topology has them.
  peerKey @17 :UInt64;
  planHits @18 :UInt64;
  planMisses @19 :UInt64;
  nextSpillFile @20 :UInt64;
  spillTurn @21 :UInt64;
}

struct SnapshotTenant {
  # In the order of their numbers.
  limits @0 :S.TenantLimits;
  isRemoved @1 :Bool;
  sessions @2 :Int64;
  deviceNs @3 :Int64;
  usedBytes @4 :List(Int64);
  spilledBytes @5 :Int64;
  shareTicks @6 :Int64;
  shareAtUs @7 :Int64;
}

struct SnapshotWorker {
  joined @0 :J.JournalEvent;
  state @1 :UInt8;
  lastHeardUs @2 :Int64;
  lastKillUs @3 :Int64;
  lanes @4 :List(SnapshotLane);
  receivedBytes @5 :Int64;
  workingSinceUs @6 :Int64;
  atWorkUs @7 :Int64;
  probe @8 :UInt64;
  probedUs @9 :Int64;
  stalled @10 :Text;
  lostReason @11 :Text;
  doneUs @12 :Int64;
  joinNumber @13 :UInt64;
  firstOrdinal @14 :UInt64;
  admits @15 :UInt8;
  newestAdmitted @16 :UInt64;
  spilledBytes @17 :Int64;
  spillFailedUs @18 :Int64;
  spilledToHostBytes @19 :Int64;
}

struct SnapshotLane {
  outstanding @0 :Int64;
  outstandingUs @1 :Int64;
  full @2 :Bool;
}

struct SnapshotLayout {
  spec @0 :V.TensorSpec;
  strides @1 :List(Int64);
}

struct SnapshotMeasured {
  ticks @0 :Int64;
  underWay @1 :Int64;
}

struct SnapshotAccess {
  stream @0 :UInt8;
  ordinal @1 :UInt64;
  group @2 :UInt32;
}

struct SnapshotHistory {
  writes @0 :List(SnapshotAccess);
  reads @1 :List(SnapshotAccess);
  peerReads @2 :List(SnapshotAccess);
}

struct SnapshotBuffer {
  group @0 :UInt32;
  tenant @1 :UInt32;
  # Its number and 1.
  offsetBytes @2 :Int64;
  bytes @3 :Int64;
  owner @4 :UInt64;
  born @5 :UInt64;
  history @6 :SnapshotHistory;
  isPublished @7 :Bool;
  spill @8 :SnapshotSpill;
  # Null: it never leaves.
}

struct SnapshotSpill {
  place @0 :UInt8;
  file @1 :UInt64;
  lastUse @2 :UInt64;
  wantedBy @3 :UInt64;
  failure @4 :V.Status;
  inHostMemory @5 :List(Int32);
}

struct SnapshotFormer {
  mesh @0 :V.Mesh;
  lost @1 :List(Int32);
}

struct SnapshotTensor {
  layout @0 :UInt32;
  buffer @1 :UInt32;
  session @2 :UInt64;
  handle @3 :UInt64;
  offsetBytes @4 :Int64;
  producer @5 :UInt64;
  isUploading @6 :Bool;
  isUnmatched @7 :Bool;
  isHeld @8 :Bool;
  # Its session has it under this handle.
  status @9 :V.Status;
  former @10 :SnapshotFormer;
}

struct SnapshotHeld {
  session @0 :UInt64;
  handle @1 :UInt64;
  tensor @2 :UInt32;
}

struct SnapshotScope {
  number @0 :UInt64;
  receivedBytes @1 :List(Int64);
  sentBytes @2 :List(Int64);
  uploadedBytes @3 :List(Int64);
  downloadedBytes @4 :List(Int64);
  collectives @5 :List(S.CollectiveCount);
  firstOp @6 :UInt64;
  endOp @7 :UInt64;
  pending @8 :Int64;
  ended @9 :Bool;
  request @10 :UInt64;
}

struct SnapshotSession {
  opened @0 :J.JournalEvent;
  tenant @1 :UInt32;
  seenLosses @2 :UInt64;
  names @3 :List(S.Naming);
  queueWeight @4 :Int64;
  loneCalls @5 :UInt64;
  bytes @6 :Int64;
  awaitsUpload @7 :Bool;
  memoryWait @8 :SnapshotMemoryWait;
  lastBatch @9 :UInt64;
  lastEvent @10 :UInt64;
  recentUs @11 :Int64;
  recentAtUs @12 :Int64;
  isHeavy @13 :Bool;
  isConnected @14 :Bool;
  connection @15 :UInt64;
  leaseDeadlineUs @16 :Int64;
  scopes @17 :List(SnapshotScope);
  openScopes @18 :List(UInt64);
  tickets @19 :Int64;
  groups @20 :List(UInt64);
  parkedWeight @21 :Int64;
  profileNumber @22 :UInt64;
  usage @23 :SnapshotUsage;
  wantsSpilled @24 :Bool;
  spilledBytes @25 :Int64;
}

struct SnapshotUsage {
  deviceNs @0 :Int64;
  uploadedBytes @1 :Int64;
  downloadedBytes @2 :Int64;
  refused @3 :Int64;
}

struct SnapshotMemoryWait {
  before @0 :UInt64;
  closedWindows @1 :UInt64;
}

struct SnapshotQueued {
  # A record that waits, in the order of its queue.
  session @0 :UInt64;
  parkedAt @1 :UInt64;
  # Beside the queue: the handle that it waits for.
  isUnparked @2 :Bool;
  # To go back to the front of the queue.
  union {
    record @3 :S.Record;
    bad @4 :SnapshotBadRecord;
    batchEnd @5 :UInt64;
  }
}

struct SnapshotBadRecord {
  status @0 :V.Status;
  request @1 :UInt64;
  results @2 :List(UInt64);
  lastUses @3 :List(UInt64);
}

struct SnapshotKeyOperand {
  value @0 :Int32;
  scalarDtype @1 :UInt8;
  scalarStrength @2 :UInt8;
  specialDtypes @3 :UInt8;
  isNegative @4 :Bool;
}

struct SnapshotKeyCall {
  call @0 :V.OpCall;
  # Its op and attributes.
  operands @1 :List(SnapshotKeyOperand);
  scalars @2 :List(SnapshotKeyOperand);
}

struct SnapshotPlan {
  # A plan's key. The plan itself is made again when the key is looked for next.
  id @0 :UInt64;
  inputs @1 :List(UInt32);
  # Layouts.
  calls @2 :List(SnapshotKeyCall);
  kept @3 :List(Int32);
  topologyVersion @4 :UInt64;
  temporaryBytes @5 :Int64;
  bytes @6 :Int64;
  # As the cache counts it.
  measured @7 :UInt32;
  definedOn @8 :List(Int32);
  textHash @9 :UInt64;
  # XXH3 of the plan's text: what is made again has to be the same, since workers know it by its id.
}

struct SnapshotStep {
  name @0 :Text;
  result @1 :V.TensorSpec;
}

struct SnapshotRun {
  worker @0 :Int32;
  times @1 :W.RunTimes;
  receivedBytes @2 :Int64;
  pushedBytes @3 :Int64;
  transferredBytes @4 :Int64;
}

struct SnapshotShare {
  session @0 :UInt64;
  scopes @1 :List(UInt64);
  profileNumber @2 :UInt64;
  result @3 :UInt64;
}

struct SnapshotWaiter {
  session @0 :UInt64;
  request @1 :UInt64;
  tensor @2 :UInt32;
}

struct SnapshotShard {
  position @0 :Int64;
  bytes @1 :Data;
}

struct SnapshotOp {
  ordinal @0 :UInt64;
  kind @1 :UInt8;
  name @2 :Text;
  way @3 :List(SnapshotStep);
  worksAlone @4 :Bool;
  firstResult @5 :UInt64;
  session @6 :UInt64;
  group @7 :UInt32;
  missing @8 :List(Int32);
  costUs @9 :Int64;
  predictedUs @10 :Int64;
  issuedUs @11 :Int64;
  lane @12 :UInt8;
  chargedSession @13 :UInt64;
  chargedTenant @14 :Int32;
  chargedTicks @15 :Int64;
  measured @16 :UInt32;
  status @17 :V.Status;
  brokenConnection @18 :V.Status;
  unsettledParents @19 :Int32;
  children @20 :List(UInt64);
  outputs @21 :List(UInt32);
  # 0: one that is gone.
  waiters @22 :List(SnapshotWaiter);
  scopes @23 :List(UInt64);
  request @24 :UInt64;
  ticket @25 :UInt64;
  tensor @26 :UInt32;
  mesh @27 :V.Mesh;
  # Null: none.
  parts @28 :List(SnapshotShard);
  profileNumber @29 :UInt64;
  shares @30 :List(SnapshotShare);
  runs @31 :List(SnapshotRun);
}

struct SnapshotTicket {
  ticket @0 :UInt64;
  session @1 :UInt64;
  secret @2 :UInt64;
  request @3 :UInt64;
  window @4 :UInt64;
  # The ordinal of its op; 0: that is settled.
  direction @5 :UInt8;
  tensors @6 :List(UInt32);
  group @7 :UInt32;
  missing @8 :List(Int32);
  isClosing @9 :Bool;
  awaitsWorkers @10 :Bool;
  # Nothing but their answers.
  status @11 :V.Status;
  profileNumber @12 :UInt64;
  runs @13 :List(SnapshotRun);
  scopes @14 :List(UInt64);
}

struct SnapshotFreed {
  start @0 :Int64;
  stop @1 :Int64;
  group @2 :UInt32;
  history @3 :SnapshotHistory;
}

struct SnapshotTurns {
  tenants @0 :List(Tenant);
  sessions @1 :List(Session);
  closed @2 :List(Int32);
  recent @3 :List(Int32);
  nextLookUs @4 :Int64;
  nowUs @5 :Int64;
  present @6 :Int64;
  latest @7 :Int64;
  backlogged @8 :Int64;
  underWay @9 :Int64;

  struct Tenant {
    number @0 :Int32;
    key @1 :Int64;
    weight @2 :Int64;
    rest @3 :Int64;
    present @4 :Int64;
    latest @5 :Int64;
    backlogged @6 :Int64;
    underWay @7 :Int64;
    lastWorkUs @8 :Int64;
    isRecent @9 :Bool;
    isReady @10 :Bool;
  }
  struct Session {
    id @0 :UInt64;
    key @1 :Int64;
    tenant @2 :Int32;
    hasWork @3 :Bool;
    gate @4 :Int32;
  }
}

struct SnapshotLoss {
  worker @0 :Int32;
  cause @1 :V.Status;
  joins @2 :UInt64;
}

struct SnapshotSweep {
  session @0 :UInt64;
  next @1 :UInt64;
  endLoss @2 :UInt64;
}

struct SnapshotGivenUp {
  handles @0 :List(UInt64);
  tensors @1 :List(UInt32);
}

struct SnapshotArrived {
  rank @0 :Int32;
  session @1 :UInt64;
  kind @2 :UInt8;
  reduceOp @3 :UInt8;
  root @4 :Int32;
  dtype @5 :UInt8;
  elements @6 :Int64;
  request @7 :UInt64;
  operand @8 :UInt32;
  result @9 :UInt32;
  onDevices @10 :Bool;
}

struct SnapshotGroup {
  id @0 :UInt64;
  tenant @1 :Text;
  key @2 :Text;
  members @3 :List(Member);
  isFormed @4 :Bool;
  formingDeadlineUs @5 :Int64;
  formingTimeoutUs @6 :Int64;
  calls @7 :List(Call);
  messages @8 :List(Message);
  flight @9 :List(S.FlightCall);
  isNamed @10 :Bool;
  # The key leads to it: no later group of that key was made.

  struct Member {
    state @0 :UInt8;
    session @1 :UInt64;
    worker @2 :Int32;
    process @3 :Text;
    meeting @4 :Text;
    request @5 :UInt64;
    why @6 :Text;
    nextCall @7 :UInt64;
  }
  struct Call {
    number @0 :UInt64;
    arrived @1 :List(SnapshotArrived);
    failed @2 :V.Status;
    deadlineUs @3 :Int64;
    timeoutUs @4 :Int64;
  }
  struct Message {
    call @0 :SnapshotArrived;
    peer @1 :Int32;
    tag @2 :Int32;
    deadlineUs @3 :Int64;
    timeoutUs @4 :Int64;
    isBlocked @5 :Bool;
    hasFailed @6 :Bool;
    claim @7 :UInt64;
  }
}

struct SnapshotSessionLine {
  session @0 :UInt64;
  logged @1 :UInt64;
  events @2 :List(S.Event);
}

struct SnapshotWorkerLine {
  worker @0 :Int32;
  incarnation @1 :UInt64;
  reports @2 :UInt64;
  first @3 :UInt64;
  messages @4 :List(W.WorkerMessages.Message);
  epoch @5 :UInt64;
  # The coordinator that it joined first had this one.
}

struct SnapshotPublication {
  name @0 :Text;
  tenant @1 :Int32;
  version @2 :UInt64;
  names @3 :List(Text);
  # The names of its tensors.
  tensors @4 :List(UInt32);
  readers @5 :List(Text);
  bytes @6 :Int64;
  seenLosses @7 :UInt64;
}

struct SnapshotPublisher {
  tenant @0 :Int32;
  removedVersion @1 :UInt64;
}
