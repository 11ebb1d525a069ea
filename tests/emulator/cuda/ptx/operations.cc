// The operations that need nothing but registers, and which of them an instruction's name is.

#include <algorithm>
#include <string_view>
#include <utility>

#include "schemas/types/half.h"
#include "tests/emulator/cuda/ptx/arithmetic.h"
#include "tests/emulator/cuda/ptx/code.h"

namespace tessera::ptx {
namespace {

using Parts = std::vector<std::string>;

bool Has(const Parts& parts, std::string_view part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

// A lane's operation: its registers are every kWarpLanes-th number from r on.
using LaneOperation = void (*)(uint64_t* r, const Instruction& i);

uint64_t& At(uint64_t* r, int32_t place) { return r[static_cast<size_t>(place) * kWarpLanes]; }
uint64_t Read(const uint64_t* r, const Instruction& i, size_t operand) {
  return r[static_cast<size_t>(i.from[operand]) * kWarpLanes];
}
template <typename T>
T Value(const uint64_t* r, const Instruction& i, size_t operand) {
  return ValueOf<T>(Read(r, i, operand));
}
void Write(uint64_t* r, const Instruction& i, uint64_t bits) { At(r, i.to[0]) = bits; }

// A lane's operation for those of a warp.
template <LaneOperation kOperation>
void InLanes(uint64_t* r, const Instruction& i, uint32_t lanes) {
  const Instruction here = i;  // which no register's bytes are
  if (lanes == kAllLanes) {
#pragma GCC ivdep
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) kOperation(r + lane, here);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) kOperation(r + std::countr_zero(lanes), here);
}

// A function of one or two numbers of a type as an operation.
template <typename T, auto kFunction>
void Unary(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(static_cast<T>(kFunction(Value<T>(r, i, 0)))));
}
template <typename T, auto kFunction>
void Binary(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(static_cast<T>(kFunction(Value<T>(r, i, 0), Value<T>(r, i, 1)))));
}
template <typename T, auto kFunction>
void Rounded(uint64_t* r, const Instruction& i) {
  const RoundingScope scope(i.mode);
  volatile T a = Value<T>(r, i, 0);
  volatile T result = kFunction(T{a}, Value<T>(r, i, 1));
  T value = result;
  if (i.saturates) value = value != value ? T{0} : std::min(T{1}, std::max(T{0}, value));
  Write(r, i, BitsOf<T>(value));
}

template <typename T>
void MultiplyWide(uint64_t* r, const Instruction& i) {
  const auto product =
      static_cast<uint64_t>(static_cast<int64_t>(Value<T>(r, i, 0)) * static_cast<int64_t>(Value<T>(r, i, 1)));
  Write(r, i, sizeof(T) == 2 ? static_cast<uint32_t>(product) : product);
}
template <typename T>
void MultiplyAddWide(uint64_t* r, const Instruction& i) {
  const auto sum =
      static_cast<uint64_t>(static_cast<int64_t>(Value<T>(r, i, 0)) * static_cast<int64_t>(Value<T>(r, i, 1))) +
      Read(r, i, 2);
  Write(r, i, sizeof(T) == 2 ? static_cast<uint32_t>(sum) : sum);
}
template <typename T>
void MultiplyAdd(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(Add(Multiply(Value<T>(r, i, 0), Value<T>(r, i, 1)), Value<T>(r, i, 2))));
}
template <typename T>
void MultiplyHighAdd(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(Add(MultiplyHigh(Value<T>(r, i, 0), Value<T>(r, i, 1)), Value<T>(r, i, 2))));
}
template <typename T>
void FusedMultiplyAdd(uint64_t* r, const Instruction& i) {
  const RoundingScope scope(i.mode);
  volatile T a = Value<T>(r, i, 0);
  volatile T result = std::fma(T{a}, Value<T>(r, i, 1), Value<T>(r, i, 2));
  T value = result;
  if (i.saturates) value = value != value ? T{0} : std::min(T{1}, std::max(T{0}, value));
  Write(r, i, BitsOf<T>(value));
}
// The carry of .cc is the register from[4], which the parser gives each thread.
template <typename T>
void AddCarrying(uint64_t* r, const Instruction& i) {
  using Sum = unsigned __int128;
  uint64_t& carry = At(r, i.from[4]);
  const bool multiplies = (i.combination & 2) != 0;
  T a = Value<T>(r, i, 0);
  if (multiplies) a = (i.combination & 4) != 0 ? MultiplyHigh(a, Value<T>(r, i, 1)) : Multiply(a, Value<T>(r, i, 1));
  const Sum b = Value<T>(r, i, multiplies ? 2 : 1), in = (i.combination & 1) != 0 ? carry : 0;
  // A borrow is a carry, too.
  const Sum sum = (i.combination & 8) != 0 ? Sum{a} - b - in : Sum{a} + b + in;
  carry = static_cast<uint64_t>(sum >> (8 * sizeof(T))) & 1;
  Write(r, i, BitsOf<T>(static_cast<T>(sum)));
}

