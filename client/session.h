#pragma once

// Session: one client's connection to a cluster. It makes meshes and tensors; everything it made is
// dropped when it is closed or its process ends. Copies are the same session; the last one closes it.
//
//   TESSERA_ASSIGN_OR_RETURN(Session session, Session::Connect({.address = "unix:/run/tessera.sock"}));
//   TESSERA_ASSIGN_OR_RETURN(Mesh mesh, session.InitDeviceMesh({2, 2}, {"dp", "tp"}, {}));
//   TESSERA_ASSIGN_OR_RETURN(Tensor x, session.DistributeTensor(view, mesh, {Placement::Shard(0),
//   Placement::Replicate()}));
//
// A connection that breaks is made again while the session's lease runs, without an op lost or run twice; state()
// tells. A blocking call without progress for the stall timeout ends in DeadlineExceeded. After a disconnect every
// pending and later call is Unavailable.
//
// Threads. One session serves all threads of a process; a second one is a second queue, with tensors of its own.
// - Any thread may call anything of Session, Tensor, Mesh and ops at any time, without locks of its own. A Session,
// Tensor
//   or Mesh object itself is a value: two threads may read one, and copy it; one that is assigned to is the caller's to
//   guard, as an int is.
// - Ops of one thread run as if one after another. Ops of several threads are taken in the order in which their calls
//   were made; an op never waits for ops that it has nothing of.
// - Nothing blocks but Connect, Status, Sync, CommEnd, Close, Detach, Publish, Attach, waits and downloads; uploads
// above
//   kSnapshotBytes until the source has been read; and an op while 65,536 records wait to be sent. A call that blocks
//   blocks its thread alone. `Request` (request.h) gives calls a deadline and a cancel; completion.h calls back.
// - SetThreadImplicitPolicy, Request::Scope and CalledAsScope set a state of the calling thread alone.
// - Close ends the calls of all threads with FailedPrecondition. A child of fork() has to connect by itself.

#include "client/require_cxx20.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/host_memory.h"
#include "client/report.h"
#include "client/session_counters.h"
#include "client/tensor.h"
#include "schemas/link/tls_files.h"

namespace tessera {

struct BookPage;  // schemas/types/book.h, as the two behind it
struct BookQuery;
struct UpgradeState;

struct ConnectOptions {
  std::string address{};  // "unix:/path" or "tls://host:port", with or without "#token=HEX" behind it
  std::string token{};    // beats the address's
  std::string tenant{};
  std::string client{};   // for people; "": this library
  std::string name{};     // of the session, for people and for who comes back to it
  std::string resume{};   // what ResumeText gave
  std::string host_id{};  // of the workers on this host, where they were told one (--host-id); "": what the system says
  TlsFiles tls{};         // of a "tls://" address: the CA's certificate; else those that the system trusts
  double lease_s = -1;    // negative: the server's default
  double timeout_s = 10;
  double stall_timeout_s = 60;
  // "tls://host:port" of any worker: the bytes of all workers of other hosts go by way of it; "": by their own
  // addresses.
  std::string door{};
};

// A publication whose tensors a session has: they keep their bytes while they are held, whatever becomes of the name.
struct AttachedPublication {
  std::string name;
  uint64_t version = 0;
  std::map<std::string, Tensor> tensors;
};

class Session {
 public:
  explicit Session(std::shared_ptr<SessionImpl> impl) : impl_(std::move(impl)) {}

  // Unavailable: nobody listens (at once). Unauthenticated: wrong token. FailedPrecondition: a server
  // of another version. DeadlineExceeded: no answer in timeout_s.
  static absl::StatusOr<Session> Connect(const ConnectOptions& options);

  // A mesh of this cluster's workers: `workers` empty takes the first ones that are there, of the kind, or of that of
  // the first worker. InvalidArgument when it is larger than the cluster, or of several kinds, or of another kind.
  absl::StatusOr<Mesh> InitDeviceMesh(absl::Span<const int64_t> shape, absl::Span<const std::string> names,
                                      absl::Span<const WorkerIndex> workers,
                                      std::optional<DeviceKind> kind = std::nullopt) const;
  // One dim over all workers that are there, of the kind of the first one.
  absl::StatusOr<Mesh> DefaultMesh() const;

  // Uploads an array; every position gets its box.
  absl::StatusOr<Tensor> DistributeTensor(const HostView& source, const Mesh& mesh, const Placements& placements) const;
  // Uploads rows of dim 0 that `read` writes, a slab at a time, in order. The shape has elements and dims.
  absl::StatusOr<Tensor> DistributeRows(DType dtype, const Shape& shape, const Mesh& mesh, const Placements& placements,
                                        const RowReader& read) const;
  // Uploads each position's own array, by flat position; each must have the shape of its box.
  absl::StatusOr<Tensor> FromLocal(const TensorSpec& spec, absl::Span<const HostView> locals) const;

