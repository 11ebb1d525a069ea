#include "client/session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/session_impl.h"
#include "client/session_publications.h"
#include "client/session_transfers.h"
#include "schemas/types/address.h"
#include "schemas/types/book.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/version.h"

namespace tessera {
namespace {

absl::StatusOr<ResumeToken> ParseResume(const std::string& text) {
  std::vector<std::string> parts = absl::StrSplit(text, ':');
  ResumeToken token;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &token.session_id) ||
      !absl::SimpleAtoi(parts[1], &token.secret) || !absl::SimpleAtoi(parts[2], &token.last_event)) {
    return absl::InvalidArgumentError("connect: resume is what session.resume_text gave");
  }
  return token;
}

// A lost worker is told by the coordinator, which knows why.
absl::Status CheckWorkers(std::string_view op, const Mesh& mesh, const Membership& membership) {
  const int worker_count = membership.numbers;
  if (mesh.size() > worker_count) {
    return absl::InvalidArgumentError(
        StrCat(op, ": ", ToText(mesh), " has ", mesh.size(), " positions, the cluster has ", worker_count, " workers"));
  }
  for (WorkerIndex worker : mesh.workers()) {
    if (worker.value >= 0 && worker.value < worker_count) continue;
    return absl::InvalidArgumentError(StrCat(op, ": worker ", worker.value, " of ", ToText(mesh),
                                             " does not exist, the cluster has workers 0 to ", worker_count - 1));
  }
  return absl::OkStatus();
}

// All of one kind, and of the one that was asked for.
absl::Status CheckKinds(const Mesh& mesh, const Membership& membership, std::optional<DeviceKind> wanted) {
  const auto kind_of = [&](WorkerIndex worker) {
    const auto found = membership.workers.find(worker.value);
    return found == membership.workers.end() ? DeviceKind::kCpu : found->second.device;
  };
  const WorkerIndex first = mesh.workers()[0];
  for (const WorkerIndex worker : mesh.workers()) {
    if (kind_of(worker) == kind_of(first)) continue;
    return absl::InvalidArgumentError(StrCat("init_device_mesh: worker ", first.value, " of ", ToText(mesh), " is ",
                                             ToText(kind_of(first)), " and worker ", worker.value, " is ",
                                             ToText(kind_of(worker)), "; a mesh has workers of one kind"));
  }
  if (!wanted.has_value() || *wanted == kind_of(first)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("init_device_mesh: device type is \"", ToText(*wanted),
                                           "\", the workers of ", ToText(mesh), " are ", ToText(kind_of(first))));
}

}  // namespace

absl::StatusOr<Session> Session::Connect(const ConnectOptions& options) {
  ConnectionOptions out;
  TESSERA_ASSIGN_OR_RETURN(Address address, ParseAddress("connect", options.address));
  out.token = options.token.empty() ? std::move(address.token) : options.token;
  out.address = std::move(address);
  out.address.token.clear();
  out.tls = options.tls;
  out.host_id = options.host_id;
  if (!options.door.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const Address door, ParseAddress("connect: door", options.door));
    if (door.is_unix()) {
      return absl::InvalidArgumentError(StrCat("connect: door is ", Printable(options.door, 200),
                                               "; it is a worker's address for other hosts, \"tls://host:port\""));
    }
    out.door = options.door;
  }
  out.name = options.name;
  out.tenant = options.tenant;
  out.client = options.client.empty() ? StrCat("C++ tessera ", kVersion) : options.client;
  out.lease_s = options.lease_s;
  if (!std::isfinite(options.timeout_s) || options.timeout_s <= 0 || options.timeout_s > 1e6) {
    return absl::InvalidArgumentError(StrCat("connect: timeout is ", options.timeout_s, " s, it must be in (0, 1e6]"));
  }
  out.timeout_s = options.timeout_s;
  if (!options.resume.empty()) {
    TESSERA_ASSIGN_OR_RETURN(out.resume, ParseResume(options.resume));
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<SessionImpl> impl,
                           SessionImpl::Open(std::move(out), options.stall_timeout_s));
  return Session(std::move(impl));
}

