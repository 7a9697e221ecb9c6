// absorb_sums: a sum or a mean over the first dims of what elementwise nodes make (the gradient of
// a bias, mostly), over its last ones (the mean of squares of a normalization, the gradient of what
// is broadcast along rows) or over all of it (a loss) is taken while this is in the cache.
//
//   g = ai.halfnote.Pointwise <program = "t0 = …; t1 = …; out t1"> (dy, x)
//   v = Reshape (g, [rows, columns])
//   b = ReduceSum (v, [0])
//     ──▶  g, b = ai.halfnote.Pointwise <program = "…; t2 = ReduceSum[0, 2](t1); out t1, t2"> (…)
//   s = ReduceMean (v, [1])
//     ──▶  g, s = ai.halfnote.Pointwise <program = "…; t2 = ReduceMean[-1, 1](t1); out t1, t2"> (…)
//
// Exact on a CPU, whose kernels add in the order in which that of ReduceSum adds; those of GPUs add
// in f64 in an order of their own. A mean is divided before it is rounded, as that of ReduceMean
// is. What only the sum has read is not stored any more. Runs behind fuse-pointwise, whose nodes it
// extends, and single elementwise nodes too.
//
// Leaves alone: a second sum of the same node; columns and rows of less than kLeast elements; sums
// over other dims, and over dims that a view has split or merged otherwise; axes that are computed;
// f64, which no program holds; sums of squares and norms, whose terms are not rounded before they
// are added. And sums over all positions of an image ((N, C, H, W) and more dims): the plan keeps
// images channels last or in blocks, where they are no rows, and sums them there.
#include "passes/device/pointwise/absorb_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/device/live_ranges.h"
#include "passes/device/pointwise/fuse_pointwise.h"

namespace halfnote {
namespace {

/// Below, columns are too few for the loops that add them, and rows too short.
constexpr int64_t kLeast = 8;
/// Dims from which a tensor may be an image: (N, C, H, W).
constexpr size_t kImageDims = 4;
constexpr int kMostViews = 8;
constexpr size_t kMostSteps = 32;

/// The dims that a sum takes away; nothing if they are not known, or none.
std::optional<std::set<int64_t>> summed_dims(const Graph& graph, NodeId sum, size_t rank) {
  const Node& node = graph.node(sum);
  std::vector<int64_t> axes = node.attributes.get_ints("axes");
  if (graph.inputs(sum).size() > 1 && graph.input(sum, 1).valid()) {
    const Tensor* given = graph.constant(graph.input(sum, 1));
    if (given == nullptr) return std::nullopt;
    axes = given->to_ints();
  }
  if (axes.empty() && node.attributes.get_int("noop_with_empty_axes", 0) == 0) {
    for (size_t d = 0; d < rank; ++d) axes.push_back(static_cast<int64_t>(d));
  }
  std::set<int64_t> dims;
  for (const int64_t axis : axes) dims.insert(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
  return dims.empty() ? std::nullopt : std::optional(dims);
}

/// The elements as a matrix: the dims in front are kept and those behind summed, or the other way
/// round. No columns where kept and summed dims lie among each other, or where there are no
/// elements.
struct Matrix {
  bool along_rows = false;
  int64_t columns = 0;
};

Matrix matrix_of(const Shape& shape, const std::set<int64_t>& dims) {
  int changes = 0;
  Matrix matrix;
  if (element_count(shape) == 0) return matrix;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const bool is_summed = dims.contains(static_cast<int64_t>(d));
    if (matrix.columns == 0 || is_summed != matrix.along_rows) {
      changes += matrix.columns == 0 ? 0 : 1;
      matrix = {is_summed, 1};
    }
    matrix.columns *= shape[d];
  }
  return changes > 1 ? Matrix{} : matrix;
}

/// The number of last dims of `shape` that have so many elements, or nothing.
std::optional<size_t> dims_of(const Shape& shape, int64_t columns) {
  int64_t behind = 1;
  for (size_t count = 0; count <= shape.size(); ++count) {
    if (behind == columns) return count;
    if (behind > columns || behind == 0 || count == shape.size()) break;
    behind *= shape[shape.size() - 1 - count];
  }
  return std::nullopt;
}

/// What a program is to sum of `shape`; nothing if that is not as above.
std::optional<PointwiseSum> sum_over(const Shape& shape, const Matrix& matrix, bool is_mean) {
  const std::optional<size_t> last = dims_of(shape, matrix.columns);
  if (!last || *last == 0) return std::nullopt;
  const size_t first = shape.size() - *last;
  if (matrix.along_rows) {
    if (shape.size() >= kImageDims && first <= 2) return std::nullopt;
    return PointwiseSum{0, *last, true, is_mean};
  }
  if (element_count(shape) <= matrix.columns) return std::nullopt;
  return PointwiseSum{0, first, false, is_mean};
}

/// A sum, and the elementwise node that makes what it adds up.
struct Found {
  NodeId maker;
  ValueId made;
  PointwiseSum sum;
  bool alone = true;  // nobody else reads it
};

class Absorber {
 public:
  Absorber(Graph& graph, PassContext& context) : graph_(graph), infer_(context.infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId sum : graph_.nodes()) {
      const std::optional<Found> found = find(sum);
      if (!found) continue;
      absorb(sum, *found);
      changed = true;
    }
    return changed;
  }

