@0xa4d09e6b7c2f8153;
# Workers, the coordinator and each other. The coordinator sends every message to all workers of a mesh
# byte-identical; a worker lowers plans for its own position and reports what ended.

using Cxx = import "/capnp/c++.capnp";
using V = import "values.capnp";
$Cxx.namespace("tessera::wire");

interface SharedMemory {
  # Carries memory: the file descriptor of the capability (getFd). A memfd is sealed against shrinking.
}

struct WorkerHello {
  protocolVersion @0 :UInt32;
  joinToken @1 :Text;
  index @2 :Int32;
  # Wanted number; -1: the next free one.
  host @3 :Text;
  # Machine id and namespace: memory is mapped only between workers with the same one.
  memoryBytes @4 :Int64;
  dataAddress @5 :Text;
  # Where clients and peers of this host reach it: "unix:/path".
  messageAddress @6 :Data;
  # The message transport's, opaque; empty when it has none.
  device @7 :Text;
  # "cpu", "cuda".
  pid @8 :Int32;
  computeThreads @9 :Int32;
  mapPeers @10 :Bool;
  # False: peers are reached by messages even on the same host.
  reachesHosts @11 :Bool;
  # Reserved: `messages` says it.
  remoteAddress @12 :Text;
  # Where clients of other hosts reach it: "tls://host:port"; empty when they don't.
  messages @13 :UInt8;
  # How it exchanges messages with peers: none ownHost tls ucx. The last two reach workers of other hosts that have the same.
  nccl @14 :Bool;
  # True of a worker with a GPU whose messages with other such workers go by NCCL.
  again @15 :Again;
  # Null: the process joins for the first time. Else it has lost its coordinator and asks to go on.
  spillBytes @16 :Int64;
  # That buffers may take in files of its folder for them (--spill). 0: it has none.

  struct Again {
    incarnation @0 :UInt64;
    epoch @1 :UInt64;
    # Names the coordinator that it had: the one that it joins again is newer, or the same.
    taken @2 :UInt64;
    # The number of the last message that it has taken.
    reported @3 :UInt64;
    # How many reports it has sent.
  }
}

struct WorkerWelcome {
  index @0 :Int32;
  incarnation @1 :UInt64;
  # This worker process's; a message for another one is refused.
  epoch @2 :UInt64;
  heartbeatS @3 :Float64;
  peerKey @4 :UInt64;
  # Shown to a peer's data socket to be given its arena.
  reported @5 :UInt64;
  # A worker that joins again: so many of its reports are here; it sends the later ones again.
}

interface Worker {
  # Implemented by the worker.
  ping @0 () -> (outstanding :UInt64, isAtWork :Bool, nowNs :Int64);
  # isAtWork: an op's item runs, or one has run since the ping before; waits are none. nowNs: the worker's monotonic clock,
  # in which it reports times.
}

struct WorkerMessages {
  # The coordinator's messages on a worker's link.
  epoch @0 :UInt64;
  messages @1 :List(Message);
  first @2 :UInt64;
  # The number of the first of them: they are dense, from 1 for each process of a worker.
  reported @3 :UInt64;
  # So many reports of the worker are here: it need not keep them.

  struct Message {
    union {
      define @0 :Define;
      forget @1 :UInt64;
      # A template id that no instance will name again.
      run @2 :Instance;
      window @3 :Window;
      inlineRead @4 :InlineRead;
      closeTicket @5 :UInt64;
      # The client is done with it, or gone. Answered by a TransferDone after the last copy has ended.
      peerJoined @6 :Peer;
      peerDied @7 :PeerDied;
      shutdown @8 :Text;
      # The worker ends, with success; the reason. Reserved: no coordinator sends it yet.
      inlineWrite @9 :InlineWrite;
      forgetSpilled @10 :UInt64;
      # The number of a file that a window wrote, or was to write: nobody will read it any more.
    }
  }
}

struct Define {
  id @0 :UInt64;
  plan @1 :Text;
  # The plan's text form (server/plan): one parser for files, people and wire.
}

struct Wait {
  phase @0 :UInt16;
  stream @1 :UInt8;
  ordinal @2 :UInt64;
  scope @3 :UInt8;
  # own readsFrom workers
  workers @4 :List(Int32);
}

struct Instance {
  ordinal @0 :UInt64;
  template @1 :UInt64;
  stream @2 :UInt8;
  bufferOffsets @3 :List(Int64);
  scalars @4 :List(V.Scalar);
  waits @5 :List(Wait);
  writesAreFree @6 :Bool;
  # Nothing that was issued before is still about what it writes: an instruction that stores to peers in its first phase
  # need not wait.
  makesCalls @7 :Bool;
  # Its workers reach each other by NCCL alone: exchanges that are one call of it are made so (server/plan/lower/collective_calls.h).
  placedApart @8 :List(PlacedBuffer);
  # Buffers that lie elsewhere in each worker's arena; bufferOffsets has 0 for them.
}

