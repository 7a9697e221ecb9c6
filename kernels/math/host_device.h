// What lets one formula compile for the host, for nvcc and for NVRTC: the function markers and the
// math functions by their plain names, overloaded for float and double.
#pragma once

#ifdef __CUDACC_RTC__
// NVRTC declares the overloads of exp, log, … itself.
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
