#pragma once

// The limited API of Python 3.12 by Debian's headers of 3.11: with Py_LIMITED_API=0x030C0000 and this folder before
// that of the headers, an extension is compiled that Python 3.12 and every later one loads (abi3).
//
// The stable ABI promises that such declarations and layouts stay; below are the ones that 3.12 added and that
// nanobind or the bindings use. They are those of https://docs.python.org/3.12/c-api/stable.html. Python 3.11 has most
// of these functions, but some in other forms: an extension that was compiled by this header is not for 3.11.

#include_next <Python.h>

#ifdef Py_LIMITED_API

#if Py_LIMITED_API != 0x030C0000
#error "these are the declarations of Python 3.12"
#endif

#if PY_VERSION_HEX < 0x030C0000

// The headers' version, by which nanobind chooses among functions.
#undef PY_VERSION_HEX
#define PY_VERSION_HEX 0x030C0000

#define PY_VECTORCALL_ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#define Py_mod_multiple_interpreters 3
#define Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED ((void*)0)
#define Py_READONLY 1
#define Py_T_OBJECT_EX 16
#define Py_T_PYSSIZET 19
#define Py_RELATIVE_OFFSET 8

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PyMemberDef {
  const char* name;
  int type;
  Py_ssize_t offset;
  int flags;
  const char* doc;
} PyMemberDef;

typedef PyObject* (*vectorcallfunc)(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames);
PyObject* PyVectorcall_Call(PyObject* callable, PyObject* tuple, PyObject* dict);
Py_ssize_t PyVectorcall_NARGS(size_t nargsf);
PyObject* PyObject_Vectorcall(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames);
PyObject* PyObject_VectorcallMethod(PyObject* name, PyObject* const* args, size_t nargsf, PyObject* kwnames);

PyObject* PyErr_GetRaisedException(void);
void PyErr_SetRaisedException(PyObject* error);

PyObject* PyType_FromMetaclass(PyTypeObject* metaclass, PyObject* module, PyType_Spec* spec, PyObject* bases);
void* PyObject_GetTypeData(PyObject* object, PyTypeObject* type);

#ifdef __cplusplus
}
#endif

#endif
#endif
