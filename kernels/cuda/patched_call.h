#pragma once

// PatchedCall: the steps of a KernelCall, kept for calls that differ from it in addresses and arguments alone. A launch
// of these needs no loops, no text of a map and no memory: the words that hold addresses are written anew.
//
//   TESSERA_ASSIGN_OR_RETURN(PatchedCall patched, PatchedCall::Make(call));
//   if (patched.Fits(next)) Run(patched.StepsOf(next, workspace));      // as LaunchKernel(next, workspace), to the
//   byte
//
// LaunchKernel is pure, so Make calls it twice, with addresses that stand for operands and are different each time. A
// word that differs by what an operand's two addresses differ by is that operand's address, or lies at a distance from
// it. Two steps that differ in any other way are refused.
//
// Law: steps may follow from how addresses are aligned, which of them are equal, and whether an output shares bytes
// with another operand. Calls that differ in any of that don't fit.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/launch.h"

namespace tessera::cuda {

class PatchedCall {
 public:
  // LaunchKernel's errors. Unimplemented where a step is one of a library whose addresses aren't known here, and where
  // an operand has no address.
  static absl::StatusOr<PatchedCall> Make(const KernelCall& call, int64_t device_items = kDeviceItems);
  PatchedCall(PatchedCall&&) = default;
  PatchedCall& operator=(PatchedCall&&) = default;

  // Whether the steps do for a call that differs from Make's in addresses and scalars alone.
  bool Fits(const KernelCall& call) const;
  // The steps of a call that fits, until the next one's.
  const std::vector<Step>& StepsOf(const KernelCall& call, const Workspace& workspace);
  const std::vector<Step>& steps() const { return steps_; }
  // The same for each call that fits.
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // The addresses that the steps which StepsOf gave last have in them, but for the fault word's: those of the operands,
  // the workspace and the zeros.
  absl::Span<const uint64_t> addresses() const { return absl::MakeConstSpan(addresses_).first(addresses_.size() - 1); }
  // Whether these steps and the other one's may run in any order: neither writes bytes that the other one reads or
  // writes, and not both use the workspace.
  bool IsApartFrom(const PatchedCall& other) const;

 private:
  // Bytes [first, last) of an operand's elements from its address on, and how it lies.
  struct Operand {
    int64_t first = 0, last = 0;
    uint64_t beyond_aligned = 0;
    size_t equal_to = 0;  // the first operand with this address, or itself
    bool is_output = false;
    bool is_read = false;      // or written
    bool is_anywhere = false;  // its bytes aren't known
  };
  // 8 bytes of a step that hold an address: that of an operand, or one of the workspace's behind them.
  struct AddressWord {
    std::byte* at = nullptr;
    size_t operand = 0;
    uint64_t distance = 0;
  };
  struct ArgumentElement {
    std::byte* at = nullptr;
    LaunchArgument argument;
  };

  PatchedCall() = default;
  absl::Status DescribeOperands(const KernelCall& call);
  static bool AreApart(const Operand& a, uint64_t address_of_a, const Operand& b, uint64_t address_of_b);
  // Notes the words of a step that hold addresses; `other` is the same step with other addresses.
  absl::Status Compare(Step& step, const Step& other);
  absl::Status Compare(Launch& launch, const Launch& other);
  absl::Status CompareWord(void* word, const void* other);

  std::vector<Step> steps_;
  std::vector<Operand> operands_;  // inputs, the output, further outputs
  std::vector<AddressWord> words_;
  std::vector<ArgumentElement> arguments_;
  std::vector<Scalar> scalars_;      // in the steps in another way than as arguments
  std::vector<uint64_t> addresses_;  // of the call at hand: the operands', and the workspace's, the fault word last
  int64_t workspace_bytes_ = 0;
};

}  // namespace tessera::cuda
