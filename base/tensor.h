// A dense tensor on the host: type, shape and shared bytes. Copies share the bytes, so an
// initializer is never copied by passing it on; whoever wants to write makes a new one.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/float16.h"
#include "base/shape.h"

namespace halfnote {

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kF64;
}
template <>
constexpr DType dtype_of<Half>() {
  return DType::kF16;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::kI8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kU8;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::kI16;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::kU16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::kU32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::kU64;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::kBool;
}

class Tensor {
 public:
  Tensor() = default;
  /// Zero-filled, 64-byte aligned.
  Tensor(DType dtype, Shape shape);
  /// Shares `bytes`, which must hold element_count(shape) elements; throws Error(kModel) if the
  /// sizes differ.
  Tensor(DType dtype, Shape shape, std::shared_ptr<const std::byte> bytes, size_t byte_size);
  static Tensor strings(Shape shape, std::vector<std::string> elements);
  template <class T>
  static Tensor of(Shape shape, std::span<const T> elements);
  template <class T>
  static Tensor of(Shape shape, std::initializer_list<T> elements) {
    return of<T>(std::move(shape), std::span<const T>(elements.begin(), elements.size()));
  }
  template <class T>
  static Tensor scalar(T value) {
    return of<T>({}, std::span<const T>(&value, 1));
  }
  /// A scalar of any numeric type, rounded to it.
  static Tensor scalar_of(DType dtype, double value);
  static Tensor full(DType dtype, Shape shape, double value);

  DType dtype() const { return content().dtype; }
  const Shape& shape() const { return content().shape; }
  int64_t size() const { return content().size; }
  size_t byte_size() const { return content().byte_size; }
  bool defined() const { return dtype() != DType::kUndefined; }
  const std::byte* bytes() const { return content().bytes.get(); }
  /// The shared storage, for a view that outlives this tensor.
  const std::shared_ptr<const std::byte>& storage() const { return content().bytes; }
  const std::vector<std::string>& string_data() const;

  /// The elements, read only. T must be the tensor's type (checked).
  template <class T>
  std::span<const T> data() const;
  /// The elements for writing; only for a tensor that shares its bytes with nobody (checked).
  template <class T>
  std::span<T> mutable_data();
  std::byte* mutable_bytes();

  /// Does nobody else hold this content or its bytes? Then they may be written.
  bool is_sole() const { return content_.use_count() == 1 && storage().use_count() == 1; }

  /// Element `index` as a double or integer, whatever the numeric type.
  double at_as_double(int64_t index) const;
  int64_t at_as_int(int64_t index) const;
  /// All elements of an integer tensor.
  std::vector<int64_t> to_ints() const;

  /// The same bytes under another shape of the same size.
  Tensor reshaped(Shape shape) const;
  /// A copy converted to another numeric type, rounded to nearest even (f64 straight to 16 bits).
  Tensor cast_to(DType to_type) const;
  Tensor deep_copy() const;

 private:
  struct Content {
    DType dtype = DType::kUndefined;
    Shape shape;
    int64_t size = 0;
    size_t byte_size = 0;
    std::shared_ptr<const std::byte> bytes;
    std::shared_ptr<const std::vector<std::string>> strings;
  };

  explicit Tensor(Content content) : content_(std::make_shared<Content>(std::move(content))) {}
  const Content& content() const { return content_ == nullptr ? kUndefined : *content_; }
  void check_access(DType dtype) const;

  static const Content kUndefined;

  std::shared_ptr<const Content> content_;  // most values of a graph are without a tensor
};

/// The element of a numeric type at `bytes` as a double.
double read_as_double(DType dtype, const std::byte* bytes);
/// Is every byte 0? No for strings and for a tensor without data.
bool all_zero(const Tensor& tensor);
/// Same type, shape and bytes (so NaN equals NaN, and 0 differs from -0).
bool identical(const Tensor& a, const Tensor& b);

template <class T>
Tensor Tensor::of(Shape shape, std::span<const T> elements) {
  Tensor tensor(dtype_of<T>(), std::move(shape));
  auto to = tensor.mutable_data<T>();
  if (to.size() != elements.size()) std::abort();  // a bug of the caller, never input
  for (size_t i = 0; i < to.size(); ++i) to[i] = elements[i];
  return tensor;
}

template <class T>
std::span<const T> Tensor::data() const {
  check_access(dtype_of<T>());
  return {reinterpret_cast<const T*>(bytes()), static_cast<size_t>(size())};
}

template <class T>
std::span<T> Tensor::mutable_data() {
  check_access(dtype_of<T>());
  return {reinterpret_cast<T*>(mutable_bytes()), static_cast<size_t>(size())};
}

}  // namespace halfnote
