// What lets one formula compile for the host, for nvcc and for NVRTC: the function markers and the
// math functions by their plain names, overloaded for float and double.
#pragma once

#ifdef __CUDACC_RTC__
// NVRTC declares the overloads of exp, log, … itself. It has no headers of the standard library:
// these are the names of theirs that formulas and walks use.
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long long;
namespace std {
template <bool kFirst, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool kFirst, class A, class B>
using conditional_t = typename conditional<kFirst, A, B>::type;
template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;
// Of the types that programs compute with: float, double and bool.
template <class T>
inline constexpr bool is_integral_v = false;
template <>
inline constexpr bool is_integral_v<bool> = true;
template <class T>
inline constexpr bool is_signed_v = !is_integral_v<T>;
}  // namespace std
#else
#include <cmath>
#include <cstdint>
#endif

#ifdef __CUDACC__
#define HN_HD __host__ __device__
#else
#define HN_HD
#endif

namespace halfnote::math {

#ifndef __CUDACC_RTC__
using std::acos;
using std::acosh;
using std::asin;
using std::asinh;
using std::atan;
using std::atanh;
using std::ceil;
using std::cos;
using std::cosh;
using std::erf;
using std::erfc;
using std::exp;
using std::expm1;
using std::fabs;
using std::floor;
using std::fmod;
using std::hypot;
using std::log;
using std::log1p;
using std::pow;
using std::rint;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;
#endif

}  // namespace halfnote::math
