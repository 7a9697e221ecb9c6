#include "runtime/train/session.h"

#include <omp.h>

#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/system/mapped_files.h"
#include "compiler/ir/walk.h"
#include "compiler/onnx/import.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/threads.h"
#include "kernels/kernel.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/device/emit_step.h"
#include "passes/foreign/ort_artifact.h"
#include "passes/foreign/training_info.h"
#include "passes/nesting.h"
#include "passes/train/step.h"
#include "passes/unsupported.h"
#include "runtime/core/control/control_step.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/memory/bytes_beside.h"
#include "runtime/core/nonfinite.h"
#include "runtime/core/profile/slow_steps.h"
#include "runtime/core/tune/epilogues.h"
#include "runtime/train/artifact/checks.h"
#include "runtime/train/plain_model.h"

namespace halfnote {
namespace {

/// The settings of the compilation, from the metadata; null where there are none.
nlohmann::json policy_of(const Model& model) {
  const auto found = model.metadata.find("halfnote.policy");
  if (found == model.metadata.end()) return nullptr;
  if (json_nests_deeper(found->second)) return nullptr;
  auto json = nlohmann::json::parse(found->second, nullptr, false);
  return json.is_object() ? json : nlohmann::json(nullptr);
}

int64_t accumulation_of(const Model& model) {
  const auto policy = policy_of(model);
  if (!policy.contains("accumulation") || !policy["accumulation"].is_number_integer()) return 1;
  return std::max<int64_t>(policy["accumulation"].get<int64_t>(), 1);
}

OnFloor on_floor_of(const Model& model) {
  const auto policy = policy_of(model);
  if (!policy.contains("loss_scale") || !policy["loss_scale"].is_object()) return OnFloor::kHold;
  const auto word = policy["loss_scale"].find("on_floor");
  if (word == policy["loss_scale"].end()) return OnFloor::kHold;
  if (*word == "raise") return OnFloor::kRaise;
  return *word == "diagnose" ? OnFloor::kDiagnose : OnFloor::kHold;
}

const Shape& shape_of(const Shape& shape) { return shape; }
const Shape& shape_of(const Tensor& tensor) { return tensor.shape(); }

std::vector<Shape> shapes_of(std::span<const Tensor> tensors) {
  std::vector<Shape> shapes;
  for (const Tensor& tensor : tensors) shapes.push_back(tensor.shape());
  return shapes;
}

/// What is a state of another step changes too: it is no constant of this one.
void keep_states_variable(Graph& graph, const StateStore& store) {
  for (ValueId id : graph.initializers()) {
    Value& value = graph.value(id);
    if (store.find(value.name) != nullptr) value.trainable = true;
  }
}

/// An artifact is for every device, so this is no error; who means to train on the CPU should know.
void tell_missing_kernels(CompileResult& result) {
  UnsupportedOps missing;
  missing.set_opsets(result.model.opsets);
  std::set<std::pair<std::string_view, std::string_view>> known;
  for_each_graph(result.model, [&](const Graph& graph) {
    for (NodeId id : graph.all_nodes()) {
      const Node& node = graph.node(id);
      if (known.contains({node.domain, node.op})) continue;
      if (!cpu_kernels().rows_of(node.domain, node.op).empty() ||
          runs_bodies(node.domain, node.op)) {
        known.emplace(node.domain, node.op);
        continue;
      }
      missing.add(graph, id, "no kernel");
    }
  });
  if (missing.empty()) return;
  result.remarks.push_back({Remark::Level::kWarning, "kernels", result.model.source,
                            "the CPU has no kernel for " + missing.ops_text() +
                                ", so halfnote run will refuse them there: " + missing.list()});
}

}  // namespace

CompileResult compile_model(Model model, const CompileOptions& options) {
  const std::string source = model.source;
  try {
    CompileResult result =
        compile(std::move(model), options,
                [](const Graph& graph, NodeId node, const std::vector<Tensor>& inputs) {
                  return evaluate_node(graph, node, inputs);
                });
    tell_missing_kernels(result);
    return result;
  } catch (Error& error) {
    error.within({source, {}, {}});
    throw;
  }
}

Model adopt_training_info(Model model, int64_t seed) {
  if (!has_foreign_step(model)) return model;
  CompileOptions options;
  options.train.seed = seed;
  std::vector<Remark> remarks;
  PassContext context{options,
                      infer_node,
                      [](const Graph& graph, NodeId node, const std::vector<Tensor>& inputs) {
                        return evaluate_node(graph, node, inputs);
                      },
                      remarks,
                      {}};
  adopt_foreign_step(model, context);
  return model;
}

CompileResult compile_file(const std::filesystem::path& file, const CompileOptions& options,
                           const std::vector<std::filesystem::path>& allowed_folders) {
  std::vector<Remark> remarks;
  ImportOptions reading;
  reading.limits = options.limits;
  reading.allowed_folders = allowed_folders;
  reading.warn = [&](const std::string& text) {
    remarks.push_back({Remark::Level::kWarning, "import", file.string(), text});
  };
  const std::filesystem::path model_file = model_file_of(file);
  Model model = import_model(model_file, reading);
  CompileOptions own = options;
  if (is_ort_training(model)) complete_ort_artifact(model, model_file, reading, own);
  CompileResult result = compile_model(std::move(model), own);
  result.remarks.insert(result.remarks.begin(), remarks.begin(), remarks.end());
  return result;
}

Session::Session(Model model, const SessionOptions& options)
    : model_(std::move(model)),
      options_(options),
      accumulation_(accumulation_of(model_)),
      on_floor_(on_floor_of(model_)) {
  if (!model_.is_training()) {
    throw Error(ErrorCode::kModel, "the model has no training step")
        .at({model_.source, {}, {}})
        .expected("a model that `halfnote compile` wrote", "a model without training_info")
        .hint("run halfnote compile first");
  }
  check_artifact(model_);
  if (options_.threads < 0 || options_.threads > kMaxThreads) {
    throw Error(ErrorCode::kUsage, "no such number of threads")
        .expected("0 (all cores) to " + std::to_string(kMaxThreads),
                  std::to_string(options_.threads));
  }
  if (options_.threads == 0) options_.threads = omp_get_num_procs();
  if (options_.tf32 && options_.device == "cpu") {
    throw Error(ErrorCode::kUsage, "TF32 is for GPUs")
        .expected("--device cuda beside --tf32", "--device cpu");
  }
  if (std::unique_ptr<Device> device = open_device(options_.device)) {
    device_ = std::make_unique<DeviceContext>();
    device_->stream = device->make_stream();
    device_->feeding = device->make_stream();
    device_->device = std::move(device);
    device_->keeps_inputs = options_.keep_inputs;
    options_.passes.for_cpu = false;
    options_.passes.kernels = &device_->device->kernels();
  }
  if (device_ || options_.only_trains) scored_ = find_classification(model_.training.front().graph);
  if (const TrainingStep* evaluation = find_training_step(kEvaluateName))
    evaluated_ = find_classification(evaluation->graph);
  checked_ = find_checked_inputs(what_is_trained());
  if (device_ == nullptr && !options_.plan_only) cpu::start_threads(options_.threads);
  options_.passes.copies = find_weight_copies(model_);
  state_ = std::make_unique<StateStore>(model_, options_.passes.copies);
  check_states(model_, *state_);
}

/// The training step, without what nobody reads where the session only trains.
Graph Session::what_is_trained() const {
  Graph graph = model_.training.front().graph;
  if (!options_.only_trains) return graph;
  drop_other_outputs(graph, model_.graph, scored_ ? &*scored_ : nullptr);
  erase_dead(graph, [](const Graph&, NodeId) { return true; });
  return graph;
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

template <class Inputs>
Executor* Session::find_executor(const StepForm& form, const Inputs& inputs) {
  for (const Prepared& prepared : executors_) {
    bool fits = prepared.step == form.step && prepared.what == form.what &&
                prepared.shapes.size() == inputs.size();
    for (size_t i = 0; fits && i < inputs.size(); ++i)
      fits = prepared.shapes[i] == shape_of(inputs[i]);
    if (fits) return prepared.executor.get();
  }
  return nullptr;
}

void Session::set_last(std::string_view step, Executor& executor) {
  const auto found = last_.find(step);
  if (found == last_.end()) {
    last_.emplace(step, &executor);
  } else {
    found->second = &executor;
  }
}

namespace {

/// The name of a step, which is the file's word, as the name of a folder.
std::string file_name(std::string_view step) {
  std::string name(step);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

constexpr int kMemoryAttempts = 10, kIdleAttempts = 3, kHigherAims = 8;
constexpr double kMemorySlack = 0.03;  // below the limit: recomputing less would save little

/// Is there an input whose first dim the run chooses?
bool leaves_batch_open(const Graph& graph) {
  const auto inputs = graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [&](ValueId input) {
    const auto& shape = graph.value(input).type.shape;
    return shape && !shape->empty() && !shape->front().known();
  });
}

/// Allocates what a step needs; a refusal says what would make it less.
void allocate(Executor& executor, const Graph& step) {
  try {
    executor.allocate();
  } catch (Error& error) {
    throw std::move(error).hint(
        leaves_batch_open(step)
            ? "use a smaller batch (--batch), with gradient accumulation (--accumulate)"
            : "the model fixes its batch: export it with a smaller one, or with a symbolic first "
              "dim");
  }
}

}  // namespace

Graph Session::ready_graph(const StepForm& form, std::span<const Shape> shapes,
                           int64_t activation_bytes, const BytesBeside& beside) {
  Graph graph = find_training_step(form.step)->graph;
  const bool trains = form.step == model_.training.front().name;
  if (trains && options_.only_trains)
    drop_other_outputs(graph, model_.graph, scored_ ? &*scored_ : nullptr);
  if (form.what != Evaluates::kOutputs)
    keep_loss_and_scores(graph, evaluated_ ? &*evaluated_ : nullptr);
  keep_states_variable(graph, *state_);
  std::map<std::string, int64_t> dims = dims_from_shapes(graph, shapes);
  dims.insert(options_.dims.begin(), options_.dims.end());
  DeviceReadyOptions passes = options_.passes;
  passes.dump_folder = (std::filesystem::path(passes.dump_folder) / file_name(form.step)).string();
  passes.activation_bytes = activation_bytes;
  passes.beside = beside;
  const KernelSource source{options_.kernels, options_.choices, options_.tune,
                            device_ ? device_->device.get() : nullptr};
  if (device_) passes.pays = epilogues_pay(source, options_.tf32);
  graph = make_device_ready(graph, dims, passes, &remarks_);
  count_labels(graph, form);
  return graph;
}

/// `--kernels` may leave none.
bool Session::has_kernel_that_counts() const {
  const KernelTable& table = device_ ? device_->device->kernels() : cpu_kernels();
  const auto rows = table.rows_of(kHalfnoteDomain, "CountCorrect");
  return std::ranges::any_of(
      rows, [&](const KernelRow* row) { return row->name.starts_with(options_.kernels); });
}

void Session::count_labels(Graph& graph, const StepForm& form) {
  const bool trains = form.step == model_.training.front().name;
  const bool evaluates = form.what != Evaluates::kOutputs;
  const auto& kind = evaluates ? evaluated_ : scored_;
  if (!kind || !(evaluates || (trains && device_)) || !has_kernel_that_counts()) return;
  const bool keeps = evaluates ? form.what == Evaluates::kCountsAndScores : !options_.only_trains;
  const auto shape = count_correct(graph, *kind, keeps ? Scores::kStay : Scores::kGo,
                                   evaluates ? Places::kFive : Places::kFirst);
  if (shape) counted_.insert_or_assign(std::string(form.step), *shape);
}

Program Session::plan_step(const StepForm& form, std::span<const Shape> shapes,
                           int64_t activation_bytes, BytesBeside* beside) {
  const Graph graph =
      ready_graph(form, shapes, activation_bytes, beside == nullptr ? BytesBeside() : *beside);
  Program program =
      plan(graph, *state_,
           {options_.kernels, options_.threads, options_.keep_types || options_.profiler != nullptr,
            options_.choices, options_.tune, device_ ? device_->device.get() : nullptr,
            activation_bytes > 0, options_.tf32, !keeps_memory(form.step)});
  if (beside != nullptr) {
    for (auto& [node, bytes] : bytes_beside(graph, program)) (*beside)[node] = bytes;
  }
  return program;
}

/// Is the memory of this step limited?
bool Session::keeps_memory(std::string_view step) const {
  return options_.memory.limited() && step == model_.training.front().name;
}

Program Session::plan_limited(std::string_view step, std::span<const Shape> shapes) {
  BytesBeside beside;
  Program best = plan_step({step}, shapes, 0, &beside);
  const auto before = static_cast<int64_t>(best.arena_bytes);
  const auto& memory = options_.memory;
  const int64_t limit =
      memory.bytes > 0
          ? memory.bytes
          : static_cast<int64_t>(std::ceil(memory.share * static_cast<double>(before)));
  recomputation_ = {static_cast<size_t>(limit), best.arena_bytes, best.arena_bytes, {}};
  // What the pass makes moves what plans take beside (workspaces, gaps between buffers): it is told
  // what the last one took, and to aim lower or higher until the plan itself hits the limit.
  // Where that leads nowhere, results alone are counted: what lies beside them often goes with
  // them.
  int64_t aim = limit, last = before;
  int idle = 0;  // plans that took as much as the one before
  bool counts_all = true;
  const auto try_aim = [&](int64_t bytes, BytesBeside& known) {
    const size_t said = remarks_.size();
    Program found = plan_step({step}, shapes, bytes, &known);
    const auto arena = static_cast<int64_t>(found.arena_bytes);
    const auto kept = static_cast<int64_t>(best.arena_bytes);
    const bool fits = arena <= limit;
    const bool better = fits ? kept > limit || arena > kept : arena < kept && kept > limit;
    std::string what = remarks_.size() > said ? remarks_.back().text : std::string();
    remarks_.resize(said);
    if (better) {
      best = std::move(found);
      recomputation_->after = best.arena_bytes;
      recomputation_->what = std::move(what);
    }
    return arena;
  };
  for (int attempt = 0; attempt < kMemoryAttempts && aim > 0 && limit < before; ++attempt) {
    BytesBeside none;
    const int64_t arena = try_aim(aim, counts_all ? beside : none);
    const bool fits = arena <= limit;
    if (fits && static_cast<double>(limit - arena) < kMemorySlack * static_cast<double>(limit)) {
      break;
    }
    idle = arena == last ? idle + 1 : 0;
    if (idle == kIdleAttempts) {
      if (!counts_all || best.arena_bytes <= static_cast<size_t>(limit)) break;  // all is done
      counts_all = false;
      idle = 0;
      aim = limit;
      last = before;
      continue;
    }
    last = arena;
    const int64_t next = aim + limit - arena;
    aim = next > 0 ? next : aim / 2;
  }
  // What is out of reach may still be come near: higher aims leave the pass other choices.
  for (int part = 1; part < kHigherAims && best.arena_bytes > static_cast<size_t>(limit); ++part)
    try_aim(limit + (before - limit) * part / kHigherAims, beside);
  return best;
}

Executor& Session::executor(const StepForm& form, std::span<const Shape> shapes) {
  const std::string_view step = form.step;
  Executor* found = find_executor(form, shapes);
  if (found == nullptr) {
    Profiler* profiler = options_.profiler;
    const bool limited = keeps_memory(step);
    auto made = std::make_unique<Executor>(
        in_file([&] { return limited ? plan_limited(step, shapes) : plan_step(form, shapes); }),
        *state_, device_.get(), arena_);
    check_outputs(model_, step, made->program());
    // Who names kernels has asked for what they are.
    const auto slow =
        device_ && options_.kernels.empty() ? tell_slow_steps(made->program()) : std::nullopt;
    if (slow) remarks_.push_back(*slow);
    if (profiler) made->set_profile(&profiler->add(step, made->program()));
    if (!options_.plan_only) allocate(*made, find_training_step(step)->graph);
    found = made.get();
    executors_.push_back({std::string(step), form.what,
                          std::vector<Shape>(shapes.begin(), shapes.end()), std::move(made)});
  }
  set_last(step, *found);
  return *found;
}

Executor& Session::executor_for(const StepForm& form, std::span<const Tensor> inputs) {
  Executor* found = find_executor(form, inputs);
  if (found == nullptr) return executor(form, shapes_of(inputs));
  set_last(form.step, *found);
  return *found;
}

void Session::prepare(std::span<const Shape> shapes) {
  executor({model_.training.front().name}, shapes);
  for (CheckedInput& checked : checked_) {
    if (device_) checked.prepare(shapes);
  }
  if (find_training_step(kApplyName) != nullptr) executor({kApplyName}, {});
}

Tensor Session::output(std::string_view name, TensorsAs as) const {
  for (const auto& [step, executor] : last_) {
    if (step == kEvaluateName) continue;
    const auto index = executor->find_output(name);
    if (!index) continue;
    if (executor->has_outputs()) return output_of(*executor, *index, as);
    throw Error(ErrorCode::kUsage, "there is no output \"" + std::string(name) + "\" " +
                                       (executor->has_run() ? "any more: outputs were dropped"
                                                            : "yet: its step has not run"));
  }
  throw Error(ErrorCode::kUsage, "the training step has no output \"" + std::string(name) + "\"");
}

std::optional<NonFinite> Session::diagnose(std::span<const Tensor> inputs) {
  const std::string& step = model_.training.front().name;
  const std::vector<Shape> shapes = shapes_of(inputs);
  Executor& executor = executor_for({step}, inputs);
  state_->refresh_copies();
  const std::vector<std::byte> saved(state_->base(), state_->base() + state_->bytes());
  const auto found = find_nonfinite(executor, *state_, ready_graph({step}, shapes), inputs);
  std::copy(saved.begin(), saved.end(), state_->base());
  return found;
}

void Session::drop_outputs() {
  for (const Prepared& prepared : executors_) prepared.executor->drop_outputs();
}

void Session::release_arena() {
  drop_outputs();
  arena_->release();
}

const Program* Session::program(std::string_view step) const {
  const auto found = last_.find(step);
  return found == last_.end() ? nullptr : &found->second->program();
}

std::optional<Shape> Session::scores_shape(std::string_view step, std::string_view scores) const {
  const auto last = last_.find(step);
  if (last == last_.end()) return std::nullopt;
  if (const auto index = last->second->find_output(scores))
    return last->second->program().outputs[*index].shape;
  const auto counted = counted_.find(step);
  return counted == counted_.end() ? std::nullopt : std::optional(counted->second);
}

MemoryUse Session::memory() const {
  MemoryUse use;
  use.state = state_->bytes();
  for (const Prepared& prepared : executors_) {
    const Program& program = prepared.executor->program();
    use.arena = std::max(use.arena, program.arena_bytes);
    use.constants += program.constant_bytes;
    for (const Tensor& constant : program.constants) {
      const std::span bytes(constant.bytes(), constant.byte_size());
      if (!bytes.empty() && is_mapped(bytes)) use.mapped += bytes.size();
    }
    use.outputs += prepared.executor->kept_bytes();
    if (!device_) continue;
    for (const ProgramOperand& input : program.inputs)
      use.brought += input.bytes * DeviceRun::kMostRuns;
  }
  return use;
}

DeviceCounters Session::device_counters() const {
  return device_ ? device_->device->counters() : DeviceCounters{};
}

DeviceMemory Session::device_memory() const {
  return device_ ? device_->device->memory() : DeviceMemory{};
}

bool Session::device_has_own_memory() const { return device_ && device_->device->has_own_memory(); }

std::string Session::device_description() const {
  return device_ ? device_->device->description() : std::string();
}

std::string Session::arithmetic() const {
  const std::string chosen =
      (options_.kernels.empty() ? "" : ", " + options_.kernels + " kernels only") +
      (options_.choices == nullptr ? "" : ", plan " + options_.choices->digest());
  if (device_) return device_->device->description() + (options_.tf32 ? ", TF32" : "") + chosen;
  return std::to_string(options_.threads) + " threads, " + cpu::onednn_isa_name() + chosen;
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

Model Session::trained_model(TrainedForm form, TensorsAs weights) const {
  Model model;
  model.graph = model_.graph;
  model.opsets = model_.opsets;
  model.functions = model_.functions;
  model.producer_name = model_.producer_name;
  model.producer_version = model_.producer_version;
  model.metadata = model_.metadata;
  for (ValueId id : model.graph.initializers()) {
    const StateEntry* entry = state_->find(model.graph.value(id).name);
    if (entry == nullptr) continue;
    model.graph.value(id).tensor =
        weights == TensorsAs::kViews ? state_->view(*entry) : state_->get(*entry);
  }
  if (form == TrainedForm::kF32) make_plain(model, *state_);
  return model;
}

}  // namespace halfnote
