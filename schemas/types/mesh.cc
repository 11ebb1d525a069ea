#include "schemas/types/mesh.h"

#include <algorithm>
#include <limits>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "schemas/types/errors.h"
#include "schemas/types/shape.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

constexpr size_t kMaxNameChars = 64;

bool IsIdentifier(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameChars || absl::ascii_isdigit(name[0])) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

// The number of positions, at most kMaxMeshSize.
absl::StatusOr<int64_t> CheckedSize(absl::Span<const int64_t> shape) {
  if (shape.empty()) return absl::InvalidArgumentError("mesh: needs at least one dim");
  if (shape.size() > static_cast<size_t>(kMaxMeshDims)) {
    return absl::InvalidArgumentError(
        StrCat("mesh: ", shape.size(), " dims are over the limit of ", kMaxMeshDims, " (max_mesh_dims)"));
  }
  int64_t size = 1;
  for (const int64_t extent : shape) {
    if (extent < 1) {
      return absl::InvalidArgumentError(StrCat("mesh: dim of size ", extent, " in shape ", ToText(shape)));
    }
    if (__builtin_mul_overflow(size, extent, &size) || size > kMaxMeshSize) {
      return absl::InvalidArgumentError(
          StrCat("mesh: shape ", ToText(shape), " is over the limit of ", kMaxMeshSize, " workers (max_mesh_size)"));
    }
  }
  return size;
}

absl::Status ValidateNames(absl::Span<const int64_t> shape, absl::Span<const std::string> names) {
  if (names.empty()) return absl::OkStatus();
  if (names.size() != shape.size()) {
    return absl::InvalidArgumentError(
        StrCat("mesh: ", names.size(), " dim names for ", shape.size(), " dims of shape ", ToText(shape)));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!IsIdentifier(names[i])) {
      return absl::InvalidArgumentError(StrCat("mesh: dim name \"", Printable(names[i], kMaxNameChars),
                                               "\" is not an identifier of at most ", kMaxNameChars, " characters"));
    }
    if (std::find(names.begin(), names.begin() + i, names[i]) != names.begin() + i) {
      return absl::InvalidArgumentError(StrCat("mesh: dim name \"", names[i], "\" appears twice"));
    }
  }
  return absl::OkStatus();
}

// The worker of each position of the largest default mesh; a smaller one has the first of them.
const std::vector<WorkerIndex>& DefaultWorkers() {
  static const std::vector<WorkerIndex>* const workers = [] {
    auto* all = new std::vector<WorkerIndex>();
    for (int64_t i = 0; i < kMaxMeshSize; ++i) all->emplace_back(static_cast<int32_t>(i));
    return all;
  }();
  return *workers;
}

// Whether they are 0..n-1 in order.
bool AreDefaultWorkers(absl::Span<const WorkerIndex> workers) {
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].value != static_cast<int32_t>(i)) return false;
  }
  return true;
}

}  // namespace

const Mesh::Rep& Mesh::UnsetRep() {
  static const Rep* const unset = new Rep();
  return *unset;
}

absl::StatusOr<Mesh> Mesh::Make(absl::Span<const int64_t> shape, absl::Span<const std::string> names,
                                absl::Span<const WorkerIndex> workers) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t size, CheckedSize(shape));
  TESSERA_RETURN_IF_ERROR(ValidateNames(shape, names));
  if (!workers.empty() && static_cast<int64_t>(workers.size()) != size) {
    return absl::InvalidArgumentError(
        StrCat("mesh: ", workers.size(), " workers for shape ", ToText(shape), " of ", size, " positions"));
  }
  auto rep = std::make_shared<Rep>();
  rep->shape.assign(shape.begin(), shape.end());
  rep->names.assign(names.begin(), names.end());
  rep->size = size;
  if (!AreDefaultWorkers(workers)) {
    rep->workers.assign(workers.begin(), workers.end());
    for (int64_t i = 0; i < size; ++i) {
      const WorkerIndex worker = workers[i];
      if (worker.value < 0) {
        return absl::InvalidArgumentError(StrCat("mesh: negative worker ", worker.value));
      }
      if (worker.value >= kMaxMeshSize) {
        return absl::InvalidArgumentError(
            StrCat("mesh: worker ", worker.value, " is over the limit of ", kMaxMeshSize, " workers (max_mesh_size)"));
      }
      if (!rep->flat_position_of.emplace(worker, i).second) {
        return absl::InvalidArgumentError(StrCat("mesh: worker ", worker.value, " appears twice"));
      }
    }
  }
  rep->hash = absl::HashOf(rep->shape, rep->names, rep->workers);
  Mesh mesh;
  mesh.rep_ = std::move(rep);
  return mesh;
}

