// Pictures read at places between their points, windows of every kind, spectra.
#include <algorithm>

#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

using Ints = std::vector<int64_t>;

int64_t at(const Shape& s, size_t d) { return s[d]; }

/// Places in [-1, 1], a little beyond them where `wide`; away from where linear reading has its
/// kinks only by chance.
Expr grid(Growth& g, int64_t batch, int64_t height, int64_t width, bool wide) {
  if (g.chance(40)) {
    const Expr turns = g.op("Tanh", {g.like({batch, 2, 3})});
    const int64_t channels = 1;
    return g.op("AffineGrid", {turns, g.ints({batch, channels, height, width})},
                {{"align_corners", int64_t{g.chance(50)}}});
  }
  const Shape shape = {batch, height, width, 2};
  if (g.chance(40)) return g.constant_of(g.numbers(shape, wide ? 1.25 : 0.9375));
  return g.op("Tanh", {g.like(shape)});
}

void grid_sample(Growth& g) {
  static constexpr const char* kModes[] = {"linear", "linear", "nearest", "cubic"};
  static constexpr const char* kBorders[] = {"zeros", "border", "reflection"};
  const Expr x = g.any(4, 4, 512);
  const Expr where = grid(g, at(g.shape(x), 0), g.between(1, 3), g.between(1, 3), g.chance(30));
  g.keep(g.op("GridSample", {x, where},
              {{"mode", std::string(g.one_of(kModes))},
               {"padding_mode", std::string(g.one_of(kBorders))},
               {"align_corners", int64_t{g.chance(50)}}}));
}

void resize(Growth& g) {
  static constexpr const char* kModes[] = {"nearest", "linear", "linear", "cubic"};
  static constexpr const char* kPlaces[] = {"half_pixel", "asymmetric", "align_corners",
                                            "pytorch_half_pixel"};
  static constexpr const char* kNearest[] = {"floor", "ceil", "round_prefer_floor"};
  const Expr x = g.any(3, 4, 256);
  const Shape s = g.shape(x);
  Attributes attributes = {{"mode", std::string(g.one_of(kModes))},
                           {"coordinate_transformation_mode", std::string(g.one_of(kPlaces))},
                           {"nearest_mode", std::string(g.one_of(kNearest))}};
  if (g.chance(20)) attributes.set("antialias", int64_t{1});
  if (g.chance(20)) attributes.set("exclude_outside", int64_t{1});
  if (g.chance(40)) attributes.set("cubic_coeff_a", -0.5f);
  const Expr none = g.builder().none();
  if (g.chance(50)) {
    Ints goal = s;
    for (size_t d = 2; d < goal.size(); ++d) goal[d] = g.between(1, 6);
    return g.keep(g.op("Resize", {x, none, none, g.ints(goal)}, attributes));
  }
  static constexpr float kScales[] = {0.5f, 1.0f, 1.5f, 2.0f, 3.0f};
  Tensor scales = Tensor::full(DType::kF32, {static_cast<int64_t>(s.size())}, 1.0);
  for (size_t d = 2; d < s.size(); ++d) scales.mutable_data<float>()[d] = g.one_of(kScales);
  g.keep(g.op("Resize", {x, none, g.constant_of(std::move(scales))}, attributes));
}

/// Windows with gaps, pads of all kinds and a last one that is not full.
void sparse_pool(Growth& g) {
  static constexpr const char* kOps[] = {"MaxPool", "AveragePool", "LpPool"};
  static constexpr const char* kPads[] = {"SAME_UPPER", "SAME_LOWER", "VALID"};
  const Expr x = g.any(3, 5, 1024);
  const Shape s = g.shape(x);
  const std::string op = g.one_of(kOps);
  Ints kernel, strides, gaps, pads(2 * (s.size() - 2));
  for (size_t d = 2; d < s.size(); ++d) {
    kernel.push_back(g.between(1, 3));
    strides.push_back(g.between(1, 3));
    gaps.push_back(g.between(1, 2));
    pads[d - 2] = g.pick(static_cast<int>(kernel.back()));
    pads[d - 2 + s.size() - 2] = g.pick(static_cast<int>(kernel.back()));
  }
  Attributes attributes = {{"kernel_shape", kernel}, {"strides", strides}};
  if (g.chance(50)) attributes.set("dilations", gaps);
  if (g.chance(25)) {
    attributes.set("auto_pad", std::string(g.one_of(kPads)));
  } else if (g.chance(70)) {
    attributes.set("pads", pads);
  }
  if (g.chance(50)) attributes.set("ceil_mode", int64_t{1});
  if (op == "AveragePool") attributes.set("count_include_pad", int64_t{g.chance(50)});
  if (op == "LpPool") attributes.set("p", int64_t{g.between(1, 3)});
  Expr from = x;
  if (op == "LpPool") from = g.op("Add", {g.op("Abs", {x}), g.constant_of(Tensor::scalar(0.5f))});
  g.keep(g.op(op, {from}, attributes));
}

