#include "client/python/frames.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

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

PyObject* TesseraSecondArgument(const TesseraFrames* frames) {
  const _PyInterpreterFrame* frame = frames->current;
  return frame->f_code->co_argcount < 2 ? NULL : frame->localsplus[1];
}

void TesseraEndFrames(TesseraFrames* frames) { (void)frames; }

#else // By frame objects, as all versions have them.

TesseraFrames TesseraFramesOf(PyThreadState* thread) {
  const TesseraFrames frames = {NULL, PyThreadState_GetFrame(thread)};
  return frames;
}

int TesseraNextFrame(TesseraFrames* frames, PyCodeObject** code, int* instruction) {
  PyFrameObject* const frame = frames->next;
  Py_XDECREF(frames->current);
  frames->current = frame;
  frames->next = frame == NULL ? NULL : PyFrame_GetBack(frame);
  if (frame == NULL) return 0;
  *code = PyFrame_GetCode(frame);
  Py_DECREF(*code); // the frame has it
  *instruction = PyFrame_GetLasti(frame);
  return 1;
}

PyObject* TesseraSecondArgument(const TesseraFrames* frames) {
  (void)frames;
  return NULL;
}

void TesseraEndFrames(TesseraFrames* frames) {
  Py_XDECREF(frames->current);
  Py_XDECREF(frames->next);
}

#endif
