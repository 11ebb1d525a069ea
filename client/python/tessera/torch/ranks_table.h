#pragma once

// The functions by which torch's process group backend `tessera` (ranks.cc, compiled against the user's torch) calls
// the library (client/python/rank_table.cc in the built extension). Plain C, so that neither side sees the other's
// headers. tessera.distributed hands out the addresses of the table and of a group that it has joined.
//
// Any thread may call any function. Texts that a function gives are freed by free_text.

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TESSERA_RANKS_VERSION 6

typedef struct TesseraGroup TesseraGroup;
typedef struct TesseraWork TesseraWork;
typedef struct TesseraMemory TesseraMemory;

// Numbers of schemas/types/collective_kind.h.
enum TesseraCollective {
  TESSERA_ALL_REDUCE = 0,
  TESSERA_REDUCE = 1,
  TESSERA_BROADCAST = 2,
  TESSERA_ALL_GATHER = 3,
  TESSERA_GATHER = 4,
  TESSERA_SCATTER = 5,
  TESSERA_REDUCE_SCATTER = 6,
  TESSERA_ALL_TO_ALL = 7,
  TESSERA_BARRIER = 8,
  TESSERA_SEND = 9,
  TESSERA_RECV = 10
};
// Numbers of schemas/types/placement.h.
enum TesseraReduceOp {
  TESSERA_SUM = 0,
  TESSERA_AVG = 1,
  TESSERA_MIN = 2,
  TESSERA_MAX = 3,
  TESSERA_PRODUCT = 4,
  TESSERA_BAND = 5,
  TESSERA_BOR = 6,
  TESSERA_BXOR = 7
};
// Numbers of schemas/types/dtype.h.
enum TesseraDType {
  TESSERA_BOOL = 0,
  TESSERA_I8 = 1,
  TESSERA_I16 = 2,
  TESSERA_I32 = 3,
  TESSERA_I64 = 4,
  TESSERA_U8 = 5,
  TESSERA_U16 = 6,
  TESSERA_U32 = 7,
  TESSERA_U64 = 8,
  TESSERA_F16 = 9,
  TESSERA_BF16 = 10,
  TESSERA_F32 = 11,
  TESSERA_F64 = 12,
  TESSERA_C64 = 13,
  TESSERA_C128 = 14
};

// One rank's call on memory of its own. Elements lie one after another. With n ranks and e elements a part, input and
// output have:
//   all_reduce e, e          reduce e, e at the root        broadcast e at the root, e at the others
//   all_gather e, n e        gather e, n e at the root      scatter n e at the root, e
//   reduce_scatter n e, e    all_to_all n e, n e            send e, none; recv none, e; barrier none
// A rank that gives or takes nothing has null and 0 elements there, and null too where there are 0 elements (has_input
// and has_output tell). Input and output may be the same memory.
typedef struct {
  uint32_t kind;
  uint32_t reduce_op;
  int32_t peer;  // the root; of a send the destination, of a recv the source, -1: any
  int32_t tag;
  uint32_t dtype;
  uint8_t has_input;
  uint8_t has_output;
  uint8_t is_waited_for;  // the caller waits for it at once: it may run on this thread
  uint8_t on_devices;     // compared alone: the caller moves the bytes when it is done; no memory
  const void* input;
  int64_t input_elements;
  void* output;
  int64_t output_elements;
  // Where a send and a recv are an exchange of two ranks: the elements of the message the other way, so that both
  // ranks are told where they differ. Else -1.
  int64_t other_elements;
  int64_t timeout_us;
} TesseraCall;

typedef struct {
  uint32_t version;
  // Begins a call, in the order in which the rank's calls of the group are made. The input is read, and the output
  // written, until the work is done. Null: it can't begin, *error says why.
  TesseraWork* (*start)(TesseraGroup* group, const TesseraCall* call, char** error);
  // Until it is done, for so many microseconds at most, negative: as long as the call's own time-out lets it. 0: done,
  // 1: the time is up, 2: failed, *error says why.
  int (*wait)(TesseraWork* work, int64_t timeout_us, char** error);
  // Never blocks.
  int (*is_done)(TesseraWork* work);
  // The rank that sent, after a recv.
  int32_t (*source)(TesseraWork* work);
  // After a work that is done: what was wrong with an earlier message of this rank, which its receiver couldn't take.
  // Null: nothing that wasn't told before.
  char* (*complaint)(TesseraWork* work);
  // Calls back once, on any thread, when it is done: with null, or with the text of its failure.
  void (*when_done)(TesseraWork* work, void (*callback)(void* context, const char* error), void* context);
  // The work goes on without its owner; input and output have to stay until it is done.
  void (*release)(TesseraWork* work);
  void (*free_text)(char* text);
  // Memory that the group's other ranks read and write where it lies, from *data on; it may outlive the group. Null
  // where there is none: the ranks are on several hosts, or so much is taken already.
  TesseraMemory* (*allocate)(TesseraGroup* group, int64_t bytes, void** data);
  void (*release_memory)(TesseraMemory* memory);
  // A rank of the group that is gone, and why, as the coordinator last told; null: none. Asks it anew after a while,
  // and never blocks. One thread at a time.
  char* (*why_gone)(TesseraGroup* group);
} TesseraRanks;

#ifdef __cplusplus
}
#endif
