#pragma once

// Enrolment: how a worker that has one address and one secret gets its certificate and its number, and has the
// certificate renewed for as long as it runs. Joining comes after it, and is as that of any worker.
//
//   TESSERA_ASSIGN_OR_RETURN(auto enrolment, Enrolment::Make({"tls://node1:7421", "sha256:9f86...", token}));
//   enrolment->files()         // of the certificate, its key and the CA, for all that takes PEM files
//   enrolment->coordinator()   // "tls://node1:7422": where it joins
//   enrolment->KeepRenewed([] { ... });
//
// The files are memory of this process, by the names of its descriptors (/proc/self/fd/7): no key lies on a disk, and
// nothing is left when the process is killed. A new certificate takes the old one's place under the same name.

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/link/tls_files.h"

namespace tessera {

struct EnrolmentOptions {
  std::string address;             // "tls://host:port", one for clients
  std::string ca_pin;              // "sha256:HEX"; empty: ca_file says who signs
  std::string ca_file;             // a PEM file
  std::string token;               // the workers'
  std::string token_file;          // where it is read anew for each renewal; empty: it stays
  int index = -1;                  // wanted; -1: the coordinator gives one
  std::vector<std::string> hosts;  // by which others reach the worker; none: the address that reaches the coordinator
  std::string own_name;            // of the host: a second name in the certificate; "" none
  double timeout_s = 60;           // for a coordinator that is not there yet, or a number that is still another's
};

class Enrolment {
 public:
  // Blocks. Unavailable: no coordinator came in time; Unauthenticated: it is not the one of the pin, or it refuses the
  // token; else what it refuses the worker for. Messages say what to write.
  static absl::StatusOr<std::unique_ptr<Enrolment>> Make(EnrolmentOptions options);

  const TlsFiles& files() const { return files_; }
  int index() const { return index_; }
  const std::string& token() const { return options_.token; }         // before KeepRenewed alone
  const std::string& host() const { return options_.hosts.front(); }  // by which others reach it
  const std::string& coordinator() const { return coordinator_; }

  // From now on, on a thread of its own: at two thirds of each certificate's time it asks for the next one, and calls
  // `renewed` when that is in place. Where it gets none it says so and tries again. Lasts as long as the process.
  void KeepRenewed(std::function<void()> renewed);

 private:
  explicit Enrolment(EnrolmentOptions options) : options_(std::move(options)) {}
  absl::Status FindAuthority();
  // Asks once, and puts what it gets in place.
  enum class Asks { kFirst, kAgain };
  absl::Status Enroll(Asks asks);
  absl::Status CheckClock(std::time_t coordinators) const;
  absl::Status PutLeaf(const std::string& certificate, const std::string& key);
  void RenewForever();

  EnrolmentOptions options_;
  TlsFiles files_;
  int leaf_fd_ = -1, ca_fd_ = -1;
  int index_ = -1;
  std::string coordinator_;
  std::time_t starts_at_ = 0, ends_at_ = 0;
  std::string proof_;  // for the next renewal
  std::function<void()> renewed_;
  std::thread thread_;
};

}  // namespace tessera
