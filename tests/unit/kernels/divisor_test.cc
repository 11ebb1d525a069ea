// Quotients by multiplication, as a kernel computes them.

#include "kernels/cuda/divisor.h"

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::cuda {
namespace {

int64_t Quotient(int64_t number, const Divisor& divisor) {
  const auto product = static_cast<unsigned __int128>(static_cast<uint64_t>(number) << 1) * divisor.factor;
  return static_cast<int64_t>(static_cast<uint64_t>(product >> 64) >> divisor.shift);
}

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TEST(Divisor, GivesEveryQuotientOfSmallNumbers) {
  for (int64_t value = 1; value < 300; ++value) {
    const Divisor divisor = DivisorOf(value);
    for (int64_t number = 0; number < 1000; ++number) ASSERT_EQ(Quotient(number, divisor), number / value) << value;
  }
}

// Around the multiples of the value, where a factor that is a little off shows.
TEST(Divisor, IsExactUpToTheLargestNumbers) {
  std::mt19937_64 random(1);
  std::vector<int64_t> values = {1, 2, 3, 5, 7, 641, kLargest, kLargest - 1, kLargest / 2, kLargest / 2 + 1};
  for (int bit = 1; bit < 63; ++bit) {
    for (const int64_t off : {-1, 0, 1}) values.push_back((int64_t{1} << bit) + off);
    values.push_back(static_cast<int64_t>(random() >> bit) + 1);
  }
  for (const int64_t value : values) {
    if (value < 1) continue;
    const Divisor divisor = DivisorOf(value);
    std::vector<int64_t> numbers = {0, value - 1, value, kLargest, kLargest - 1, kLargest / value * value};
    if (value <= kLargest / value) numbers.push_back(value * value);
    for (int i = 0; i < 100; ++i) {
      const int64_t multiple = static_cast<int64_t>(random() >> 1) / value * value;
      numbers.push_back(multiple);
      if (multiple > 0) numbers.push_back(multiple - 1);
    }
    for (const int64_t number : numbers)
      ASSERT_EQ(Quotient(number, divisor), number / value) << number << " by " << value;
  }
}

}  // namespace
}  // namespace tessera::cuda
