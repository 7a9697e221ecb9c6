// Numbers as elements, of 16 bits and others.
#include "kernels/cuda/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace halfnote::cuda_emulated {
namespace {

/// Around where an element becomes zero, and numbers that are no neighbours of it.
template <class M>
std::vector<M> numbers_around(double half_of_smallest) {
  const M edge = static_cast<M>(half_of_smallest), up = std::numeric_limits<M>::infinity();
  std::vector<M> numbers = {
      0, edge, std::nextafter(edge, up),     std::nextafter(edge, M(0)), 3 * edge,
      1, up,   std::numeric_limits<M>::max()};
  for (size_t i = 0, count = numbers.size(); i < count; ++i) numbers.push_back(-numbers[i]);
  numbers.push_back(std::numeric_limits<M>::quiet_NaN());
  return numbers;
}

template <class T, class M>
void expect_signs_as_stored(double half_of_smallest) {
  for (const M number : numbers_around<M>(half_of_smallest)) {
    const T stored = store_number<T>(static_cast<Math<T>>(number));
    EXPECT_EQ(is_stored_positive<T>(number), load_number(stored) > 0) << number;
  }
}

TEST(CudaNumbers, IsPositiveWhereTheElementIs) {
  expect_signs_as_stored<Half, float>(std::ldexp(1.0, -25));
  expect_signs_as_stored<BFloat16, float>(std::ldexp(1.0, -134));
  expect_signs_as_stored<float, double>(std::ldexp(1.0, -150));
  expect_signs_as_stored<double, double>(std::ldexp(1.0, -1074));
}

}  // namespace
}  // namespace halfnote::cuda_emulated
