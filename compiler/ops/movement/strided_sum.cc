// AddStrided: a part is added to every stride-th pixel. The pass add-strided makes it for a device,
// behind everything that asks for gradients or precision.
#include <limits>

#include "base/error.h"
#include "compiler/ops/movement/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::movement {
namespace {

std::vector<int64_t> strides_of(const Attributes& attributes, size_t spatial) {
  std::vector<int64_t> strides = attributes.get_ints("strides");
  bool fits = spatial > 0 && strides.size() == spatial;
  for (const int64_t stride : strides)
    fits = fits && stride >= 1 && stride <= std::numeric_limits<int32_t>::max();
  if (fits) return strides;
  throw Error(ErrorCode::kModel, "the strides of AddStrided do not fit its operand")
      .expected("a stride for each of " + std::to_string(spatial) + " spatial dims",
                std::to_string(strides.size()) + " strides, or numbers out of range");
}

}  // namespace

std::vector<ValueType> infer_add_strided(const Graph& graph, NodeId node) {
  const ValueType &type = operand_type(graph, node, 0), &part = operand_type(graph, node, 1);
  const SymbolicShape& x = operand_shape(graph, node, 0);
  const size_t spatial = x.size() < 3 ? 0 : x.size() - 2;
  const std::vector<int64_t> strides = strides_of(graph.node(node).attributes, spatial);
  SymbolicShape wanted = x;
  for (size_t d = 0; d < spatial; ++d) {
    Dim& dim = wanted[2 + d];
    if (dim.known())
      dim = Dim(dim.value == 0 ? 0 : (dim.value - 1) / strides[d] + 1);
    else if (strides[d] > 1)
      dim = Dim();
  }
  if (part.dtype != type.dtype || !may_be_alike(operand_shape(graph, node, 1), wanted)) {
    throw Error(ErrorCode::kModel, "the part of AddStrided does not fit X")
        .expected(to_string(ValueType::tensor(type.dtype, wanted)), to_string(part));
  }
  return {type};
}

std::vector<Expr> add_strided_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr x = b.to_math(body.inputs[0]);
  Expr part = b.to_math(body.inputs[1]);
  const std::vector<int64_t> sizes = require_static(x.shape(), 2, "the body of AddStrided");
  const std::vector<int64_t> strides = strides_of(body.attributes, sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto axis = static_cast<int64_t>(2 + d);
    if (strides[d] == 1 || sizes[d] == 0) continue;
    // Zeros behind each pixel, then the pixels and zeros in one line, as long as that of X.
    const int64_t count = part.shape()[2 + d].value;
    const int64_t between = std::min(strides[d], sizes[d]) - 1;
    const Expr apart = unsqueeze(part, {axis + 1});
    const Expr padded = b.op("Pad", {apart, b.ints({0, between}), b.none(), b.ints({axis + 1})});
    const Expr front = dims_of(part, 0, axis), behind = dims_of(part, axis + 1, part.rank());
    const Expr line = b.ints({count * (between + 1)});
    const Expr shape = b.op("Concat", {front, line, behind}, {{"axis", int64_t{0}}});
    part = b.op("Slice", {reshape_exactly(padded, shape), b.ints({0}), b.ints({sizes[d]}),
                          b.ints({axis}), b.ints({1})});
  }
  return {b.cast(x + part, body.output_types[0].dtype)};
}

}  // namespace halfnote::movement
