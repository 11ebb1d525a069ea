#pragma once

// Functions of the interpreter that its stable ABI leaves out. A build for one version of Python links with them; the
// build for all versions (Py_LIMITED_API) looks them up in the running interpreter by their names. They are the same in
// Python 3.12 and later.

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TesseraInterpreter {
  int (*holds_lock)(void);
  Py_ssize_t (*request_code_extra)(void (*free)(void*));
  int (*get_code_extra)(PyObject* code, Py_ssize_t index, void** extra);
  int (*set_code_extra)(PyObject* code, Py_ssize_t index, void* extra);
  int (*line_of)(PyCodeObject* code, int instruction);
  PyInterpreterState* (*main)(void);
  PyThreadState* (*first_thread)(PyInterpreterState* interpreter);
  PyThreadState* (*next_thread)(PyThreadState* thread);
  // Null in a build for one version, which reads frames without frame objects (frames.c).
  PyFrameObject* (*frame_back)(PyFrameObject* frame);
  int (*frame_instruction)(PyFrameObject* frame);
  PyObject* (*frame_variable)(PyFrameObject* frame, const char* name);
  // Null in versions before 3.14, where the count of references tells the same.
  int (*is_temporary)(PyObject* object);
} TesseraInterpreter;

// The running interpreter's. Before TesseraFindInterpreter all are null.
extern TesseraInterpreter tessera_interpreter;

// The name of a function that the interpreter lacks; null: all are there. Once, before all else.
const char* TesseraFindInterpreter(void);

#ifdef __cplusplus
}
#endif
