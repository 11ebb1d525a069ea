#include "client/python/frames.h"

#ifndef Py_LIMITED_API // Python 3.11's own frames.

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>

TesseraFrames TesseraFramesOf(PyThreadState* thread) {
  const TesseraFrames frames = {NULL, thread->cframe->current_frame};
  return frames;
}

int TesseraNextFrame(TesseraFrames* frames, PyCodeObject** code, int* instruction) {
  _PyInterpreterFrame* frame = frames->next;
  while (frame != NULL && _PyFrame_IsIncomplete(frame)) frame = frame->previous;
  if (frame == NULL) return 0;
  frames->current = frame;
  frames->next = frame->previous;
  *code = frame->f_code;
  *instruction = _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
  return 1;
}

PyObject* TesseraArgument(const TesseraFrames* frames, int index, const char* name) {
  (void)name;
  const _PyInterpreterFrame* frame = frames->current;
  return frame->f_code->co_argcount <= index ? NULL : frame->localsplus[index];
}

void TesseraEndFrames(TesseraFrames* frames) { (void)frames; }

#else // By frame objects, as all versions have them.

#include "client/python/interpreter.h"

TesseraFrames TesseraFramesOf(PyThreadState* thread) {
  const TesseraFrames frames = {NULL, PyThreadState_GetFrame(thread)};
  return frames;
}

int TesseraNextFrame(TesseraFrames* frames, PyCodeObject** code, int* instruction) {
  PyFrameObject* const frame = frames->next;
  Py_XDECREF(frames->current);
  frames->current = frame;
  frames->next = frame == NULL ? NULL : tessera_interpreter.frame_back(frame);
  if (frame == NULL) return 0;
  *code = PyFrame_GetCode(frame);
  Py_DECREF(*code); // the frame has it
  *instruction = tessera_interpreter.frame_instruction(frame);
  return 1;
}

PyObject* TesseraArgument(const TesseraFrames* frames, int index, const char* name) {
  (void)index;
  PyObject* const argument = tessera_interpreter.frame_variable(frames->current, name);
  if (argument == NULL) PyErr_Clear();
  Py_XDECREF(argument); // the frame has it
  return argument;
}

void TesseraEndFrames(TesseraFrames* frames) {
  Py_XDECREF(frames->current);
  Py_XDECREF(frames->next);
}

#endif