struct PlacedBuffer {
  buffer @0 :UInt16;
  workers @1 :List(Int32);
  offsets @2 :List(Int64);
  # By entry of `workers`.
}

struct Window {
  ordinal @0 :UInt64;
  ticket @1 :UInt64;
  secret @2 :UInt64;
  direction @3 :UInt8;
  # upload download
  spec @4 :V.TensorSpec;
  offsetBytes @5 :Int64;
  strides @6 :List(Int64);
  waits @7 :List(Wait);
  others @8 :List(WindowRange);
  # More tensors of the same ticket: numbers 1, 2, ... of it.
  session @9 :UInt64;
  # The ticket's session: sessions take turns in a worker, and have a share of its places each.
  stream @10 :UInt8 = 3;
  # A stream of schemas/types/streams.h: that of transfers in either lane.
  spillFile @11 :UInt64;
  # Not 0: no client's. The worker writes the range to its file of this number (download), or reads it back (upload), and
  # answers by a TransferDone. Such a ticket is nobody's to redeem.
}

struct WindowRange {
  spec @0 :V.TensorSpec;
  offsetBytes @1 :Int64;
  strides @2 :List(Int64);
}

struct InlineRead {
  ordinal @0 :UInt64;
  spec @1 :V.TensorSpec;
  offsetBytes @2 :Int64;
  strides @3 :List(Int64);
  waits @4 :List(Wait);
  stream @5 :UInt8 = 3;
  # A stream of schemas/types/streams.h: that of transfers in either lane, or that of probes.
}

struct InlineWrite {
  ordinal @0 :UInt64;
  spec @1 :V.TensorSpec;
  offsetBytes @2 :Int64;
  strides @3 :List(Int64);
  waits @4 :List(Wait);
  bytes @5 :Data;
  # All elements of the tensor, row-major: each worker takes those of its own box.
  stream @6 :UInt8 = 3;
  # As a window's.
}

struct Peer {
  index @0 :Int32;
  incarnation @1 :UInt64;
  host @2 :Text;
  dataAddress @3 :Text;
  messageAddress @4 :Data;
  mapped @5 :Bool;
  # Whether its memory is to be mapped (both want it and are on one host).
  remoteAddress @6 :Text;
  # As it said in its hello: by which it is reached for clients that don't reach it themselves.
}

struct PeerDied {
  index @0 :Int32;
  incarnation @1 :UInt64;
  reason @2 :Text;
}

interface Membership {
  # Implemented by the coordinator; given to a worker when it joins. A worker that lets go of it leaves.
  peerMapped @0 (index :Int32, status :V.Status);
  # The worker can't reach a peer, or not yet: why. Ops that have to do with both fail by name; the coordinator's log
  # says it.
}

struct Reported {
  # A worker's messages on its link: reports of what has ended since the last one.
  epoch @0 :UInt64;
  incarnation @1 :UInt64;
  completions @2 :List(Completion);
  transfers @3 :List(TransferDone);
  taken @4 :UInt64;
  # The number of the last message that the worker has taken.
  number @5 :UInt64;
  # Reports are dense, from 1 for each process of a worker.
}

struct Completion {
  ordinal @0 :UInt64;
  status @1 :V.Status;
  # Null when ok.
  received @2 :List(Received);
  inlineBytes @3 :Data;
  pushed @4 :List(Received);
  # Stored to these workers' memory, who don't report it.
  times @5 :RunTimes;
  # Null where nothing ran.
  writtenBytes @6 :UInt32;
  # The bytes of an InlineWrite that were copied to the own shard.
  preparedNs @7 :Int64;
  # Time of the worker's thread that the template took to be read, verified and lowered: in the report of its first
  # instance, else 0.
}

struct RunTimes {
  # By the worker's monotonic clock.
  startedNs @0 :Int64;
  # The first of its work began; earlier waits are not in it.
  endedNs @1 :Int64;
  workNs @2 :Int64;
  # The part of the time between in which it worked; the rest waited, for peers or for messages.
  busyNs @3 :Int64;
  # The part of workNs in which it had a core, or the GPU.
}

struct Received {
  worker @0 :Int32;
  bytes @1 :Int64;
}

struct TransferDone {
  # This worker is finished with a ticket and no copy of it runs any more: an upload has all its bytes
  # (status null) or its client went away (an error); a ticket was closed by closeTicket. Once per ticket.
  ticket @0 :UInt64;
  status @1 :V.Status;
  times @2 :RunTimes;
  # From the first copy to the last; null where there was none.
  bytes @3 :Int64;
  # Bytes that were copied between the shard and the client or a file.
  inHostMemory @4 :Bool;
  # A spilled buffer that left has its bytes in the host's memory (--spill-memory), not in a file.
}

# ---- the worker's own socket: clients and peers of this host ------------------------------------

