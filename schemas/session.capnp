@0xb8f2d5c31a6e4f07;
# Clients and the coordinator. A client connects, shows a token, and gets a Session. Everything of a
# session is numbered by the client (handles, batches, requests), so that making a tensor needs no
# answer; answers come as events. Nothing depends on a live capability: a session can be resumed on a
# new connection by id and secret, with its batch and event numbers.

using Cxx = import "/capnp/c++.capnp";
using V = import "values.capnp";
using W = import "worker.capnp";
$Cxx.namespace("tessera::wire");

const protocolVersion :UInt32 = 16;
# Raised when an old peer could misread a new one. A server of another version is FailedPrecondition.

interface Gateway {
  # The bootstrap capability of the coordinator's socket.
  open @0 (hello :ClientHello) -> (session :Session, welcome :Welcome, linkKey :UInt64);
  join @1 (hello :W.WorkerHello, worker :W.Worker)
       -> (welcome :W.WorkerWelcome, membership :W.Membership, linkKey :UInt64);
  # A process with a link key opens one more connection and begins it with the key: it is the link (codec/dialer.h). A
  # key is good once.
}

struct ClientHello {
  protocolVersion @0 :UInt32;
  token @1 :Text;
  tenant @2 :Text;
  # The token's tenant when empty; another one gets the answer of a wrong token.
  client @3 :Text;
  # For people: "python 3.11 tessera 0.1".
  pid @4 :Int32;
  leaseS @5 :Float64;
  # Wanted lease in seconds; negative: the server's default. More than max_session_lease is refused.
  resume @6 :Resume;
  # Null for a new session.
  name @7 :Text;
  # The session's name, for people and for a client that comes back to it; may be empty.
}

struct Resume {
  sessionId @0 :UInt64;
  secret @1 :UInt64;
  lastEvent @2 :UInt64;
  # The newest event that the client has; the server sends what came after.
  goesOn @3 :Bool;
  # The client whose connection broke, and not another process in its place: its uploads go on.
}

struct Welcome {
  sessionId @0 :UInt64;
  secret @1 :UInt64;
  epoch @2 :UInt64;
  # The coordinator's: the host's time at its start, so that a restart raises it. Messages of another epoch are refused.
  connection @3 :UInt64;
  # A new connection of a session fences the old one.
  workers @4 :List(WorkerInfo);
  lastBatch @5 :UInt64;
  # The newest batch that the server has (resume).
  leaseS @6 :Float64;
  serverVersion @7 :Text;
  pid @8 :Int32;
  maxInlineBytes @9 :UInt32;
  heartbeatS @10 :Float64;
  # A client that has nothing to say for so long says that it is there (acknowledge); one that says nothing for
  # session_silence counts as gone.
}

struct WorkerInfo {
  index @0 :Int32;
  incarnation @1 :UInt64;
  host @2 :Text;
  dataAddress @3 :Text;
  # "unix:/path": where clients of this host bring and fetch bytes.
  memoryBytes @4 :Int64;
  usedBytes @5 :Int64;
  state @6 :State;
  pid @7 :Int32;
  device @8 :Text;
  receivedBytes @9 :Int64;
  # From other workers, since it joined.
  outstanding @10 :Int64;
  # Instructions issued and not yet reported.
  activity @11 :UInt64;
  # Grows with each heartbeat that finds the worker at work: an op that takes long is no stall.
  remoteAddress @12 :Text;
  # "tls://host:port": the same for clients of other hosts; empty where there is none.
  enum State { alive @0; suspect @1; dead @2; }
  cordoned @13 :Bool;
  # In a welcome: the session may not use it. In a status: sessions that begin may not.
  draining @14 :Bool;
  # Nothing is issued to it: it is about to be shut down.
  spilledBytes @15 :Int64;
  # In its files and its host's memory, of all tenants; spillBytes is what it may have in files.
  spillBytes @16 :Int64;
  spilledToHostBytes @17 :Int64;
  # The part of spilledBytes that is in the memory of its host, not in files.
}

