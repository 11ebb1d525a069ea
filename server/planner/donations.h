#pragma once

// Donations: which outputs of a plan may take an input's memory, when nobody else reads it. Pure.
//
//   map(add:f32(in0:f32, arg0:f32)) %0 -> %1                     x + 1 over x
//   place(base=input; ...) %0, %2 -> %1                          x[i] = v writes the elements at i alone
//
// Law: one local step writes the output, each of whose elements depends on the same element of the input alone, or is
// it; no step reads the input after that one or beside it, and no peer reads it at all.

#include "server/plan/plan.h"

namespace tessera {

// Adds them to a finished plan.
void AddDonations(Plan& plan);

}  // namespace tessera
