#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

template <class T>
const T* at(const std::byte* bytes, int64_t index) {
  return reinterpret_cast<const T*>(bytes) + index;
}
template <class T>
T* at(std::byte* bytes, int64_t index) {
  return reinterpret_cast<T*>(bytes) + index;
}

template <class T>
std::span<const T> view(const std::byte* bytes, int64_t begin, int64_t count) {
  return {at<T>(bytes, begin), static_cast<size_t>(count)};
}

template <class T, class M>
void load_16bit(const std::byte* from, int64_t begin, int64_t count, M* to) {
  if constexpr (std::is_same_v<M, float>) {
    convert(view<T>(from, begin, count), std::span<float>(to, static_cast<size_t>(count)));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = to_f32(at<T>(from, begin)[i]);
  }
}

template <class T, class M>
void store_16bit(const M* from, int64_t count, std::byte* to, int64_t begin) {
  if constexpr (std::is_same_v<M, float>) {
    convert(std::span<const float>(from, static_cast<size_t>(count)),
            std::span<T>(at<T>(to, begin), static_cast<size_t>(count)));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, Half>) {
        at<T>(to, begin)[i] = to_f16(from[i]);
      } else {
        at<T>(to, begin)[i] = to_bf16(from[i]);
      }
    }
  }
}

[[noreturn]] void no_real(DType dtype) {
  throw Error(ErrorCode::kInternal, "not a real type: " + std::string(short_name(dtype)));
}

}  // namespace

bool is_real(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || is_16bit_float(dtype);
}

template <class M>
void load_reals(const std::byte* from, DType dtype, int64_t begin, int64_t count, M* to) {
  switch (dtype) {
    case DType::kF64:
      std::copy_n(at<double>(from, begin), count, to);
      return;
    case DType::kF32:
      std::copy_n(at<float>(from, begin), count, to);
      return;
    case DType::kF16:
      load_16bit<Half>(from, begin, count, to);
      return;
    case DType::kBF16:
      load_16bit<BFloat16>(from, begin, count, to);
      return;
    default:
      no_real(dtype);
  }
}

template <class M>
void store_reals(const M* from, int64_t count, DType dtype, std::byte* to, int64_t begin) {
  switch (dtype) {
    case DType::kF64:
      std::copy_n(from, count, at<double>(to, begin));
      return;
    case DType::kF32:
      if constexpr (std::is_same_v<M, float>) {
        std::copy_n(from, count, at<float>(to, begin));
      } else {
        for (int64_t i = 0; i < count; ++i) at<float>(to, begin)[i] = static_cast<float>(from[i]);
      }
      return;
    case DType::kF16:
      store_16bit<Half>(from, count, to, begin);
      return;
    case DType::kBF16:
      store_16bit<BFloat16>(from, count, to, begin);
      return;
    default:
      no_real(dtype);
  }
}

double read_real(const std::byte* from, DType dtype, int64_t index) {
  double value = 0;
  load_reals(from, dtype, index, 1, &value);
  return value;
}

void write_real(double value, std::byte* to, DType dtype, int64_t index) {
  store_reals(&value, 1, dtype, to, index);
}

void write_real(float value, std::byte* to, DType dtype, int64_t index) {
  store_reals(&value, 1, dtype, to, index);
}

template <class M>
const M* all_reals(const std::byte* from, DType dtype, int64_t count, M* room, int threads) {
  if (dtype == dtype_of<M>()) return reinterpret_cast<const M*>(from);
  parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    load_reals(from, dtype, begin, end - begin, room + begin);
  });
  return room;
}

template void load_reals(const std::byte*, DType, int64_t, int64_t, float*);
template void load_reals(const std::byte*, DType, int64_t, int64_t, double*);
template void store_reals(const float*, int64_t, DType, std::byte*, int64_t);
template void store_reals(const double*, int64_t, DType, std::byte*, int64_t);
template const float* all_reals(const std::byte*, DType, int64_t, float*, int);
template const double* all_reals(const std::byte*, DType, int64_t, double*, int);

}  // namespace halfnote::cpu
