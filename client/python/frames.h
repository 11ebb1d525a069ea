#pragma once

// The frames of a thread of Python, from the innermost outwards, without making frame objects, which cost more than a
// call does; the build for all versions of Python makes them. With the interpreter lock, which keeps other threads'
// frames where they are, too.

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TesseraFrames {
  void* current;
  void* next;
} TesseraFrames;

TesseraFrames TesseraFramesOf(PyThreadState* thread);
// The next frame's code, borrowed, and its instruction, in bytes; 0: there is none.
int TesseraNextFrame(TesseraFrames* frames, PyCodeObject** code, int* instruction);
// An argument of the frame that came last, by its index and its name, borrowed; null: it has none.
PyObject* TesseraArgument(const TesseraFrames* frames, int index, const char* name);
// When the last one that is wanted has come.
void TesseraEndFrames(TesseraFrames* frames);

#ifdef __cplusplus
}
#endif
