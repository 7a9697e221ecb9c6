// multiply_patches: a convolution of few channels whose windows lie side by side, as a ViT cuts an
// image into patches, is a matrix product of the patches, and so is the gradient of its weight. For
// GPUs: few channels are little work for the tensor cores of a convolution, patches are rows of a
// product like any other. Here for two spatial dims, kernel (p, q), P = C·p·q, R = N·h·w:
//
//   y = Conv <strides = [p, q]> (x, w, b)
//     ──▶  a = Reshape (Transpose <0, 2, 4, 1, 3, 5> (Reshape (x, [N, C, h, p, w, q])), [R, P])
//          g = Gemm <transB = 1> (a, Reshape (w, [O, P]), b)
//          y = Transpose <0, 3, 1, 2> (Reshape (g, [N, h, w, O]))
//   dw = ConvGradWeight <strides = [p, q]> (dy, x)
//     ──▶  d = Reshape (Transpose <0, 2, 3, 1> (dy), [R, O])
//          dw = Reshape (Gemm <transA = 1> (d, a), [O, C, p, q])
//
// Padding of the channels to a multiple of 8 has no use then: it is looked through. Exact: the same
// products and sums. Leaves alone: groups, pads, dilations, windows that overlap or leave elements
// out, more than 8 channels, products that tensor cores would want padded, bodies.
#include "passes/device/products/multiply_patches.h"

#include <algorithm>

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/products/few_channels.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// With more of them a convolution has enough to multiply in each tap.
constexpr int64_t kMostChannels = 8;
/// Elements of 16 bits in 16 bytes, where rows of operands begin.
constexpr int64_t kRowStep = 8;

/// A convolution of patches, or the gradient of its weight.
struct Patches {
  ValueId image;    // x
  Shape shape;      // its dims
  Shape kernel;     // of the spatial dims
  int64_t outputs;  // O

  size_t spatial() const { return kernel.size(); }
  int64_t length() const { return shape[1] * element_count(kernel); }
  /// Patches along a spatial dim.
  int64_t count(size_t dim) const { return shape[2 + dim] / kernel[dim]; }
  int64_t rows() const {
    int64_t rows = shape[0];
    for (size_t d = 0; d < spatial(); ++d) rows *= count(d);
    return rows;
  }
  /// (N, h, w, O)
  Shape result_channels_last() const {
    Shape result = {shape[0]};
    for (size_t d = 0; d < spatial(); ++d) result.push_back(count(d));
    result.push_back(outputs);
    return result;
  }
  /// (O, C, p, q)
  Shape weight() const {
    Shape weight = {outputs, shape[1]};
    weight.insert(weight.end(), kernel.begin(), kernel.end());
    return weight;
  }
};

bool all_are(const std::vector<int64_t>& numbers, int64_t number) {
  return std::ranges::all_of(numbers, [=](int64_t n) { return n == number; });
}

/// Do the windows of a convolution of `shape` tile it, and is the product one for tensor cores?
bool are_patches(const Attributes& attributes, const Patches& p) {
  const size_t rank = p.shape.size();
  if (rank < 3 || p.spatial() + 2 != rank || element_count(p.kernel) < 2) return false;
  if (attributes.get_ints("strides") != p.kernel || attributes.get_int("group", 1) != 1)
    return false;
  if (!all_are(attributes.get_ints("dilations"), 1) || !all_are(attributes.get_ints("pads"), 0))
    return false;
  const std::string pad = attributes.get_string("auto_pad", "NOTSET");
  if (pad != "NOTSET" && pad != "VALID") return false;
  for (size_t d = 0; d < p.spatial(); ++d) {
    if (p.shape[2 + d] == 0 || p.shape[2 + d] % p.kernel[d] != 0) return false;
  }
  return p.shape[0] > 0 && p.shape[1] > 0 && p.shape[1] <= kMostChannels && p.outputs > 0 &&
         p.length() % kRowStep == 0 && p.outputs % kRowStep == 0;
}

bool is_taken_type(const Graph& graph, ValueId value) {
  const DType dtype = graph.value(value).type.dtype;
  return dtype == DType::kF32 || is_16bit_float(dtype);
}