template <typename T>
void Move(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(Value<T>(r, i, 0)));
}
template <typename T>
void And(uint64_t* r, const Instruction& i) {
  Write(r, i, static_cast<T>(Read(r, i, 0) & Read(r, i, 1)));
}
template <typename T>
void Or(uint64_t* r, const Instruction& i) {
  Write(r, i, static_cast<T>(Read(r, i, 0) | Read(r, i, 1)));
}
template <typename T>
void Xor(uint64_t* r, const Instruction& i) {
  Write(r, i, static_cast<T>(Read(r, i, 0) ^ Read(r, i, 1)));
}
template <typename T>
void Not(uint64_t* r, const Instruction& i) {
  Write(r, i, static_cast<T>(~Read(r, i, 0)));
}
void NotPredicate(uint64_t* r, const Instruction& i) { Write(r, i, Read(r, i, 0) == 0 ? 1 : 0); }
template <typename T>
void ShiftsLeft(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(ShiftLeft(Value<T>(r, i, 0), Value<uint32_t>(r, i, 1))));
}
template <typename T>
void ShiftsRight(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(ShiftRight(Value<T>(r, i, 0), Value<uint32_t>(r, i, 1))));
}
template <typename T>
void Select(uint64_t* r, const Instruction& i) {
  Write(r, i, BitsOf<T>(Value<T>(r, i, Read(r, i, 2) != 0 ? 0 : 1)));
}
template <typename T>
void PopulationCount(uint64_t* r, const Instruction& i) {
  Write(r, i, static_cast<uint64_t>(std::popcount(Value<T>(r, i, 0))));
}
template <typename T>
void LeadingZeros(uint64_t* r, const Instruction& i) {
  Write(r, i, static_cast<uint64_t>(std::countl_zero(Value<T>(r, i, 0))));
}
template <typename T>
void ReverseBits(uint64_t* r, const Instruction& i) {
  T from = Value<T>(r, i, 0), to = 0;
  for (size_t b = 0; b < 8 * sizeof(T); ++b) to = static_cast<T>(to | ((from >> b) & 1) << (8 * sizeof(T) - 1 - b));
  Write(r, i, to);
}
// From operand 0 the bits [position, position + length).
template <typename T>
void ExtractBits(uint64_t* r, const Instruction& i) {
  using Bits = std::make_unsigned_t<T>;
  const uint32_t width = 8 * sizeof(T), position = Value<uint32_t>(r, i, 1) & 255,
                 length = Value<uint32_t>(r, i, 2) & 255;
  Bits field = ShiftRight(Value<Bits>(r, i, 0), position);
  if (length < width) field &= static_cast<Bits>((Bits{1} << length) - 1);
  if constexpr (std::is_signed_v<T>) {
    const uint32_t last = std::min(position + length - 1, width - 1);
    const bool is_negative = length > 0 && ((Value<Bits>(r, i, 0) >> last) & 1) != 0;
    if (is_negative && length < width) field |= static_cast<Bits>(~Bits{0} << length);
  }
  Write(r, i, field);
}
template <typename T>
void InsertBits(uint64_t* r, const Instruction& i) {
  const uint32_t width = 8 * sizeof(T), position = Value<uint32_t>(r, i, 2) & 255,
                 length = Value<uint32_t>(r, i, 3) & 255;
  T mask = length >= width ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
  mask = ShiftLeft(mask, position);
  Write(r, i, static_cast<T>((Value<T>(r, i, 1) & ~mask) | (ShiftLeft(Value<T>(r, i, 0), position) & mask)));
}
// shf: of two words as one of 64 bits; mode 0 left, 1 right; combination 1 wraps, 0 clamps.
void FunnelShift(uint64_t* r, const Instruction& i) {
  const uint64_t both = Value<uint32_t>(r, i, 0) | Read(r, i, 1) << 32;
  uint32_t count = Value<uint32_t>(r, i, 2);
  count = i.combination == 1 ? count & 31 : std::min<uint32_t>(count, 32);
  Write(r, i, static_cast<uint32_t>(i.mode == 1 ? both >> count : (both << count) >> 32));
}

