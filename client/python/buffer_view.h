#pragma once

// BufferView: the memory of an object of Python that has a buffer, as NumPy's arrays have.

#include <nanobind/nanobind.h>

#include "client/host_memory.h"
#include "client/python/convert.h"

namespace tessera::python {

// A strided buffer of Python, held while it is read.
class BufferView {
 public:
  BufferView(nb::handle object, int dtype) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_STRIDED_RO) != 0) throw nb::python_error();
    view_.dtype = static_cast<DType>(dtype);
    view_.data = static_cast<const char*>(buffer_.buf);
    for (int d = 0; d < buffer_.ndim; ++d) {
      view_.shape.push_back(buffer_.shape[d]);
      view_.strides_bytes.push_back(buffer_.strides[d]);
    }
  }
  ~BufferView() { PyBuffer_Release(&buffer_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  const HostView& view() const { return view_; }

 private:
  Py_buffer buffer_{};
  HostView view_;
};

}  // namespace tessera::python