interface Session {
  # Calls that are made once in a while. They may overtake the link: a client that wants one after a batch waits until
  # that is taken up.
  status @0 (maxTensors :UInt32, afterHandle :UInt64) -> (status :ClusterStatus);
  # With so many of this session's tensors, in the order of their handles, from the first handle after that one.
  explain @1 (call :V.OpCall, operands :List(ExplainOperand), held :List(HeldMemory)) -> (plan :PlanText);
  # Plans and runs nothing. `held`: memory that results of earlier calls would have, which were planned only.
  close @2 ();
  # Drops everything the session has.
  closeOther @3 (session :UInt64);
  # Ends a session as if its client had closed it. For admins; PermissionDenied for others.
  profile @4 (firstOp :UInt64, endOp :UInt64) -> (profile :Profile);
  # The runs of this session's ops [firstOp, endOp), as far as they are remembered (max_profiled_runs).
  killWorker @5 (worker :Int32, reason :Text) -> ();
  # Ends a worker as if it were silent: its process is killed, and tensors without a living copy fail with the reason.
  # For admins; PermissionDenied for others. NotFound where no such worker lives.
  groupStatus @6 (group :UInt64, lastCalls :UInt32) -> (record :FlightRecord);
  # The flight record of a process group that the session is a member of; NotFound for others. It has so many calls at most
  # (max_flight_calls).
  tenants @7 () -> (tenants :List(TenantInfo));
  # All of them for an admin, else the session's own.
  setLimit @8 (tenant :Text, key :Text, value :Text) -> ();
  # Changes one limit of a tenant until the tenants file is read again, which doesn't hear of it. For admins;
  # PermissionDenied for others. NotFound where no such tenant is.
  evictTenant @9 (tenant :Text, reason :Text) -> (sessions :UInt32);
  # Ends all sessions of a tenant, but those of admins. How many there were. For admins; PermissionDenied for others.
  # NotFound where no such tenant is.
  cordonWorker @10 (worker :Int32, cordoned :Bool) -> ();
  # Sessions that begin from then on may not use the worker, or may again. For admins; PermissionDenied for others.
  # NotFound where no such worker lives.
  drainWorker @11 (worker :Int32, lose :Bool) -> (drain :DrainReport);
  # One step of a drain, or its first: the caller asks again until it has ended. A drain that nobody asks about for some
  # seconds is given up. For admins; PermissionDenied for others. NotFound where no such worker lives.
}

struct DrainReport {
  phase @0 :Phase;
  tensors @1 :UInt64;
  # Tensors that are on this worker alone, and would be lost.
  bytes @2 :Int64;
  losses @3 :List(Loss);
  # By session, those with the most bytes first; max_drain_owners at most.
  outstanding @4 :Int64;
  # Instructions that the worker has not reported.
  why @5 :Text;
  # Why a drain was refused.
  enum Phase { looking @0; waiting @1; ending @2; done @3; refused @4; }
  # Tensors are looked through; issued instructions end; the worker was told to end; it is gone.
  struct Loss {
    session @0 :UInt64;
    tenant @1 :Text;
    name @2 :Text;
    tensors @3 :UInt64;
    bytes @4 :Int64;
  }
}

struct TenantLimits {
  # The share of a tenant of the pool; -1: no limit.
  name @0 :Text;
  weight @1 :Int64;
  guaranteedBytes @2 :Int64;
  # Bytes of each worker, as all bytes here.
  maxBytes @3 :Int64 = -1;
  maxSessions @4 :Int64 = -1;
  maxConnections @5 :Int64 = -1;
  maxQueuedRecords @6 :Int64 = -1;
  maxSpilledBytes @7 :Int64 = -1;
  deviceSharePermille @8 :Int64 = -1;
  # The most of the pool's device time, in thousandths.
  maxDetachedBytes @9 :Int64 = -1;
  # Sessions without a client have at most so many on each worker.
  lanes @10 :Int64 = 0;
  # 0: as the coordinator chooses; 1: interactive; 2: batch.
}

struct TenantInfo {
  # A tenant and what it has.
  limits @0 :TenantLimits;
  usedBytes @1 :Int64;
  # On the worker where it has the most.
  sessions @2 :UInt64;
  connections @3 :UInt64;
  queued @4 :UInt64;
  deviceSeconds @5 :Float64;
  # Time that its work took, summed over workers, since the coordinator began.
  removed @6 :Bool;
  # The tenants file names it no more.
  spilledBytes @7 :Int64;
  # In files of a worker, at most.
}

