#pragma once

// Views, as NumPy has them: `x[0]`, `x.T` and `x.reshape(-1)` share elements with x. Each view has a tensor of its own
// on the workers. A write into it is one `x[key] = v` into x, too, and a read of a view whose x was written takes it
// anew.
//
//   y = x[0]            // x and y share a SharedElements, and y has a View {index, 0}
//   y += 1              // x[0] = y
//   x *= 2              // y is x[0] again when somebody reads it
//   x[0] += 1           // the index gives a view that nobody keeps: the statement itself puts it into x
//   x = x.reshape(-1)   // the former x is gone: the new one shows nobody's elements
//
// Where NumPy copies (x[mask], x.T.reshape(-1)), so does the tensor. ts.broadcast_to(x) and ts.diagonal(x) are
// read-only. Nothing here is thread-safe but by the interpreter lock.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "client/basic_index.h"
#include "client/python/convert.h"
#include "client/python/numpy_strides.h"

namespace tessera::python {

// One step from a tensor to its view.
struct View {
  std::shared_ptr<const View> base;  // of the tensor that the step begins at; null: that one has the elements
  std::variant<IndexKeys, Shape, OpCall> step;  // x[keys], x.reshape(shape), or an op of one operand
  nb::object key;                               // as the program wrote the index
};

// The elements that a tensor and its views share.
struct SharedElements {
  PyTensor* root = nullptr;    // whose they are; null when it is gone
  std::optional<Tensor> kept;  // the root's value then, where several views are left, or one that hasn't read a write
  std::optional<NumPyStrides> strides;  // of the root; nothing where its shape waits for values
  uint64_t writes = 0;
  std::vector<nb::object> awaited;  // what gives elements that are being received; each goes once it has
};

struct Shown {
  std::shared_ptr<SharedElements> elements;  // the root and each view have a reference
  std::shared_ptr<const View> view;          // null: the root
  uint64_t seen = 0;                         // writes that the value has
};

// `view` is the result of `base`, an object of Python's, for an index, a shape, or an op whose result NumPy has as a
// view.
void MarkIndex(PyTensor& base, IndexKeys keys, nb::object key, PyTensor& view);
void MarkReshape(PyTensor& base, const Shape& shape, PyTensor& view);
void MarkOp(PyTensor& base, const OpCall& call, size_t number, PyTensor& view);  // number: of the op's results
bool MakesView(OpId op);

// Whether the statement that writes the whole of a view puts the result where it belongs: nobody else has the view of
// `x[0] += 1`.
bool IsPutByStatement(nb::handle self);
// InvalidArgument for a view that is read-only. `key`: of the item that is written, else None.
void CheckWritable(nb::handle self, std::string_view op, nb::handle key);
// The value of the tensor whose elements `view` shows, when the view becomes `value`. Nothing: it shows nobody's.
std::optional<Tensor> RootWith(const PyTensor& view, const Tensor& value);

// `take` is called before anybody reads the tensor, or what shares its elements, until ForgetAwaited: it writes them.
void Await(PyTensor& tensor, nb::object take);
void ForgetAwaited(PyTensor& tensor, nb::handle take);

void DefineViews(nb::class_<PyTensor>& tensor);

}  // namespace tessera::python