absl::Span<const WorkerIndex> Mesh::workers() const {
  const Rep& r = rep();
  if (r.workers.empty()) return absl::MakeConstSpan(DefaultWorkers()).first(static_cast<size_t>(r.size));
  return r.workers;
}

bool Mesh::operator==(const Mesh& other) const {
  if (rep_ == other.rep_) return true;
  const Rep& a = rep();
  const Rep& b = other.rep();
  return a.hash == b.hash && a.shape == b.shape && a.names == b.names && a.workers == b.workers;
}

WorkerIndex Mesh::WorkerAt(absl::Span<const int64_t> position) const { return workers()[FlatPosition(position)]; }

int64_t Mesh::FlatPosition(absl::Span<const int64_t> position) const {
  const std::vector<int64_t>& extents = shape();
  TESSERA_CHECK(position.size() == extents.size());
  int64_t flat = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    TESSERA_CHECK(position[i] >= 0 && position[i] < extents[i]);
    flat = flat * extents[i] + position[i];
  }
  return flat;
}

Position Mesh::PositionAt(int64_t flat_position) const {
  TESSERA_CHECK(flat_position >= 0 && flat_position < size());
  const std::vector<int64_t>& extents = shape();
  Position position(extents.size());
  for (size_t i = extents.size(); i-- > 0;) {
    position[i] = flat_position % extents[i];
    flat_position /= extents[i];
  }
  return position;
}

std::optional<int64_t> Mesh::FindWorker(WorkerIndex worker) const {
  const Rep& r = rep();
  if (r.flat_position_of.empty()) {
    if (worker.value < 0 || worker.value >= size()) return std::nullopt;
    return worker.value;
  }
  const auto found = r.flat_position_of.find(worker);
  if (found == r.flat_position_of.end()) return std::nullopt;
  return found->second;
}

int64_t Mesh::SharedBytes() const {
  if (rep_ == nullptr) return 0;
  const Rep& r = *rep_;
  // A hash map has a control byte for each slot.
  size_t bytes = sizeof(Rep) + r.shape.size() * sizeof(int64_t) + r.workers.size() * sizeof(WorkerIndex) +
                 r.flat_position_of.capacity() * (sizeof(std::pair<const WorkerIndex, int64_t>) + 1) +
                 r.names.size() * sizeof(std::string);
  for (const std::string& name : r.names) bytes += name.size();
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<int> Mesh::DimByName(std::string_view name) const {
  for (size_t i = 0; i < names().size(); ++i) {
    if (names()[i] == name) return static_cast<int>(i);
  }
  return absl::InvalidArgumentError(StrCat("mesh: no dim \"", Printable(name, kMaxNameChars), "\" in ", ToText(*this),
                                           "; names: ", names().empty() ? "none" : absl::StrJoin(names(), ", ")));
}

absl::StatusOr<Mesh> Mesh::Select(int dim, int64_t coordinate) const {
  if (dim < 0 || dim >= ndim()) {
    return IndexOutOfRangeError(StrCat("mesh: dim ", dim, " is out of range for ", ToText(*this)));
  }
  if (coordinate < 0 || coordinate >= shape()[dim]) {
    return IndexOutOfRangeError(
        StrCat("mesh: coordinate ", coordinate, " is out of range for dim ", dim, " of ", ToText(*this)));
  }
  if (ndim() == 1) {
    return absl::InvalidArgumentError(StrCat("mesh: can't fix the only dim of ", ToText(*this)));
  }
  std::vector<int64_t> new_shape = shape();
  new_shape.erase(new_shape.begin() + dim);
  std::vector<std::string> new_names = names();
  if (!new_names.empty()) new_names.erase(new_names.begin() + dim);
  std::vector<WorkerIndex> new_workers;
  for (int64_t flat = 0; flat < size(); ++flat) {
    if (PositionAt(flat)[dim] == coordinate) new_workers.push_back(workers()[flat]);
  }
  return Make(new_shape, new_names, new_workers);
}

absl::StatusOr<Mesh> Mesh::Flatten(std::string_view name) const {
  std::vector<std::string> new_names;
  if (!name.empty()) new_names.emplace_back(name);
  return Make({size()}, new_names, workers());
}

bool HaveSameWorkers(const Mesh& a, const Mesh& b) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.workers().begin(), a.workers().end(),
                     [&](WorkerIndex worker) { return b.FindWorker(worker).has_value(); });
}