  // With all tensors of the session. An admin sees every session.
  absl::StatusOr<ClusterReport> Status() const;
  // Ends another session, with all that it has. PermissionDenied for who is no admin.
  absl::Status CloseOther(uint64_t session) const;
  // The session's tenant: what it was given, and what it has. An admin sees every tenant.
  absl::StatusOr<std::vector<TenantReport>> Tenants() const;
  // Changes a limit of a tenant ("weight", "memory.max", ...) until the coordinator reads its tenants file again.
  // PermissionDenied for who is no admin, NotFound, InvalidArgument.
  absl::Status SetLimit(const std::string& tenant, const std::string& key, const std::string& value) const;
  // For admins, PermissionDenied for others; NotFound. Ends all sessions of a tenant, of which there were so many.
  absl::StatusOr<uint32_t> EvictTenant(const std::string& tenant, const std::string& reason) const;
  // Sessions that begin from now on may not use the worker, or may again.
  enum class Cordon : uint8_t { kOff, kOn };
  absl::Status CordonWorker(WorkerIndex worker, Cordon cordon) const;
  // One step of a drain: asked again until it has ended, it shuts the worker down once nothing that it was told is
  // under way. A tensor on that worker alone makes it refuse, unless it may be lost.
  enum class Losses : uint8_t { kRefused, kTaken };
  absl::StatusOr<DrainStep> DrainWorker(WorkerIndex worker, Losses losses) const;
  // A page of what the coordinator's audit has, for admins; nullopt: it is being read, ask the same again.
  // FailedPrecondition where none is kept.
  absl::StatusOr<std::optional<BookPage>> ReadBook(const BookQuery& query) const;
  // The coordinator goes on as its program's newest version, for admins: begun once, and then asked for until the epoch
  // is larger, or it is refused. FailedPrecondition where it has no state folder.
  enum class UpgradeStep : uint8_t { kBegin, kLook };
  absl::StatusOr<UpgradeState> Upgrade(UpgradeStep step) const;
  // Ends a worker: tensors without a copy elsewhere fail with the reason. PermissionDenied for who is no admin,
  // NotFound.
  absl::Status KillWorker(WorkerIndex worker, const std::string& reason) const;
  // Publishes these tensors of the session as one set, under a name that begins with its tenant's ("vision/weights"),
  // for its tenant and for `readers` ("*": every tenant). No byte moves. Nothing writes to them any more, and their
  // bytes stay with the tenant's until Unpublish, whatever becomes of the session. Waits for the tensors; the version,
  // which is larger than that of what had the name before. PermissionDenied: the name is another tenant's.
  absl::StatusOr<uint64_t> Publish(const std::map<std::string, Tensor>& tensors, const std::string& name,
                                   const std::vector<std::string>& readers = {}) const;
  // NotFound: there is none, or it is not for this tenant. Unavailable: some tensor went with a worker.
  absl::StatusOr<AttachedPublication> Attach(const std::string& name) const;
  // Takes a publication of the session's tenant back, an admin's session any. NotFound.
  absl::Status Unpublish(const std::string& name) const;
  // Publications that the session's tenant may attach, and an admin's session all, by their names.
  absl::StatusOr<std::vector<PublicationReport>> Published() const;
  // Until everything that is held has run; the first failure that was not told before.
  absl::Status Sync() const;
  // Counts the bytes that the workers move for the ops between the two.
  absl::StatusOr<uint64_t> CommBegin() const;
  absl::StatusOr<CommReport> CommEnd(uint64_t number) const;
  // Runs of this session's ops, as far as they are remembered (max_profiled_runs): of all of them, or of those that a
  // CommReport names. Ops that are under way are counted, not waited for.
  absl::StatusOr<ProfileReport> Profile(const OpRange& ops = {}) const;
  absl::Status Close() const;
  // Ends this process's part when all that was asked for is on its way; the session goes on for its lease, for who
  // connects with resume.
  absl::Status Detach() const;

  // The tensor of that name, of this process or of one that had the session before. NotFound, with the names there are.
  absl::StatusOr<Tensor> Find(const std::string& name) const;
  SessionState state() const;
  // Counts what the session has done, for metrics; asks nobody.
  SessionCounts Counts() const;

  uint64_t id() const;
  // How many are there now.
  int worker_count() const;
  // The kind of a mesh's workers, which is one.
  DeviceKind DeviceKindOf(const Mesh& mesh) const;
  // Workers of the mesh that are lost, by position.
  std::vector<WorkerIndex> LostWorkers(const Mesh& mesh) const;
  // Names this session for ConnectOptions::resume.
  std::string ResumeText() const;
  const std::shared_ptr<SessionImpl>& impl() const { return impl_; }

 private:
  std::shared_ptr<SessionImpl> impl_;
};

}  // namespace tessera
