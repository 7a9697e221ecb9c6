// TensorProto and SparseTensorProto to Tensor and back, every encoding that ONNX has.
//
// Bytes of raw_data are never copied when they can be shared: after `strip_raw_data` (wire.h) a
// raw_data field holds a token that says where in the mapped file the bytes are, and the Tensor
// shares the mapping. They are copied once where their place in the file is not aligned to the
// element type.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/tensor.h"
#include "compiler/ir/limits.h"

namespace onnx {
class TensorProto;
class SparseTensorProto;
}  // namespace onnx

namespace halfnote::proto {

class ExternalData;

/// Where the bytes of tensors come from, and how much of them may be copied.
struct TensorSource {
  std::shared_ptr<const std::byte>
      file;                          // raw_data holds tokens into it; null: raw_data is the bytes
  ExternalData* external = nullptr;  // null: external data is refused
  ImportLimits limits;
  uint64_t copied = 0;

  /// Counts bytes about to be copied; throws Error(kModel) over the budget.
  void spend(uint64_t bytes);
};

/// Throws Error(kModel) for a proto whose data does not fit its type and dims.
Tensor read_tensor(const onnx::TensorProto& proto, TensorSource& source);
/// The dense form.
Tensor read_sparse(const onnx::SparseTensorProto& proto, TensorSource& source);

/// A tensor of zeros, in the form that has no elements: it takes the room of its name and dims.
void write_sparse_zeros(const Tensor& tensor, const std::string& name, onnx::SparseTensorProto& to);

/// Type, dims and name; the caller fills in the data.
void write_tensor_header(const Tensor& tensor, const std::string& name, onnx::TensorProto& to);
/// The whole tensor, its data as raw_data (strings as string_data).
void write_tensor(const Tensor& tensor, const std::string& name, onnx::TensorProto& to);

/// Does raw_data hold this type as it is in memory? False for strings and for the types below 8
/// bits.
bool is_raw_in_memory(DType dtype);
/// Bytes of raw_data for so many elements.
uint64_t raw_size(DType dtype, int64_t elements);
/// The raw_data of a type below 8 bits: several elements a byte, the first in the low bits.
std::string pack_bits(const Tensor& tensor);

}  // namespace halfnote::proto
