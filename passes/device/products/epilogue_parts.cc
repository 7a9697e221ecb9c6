#include "passes/device/products/epilogue_parts.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/ops/pointwise.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/live_ranges.h"
#include "passes/device/pointwise/fuse_pointwise.h"

namespace halfnote::epilogues {
namespace {

/// The dims of a float; nothing if they are not known, or there are none.
std::optional<Shape> matrix_shape(const Graph& graph, ValueId value) {
  if (!value.valid() || !is_float(graph.value(value).type.dtype)) return std::nullopt;
  auto shape = known_shape(graph, value);
  if (!shape || shape->size() < 2 || element_count(*shape) == 0) return std::nullopt;
  return shape;
}

DType dtype_of(const Graph& graph, ValueId value) { return graph.value(value).type.dtype; }

// --- what an elementwise node computes -----------------------------------------------------------

/// A program of one step for a node that is none.
std::optional<PointwiseProgram> program_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const auto inputs = graph.inputs(id);
  if (node.domain == kHalfnoteDomain && node.op == "Pointwise") {
    std::vector<DType> types;
    for (const ValueId input : inputs) types.push_back(dtype_of(graph, input));
    return parse_pointwise(node.attributes.get_string("program", ""), types,
                           graph.outputs(id).size());
  }
  const PointwiseRow* row = pointwise_row_of(graph, id);
  if (row == nullptr) return std::nullopt;
  PointwiseStep step{row->code,
                     {},
                     pointwise_parameters(*row, node.attributes),
                     dtype_of(graph, graph.output(id))};
  for (size_t i = 0; i < inputs.size(); ++i) step.operands[i] = static_cast<int>(i);
  return PointwiseProgram{{step}, {0}};
}

double gelu_gate(double x) {
  return 1 / (1 + std::exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}
double gelu(double x) { return x * gelu_gate(x); }
double gelu_slope(double x) {
  const double twice_slope = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x), gate = gelu_gate(x);
  return gate + x * twice_slope * gate * (1 - gate);
}

/// A step in f64; nothing for the ops that are part of no spelling.
std::optional<double> value_of(const PointwiseStep& step, double a, double b) {
  using enum PointwiseOp;
  const bool by_tanh = step.parameters[0] != 0;
  switch (step.op) {
    case kAdd:
      return a + b;
    case kSub:
      return a - b;
    case kMul:
      return a * b;
    case kDiv:
      return a / b;
    case kPow:
      return std::pow(a, b);
    case kCast:
    case kIdentity:
      return a;
    case kNeg:
      return -a;
    case kTanh:
      return std::tanh(a);
    case kTanhGrad:
      return a * (1 - b * b);
    case kSigmoid:
      return 1 / (1 + std::exp(-a));
    case kSigmoidGrad:
      return a * b * (1 - b);
    case kGelu:
      return by_tanh ? std::optional(gelu(a)) : std::nullopt;
    case kGeluGrad:
      return by_tanh ? std::optional(a * gelu_slope(b)) : std::nullopt;
    case kRelu:
      return a > 0 ? a : 0;
    case kReluGrad:
      return b > 0 ? a : 0;
    default:
      return std::nullopt;
  }
}

/// The numbers of all steps but a sum, given those of the inputs; empty if one has none.
std::vector<double> run(const PointwiseProgram& program, const std::vector<double>& inputs) {
  std::vector<double> results;
  for (const PointwiseStep& step : program.steps) {
    if (is_sum(step.op)) {
      results.push_back(0);
      continue;
    }
    const auto operand = [&](size_t i) {
      const int at = step.operands[i];
      return at >= 0 ? inputs[static_cast<size_t>(at)] : results[static_cast<size_t>(~at)];
    };
    const bool two = pointwise_row(step.op).arity > 1;
    const auto value = value_of(step, operand(0), two ? operand(1) : 0.0);
    if (!value) return {};
    results.push_back(*value);
  }
  return results;
}

/// One number in a tensor that is known.
std::optional<double> number_of(const Graph& graph, ValueId value) {
  const Tensor* tensor = graph.constant(value);
  if (tensor == nullptr || tensor->size() != 1 || !is_float(tensor->dtype())) return std::nullopt;
  return tensor->cast_to(DType::kF64).data<double>()[0];
}

/// An elementwise node whose operands are known numbers but for a few.
struct Formula {
  PointwiseProgram program;
  std::vector<double> inputs;
  std::vector<ValueId> open;            // operands that are no numbers, each once
  std::vector<std::vector<size_t>> of;  // the inputs of each of them
  size_t result = 0;                    // the step of the one result that is no sum
  Elementwise found;                    // with node, result and sum

