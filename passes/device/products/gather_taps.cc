// gather_taps: a convolution of 16 bits with few channels, as the first one of an image net is,
// takes taps of its windows as channels. For GPUs: their tensor cores multiply channels, 3 of which
// are little work in each tap, even if 8 are made of them.
//
// Where it strides, blocks of s × s elements become channels (space to depth), and the window gets
// smaller and walks in steps of 1. Here s = 2, a window of 7 × 7, pads of 3, q = (s − 3 mod s) mod
// s = 1, K = ⌈(7 + q) / s⌉ = 4:
//
//   y = Conv <kernel_shape = [7, 7], strides = [2, 2], pads = [3, 3, 3, 3]> (Pad (x), Pad (w), b)
//     ──▶  a = ai.halfnote.Patches <kernel_shape = strides = [2, 2], channels = 16> (x)
//          f = ai.halfnote.Patches <the same, pads = [q, q, 0, 0]> (w)
//          y = Conv <kernel_shape = [4, 4], pads = [2, 2, 1, 1]> (a, f, b)
//
// Else all taps do, of a or f as above, and K = 1: 3 × 3 windows of 3 channels are 32 channels.
//
//   dw = ConvGradWeight <as Conv> (dy, Pad (x))
//     ──▶  d = ConvGradWeight <as the new Conv> (dy, a)
//          dw = Slice (Reshape (Transpose (Reshape (Slice (d)))))
//
// A Cast of the image is done by Patches. Padding of the channels to a multiple of 8 has no use
// then: it is looked through. Exact: the same products and sums, and products of zeros. Leaves
// alone: groups, dilations, convolutions in f32, images of more channels, windows of one element or
// with more taps than pay, and the gradient of the image.
#include "passes/device/products/gather_taps.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/products/few_channels.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// With more of them the taps of a convolution are worth their time as they are.
constexpr int64_t kFewChannels = 4;
/// More than this the patches would be too much to write and to keep: 8 times a padded image.
constexpr int64_t kMostMade = 64;
/// Channels of a 16-bit convolution fill 16 bytes.
constexpr int64_t kChannelStep = 8;

/// A convolution, or the gradient of its weight, along one spatial dim.
struct Window {
  int64_t size, kernel, stride, begin, end;  // of the image; pads

  int64_t results() const { return (size + begin + end - kernel) / stride + 1; }
};

/// The same with `block` taps as channels: what is left of the window, its pads, and where the
/// first tap is in the first block.
struct Folded {
  int64_t block, step;  // of the patches of the image
  int64_t begin = 0;    // their pads
  int64_t end = 0;
  int64_t first = 0;
  int64_t kernel = 1;  // of the convolution of patches, which has strides of 1
  int64_t pad_begin = 0, pad_end = 0;
};

struct Fold {
  ValueId image;
  Shape shape;  // of the image
  DType dtype;  // of the convolution
  std::vector<Window> windows;
  std::vector<Folded> dims;

  int64_t filled() const {
    int64_t count = shape[1];
    for (const Folded& dim : dims) count *= dim.block;
    return count;
  }
  int64_t channels() const { return (filled() + kChannelStep - 1) / kChannelStep * kChannelStep; }
  template <class Member>
  std::vector<int64_t> all(Member Folded::*member) const {
    std::vector<int64_t> numbers;
    for (const Folded& dim : dims) numbers.push_back(dim.*member);
    return numbers;
  }
  std::vector<int64_t> both(int64_t Folded::*begin, int64_t Folded::*end) const {
    std::vector<int64_t> numbers = all(begin), more = all(end);
    numbers.insert(numbers.end(), more.begin(), more.end());
    return numbers;
  }
};

std::optional<Folded> by_stride(const Window& w) {
  if (w.stride < 2 || w.size % w.stride != 0) return std::nullopt;
  Folded folded{w.stride, w.stride};
  folded.first = (w.stride - w.begin % w.stride) % w.stride;
  folded.kernel = (w.kernel + folded.first + w.stride - 1) / w.stride;
  folded.pad_begin = (w.begin + folded.first) / w.stride;
  folded.pad_end = w.results() - 1 + folded.kernel - folded.pad_begin - w.size / w.stride;
  return folded.pad_end >= 0 ? std::optional(folded) : std::nullopt;
}

Folded by_taps(const Window& w) { return {w.kernel, w.stride, w.begin, w.end}; }

