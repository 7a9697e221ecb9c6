#include "tests/ops/body_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "compiler/ops/body.h"
#include "passes/canonical/infer_shapes.h"
#include "runtime/core/evaluate.h"
#include "tests/ops/body_record.h"

namespace halfnote::test {
namespace {

/// SplitMix64: a well-mixed word for each counter.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

bool is_constant(const BodyCase& call, size_t input) {
  return std::find(call.constants.begin(), call.constants.end(), input) != call.constants.end();
}

/// The type of operand `index`; the batch is a symbol where the case says so.
ValueType type_of(const BodyCase& call, size_t index) {
  const Tensor& input = call.inputs[index];
  SymbolicShape shape = symbolic(input.shape());
  const Shape& first = call.inputs[0].shape();
  const bool has_batch = call.symbolic_batch && !first.empty() && !shape.empty();
  if (has_batch && shape[0].is(first[0]) && first[0] != 1) shape[0] = Dim::named("N");
  return ValueType::tensor(input.dtype(), std::move(shape));
}

DType math_type(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

void expect_elements_close(const Tensor& a, const Tensor& b, double sums, size_t output) {
  double largest = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a.at_as_double(i))) largest = std::max(largest, std::fabs(a.at_as_double(i)));
  }
  for (int64_t i = 0; i < a.size(); ++i) {
    const double x = a.at_as_double(i), y = b.at_as_double(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double bound = spacing(a.dtype()) * std::max(std::fabs(x), std::fabs(y)) +
                         sums * spacing(math_type(a.dtype())) * largest;
    ASSERT_LE(std::fabs(x - y), bound)
        << "output " << output << " " << short_name(a.dtype()) << to_string(a.shape())
        << " element " << i << ": kernel " << x << ", body " << y;
  }
}

}  // namespace

Graph graph_of(const BodyCase& call) {
  Graph graph;
  NodeSpec spec{call.op, {}, call.attributes, std::string(kHalfnoteDomain), call.name};
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor& input = call.inputs[i];
    const std::string name = "in" + std::to_string(i);
    if (!input.defined()) {
      spec.inputs.emplace_back();
    } else if (is_constant(call, i)) {
      spec.inputs.push_back(graph.add_initializer(name, input));
    } else {
      spec.inputs.push_back(graph.add_input(graph.main(), name, type_of(call, i)));
    }
  }
  const NodeId node = graph.create(std::move(spec), call.outputs, graph.end());
  infer_node(graph, node);
  for (ValueId output : graph.outputs(node)) graph.add_output(graph.main(), output);
  return graph;
}

std::vector<Tensor> graph_inputs(const BodyCase& call) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].defined() && !is_constant(call, i)) inputs.push_back(call.inputs[i]);
  }
  return inputs;
}

Function body_of(const BodyCase& call) {
  const Graph graph = graph_of(call);
  return build_body(graph, graph.first(graph.main()), infer_node);
}

std::vector<Tensor> run_kernel(const BodyCase& call) {
  return evaluate(graph_of(call), graph_inputs(call));
}

std::vector<Tensor> run_body(const BodyCase& call) {
  return evaluate(body_of(call).body, call.inputs);
}

Tensor random_tensor(DType dtype, Shape shape, uint64_t seed, double low, double high) {
  Tensor tensor(DType::kF64, std::move(shape));
  auto data = tensor.mutable_data<double>();
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = low + (high - low) * 0x1p-53 * static_cast<double>(mix(seed * 1000003 + i) >> 11);
  }
  return tensor.cast_to(dtype);
}

Tensor random_ints(DType dtype, Shape shape, uint64_t seed, int64_t low, int64_t high) {
  Tensor tensor(DType::kI64, std::move(shape));
  auto data = tensor.mutable_data<int64_t>();
  for (size_t i = 0; i < data.size(); ++i) {
    const uint64_t span = static_cast<uint64_t>(high - low);
    data[i] = low + static_cast<int64_t>(mix(seed * 1000003 + i) % span);
  }
  return tensor.cast_to(dtype);
}

Tensor ints(const std::vector<int64_t>& numbers) {
  return Tensor::of<int64_t>({static_cast<int64_t>(numbers.size())}, numbers);
}

double spacing(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-52;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

void expect_close(const std::vector<Tensor>& kernel, const std::vector<Tensor>& body, double sums) {
  ASSERT_EQ(kernel.size(), body.size());
  for (size_t i = 0; i < kernel.size(); ++i) {
    ASSERT_EQ(kernel[i].dtype(), body[i].dtype()) << "output " << i;
    ASSERT_EQ(kernel[i].shape(), body[i].shape()) << "output " << i;
    if (!is_float(kernel[i].dtype())) {
      EXPECT_TRUE(identical(kernel[i], body[i])) << "output " << i;
      continue;
    }
    expect_elements_close(kernel[i], body[i], sums, i);
  }
}

void expect_body_agrees(const BodyCase& call, double sums) {
  SCOPED_TRACE(call.op + ": " + call.name);
  const std::vector<Tensor> kernel = run_kernel(call);
  for (bool symbolic_batch : {false, true}) {
    BodyCase variant = call;
    variant.symbolic_batch = symbolic_batch;
    record_body(variant, kernel);
    expect_close(kernel, run_body(variant), sums);
  }
}

void expect_body_identical(const BodyCase& call) {
  SCOPED_TRACE(call.op + ": " + call.name);
  const std::vector<Tensor> kernel = run_kernel(call);
  for (bool symbolic_batch : {false, true}) {
    BodyCase variant = call;
    variant.symbolic_batch = symbolic_batch;
    record_body(variant, kernel);
    const std::vector<Tensor> body = run_body(variant);
    ASSERT_EQ(kernel.size(), body.size());
    for (size_t i = 0; i < kernel.size(); ++i) {
      EXPECT_TRUE(identical(kernel[i], body[i])) << "output " << i;
    }
  }
}

}  // namespace halfnote::test