 private:
  DType dtype_of(ValueId value) const { return graph_.value(value).type.dtype; }
  Shape shape_of(ValueId value) const { return concrete(*graph_.value(value).type.shape); }
  bool is_known(ValueId value) const {
    return value.valid() && graph_.value(value).type.has_concrete_shape();
  }

  std::vector<DType> types_of(std::span<const ValueId> values) const {
    std::vector<DType> types;
    for (const ValueId value : values) types.push_back(dtype_of(value));
    return types;
  }

  bool is_program(NodeId node) const {
    return graph_.node(node).op == "Pointwise" && graph_.node(node).domain == kHalfnoteDomain;
  }

  std::optional<Found> find(NodeId sum) const {
    const Node& node = graph_.node(sum);
    const bool is_mean = node.op == "ReduceMean";
    if ((node.op != "ReduceSum" && !is_mean) || !graph_.subgraphs(sum).empty()) return std::nullopt;
    ValueId made = graph_.input(sum, 0);
    const ValueId result = graph_.output(sum);
    if (!is_known(made) || !is_known(result)) return std::nullopt;
    const auto dims = summed_dims(graph_, sum, shape_of(made).size());
    if (!dims) return std::nullopt;
    const Matrix matrix = matrix_of(shape_of(made), *dims);
    if (matrix.columns < kLeast) return std::nullopt;
    NodeId maker = producer(graph_, made);
    bool alone = graph_.uses(made).size() == 1;
    for (int i = 0; i < kMostViews && maker.valid() && is_view(graph_.node(maker)); ++i) {
      made = graph_.input(maker, 0);
      maker = producer(graph_, made);
      alone = alone && graph_.uses(made).size() == 1;
    }
    if (!maker.valid() || graph_.node(maker).region != node.region || !is_known(made))
      return std::nullopt;
    const auto found = sum_over(shape_of(made), matrix, is_mean);
    if (!found || !can_sum(maker, made, dtype_of(result))) return std::nullopt;
    return Found{maker, made, *found, alone};
  }

  bool can_sum(NodeId maker, ValueId made, DType result) const {
    if (!is_program(maker)) {
      const PointwiseRow* row = pointwise_row_of(graph_, maker);
      if (row == nullptr || row->code == PointwiseOp::kIdentity) return false;
    } else {
      const PointwiseProgram program = program_of(maker);
      if (sum_of(program) || program.steps.size() >= kMostSteps) return false;
    }
    const DType types[] = {dtype_of(made)};
    return unfit_types(pointwise_row(PointwiseOp::kReduceSum), types, result).empty();
  }

  /// The program of a node; of a single operator its one step.
  PointwiseProgram program_of(NodeId node) const {
    const auto inputs = graph_.inputs(node);
    if (is_program(node)) {
      return parse_pointwise(graph_.node(node).attributes.get_string("program", ""),
                             types_of(inputs), types_of(graph_.outputs(node)));
    }
    const PointwiseRow& row = *pointwise_row_of(graph_, node);
    PointwiseStep step{row.code,
                       {},
                       pointwise_parameters(row, graph_.node(node).attributes),
                       dtype_of(graph_.output(node))};
    for (size_t i = 0; i < inputs.size(); ++i) step.operands[i] = static_cast<int>(i);
    return {{step}, {0}};
  }