enum Comparison : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };
constexpr std::string_view kComparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                             "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

template <uint8_t kComparison, typename T>
bool Compare(T a, T b) {
  const bool is_unordered = a != a || b != b;
  switch (kComparison) {
    case kEq: return a == b;
    case kNe: return !is_unordered && a != b;
    case kLt: return a < b;
    case kLe: return a <= b;
    case kGt: return a > b;
    case kGe: return a >= b;
    case kEqu: return is_unordered || a == b;
    case kNeu: return a != b;
    case kLtu: return is_unordered || a < b;
    case kLeu: return is_unordered || a <= b;
    case kGtu: return is_unordered || a > b;
    case kGeu: return is_unordered || a >= b;
    case kNum: return !is_unordered;
    default: return is_unordered;
  }
}
// setp with one result.
template <typename T, uint8_t kComparison>
void SetOnePredicate(uint64_t* r, const Instruction& i) {
  Write(r, i, Compare<kComparison>(Value<T>(r, i, 0), Value<T>(r, i, 1)) ? 1 : 0);
}
// With a second one, for what isn't so, or each combined with another predicate.
template <typename T, uint8_t kComparison>
void SetPredicates(uint64_t* r, const Instruction& i) {
  const bool compared = Compare<kComparison>(Value<T>(r, i, 0), Value<T>(r, i, 1));
  const auto combined = [&](bool value) {
    if (i.combination == 0) return value;
    const bool other = (Read(r, i, 2) != 0) != i.saturates;  // saturates: negated
    return i.combination == 1 ? value && other : i.combination == 2 ? value || other : value != other;
  };
  const bool first = combined(compared), second = combined(!compared);
  Write(r, i, first ? 1 : 0);
  if (i.to[1] != kNoRegister) At(r, i.to[1]) = second ? 1 : 0;
}
// The comparison that the instruction's mode numbers, of which an operation for all lanes is chosen once.
template <typename T, uint8_t... kComparison>
void SetPredicateOf(uint64_t* r, const Instruction& i, uint32_t lanes, std::integer_sequence<uint8_t, kComparison...>) {
  constexpr Operation kOne[] = {InLanes<SetOnePredicate<T, kComparison>>...};
  constexpr Operation kSeveral[] = {InLanes<SetPredicates<T, kComparison>>...};
  (i.combination == 0 && i.to[1] == kNoRegister ? kOne : kSeveral)[i.mode](r, i, lanes);
}
template <typename T>
void SetPredicate(uint64_t* r, const Instruction& i, uint32_t lanes) {
  SetPredicateOf<T>(r, i, lanes, std::make_integer_sequence<uint8_t, std::size(kComparisons)>());
}

