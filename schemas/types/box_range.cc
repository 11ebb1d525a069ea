#include "schemas/types/box_range.h"

namespace tessera {
namespace {

// Elements [begin, end) of the box whose dims from `d` on are free, the ones before being those of `within`.
void AddBoxesOfRange(const Box& box, size_t d, int64_t begin, int64_t end, Box& within, std::vector<Box>& boxes) {
  if (begin >= end) return;
  if (d == box.size()) {
    boxes.push_back(within);
    return;
  }
  int64_t row = 1;
  for (size_t e = d + 1; e < box.size(); ++e) row *= box[e].stop - box[e].start;
  const auto add_part_of_row = [&](int64_t from, int64_t to) {
    const int64_t i = from / row;
    within[d] = {box[d].start + i, box[d].start + i + 1};
    AddBoxesOfRange(box, d + 1, from - i * row, to - i * row, within, boxes);
    within[d] = box[d];
  };
  if (begin / row == (end - 1) / row && end - begin < row) return add_part_of_row(begin, end);
  const int64_t first_whole = (begin + row - 1) / row * row;
  if (begin < first_whole) add_part_of_row(begin, first_whole);
  const int64_t last_whole = end / row * row;
  if (first_whole < last_whole) {
    within[d] = {box[d].start + first_whole / row, box[d].start + last_whole / row};
    boxes.push_back(within);
    within[d] = box[d];
  }
  if (last_whole < end) add_part_of_row(last_whole, end);
}

}  // namespace

std::vector<Box> BoxesOfRange(const Box& box, int64_t first, int64_t count) {
  std::vector<Box> boxes;
  Box within = box;
  AddBoxesOfRange(box, 0, first, first + count, within, boxes);
  return boxes;
}

std::vector<ElementRange> RangesOfBox(const Box& box, const Box& inner) {
  if (IsEmpty(inner)) return {};
  // Behind `whole` the inner box has all of the box: a run of those dims, and of one before, is without a gap.
  size_t whole = box.size();
  while (whole > 0 && inner[whole - 1] == box[whole - 1]) --whole;
  const size_t outer = whole == 0 ? 0 : whole - 1;
  std::vector<int64_t> row(box.size() + 1, 1);  // elements of one index of the dim before
  for (size_t d = box.size(); d-- > 0;) row[d] = row[d + 1] * (box[d].stop - box[d].start);
  const int64_t run = (whole == 0 ? 1 : inner[outer].stop - inner[outer].start) * row[whole];
  std::vector<ElementRange> ranges;
  std::vector<int64_t> index(outer);
  for (size_t d = 0; d < outer; ++d) index[d] = inner[d].start;
  for (;;) {
    int64_t first = whole == 0 ? 0 : (inner[outer].start - box[outer].start) * row[whole];
    for (size_t d = 0; d < outer; ++d) first += (index[d] - box[d].start) * row[d + 1];
    ranges.push_back({first, run});
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == inner[d - 1].stop) {
      index[d - 1] = inner[d - 1].start;
      --d;
    }
    if (d == 0) return ranges;
  }
}

}  // namespace tessera
