#pragma once

// The frames of a thread of Python, from the innermost outwards, without making frame objects, which cost more than a
// call does. With the interpreter lock, which keeps other threads' frames where they are, too.

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
// The second argument of the frame that came last, borrowed. Null where that can't be told without a frame object.
PyObject* TesseraSecondArgument(const TesseraFrames* frames);
// When the last one that is wanted has come.
void TesseraEndFrames(TesseraFrames* frames);

#ifdef __cplusplus
}
#endif
