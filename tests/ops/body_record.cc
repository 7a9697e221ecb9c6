#include "tests/ops/body_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "compiler/onnx/export.h"
#include "passes/canonical/infer_shapes.h"

namespace halfnote::test {
namespace {

constexpr int kCasesPerBody = 2;

bool is_wide(const BodyCase& call) {
  return std::any_of(call.inputs.begin(), call.inputs.end(),
                     [](const Tensor& input) { return input.dtype() == DType::kF64; });
}

/// A program of 16-bit steps rounds between them, where the judge's emulation in f32 does not.
bool rounds_inside(const BodyCase& call) {
  if (call.op != std::string_view("Pointwise")) return false;
  const std::string program = call.attributes.get_string("program", "");
  return program.find("f16") != std::string::npos;  // bf16 too
}

/// An output of the graph under this name, readable by numpy.
void publish(Builder& b, Expr value, const std::string& name) {
  Graph& graph = b.graph();
  if (is_16bit_float(value.dtype())) value = b.cast(value, DType::kF32);
  const Expr named = b.op("Identity", {value});
  graph.node(b.last()).name = name;
  graph.rename(named.id, name);
  graph.add_output(graph.main(), named.id);
}

Model model_of(const BodyCase& call, Function body, const std::vector<Tensor>& kernel) {
  Model model;
  model.opsets[""] = kOpsetVersion;
  Graph& graph = model.graph;
  graph.name = call.op;
  Builder b(graph, graph.end(), infer_node);
  std::vector<Expr> operands;
  for (const Tensor& input : call.inputs) {
    operands.push_back(input.defined() ? b.constant(input, "operand") : b.none());
  }
  const auto results = b.ops(call.op, operands, call.outputs, call.attributes, kHalfnoteDomain);
  graph.node(b.last()).overload = body.overload;
  for (size_t i = 0; i < results.size(); ++i) {
    publish(b, results[i], "got_" + std::to_string(i));
    publish(b, b.constant(kernel[i], "expected"), "want_" + std::to_string(i));
  }
  model.functions.push_back(std::move(body));
  return model;
}

}  // namespace

void record_body(const BodyCase& call, const std::vector<Tensor>& kernel) {
  const char* folder = std::getenv("HALFNOTE_BODY_DIR");
  if (folder == nullptr || is_wide(call) || rounds_inside(call)) return;
  static std::map<std::string, int> seen;
  static int number = 0;
  Function body = body_of(call);
  if (seen[call.op + body.overload]++ >= kCasesPerBody) return;
  const std::string file = fmt::format("{:04}_{}.onnx", number++, call.op);
  export_model(model_of(call, std::move(body), kernel), std::filesystem::path(folder) / file);
}

}  // namespace halfnote::test