  /// The result for numbers in place of the open operands; NaN where it cannot be told.
  double at(const std::vector<double>& numbers) const {
    std::vector<double> all = inputs;
    for (size_t i = 0; i < open.size(); ++i) {
      for (const size_t input : of[i]) all[input] = numbers[i];
    }
    const std::vector<double> results = run(program, all);
    return results.empty() ? std::nan("") : results[result];
  }
};

/// The outputs: one elementwise, and maybe the sums down to its last dim.
bool read_outputs(const Graph& graph, Formula& f) {
  const auto outputs = graph.outputs(f.found.node);
  const auto sum = sum_of(f.program);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].valid()) return false;
    if (sum && sum->output == i) {
      f.found.sum = outputs[i];
    } else if (f.found.result.valid()) {
      return false;
    } else {
      f.found.result = outputs[i];
      f.result = static_cast<size_t>(f.program.outputs[i]);
    }
  }
  const auto shape = matrix_shape(graph, f.found.result);
  if (!shape) return false;
  if (!sum) return true;
  // What is summed must be the result, or its like before it was rounded.
  return !sum->along_rows && !sum->is_mean && sum->dims + 1 == shape->size();
}

/// Does the sum add up what the result is?
bool sums_result(const Formula& f, const std::vector<double>& numbers) {
  std::vector<double> all = f.inputs;
  for (size_t i = 0; i < f.open.size(); ++i) {
    for (const size_t input : f.of[i]) all[input] = numbers[i];
  }
  const std::vector<double> results = run(f.program, all);
  for (const PointwiseStep& step : f.program.steps) {
    if (!is_sum(step.op) || results.empty()) continue;
    const int at = step.operands[0];
    const double summed =
        at >= 0 ? all[static_cast<size_t>(at)] : results[static_cast<size_t>(~at)];
    if (summed != results[f.result]) return false;
  }
  return true;
}

std::optional<Formula> formula_of(const Graph& graph, NodeId node) {
  auto program = program_of(graph, node);
  if (!program) return std::nullopt;
  Formula f;
  f.program = std::move(*program);
  f.found.node = node;
  if (!read_outputs(graph, f)) return std::nullopt;
  const auto inputs = graph.inputs(node);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto number = number_of(graph, inputs[i]);
    f.inputs.push_back(number.value_or(0));
    if (number) continue;
    const auto known = std::ranges::find(f.open, inputs[i]);
    const auto at = static_cast<size_t>(known - f.open.begin());
    if (known == f.open.end()) {
      f.open.push_back(inputs[i]);
      f.of.emplace_back();
    }
    f.of[at].push_back(i);
  }
  return f;
}

constexpr int kPlaces = 101;
constexpr double kFarthest = 10;
/// Constants are written with the digits of f32 or fewer; the other GELU, by erf, is 5e-4 away.
constexpr double kAgreement = 2e-6;

double place(int i) { return kFarthest * (2.0 * i / (kPlaces - 1) - 1); }
bool agree(double got, double wanted, double scale) {
  return std::fabs(got - wanted) <= kAgreement * std::max(1.0, scale);
}

bool is_activation(const Formula& f, GemmActivation activation, bool biased, size_t z) {
  for (int i = 0; i < kPlaces; ++i) {
    std::vector<double> numbers(f.open.size());
    numbers[z] = place(i);
    if (biased) numbers[1 - z] = place((37 * i) % kPlaces) / 4;
    double sum = numbers[z];
    if (biased) sum += numbers[1 - z];
    const double wanted = activation == GemmActivation::kGelu ? gelu(sum) : std::max(sum, 0.0);
    if (!agree(f.at(numbers), wanted, std::fabs(sum))) return false;
  }
  return true;
}

bool is_gradient(const Formula& f, GemmActivation activation, size_t z) {
  for (int i = 0; i < kPlaces; ++i) {
    std::vector<double> numbers(2);
    numbers[z] = place((37 * i) % kPlaces);
    const bool gelu_like = activation == GemmActivation::kGelu;
    const double saved = gelu_like ? place(i) : std::max(place(i), 0.0);
    numbers[1 - z] = saved;
    const double slope = gelu_like ? gelu_slope(saved) : saved > 0 ? 1.0 : 0.0;
    if (!agree(f.at(numbers), numbers[z] * slope, std::fabs(numbers[z]))) return false;
    if (!sums_result(f, numbers)) return false;
  }
  return true;
}