  void absorb(NodeId sum, const Found& found) {
    PointwiseProgram program = program_of(found.maker);
    std::vector<ValueId> results(graph_.outputs(found.maker).begin(),
                                 graph_.outputs(found.maker).end());
    const auto place = std::ranges::find(results, found.made) - results.begin();
    const auto step = static_cast<int>(program.steps.size());
    program.steps.push_back({found.sum.is_mean ? PointwiseOp::kReduceMean : PointwiseOp::kReduceSum,
                             {~program.outputs[static_cast<size_t>(place)]},
                             sum_parameters(found.sum),
                             dtype_of(graph_.output(sum))});
    if (found.alone) {
      program.outputs.erase(program.outputs.begin() + place);
      results.erase(results.begin() + place);
    }
    program.outputs.push_back(step);
    const NodeId made = make(found, sum, program, results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId to = graph_.output(made, i);
      graph_.value(to).type = graph_.value(results[i]).type;
      graph_.value(to).scale_power = graph_.value(results[i]).scale_power;
      graph_.replace_uses(results[i], to);
    }
    replace_sum(sum, found, made, graph_.output(made, results.size()));
    std::vector<std::string> names;
    for (const ValueId result : results) names.push_back(graph_.value(result).name);
    graph_.remove(found.maker);
    for (size_t i = 0; i < names.size(); ++i) graph_.rename(graph_.output(made, i), names[i]);
  }

  /// The node that stands for maker and sum, at the place of the maker; the last output is the sum.
  NodeId make(const Found& found, NodeId sum, const PointwiseProgram& program, size_t others) {
    const Node& maker = graph_.node(found.maker);
    NodeSpec spec;
    spec.op = "Pointwise";
    spec.domain = kHalfnoteDomain;
    spec.name = graph_.label(found.maker);
    spec.inputs.assign(graph_.inputs(found.maker).begin(), graph_.inputs(found.maker).end());
    std::vector<std::string> nodes;
    if (is_program(found.maker)) {
      const Attribute* given = maker.attributes.find("nodes");
      const auto* all = given ? std::get_if<std::vector<std::string>>(given) : nullptr;
      if (all != nullptr) nodes = *all;
    } else {
      nodes.push_back(spec.name);
    }
    nodes.push_back(graph_.label(sum));
    spec.attributes.set("program", to_text(program));
    spec.attributes.set("nodes", std::move(nodes));
    std::vector<std::string> names;
    for (size_t i = 0; i <= others; ++i)
      names.push_back(graph_.unique_name(fmt::format("{}.summed.{}", spec.name, i)));
    const NodeId made = graph_.create(std::move(spec), names, graph_.after(found.maker));
    graph_.node(made).role = graph_.node(found.maker).role;
    graph_.node(made).precision = graph_.node(found.maker).precision;
    graph_.node(made).origin = graph_.node(found.maker).origin;
    return made;
  }

  /// Gives the sum's uses to `total`, and takes away the views that only the sum has read.
  void replace_sum(NodeId sum, const Found& found, NodeId made, ValueId total) {
    const ValueId old = graph_.output(sum);
    const Shape shape = kept_dims(shape_of(found.made), found.sum), wanted = shape_of(old);
    graph_.value(total).type = ValueType::tensor(dtype_of(old), symbolic(shape));
    graph_.value(total).scale_power = graph_.value(old).scale_power;
    ValueId result = total;
    if (shape != wanted) {
      Builder b(graph_, graph_.after(made), infer_);
      b.set_role(graph_.node(sum).role);
      result = b.reshape(b.value(total), b.ints({wanted.begin(), wanted.end()})).id;
      graph_.value(result).scale_power = graph_.value(old).scale_power;
    }
    take_place(graph_, old, result);
    NodeId gone = sum;
    while (gone.valid() && gone != found.maker && !graph_.has_uses(graph_.output(gone))) {
      const NodeId next = producer(graph_, graph_.input(gone, 0));
      graph_.remove(gone);
      gone = next;
    }
  }

  Graph& graph_;
  InferNode infer_;
};

}  // namespace

bool absorb_sums(Graph& graph, PassContext& context) { return Absorber(graph, context).run(); }

}  // namespace halfnote