struct FlightRecord {
  # The last calls of a process group's ranks, in the order in which they began.
  nowUs @0 :Int64;
  # By the coordinator's clock, as all times here.
  members @1 :List(FlightMember);
  # By rank.
  calls @2 :List(FlightCall);
}

struct FlightMember {
  process @0 :Text;
  why @1 :Text;
  # Why it is gone. Empty: it is here.
  connected @2 :Bool;
  nextCall @3 :UInt64;
  # The number of its next collective.
}

struct FlightCall {
  number @0 :UInt64;
  # 0: a message.
  what @1 :Text;
  arrivedUs @2 :List(Int64);
  # By rank; -1: the rank has not come to it.
  matchedUs @3 :Int64;
  # When it was issued; -1: it was not.
  failure @4 :Text;
}

struct ToCoordinator {
  # A client's messages on its session's link.
  union {
    batch @0 :Batch;
    acknowledge @1 :UInt64;
    # The client has all events up to this one.
  }
}

struct ToClient {
  # The coordinator's messages on a session's link.
  union {
    events @0 :List(Event);
    ended @1 :V.Status;
    # The session is over, or another connection has taken it; nothing comes after.
  }
}

struct Batch {
  # Batches are dense and in order; one that was seen before is dropped, a gap ends the session.
  number @0 :UInt64;
  epoch @1 :UInt64;
  connection @2 :UInt64;
  records @3 :List(Record);
}

struct Operand {
  union {
    handle @0 :UInt64;
    scalar @1 :V.Scalar;
  }
  lastUse @2 :Bool;
  # The client has no other use of this handle: its buffer may be donated.
}

struct Record {
  union {
    call @0 :Call;
    upload @1 :Upload;
    download @2 :Download;
    watch @3 :Watch;
    drop @4 :List(UInt64);
    # Handles that the client no longer has. Unknown ones are ignored.
    commBegin @5 :UInt64;
    # Counts the bytes of the calls after it, under this number. Any may be open at once, and each counts.
    commEnd @6 :Watch;
    # Answers when those calls have ended; `handle` is the number of the commBegin.
    cancel @7 :UInt64;
    # Ends a request (by number) with Cancelled. Acts when it arrives, before the records that wait.
    release @8 :UInt64;
    # A ticket that the client is done with: the workers end its transfers and the tensor is unpinned. Acts when it
    # arrives.
    cancelled @9 :List(UInt64);
    # New handles: results of calls that the client took back before it sent them.
    name @11 :Naming;
    cancelCalls @12 :List(UInt64);
    # Cancels the calls and uploads of this session that are not issued yet, but for those that lead to these handles. Acts
    # when it arrives, before the records that wait.
    joinGroup @13 :JoinGroup;
    collective @14 :Collective;
    leaveGroup @15 :UInt64;
    # A process group that the session's rank has no more calls for. The members that stay are told by their next call.
    publish @16 :Publish;
    unpublish @17 :Unpublish;
    attach @18 :Attach;
    listPublished @19 :ListPublished;
  }
  reason @10 :V.Status;
  # A `release` of an upload that is not complete: why the client gives it up; the tensor fails with it. Null:
  # Cancelled.
}

struct Naming {
  # A tensor's name, by which a client that comes back in a new process finds it. A name is of one handle: the former one
  # loses it. Empty: the tensor has none any more.
  handle @0 :UInt64;
  name @1 :Text;
}

struct JoinGroup {
  # Makes the session a member of a process group: `size` sessions of one tenant that say the same key. Answered by
  # `groupJoined` when all are there, or settled with the ranks that are missing when the time is up.
  request @0 :UInt64;
  key @1 :Text;
  size @2 :UInt32;
  rank @3 :UInt32;
  worker @4 :Int32;
  # Where the rank's tensors lie; each rank has another one.
  process @5 :Text;
  # For messages: "pid 4242 on node7".
  timeoutUs @6 :Int64;
  meeting @7 :Text;
  # Where the other ranks of its host find it (client/rank_page): not read here, and told to all members.
}

struct Publish {
  # Publishes tensors of the session as one set, which nothing writes to any more; answered by `publications` with its
  # version. It waits until they are there. A name begins with its tenant's: "vision/weights".
  request @0 :UInt64;
  name @1 :Text;
  tensors @2 :List(NamedHandle);
  readers @3 :List(Text);
  # Tenants that may attach it beside its own; "*": every tenant.
}

