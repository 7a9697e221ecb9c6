// TensorProto to Tensor: find where the elements are (raw_data, one of five typed lists, or an
// external file), check that type, dims and data agree, and share or convert them.
#include "compiler/onnx/proto/tensor.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "compiler/onnx/proto/wire.h"
#include "compiler/onnx/read/external_data.h"

namespace halfnote::proto {
namespace {

static_assert(std::endian::native == std::endian::little, "raw_data is little-endian");

constexpr DType kLowBitTypes[] = {DType::kU4, DType::kI4, DType::kF4E2M1, DType::kU2, DType::kI2};

bool is_low_bit(DType dtype) {
  return std::find(std::begin(kLowBitTypes), std::end(kLowBitTypes), dtype) !=
         std::end(kLowBitTypes);
}

std::string describe(DType dtype, const Shape& shape) {
  return std::string(short_name(dtype)) + to_string(std::span<const int64_t>(shape));
}

Shape read_dims(const onnx::TensorProto& proto, const ImportLimits& limits) {
  if (proto.dims_size() > limits.rank) {
    throw Error(ErrorCode::kModel, "the rank of a tensor is over the limit")
        .expected("at most " + std::to_string(limits.rank), std::to_string(proto.dims_size()));
  }
  Shape shape(proto.dims().begin(), proto.dims().end());
  for (int64_t dim : shape) {
    if (dim > limits.dim) {
      throw Error(ErrorCode::kModel, "the size of a dim is over the limit")
          .expected("at most " + std::to_string(limits.dim), std::to_string(dim));
    }
    if (dim < 0) {
      throw Error(ErrorCode::kModel, "bad dim of a tensor")
          .expected("0 to " + std::to_string(limits.dim), std::to_string(dim));
    }
  }
  if (element_count(shape) > limits.elements) {
    throw Error(ErrorCode::kModel, "the size of a tensor is over the limit")
        .expected("at most " + std::to_string(limits.elements) + " elements",
                  std::to_string(element_count(shape)));
  }
  return shape;
}

void check_count(const char* field, DType dtype, const Shape& shape, uint64_t want, uint64_t got) {
  if (want == got) return;
  throw Error(ErrorCode::kModel, std::string(field) + " has the wrong size")
      .expected(std::to_string(want) + " for " + describe(dtype, shape), std::to_string(got));
}

/// Values of `bool` other than 0 and 1 are not C++ booleans.
void check_bools(const std::byte* bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::to_integer<int>(bytes[i]) > 1) {
      throw Error(ErrorCode::kModel, "bad element of a bool tensor")
          .expected("0 or 1", std::to_string(std::to_integer<int>(bytes[i])));
    }
  }
}

/// Takes the elements apart, several a byte, the first in the low bits; signed ones are
/// sign-extended.
Tensor unpack_bits(DType dtype, Shape shape, const std::byte* packed, TensorSource& source) {
  const int bits = bits_of(dtype);
  const bool is_signed = dtype == DType::kI4 || dtype == DType::kI2;
  source.spend(static_cast<uint64_t>(element_count(shape)));
  Tensor tensor(dtype, std::move(shape));
  std::byte* to = tensor.mutable_bytes();
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const int64_t bit = i * bits;
    int value = std::to_integer<int>(packed[bit / 8]) >> (bit % 8) & ((1 << bits) - 1);
    if (is_signed && value >= 1 << (bits - 1)) value -= 1 << bits;
    to[i] = static_cast<std::byte>(value);
  }
  return tensor;
}

Tensor copy_of(DType dtype, Shape shape, const std::byte* bytes, uint64_t size,
               TensorSource& source) {
  source.spend(size);
  Tensor tensor(dtype, std::move(shape));
  if (size > 0) std::memcpy(tensor.mutable_bytes(), bytes, size);
  return tensor;
}

/// A tensor over bytes that `owner` keeps alive; copied only when they are not aligned.
Tensor share(DType dtype, Shape shape, std::shared_ptr<const std::byte> bytes, uint64_t size,
             TensorSource& source) {
  if (is_low_bit(dtype)) return unpack_bits(dtype, std::move(shape), bytes.get(), source);
  if (dtype == DType::kBool) check_bools(bytes.get(), static_cast<int64_t>(size));
  const size_t unit = std::min<size_t>(size_of(dtype), alignof(std::max_align_t));
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.get()) % unit == 0;
  if (!aligned || size == 0) return copy_of(dtype, std::move(shape), bytes.get(), size, source);
  return Tensor(dtype, std::move(shape), std::move(bytes), size);
}

