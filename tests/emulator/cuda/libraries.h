#pragma once

// Questions of an emulated library (libcublasLt.so.13, libcudnn.so.9, libcufft.so.12, libnccl.so.2) to the emulated
// driver, beside the driver's calls. Taken by dlsym from the library that is the driver: a real one doesn't have them.

#include <cstdint>

#include <cuda.h>

extern "C" {
// How an operation sees memory while it runs. `touch` gives the place where [address, address + bytes) is, and
// remembers that it was read or written; null where it is neither the device's nor registered.
struct TesseraEmulatorMemory {
  void* engine;
  void* (*touch)(void* engine, uint64_t address, int64_t bytes, int is_write);
};
// `is_ready` may be null; else it is asked again and again while the operation is its stream's head, and the stream
// waits until it says other than 0. It moves bytes as `run` does, but what it touches isn't remembered: its run says
// that. It must not call the driver.
//
// `run` is called once, by the thread that runs operations; it returns the error, else null: text that stays until
// `drop`, which is called in any case. Something wrong ends the context.
struct TesseraEmulatorOperation {
  const char* name;
  int (*is_ready)(void* state, const TesseraEmulatorMemory* memory);
  const char* (*run)(void* state, const TesseraEmulatorMemory* memory);
  void (*drop)(void* state);
  void* state;
};
// A call of the library begins so: the sticky error of the context, an injected one (control.h), or 0.
int tessera_emulator_enter(const char* function);
// The call may wait for all that runs in the context, as one that loads a kernel may (engine.h): an error, or 0.
int tessera_emulator_may_wait_for_all(const char* call);
// An operation on the stream. Whether it was enqueued.
int tessera_emulator_push(CUstream stream, const TesseraEmulatorOperation* operation);
}
