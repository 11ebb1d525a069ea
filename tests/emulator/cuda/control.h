#pragma once

// What tests say to the emulated driver, beside the driver's calls. Taken by dlsym from the library that is the driver:
// a real one doesn't have them.

#include <cstdint>

extern "C" {
// Nothing runs between the two: what is enqueued meanwhile is ordered by nothing but what it says itself.
void tessera_emulator_hold();
void tessera_emulator_release();
// Operations that were enqueued and have not begun.
int tessera_emulator_queued();
// The hazards so far, a line each. Returns their length; of which so many bytes were written, with a zero at the end.
int tessera_emulator_hazards(char* text, int bytes);
// The nth call of the function from now on returns the error.
void tessera_emulator_fail(const char* function, int nth, int result);
void tessera_emulator_seed(uint32_t seed);

// An operation of another library (NCCL's) on a stream.
struct tessera_emulator_access {
  uint64_t address;
  int64_t bytes;
  int is_write;
};
struct tessera_emulator_operation {
  const char* name;  // outlives it
  void* context;
  // Asked again and again while it is the stream's head: 1 when it is done, 0 while it waits, -1 where memory is
  // neither the device's nor registered. `memory` is for tessera_emulator_host. Must not call the driver.
  int (*poll)(void* context, const void* memory);
  void (*release)(void* context);
  const tessera_emulator_access* accesses;  // copied
  int access_count;
};
// Returns a CUresult. The operation is the stream's if it is 0.
int tessera_emulator_push(void* stream, const tessera_emulator_operation* operation);
// Where the process has the memory at that address; null where it is neither the device's nor registered.
void* tessera_emulator_host(const void* memory, uint64_t address, int64_t bytes);
}
