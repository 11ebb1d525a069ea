#pragma once

// KeptDescriptors: descriptors by which the kernel tells others that this process lives: pipes' write ends, and locks.
// A forked child lets go of its copies, so that only the process that opened them counts.

#include <mutex>
#include <set>

namespace tessera {

class KeptDescriptors {
 public:
  // Never destroyed: a fork may come after static objects are gone.
  static KeptDescriptors& Get();

  void Add(int fd);
  // Does nothing where a fork has closed it.
  void Close(int fd);

 private:
  KeptDescriptors();
  std::mutex mutex_;
  std::set<int> fds_;
};

// Another number for the descriptor, above those that a child's own table begins with; -1 where there is none.
int MoveUp(int fd);

}  // namespace tessera
