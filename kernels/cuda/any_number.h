// Operands of any type that holds numbers, for kernels that are compiled for what they compute in:
// f32, f64, i64 and u64. Which type is in memory, they are told when they run, as RealPointer is.
// Integers that wrap around in 64 bits have wrapped in any narrower type: their low bits are kept.
#pragma once

#include "base/low_bit_codes.h"
#include "kernels/cuda/numbers.h"
#include "kernels/math/convert.h"

namespace halfnote::HN_CUDA {

/// Signed and unsigned integers of 8 to 64 bits.
constexpr bool is_whole(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64:
      return true;
    default:
      return false;
  }
}
constexpr bool is_unsigned(DType dtype) {
  return dtype == DType::kU8 || dtype == DType::kU16 || dtype == DType::kU32 ||
         dtype == DType::kU64;
}

/// Calls `body.template operator()<C>()` with what elements of the type are computed in: double for
/// f64, float for the other floats, uint64_t for u64, int64_t for all other integers and bool.
template <class Body>
Prepared for_computed_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF64:
      return body.template operator()<double>();
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return body.template operator()<float>();
    case DType::kU64:
      return body.template operator()<uint64_t>();
    default:
      if (is_whole(dtype) || dtype == DType::kBool) return body.template operator()<int64_t>();
      return Prepared::no("no kernel for elements of type " + std::string(short_name(dtype)));
  }
}

/// An integer or bool as C, int64_t or uint64_t; of u64 as int64_t the same bits.
template <class C>
__device__ C load_whole(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kI8:
      return static_cast<C>(static_cast<const int8_t*>(data)[at]);
    case DType::kU8:
      return static_cast<C>(static_cast<const uint8_t*>(data)[at]);
    case DType::kI16:
      return static_cast<C>(static_cast<const int16_t*>(data)[at]);
    case DType::kU16:
      return static_cast<C>(static_cast<const uint16_t*>(data)[at]);
    case DType::kI32:
      return static_cast<C>(static_cast<const int32_t*>(data)[at]);
    case DType::kU32:
      return static_cast<C>(static_cast<const uint32_t*>(data)[at]);
    case DType::kBool:
      return static_cast<C>(static_cast<const bool*>(data)[at]);
    default:
      return static_cast<C>(static_cast<const int64_t*>(data)[at]);
  }
}

/// The low bits of an integer; of bool whether it is not 0.
template <class C>
__device__ void store_whole(void* data, DType dtype, int64_t at, C value) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8:
      static_cast<uint8_t*>(data)[at] = static_cast<uint8_t>(value);
      return;
    case DType::kI16:
    case DType::kU16:
      static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(value);
      return;
    case DType::kI32:
    case DType::kU32:
      static_cast<uint32_t*>(data)[at] = static_cast<uint32_t>(value);
      return;
    case DType::kBool:
      static_cast<bool*>(data)[at] = value != 0;
      return;
    default:
      static_cast<uint64_t*>(data)[at] = static_cast<uint64_t>(value);
  }
}

/// What arithmetic in the type itself would have left of an integer.
template <class C>
__device__ C wrapped(C value, DType dtype) {
  switch (dtype) {
    case DType::kI8:
      return static_cast<C>(static_cast<int8_t>(value));
    case DType::kU8:
      return static_cast<C>(static_cast<uint8_t>(value));
    case DType::kI16:
      return static_cast<C>(static_cast<int16_t>(value));
    case DType::kU16:
      return static_cast<C>(static_cast<uint16_t>(value));
    case DType::kI32:
      return static_cast<C>(static_cast<int32_t>(value));
    case DType::kU32:
      return static_cast<C>(static_cast<uint32_t>(value));
    default:
      return value;
  }
}

/// An operand whose elements are read as C, which for_computed_type() gives for its type.
template <class C>
struct NumberPointer {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;

  __device__ C operator[](int64_t at) const {
    if constexpr (std::is_floating_point_v<C>) {
      return RealPointer{data, dtype}.load<C>(at);
    } else {
      return load_whole<C>(data, dtype, at);
    }
  }
};

template <class C>
struct NumberOutput {
  void* data = nullptr;
  DType dtype = DType::kUndefined;

  __device__ void write(int64_t at, C value) const {
    if constexpr (std::is_floating_point_v<C>) {
      RealOutput{data, dtype}.write(at, value);
    } else {
      store_whole(data, dtype, at, value);
    }
  }
};

/// An operand of any type as M, float or double: each element is rounded once.
struct AnyPointer {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;

  template <class M>
  __device__ M load(int64_t at) const {
    if (dtype == DType::kU64) return static_cast<M>(static_cast<const uint64_t*>(data)[at]);
    if (is_whole(dtype) || dtype == DType::kBool) {
      return static_cast<M>(load_whole<int64_t>(data, dtype, at));
    }
    if (low_bit::is_one(dtype)) {
      return static_cast<M>(low_bit::read(dtype, static_cast<const uint8_t*>(data)[at]));
    }
    return RealPointer{data, dtype}.load<M>(at);
  }
};

/// An operand to which values of any type C of for_computed_type() are converted, as
/// math::convert_element() does: floats to integers saturate.
struct AnyOutput {
  void* data = nullptr;
  DType dtype = DType::kUndefined;
  Overflow overflow = Overflow::kSaturate;  // of 8-bit floats
  PowerRounding rounding = PowerRounding::kUp;

  template <class C>
  __device__ void write(int64_t at, C value) const {
    if (low_bit::is_one(dtype)) {
      static_cast<uint8_t*>(data)[at] =
          low_bit::write(dtype, static_cast<double>(value), overflow, rounding);
    } else if constexpr (std::is_floating_point_v<C>) {
      write_float(at, value);
    } else {
      write_whole(at, value);
    }
  }

 private:
  template <class T, class C>
  __device__ void truncate(int64_t at, C value) const {
    static_cast<T*>(data)[at] = math::truncate_saturating<T>(value);
  }
  template <class C>
  __device__ void write_float(int64_t at, C value) const {
    switch (dtype) {
      case DType::kI8:
        return truncate<int8_t>(at, value);
      case DType::kU8:
        return truncate<uint8_t>(at, value);
      case DType::kI16:
        return truncate<int16_t>(at, value);
      case DType::kU16:
        return truncate<uint16_t>(at, value);
      case DType::kI32:
        return truncate<int32_t>(at, value);
      case DType::kU32:
        return truncate<uint32_t>(at, value);
      case DType::kI64:
        return truncate<int64_t>(at, value);
      case DType::kU64:
        return truncate<uint64_t>(at, value);
      case DType::kBool:
        static_cast<bool*>(data)[at] = value != 0;
        return;
      default:
        RealOutput{data, dtype}.write(at, value);
    }
  }
  template <class C>
  __device__ void write_whole(int64_t at, C value) const {
    switch (dtype) {
      case DType::kF32:
        static_cast<float*>(data)[at] = static_cast<float>(value);
        return;
      case DType::kF64:
        static_cast<double*>(data)[at] = static_cast<double>(value);
        return;
      case DType::kF16:
        static_cast<Half*>(data)[at] = round_to_16bit<Half>(math::to_double_for_rounding(value));
        return;
      case DType::kBF16:
        static_cast<BFloat16*>(data)[at] =
            round_to_16bit<BFloat16>(math::to_double_for_rounding(value));
        return;
      default:
        store_whole(data, dtype, at, value);
    }
  }
};

}  // namespace halfnote::HN_CUDA