absl::StatusOr<Mesh> Session::InitDeviceMesh(absl::Span<const int64_t> shape, absl::Span<const std::string> names,
                                             absl::Span<const WorkerIndex> workers,
                                             std::optional<DeviceKind> kind) const {
  TESSERA_RETURN_IF_ERROR(impl_->Check());
  const Membership membership = impl_->membership();
  const DeviceKind wanted = kind.value_or(membership.default_kind());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Make(shape, names, workers));
  if (workers.empty()) {
    const auto size = static_cast<size_t>(mesh.size());
    const std::vector<WorkerIndex> present = membership.Present(wanted);
    if (size > present.size()) {
      const bool is_mixed =
          std::any_of(membership.workers.begin(), membership.workers.end(),
                      [wanted](const auto& worker) { return worker.second.is_here && worker.second.device != wanted; });
      return absl::InvalidArgumentError(StrCat("init_device_mesh: ", ToText(mesh), " has ", size,
                                               " positions, the cluster has ", present.size(),
                                               kind.has_value() || is_mixed ? StrCat(" ", ToText(wanted)) : "",
                                               " workers", impl_->lost_workers().empty() ? "" : " that are there"));
    }
    const auto first = absl::MakeConstSpan(present).first(size);
    if (first != absl::MakeConstSpan(mesh.workers())) return Mesh::Make(shape, names, first);
  }
  TESSERA_RETURN_IF_ERROR(CheckWorkers("init_device_mesh", mesh, membership));
  TESSERA_RETURN_IF_ERROR(CheckKinds(mesh, membership, kind));
  return mesh;
}

absl::StatusOr<Mesh> Session::DefaultMesh() const {
  const Membership membership = impl_->membership();
  const auto count = static_cast<int64_t>(membership.Present(membership.default_kind()).size());
  if (count == 0) return absl::UnavailableError("default_mesh: no worker of the cluster is there");
  return InitDeviceMesh({&count, 1}, {}, {});
}

// The spec that distribute_tensor gives an array.
static absl::StatusOr<TensorSpec> DistributedSpec(SessionImpl& session, DType dtype, const Shape& shape,
                                                  const Mesh& mesh, const Placements& placements) {
  TESSERA_RETURN_IF_ERROR(session.Check());
  TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, TensorSpec::Make("distribute_tensor", dtype, shape, mesh, placements));
  TESSERA_RETURN_IF_ERROR(CheckWorkers("distribute_tensor", mesh, session.membership()));
  if (spec.has_partial()) {
    return absl::InvalidArgumentError(StrCat("distribute_tensor: nothing becomes Partial: ", ToText(spec),
                                             "; give each position its term with from_local"));
  }
  return spec;
}

absl::StatusOr<Tensor> Session::DistributeRows(DType dtype, const Shape& shape, const Mesh& mesh,
                                               const Placements& placements, const RowReader& read) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec, DistributedSpec(*impl_, dtype, shape, mesh, placements));
  if (shape.empty() || NumElements(shape) == 0) {
    return absl::InvalidArgumentError(StrCat("distribute_tensor: ", ToText(spec), " has no rows to read"));
  }
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, impl_->transfers().UploadRows(spec, read));
  return Tensor(std::move(handle));
}

absl::StatusOr<Tensor> Session::DistributeTensor(const HostView& source, const Mesh& mesh,
                                                 const Placements& placements) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec,
                           DistributedSpec(*impl_, source.dtype, source.shape, mesh, placements));
  std::vector<UploadPiece> pieces;
  absl::flat_hash_map<Box, size_t> piece_of;
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    Box box = LocalBox(spec, mesh.PositionAt(flat));
    if (IsEmpty(box)) continue;
    auto [it, inserted] = piece_of.try_emplace(box, pieces.size());
    if (inserted) pieces.push_back({std::move(box), {}, source, Shape(source.shape.size(), 0)});
    pieces[it->second].workers.push_back(mesh.workers()[static_cast<size_t>(flat)]);
  }
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, impl_->transfers().Upload(spec, std::move(pieces)));
  return Tensor(std::move(handle));
}

