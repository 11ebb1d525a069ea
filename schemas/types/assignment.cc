#include "schemas/types/assignment.h"

#include <cstddef>
#include <limits>

namespace tessera {
namespace {

__extension__ using Wide = __int128;  // weights times rows

constexpr int kNone = -1;
// Above every distance: those are below 2^63 times the rows times the nodes of a path.
constexpr Wide kFar = std::numeric_limits<int64_t>::max() * Wide{std::numeric_limits<int32_t>::max()};

// Shortest augmenting paths with potentials, row after row: O(n^3).
class SingleAssignment {
 public:
  explicit SingleAssignment(const std::vector<std::vector<int64_t>>& weights)
      : weights_(weights),
        size_(static_cast<int>(weights.size())),
        row_price_(weights.size(), 0),
        column_price_(weights.size(), 0),
        row_of_column_(weights.size(), kNone) {}

  std::vector<int> Run() {
    for (int row = 0; row < size_; ++row) Place(row);
    std::vector<int> columns(static_cast<size_t>(size_));
    for (int column = 0; column < size_; ++column) columns[At(row_of_column_[At(column)])] = column;
    return columns;
  }

 private:
  static size_t At(int index) { return static_cast<size_t>(index); }

  // Least is best. A row at its own number is worth less than any weight: ties go to those.
  Wide Cost(int row, int column) const {
    return -Wide{weights_[At(row)][At(column)]} * (size_ + 1) - (row == column ? 1 : 0);
  }

  void Place(int new_row) {
    std::vector<Wide> distance(At(size_), kFar);
    std::vector<int> previous(At(size_), kNone);  // column before, on the way from new_row
    std::vector<bool> done(At(size_), false);
    int row = new_row;
    int column = kNone;
    do {
      if (column != kNone) done[At(column)] = true;
      Wide nearest = kFar;
      int next = kNone;
      for (int c = 0; c < size_; ++c) {
        if (done[At(c)]) continue;
        const Wide reduced = Cost(row, c) - row_price_[At(row)] - column_price_[At(c)];
        if (reduced < distance[At(c)]) {
          distance[At(c)] = reduced;
          previous[At(c)] = column;
        }
        if (distance[At(c)] < nearest) {
          nearest = distance[At(c)];
          next = c;
        }
      }
      Reprice(new_row, done, nearest, distance);
      column = next;
      row = row_of_column_[At(column)];
    } while (row != kNone);
    while (column != kNone) {
      const int before = previous[At(column)];
      row_of_column_[At(column)] = before == kNone ? new_row : row_of_column_[At(before)];
      column = before;
    }
  }

  void Reprice(int new_row, const std::vector<bool>& done, Wide nearest, std::vector<Wide>& distance) {
    row_price_[At(new_row)] += nearest;
    for (int c = 0; c < size_; ++c) {
      if (done[At(c)]) {
        row_price_[At(row_of_column_[At(c)])] += nearest;
        column_price_[At(c)] -= nearest;
      } else {
        distance[At(c)] -= nearest;
      }
    }
  }

  const std::vector<std::vector<int64_t>>& weights_;
  const int size_;
  std::vector<Wide> row_price_;
  std::vector<Wide> column_price_;
  std::vector<int> row_of_column_;
};

}  // namespace

std::vector<int> AssignRows(const std::vector<std::vector<int64_t>>& weights) {
  return SingleAssignment(weights).Run();
}

}  // namespace tessera
