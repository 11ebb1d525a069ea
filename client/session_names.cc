// Names of tensors, by which a client that comes back finds them.

#include <algorithm>
#include <utility>

#include "client/session_calls.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxNamesShown = 10;

}  // namespace

SessionState SessionImpl::state() {
  if (failed_) return SessionState::kClosed;
  return has_line_ ? SessionState::kOpen : SessionState::kReconnecting;
}

absl::Status SessionImpl::SetName(HandleState& handle, const std::string& name) {
  TESSERA_RETURN_IF_ERROR(Check());
  if (handle.planned != nullptr) return NeverRuns(handle);
  TESSERA_RETURN_IF_ERROR(AwaitSpec(handle));
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        StrCat("name: it has ", name.size(), " bytes; ", kMaxNameBytes, " are allowed (max_name_bytes)"));
  }
  std::vector<uint64_t> let_go;  // tensors that only their names have kept
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto lose = [&](std::map<std::string, uint64_t>::iterator named) {
      auto live = live_.find(named->second);
      if (live == live_.end()) {
        let_go.push_back(named->second);
      } else {
        live->second->keeper = Keeper::kHandle;
      }
      names_.erase(named);
    };
    const auto former = names_.find(name);
    if (former != names_.end() && former->second == handle.id) return absl::OkStatus();
    if (former != names_.end()) lose(former);
    const auto own =
        std::find_if(names_.begin(), names_.end(), [&](const auto& named) { return named.second == handle.id; });
    if (own != names_.end()) lose(own);
    if (!name.empty()) {
      names_[name] = handle.id;
      handle.keeper = Keeper::kSession;
    }
  }
  Record record;
  record.kind = Record::Kind::kName;
  record.handle = handle.id;
  record.name = name;
  TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  for (const uint64_t id : let_go) connection_->EnqueueDrop(id);
  return absl::OkStatus();
}

std::string SessionImpl::NameOfTensor(const HandleState& handle) {
  if (!handle.spec_known) return "";
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, id] : names_) {
    if (id == handle.id) return name;
  }
  return "";
}

HandlePtr SessionImpl::Adopt(uint64_t id, const TensorSpec& spec, const std::string& name) {
  HandlePtr handle = FindLive(id);
  if (handle == nullptr) handle = NewHandle(calls_->specs().Intern(spec), id, Keeper::kSession);
  if (name.empty()) return handle;
  std::lock_guard<std::mutex> lock(mutex_);
  names_.try_emplace(name, id);  // what this process said of the name since is newer
  return handle;
}

absl::StatusOr<HandlePtr> SessionImpl::FindNamed(const std::string& name) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto known = names_.find(name); known != names_.end()) {
      if (auto live = live_.find(known->second); live != live_.end()) {
        if (HandlePtr handle = live->second->weak_from_this().lock()) return handle;
      }
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const ClusterReport report, GetStatus(UINT32_MAX));
  std::string names;
  size_t count = 0;
  for (const TensorReport& tensor : report.tensors) {
    if (tensor.name.empty()) continue;
    if (tensor.name == name) {
      HandlePtr handle = Adopt(tensor.handle, tensor.spec, "");
      std::lock_guard<std::mutex> lock(mutex_);
      names_[name] = tensor.handle;
      return handle;
    }
    if (++count <= kMaxNamesShown) StrAppend(&names, names.empty() ? "" : ", ", Printable(tensor.name, 40));
  }
  return absl::NotFoundError(StrCat("session: no tensor is named \"", Printable(name, 200), "\"; ",
                                    count == 0 ? "none has a name (x.name = \"w\" gives one)" : "there are: ", names));
}

}  // namespace tessera
