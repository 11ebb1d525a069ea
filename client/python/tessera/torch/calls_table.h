#pragma once

// The functions by which kernels of torch's device `tessera` (device.cc, compiled against the user's torch) ask for an
// op of the catalog (client/python/calls_table.cc in the built extension). Plain C, so that neither side sees the
// other's headers. `_tessera.calls_table()` gives the table's address.
//
// The interpreter's lock is held in every call. A handle is an object of the class `_tessera.Tensor`.

#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TESSERA_CALLS_VERSION 1

// A tensor's spec as a kernel looks at it. The shape stays where it is as long as the handle does.
typedef struct {
  uint32_t dtype;  // the catalog's number
  uint32_t rank;
  const int64_t* shape;
  uint64_t cut_dims;     // a bit for each dim that some mesh dim shards
  uint8_t is_pending;    // terms are still to be reduced
  const void* identity;  // equal specs of a session mostly have the same
} TesseraSpec;

// A handle; or a number, where that is null.
typedef struct {
  PyObject* handle;
  uint8_t is_float;
  int64_t integer;
  double number;
} TesseraOperand;

// An attribute by its number (schemas/ops/attribute_ids.h); of its value the field that the attribute's kind takes.
typedef struct {
  uint32_t id;
  int64_t integer;  // a flag, an integer
  double number;
  const char* text;
  const int64_t* integers;  // integers, a shape; an index has four for each item: kind, start, size, step
  size_t count;
} TesseraAttribute;

typedef struct {
  uint32_t op;
  const TesseraOperand* operands;
  size_t operand_count;
  const TesseraAttribute* attributes;
  size_t attribute_count;
  const double* scalars;
  size_t scalar_count;
} TesseraOpCall;

typedef struct {
  uint32_t version;
  // The calling thread's op of torch, by which errors name it; null: none. It is that of the outermost op.
  PyObject** (*op_slot)(void);
  // 0, and no error: the object is no handle, or its spec waits for values, or it shares elements with other arrays.
  int (*spec_of)(PyObject* handle, TesseraSpec* spec);
  // The spec, waited for where it has to be, of a tensor that runs on where the program is interrupted. 0: an error of
  // Python's.
  int (*show)(PyObject* handle, TesseraSpec* spec);
  // A new reference to the result's handle, and its spec, as show gives it. Null with an error of Python's: that is
  // raised. Null without one: the call was refused, and nothing was asked for.
  PyObject* (*call)(const TesseraOpCall* call, TesseraSpec* spec);
} TesseraCalls;

#ifdef __cplusplus
}
#endif