struct NamedHandle {
  name @0 :Text;
  handle @1 :UInt64;
}

struct Unpublish {
  # Takes a publication back; settled. Handles that others have of it stay.
  request @0 :UInt64;
  name @1 :Text;
}

struct Attach {
  # Makes handles of a publication's tensors; answered by `publications`.
  request @0 :UInt64;
  name @1 :Text;
  firstResult @2 :UInt64;
  # The first of max_published_tensors new handles: the n-th tensor gets the n-th of them, and the rest stay unused.
}

struct ListPublished {
  # The publications that the session's tenant may attach, or of an admin all, in the order of their names; answered by
  # `publications`.
  request @0 :UInt64;
  after @1 :Text;
  # Behind this name.
}

struct Collective {
  # One member's call. The k-th calls of all members are compared, then run as one op; sends and receives are matched by
  # their ranks and tag. It holds up no other record: its result is there at once, and waits for the other members.
  request @0 :UInt64;
  # Answered by `matched` when the op is issued, or settled with why it can't be. 0: not at all.
  group @1 :UInt64;
  kind @2 :UInt8;
  # A number of collective_kind.h.
  reduceOp @3 :UInt8;
  peer @4 :Int32;
  # The root's rank; of a send the destination's, of a recv the source's, -1: any.
  tag @5 :Int32;
  operand @6 :UInt64;
  # Row-major, on the rank's worker. 0: the member gives nothing.
  lastUse @7 :Bool;
  result @8 :UInt64;
  # A new handle. 0: the member takes nothing.
  resultSpec @9 :V.TensorSpec;
  timeoutUs @10 :Int64;
  number @11 :UInt64;
  # The call's place among the member's collectives of the group, from 1. 0: it follows the one before. A larger one says
  # that the ranks matched the calls between by themselves. A send or a receive has a claim here: two sides with one that
  # isn't 0 were matched by the ranks, and have the same.
  waitedUs @12 :Int64;
  # How long it has waited for other ranks already: its time-out began so long ago.
  onDevices @13 :Bool;
  # The ranks' devices move the bytes by themselves once the call has matched: no op is issued, and there are no handles.
  dtype @14 :UInt8;
  elements @15 :Int64;
  # A call on devices says its signature (schemas/types/collective_signature.h) by these.
}

struct Call {
  call @0 :V.OpCall;
  operands @1 :List(Operand);
  results @2 :List(UInt64);
  # New handles, one per output.
  calledAs @3 :UInt16;
  # A number of schemas/ops/called_as.h: the function that the user called, which messages name. 0: the op itself.
}

struct Upload {
  # The result's bytes come from the client: the answer is a ticket for every worker of the mesh.
  request @0 :UInt64;
  result @1 :UInt64;
  spec @2 :V.TensorSpec;
  others @3 :List(UploadedTensor);
  # More that come by the same ticket, to the same workers: all get their memory or none does, they are ready together, and
  # what fails one fails all. Their numbers within the ticket are 1, 2, ...; `result` is 0.
  bytes @4 :Data;
  # All elements, row-major, of one small tensor that isn't pending (max_inline_bytes): there is no ticket, `request` is 0,
  # and the tensor is ready as the result of a call is. Empty: by ticket.
}

struct UploadedTensor {
  result @0 :UInt64;
  spec @1 :V.TensorSpec;
}

struct Download {
  request @0 :UInt64;
  handle @1 :UInt64;
  allowInline @2 :Bool;
  # Up to maxInlineBytes may come in the answer. Only for a whole tensor without pending terms.
}

struct Watch {
  request @0 :UInt64;
  handle @1 :UInt64;
}

