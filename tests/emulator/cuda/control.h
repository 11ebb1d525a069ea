#pragma once

// Tests control the emulated driver by these, beside the driver's calls. Taken by dlsym from the library that is the
// driver: a real one doesn't have them.

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
// The next call of the function, of another emulated library, takes until the release.
void tessera_emulator_hold_call(const char* function);
void tessera_emulator_release_call();
// Until the call that is to be held has come.
void tessera_emulator_await_call();
// Calls of the function so far; null: of all.
int tessera_emulator_calls(const char* function);
void tessera_emulator_seed(uint32_t seed);
}
