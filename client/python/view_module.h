#pragma once

// Views. In NumPy `x[0]`, `x.T` and `x.reshape(-1)` share memory with x, and a write into one shows in the other. Here
// each has elements of its own, so a write into a view would be lost. It is refused, while another tensor is there that
// would have shown it: the one that the view was made of, or another view of that.
//
//   y = x[0]            // x and y share a SharedElements, and y has a View {index, 0}
//   y += 1              // refused: x is there
//   x[0] += 1           // the index gives a view that nobody keeps: it is written, and then put into x
//   x = x.reshape(-1)   // the former x is gone: the new one may be written into
//
// Nothing here is thread-safe but by the interpreter lock.

#include <memory>

#include "client/python/convert.h"

namespace tessera::python {

// How a view was made.
struct View {
  std::shared_ptr<const View> base;  // of what it was made of; null: that is no view
  OpId op;                           // kSlice of an index
  nb::object key;                    // the index; of another op its attributes
};

// Whether NumPy's function of that name makes a view.
bool MakesView(OpId op);
void MarkView(PyTensor& base, OpId op, nb::object key, PyTensor& view);
// Before a tensor becomes another one by an op, or (kElement) by x[key] = v: raises where the write would be lost.
enum class Write : uint8_t { kWhole = 0, kElement = 1 };
void CheckWrite(nb::handle self, std::string_view op, Write write, nb::handle key);

void DefineViews(nb::class_<PyTensor>& tensor);

}  // namespace tessera::python
