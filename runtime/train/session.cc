#include "runtime/train/session.h"

#include <omp.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "compiler/onnx/import.h"
#include "passes/train/step.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"

namespace halfnote {
namespace {

int64_t accumulation_of(const Model& model) {
  const auto found = model.metadata.find("halfnote.policy");
  if (found == model.metadata.end()) return 1;
  const auto json = nlohmann::json::parse(found->second, nullptr, false);
  if (!json.is_object() || !json.contains("accumulation") ||
      !json["accumulation"].is_number_integer())
    return 1;
  return std::max<int64_t>(json["accumulation"].get<int64_t>(), 1);
}

std::string key_of(const std::string& step, std::span<const Shape> shapes) {
  std::string key = step;
  for (const Shape& shape : shapes) key += to_string(std::span<const int64_t>(shape));
  return key;
}

std::vector<Shape> shapes_of(std::span<const Tensor> tensors) {
  std::vector<Shape> shapes;
  for (const Tensor& tensor : tensors) shapes.push_back(tensor.shape());
  return shapes;
}

double scalar(const Executor& executor, size_t output) {
  return executor.output(output).at_as_double(0);
}

}  // namespace

CompileResult compile_model(Model model, const CompileOptions& options) {
  return compile(std::move(model), options,
                 [](const Graph& graph, NodeId node, const std::vector<Tensor>& inputs) {
                   return evaluate_node(graph, node, inputs);
                 });
}

CompileResult compile_file(const std::filesystem::path& file, const CompileOptions& options) {
  return compile_model(import_model(file, {}), options);
}

Session::Session(Model model, const SessionOptions& options)
    : model_(std::move(model)), options_(options), accumulation_(accumulation_of(model_)) {
  if (!model_.is_training()) {
    throw Error(ErrorCode::kModel, "the model has no training step")
        .at({model_.source, {}, {}})
        .expected("a model that `halfnote compile` wrote", "a model without training_info")
        .hint("run halfnote compile first");
  }
  if (options_.threads <= 0) options_.threads = omp_get_num_procs();
  state_ = std::make_unique<StateStore>(model_);
}

const TrainingStep* Session::find_training_step(std::string_view name) const {
  for (const TrainingStep& step : model_.training) {
    if (step.name == name) return &step;
  }
  return nullptr;
}

std::vector<std::pair<std::string, ValueType>> Session::inputs() const {
  const Graph& graph = model_.training.front().graph;
  std::vector<std::pair<std::string, ValueType>> result;
  for (ValueId input : graph.inputs())
    result.emplace_back(graph.value(input).name, graph.value(input).type);
  return result;
}

int64_t Session::counter(std::string_view name) const {
  const StateEntry* entry = state_->find(name);
  return entry == nullptr ? 0 : state_->get(*entry).at_as_int(0);
}

Executor& Session::executor(const std::string& step, std::span<const Shape> shapes) {
  const std::string key = key_of(step, shapes);
  auto& slot = executors_[key];
  if (slot == nullptr) {
    const Graph& graph = find_training_step(step)->graph;
    std::map<std::string, int64_t> dims = dims_from_shapes(graph, shapes);
    dims.insert(options_.dims.begin(), options_.dims.end());
    const Graph ready = make_device_ready(graph, dims);
    slot = std::make_unique<Executor>(plan(ready, *state_, {options_.kernels, options_.threads}),
                                      *state_);
  }
  last_[step] = slot.get();
  return *slot;
}

void Session::prepare(std::span<const Shape> shapes) {
  executor(model_.training.front().name, shapes);
  if (find_training_step(kApplyName) != nullptr) executor(std::string(kApplyName), {});
}

void Session::require_evaluation() const {
  if (find_training_step(kEvaluateName) != nullptr) return;
  throw Error(ErrorCode::kModel, "the artifact has no evaluation step").at({model_.source, {}, {}});
}

void Session::prepare_evaluation(std::span<const Shape> shapes) {
  require_evaluation();
  executor(std::string(kEvaluateName), shapes);
}

StepResult Session::step(std::span<const Tensor> inputs) {
  StepResult result;
  Executor& main = executor(model_.training.front().name, shapes_of(inputs));
  main.run(inputs);
  result.loss = scalar(main, 0);
  if (find_training_step(kApplyName) == nullptr) {
    read_update(main, result);
    return result;
  }
  result.updated = ++pending_ >= accumulation_;
  if (!result.updated) {
    const StateEntry* scale = state_->find(kLossScale);
    if (scale != nullptr) result.loss_scale = state_->get(*scale).at_as_double(0);
    return result;
  }
  pending_ = 0;
  Executor& apply = executor(std::string(kApplyName), {});
  apply.run({});
  read_update(apply, result);
  return result;
}

void Session::read_update(const Executor& executor, StepResult& result) const {
  if (const auto finite = executor.find_output("finite"))
    result.finite = scalar(executor, *finite) != 0;
  if (const auto norm = executor.find_output("grad_norm"))
    result.grad_norm = scalar(executor, *norm);
  if (const auto rate = executor.find_output("learning_rate"))
    result.learning_rate = scalar(executor, *rate);
  const StateEntry* scale = state_->find(kLossScale);
  if (scale != nullptr) result.loss_scale = state_->get(*scale).at_as_double(0);
  result.applied = result.finite;
}

std::vector<Tensor> Session::evaluate(std::span<const Tensor> inputs) {
  require_evaluation();
  Executor& program = executor(std::string(kEvaluateName), shapes_of(inputs));
  program.run(inputs);
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < program.program().outputs.size(); ++i)
    outputs.push_back(program.output(i));
  return outputs;
}

Tensor Session::output(std::string_view name) const {
  for (const auto& [step, executor] : last_) {
    if (step == kEvaluateName) continue;
    if (const auto index = executor->find_output(name)) return executor->output(*index);
  }
  throw Error(ErrorCode::kUsage, "the training step has no output \"" + std::string(name) + "\"");
}

const Program* Session::program(std::string_view step) const {
  const auto found = last_.find(step);
  return found == last_.end() ? nullptr : &found->second->program();
}

MemoryUse Session::memory() const {
  MemoryUse use;
  use.state = state_->bytes();
  for (const auto& [key, executor] : executors_) {
    use.arena += executor->program().arena_bytes;
    use.constants += executor->program().constant_bytes;
  }
  return use;
}

double Session::low_precision_share() const {
  double all = 0, low = 0;
  const Program* main = program(model_.training.front().name);
  if (main == nullptr) return 0;
  for (const ProgramStep& step : main->steps) {
    all += step.flops;
    if (step.reads_16bit) low += step.flops;
  }
  return all > 0 ? low / all : 0;
}

Model Session::trained_model() const {
  Model model;
  model.graph = model_.graph;
  model.opsets = model_.opsets;
  model.functions = model_.functions;
  model.producer_name = model_.producer_name;
  model.producer_version = model_.producer_version;
  model.metadata = model_.metadata;
  for (ValueId id : model.graph.initializers()) {
    const StateEntry* entry = state_->find(model.graph.value(id).name);
    if (entry != nullptr) model.graph.value(id).tensor = state_->get(*entry);
  }
  return model;
}

}  // namespace halfnote
