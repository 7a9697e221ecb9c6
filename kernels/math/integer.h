// Unary ops on integers, written once for the CPU and for CUDA; they wrap around and never trap.
#pragma once

#include "kernels/math/binary.h"

namespace halfnote::math {

struct IntegerAbs {
  template <class T>
  HN_HD static T value(T x) {
    return is_negative(x) ? Sub::value(T(0), x) : x;
  }
};

struct IntegerNeg {
  template <class T>
  HN_HD static T value(T x) {
    return Sub::value(T(0), x);
  }
};

struct IntegerSign {
  template <class T>
  HN_HD static T value(T x) {
    return static_cast<T>((x > 0) - is_negative(x));
  }
};

struct IntegerRelu {
  template <class T>
  HN_HD static T value(T x) {
    return is_negative(x) ? T(0) : x;
  }
};

struct Complement {
  template <class T>
  HN_HD static T value(T x) {
    return static_cast<T>(~x);
  }
};

}  // namespace halfnote::math