bool HaveSameArrangement(const Mesh& a, const Mesh& b) {
  return a == b || (a.shape() == b.shape() && a.workers() == b.workers());
}

std::string ToText(const Mesh& mesh) {
  std::string text = "mesh(";
  for (int i = 0; i < mesh.ndim(); ++i) {
    if (i > 0) text += ",";
    if (!mesh.names().empty()) StrAppend(&text, mesh.names()[i], ":");
    StrAppend(&text, mesh.shape()[i]);
  }
  if (!AreDefaultWorkers(mesh.workers())) {
    StrAppend(&text, "; workers=", absl::StrJoin(mesh.workers(), ",", [](std::string* out, WorkerIndex w) {
      StrAppend(out, w.value);
    }));
  }
  text += ")";
  return text;
}

absl::StatusOr<Mesh> ParseMesh(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view keyword, scanner.TakeIdentifier());
  if (keyword != "mesh") return scanner.Error("\"mesh\" before here");
  TESSERA_RETURN_IF_ERROR(scanner.Take("("));
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  do {
    if (shape.size() == static_cast<size_t>(kMaxMeshDims)) {
      return scanner.Error(StrCat("at most ", kMaxMeshDims, " mesh dims"));
    }
    absl::StatusOr<std::string_view> name = scanner.TakeIdentifier();
    if (name.ok()) {
      names.emplace_back(*name);
      TESSERA_RETURN_IF_ERROR(scanner.Take(":"));
    }
    TESSERA_ASSIGN_OR_RETURN(const int64_t extent, scanner.TakeInteger());
    shape.push_back(extent);
    if (!names.empty() && names.size() != shape.size()) return scanner.Error("a name for every mesh dim or none");
  } while (scanner.TryTake(","));
  // Checked before a list of workers is read.
  TESSERA_RETURN_IF_ERROR(CheckedSize(shape).status());
  std::vector<WorkerIndex> workers;
  if (scanner.TryTake(";")) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("workers"));
    TESSERA_RETURN_IF_ERROR(scanner.Take("="));
    do {
      if (static_cast<int64_t>(workers.size()) == kMaxMeshSize) return scanner.Error("fewer workers");
      TESSERA_ASSIGN_OR_RETURN(const int64_t worker, scanner.TakeInteger());
      if (worker < 0 || worker > std::numeric_limits<int32_t>::max()) {
        return scanner.Error("a worker's number before here");
      }
      workers.emplace_back(static_cast<int32_t>(worker));
    } while (scanner.TryTake(","));
  }
  TESSERA_RETURN_IF_ERROR(scanner.Take(")"));
  return Mesh::Make(shape, names, workers);
}

absl::StatusOr<Mesh> ParseMesh(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, ParseMesh(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  return mesh;
}

}  // namespace tessera
