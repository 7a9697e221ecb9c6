// The header of NumPy's .npy and what follows it, for files and for the members of an .npz.
#pragma once

#include <cstdint>

#include "base/shape.h"
#include "base/tensor.h"
#include "runtime/train/data/format/byte_reader.h"

namespace halfnote {

struct NpyHeader {
  DType dtype = DType::kUndefined;
  bool fortran_order = false;
  Shape shape;
  uint64_t bytes = 0;        // of the elements
  uint64_t data_offset = 0;  // from the start of the file
};

/// Reads up to the first element. The grammar is strict: a Python literal with exactly the keys
/// descr, fortran_order and shape. Throws Error(kData) for anything else, and for element types
/// that training cannot use.
NpyHeader read_npy_header(ByteReader& from);

/// The elements behind the header, in C order, and nothing after them.
Tensor read_npy_elements(ByteReader& from, const NpyHeader& header);

/// Throws Error(kData) if an element of a bool tensor is neither 0 nor 1.
void check_bools(const Tensor& tensor, const std::string& path);

}  // namespace halfnote