struct Event {
  number @0 :UInt64;
  # Dense from 1.
  union {
    settled @1 :Settled;
    # A watch: all that led to the handle has ended well, or its first cause of failure.
    ticket @2 :Ticket;
    # An upload or a download: the workers have opened its ticket. A download's is given back by `release`.
    inlineValue @3 :InlineValue;
    batchDone @4 :UInt64;
    # All records up to this batch were taken up (not: have run).
    comm @5 :CommReport;
    failed @6 :FailedHandle;
    # A handle became poisoned; sent once, without being asked for.
    workerLost @7 :WorkerLost;
    uploadDone @8 :UInt64;
    # Request number of an upload: all workers have the bytes; the source may be reused.
    specKnown @9 :KnownSpec;
    # Reserved: of a result whose shape depends on data (nonzero, unique, a boolean mask). Its handle has a
    # pending spec from the call on, and this one from here on.
    workerJoined @10 :WorkerMoved;
    # In place of one that was lost, or as a new one.
    groupJoined @11 :GroupJoined;
    matched @12 :Matched;
    publications @13 :Publications;
  }
}

struct Publications {
  # To a publish and an attach: the one; to a listing those that it is of.
  request @0 :UInt64;
  firstResult @1 :UInt64;
  # An attach: the handle of the first tensor; the others follow. 0: none.
  list @2 :List(Publication);
  hasMore @3 :Bool;
  # A listing has more: ask again behind the last one.
}

struct Publication {
  name @0 :Text;
  version @1 :UInt64;
  # The newer one of a name has the larger number.
  readers @2 :List(Text);
  # A listing's, for its own tenant and admins.
  tensorCount @3 :UInt64;
  bytes @4 :Int64;
  # On each worker, at most; charged to its tenant.
  tensors @5 :List(PublishedTensor);
  # An attach's alone.
}

struct PublishedTensor {
  name @0 :Text;
  spec @1 :V.TensorSpec;
}

struct GroupJoined {
  request @0 :UInt64;
  group @1 :UInt64;
  members @2 :List(GroupMember);
  # By rank.
}

struct GroupMember {
  worker @0 :Int32;
  process @1 :Text;
  meeting @2 :Text;
}

struct Matched {
  request @0 :UInt64;
  source @1 :Int32;
  # The rank that sent, to a recv.
}

struct WorkerMoved {
  worker @0 :Int32;
  dataAddress @1 :Text;
  device @2 :Text;
  remoteAddress @3 :Text;
}

struct KnownSpec {
  # Reserved.
  handle @0 :UInt64;
  spec @1 :V.TensorSpec;
}

struct Settled {
  request @0 :UInt64;
  status @1 :V.Status;
}

struct Ticket {
  request @0 :UInt64;
  ticket @1 :UInt64;
  secret @2 :UInt64;
  spec @3 :V.TensorSpec;
}

struct InlineValue {
  request @0 :UInt64;
  bytes @1 :Data;
  # Row-major elements of the whole tensor.
}

struct CommReport {
  request @0 :UInt64;
  receivedBytes @1 :List(Int64);
  # By worker index.
  sentBytes @2 :List(Int64);
  collectives @3 :List(CollectiveCount);
  firstOp @4 :UInt64;
  endOp @5 :UInt64;
  # The session's ops between commBegin and commEnd, for `profile`: [firstOp, endOp).
  uploadedBytes @6 :List(Int64);
  # By worker index: copied into shards from the client or a file.
  downloadedBytes @7 :List(Int64);
  # By worker index: copied from shards to the client or a file.
}

struct Profile {
  ops @0 :List(ProfiledOp);
  # In the order in which they ended.
  forgottenOps @1 :UInt64;
  # Ops in the range that are no longer remembered.
  opsUnderWay @2 :UInt64;
  clocks @3 :List(WorkerClock);
}

struct WorkerClock {
  worker @0 :Int32;
  errorNs @1 :Int64;
  # How far the times of its runs may be off on the coordinator's clock. 0: it is the same clock.
}

struct ProfiledOp {
  number @0 :UInt64;
  # In the order in which the session's ops were issued.
  name @1 :Text;
  # The op, or the last of a segment; "upload", "download".
  segment @2 :List(Text);
  # The ops that ran as this one; empty: it alone.
  output @3 :Text;
  # The spec of the (first) result; empty where its plan is not remembered.
  predictedUs @4 :Int64;
  # 0: nothing was.
  failure @5 :Text;
  # The name of the status with which it failed; empty: it did not.
  runs @6 :List(ProfiledRun);
  result @7 :UInt64;
  # The handle that the op's call made first, of a segment its last call; 0: none. By it the client knows the line of the
  # program.
}