template <typename To, typename From>
void ConvertTo(uint64_t* r, const Instruction& i) {
  To value = Convert<To>(Value<From>(r, i, 0), i.mode);
  if constexpr (kIsFloating<To>) {
    if (i.combination != 0) {
      const RoundingScope scope(i.combination);
      volatile From from = Value<From>(r, i, 0);
      volatile To rounded = static_cast<To>(From{from});
      value = rounded;
    }
    if (i.saturates) value = value != value ? To{0} : std::min(To{1}, std::max(To{0}, value));
  }
  if constexpr (std::is_signed_v<To> && !kIsFloating<To> && sizeof(To) < 4) {
    Write(r, i, static_cast<uint32_t>(static_cast<int32_t>(value)));
  } else {
    Write(r, i, BitsOf<To>(value));
  }
}
template <typename Half>
void HalfToFloat(uint64_t* r, const Instruction& i) {
  Half half;
  half.bits = Value<uint16_t>(r, i, 0);
  Write(r, i, BitsOf<float>(static_cast<float>(half)));
}
// A NaN becomes the one that the hardware gives.
template <typename Half, typename From>
void FloatToHalf(uint64_t* r, const Instruction& i) {
  const From value = Value<From>(r, i, 0);
  Write(r, i, value != value ? 0x7FFF : Half(value).bits);
}

void Permute(uint64_t* r, const Instruction& i) {
  const uint64_t bytes = Value<uint32_t>(r, i, 0) | Read(r, i, 1) << 32;
  const uint32_t selector = Value<uint32_t>(r, i, 2);
  uint32_t result = 0;
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t which = selector >> (4 * k) & 15;
    auto byte = static_cast<uint8_t>(bytes >> (8 * (which & 7)));
    if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= uint32_t{byte} << (8 * k);
  }
  Write(r, i, result);
}
void AnyLogic(uint64_t* r, const Instruction& i) {
  const uint32_t a = Value<uint32_t>(r, i, 0), b = Value<uint32_t>(r, i, 1), c = Value<uint32_t>(r, i, 2);
  const uint32_t table = Value<uint32_t>(r, i, 3);
  uint32_t result = 0;
  for (uint32_t k = 0; k < 8; ++k) {
    if ((table >> k & 1) != 0) result |= ((k & 4) != 0 ? a : ~a) & ((k & 2) != 0 ? b : ~b) & ((k & 1) != 0 ? c : ~c);
  }
  Write(r, i, result);
}
// mov of a vector: mode has the bits of a part.
void Pack(uint64_t* r, const Instruction& i) {
  uint64_t whole = 0;
  const uint64_t mask = (uint64_t{1} << i.mode) - 1;
  for (size_t k = 0; k < i.count; ++k) whole |= (Read(r, i, k) & mask) << (i.mode * k);
  Write(r, i, whole);
}
void Unpack(uint64_t* r, const Instruction& i) {
  const uint64_t whole = Read(r, i, 0), mask = (uint64_t{1} << i.mode) - 1;
  for (size_t k = 0; k < i.count; ++k) {
    if (i.to[k] != kNoRegister) At(r, i.to[k]) = whole >> (i.mode * k) & mask;
  }
}
void ToWindowOffset(uint64_t* r, const Instruction& i) { Write(r, i, Read(r, i, 0) & ~kWindowMask); }
void FromShared(uint64_t* r, const Instruction& i) { Write(r, i, Read(r, i, 0) | kSharedWindow); }
void FromLocal(uint64_t* r, const Instruction& i) { Write(r, i, Read(r, i, 0) | kLocalWindow); }
void FromParameter(uint64_t* r, const Instruction& i) { Write(r, i, Read(r, i, 0) | kParameterWindow); }
void Nothing(uint64_t*, const Instruction&) {}

