#pragma once

// Publications: sets of tensors that a tenant published under a name, for itself and for the tenants that it names. A
// publication is an entry of its own for each tensor, on the same buffers: no byte moves, and none is copied.
//
// The law: nothing writes to a buffer that was ever published (BufferEntry::is_published), whoever has it. So readers
// need no wait for each other, and a handle shows the same values for as long as it is held.
//
// A name begins with its tenant's, "vision/weights/v2": that tenant alone publishes under it and takes it back; admins
// take it back, too. A publication that a tenant may not attach is answered like one that isn't there. A name that is
// published again gets a larger version; handles of the former one stay as they are. Sessions come and go, publications
// stay.
//
// This table is bookkeeping alone; publications.cc has what the state machine does with it.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/tables.h"

namespace tessera {

struct PublishedEntry {
  struct Tensor {
    std::string name;
    TensorPointer tensor;  // of no session
  };
  std::string name;
  TenantEntry* tenant = nullptr;
  uint64_t version = 0;
  std::vector<Tensor> tensors;
  std::vector<std::string> readers;  // beside its tenant; "*": all
  int64_t bytes = 0;                 // on each worker, at most
  size_t seen_losses = 0;            // of the cluster's: no tensor of it has shards on those workers (long_work.h)

  bool IsReadableBy(const TenantEntry& reader) const;
};

// The tenant whose a name is: "vision" of "vision/weights/v2". InvalidArgument, which begins with `op`, where there is
// nothing before or behind the first slash.
absl::StatusOr<std::string_view> TenantOfName(std::string_view op, std::string_view name);

class PublicationTable {
 public:
  PublishedEntry* Find(std::string_view name);
  const std::map<std::string, PublishedEntry, std::less<>>& all() const { return entries_; }
  // In the place of the one that has its name; gives it a version, which it returns.
  uint64_t Put(PublishedEntry entry);
  void Remove(const PublishedEntry& entry);

  int64_t CountOf(const TenantEntry& tenant) const;
  int64_t BytesOf(const TenantEntry& tenant) const;  // on each worker, at most

 private:
  friend class Snapshot;
  struct Own {
    int64_t count = 0;
    int64_t bytes = 0;
    uint64_t removed_version = 0;  // the largest of those that were taken back
  };
  std::map<std::string, PublishedEntry, std::less<>> entries_;
  std::map<int32_t, Own> own_;  // by tenant
};

}  // namespace tessera
