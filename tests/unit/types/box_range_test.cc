// Ranges of a box's elements against all elements of small boxes.

#include "schemas/types/box_range.h"

#include <map>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// The indices of a box's elements, in row-major order.
std::vector<std::vector<int64_t>> Elements(const Box& box) {
  std::vector<std::vector<int64_t>> all = {{}};
  for (const Interval& interval : box) {
    std::vector<std::vector<int64_t>> longer;
    for (const auto& index : all) {
      for (int64_t i = interval.start; i < interval.stop; ++i) {
        longer.push_back(index);
        longer.back().push_back(i);
      }
    }
    all = std::move(longer);
  }
  return all;
}

const std::vector<Box>& Boxes() {
  static const std::vector<Box>& boxes = *new std::vector<Box>{{},
                                                               {{3, 4}},
                                                               {{2, 7}},
                                                               {{0, 0}},
                                                               {{1, 4}, {5, 7}},
                                                               {{0, 1}, {0, 5}},
                                                               {{2, 4}, {1, 4}, {0, 2}},
                                                               {{0, 3}, {0, 0}, {1, 2}},
                                                               {{1, 3}, {0, 2}, {4, 6}, {0, 3}}};
  return boxes;
}

TEST(BoxesOfRange, HoldTheElementsOfEveryRangeInOrder) {
  for (const Box& box : Boxes()) {
    const auto all = Elements(box);
    for (size_t first = 0; first <= all.size(); ++first) {
      for (size_t last = first; last <= all.size(); ++last) {
        const std::vector<Box> pieces =
            BoxesOfRange(box, static_cast<int64_t>(first), static_cast<int64_t>(last - first));
        EXPECT_LE(pieces.size(), 2 * box.size() + 1);
        std::vector<std::vector<int64_t>> seen;
        for (const Box& piece : pieces) {
          const auto elements = Elements(piece);
          seen.insert(seen.end(), elements.begin(), elements.end());
        }
        EXPECT_EQ(seen,
                  std::vector(all.begin() + static_cast<ptrdiff_t>(first), all.begin() + static_cast<ptrdiff_t>(last)));
      }
    }
  }
}

TEST(RangesOfBox, AreWhereItsElementsAreAndAsFewAsThereAre) {
  const Box box = {{1, 4}, {2, 5}, {0, 3}};
  std::map<std::vector<int64_t>, int64_t> number;
  for (const auto& index : Elements(box)) number.emplace(index, static_cast<int64_t>(number.size()));
  for (int64_t a = 1; a <= 4; ++a) {
    for (int64_t b = a; b <= 4; ++b) {
      for (int64_t c = 2; c <= 5; ++c) {
        for (int64_t d = c; d <= 5; ++d) {
          for (int64_t e = 0; e <= 3; ++e) {
            for (int64_t f = e; f <= 3; ++f) {
              const Box inner = {{a, b}, {c, d}, {e, f}};
              std::vector<int64_t> wanted, seen;
              for (const auto& index : Elements(inner)) wanted.push_back(number.at(index));
              const std::vector<ElementRange> ranges = RangesOfBox(box, inner);
              for (const ElementRange& range : ranges) {
                for (int64_t i = 0; i < range.count; ++i) seen.push_back(range.first + i);
              }
              EXPECT_EQ(seen, wanted);
              size_t runs = wanted.empty() ? 0 : 1;
              for (size_t i = 1; i < wanted.size(); ++i) runs += wanted[i] == wanted[i - 1] + 1 ? 0 : 1;
              EXPECT_LE(ranges.size(), std::max<size_t>(runs, static_cast<size_t>((b - a) * (d - c))));
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(RangesOfBox({}, {}).size(), 1u);
}

}  // namespace
}  // namespace tessera
