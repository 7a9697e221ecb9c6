// Reads the attributes of a pool.
#include "kernels/cpu/reduction/window.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

/// One number for each spatial dim; `fallback` for an absent attribute.
std::vector<int64_t> read_dims(const KernelCall& call, std::string_view name, size_t count,
                               int64_t fallback) {
  std::vector<int64_t> values =
      attributes_of(call).get_ints(name, std::vector<int64_t>(count, fallback));
  const bool is_pads = name == "pads";
  for (const int64_t value : values) {
    if (value < (is_pads ? 0 : 1)) {
      throw Error(ErrorCode::kModel, "invalid " + std::string(name))
          .at({.op = std::string(call.op)})
          .expected(is_pads ? "no negative number" : "positive numbers", std::to_string(value));
    }
  }
  if (values.size() != count) {
    throw Error(ErrorCode::kModel, "wrong number of " + std::string(name))
        .at({.op = std::string(call.op)})
        .expected(std::to_string(count), std::to_string(values.size()));
  }
  return values;
}

// Further than this beyond its input a window has nothing to see, and each element takes time.
constexpr int64_t kMostBeyond = int64_t{1} << 16;

/// Sizes that loops over windows can bear, whatever the attributes say.
void check_window(const KernelCall& call, const PoolGeometry& g, size_t d) {
  const int64_t reach = checked_mul(g.kernel[d] - 1, g.dilation[d]);
  const int64_t steps = checked_mul(std::max<int64_t>(g.out[d] - 1, 0), g.stride[d]);
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 8;
  const bool near = g.kernel[d] <= g.in[d] + kMostBeyond;
  if (near && reach < kFar && steps < kFar && g.pad_begin[d] < kFar && g.pad_end[d] < kFar) return;
  throw Error(ErrorCode::kModel, "a window reaches too far beyond its input")
      .at({.op = std::string(call.op)})
      .expected("a window of at most " + std::to_string(g.in[d] + kMostBeyond),
                std::to_string(g.kernel[d]) + " at strides of " + std::to_string(g.stride[d]) +
                    ", dilated by " + std::to_string(g.dilation[d]));
}

/// SAME_UPPER and SAME_LOWER: as much padding as the outputs need, the odd one at the end or the
/// beginning.
void pad_same(PoolGeometry& g, size_t d, bool upper) {
  const int64_t reach = (g.out[d] - 1) * g.stride[d] + (g.kernel[d] - 1) * g.dilation[d] + 1;
  const int64_t total = std::max<int64_t>(0, reach - g.in[d]);
  g.pad_begin[d] = upper ? total / 2 : total - total / 2;
  g.pad_end[d] = total - g.pad_begin[d];
}

}  // namespace

int64_t PoolGeometry::padded_count(const Dims& at) const {
  int64_t count = 1;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t first = at[d] * stride[d] - pad_begin[d];
    int64_t inside = 0;
    for (int64_t k = 0; k < kernel[d]; ++k) inside += first + k * dilation[d] < in[d] + pad_end[d];
    count *= inside;
  }
  return count;
}

std::string plan_pool(const KernelCall& call, const Shape& in, const Shape& out, PoolGeometry& g) {
  if (in.size() < 3 || in.size() > 5) return "neither 1, 2 nor 3 spatial dims";
  const size_t spatial = in.size() - 2;
  if (out.size() != in.size() || out[0] != in[0] || out[1] != in[1]) {
    throw Error(ErrorCode::kModel, "input and output of a pool do not fit")
        .at({.op = std::string(call.op)})
        .expected(to_string(in), to_string(out));
  }
  if (!attributes_of(call).has("kernel_shape")) {
    throw Error(ErrorCode::kModel, "kernel_shape is missing").at({.op = std::string(call.op)});
  }
  const auto kernel = read_dims(call, "kernel_shape", spatial, 1);
  const auto strides = read_dims(call, "strides", spatial, 1);
  const auto dilations = read_dims(call, "dilations", spatial, 1);
  const auto pads = read_dims(call, "pads", 2 * spatial, 0);
  const std::string auto_pad = attributes_of(call).get_string("auto_pad", "NOTSET");
  g.planes = checked_mul(in[0], in[1]);
  for (size_t i = 0; i < spatial; ++i) {
    const size_t d = 3 - spatial + i;
    g.in[d] = in[2 + i];
    g.out[d] = out[2 + i];
    g.kernel[d] = kernel[i];
    g.stride[d] = strides[i];
    g.dilation[d] = dilations[i];
    if (auto_pad == "NOTSET") {
      g.pad_begin[d] = pads[i];
      g.pad_end[d] = pads[i + spatial];
    }
    check_window(call, g, d);
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      pad_same(g, d, auto_pad == "SAME_UPPER");
    } else if (auto_pad != "NOTSET" && auto_pad != "VALID") {
      return "unknown auto_pad '" + auto_pad + "'";
    }
  }
  return {};
}

}  // namespace halfnote::cpu
