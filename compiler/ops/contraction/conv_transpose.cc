// The gradient of ConvTranspose. ConvTranspose is ConvGradInput run forwards, so its gradients are
// those of a convolution from Y to X with the same window and the same W (C, M/g, k…):
//   dX = Conv(dY, W)      dW = ConvGradWeight(X, dY)      db = sum of dY over all axes but 1
// Rows of Y beyond the last window (output_padding, a large output_shape) have no gradient.
#include <algorithm>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/window.h"

namespace halfnote::contraction {
namespace {

/// The window of the convolution from Y to X, and for each axis the rows of Y that it leaves over.
struct Transposed {
  Window window;
  std::vector<int64_t> surplus;
};

/// ONNX's rule for output_shape and auto_pad: what the full output has too much is cut off as pads,
/// the odd row at the end for SAME_UPPER, else at the begin.
void pads_from_shapes(Transposed& t, const std::vector<int64_t>& in,
                      const std::vector<int64_t>& out, bool upper) {
  Window& w = t.window;
  if (in.size() != w.rank() || out.size() != w.rank()) {
    throw Error(ErrorCode::kModel, "ConvTranspose with an output of another rank than its input")
        .expected(std::to_string(w.rank()) + " spatial dims", std::to_string(out.size()));
  }
  for (size_t axis = 0; axis < w.rank(); ++axis) {
    const int64_t full = w.strides[axis] * (in[axis] - 1) + t.surplus[axis] + w.extent(axis);
    const int64_t total = std::max<int64_t>(0, full - out[axis]);
    w.pads[axis] = upper ? total / 2 : total - total / 2;
    w.pads[w.rank() + axis] = total - w.pads[axis];
    t.surplus[axis] += std::max<int64_t>(0, out[axis] - full);
  }
}

Transposed transposed_window(const GradientContext& rule, const Attributes& given) {
  const SymbolicShape x = rule.inputs[0].shape();
  Attributes plain = given;
  plain.erase("auto_pad");
  const std::string mode = given.get_string("auto_pad", "NOTSET");
  if (mode == "VALID") plain.erase("pads");
  Transposed t{
      window_of(plain, x, require_static(rule.inputs[1].shape(), 2, "the kernel of ConvTranspose")),
      given.get_ints("output_padding")};
  t.surplus.resize(t.window.rank(), 0);
  if (!given.has("output_shape") && mode != "SAME_UPPER" && mode != "SAME_LOWER") return t;
  const char* what = "ConvTranspose with output_shape or auto_pad";
  pads_from_shapes(t, require_static(x, 2, what), require_static(rule.outputs[0].shape(), 2, what),
                   mode == "SAME_UPPER");
  return t;
}

/// dY without the rows beyond the last window, where they would make a window of their own. Rows
/// that a pad at the end would have cut off are there then, and have their gradients: the window
/// has less of that pad.
Expr without_surplus(Expr grad, Transposed& t) {
  std::vector<int64_t> axes, ends;
  for (size_t axis = 0; axis < t.window.rank(); ++axis) {
    if (t.surplus[axis] < t.window.strides[axis]) continue;
    int64_t& pad = t.window.pads[t.window.rank() + axis];
    const int64_t in_place_of_pad =
        std::clamp<int64_t>(t.surplus[axis], 0, std::max<int64_t>(pad, 0));
    pad -= in_place_of_pad;
    const int64_t beyond = t.surplus[axis] - in_place_of_pad;
    if (beyond == 0) continue;
    axes.push_back(static_cast<int64_t>(axis) + 2);
    ends.push_back(-beyond);
  }
  if (axes.empty()) return grad;
  Builder& b = *grad.builder;
  const Expr starts = b.ints(std::vector<int64_t>(axes.size(), 0));
  return b.op("Slice", {grad, starts, b.ints(ends), b.ints(axes)});
}

bool has_no_places(Expr x) {
  return std::ranges::any_of(x.shape(),
                             [](const Dim& dim) { return dim.known() && dim.value == 0; });
}

}  // namespace

std::vector<Expr> conv_transpose_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], w = rule.inputs[1];
  const Attributes given = rule.attributes();
  Transposed t = transposed_window(rule, given);

  std::vector<Expr> results(rule.inputs.size(), b.none());
  if (has_no_places(x)) {
    // ONNX gives a convolution of what is smaller than its kernel a place where there is none.
    if (rule.needed[0]) results[0] = zero_gradient(x);
    if (rule.needed[1]) results[1] = zero_gradient(w);
  } else if (rule.needed[0] || rule.needed[1]) {
    const Expr grad = without_surplus(rule.grads[0], t);
    Attributes attributes = t.window.attributes();
    attributes.set("group", given.get_int("group", 1));
    if (rule.needed[0]) results[0] = b.op("Conv", {grad, w}, attributes);
    if (rule.needed[1]) results[1] = b.op("ConvGradWeight", {x, grad}, attributes, kHalfnoteDomain);
  }
  if (results.size() > 2 && rule.needed[2]) {
    const Expr grad = rule.grads[0];
    results[2] = b.reduce_sum(grad, axes_but_channel(grad.rank()), false);
  }
  return results;
}

}  // namespace halfnote::contraction