/// The windows of a convolution of `shape`; none if they are of another kind.
std::vector<Window> windows_of(const Attributes& attributes, const Shape& shape,
                               const Shape& kernel) {
  const size_t spatial = shape.size() - 2;
  const std::vector<int64_t> ones(spatial, 1);
  const auto strides = attributes.get_ints("strides", ones);
  const auto pads = attributes.get_ints("pads", std::vector<int64_t>(2 * spatial, 0));
  const std::string pad = attributes.get_string("auto_pad", "NOTSET");
  if (attributes.get_int("group", 1) != 1 || attributes.get_ints("dilations", ones) != ones ||
      (pad != "NOTSET" && pad != "VALID") || kernel.size() != spatial)
    return {};
  std::vector<Window> windows;
  for (size_t d = 0; d < spatial; ++d) {
    const Window w{shape[2 + d], kernel[d], strides[d], pads[d], pads[spatial + d]};
    if (w.begin < 0 || w.end < 0 || w.size + w.begin + w.end < w.kernel) return {};
    windows.push_back(w);
  }
  return element_count(kernel) > 1 && element_count(shape) > 0 ? windows : std::vector<Window>{};
}

/// How a convolution is folded, if it is.
bool fold_windows(Fold& fold) {
  if (fold.windows.empty() || fold.shape[1] > kFewChannels) return false;
  for (const Window& w : fold.windows) {
    const auto folded = by_stride(w);
    if (!folded) break;
    fold.dims.push_back(*folded);
  }
  if (fold.dims.size() == fold.windows.size() && fold.filled() <= kMostMade) return true;
  fold.dims.clear();
  for (const Window& w : fold.windows) fold.dims.push_back(by_taps(w));
  return fold.filled() <= kMostMade;
}