Tensor read_raw(const onnx::TensorProto& proto, DType dtype, Shape shape, TensorSource& source) {
  const uint64_t want = raw_size(dtype, element_count(shape));
  if (source.file == nullptr) {
    check_count("raw_data", dtype, shape, want, proto.raw_data().size());
    const auto* bytes = reinterpret_cast<const std::byte*>(proto.raw_data().data());
    if (is_low_bit(dtype)) return unpack_bits(dtype, std::move(shape), bytes, source);
    if (dtype == DType::kBool) check_bools(bytes, static_cast<int64_t>(want));
    return copy_of(dtype, std::move(shape), bytes, want, source);
  }
  const RawToken token = decode_token(proto.raw_data());
  check_count("raw_data", dtype, shape, want, token.size);
  return share(dtype, std::move(shape), {source.file, source.file.get() + token.place}, want,
               source);
}

Tensor read_external(const onnx::TensorProto& proto, DType dtype, Shape shape,
                     TensorSource& source) {
  if (source.external == nullptr) {
    throw Error(ErrorCode::kModel, "external data where the folder of the model is not known")
        .hint("read the model from its file");
  }
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto& entry : proto.external_data()) entries.emplace_back(entry.key(), entry.value());
  const uint64_t want = raw_size(dtype, element_count(shape));
  auto bytes = source.external->open(parse_external_entry(entries), want, source);
  return share(dtype, std::move(shape), std::move(bytes), want, source);
}

template <class To, class List>
Tensor convert_list(const char* field, DType dtype, Shape shape, const List& list,
                    TensorSource& source) {
  check_count(field, dtype, shape, static_cast<uint64_t>(element_count(shape)),
              static_cast<uint64_t>(list.size()));
  source.spend(static_cast<uint64_t>(list.size()) * sizeof(To));
  Tensor tensor(dtype, std::move(shape));
  auto* to = reinterpret_cast<To*>(tensor.mutable_bytes());
  int64_t index = 0;
  for (const auto number : list) {
    if (!std::in_range<To>(number)) {
      throw Error(ErrorCode::kModel, std::string("an element of ") + field + " is out of range")
          .expected("a value of " + std::string(short_name(dtype)), std::to_string(number));
    }
    to[index++] = static_cast<To>(number);
  }
  return tensor;
}

/// Bit patterns of 16- and 8-bit types; 16-bit ones may also come sign-extended.
Tensor read_patterns(const onnx::TensorProto& proto, DType dtype, Shape shape,
                     TensorSource& source) {
  if (size_of(dtype) == 1) {
    return convert_list<uint8_t>("int32_data", dtype, std::move(shape), proto.int32_data(), source);
  }
  std::vector<int32_t> bits(proto.int32_data().begin(), proto.int32_data().end());
  for (int32_t& pattern : bits) {
    if (pattern < 0 && pattern >= -0x8000) pattern += 0x10000;
  }
  return convert_list<uint16_t>("int32_data", dtype, std::move(shape), bits, source);
}

Tensor read_packed_list(const onnx::TensorProto& proto, DType dtype, Shape shape,
                        TensorSource& source) {
  check_count("int32_data", dtype, shape, raw_size(dtype, element_count(shape)),
              static_cast<uint64_t>(proto.int32_data_size()));
  std::vector<std::byte> bytes;
  for (int32_t number : proto.int32_data()) {
    if (number < -128 || number > 255) {
      throw Error(ErrorCode::kModel, "an element of int32_data is out of range")
          .expected("a byte of packed " + std::string(short_name(dtype)), std::to_string(number));
    }
    bytes.push_back(static_cast<std::byte>(number));
  }
  return unpack_bits(dtype, std::move(shape), bytes.data(), source);
}

template <class List>
Tensor copy_list(const char* field, DType dtype, Shape shape, const List& list,
                 uint64_t per_element, TensorSource& source) {
  const auto count = static_cast<uint64_t>(element_count(shape)) * per_element;
  check_count(field, dtype, shape, count, static_cast<uint64_t>(list.size()));
  return copy_of(dtype, std::move(shape), reinterpret_cast<const std::byte*>(list.data()),
                 count * sizeof(*list.data()), source);
}

Tensor read_strings(const onnx::TensorProto& proto, Shape shape) {
  check_count("string_data", DType::kString, shape, static_cast<uint64_t>(element_count(shape)),
              static_cast<uint64_t>(proto.string_data_size()));
  return Tensor::strings(std::move(shape),
                         {proto.string_data().begin(), proto.string_data().end()});
}

