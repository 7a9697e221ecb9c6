#include "support.h"

#include <cmath>
#include <cstring>

#include "compiler/ir/hash.h"
#include "compiler/ir/text.h"
#include "compiler/ir/verify.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/device/emit_step.h"
#include "passes/passes.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"

namespace halfnote::test {
namespace {

constexpr std::string_view kHeader =
    "<ir_version: 10, opset_import: [\"\" : 23, \"ai.halfnote\" : 1]>\n";
constexpr int64_t kDefaultDim = 3;

bool emit_plain(Model& model, PassContext&) {
  model = emit_step(model, "step", Emulation::kNone);
  return true;
}

constexpr PassRow kEmitRows[] = {
    {"emulate-16bit", emulate_16bit, nullptr, Scope::kEveryGraph, Stage::kImported,
     Stage::kImported, true, "for judges without 16-bit kernels"},
    {"emit-step", nullptr, emit_plain, Scope::kEveryGraph, Stage::kImported, Stage::kImported,
     false, "for runtimes that ignore training_info"},
};

Shape shape_of(const ValueType& type, const std::map<std::string, int64_t>& dims) {
  Shape shape;
  for (const Dim& dim : *type.shape) {
    const auto bound = dim.known() ? dims.end() : dims.find(dim.symbol);
    shape.push_back(dim.known() ? dim.value : bound == dims.end() ? kDefaultDim : bound->second);
  }
  return shape;
}

Tensor generate(const std::string& name, DType dtype, const Shape& shape, uint64_t seed) {
  const bool whole = !is_float(dtype);
  Tensor numbers(DType::kF32, shape);
  uint64_t state = hash_mix(hash_text(name), seed);
  for (float& x : numbers.mutable_data<float>()) {
    state = hash_mix(state, 0x9e3779b97f4a7c15u);
    x = whole ? static_cast<float>(state >> 40 & 1u)
              : (static_cast<float>(state >> 40 & 31u) - 16.0f) / 8.0f;
  }
  return numbers.cast_to(dtype);
}

void execute_graph(const Graph& source, const std::string& prefix, Results& results,
                   const std::map<std::string, int64_t>& dims, const Feeds& feeds, uint64_t seed) {
  Graph graph = source;
  std::vector<std::string> names;
  for (ValueId output : graph.outputs()) names.push_back(graph.value(output).name);
  for (const State& state : graph.states()) {
    names.push_back(graph.value(state.current).name + ".new");
    graph.add_output(graph.main(), state.next);
  }
  std::vector<Tensor> inputs;
  for (ValueId input : graph.inputs()) {
    const auto fed = feeds.find(graph.value(input).name);
    inputs.push_back(fed != feeds.end() ? fed->second : test_input(graph, input, dims, seed));
  }
  const std::vector<Tensor> outputs = evaluate(graph, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) results[prefix + "/" + names[i]] = outputs[i];
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.byte_size() == b.byte_size() &&
         std::memcmp(a.bytes(), b.bytes(), a.byte_size()) == 0;
}

void expect_close(const std::string& name, const Tensor& a, const Tensor& b, double bound) {
  ASSERT_EQ(a.dtype(), b.dtype()) << name;
  ASSERT_EQ(a.shape(), b.shape()) << name;
  double largest = 1;
  for (int64_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a.at_as_double(i)));
  for (int64_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(std::abs(a.at_as_double(i) - b.at_as_double(i)), bound * largest)
        << name << " at " << i;
  }
}

}  // namespace

Model model_of(std::string_view text) {
  const bool has_header = text.starts_with("<");
  Model model = parse_model((has_header ? "" : std::string(kHeader)) + std::string(text), "test");
  verify(model, {.code = ErrorCode::kModel});
  return model;
}

PassRow row_of(std::string_view name) {
  for (const PassRow& row : compile_pipeline()) {
    if (row.name == name) return row;
  }
  for (const PassRow& row : device_pipeline()) {
    if (row.name == name) return row;
  }
  for (const PassRow& row : kEmitRows) {
    if (row.name == name) return row;
  }
  throw Error(ErrorCode::kUsage, "no pass \"" + std::string(name) + "\"");
}

std::vector<PassRow> rows_before(std::string_view name) {
  std::vector<PassRow> rows;
  for (const PassRow& row : compile_pipeline()) {
    if (row.name == name) break;
    rows.push_back(row);
  }
  return rows;
}

Ran run_rows(Model& model, const CompileOptions& options, std::vector<PassRow> rows) {
  Ran ran;
  const EvaluateConstants fold = [](const Graph& graph, NodeId node,
                                    const std::vector<Tensor>& inputs) {
    return evaluate_node(graph, node, inputs);
  };
  const Pays always = [](const Exchange&) { return true; };
  PassContext context{options, infer_node, fold, ran.remarks, {}, always};
  for (PassRow& row : rows) row.needs = Stage::kImported;
  for (const PassRecord& record : run_pipeline(model, context, rows).records) {
    ran.changed |= record.changed;
  }
  return ran;
}

Ran run_until(Model& model, const CompileOptions& options, std::string_view name) {
  std::vector<PassRow> rows = rows_before(name);
  rows.push_back(row_of(name));
  return run_rows(model, options, std::move(rows));
}

Ran run_all(Model& model, const CompileOptions& options) {
  return run_rows(model, options, rows_before(""));
}

Tensor test_input(const Graph& graph, ValueId input, const std::map<std::string, int64_t>& dims,
                  uint64_t seed) {
  const Value& value = graph.value(input);
  return generate(value.name, value.type.dtype, shape_of(value.type, dims), seed);
}

Results execute(const Model& model, const std::map<std::string, int64_t>& dims, const Feeds& feeds,
                uint64_t seed) {
  Results results;
  execute_graph(model.graph, "", results, dims, feeds, seed);
  for (const TrainingStep& step : model.training) {
    execute_graph(step.graph, step.name, results, dims, feeds, seed);
  }
  return results;
}

Feeds states_of(const Model& model, std::string_view step_name) {
  Feeds feeds;
  for (const TrainingStep& step : model.training) {
    if (step.name != step_name) continue;
    for (const State& state : step.graph.states()) {
      const Value& value = step.graph.value(state.current);
      feeds[value.name] = value.tensor;
    }
  }
  return feeds;
}

int expect_agreement(const Results& before, const Results& after, double bound) {
  int compared = 0;
  for (const auto& [name, want] : before) {
    const auto found = after.find(name);
    if (found == after.end()) continue;
    ++compared;
    if (bound > 0 && is_float(want.dtype())) {
      expect_close(name, want, found->second, bound);
    } else {
      EXPECT_TRUE(same_bits(want, found->second)) << name << " differs";
    }
  }
  return compared;
}

}  // namespace halfnote::test