/// All kinds of a transposed convolution: groups, gaps, what is added behind, a stated size.
void transposed_conv(Growth& g) {
  const Expr x = g.any(3, 4, 256);
  const Shape s = g.shape(x);
  const int64_t groups = s[1] > 1 && g.chance(30) ? s[1] : 1;
  Ints kernel, strides, gaps, pads(2 * (s.size() - 2)), behind;
  for (size_t d = 2; d < s.size(); ++d) {
    kernel.push_back(g.between(1, 3));
    strides.push_back(g.between(1, 3));
    gaps.push_back(g.chance(25) ? 2 : 1);
    behind.push_back(g.pick(static_cast<int>(std::max(strides.back(), gaps.back()))));
    pads[d - 2] = g.pick(static_cast<int>(kernel.back()));
    pads[s.size() - 2 + d - 2] = g.pick(static_cast<int>(kernel.back()));
  }
  Attributes attributes = {
      {"kernel_shape", kernel}, {"strides", strides}, {"group", groups}, {"dilations", gaps}};
  if (g.chance(50)) attributes.set("pads", pads);
  if (g.chance(40)) attributes.set("output_padding", behind);
  Shape w = {s[1], g.between(1, 3)};
  w.insert(w.end(), kernel.begin(), kernel.end());
  std::vector<Expr> operands = {x, g.weight(w)};
  if (g.chance(50)) operands.push_back(g.weight({w[1] * groups}));
  g.keep(g.op("ConvTranspose", operands, attributes));
}

void regions(Growth& g) {
  const Expr x = g.any(4, 4, 512);
  const Shape s = g.shape(x);
  if (s[0] == 0) throw Misfit();
  const int64_t count = g.between(1, 3);
  Tensor boxes(DType::kF32, {count, 4}), batch(DType::kI64, {count});
  std::span<float> box = boxes.mutable_data<float>();
  for (size_t i = 0; i < box.size(); i += 4) {
    for (size_t k = 0; k < 2; ++k) {
      box[i + k] = static_cast<float>(g.pick(9)) / 4.0f + 0.03125f;
      box[i + 2 + k] = box[i + k] + static_cast<float>(1 + g.pick(9)) / 4.0f;
    }
  }
  for (int64_t& b : batch.mutable_data<int64_t>()) b = g.pick(static_cast<int>(s[0]));
  g.keep(g.op("RoiAlign", {x, g.constant_of(std::move(boxes)), g.constant_of(std::move(batch))},
              {{"mode", std::string(g.chance(70) ? "avg" : "max")},
               {"output_height", int64_t{g.between(1, 3)}},
               {"output_width", int64_t{g.between(1, 3)}},
               {"sampling_ratio", int64_t{g.pick(3)}}}));
}

void deformed_conv(Growth& g) {
  const Expr x = g.any(4, 4, 256);
  const Shape s = g.shape(x);
  const int64_t kh = std::min<int64_t>(2, s[2]), kw = std::min<int64_t>(2, s[3]);
  if (kh < 1 || kw < 1) throw Misfit();
  const int64_t height = s[2] - kh + 1, width = s[3] - kw + 1, to = g.between(1, 3);
  const Expr offset = g.op("Tanh", {g.like({s[0], 2 * kh * kw, height, width})});
  std::vector<Expr> operands = {x, g.weight({to, s[1], kh, kw}), offset};
  if (g.chance(50)) operands.push_back(g.weight({to}));
  if (operands.size() == 4 && g.chance(50)) {
    operands.push_back(g.op("Sigmoid", {g.like({s[0], kh * kw, height, width})}));
  }
  g.keep(g.op("DeformConv", operands, {{"kernel_shape", Ints{kh, kw}}}));
}

void spectrum(Growth& g) {
  const Expr x = g.any(1, 3, 128);
  const Expr wide = g.op("Unsqueeze", {x, g.ints({-1})});
  const Expr axis = g.constant_of(Tensor::scalar<int64_t>(g.pick(x.rank())));
  const Expr length =
      g.chance(30) ? g.constant_of(Tensor::scalar<int64_t>(g.between(1, 6))) : g.builder().none();
  const bool half = g.chance(40);
  const Expr there = g.op("DFT", {wide, length, axis}, {{"onesided", int64_t{half}}});
  if (half || g.chance(50)) return g.keep(there);
  g.keep(g.op("DFT", {there, g.builder().none(), axis}, {{"inverse", int64_t{1}}}));
}

void frames(Growth& g) {
  const int64_t length = g.between(4, 16);
  const Expr x = g.op("Tanh", {g.like({g.between(1, 2), length, 1})});
  const int64_t frame = g.between(1, 4);
  const Expr step = g.constant_of(Tensor::scalar<int64_t>(g.between(1, 3)));
  const Expr window = g.chance(60) ? g.constant({frame}) : g.builder().none();
  g.keep(g.op("STFT", {x, step, window, g.constant_of(Tensor::scalar<int64_t>(frame))},
              {{"onesided", int64_t{g.chance(50)}}}));
}

}  // namespace

void grow_picture(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {
      grid_sample,   grid_sample, resize,          resize,          sparse_pool,
      sparse_pool,   sparse_pool, transposed_conv, transposed_conv, regions,
      deformed_conv, spectrum,    frames};
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