Tensor read_typed(const onnx::TensorProto& proto, DType dtype, Shape shape, TensorSource& source) {
  switch (dtype) {
    case DType::kF32:
      return copy_list("float_data", dtype, std::move(shape), proto.float_data(), 1, source);
    case DType::kC64:
      return copy_list("float_data", dtype, std::move(shape), proto.float_data(), 2, source);
    case DType::kF64:
      return copy_list("double_data", dtype, std::move(shape), proto.double_data(), 1, source);
    case DType::kC128:
      return copy_list("double_data", dtype, std::move(shape), proto.double_data(), 2, source);
    case DType::kI64:
      return copy_list("int64_data", dtype, std::move(shape), proto.int64_data(), 1, source);
    case DType::kI32:
      return copy_list("int32_data", dtype, std::move(shape), proto.int32_data(), 1, source);
    case DType::kU64:
      return copy_list("uint64_data", dtype, std::move(shape), proto.uint64_data(), 1, source);
    case DType::kU32:
      return convert_list<uint32_t>("uint64_data", dtype, std::move(shape), proto.uint64_data(),
                                    source);
    case DType::kI16:
      return convert_list<int16_t>("int32_data", dtype, std::move(shape), proto.int32_data(),
                                   source);
    case DType::kU16:
      return convert_list<uint16_t>("int32_data", dtype, std::move(shape), proto.int32_data(),
                                    source);
    case DType::kI8:
      return convert_list<int8_t>("int32_data", dtype, std::move(shape), proto.int32_data(),
                                  source);
    case DType::kU8:
      return convert_list<uint8_t>("int32_data", dtype, std::move(shape), proto.int32_data(),
                                   source);
    case DType::kBool: {
      Tensor tensor =
          convert_list<uint8_t>("int32_data", dtype, std::move(shape), proto.int32_data(), source);
      check_bools(tensor.bytes(), tensor.size());
      return tensor;
    }
    default:
      break;
  }
  if (is_low_bit(dtype)) return read_packed_list(proto, dtype, std::move(shape), source);
  return read_patterns(proto, dtype, std::move(shape), source);
}

int count_encodings(const onnx::TensorProto& proto) {
  return (proto.float_data_size() > 0) + (proto.int32_data_size() > 0) +
         (proto.string_data_size() > 0) + (proto.int64_data_size() > 0) +
         (proto.double_data_size() > 0) + (proto.uint64_data_size() > 0) +
         (proto.has_raw_data() ? 1 : 0);
}

/// Position of non-zero `k`, given as one linear index or one index per axis.
int64_t linear_index(const Tensor& indices, int64_t k, const Shape& shape, const Shape& strides) {
  int64_t linear = 0;
  const bool flat = indices.shape().size() == 1;
  const auto axes = flat ? int64_t{1} : static_cast<int64_t>(shape.size());
  for (int64_t axis = 0; axis < axes; ++axis) {
    const int64_t index = indices.data<int64_t>()[static_cast<size_t>(k * axes + axis)];
    const int64_t bound = flat ? element_count(shape) : shape[static_cast<size_t>(axis)];
    if (index < 0 || index >= bound) {
      throw Error(ErrorCode::kModel, "an index of a sparse tensor is out of range")
          .expected("0 to " + std::to_string(bound - 1), std::to_string(index));
    }
    linear += flat ? index : index * strides[static_cast<size_t>(axis)];
  }
  return linear;
}

void check_sparse_parts(const Tensor& values, const Tensor& indices, const Shape& shape) {
  const int64_t count = values.size();
  const Shape flat = {count}, full = {count, static_cast<int64_t>(shape.size())};
  const bool fits =
      indices.dtype() == DType::kI64 && (indices.shape() == flat || indices.shape() == full);
  if (values.shape().size() == 1 && fits && values.dtype() != DType::kString) return;
  throw Error(ErrorCode::kModel, "the parts of a sparse tensor do not fit")
      .expected("n numeric values and i64 indices of shape [n] or [n, rank]",
                describe(values.dtype(), values.shape()) + " and " +
                    describe(indices.dtype(), indices.shape()));
}

}  // namespace

void TensorSource::spend(uint64_t bytes) {
  const uint64_t budget = memory_limit(limits);
  if (bytes > budget || copied > budget - bytes) {
    throw Error(ErrorCode::kModel, "the tensors that must be copied are over the limit")
        .expected("at most " + std::to_string(budget) + " bytes", "more");
  }
  copied += bytes;
}

bool is_raw_in_memory(DType dtype) { return dtype != DType::kString && !is_low_bit(dtype); }

uint64_t raw_size(DType dtype, int64_t elements) {
  const auto bits = is_low_bit(dtype) ? bits_of(dtype) : 8 * static_cast<int64_t>(size_of(dtype));
  return (static_cast<uint64_t>(checked_mul(elements, bits)) + 7) / 8;
}

