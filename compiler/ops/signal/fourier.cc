// Gradients of Fourier transforms. A DFT is linear, and its adjoint is a DFT too; an STFT is
// written as the DFT of windowed frames.
//
//   length L, P pads or cuts X to L elements, of a real X only the real part counts:
//     forward               dX = Pᵀ L·IDFT(dY), where dY is padded to L bins if Y is one-sided
//     inverse               dX = Pᵀ DFT(dY) / L
//     inverse and one-sided dX = Pᵀ w·DFT(dY)[bins 0 … L/2] / L, w = 2 for bins that stand for two
//
// STFT ──▶ DFT(Gather(signal, [f·step + i]) · window), f frames of i elements
#include "base/error.h"
#include "compiler/ops/movement/parts.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/signal/parts.h"

namespace halfnote::signal {
namespace {

/// What is known of a transform before the first step.
struct Transform {
  int64_t axis = 0, dim = 0, length = 0;
  int64_t parts = 1;  // of X: 1 real, 2 real and imaginary
  bool inverse = false, one_sided = false;
};

int64_t constant_operand(GradientContext& rule, size_t index, const char* what, int64_t absent) {
  if (rule.inputs.size() <= index || !rule.inputs[index].valid()) return absent;
  const auto numbers = constant_ints(rule.graph(), rule.inputs[index].id);
  if (numbers && numbers->size() == 1) return numbers->front();
  throw Error(ErrorCode::kUnsupported, std::string("the ") + what + " of a DFT is computed")
      .expected("a constant", "a value that depends on an input")
      .hint("fix the symbolic dims with --dim NAME=N, so that it folds");
}

Transform transform_of(GradientContext& rule) {
  const Expr x = rule.inputs[0];
  Transform t;
  t.axis = normalize_axis(constant_operand(rule, 2, "axis", -2), x.rank());
  const SymbolicShape& shape = x.shape();
  t.dim = require_static({shape[static_cast<size_t>(t.axis)]}, 0, "DFT")[0];
  t.parts = require_static({shape.back()}, 0, "DFT")[0];
  t.inverse = rule.attributes().get_int("inverse", 0) != 0;
  t.one_sided = rule.attributes().get_int("onesided", 0) != 0;
  t.length =
      constant_operand(rule, 1, "length", t.inverse && t.one_sided ? 2 * (t.dim - 1) : t.dim);
  return t;
}

Expr transform(Expr x, const Transform& t, bool inverse, bool one_sided) {
  Builder& b = *x.builder;
  return b.op("DFT", {x, b.constant(Tensor::scalar(t.length)), b.constant(Tensor::scalar(t.axis))},
              {{"inverse", int64_t{inverse}}, {"onesided", int64_t{one_sided}}});
}

/// Cuts or pads with zeros at the end of an axis.
Expr resized(Expr x, int64_t axis, int64_t from, int64_t to) {
  Builder& b = *x.builder;
  if (from > to) return b.op("Slice", {x, b.ints({0}), b.ints({to}), b.ints({axis})});
  if (from == to) return x;
  return b.op("Pad", {x, b.ints({0, to - from}), b.none(), b.ints({axis})});
}

/// (…, bins, 1, …): how many bins of the whole spectrum each bin of the half stands for, over L.
Expr shares_of_bins(Expr like, const Transform& t) {
  const int64_t bins = t.length / 2 + 1;
  Shape shape(like.shape().size(), 1);
  shape[static_cast<size_t>(t.axis)] = bins;
  Tensor shares(DType::kF64, shape);
  for (int64_t k = 0; k < bins; ++k) {
    const bool alone = k == 0 || 2 * k == t.length;
    shares.mutable_data<double>()[static_cast<size_t>(k)] =
        (alone ? 1.0 : 2.0) / static_cast<double>(t.length);
  }
  return like.builder->constant(shares.cast_to(like.dtype()), "shares");
}

int64_t number_of(const Graph& graph, Expr x, const char* what) {
  const auto numbers = constant_ints(graph, x.id);
  if (numbers && numbers->size() == 1 && numbers->front() > 0) return numbers->front();
  throw Error(ErrorCode::kUnsupported, std::string("the ") + what + " is computed, or not positive")
      .expected("a positive constant", "a value that depends on an input")
      .hint("fix the symbolic dims with --dim NAME=N, so that it folds");
}

/// Where each frame of an STFT reads; (frames, frame).
Tensor places_of_frames(LowerContext& rule, int64_t length) {
  const Graph& g = rule.b.graph();
  const int64_t step = number_of(g, rule.inputs.at(1), "step of the frames");
  int64_t frame = length;  // without window and length: one frame
  if (rule.has_input(3)) {
    frame = number_of(g, rule.inputs[3], "length of a frame");
  } else if (rule.has_input(2)) {
    frame = require_static(rule.inputs[2].shape(), 0, "STFT's window").at(0);
  }
  if (frame > length) {
    throw Error(ErrorCode::kModel, "a frame is longer than the signal")
        .expected("at most " + std::to_string(length), std::to_string(frame));
  }
  const int64_t frames = (length - frame) / step + 1;
  Tensor places(DType::kI64, {frames, frame});
  for (int64_t i = 0; i < frames * frame; ++i)
    places.mutable_data<int64_t>()[static_cast<size_t>(i)] = i / frame * step + i % frame;
  return places;
}

}  // namespace

std::vector<Expr> dft_gradient(GradientContext& rule) {
  const Transform t = transform_of(rule);
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  Expr dy = rule.grads[0];
  Builder& b = rule.b;
  Expr dx;
  if (t.inverse && t.one_sided) {
    const int64_t last = rule.outputs[0].rank() - 1;
    if (!rule.outputs[0].shape().back().is(1)) {  // the mirrored spectrum's signal is real
      dy = b.op("Slice", {dy, b.ints({0}), b.ints({1}), b.ints({last})});
    }
    dx = transform(dy, t, false, true);
    dx = resized(dx * shares_of_bins(dx, t), t.axis, t.length / 2 + 1, t.dim);
  } else {
    dx = transform(dy, t, !t.inverse, false);
    const auto length = static_cast<double>(t.length);
    dx = resized(dx * (t.inverse ? 1 / length : length), t.axis, t.length, t.dim);
  }
  if (t.parts == 1) {
    const int64_t last = rule.inputs[0].rank() - 1;
    dx = b.op("Slice", {dx, b.ints({0}), b.ints({1}), b.ints({last})});
  }
  results[0] = movement::with_type_of(dx, rule.inputs[0]);
  return results;
}

std::vector<Expr> lower_stft(LowerContext& rule) {
  Builder& b = rule.b;
  // A kernel runs what is only known in the step; such an STFT has no gradient.
  for (const size_t slot : {1, 3}) {
    if (rule.has_input(slot) && !constant_ints(b.graph(), rule.inputs[slot].id)) return {};
  }
  Expr signal = rule.inputs[0];
  if (signal.rank() == 2) signal = unsqueeze(signal, {2});
  const std::vector<int64_t> sizes = require_static(signal.shape(), 1, "STFT");
  const Tensor places = places_of_frames(rule, sizes.at(0));
  const int64_t frame = places.shape()[1];
  // (batch, frames, frame, parts)
  Expr x = b.op("Gather", {signal, b.constant(places, "places")}, {{"axis", int64_t{1}}});
  if (rule.has_input(2)) x = x * unsqueeze(rule.inputs[2], {1});
  const bool one_sided = rule.attributes().get_int("onesided", 1) != 0, real = sizes.at(1) == 1;
  const Expr axis = b.constant(Tensor::scalar<int64_t>(2));
  const Expr y = b.op("DFT", {x, b.none(), axis}, {{"onesided", int64_t{one_sided && real}}});
  return {one_sided && !real ? resized(y, 2, frame, frame / 2 + 1) : y};
}

}  // namespace halfnote::signal