/// The place of the one open operand that is `z` or a view of it; nothing if that is none or two.
std::optional<size_t> place_of(const Graph& graph, const Formula& f, ValueId z) {
  std::optional<size_t> found;
  for (size_t i = 0; i < f.open.size(); ++i) {
    if (viewed(graph, f.open[i]) != viewed(graph, z)) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

bool has_shape_of(const Graph& graph, ValueId value, ValueId like) {
  const auto shape = known_shape(graph, value), wanted = known_shape(graph, like);
  return shape && wanted && *shape == *wanted && dtype_of(graph, value) == dtype_of(graph, like);
}

constexpr GemmActivation kActivations[] = {GemmActivation::kRelu, GemmActivation::kGelu};

}  // namespace

std::optional<Product> product_of(const Graph& graph, NodeId id) {
  if (!id.valid()) return std::nullopt;
  const Node& node = graph.node(id);
  if (!node.domain.empty() && node.domain != kHalfnoteDomain) return std::nullopt;
  if (node.op != "MatMul" && node.op != "Gemm") return std::nullopt;
  const Attributes& attributes = node.attributes;
  if (attributes.get_float("alpha", 1) != 1 || attributes.get_float("beta", 1) != 1)
    return std::nullopt;
  Product p;
  p.node = id;
  p.a = graph.input(id, 0);
  p.b = graph.input(id, 1);
  p.bias = graph.input(id, 2);
  p.trans_a = attributes.get_int("transA", 0) != 0;
  p.trans_b = attributes.get_int("transB", 0) != 0;
  const auto a = matrix_shape(graph, p.a), b = matrix_shape(graph, p.b),
             y = matrix_shape(graph, graph.output(id));
  if (!a || !b || !y || b->size() != 2 || y->size() != a->size()) return std::nullopt;
  if (p.trans_a && a->size() > 2) return std::nullopt;
  p.n = y->back();
  p.m = element_count(*y) / p.n;
  p.k = p.trans_a ? a->front() : a->back();
  p.operands = dtype_of(graph, p.a);
  p.result = dtype_of(graph, graph.output(id));
  if (dtype_of(graph, p.b) != p.operands) return std::nullopt;
  if (!p.bias.valid()) return p;
  const auto bias = known_shape(graph, p.bias);
  if (!bias || *bias != Shape{p.n} || dtype_of(graph, p.bias) != p.operands) return std::nullopt;
  return p;
}

ValueId viewed(const Graph& graph, ValueId value) {
  NodeId maker = producer(graph, value);
  while (maker.valid() && is_view(graph.node(maker))) {
    value = graph.input(maker, 0);
    maker = producer(graph, value);
  }
  return value;
}

std::optional<std::vector<NodeId>> readers_through_views(const Graph& graph, ValueId value) {
  std::vector<NodeId> readers;
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    const ValueId next = open.back();
    open.pop_back();
    for (const Use& use : graph.uses(next)) {
      if (!use.by_node() || graph.node(use.node()).region != graph.main()) return std::nullopt;
      if (is_view(graph.node(use.node())) && use.slot == 0) {
        open.push_back(graph.output(use.node()));
      } else if (std::ranges::find(readers, use.node()) == readers.end()) {
        readers.push_back(use.node());
      }
    }
  }
  return readers;
}

std::optional<Elementwise> activation_of(const Graph& graph, NodeId node, ValueId z) {
  const auto f = formula_of(graph, node);
  if (!f || f->found.sum.valid() || f->open.empty() || f->open.size() > 2) return std::nullopt;
  const auto at = place_of(graph, *f, z);
  if (!at || !has_shape_of(graph, f->open[*at], f->found.result)) return std::nullopt;
  const bool biased = f->open.size() == 2;
  Elementwise found = f->found;
  found.z = f->open[*at];
  if (biased) {
    found.bias = f->open[1 - *at];
    const auto bias = known_shape(graph, found.bias), y = known_shape(graph, found.result);
    if (!bias || *bias != Shape{y->back()}) return std::nullopt;
    if (dtype_of(graph, found.bias) != dtype_of(graph, found.z)) return std::nullopt;
  }
  for (const GemmActivation activation : kActivations) {
    if (!is_activation(*f, activation, biased, *at)) continue;
    found.activation = activation;
    return found;
  }
  return std::nullopt;
}

std::optional<Elementwise> gradient_of(const Graph& graph, NodeId node, ValueId z) {
  const auto f = formula_of(graph, node);
  if (!f || f->open.size() != 2) return std::nullopt;
  const auto at = place_of(graph, *f, z);
  if (!at) return std::nullopt;
  for (const ValueId operand : f->open) {
    if (!has_shape_of(graph, operand, f->found.result)) return std::nullopt;
  }
  for (const GemmActivation activation : kActivations) {
    if (!is_gradient(*f, activation, *at)) continue;
    Elementwise found = f->found;
    found.activation = activation;
    found.z = f->open[*at];
    found.saved = f->open[1 - *at];
    return found;
  }
  return std::nullopt;
}

}  // namespace halfnote::epilogues
