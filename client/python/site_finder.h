#pragma once

// The line of the program that asks for an op (client/call_sites.h), found in the frames of the calling thread: the
// innermost one that is no part of this package, of torch, of Python's library or of an installed package; where all
// are, the innermost outside of this package and of torch. Backward's threads have frames of torch alone: their calls
// are of the line where the main thread waits for them. The op's name is that of the torch op that was dispatched
// first, where one was.
//
// A code object keeps what was found for its instructions, and the ways from them to here, so that a line is made into
// a text once.

#include <nanobind/nanobind.h>

namespace tessera::python {

void DefineSites(nanobind::module_& module);

// The calling thread's slot for the torch op that a kernel runs (tessera/torch/calls_table.h).
PyObject** TorchOpSlot();

}  // namespace tessera::python
