// What the CPU kernels share: dispatch over element types, loading and storing in math precision,
// parallel loops whose results do not depend on the number of threads, and kernels made from a
// lambda.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/float16.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// The type that math on T is done in: double for double, float for the other floats, T itself for
/// integers.
template <class T>
struct MathType {
  using type = T;
};
template <>
struct MathType<Half> {
  using type = float;
};
template <>
struct MathType<BFloat16> {
  using type = float;
};
template <class T>
using Math = typename MathType<T>::type;

/// An element in math precision.
template <class T>
inline Math<T> load(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return to_f32(value);
  } else {
    return value;
  }
}

/// Rounds once to the storage type.
template <class T>
inline T store(Math<T> value) {
  if constexpr (std::is_same_v<T, Half>) {
    return to_f16(value);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bf16(value);
  } else {
    return value;
  }
}

/// Calls `body.template operator()<T>()` with T for `dtype`; refuses types that are not among f64,
/// f32, f16, bf16.
template <class Body>
Prepared for_float_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF64:
      return body.template operator()<double>();
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kF16:
      return body.template operator()<Half>();
    case DType::kBF16:
      return body.template operator()<BFloat16>();
    default:
      return Prepared::no("no float type: " + std::string(short_name(dtype)));
  }
}

/// A kernel that calls a lambda `void(const KernelBuffers&)`. One class for all lambdas: thousands
/// of classes take longer to compile than their code.
class LambdaKernel final : public Kernel {
 public:
  using Body = std::function<void(const KernelBuffers&)>;
  using Share = std::function<bool(size_t, size_t)>;
  LambdaKernel(Body body, size_t workspace, Share share)
      : body_(std::move(body)), workspace_(workspace), share_(std::move(share)) {}
  void run(const KernelBuffers& buffers) const override { body_(buffers); }
  size_t workspace_bytes() const override { return workspace_; }
  bool can_share(size_t input, size_t output) const override {
    return share_ && share_(input, output);
  }

 private:
  Body body_;
  size_t workspace_;
  Share share_;
};

inline Prepared make_kernel(LambdaKernel::Body body, size_t workspace = 0,
                            LambdaKernel::Share share = {}) {
  return Prepared::yes(
      std::make_unique<LambdaKernel>(std::move(body), workspace, std::move(share)));
}

/// The attributes of a call; an empty set if it has none.
inline const Attributes& attributes_of(const KernelCall& call) {
  static const Attributes empty;
  return call.attributes ? *call.attributes : empty;
}

/// Calls `body.template operator()<T>()` for every numeric type and bool; refuses strings, complex
/// and 8- or 4-bit floats.
template <class Body>
Prepared for_any_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kBool:
      return body.template operator()<bool>();
    case DType::kI8:
      return body.template operator()<int8_t>();
    case DType::kU8:
      return body.template operator()<uint8_t>();
    case DType::kI16:
      return body.template operator()<int16_t>();
    case DType::kU16:
      return body.template operator()<uint16_t>();
    case DType::kI32:
      return body.template operator()<int32_t>();
    case DType::kU32:
      return body.template operator()<uint32_t>();
    case DType::kI64:
      return body.template operator()<int64_t>();
    case DType::kU64:
      return body.template operator()<uint64_t>();
    case DType::kF64:
      return body.template operator()<double>();
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kF16:
      return body.template operator()<Half>();
    case DType::kBF16:
      return body.template operator()<BFloat16>();
    default:
      return Prepared::no("no kernel for elements of type " + std::string(short_name(dtype)));
  }
}

/// for_any_type() for the signed and unsigned integers only.
template <class Body>
Prepared for_integer_type(DType dtype, Body&& body) {
  return for_any_type(dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      return body.template operator()<T>();
    } else {
      return Prepared::no("no integer type: " + std::string(short_name(dtype_of<T>())));
    }
  });
}

/// Calls `body.template operator()<T>()` with the unsigned integer T that has as many bytes as an
/// element; for kernels that only move bits. Refuses types without such a T (strings, complex128).
template <class Body>
Prepared for_element_size(DType dtype, Body&& body) {
  switch (size_of(dtype)) {
    case 1:
      return body.template operator()<uint8_t>();
    case 2:
      return body.template operator()<uint16_t>();
    case 4:
      return body.template operator()<uint32_t>();
    case 8:
      return body.template operator()<uint64_t>();
    default:
      return Prepared::no("cannot move elements of type " + std::string(short_name(dtype)));
  }
}

/// Elements that are converted at a time between 16-bit storage and f32 math.
inline constexpr int64_t kChunk = 1024;
/// Elements of a parallel block of an elementwise loop.
inline constexpr int64_t kElementGrain = int64_t{1} << 14;

/// `count` elements in math precision: `from` itself, or a conversion of it in `buffer`.
template <class T>
const Math<T>* load_block(const T* from, int64_t count, Math<T>* buffer) {
  if constexpr (std::is_same_v<T, Math<T>>) {
    return from;
  } else {
    convert(std::span<const T>(from, static_cast<size_t>(count)),
            std::span<float>(buffer, static_cast<size_t>(count)));
    return buffer;
  }
}

/// Where to write `count` results in math precision: `to` itself or `buffer`; store_block() brings
/// them to `to`.
template <class T>
Math<T>* result_block(T* to, Math<T>* buffer) {
  if constexpr (std::is_same_v<T, Math<T>>) {
    return to;
  } else {
    return buffer;
  }
}

template <class T>
void store_block(const Math<T>* from, int64_t count, T* to) {
  if constexpr (!std::is_same_v<T, Math<T>>) {
    convert(std::span<const float>(from, static_cast<size_t>(count)),
            std::span<T>(to, static_cast<size_t>(count)));
  }
}

/// `body(begin, end)` behind pointers; see parallel_blocks().
void run_blocks(int64_t count, int64_t grain, int threads,
                void (*call)(const void* body, int64_t begin, int64_t end), const void* body);

/// Runs `body(begin, end)` over blocks of `grain` that cover [0, count). Block borders depend on
/// `grain` alone, so a body that reduces within its block gives the same bits on any number of
/// threads. Of several exceptions that of the first block is thrown. The body is compiled once, for
/// one thread and for many: half of the code, and of the time of a build.
template <class Body>
void parallel_blocks(int64_t count, int64_t grain, int threads, const Body& body) {
  const auto call = [](const void* erased, int64_t begin, int64_t end) {
    (*static_cast<const Body*>(erased))(begin, end);
  };
  run_blocks(count, grain, threads, call, &body);
}

}  // namespace halfnote::cpu
