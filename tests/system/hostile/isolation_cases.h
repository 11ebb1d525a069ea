#pragma once

// Tenant "a" has a session with a tensor, a ticket, a publication and a group; tenant "b" sends each record by which it
// may name them, and the same record for a name that isn't there. isolation_test.cc compares the answers,
// isolation_figures_main.cc the times until they come.
//
//   Submit(owner, kOwnedRecords, FillOwned);
//   for (const RecordCase& one : RecordCases(ticket, 10'000)) {
//     Submit(other, 1, [&](unsigned, wire::Record::Builder record) { one.fill(record, one.foreign); });
//   }

#include <functional>
#include <string>
#include <vector>

#include "schemas/ops/op_ids.h"
#include "tests/system/hostile/wire_client.h"

namespace tessera {

inline constexpr char kTenants[] = R"(
[[tenant]]
name = "a"
[[tenant]]
name = "b"
)";
inline constexpr uint64_t kAbsent = 7'777'777;
inline constexpr uint64_t kMine = 500;     // a handle that the one who asks has
inline constexpr uint64_t kRequest = 600;  // of the record
inline constexpr unsigned kOwnedRecords = 6;

// A record that names a number: one of the owner's, or kAbsent.
struct RecordCase {
  std::string what;
  uint64_t foreign;
  std::function<void(wire::Record::Builder, uint64_t)> fill;
};
// A record that names a text.
struct NameCase {
  std::string what;
  std::string foreign;
  std::string absent;
  std::function<void(wire::Record::Builder, const std::string&)> fill;
};

inline void FillJoin(wire::Record::Builder record, uint64_t request, const std::string& key, uint32_t rank,
                     int64_t timeout_us) {
  auto join = record.initJoinGroup();
  join.setRequest(request);
  join.setKey(key.c_str());
  join.setSize(2);
  join.setRank(rank);
  join.setWorker(static_cast<int32_t>(rank));
  join.setTimeoutUs(timeout_us);
}

// Record `i` of those by which the owner gets what is its own. The ticket comes as an event.
inline void FillOwned(unsigned i, wire::Record::Builder record) {
  switch (i) {
    case 0: return Full(record, 1, *Mesh::Make({2}, {}, {}), Shape{8});
    case 1: {
      record.initName().setHandle(1);
      return record.getName().setName("w");
    }
    case 2: {
      auto publish = record.initPublish();
      publish.setRequest(1);
      publish.setName("a/secret");
      auto tensors = publish.initTensors(1);
      tensors[0].setName("w");
      return tensors[0].setHandle(1);
    }
    case 3: {
      auto upload = record.initUpload();
      upload.setRequest(2);
      upload.setResult(2);
      return EncodeTensorSpec(*ParseTensorSpec("f64[8] @ mesh(2) [S(0)]"), upload.initSpec());
    }
    case 4: return FillJoin(record, 3, "g", 0, 60'000'000);  // nobody else comes to the group
    default: return record.setCommBegin(5);
  }
}

// `result` is a handle that the asking session hasn't used.
inline std::vector<RecordCase> RecordCases(uint64_t ticket, uint64_t result) {
  return {
      {"call", 1,
       [result](wire::Record::Builder record, uint64_t id) {
         OpCall call;
         call.op = OpId::kNeg;
         EncodeOpCall(call, record.initCall().initCall());
         record.getCall().initOperands(1)[0].setHandle(id);
         record.getCall().initResults(1).set(0, result);
       }},
      {"download", 1,
       [](wire::Record::Builder record, uint64_t id) {
         record.initDownload().setRequest(kRequest);
         record.getDownload().setHandle(id);
         record.getDownload().setAllowInline(true);
       }},
      {"watch", 1,
       [](wire::Record::Builder record, uint64_t id) {
         record.initWatch().setRequest(kRequest);
         record.getWatch().setHandle(id);
       }},
      {"drop", 1, [](wire::Record::Builder record, uint64_t id) { record.initDrop(1).set(0, id); }},
      {"commEnd", 5,
       [](wire::Record::Builder record, uint64_t id) {
         record.initCommEnd().setRequest(kRequest);
         record.getCommEnd().setHandle(id);
       }},
      {"cancel", 3, [](wire::Record::Builder record, uint64_t id) { record.setCancel(id); }},
      {"cancelCalls", 1, [](wire::Record::Builder record, uint64_t id) { record.initCancelCalls(1).set(0, id); }},
      {"release", ticket, [](wire::Record::Builder record, uint64_t id) { record.setRelease(id); }},
      {"name", 1,
       [](wire::Record::Builder record, uint64_t id) {
         record.initName().setHandle(id);
         record.getName().setName("mine");
       }},
      {"collective", 1,
       [](wire::Record::Builder record, uint64_t id) {
         auto collective = record.initCollective();
         collective.setRequest(kRequest);
         collective.setGroup(id);
       }},
      {"collective's operand", 1,
       [](wire::Record::Builder record, uint64_t id) {
         auto collective = record.initCollective();
         collective.setRequest(kRequest);
         collective.setOperand(id);
       }},
      {"leaveGroup", 1, [](wire::Record::Builder record, uint64_t id) { record.setLeaveGroup(id); }},
      {"publish", 1,
       [](wire::Record::Builder record, uint64_t id) {
         auto publish = record.initPublish();
         publish.setRequest(kRequest);
         publish.setName("b/taken");
         auto tensors = publish.initTensors(1);
         tensors[0].setName("w");
         tensors[0].setHandle(id);
       }},
  };
}

inline std::vector<NameCase> NameCases(uint64_t result) {
  return {
      {"attach", "a/secret", "a/absent",
       [result](wire::Record::Builder record, const std::string& name) {
         record.initAttach().setRequest(kRequest);
         record.getAttach().setName(name.c_str());
         record.getAttach().setFirstResult(result);
       }},
      {"unpublish", "a/secret", "a/absent",
       [](wire::Record::Builder record, const std::string& name) {
         record.initUnpublish().setRequest(kRequest);
         record.getUnpublish().setName(name.c_str());
       }},
      {"publish", "a/secret", "a/absent",
       [](wire::Record::Builder record, const std::string& name) {
         auto publish = record.initPublish();
         publish.setRequest(kRequest);
         publish.setName(name.c_str());
         auto tensors = publish.initTensors(1);
         tensors[0].setName("w");
         tensors[0].setHandle(kMine);
       }},
      {"listPublished", "a/secret", "a/absent",
       [](wire::Record::Builder record, const std::string& name) {
         record.initListPublished().setRequest(kRequest);
         record.getListPublished().setAfter(name.substr(0, 1).c_str());
       }},
      // A group is of one tenant: another one's key is a group of its own.
      {"joinGroup", "g", "h",
       [](wire::Record::Builder record, const std::string& key) { FillJoin(record, kRequest, key, 1, 10'000); }},
  };
}

}  // namespace tessera