class Multiplier {
 public:
  Multiplier(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool rewrite_forward(NodeId id) {
    ValueId x = graph_.input(id, 0), w = graph_.input(id, 1);
    const ValueId bias = graph_.input(id, 2);
    const ValueId plain_x = without_channel_padding(graph_, x),
                  plain_w = without_channel_padding(graph_, w);
    auto x_shape = known_shape(graph_, plain_x), w_shape = known_shape(graph_, plain_w);
    if (x_shape && w_shape && w_shape->size() > 2 && (*x_shape)[1] == (*w_shape)[1]) {
      x = plain_x;
      w = plain_w;
    } else {
      x_shape = known_shape(graph_, x);
      w_shape = known_shape(graph_, w);
    }
    if (!x_shape || !w_shape || w_shape->size() < 3 || !is_taken_type(graph_, x)) return false;
    const Patches p{x, *x_shape, Shape(w_shape->begin() + 2, w_shape->end()), (*w_shape)[0]};
    if (!are_patches(graph_.node(id).attributes, p)) return false;
    expand_into(graph_, id, context_.infer, [&](Builder& b) {
      const Expr a = patches(b, p);
      const Expr weight = b.reshape(b.value(w), b.ints({p.outputs, p.length()}));
      Attributes turned;
      turned.set("transB", int64_t{1});
      const Expr product = bias.valid() ? b.op("Gemm", {a, weight, b.value(bias)}, turned)
                                        : b.op("Gemm", {a, weight}, turned);
      std::vector<int64_t> perm = {0, static_cast<int64_t>(p.spatial()) + 1};
      for (size_t d = 0; d < p.spatial(); ++d) perm.push_back(static_cast<int64_t>(d) + 1);
      return b.transpose(b.reshape(product, b.ints(p.result_channels_last())), perm);
    });
    return true;
  }

  bool rewrite_gradient(NodeId id) {
    const ValueId dy = graph_.input(id, 0), padded_x = graph_.input(id, 1);
    const auto dy_shape = known_shape(graph_, dy), padded_shape = known_shape(graph_, padded_x);
    if (!dy_shape || !padded_shape || dy_shape->size() < 3 || !is_taken_type(graph_, dy))
      return false;
    const Attributes attributes = graph_.node(id).attributes;
    Patches p{padded_x, *padded_shape, attributes.get_ints("kernel_shape"), (*dy_shape)[1]};
    // The padding of dw is cut off by the only node that reads it.
    NodeId replaced = id;
    const ValueId x = without_channel_padding(graph_, padded_x);
    if (x != padded_x) {
      Patches plain = p;
      plain.image = x;
      plain.shape = *known_shape(graph_, x);
      if (const NodeId cut = padding_cut(graph_, graph_.output(id), plain.weight()); cut.valid()) {
        p = plain;
        replaced = cut;
      }
    }
    if (!are_patches(attributes, p)) return false;
    const DType result = graph_.value(graph_.output(id)).type.dtype;
    const DType operand = graph_.value(dy).type.dtype;
    graph_.node(replaced).precision = graph_.node(id).precision;
    expand_into(graph_, replaced, context_.infer, [&](Builder& b) {
      std::vector<int64_t> perm = {0};
      for (size_t d = 0; d < p.spatial(); ++d) perm.push_back(static_cast<int64_t>(d) + 2);
      perm.push_back(1);
      const Expr d = b.reshape(b.transpose(b.value(dy), perm), b.ints({p.rows(), p.outputs}));
      Attributes turned;
      turned.set("transA", int64_t{1});
      if (result != operand) turned.set("out_dtype", static_cast<int64_t>(result));
      const Expr product = b.op("Gemm", {d, patches(b, p)}, turned,
                                result == operand ? std::string_view() : kHalfnoteDomain);
      return b.reshape(product, b.ints(p.weight()));
    });
    if (replaced != id) graph_.remove(id);
    return true;
  }

 private:
  /// (R, P); the gradient reads those of the forward pass, which stands before it.
  Expr patches(Builder& b, const Patches& p) {
    for (const auto& [of, made] : made_) {
      if (of.image == p.image && of.kernel == p.kernel) return b.value(made);
    }
    Shape cut = {p.shape[0], p.shape[1]};
    std::vector<int64_t> perm = {0};
    for (size_t d = 0; d < p.spatial(); ++d) {
      cut.push_back(p.count(d));
      cut.push_back(p.kernel[d]);
      perm.push_back(2 + 2 * static_cast<int64_t>(d));
    }
    perm.push_back(1);
    for (size_t d = 0; d < p.spatial(); ++d) perm.push_back(3 + 2 * static_cast<int64_t>(d));
    const Expr pieces = b.transpose(b.reshape(b.value(p.image), b.ints(cut)), perm);
    const Expr made = b.reshape(pieces, b.ints({p.rows(), p.length()}));
    made_.emplace_back(p, made.id);
    return made;
  }

  Graph& graph_;
  PassContext& context_;
  std::vector<std::pair<Patches, ValueId>> made_;
};

}  // namespace

bool multiply_patches(Graph& graph, PassContext& context) {
  Multiplier multiplier(graph, context);
  return rewrite_convolutions(
      graph, context, "a convolution of patches is a matrix product",
      [&](NodeId id) { return multiplier.rewrite_forward(id); },
      [&](NodeId id) { return multiplier.rewrite_gradient(id); });
}

}  // namespace halfnote
