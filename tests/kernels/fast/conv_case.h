// A convolution as test cases state it, and the shapes that follow from it.
#pragma once

#include <string_view>
#include <vector>

#include "tests/kernels/harness.h"

namespace halfnote::test {

/// Of x (N, C, …) by w (F, C/groups, …).
struct FastConvCase {
  const char* name;
  Shape x, w;
  std::vector<int64_t> strides, dilations, pads;
};

/// What a convolution, a gradient of it or its transpose is called with.
struct FastConvCall {
  std::string_view domain, op;
  std::vector<Tensor> inputs;
  Attributes attributes;
  OutputSpec output;
  int64_t terms = 1;  // of a sum
};

inline Shape fast_conv_result(const FastConvCase& c) {
  const size_t spatial = c.x.size() - 2;
  Shape y{c.x[0], c.w[0]};
  for (size_t d = 0; d < spatial; ++d) {
    const int64_t reach = (c.w[2 + d] - 1) * c.dilations[d] + 1;
    y.push_back((c.x[2 + d] + c.pads[d] + c.pads[spatial + d] - reach) / c.strides[d] + 1);
  }
  return y;
}

/// The result of the ConvTranspose whose input is what the convolution gives.
inline Shape fast_conv_transpose_result(const FastConvCase& c) {
  const Shape y = fast_conv_result(c);
  Shape reached{c.x[0], c.x[1]};
  const size_t spatial = y.size() - 2;
  for (size_t d = 0; d < spatial; ++d) {
    reached.push_back((y[2 + d] - 1) * c.strides[d] + (c.w[2 + d] - 1) * c.dilations[d] + 1 -
                      c.pads[d] - c.pads[spatial + d]);
  }
  return reached;
}

}  // namespace halfnote::test