template <typename T>
T CopySign(T sign, T magnitude) {
  return std::copysign(magnitude, sign);
}
template <typename T>
T SquareRoot(T a) {
  return std::sqrt(a);
}
template <typename T>
T ReciprocalRoot(T a) {
  return T{1} / std::sqrt(a);
}
template <typename T>
T Reciprocal(T a) {
  return T{1} / a;
}
template <typename T>
T PowerOfTwo(T a) {
  return std::exp2(a);
}
template <typename T>
T LogarithmOfTwo(T a) {
  return std::log2(a);
}
template <typename T>
T Sine(T a) {
  return std::sin(a);
}
template <typename T>
T Cosine(T a) {
  return std::cos(a);
}

// ---- by name

template <Operation kOperation>
constexpr Operation OfWarp = kOperation;

// A function of types, each as `shape` has it: InLanes one of a lane, OfWarp one of a warp.
#define INTEGER_AS(shape, f, type)                                  \
  (type == "s64"                    ? Operation(shape<f<int64_t>>)  \
   : type == "u64" || type == "b64" ? Operation(shape<f<uint64_t>>) \
   : type == "s32"                  ? Operation(shape<f<int32_t>>)  \
   : type == "u32" || type == "b32" ? Operation(shape<f<uint32_t>>) \
   : type == "s16"                  ? Operation(shape<f<int16_t>>)  \
   : type == "u16" || type == "b16" ? Operation(shape<f<uint16_t>>) \
                                    : nullptr)
#define FLOAT_AS(shape, f, type) \
  (type == "f32" ? Operation(shape<f<float>>) : type == "f64" ? Operation(shape<f<double>>) : nullptr)
#define INTEGER(f, type) INTEGER_AS(InLanes, f, type)
#define FLOAT(f, type) FLOAT_AS(InLanes, f, type)
#define NUMBER(f, type) (FLOAT(f, type) != nullptr ? FLOAT(f, type) : INTEGER(f, type))
#define BITS(f, type)                                 \
  (type == "b64"    ? Operation(InLanes<f<uint64_t>>) \
   : type == "b32"  ? Operation(InLanes<f<uint32_t>>) \
   : type == "b16"  ? Operation(InLanes<f<uint16_t>>) \
   : type == "pred" ? Operation(InLanes<f<uint8_t>>)  \
                    : nullptr)
#define WRAP(name, shape, function)              \
  template <typename T>                          \
  void name(uint64_t* r, const Instruction& i) { \
    shape<T, function<T>>(r, i);                 \
  }
WRAP(Adds, Binary, Add)
WRAP(AddsRounded, Rounded, Add)
WRAP(Subtracts, Binary, Subtract)
WRAP(SubtractsRounded, Rounded, Subtract)
WRAP(Multiplies, Binary, Multiply)
WRAP(MultipliesRounded, Rounded, Multiply)
WRAP(MultipliesHigh, Binary, MultiplyHigh)
WRAP(Divides, Binary, Divide)
WRAP(DividesRounded, Rounded, Divide)
WRAP(Remainders, Binary, Remainder)
WRAP(Minima, Binary, Minimum)
WRAP(Maxima, Binary, Maximum)
WRAP(Negates, Unary, Negate)
WRAP(Absolutes, Unary, Absolute)
WRAP(CopiesSign, Binary, CopySign)
WRAP(SquareRoots, Unary, SquareRoot)
WRAP(ReciprocalRoots, Unary, ReciprocalRoot)
WRAP(Reciprocals, Unary, Reciprocal)
WRAP(PowersOfTwo, Unary, PowerOfTwo)
WRAP(LogarithmsOfTwo, Unary, LogarithmOfTwo)
WRAP(Sines, Unary, Sine)
WRAP(Cosines, Unary, Cosine)
#undef WRAP

uint8_t RoundingOf(const Parts& parts) {
  return Has(parts, "rm") ? 1 : Has(parts, "rp") ? 2 : Has(parts, "rz") ? 3 : 0;
}

