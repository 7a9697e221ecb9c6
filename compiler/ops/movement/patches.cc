// Patches: windows of an image become channels. The pass gather-taps makes it for a device, behind
// everything that asks for gradients or precision.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "compiler/ops/movement/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::movement {
namespace {

constexpr int64_t kMostNumber = std::numeric_limits<int32_t>::max();

struct Windows {
  std::vector<int64_t> kernel, strides, pads;

  int64_t taps() const {
    int64_t taps = 1;
    for (const int64_t size : kernel) taps = std::min(taps * size, kMostNumber);
    return taps;
  }
};

Windows windows_of(const Attributes& attributes, size_t spatial) {
  const std::vector<int64_t> ones(spatial, 1), zeros(2 * spatial, 0);
  Windows w{attributes.get_ints("kernel_shape"), attributes.get_ints("strides", ones),
            attributes.get_ints("pads", zeros)};
  const auto all = [](const std::vector<int64_t>& numbers, int64_t least) {
    return std::ranges::all_of(numbers, [=](int64_t n) { return n >= least && n <= kMostNumber; });
  };
  const bool counts =
      w.kernel.size() == spatial && w.strides.size() == spatial && w.pads.size() == 2 * spatial;
  if (spatial > 0 && counts && all(w.kernel, 1) && all(w.strides, 1) && all(w.pads, 0)) return w;
  throw Error(ErrorCode::kModel, "the windows of Patches do not fit its operand")
      .expected(
          "a size, a stride and two pads for each of " + std::to_string(spatial) + " spatial dims",
          std::to_string(w.kernel.size()) + " sizes, " + std::to_string(w.strides.size()) +
              " strides, " + std::to_string(w.pads.size()) + " pads, or numbers out of range");
}

}  // namespace

std::vector<ValueType> infer_patches(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  const SymbolicShape& shape = operand_shape(graph, node, 0);
  const size_t spatial = shape.size() < 3 ? 0 : shape.size() - 2;
  const Windows w = windows_of(attributes, spatial);
  const int64_t channels = attributes.get_int("channels", 0);
  const Dim& own = shape[1];
  if (channels < 1 || channels > kMostNumber || (own.known() && channels / w.taps() < own.value)) {
    throw Error(ErrorCode::kModel, "Patches has too few channels")
        .expected("the channels of its operand times " + std::to_string(w.taps()),
                  std::to_string(channels));
  }
  SymbolicShape result = {shape[0], Dim(channels)};
  for (size_t d = 0; d < spatial; ++d) {
    const Dim& dim = shape[2 + d];
    if (!dim.known()) {
      result.emplace_back();
      continue;
    }
    const int64_t padded = dim.value + w.pads[d] + w.pads[spatial + d];
    result.emplace_back(padded < w.kernel[d] ? 0 : (padded - w.kernel[d]) / w.strides[d] + 1);
  }
  return {ValueType::tensor(out_dtype_of(attributes, operand_type(graph, node, 0).dtype), result)};
}

std::vector<Expr> patches_body(BodyContext& body) {
  Builder& b = body.b;
  Expr x = b.to_math(body.inputs[0]);  // few runtimes pad 16 bits
  require_static(x.shape(), 1, "Patches");
  const auto spatial = static_cast<size_t>(x.rank()) - 2;
  const Windows w = windows_of(body.attributes, spatial);
  const std::vector<int64_t> axes = axes_between(2, x.rank());
  if (std::ranges::any_of(w.pads, [](int64_t pad) { return pad != 0; }))
    x = b.op("Pad", {x, b.ints(w.pads), b.none(), b.ints(axes)});
  const Expr steps = b.ints(w.strides);
  std::vector<Expr> taps;
  for (std::vector<int64_t> tap(spatial, 0);;) {
    std::vector<int64_t> ends;
    for (size_t d = 0; d < spatial; ++d) {
      const int64_t behind = w.kernel[d] - 1 - tap[d];
      ends.push_back(behind == 0 ? std::numeric_limits<int64_t>::max() : -behind);
    }
    taps.push_back(b.op("Slice", {x, b.ints(tap), b.ints(ends), b.ints(axes), steps}));
    size_t d = spatial;
    while (d > 0 && ++tap[d - 1] == w.kernel[d - 1]) tap[--d] = 0;
    if (d == 0) break;
  }
  Expr y = taps.size() == 1 ? taps[0] : b.ops("Concat", taps, 1, {{"axis", int64_t{1}}})[0];
  const int64_t filled = x.shape()[1].value * w.taps();
  const int64_t rest = body.attributes.get_int("channels", 0) - filled;
  if (rest > 0) y = b.op("Pad", {y, b.ints({0, rest}), b.none(), b.ints({1})});
  return {b.cast(y, body.output_types[0].dtype)};
}

}  // namespace halfnote::movement