struct ProfiledRun {
  # One worker's part of an op.
  worker @0 :Int32;
  startedNs @1 :Int64;
  # By the coordinator's monotonic clock.
  endedNs @2 :Int64;
  workNs @3 :Int64;
  receivedBytes @4 :Int64;
  # From other workers.
  pushedBytes @5 :Int64;
  # Stored to other workers' memory.
  transferredBytes @6 :Int64;
  # Between the shard and the client or a file.
}

struct CollectiveCount {
  name @0 :Text;
  count @1 :UInt64;
}

struct FailedHandle {
  handle @0 :UInt64;
  status @1 :V.Status;
}

struct WorkerLost {
  worker @0 :Int32;
  incarnation @1 :UInt64;
  reason @2 :Text;
}

struct ExplainOperand {
  union {
    handle @0 :UInt64;
    scalar @1 :V.Scalar;
    spec @2 :V.TensorSpec;
    # A tensor that isn't there.
  }
  strides @3 :List(Int64);
  # Strides of `spec`: in elements, on every position. Empty: the default ones.
}

struct HeldMemory {
  workers @0 :List(Int32);
  bytes @1 :Int64;
  # On each of them.
}

struct PlanText {
  text @0 :Text;
  steps @1 :List(Text);
  implicit @2 :List(Text);
  receivedBytes @3 :List(Int64);
  sentBytes @4 :List(Int64);
  peakBytes @5 :List(Int64);
  predictedSeconds @6 :Float64;
  output @7 :V.TensorSpec;
  # The first.
  grid @8 :Text;
  runnersUp @9 :List(Text);
  outputs @10 :List(V.TensorSpec);
  workers @11 :List(Int32);
  # The worker of each entry of the lists of bytes.
  outputStrides @12 :List(List(Int64));
  # In elements, by output.
  outputOperands @13 :List(Int32);
  # By output: the number of the tensor among the operands in whose memory it lies; -1: in its own.
  outputBytes @14 :List(Int64);
  # By output: of its own memory, on each of its workers.
  flows @15 :List(StepFlows);
  # By step; none where the plan has more than max_flow_workers workers.

  struct StepFlows {
    title @0 :Text;
    workers @1 :List(Int32);
    isExchange @2 :Bool;
    joinsLast @3 :Bool;
    # In the phase of the step before.
    flows @4 :List(Flow);
  }

  struct Flow {
    from @0 :Int32;
    to @1 :Int32;
    bytes @2 :Int64;
  }
}

struct ClusterStatus {
  epoch @0 :UInt64;
  uptimeS @1 :Float64;
  workers @2 :List(WorkerInfo);
  sessions @3 :List(SessionInfo);
  # All of them for an admin, else the asking one.
  tensors @4 :List(TensorInfo);
  # This session's.
  nextOrdinal @5 :UInt64;
  plansCached @6 :UInt64;
  planHits @7 :UInt64;
  planMisses @8 :UInt64;
  sessionCount @9 :UInt64;
  # Counts the asking session's tenant, and everybody for an admin; with the tensors that they hold. So are workers'
  # `usedBytes`.
  tensorCount @10 :UInt64;
  hasMoreTensors @11 :Bool;
  # This session has more than `tensors`, which are max_tensors_listed at most: ask again behind the last one.
}

struct SessionInfo {
  id @0 :UInt64;
  tenant @1 :Text;
  client @2 :Text;
  tensors @3 :UInt64;
  bytes @4 :Int64;
  # On each worker, at most.
  queued @5 :UInt64;
  connected @6 :Bool;
  awaitsClient @7 :Bool;
  # The asking session stands still: its queue waits for bytes that its client is to bring.
  name @8 :Text;
  awaitsRanks @9 :Bool;
  # Some collective of the asking session waits for other ranks.
  spilledBytes @10 :Int64;
  # In files of each worker, at most; `bytes` are those in memory.
}

struct TensorInfo {
  handle @0 :UInt64;
  spec @1 :V.TensorSpec;
  bytesPerWorker @2 :Int64;
  state @3 :State;
  status @4 :V.Status;
  name @5 :Text;
  enum State { queued @0; issued @1; ready @2; failed @3; uploading @4; spilled @5; spilledToHost @6; }
  # spilled: ready, and in files of its workers, some of it perhaps in memory of their hosts; spilledToHost: all of it there.
}
