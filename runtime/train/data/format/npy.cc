#include "runtime/train/data/format/npy.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/system/mapped_files.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote {
namespace {

/// Fortran order is C order of the reversed dims: walks the target in C order and gathers.
Tensor from_fortran(const Tensor& source, const Shape& shape) {
  Tensor result(source.dtype(), shape);
  if (result.size() == 0) return result;
  const size_t width = size_of(source.dtype());
  const size_t rank = shape.size();
  Shape strides(rank, 1), index(rank, 0);
  for (size_t i = 1; i < rank; ++i) strides[i] = strides[i - 1] * shape[i - 1];
  std::byte* to = result.mutable_bytes();
  int64_t from = 0;
  for (int64_t element = 0; element < result.size(); ++element, to += width) {
    std::memcpy(to, source.bytes() + static_cast<size_t>(from) * width, width);
    for (size_t axis = rank; axis-- > 0;) {
      from += strides[axis];
      if (++index[axis] < shape[axis]) break;
      from -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
  return result;
}

void check_file_size(const std::string& path, const NpyHeader& header, uint64_t size) {
  const uint64_t want = header.data_offset + header.bytes;
  if (size == want) return;
  throw Error(ErrorCode::kData,
              size < want ? "the .npy file is truncated" : "more bytes follow the .npy array")
      .at({path, {}, {}})
      .expected(fmt::format("{} bytes for shape {}", want, to_string(header.shape)),
                std::to_string(size));
}

void check_budget(const std::string& path, uint64_t bytes, const DataLimits& limits) {
  const uint64_t budget = memory_budget(limits);
  if (bytes <= budget) return;
  throw Error(ErrorCode::kMemory, "the array does not fit into memory")
      .at({path, {}, {}})
      .expected(fmt::format("at most {} bytes", budget), std::to_string(bytes))
      .hint("an array in C order, aligned as NumPy does it, is mapped instead of copied");
}

}  // namespace

void check_bools(const Tensor& tensor, const std::string& path) {
  if (tensor.dtype() != DType::kBool) return;
  for (size_t i = 0; i < tensor.byte_size(); ++i) {
    if (tensor.bytes()[i] <= std::byte{1}) continue;
    throw Error(ErrorCode::kData, fmt::format("element {} of a bool array is neither 0 nor 1", i))
        .at({path, {}, {}})
        .expected("0 or 1", std::to_string(static_cast<int>(tensor.bytes()[i])));
  }
}

Tensor read_npy_elements(ByteReader& from, const NpyHeader& header) {
  Tensor tensor(header.dtype, header.shape);
  from.read_exact({tensor.mutable_bytes(), tensor.byte_size()},
                  "the array of shape " + to_string(header.shape));
  from.expect_end("the array");
  check_bools(tensor, from.path());
  return header.fortran_order && header.shape.size() > 1 ? from_fortran(tensor, header.shape)
                                                         : tensor;
}

Tensor read_npy(const std::string& path, const DataLimits& limits) {
  const MappedFile file(path);
  MemoryReader reader(path, file.bytes());
  const NpyHeader header = read_npy_header(reader);
  check_file_size(path, header, file.bytes().size());
  // A map of a small file would be in memory soon, but nobody would know when.
  const bool converted = header.fortran_order && header.shape.size() > 1;
  if (converted || header.bytes < kLargeFile || header.data_offset % size_of(header.dtype) != 0) {
    check_budget(path, header.bytes, limits);
    return read_npy_elements(reader, header);
  }
  std::shared_ptr<const std::byte> elements(file.share(), file.bytes().data() + header.data_offset);
  Tensor tensor(header.dtype, header.shape, std::move(elements), header.bytes);
  check_bools(tensor, path);
  return tensor;
}

}  // namespace halfnote
