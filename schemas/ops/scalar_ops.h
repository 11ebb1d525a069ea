#pragma once

// The scalar functions of expressions by name. A source file that names one includes this header; a header passes
// them on by the opaque ScalarOp of expression.h (tools/rebuilds schemas/ops/scalar_ops.h counts who is rebuilt).

#include <cstdint>

namespace tessera {

// The numbers are on the wire: append only.
enum class ScalarOp : uint8_t {
  kInput = 0,
  kArgument = 1,
  kCast = 2,
  kNeg = 3,
  kExp = 4,
  kSqrt = 5,
  kRelu = 6,
  kNot = 7,
  kAdd = 8,
  kSub = 9,
  kMul = 10,
  kDiv = 11,
  kMaximum = 12,
  kMinimum = 13,
  kEqual = 14,
  kNotEqual = 15,
  kLess = 16,
  kLessEqual = 17,
  kGreater = 18,
  kGreaterEqual = 19,
  kWhere = 20,  // (condition, then, else)
  kAnd = 21,    // of bools, and of each bit of integers; kNot, kOr and kXor, too
  kOr = 22,
  kXor = 23,
  kShiftLeft = 24,
  kShiftRight = 25,
  kFloorDivide = 26,
  kRemainder = 27,
  kPow = 28,
  kAtan2 = 29,
  kHypot = 30,
  kLogAddExp = 31,
  kCopySign = 32,
  kNextAfter = 33,
  kAbs = 34,
  kSign = 35,
  kFloor = 36,
  kCeil = 37,
  kTrunc = 38,
  kRound = 39,
  kIsNan = 40,
  kIsInf = 41,
  kIsFinite = 42,
  kSignBit = 43,
  kLog = 44,
  kLog1p = 45,
  kLog2 = 46,
  kLog10 = 47,
  kExpm1 = 48,
  kSin = 49,
  kCos = 50,
  kTan = 51,
  kAsin = 52,
  kAcos = 53,
  kAtan = 54,
  kSinh = 55,
  kCosh = 56,
  kTanh = 57,
  kAsinh = 58,
  kAcosh = 59,
  kAtanh = 60,
  kErf = 61,
  kSigmoid = 62,
  kIndex = 63,   // the element's index along a dim of the output, i64, counted in the whole tensor
  kRandom = 64,  // (number, seed, stream): random bits, or a number in [0, 1)
  kReal = 65,    // of a real number itself; kImag 0, kConj itself
  kImag = 66,
  kConj = 67,
  kComplex = 68,  // (real, imaginary)
  kGcd = 69,      // of integers, not negative; of a 0 and a number the number
  kCbrt = 70,
};
inline constexpr int kScalarOpCount = 71;

}  // namespace tessera
