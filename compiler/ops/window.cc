#include "compiler/ops/window.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace halfnote {
namespace {

void check_sizes(const std::vector<int64_t>& sizes, size_t count, int64_t least, const char* name) {
  const bool fits = sizes.size() == count &&
                    std::all_of(sizes.begin(), sizes.end(), [&](int64_t n) { return n >= least; });
  if (fits) return;
  throw Error(ErrorCode::kModel, std::string("attribute ") + name + " makes no window")
      .expected(std::to_string(count) + " numbers from " + std::to_string(least) + " on",
                to_string(sizes));
}

/// Pads such that the output has ceil(input / stride) elements; an odd rest goes to the end
/// (SAME_UPPER) or the begin (SAME_LOWER).
void pad_same(Window& window, const SymbolicShape& x, bool upper) {
  for (size_t axis = 0; axis < window.rank(); ++axis) {
    const Dim& dim = x[axis + 2];
    if (!dim.known()) {
      throw Error(ErrorCode::kUnsupported, "auto_pad needs fixed spatial dims")
          .expected("numbers", to_string(x))
          .hint("fix the symbolic dims with --dim NAME=N");
    }
    const int64_t stride = window.strides[axis];
    const int64_t outputs = (dim.value + stride - 1) / stride;
    const int64_t total =
        std::max<int64_t>(0, (outputs - 1) * stride + window.extent(axis) - dim.value);
    window.pads[axis] = upper ? total / 2 : total - total / 2;
    window.pads[window.rank() + axis] = total - window.pads[axis];
  }
}

}  // namespace

Dim Window::results(size_t axis, const Dim& in, bool ceil) const {
  if (!in.known()) return {};
  const int64_t rest = in.value + begin(axis) + end(axis) - extent(axis);
  if (rest < 0) return Dim(0);
  const int64_t stride = strides[axis];
  int64_t count = rest / stride + 1;
  if (ceil && rest % stride != 0 && count * stride < in.value + begin(axis)) ++count;
  return Dim(count);
}

Attributes Window::attributes() const {
  return {{"kernel_shape", kernel}, {"strides", strides}, {"dilations", dilations}, {"pads", pads}};
}

Window window_of(const Attributes& attributes, const SymbolicShape& x,
                 std::vector<int64_t> kernel) {
  if (x.size() < 3) {
    throw Error(ErrorCode::kModel, "a window needs an input with spatial dims")
        .expected("rank 3 or more", to_string(x));
  }
  const size_t rank = x.size() - 2;
  Window window;
  window.kernel = attributes.get_ints("kernel_shape", std::move(kernel));
  window.strides = attributes.get_ints("strides", std::vector<int64_t>(rank, 1));
  window.dilations = attributes.get_ints("dilations", std::vector<int64_t>(rank, 1));
  window.pads = attributes.get_ints("pads", std::vector<int64_t>(2 * rank, 0));
  check_sizes(window.kernel, rank, 1, "kernel_shape");
  check_sizes(window.strides, rank, 1, "strides");
  check_sizes(window.dilations, rank, 1, "dilations");
  check_sizes(window.pads, 2 * rank, 0, "pads");
  const std::string mode = attributes.get_string("auto_pad", "NOTSET");
  if (mode == "VALID") window.pads.assign(2 * rank, 0);
  if (mode == "SAME_UPPER" || mode == "SAME_LOWER") pad_same(window, x, mode == "SAME_UPPER");
  return window;
}

}  // namespace halfnote
