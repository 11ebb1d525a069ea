#include "schemas/types/assignment.h"

#include <algorithm>
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

// How many columns of a class each group gets is all that matters, and the next one of them never adds more than the
// one before: the first adds the weight, and as many as have their own number in the group are worth a stay. So it is a
// transport from classes to groups with concave gains. Column after column is placed on the shortest path, which moves
// others on its way from group to group.
class GroupedAssignment {
 public:
  GroupedAssignment(const std::vector<int>& group_of_row, const std::vector<int>& class_of_column,
                    const std::vector<std::vector<int64_t>>& weights)
      : group_of_row_(group_of_row),
        class_of_column_(class_of_column),
        weights_(weights),
        size_(static_cast<int>(group_of_row.size())),
        groups_(static_cast<int>(weights.size())),
        sink_(groups_ + static_cast<int>(weights[0].size())),
        room_(weights.size(), 0),
        own_(weights.size(), std::vector<int>(weights[0].size(), 0)),
        placed_(own_),
        price_(static_cast<size_t>(sink_) + 1, 0) {
    for (int i = 0; i < size_; ++i) {
      ++room_[group_of_row[i]];
      ++own_[group_of_row[i]][class_of_column[i]];
    }
    // No arc costs less than nothing when it is reckoned with these.
    for (const std::vector<int64_t>& of_group : weights) {
      const Wide most = Wide{*std::max_element(of_group.begin(), of_group.end())} * (size_ + 1) + 1;
      price_[sink_] = std::min(price_[sink_], -most);
    }
    std::fill_n(price_.begin(), groups_, price_[sink_]);
  }

  std::vector<int> Run() {
    for (const int of_class : class_of_column_) Place(groups_ + of_class);
    return Columns();
  }

 private:
  // The nodes are the groups, the classes, and a sink beyond the groups that have room.
  struct Reached {
    Wide distance = kFar;
    int from = kNone;
    bool done = false;
  };

  // The gain of a group by the nth column of a class.
  Wide Gain(int group, int of_class, int nth) const {
    const Wide once = nth == 1 ? Wide{weights_[group][of_class]} * (size_ + 1) : 0;
    return once + (nth <= own_[group][of_class] ? 1 : 0);
  }

  void Place(int start) {
    std::vector<Reached> reached(price_.size());
    reached[start].distance = 0;
    const auto is_nearer = [](const Reached& a, const Reached& b) {
      return a.done != b.done ? b.done : a.distance < b.distance;
    };
    for (int node = start; reached[node].distance < reached[sink_].distance;) {
      reached[node].done = true;
      LookBeyond(node, reached);
      node = static_cast<int>(std::min_element(reached.begin(), reached.end(), is_nearer) - reached.begin());
    }
    for (size_t node = 0; node < reached.size(); ++node) {
      if (reached[node].done) price_[node] += reached[node].distance - reached[sink_].distance;
    }
    for (int node = sink_; node != start; node = reached[node].from) Take(reached[node].from, node);
  }

  void LookBeyond(int node, std::vector<Reached>& reached) const {
    const auto look = [&](int next, Wide cost) {
      const Wide distance = reached[node].distance + cost + price_[node] - price_[next];
      if (distance < reached[next].distance) reached[next] = {distance, node};
    };
    if (node >= groups_) {
      const int of_class = node - groups_;
      for (int group = 0; group < groups_; ++group) look(group, -Gain(group, of_class, placed_[group][of_class] + 1));
      return;
    }
    if (room_[node] > 0) look(sink_, 0);
    for (int of_class = 0; of_class < sink_ - groups_; ++of_class) {
      const int placed = placed_[node][of_class];
      if (placed > 0) look(groups_ + of_class, Gain(node, of_class, placed));
    }
  }

  void Take(int from, int to) {
    if (to == sink_) {
      --room_[from];
    } else if (to < groups_) {
      ++placed_[to][from - groups_];
    } else {
      --placed_[from][to - groups_];
    }
  }

  // Columns stay where their class has a place in their group; the others fill the rows that are left.
  std::vector<int> Columns() {
    std::vector<int> columns(group_of_row_.size(), kNone);
    std::vector<bool> taken(group_of_row_.size(), false);
    const auto try_pair = [&](int row, int column) {
      int& left = placed_[group_of_row_[row]][class_of_column_[column]];
      if (left == 0 || columns[row] != kNone || taken[column]) return;
      --left;
      columns[row] = column;
      taken[column] = true;
    };
    for (int i = 0; i < size_; ++i) try_pair(i, i);
    for (int row = 0; row < size_; ++row) {
      for (int column = 0; column < size_; ++column) try_pair(row, column);
    }
    return columns;
  }

  const std::vector<int>& group_of_row_;
  const std::vector<int>& class_of_column_;
  const std::vector<std::vector<int64_t>>& weights_;
  const int size_;
  const int groups_;
  const int sink_;
  std::vector<int> room_;                 // by group: rows without a column
  std::vector<std::vector<int>> own_;     // by group and class: columns whose own number is in the group
  std::vector<std::vector<int>> placed_;  // by group and class
  std::vector<Wide> price_;               // by node
};

}  // namespace

std::vector<int> AssignRows(const std::vector<std::vector<int64_t>>& weights) {
  return SingleAssignment(weights).Run();
}

std::vector<int> AssignGroupedRows(const std::vector<int>& group_of_row, const std::vector<int>& class_of_column,
                                   const std::vector<std::vector<int64_t>>& weights) {
  if (group_of_row.empty()) return {};
  return GroupedAssignment(group_of_row, class_of_column, weights).Run();
}

}  // namespace tessera