absl::StatusOr<Tensor> Session::FromLocal(const TensorSpec& spec, absl::Span<const HostView> locals) const {
  TESSERA_RETURN_IF_ERROR(impl_->Check());
  TESSERA_RETURN_IF_ERROR(CheckWorkers("from_local", spec.mesh, impl_->membership()));
  if (static_cast<int64_t>(locals.size()) != spec.mesh.size()) {
    return absl::InvalidArgumentError(
        StrCat("from_local: ", locals.size(), " arrays for the ", spec.mesh.size(), " positions of ", ToText(spec)));
  }
  std::vector<UploadPiece> pieces;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const HostView& local = locals[static_cast<size_t>(flat)];
    const Position position = spec.mesh.PositionAt(flat);
    Box box = LocalBox(spec, position);
    if (local.dtype != spec.dtype || local.shape != BoxShape(box)) {
      return absl::InvalidArgumentError(StrCat("from_local: position ", ToText(absl::MakeConstSpan(position)), " of ",
                                               ToText(spec), " holds ", ToText(spec.dtype), ToText(BoxShape(box)),
                                               ", the array is ", ToText(local.dtype), ToText(local.shape)));
    }
    if (IsEmpty(box)) continue;
    Shape origin;
    for (const Interval& interval : box) origin.push_back(interval.start);
    pieces.push_back({std::move(box), {spec.mesh.workers()[static_cast<size_t>(flat)]}, local, std::move(origin)});
  }
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, impl_->transfers().Upload(spec, std::move(pieces)));
  return Tensor(std::move(handle));
}

absl::StatusOr<ClusterReport> Session::Status() const { return impl_->GetStatus(UINT32_MAX); }
absl::Status Session::CloseOther(uint64_t session) const {
  return impl_->AskAsAdmin("close",
                           [session](Connection& to, DoneCallback done) { to.CloseOther(session, std::move(done)); });
}

absl::StatusOr<std::vector<TenantReport>> Session::Tenants() const {
  auto tenants = std::make_shared<std::vector<TenantReport>>();
  TESSERA_RETURN_IF_ERROR(impl_->AskAsAdmin("tenants", [tenants](Connection& to, DoneCallback done) {
    to.GetTenants([tenants, done = std::move(done)](absl::StatusOr<std::vector<TenantReport>> answer) {
      if (answer.ok()) *tenants = *std::move(answer);
      done(answer.status());
    });
  }));
  return std::move(*tenants);
}
absl::Status Session::SetLimit(const std::string& tenant, const std::string& key, const std::string& value) const {
  return impl_->AskAsAdmin(
      "limit", [&](Connection& to, DoneCallback done) { to.SetLimit(tenant, key, value, std::move(done)); });
}

namespace {

// The answer to an admin's call.
template <typename Answer, typename Ask>
absl::StatusOr<Answer> AskFor(SessionImpl& session, std::string_view what, const Ask& ask) {
  auto answered = std::make_shared<Answer>();
  TESSERA_RETURN_IF_ERROR(session.AskAsAdmin(what, [&](Connection& to, DoneCallback done) {
    ask(to, [answered, done = std::move(done)](absl::StatusOr<Answer> answer) {
      if (answer.ok()) *answered = *std::move(answer);
      done(answer.status());
    });
  }));
  return std::move(*answered);
}

}  // namespace

absl::StatusOr<uint32_t> Session::EvictTenant(const std::string& tenant, const std::string& reason) const {
  return AskFor<uint32_t>(*impl_, "evict",
                          [&](Connection& to, auto done) { to.EvictTenant(tenant, reason, std::move(done)); });
}
absl::Status Session::CordonWorker(WorkerIndex worker, Cordon cordon) const {
  return impl_->AskAsAdmin(cordon == Cordon::kOn ? "cordon" : "uncordon", [&](Connection& to, DoneCallback done) {
    to.CordonWorker(worker.value, cordon == Cordon::kOn, std::move(done));
  });
}
absl::StatusOr<DrainStep> Session::DrainWorker(WorkerIndex worker, Losses losses) const {
  return AskFor<DrainStep>(*impl_, "drain", [&](Connection& to, auto done) {
    to.DrainWorker(worker.value, losses == Losses::kTaken, std::move(done));
  });
}