class Gatherer {
 public:
  Gatherer(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool rewrite_forward(NodeId id) {
    const ValueId padded_w = graph_.input(id, 1), bias = graph_.input(id, 2);
    const auto w_shape = known_shape(graph_, padded_w);
    if (!w_shape || w_shape->size() < 3) return false;
    const Shape kernel(w_shape->begin() + 2, w_shape->end());
    const auto fold = fold_of(id, graph_.input(id, 0), kernel);
    if (!fold) return false;
    const Attributes attributes = attributes_of(id, *fold);
    expand_into(graph_, id, context_.infer, [&](Builder& b) {
      const Expr a = patches(b, *fold), f = filter(b, *fold, padded_w);
      return bias.valid() ? b.op("Conv", {a, f, b.value(bias)}, attributes)
                          : b.op("Conv", {a, f}, attributes);
    });
    return true;
  }

  bool rewrite_gradient(NodeId id) {
    const ValueId dy = graph_.input(id, 0);
    const auto dy_shape = known_shape(graph_, dy),
               dw_shape = known_shape(graph_, graph_.output(id));
    if (!dy_shape || !dw_shape || dw_shape->size() < 3) return false;
    const Shape kernel(dw_shape->begin() + 2, dw_shape->end());
    const auto fold = fold_of(id, graph_.input(id, 1), kernel);
    if (!fold) return false;
    Shape plain = *dw_shape;
    plain[1] = fold->shape[1];
    // The padding of dw is cut off by the only node that reads it, or it is put back.
    const NodeId cut = padding_cut(graph_, graph_.output(id), plain);
    const NodeId replaced = cut.valid() ? cut : id;
    const Attributes attributes = attributes_of(id, *fold);
    graph_.node(replaced).precision = graph_.node(id).precision;
    expand_into(graph_, replaced, context_.infer, [&](Builder& b) {
      const Expr d =
          b.op("ConvGradWeight", {b.value(dy), patches(b, *fold)}, attributes, kHalfnoteDomain);
      const Expr dw = unfolded(b, *fold, d, plain);
      const int64_t padding = (*dw_shape)[1] - plain[1];
      if (cut.valid() || padding == 0) return dw;
      return b.op("Pad", {dw, b.ints({0, padding}), b.none(), b.ints({1})});
    });
    if (replaced != id) graph_.remove(id);
    return true;
  }

 private:
  std::optional<Fold> fold_of(NodeId id, ValueId padded_image, const Shape& kernel) const {
    Fold fold;
    fold.dtype = graph_.value(padded_image).type.dtype;
    fold.image = without_channel_padding(graph_, padded_image);
    const auto shape = known_shape(graph_, fold.image);
    if (!is_16bit_float(fold.dtype) || !shape || shape->size() < 3) return std::nullopt;
    fold.shape = *shape;
    fold.windows = windows_of(graph_.node(id).attributes, fold.shape, kernel);
    if (!fold_windows(fold)) return std::nullopt;
    const NodeId cast = producer(graph_, fold.image);
    if (is_op(graph_, cast, "Cast")) {
      const ValueId wide = graph_.input(cast, 0);
      if (graph_.value(wide).type.dtype == DType::kF32) fold.image = wide;
    }
    return fold;
  }

  /// Those of the convolution of patches.
  Attributes attributes_of(NodeId id, const Fold& fold) const {
    Attributes attributes = graph_.node(id).attributes;
    attributes.erase("auto_pad");
    const std::vector<int64_t> ones(fold.dims.size(), 1);
    attributes.set("kernel_shape", fold.all(&Folded::kernel));
    attributes.set("strides", ones);
    attributes.set("dilations", ones);
    attributes.set("pads", fold.both(&Folded::pad_begin, &Folded::pad_end));
    return attributes;
  }

  /// The image; the gradient reads that of the forward pass, which stands before it.
  Expr patches(Builder& b, const Fold& fold) {
    Attributes attributes;
    attributes.set("kernel_shape", fold.all(&Folded::block));
    attributes.set("strides", fold.all(&Folded::step));
    attributes.set("pads", fold.both(&Folded::begin, &Folded::end));
    attributes.set("channels", fold.channels());
    if (graph_.value(fold.image).type.dtype != fold.dtype)
      attributes.set("out_dtype", static_cast<int64_t>(fold.dtype));
    for (const auto& [image, as, made] : made_) {
      if (image == fold.image && as == attributes) return b.value(made);
    }
    const Expr made = b.op("Patches", {b.value(fold.image)}, attributes, kHalfnoteDomain);
    made_.emplace_back(fold.image, attributes, made.id);
    return made;
  }

  /// The weight, (O, C, k, …) as (O, channels, K, …).
  Expr filter(Builder& b, const Fold& fold, ValueId padded) const {
    const ValueId plain = without_channel_padding(graph_, padded);
    Expr weight = b.value(plain);
    if ((*known_shape(graph_, plain))[1] != fold.shape[1])
      weight = b.op("Slice", {weight, b.ints({0}), b.ints({fold.shape[1]}), b.ints({1})});
    std::vector<int64_t> behind;
    for (size_t d = 0; d < fold.dims.size(); ++d) {
      const Folded& dim = fold.dims[d];
      behind.push_back(dim.kernel * dim.block - dim.first - fold.windows[d].kernel);
    }
    std::vector<int64_t> pads = fold.all(&Folded::first);
    pads.insert(pads.end(), behind.begin(), behind.end());
    Attributes attributes;
    attributes.set("kernel_shape", fold.all(&Folded::block));
    attributes.set("strides", fold.all(&Folded::block));
    attributes.set("pads", pads);
    attributes.set("channels", fold.channels());
    return b.op("Patches", {weight}, attributes, kHalfnoteDomain);
  }

  /// (O, channels, K, …) as (O, C, k, …), the shape of the weight.
  static Expr unfolded(Builder& b, const Fold& fold, Expr d, const Shape& weight) {
    const size_t spatial = fold.dims.size();
    if (fold.filled() != fold.channels())
      d = b.op("Slice", {d, b.ints({0}), b.ints({fold.filled()}), b.ints({1})});
    Shape apart = {weight[0]},
          whole = {weight[0], weight[1]};  // (O, b, …, C, K, …), (O, C, K·b, …)
    std::vector<int64_t> perm = {0, static_cast<int64_t>(spatial) + 1};
    for (const Folded& dim : fold.dims) apart.push_back(dim.block);
    apart.push_back(weight[1]);
    std::vector<int64_t> first, last, axes;
    bool is_cut = false;
    for (size_t i = 0; i < spatial; ++i) {
      const Folded& dim = fold.dims[i];
      const auto at = static_cast<int64_t>(i);
      apart.push_back(dim.kernel);
      whole.push_back(dim.kernel * dim.block);
      perm.insert(perm.end(), {static_cast<int64_t>(spatial) + 2 + at, 1 + at});
      first.push_back(dim.first);
      last.push_back(dim.first + fold.windows[i].kernel);
      axes.push_back(2 + at);
      is_cut = is_cut || whole.back() != fold.windows[i].kernel;
    }
    d = b.reshape(b.transpose(b.reshape(d, b.ints(apart)), perm), b.ints(whole));
    return is_cut ? b.op("Slice", {d, b.ints(first), b.ints(last), b.ints(axes)}) : d;
  }

  Graph& graph_;
  PassContext& context_;
  std::vector<std::tuple<ValueId, Attributes, ValueId>> made_;
};

}  // namespace

bool gather_taps(Graph& graph, PassContext& context) {
  Gatherer gatherer(graph, context);
  return rewrite_convolutions(
      graph, context, "taps of few channels become channels",
      [&](NodeId id) { return gatherer.rewrite_forward(id); },
      [&](NodeId id) { return gatherer.rewrite_gradient(id); });
}

}  // namespace halfnote