interface BulkServer @0xaa717388a1190b46 {
  # The bootstrap capability of a worker's data socket.
  arena @0 (peerKey :UInt64, index :Int32) -> (memory :SharedMemory, counters :SharedMemory,
                                            bytes :Int64);
  # For peers: the arena, as its kind of device shares memory, and the page of counters, a memfd. PermissionDenied with
  # another key.
  transfer @1 (ticket :UInt64, secret :UInt64) -> (transfer :Transfer, session :UInt64);
  # For clients. Clients hear of a ticket only after every worker has reported its window open (the
  # Completion of the window's ordinal), so an unknown one is NotFound at once. A ticket is used once.
  resume @2 (ticket :UInt64, secret :UInt64) -> (transfer :Transfer, first :UInt64, session :UInt64);
  # For a client whose connection broke during puts or gets: it goes on where the worker is, with element `first`. The
  # former connection's calls of this ticket fail from here on. So does who may have redeemed it, and doesn't know.
  relay @3 (index :Int32) -> (server :BulkServer);
  # For a client that doesn't reach a worker: that worker's bulk server by way of this one, which passes on what is said of
  # tickets and nothing else; or this bulk server itself, for its own worker's index. NotFound: there is no such worker;
  # Unavailable: it isn't reached from here either.
  forRelay @4 (peerKey :UInt64) -> (server :BulkServer);
  # For peers that relay: a bulk server for clients of other hosts. PermissionDenied with another key.
}

struct Box {
  starts @0 :List(Int64);
  stops @1 :List(Int64);
}

interface Transfer {
  # Bytes between the worker's shard and a box of the global tensor that the client's memory holds
  # row-major from `offset`: elements in both are copied. Uploads come as slabs along dim 0, in order.
  attach @0 (memory :SharedMemory) -> ();
  # Maps the client's memory until the transfer is dropped. InvalidArgument when it isn't sealed.
  copy @1 (box :Box, offset :UInt64, tensor :UInt32) -> (bytes :UInt64);
  # Upload: client to shard. Download: shard to client. `tensor`: its number within the ticket.
  finish @2 () -> ();
  # FailedPrecondition when an upload has not covered the shard, of each of its tensors.
  put @3 (first :UInt64, bytes :Data) -> (count :UInt64);
  # In place of attach and copy, for clients of other hosts: elements of the worker's own box in row-major order, from
  # `first` on. They come in order; earlier ones may come again. How many elements the shard has now. For tickets of one
  # tensor.
  get @4 (first :UInt64, count :UInt32) -> (bytes :Data);
  # Elements of the worker's own box, up to max_transfer_part.

  # Files of the worker's host, below the folders that its operator names. NotFound without any, or where there is no
  # such file; PermissionDenied for a path outside of them.
  openFile @5 (path :Text, layout :FileLayout, bytes :UInt64, modifiedNs :Int64, tensor :UInt32) -> ();
  # In place of attach, once for each tensor of the ticket: it lies in the file as the layout says, and `copy` goes between it and the shard. An upload
  # reads a file, a download writes one that createFile of this ticket's tensor has made, by any worker. FailedPrecondition
  # when the file has another size or time than given (a read one; again when it has been copied): it changes. `offset` of copy is 0.
  lookAtFile @6 (path :Text, offset :UInt64, count :UInt32) -> (bytes :UInt64, modifiedNs :Int64, part :Data);
  # The file's size and time, and up to `count` (max_file_part) of its bytes.
  createFile @7 (path :Text, name :Text, bytes :UInt64, head :Data) -> ();
  # Beside `path`, a file of this name with all its bytes reserved (ResourceExhausted where the disk is full) that begins
  # with `head`. It goes when the transfer is dropped, unless it was committed.
  commitFile @8 () -> ();
  # The file or folder that createFile or createFolder made becomes `path`, whole and on the disk; a file that was there
  # is replaced.
  describeFile @9 (path :Text) -> (bytes :UInt64, modifiedNs :Int64, json :Data);
  # A file or folder in a format that the worker's decoder reads: its size and time, and its tensors, as
  # client/python/tessera/decoder.py says. FailedPrecondition: the worker has no decoder, or that lacks a package.
  createFolder @10 (path :Text, name :Text, json :Data) -> ();
  # As createFile: a folder in which the decoder has made the arrays of a zarr file, without values.
  whenOver @11 () -> ();
  # Answered when the ticket is over: a worker that passes the transfer on has a place for its client until then.
}

struct FileLayout {
  offset @0 :UInt64;           # in bytes, of the element with indices 0
  strides @1 :List(Int64);     # in bytes, by tensor dim
  isReversed @2 :Bool;         # the bytes of each number are in the other order
  isDecoded @3 :Bool;          # they are those of a tensor of the file, row-major, as the worker's decoder gives and takes them
  member @4 :Text;             # its name, of a decoded one
}
