#pragma once

// PlanCapture: while one lives, the ops that its thread asks for are planned in order and not run. It is no recording:
// the plans are of the tensors that are there now, and nothing can run them later.
//
// Law: the result of a planned op has its spec at once, as every result has, and may be an operand of the next op that
// is planned. Values it never gets: a wait or a read of it is FailedPrecondition, and so is an op on it after the
// capture. Uploads are not made either; they are no ops and have no plan.
//
//   PlanCapture capture;
//   absl::StatusOr<Tensor> d = Add(*Matmul(a, b), c);  // blocks for the coordinator's answers
//   capture.plans();                                   // of the matmul, of the add
//
// Captures of one thread nest; the innermost takes the plans.

#include <memory>
#include <utility>
#include <vector>

#include "client/record.h"
#include "client/report.h"

namespace tessera {

class PlanCapture {
 public:
  PlanCapture();
  ~PlanCapture();
  PlanCapture(const PlanCapture&) = delete;
  PlanCapture& operator=(const PlanCapture&) = delete;

  // The calling thread's; null when its ops run.
  static PlanCapture* Current();
  void Add(PlanReport plan) { plans_.push_back(std::move(plan)); }
  const std::vector<PlanReport>& plans() const { return plans_; }

  // Memory that a planned result would have, for as long as something refers to it. Tensors that are planned then have
  // to do without it.
  std::shared_ptr<const HeldMemory> Hold(HeldMemory memory);
  // The memory that is held now, that of outer captures too.
  std::vector<HeldMemory> Held() const;

 private:
  PlanCapture* const outer_;
  std::vector<PlanReport> plans_;
  std::vector<std::weak_ptr<const HeldMemory>> held_;
};

}  // namespace tessera