absl::StatusOr<std::optional<BookPage>> Session::ReadBook(const BookQuery& query) const {
  return AskFor<std::optional<BookPage>>(*impl_, "audit",
                                         [&](Connection& to, auto done) { to.ReadBook(query, std::move(done)); });
}
absl::StatusOr<UpgradeState> Session::Upgrade(UpgradeStep step) const {
  return AskFor<UpgradeState>(
      *impl_, "upgrade", [&](Connection& to, auto done) { to.Upgrade(step == UpgradeStep::kBegin, std::move(done)); });
}

absl::Status Session::KillWorker(WorkerIndex worker, const std::string& reason) const {
  return impl_->AskAsAdmin(
      "kill-worker", [&](Connection& to, DoneCallback done) { to.KillWorker(worker.value, reason, std::move(done)); });
}

absl::StatusOr<uint64_t> Session::Publish(const std::map<std::string, Tensor>& tensors, const std::string& name,
                                          const std::vector<std::string>& readers) const {
  std::map<std::string, HandlePtr> handles;
  for (const auto& [key, tensor] : tensors) handles.emplace(key, tensor.state());
  return PublicationDoor(*impl_).Publish(handles, name, readers);
}
absl::StatusOr<AttachedPublication> Session::Attach(const std::string& name) const {
  TESSERA_ASSIGN_OR_RETURN(PublicationDoor::Attached attached, PublicationDoor(*impl_).Attach(name));
  AttachedPublication out{std::move(attached.publication.name), attached.publication.version, {}};
  for (size_t i = 0; i < attached.tensors.size(); ++i) {
    out.tensors.emplace(std::move(attached.publication.tensors[i].first), Tensor(std::move(attached.tensors[i])));
  }
  return out;
}
absl::Status Session::Unpublish(const std::string& name) const { return PublicationDoor(*impl_).Unpublish(name); }
absl::StatusOr<std::vector<PublicationReport>> Session::Published() const { return PublicationDoor(*impl_).List(); }

absl::Status Session::Sync() const { return impl_->Sync(); }
absl::StatusOr<uint64_t> Session::CommBegin() const { return impl_->CommBegin(); }
absl::StatusOr<CommReport> Session::CommEnd(uint64_t number) const { return impl_->CommEnd(number); }
absl::StatusOr<ProfileReport> Session::Profile(const OpRange& ops) const { return impl_->Profile(ops); }
absl::Status Session::Close() const { return impl_->Close(); }
absl::Status Session::Detach() const { return impl_->Detach(); }
SessionState Session::state() const { return impl_->state(); }
SessionCounts Session::Counts() const { return impl_->Counts(); }
absl::StatusOr<Tensor> Session::Find(const std::string& name) const {
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, impl_->FindNamed(name));
  return Tensor(std::move(handle));
}
uint64_t Session::id() const { return impl_->welcome().session_id; }
int Session::worker_count() const {
  const Membership membership = impl_->membership();
  return static_cast<int>(membership.Present(DeviceKind::kCpu).size() + membership.Present(DeviceKind::kCuda).size());
}

DeviceKind Session::DeviceKindOf(const Mesh& mesh) const {
  return impl_->membership().workers[mesh.workers()[0].value].device;
}

std::vector<WorkerIndex> Session::LostWorkers(const Mesh& mesh) const {
  const Membership membership = impl_->membership();
  std::vector<WorkerIndex> lost;
  for (const WorkerIndex worker : mesh.workers()) {
    const auto found = membership.workers.find(worker.value);
    if (found == membership.workers.end() || !found->second.is_here) lost.push_back(worker);
  }
  return lost;
}

std::string Session::ResumeText() const {
  return StrCat(impl_->welcome().session_id, ":", impl_->welcome().secret, ":", impl_->last_event());
}

}  // namespace tessera
