#define _GNU_SOURCE
#include "client/python/interpreter.h"

#include <stddef.h>

TesseraInterpreter tessera_interpreter;

#ifdef Py_LIMITED_API

#include <dlfcn.h>

static const struct {
  const char* name;
  size_t at;
} kFunctions[] = {
    {"PyGILState_Check", offsetof(TesseraInterpreter, holds_lock)},
    {"PyUnstable_Eval_RequestCodeExtraIndex", offsetof(TesseraInterpreter, request_code_extra)},
    {"PyUnstable_Code_GetExtra", offsetof(TesseraInterpreter, get_code_extra)},
    {"PyUnstable_Code_SetExtra", offsetof(TesseraInterpreter, set_code_extra)},
    {"PyCode_Addr2Line", offsetof(TesseraInterpreter, line_of)},
    {"PyInterpreterState_Main", offsetof(TesseraInterpreter, main)},
    {"PyInterpreterState_ThreadHead", offsetof(TesseraInterpreter, first_thread)},
    {"PyThreadState_Next", offsetof(TesseraInterpreter, next_thread)},
    {"PyFrame_GetBack", offsetof(TesseraInterpreter, frame_back)},
    {"PyFrame_GetLasti", offsetof(TesseraInterpreter, frame_instruction)},
    {"PyFrame_GetVarString", offsetof(TesseraInterpreter, frame_variable)},
};

const char* TesseraFindInterpreter(void) {
  for (size_t i = 0; i < sizeof(kFunctions) / sizeof(kFunctions[0]); ++i) {
    void* const found = dlsym(RTLD_DEFAULT, kFunctions[i].name);
    if (found == NULL) return kFunctions[i].name;
    *(void**)((char*)&tessera_interpreter + kFunctions[i].at) = found;
  }
  *(void**)&tessera_interpreter.is_temporary = dlsym(RTLD_DEFAULT, "PyUnstable_Object_IsUniqueReferencedTemporary");
  return NULL;
}

#else

const char* TesseraFindInterpreter(void) {
  const TesseraInterpreter found = {
      .holds_lock = PyGILState_Check,
      .request_code_extra = _PyEval_RequestCodeExtraIndex,
      .get_code_extra = _PyCode_GetExtra,
      .set_code_extra = _PyCode_SetExtra,
      .line_of = PyCode_Addr2Line,
      .main = PyInterpreterState_Main,
      .first_thread = PyInterpreterState_ThreadHead,
      .next_thread = PyThreadState_Next,
  };
  tessera_interpreter = found;
  return NULL;
}

#endif