template <typename To>
Operation ConvertFrom(std::string_view from) {
  if (from == "f32") return InLanes<ConvertTo<To, float>>;
  if (from == "f64") return InLanes<ConvertTo<To, double>>;
  if (from == "s8") return InLanes<ConvertTo<To, int8_t>>;
  if (from == "u8") return InLanes<ConvertTo<To, uint8_t>>;
  if (from == "s16") return InLanes<ConvertTo<To, int16_t>>;
  if (from == "u16") return InLanes<ConvertTo<To, uint16_t>>;
  if (from == "s32") return InLanes<ConvertTo<To, int32_t>>;
  if (from == "u32") return InLanes<ConvertTo<To, uint32_t>>;
  if (from == "s64") return InLanes<ConvertTo<To, int64_t>>;
  if (from == "u64") return InLanes<ConvertTo<To, uint64_t>>;
  return nullptr;
}
Operation ConversionOf(const Parts& parts, Instruction* i) {
  const std::string& from = parts.back();
  const std::string& to = parts[parts.size() - 2];
  i->saturates = Has(parts, "sat");
  i->mode = Has(parts, "rzi") ? 1 : Has(parts, "rni") ? 2 : Has(parts, "rmi") ? 3 : Has(parts, "rpi") ? 4 : 0;
  i->combination = RoundingOf(parts);
  if (to == "f16" || to == "bf16" || from == "f16" || from == "bf16") {
    if (i->combination != 0 || i->saturates) return nullptr;
    if (from == "f16" && to == "f32") return InLanes<HalfToFloat<F16>>;
    if (from == "bf16" && to == "f32") return InLanes<HalfToFloat<BF16>>;
    if (from == "f32" && to == "f16") return InLanes<FloatToHalf<F16, float>>;
    if (from == "f64" && to == "f16") return InLanes<FloatToHalf<F16, double>>;
    if (from == "f32" && to == "bf16") return InLanes<FloatToHalf<BF16, float>>;
    return nullptr;
  }
  if (to == "f32") return ConvertFrom<float>(from);
  if (to == "f64") return ConvertFrom<double>(from);
  if (to == "s8") return ConvertFrom<int8_t>(from);
  if (to == "u8") return ConvertFrom<uint8_t>(from);
  if (to == "s16") return ConvertFrom<int16_t>(from);
  if (to == "u16") return ConvertFrom<uint16_t>(from);
  if (to == "s32") return ConvertFrom<int32_t>(from);
  if (to == "u32") return ConvertFrom<uint32_t>(from);
  if (to == "s64") return ConvertFrom<int64_t>(from);
  if (to == "u64") return ConvertFrom<uint64_t>(from);
  return nullptr;
}

Operation PredicateOf(const Parts& parts, Instruction* i) {
  const std::string& type = parts.back();
  // These names are for unsigned numbers.
  const std::string name = parts[1] == "lo"   ? "lt"
                           : parts[1] == "ls" ? "le"
                           : parts[1] == "hi" ? "gt"
                           : parts[1] == "hs" ? "ge"
                                              : parts[1];
  const auto* found = std::find(std::begin(kComparisons), std::end(kComparisons), name);
  if (found == std::end(kComparisons)) return nullptr;
  i->mode = static_cast<uint8_t>(found - std::begin(kComparisons));
  i->combination = Has(parts, "and") ? 1 : Has(parts, "or") ? 2 : Has(parts, "xor") ? 3 : 0;
  const Operation of_floats = FLOAT_AS(OfWarp, SetPredicate, type);
  return of_floats != nullptr ? of_floats : INTEGER_AS(OfWarp, SetPredicate, type);
}