std::string pack_bits(const Tensor& tensor) {
  const int bits = bits_of(tensor.dtype());
  std::string packed(raw_size(tensor.dtype(), tensor.size()), '\0');
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const int64_t bit = i * bits;
    const int value = std::to_integer<int>(tensor.bytes()[i]) & ((1 << bits) - 1);
    char& byte = packed[static_cast<size_t>(bit / 8)];
    byte = static_cast<char>(byte | value << (bit % 8));
  }
  return packed;
}

Tensor read_tensor(const onnx::TensorProto& proto, TensorSource& source) {
  const auto dtype = dtype_from_onnx(proto.data_type());
  if (!dtype) {
    throw Error(ErrorCode::kModel, "unknown element type of a tensor")
        .expected("an ONNX data type, 1 to " + std::to_string(kDTypeCount - 1),
                  std::to_string(proto.data_type()));
  }
  if (proto.has_segment()) {
    throw Error(ErrorCode::kUnsupported, "tensors in segments are not supported");
  }
  Shape shape = read_dims(proto, source.limits);
  const int encodings = count_encodings(proto);
  const bool external = proto.data_location() == onnx::TensorProto::EXTERNAL;
  if (encodings > 1 || (external && encodings > 0)) {
    throw Error(ErrorCode::kModel, "a tensor holds its data more than once")
        .expected("one of raw_data, a typed list and external data", "several");
  }
  if (*dtype == DType::kString && (external || proto.has_raw_data())) {
    throw Error(ErrorCode::kModel, "strings may only stand in string_data");
  }
  if (external) return read_external(proto, *dtype, std::move(shape), source);
  if (proto.has_raw_data()) return read_raw(proto, *dtype, std::move(shape), source);
  if (*dtype == DType::kString) return read_strings(proto, std::move(shape));
  return read_typed(proto, *dtype, std::move(shape), source);
}

Tensor read_sparse(const onnx::SparseTensorProto& proto, TensorSource& source) {
  const Tensor values = read_tensor(proto.values(), source);
  const Tensor indices = read_tensor(proto.indices(), source);
  onnx::TensorProto header;
  *header.mutable_dims() = proto.dims();
  const Shape shape = read_dims(header, source.limits);
  check_sparse_parts(values, indices, shape);
  if (element_count(shape) > source.limits.sparse_elements) {
    throw Error(ErrorCode::kModel, "a sparse tensor is too large to be made dense")
        .expected("at most " + std::to_string(source.limits.sparse_elements) + " elements",
                  std::to_string(element_count(shape)));
  }
  // Zeros take no room until somebody writes them: nothing is copied.
  const uint64_t bytes = static_cast<uint64_t>(element_count(shape)) * size_of(values.dtype());
  if (values.size() > 0) source.spend(bytes);
  Tensor dense(values.dtype(), shape);
  if (values.size() == 0) return dense;
  const Shape strides = strides_of(shape);
  const size_t unit = size_of(values.dtype());
  std::byte* to = dense.mutable_bytes();
  std::vector<bool> seen(static_cast<size_t>(dense.size()));
  for (int64_t k = 0; k < values.size(); ++k) {
    const auto at = static_cast<size_t>(linear_index(indices, k, shape, strides));
    if (seen[at]) {
      throw Error(ErrorCode::kModel, "an index of a sparse tensor stands twice")
          .expected("each element once", "two values for element " + std::to_string(at));
    }
    seen[at] = true;
    std::memcpy(to + at * unit, values.bytes() + static_cast<size_t>(k) * unit, unit);
  }
  return dense;
}

void write_sparse_zeros(const Tensor& tensor, const std::string& name,
                        onnx::SparseTensorProto& to) {
  to.mutable_values()->set_name(name);
  to.mutable_values()->set_data_type(static_cast<int>(tensor.dtype()));
  to.mutable_values()->add_dims(0);
  to.mutable_indices()->set_data_type(onnx::TensorProto::INT64);
  to.mutable_indices()->add_dims(0);
  for (int64_t dim : tensor.shape()) to.add_dims(dim);
}

void write_tensor_header(const Tensor& tensor, const std::string& name, onnx::TensorProto& to) {
  to.set_data_type(static_cast<int>(tensor.dtype()));
  for (int64_t dim : tensor.shape()) to.add_dims(dim);
  if (!name.empty()) to.set_name(name);
}

void write_tensor(const Tensor& tensor, const std::string& name, onnx::TensorProto& to) {
  write_tensor_header(tensor, name, to);
  if (tensor.dtype() == DType::kString) {
    for (const std::string& text : tensor.string_data()) to.add_string_data(text);
  } else if (is_raw_in_memory(tensor.dtype())) {
    to.set_raw_data(tensor.bytes(), tensor.byte_size());
  } else {
    to.set_raw_data(pack_bits(tensor));
  }
}

}  // namespace halfnote::proto
