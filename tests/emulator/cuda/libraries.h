#pragma once

// What an emulated library (libcublasLt.so.13) asks of the emulated driver beside the driver's calls. Taken by dlsym
// from the library that is the driver: a real one doesn't have them.

#include <cstdint>

#include <cuda.h>

extern "C" {
// How an operation sees memory while it runs. `touch` gives the place where [address, address + bytes) is, and
// remembers that it was read or written; null where it is neither the device's nor registered.
struct TesseraEmulatorMemory {
  void* engine;
  void* (*touch)(void* engine, uint64_t address, int64_t bytes, int is_write);
};
// `run` is called once, by the thread that runs operations; what it returns is what was wrong with it, else null: text
// that stays until `drop`, which is called in any case. Something wrong ends the context.
struct TesseraEmulatorOperation {
  const char* name;
  const char* (*run)(void* state, const TesseraEmulatorMemory* memory);
  void (*drop)(void* state);
  void* state;
};
// A call of the library begins so: the sticky error of the context, an injected one (control.h), or 0.
int tessera_emulator_enter(const char* function);
// An operation on the stream. Whether it was enqueued.
int tessera_emulator_push(CUstream stream, const TesseraEmulatorOperation* operation);
}