// Instructions that add with or to the carry.
Operation CarryingOf(const Parts& parts, Instruction* i) {
  const std::string& name = parts[0];
  const bool multiplies = name == "mad" || name == "madc", subtracts = name == "sub" || name == "subc";
  i->combination = static_cast<uint8_t>((name.back() == 'c' ? 1 : 0) | (multiplies ? 2 : 0) |
                                        (Has(parts, "hi") ? 4 : 0) | (subtracts ? 8 : 0));
  const std::string& type = parts.back();
  if (type == "u64" || type == "s64") return InLanes<AddCarrying<uint64_t>>;
  return type == "u32" || type == "s32" ? InLanes<AddCarrying<uint32_t>> : nullptr;
}

Operation ArithmeticOf(const Parts& parts, Instruction* i) {
  const std::string &name = parts[0], &type = parts.back();
  i->saturates = Has(parts, "sat");
  if (name == "addc" || name == "subc" || name == "madc" || Has(parts, "cc")) {
    return CarryingOf(parts, i);
  }
  const uint8_t rounding = RoundingOf(parts);
  const bool is_plain = (rounding == 0 && !i->saturates) || type[0] != 'f';
  i->mode = rounding;
  if (name == "add") return is_plain ? NUMBER(Adds, type) : FLOAT(AddsRounded, type);
  if (name == "sub") return is_plain ? NUMBER(Subtracts, type) : FLOAT(SubtractsRounded, type);
  if (name == "div") return is_plain ? NUMBER(Divides, type) : FLOAT(DividesRounded, type);
  if (name == "mul") {
    if (Has(parts, "wide")) return INTEGER(MultiplyWide, type);
    if (Has(parts, "hi")) return INTEGER(MultipliesHigh, type);
    return is_plain ? NUMBER(Multiplies, type) : FLOAT(MultipliesRounded, type);
  }
  if (name == "mad" && Has(parts, "wide")) return INTEGER(MultiplyAddWide, type);
  if (name == "mad" && Has(parts, "hi")) return INTEGER(MultiplyHighAdd, type);
  if (name == "mad" && Has(parts, "lo")) return INTEGER(MultiplyAdd, type);
  if (name == "fma" || name == "mad") return FLOAT(FusedMultiplyAdd, type);
  if (name == "rem") return INTEGER(Remainders, type);
  if (Has(parts, "NaN")) return nullptr;
  if (name == "min") return NUMBER(Minima, type);
  if (name == "max") return NUMBER(Maxima, type);
  if (name == "neg") return NUMBER(Negates, type);
  if (name == "abs") return NUMBER(Absolutes, type);
  if (rounding != 0) return nullptr;
  if (name == "copysign") return FLOAT(CopiesSign, type);
  if (name == "sqrt") return FLOAT(SquareRoots, type);
  if (name == "rsqrt") return FLOAT(ReciprocalRoots, type);
  if (name == "rcp") return FLOAT(Reciprocals, type);
  if (name == "ex2") return FLOAT(PowersOfTwo, type);
  if (name == "lg2") return FLOAT(LogarithmsOfTwo, type);
  if (name == "sin") return FLOAT(Sines, type);
  if (name == "cos") return FLOAT(Cosines, type);
  return nullptr;
}

Operation BitsOperationOf(const Parts& parts, Instruction* i) {
  const std::string &name = parts[0], &type = parts.back();
  if (name == "and") return BITS(And, type);
  if (name == "or") return BITS(Or, type);
  if (name == "xor") return BITS(Xor, type);
  if (name == "not") return type == "pred" ? Operation(InLanes<NotPredicate>) : BITS(Not, type);
  if (name == "shl") return INTEGER(ShiftsLeft, type);
  if (name == "shr") return INTEGER(ShiftsRight, type);
  if (name == "prmt") return parts.size() == 2 ? Operation(InLanes<Permute>) : nullptr;
  if (name == "lop3") return InLanes<AnyLogic>;
  if (name == "popc")
    return type == "b64" ? Operation(InLanes<PopulationCount<uint64_t>>) : InLanes<PopulationCount<uint32_t>>;
  if (name == "clz")
    return type == "b64" ? Operation(InLanes<LeadingZeros<uint64_t>>) : InLanes<LeadingZeros<uint32_t>>;
  if (name == "brev") return type == "b64" ? Operation(InLanes<ReverseBits<uint64_t>>) : InLanes<ReverseBits<uint32_t>>;
  if (name == "bfe") return INTEGER(ExtractBits, type);
  if (name == "bfi") return type == "b64" ? Operation(InLanes<InsertBits<uint64_t>>) : InLanes<InsertBits<uint32_t>>;
  if (name == "shf") {
    i->mode = Has(parts, "r") ? 1 : 0;
    i->combination = Has(parts, "wrap") ? 1 : 0;
    return InLanes<FunnelShift>;
  }
  return nullptr;
}

}  // namespace

