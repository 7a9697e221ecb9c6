// One case: import, canonical passes, then a Program where one can be planned, else the
// interpreter.
#include "conformance.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "compiler/onnx/data_file.h"
#include "compiler/onnx/import.h"
#include "compiler/ops/operator.h"
#include "conformance_compare.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/manager.h"
#include "passes/unsupported.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/executor.h"
#include "runtime/core/interpret/interpreter.h"
#include "runtime/core/plan.h"

namespace halfnote::cases {
namespace {

namespace fs = std::filesystem;

/// The model in canonical form. Random nodes are kept as they are: nothing trains here.
Model read_canonical(const fs::path& file) {
  Model model = import_model(file);
  CompileOptions options;
  options.inference_only = true;
  options.stop_after = "eliminate-dead";
  std::vector<Remark> remarks;
  PassContext context{options,
                      infer_node,
                      [](const Graph& graph, NodeId node, const std::vector<Tensor>& inputs) {
                        return evaluate_node(graph, node, inputs);
                      },
                      remarks,
                      {}};
  run_pipeline(model, context, compile_pipeline());
  return model;
}

std::vector<Datum> read_values(const fs::path& folder, const std::string& prefix,
                               const Graph& graph, std::span<const ValueId> formal) {
  std::vector<Datum> values;
  for (size_t i = 0;; ++i) {
    const fs::path file = folder / (prefix + std::to_string(i) + ".pb");
    if (!fs::exists(file)) return values;
    const ValueType type = i < formal.size() ? graph.value(formal[i]).type : ValueType{};
    values.push_back(read_data_file(file, type));
  }
}

/// What ONNX's runner feeds a light model: 0, 1/n, 2/n, …
std::vector<Datum> make_ramps(const Graph& graph) {
  std::vector<Datum> values;
  for (ValueId input : graph.inputs()) {
    Shape shape;
    for (const Dim& dim : graph.value(input).type.shape.value_or(SymbolicShape{}))
      shape.push_back(dim.known() ? dim.value : 1);
    Tensor ramp(DType::kF32, shape);
    const auto count = static_cast<double>(ramp.size());
    const auto to = ramp.mutable_data<float>();
    for (size_t i = 0; i < to.size(); ++i)
      to[i] = static_cast<float>(static_cast<double>(i) / count);
    values.emplace_back(std::move(ramp));
  }
  return values;
}

bool is_plain(const Datum& datum) {
  return datum.is_tensor() && datum.tensor.dtype() != DType::kString;
}

/// Runs a Program; throws Error where none can be planned.
std::vector<Datum> run_program(const Model& model, const std::vector<Datum>& inputs) {
  std::vector<Tensor> tensors;
  std::vector<Shape> shapes;
  for (const Datum& input : inputs) {
    if (!is_plain(input)) throw Error(ErrorCode::kUnsupported, "a Program takes numbers only");
    tensors.push_back(input.tensor);
    shapes.push_back(input.tensor.shape());
  }
  const Graph ready = make_device_ready(model.graph, dims_from_shapes(model.graph, shapes));
  StateStore store;
  Executor executor(plan(ready, store, {}), store);
  executor.run(tensors);
  std::vector<Datum> results;
  for (size_t i = 0; i < executor.program().outputs.size(); ++i)
    results.emplace_back(executor.output(i));
  return results;
}

std::vector<Datum> run_either(const Model& model, const std::vector<Datum>& inputs,
                              Outcome& outcome) {
  try {
    return run_program(model, inputs);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw;
    outcome.planned = false;
  }
  return Interpreter(model.graph).run(inputs);
}

/// Random numbers agree with nobody's: the op whose results cannot be compared, if there is one.
std::string random_op(const Graph& graph) {
  for (NodeId id : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(id));
    if (row == nullptr || row->purity != Purity::kRandom) continue;
    if (graph.node(id).op != "Dropout") return graph.node(id).op;
    const Tensor* training = graph.constant(graph.input(id, 2));
    const bool off =
        !graph.input(id, 2).valid() || (training != nullptr && training->at_as_int(0) == 0);
    if (!off) return "Dropout";
  }
  return {};
}

void check(const std::vector<Datum>& got, const std::vector<Datum>& want,
           const ConformanceCase& test, Outcome& outcome) {
  if (got.size() < want.size()) {
    outcome.verdict = Verdict::kWrong;
    outcome.reason = fmt::format("{} outputs, not {}", got.size(), want.size());
    return;
  }
  for (size_t i = 0; i < want.size(); ++i) {
    std::string difference = compare(got[i], want[i], {test.relative, test.absolute});
    if (difference.empty()) continue;
    outcome.verdict = Verdict::kWrong;
    outcome.reason = fmt::format("output {}: {}", i, difference);
    return;
  }
}

void run_all(const ConformanceCase& test, Outcome& outcome) {
  const Model model = read_canonical(test.model);
  const Graph& graph = model.graph;
  if (const std::string op = random_op(graph); !op.empty()) {
    outcome = {Verdict::kRefused, op, "random numbers: those of no two generators agree"};
    return;
  }
  if (!test.expected.empty()) {
    const Datum want = read_data_file(test.expected, {});
    check(run_either(model, make_ramps(graph), outcome), {want}, test, outcome);
    return;
  }
  if (test.data_sets.empty()) throw Error(ErrorCode::kData, "no data set");
  for (const fs::path& folder : test.data_sets) {
    const auto inputs = read_values(folder, "input_", graph, graph.inputs());
    const auto want = read_values(folder, "output_", graph, graph.outputs());
    if (want.empty()) throw Error(ErrorCode::kData, "no output to compare with");
    check(run_either(model, inputs, outcome), want, test, outcome);
    if (outcome.verdict != Verdict::kPass) return;
  }
}

/// What the error says, without names of nodes and without operands: so that equal reasons are
/// equal.
std::string reason_of(const Error& error) {
  constexpr std::string_view kNoRow = "no kernel on this device (no kernel is registered";
  constexpr std::string_view kImport = "1 op cannot be imported: ";
  std::string text = error.problem();
  if (text.starts_with(kNoRow)) return "no kernel";
  if (text.starts_with(kImport)) text.erase(0, kImport.size());
  text.resize(std::min(text.size(), text.find(": node ")));
  const bool unsupported = error.code() == ErrorCode::kUnsupported;
  if (unsupported || error.expectation().empty()) return text;
  return text + ": expected " + error.expectation() + ", got " + error.value();
}

}  // namespace

Outcome run_conformance(const ConformanceCase& test) {
  Outcome outcome;
  try {
    run_all(test, outcome);
  } catch (const Error& error) {
    const bool bug = error.code() == ErrorCode::kInternal;
    outcome = {bug ? Verdict::kWrong : Verdict::kRefused, error.place().op, reason_of(error)};
    const auto* list = dynamic_cast<const UnsupportedError*>(&error);
    if (list != nullptr && error.problem().starts_with("1 op cannot be written")) {
      outcome.op = list->refused().front().op;
      outcome.reason = list->refused().front().why;
    }
  } catch (const std::exception& error) {
    outcome = {Verdict::kWrong, {}, error.what()};
  }
  return outcome;
}

}  // namespace halfnote::cases