uint64_t AtomicResult(const Instruction& i, uint64_t old, uint64_t operand, uint64_t replacement) {
  const auto select = [&](auto zero) {
    using T = decltype(zero);
    const T a = ValueOf<T>(old), b = ValueOf<T>(operand);
    return BitsOf<T>(i.atomic == AtomicOp::kMax ? std::max(a, b) : std::min(a, b));
  };
  const bool is_signed = i.value_class == ValueClass::kSigned;
  switch (i.atomic) {
    case AtomicOp::kAdd: return i.value_class == ValueClass::kFloat ? AddFloats(old, operand, i.bytes) : old + operand;
    case AtomicOp::kExchange: return operand;
    case AtomicOp::kCompareAndSwap:
      return old == (i.bytes == 4 ? static_cast<uint32_t>(operand) : operand) ? replacement : old;
    case AtomicOp::kMax:
    case AtomicOp::kMin:
      if (i.bytes == 4) return is_signed ? select(int32_t{}) : select(uint32_t{});
      return is_signed ? select(int64_t{}) : select(uint64_t{});
    case AtomicOp::kOr: return old | operand;
    case AtomicOp::kAnd: return old & operand;
    case AtomicOp::kXor: return old ^ operand;
  }
  return old;
}

uint64_t AddFloats(uint64_t a, uint64_t b, int bytes) {
  if (bytes == 4) return BitsOf(ValueOf<float>(a) + ValueOf<float>(b));
  return BitsOf(ValueOf<double>(a) + ValueOf<double>(b));
}

Operation OperationOf(const Parts& parts, Instruction* i) {
  const std::string &name = parts[0], &type = parts.back();
  if (name == "pack") return InLanes<Pack>;
  if (name == "unpack") return InLanes<Unpack>;
  if (name == "mov") {
    if (type == "f32") return InLanes<Move<uint32_t>>;
    if (type == "f64") return InLanes<Move<uint64_t>>;
    return type == "pred" ? Operation(InLanes<Move<uint8_t>>) : INTEGER(Move, type);
  }
  if (name == "membar" || name == "fence" || name == "prefetch" || name == "discard") return InLanes<Nothing>;
  if (name == "cvta") {
    if (Has(parts, "shared")) return Has(parts, "to") ? InLanes<ToWindowOffset> : InLanes<FromShared>;
    if (Has(parts, "local")) return Has(parts, "to") ? InLanes<ToWindowOffset> : InLanes<FromLocal>;
    if (Has(parts, "param")) return Has(parts, "to") ? InLanes<ToWindowOffset> : InLanes<FromParameter>;
    return InLanes<Move<uint64_t>>;
  }
  if (name == "selp") {
    if (type == "f32") return InLanes<Select<uint32_t>>;
    return type == "f64" ? Operation(InLanes<Select<uint64_t>>) : INTEGER(Select, type);
  }
  if (name == "setp") return PredicateOf(parts, i);
  if (name == "cvt") return ConversionOf(parts, i);
  if (Operation bits = BitsOperationOf(parts, i); bits != nullptr) return bits;
  return ArithmeticOf(parts, i);
}

}  // namespace tessera::ptx
