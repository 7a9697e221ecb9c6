#include "cli/run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/version.h"
#include "cli/arguments.h"
#include "kernels/cpu/cpu_info.h"
#include "passes/nesting.h"
#include "passes/padding/remove_padding.h"
#include "passes/train/step.h"
#include "passes/unsupported.h"
#include "runtime/core/layout.h"
#include "runtime/core/pages.h"
#include "runtime/train/checkpoint/run_folder.h"

namespace halfnote::cli {
namespace {

nlohmann::ordered_json policy_of(const Model& model) {
  const auto found = model.metadata.find("halfnote.policy");
  if (found == model.metadata.end() || json_nests_deeper(found->second)) return nullptr;
  auto json = nlohmann::ordered_json::parse(found->second, nullptr, false);
  return json.is_object() ? json : nlohmann::ordered_json(nullptr);
}

std::string word(const nlohmann::ordered_json& json, const char* name) {
  const bool there = json.is_object() && json.contains(name) && json[name].is_string();
  return there ? json[name].get<std::string>() : std::string();
}

int threads_of(const RunArguments& arguments) {
  return arguments.threads > 0 ? arguments.threads : omp_get_num_procs();
}

std::map<StateKind, size_t> state_bytes(const Session& session) {
  std::map<StateKind, size_t> bytes;
  for (const StateEntry& entry : session.state().entries()) bytes[entry.kind] += entry.bytes;
  return bytes;
}

std::string parameters_text(const Session& session) {
  int64_t count = 0, tensors = 0;
  for (const StateEntry& entry : session.state().entries()) {
    if (entry.kind != StateKind::kWeight) continue;
    count += element_count(entry.shape);
    ++tensors;
  }
  return fmt::format("{} in {} tensors", count_text(count), tensors);
}

std::string steps_text(const Trainer& trainer, const TrainerOptions& options) {
  if (options.steps > 0) {
    return fmt::format("{}, {} in an epoch", options.steps, trainer.steps_per_epoch());
  }
  return fmt::format("{} = {} of {}", trainer.total_steps(),
                     counted(static_cast<size_t>(options.epochs), "epoch"),
                     trainer.steps_per_epoch());
}

std::string memory_text(const Session& session) {
  const MemoryUse memory = session.memory();
  return fmt::format("{}: state {}, activations and workspaces {}, constants {}",
                     bytes_text(memory.total()), bytes_text(memory.state), bytes_text(memory.arena),
                     bytes_text(memory.constants));
}

/// The same unit for all, so that they can be compared.
std::string mebibytes(size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20);
}

/// The prediction and its parts; what the process had before, where training takes less.
std::string peak_text(const PredictedMemory& predicted) {
  const std::string before =
      predicted.before > predicted.training() ? "as reading the model took, training: " : "";
  const size_t planned = predicted.training() - predicted.batches - predicted.program;
  return fmt::format("{} predicted: {}{} as planned, batches {}, program, libraries and data {}",
                     mebibytes(predicted.total()), before, mebibytes(planned),
                     mebibytes(predicted.batches), mebibytes(predicted.program));
}

/// Beside a device with memory of its own.
std::string peak_title(const PredictedMemory& predicted) {
  return predicted.own ? "peak memory of the host" : "peak memory";
}

std::string difference_text(size_t predicted, size_t measured) {
  const double more =
      static_cast<double>(measured) / static_cast<double>(std::max<size_t>(predicted, 1)) - 1;
  return fmt::format("{} predicted, {} measured ({:+.1f} %)", mebibytes(predicted),
                     mebibytes(measured), 100 * more);
}

/// What --memory made of the step, if it was given.
void add_recomputation_rows(std::vector<TableRow>& rows, const Session& session) {
  const std::optional<Recomputation>& again = session.recomputation();
  if (!again) return;
  const bool reached = again->after <= again->limit;
  const char* nothing = reached ? "none is needed" : "none is possible";
  rows.push_back({"recomputation", again->what.empty() ? nothing : again->what});
  rows.push_back(
      {"activations", fmt::format("{} of {} without recomputation ({:.2f}), limit {}{}",
                                  bytes_text(again->after), bytes_text(again->before),
                                  static_cast<double>(again->after) /
                                      static_cast<double>(std::max<size_t>(again->before, 1)),
                                  bytes_text(again->limit), reached ? "" : ": NOT reached")});
}

void add_data_row(std::vector<TableRow>& rows, const char* title, const InputMap& map) {
  rows.push_back(
      {title, fmt::format("{}, {} samples", map.data().origin(), count_text(map.data().size()))});
}

int padding_nodes(const Model& model) {
  int count = 0;
  const Graph& step = model.training.front().graph;
  for (NodeId id : step.all_nodes()) count += is_padding(step.node(id)) ? 1 : 0;
  return count;
}

/// How the fields become inputs, each line once.
void add_input_rows(std::vector<TableRow>& rows, const RunData& data) {
  std::vector<std::string> lines = data.train.describe();
  if (data.evaluation) {
    for (const std::string& line : data.evaluation->describe()) {
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
    }
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    rows.push_back({fmt::format("input {}", i + 1), lines[i]});
  }
}

/// What is kept in channel blocks, or channels last, in the programs of a step; empty if nothing.
std::string layout_text(const Session& session) {
  LayoutCounts all;
  for (const std::string_view name : {kStepName, kAccumulateName, kApplyName}) {
    const Program* program = session.program(name);
    if (program == nullptr) continue;
    const LayoutCounts counts = count_layouts(*program);
    all.blocked_steps += counts.blocked_steps;
    all.reorders += counts.reorders;
    all.channels_last |= counts.channels_last;
  }
  if (all.blocked_steps == 0) return {};
  return fmt::format("{} kernels {}, {} reorders", all.blocked_steps,
                     all.channels_last ? "channels last" : "on channel blocks", all.reorders);
}

/// What comes to the process itself with the first step and the first file: code of kernels, stack,
/// heap. Seen: 0.3 MB (a DenseNet) to 1.6 MB (an LSTM).
constexpr size_t kLateBytes = size_t{1} << 20;

}  // namespace

std::string precision_text(const Model& model) {
  const auto policy = policy_of(model);
  const std::string precision = word(policy, "precision");
  if (precision.empty()) return "as the file has it (no policy in it)";
  if (precision != "f16") return precision;
  // What the graph does, not what the policy asked for: a pass may have been left out.
  const Graph& step = model.training.front().graph;
  const auto scale = find_state(step, kLossScale);
  if (!scale) return precision + ", no loss scale";
  bool dynamic = false;
  for (const TrainingStep& each : model.training) {
    for (const State& state : each.graph.states())
      dynamic |= state.kind == StateKind::kScaler && state.next != state.current;
  }
  const double first = step.value(step.states()[*scale].current).tensor.at_as_double(0);
  const std::string preset =
      policy.contains("loss_scale") ? word(policy["loss_scale"], "preset") : "";
  return fmt::format("{}, loss scale {} {} ({})", precision, dynamic ? "dynamic from" : "fixed at",
                     first, preset);
}

std::vector<TableRow> start_rows(const RunArguments& arguments, const Session& session,
                                 const BoundInputs& bound, const RunData& data,
                                 const Trainer& trainer, const TrainerOptions& options,
                                 const PredictedMemory& predicted) {
  std::vector<TableRow> rows;
  rows.push_back({"artifact", arguments.artifact});
  const std::string device = session.device_description();
  rows.push_back({"device", device.empty() ? "cpu: " + cpu::cpu_description() : device});
  rows.push_back({"threads", std::to_string(threads_of(arguments))});
  if (!arguments.kernels.empty()) rows.push_back({"kernels", arguments.kernels});
  const std::string precision = precision_text(session.model());
  rows.push_back({"precision", precision});
  const bool on_cpu = device.empty();
  if (on_cpu && precision == "bf16" && cpu::bf16_dots() == cpu::Bf16Dots::kSlow) {
    rows.push_back({"note",
                    "the bf16 dot products of this CPU are slower than f32 ones: operands are "
                    "bf16 in memory and multiplied in f32"});
  }
  if (on_cpu && precision == "bf16" && cpu::bf16_dots() == cpu::Bf16Dots::kNone) {
    rows.push_back({"note",
                    "this CPU has no bf16 instructions: bf16 is computed in f32, which is "
                    "correct but not faster"});
  }
  if (const int padding = padding_nodes(session.model()); on_cpu && padding > 0) {
    rows.push_back(
        {"padding",
         fmt::format("{} nodes taken out: multiples of 8 gain nothing on a CPU", padding)});
  }
  rows.push_back({"16-bit share", fmt::format("{:.1f} % of contraction FLOPs",
                                              100 * session.low_precision_share())});
  rows.push_back({"parameters", parameters_text(session)});
  rows.push_back({"batch", session.accumulation() > 1
                               ? fmt::format("{}, an update every {} steps", bound.batch,
                                             session.accumulation())
                               : std::to_string(bound.batch)});
  rows.push_back({"steps", steps_text(trainer, options)});
  add_data_row(rows, "data", data.train);
  if (data.evaluation) add_data_row(rows, "evaluation", *data.evaluation);
  add_input_rows(rows, data);
  rows.push_back({"memory", memory_text(session)});
  if (predicted.device > 0)
    rows.push_back({"device memory", mebibytes(predicted.device) + " predicted"});
  rows.push_back({peak_title(predicted), peak_text(predicted)});
  if (const std::string layouts = layout_text(session); !layouts.empty()) {
    rows.push_back({"layouts", layouts});
  }
  add_recomputation_rows(rows, session);
  rows.push_back({"run folder", options.run_folder.string()});
  return rows;
}

PredictedMemory predict_memory(const Session& session, const Trainer& trainer, size_t forgotten) {
  trim_heap();
  const ResidentMemory resident = resident_memory();
  const size_t now = resident.all + kLateBytes;
  // Constants that were computed are in the heap already; those of the file are read later.
  const MemoryUse plan = session.memory();
  const bool own = session.device_has_own_memory();
  const size_t held = session.device_memory().now;  // nothing where all is planned only
  const size_t device = session.on_device() ? std::max(held, plan.total() + plan.brought) : 0;
  const size_t counted =
      session.state().touched_bytes() + plan.constants - plan.mapped + (own ? 0 : held);
  return {plan,
          trainer.batch_bytes(),
          now > counted ? now - counted : 0,
          std::max(forgotten, resident.peak),
          device,
          own};
}

std::vector<TableRow> memory_rows(const Session& session, const PredictedMemory& predicted) {
  std::vector<TableRow> rows;
  for (const auto& [kind, bytes] : state_bytes(session)) {
    rows.push_back({fmt::format("state {}", state_kind_name(kind)), bytes_text(bytes)});
  }
  size_t copies = 0;
  for (const StateEntry& entry : session.state().copies()) copies += entry.bytes;
  if (copies > 0) rows.push_back({"weights in 16 bits", bytes_text(copies)});
  add_recomputation_rows(rows, session);
  const MemoryUse& memory = predicted.plan;
  for (const std::string_view name : {kStepName, kAccumulateName, kApplyName, kEvaluateName}) {
    const Program* program = session.program(name);
    if (program == nullptr) continue;
    rows.push_back({fmt::format("activations and workspaces of {}", name),
                    fmt::format("{}, at one time {}", bytes_text(program->arena_bytes),
                                bytes_text(live_peak(program->arena_blocks)))});
  }
  rows.push_back({"arena", bytes_text(memory.arena) + ", for all of them"});
  rows.push_back({"constants", bytes_text(memory.constants)});
  rows.push_back({"total", bytes_text(memory.total())});
  rows.push_back({"batches", bytes_text(predicted.batches)});
  rows.push_back({"program, libraries and data", bytes_text(predicted.program)});
  rows.push_back({"the most so far", bytes_text(predicted.before)});
  if (predicted.device > 0) rows.push_back({"device memory", bytes_text(predicted.device)});
  rows.push_back({predicted.own ? "peak of the host" : "peak", bytes_text(predicted.total())});
  return rows;
}

std::vector<TableRow> result_rows(const TrainResult& result, const PredictedMemory& predicted,
                                  const MeasuredMemory& measured, const std::string& model_file) {
  std::vector<TableRow> rows;
  rows.push_back({"steps", fmt::format("{}, {} updates applied, {} skipped", result.steps,
                                       result.applied, result.skipped)});
  if (result.loss) rows.push_back({"training loss", loss_text(*result.loss)});
  if (result.accuracy) {
    rows.push_back({"training accuracy", fmt::format("{:.4f}", *result.accuracy)});
  }
  if (const auto& evaluation = result.evaluation) {
    if (evaluation->loss) rows.push_back({"evaluation loss", loss_text(*evaluation->loss)});
    if (evaluation->top1) {
      rows.push_back({"evaluation top-1", fmt::format("{:.4f}", *evaluation->top1)});
      rows.push_back({"evaluation top-5", fmt::format("{:.4f}", *evaluation->top5)});
    }
    rows.push_back({"evaluation samples", std::to_string(evaluation->samples)});
  }
  rows.push_back({"time", duration_text(result.seconds)});
  if (result.step_seconds > 0) {
    rows.push_back({"time per step", fmt::format("{:.3f} ms (median)", 1e3 * result.step_seconds)});
  }
  rows.push_back({"memory", bytes_text(predicted.plan.total()) + " planned"});
  if (predicted.device > 0)
    rows.push_back({"device memory", difference_text(predicted.device, measured.device)});
  rows.push_back({peak_title(predicted), difference_text(predicted.total(), measured.process)});
  if (!result.checkpoint.empty()) rows.push_back({"checkpoint", result.checkpoint.string()});
  if (!model_file.empty()) rows.push_back({"model", model_file});
  return rows;
}

std::optional<std::vector<std::string>> data_so_far(const std::filesystem::path& run_folder) {
  constexpr size_t kLimit = size_t{16} << 20;
  std::string text;
  try {
    text = read_text(run_folder / kRunConfig, kLimit);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (json_nests_deeper(text)) return std::nullopt;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  std::vector<std::string> earlier;
  if (const auto found = json.find("earlier_data"); found != json.end() && found->is_array()) {
    for (const auto& each : *found)
      if (each.is_string()) earlier.push_back(each.get<std::string>());
  }
  const auto last = json.find("data");
  if (last == json.end() || !last->is_string()) return std::nullopt;
  earlier.push_back(last->get<std::string>());
  return earlier;
}

std::string config_json(const RunArguments& arguments, const Session& session,
                        const BoundInputs& bound, const RunData& data,
                        const TrainerOptions& options, const std::vector<std::string>& earlier) {
  nlohmann::ordered_json json = {{"halfnote", kVersion},
                                 {"artifact", arguments.artifact},
                                 {"artifact_hash", options.artifact},
                                 {"data", arguments.data},
                                 {"eval_data", arguments.eval_data},
                                 {"inputs", data.train.describe()},
                                 {"samples", data.train.data().size()},
                                 {"limit_samples", arguments.limit_samples},
                                 {"epochs", arguments.epochs},
                                 {"steps", arguments.steps},
                                 {"batch", bound.batch},
                                 {"dims", bound.dims},
                                 {"seed", arguments.seed},
                                 {"shuffle", !arguments.no_shuffle},
                                 {"device", arguments.device},
                                 {"threads", threads_of(arguments)},
                                 {"kernels", arguments.kernels},
                                 {"tf32", arguments.tf32},
                                 {"tune", arguments.tune},
                                 {"plan", arguments.plan},
                                 {"eval_every", arguments.eval_every},
                                 {"save_every", arguments.save_every},
                                 {"keep", arguments.keep},
                                 {"memory", arguments.memory},
                                 {"log_every", arguments.log_every},
                                 {"policy", policy_of(session.model())}};
  if (!earlier.empty()) json["earlier_data"] = earlier;
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string memory_json(const PredictedMemory& predicted, const MeasuredMemory& measured) {
  const MemoryUse& plan = predicted.plan;
  nlohmann::ordered_json json = {{"state", plan.state},
                                 {"arena", plan.arena},
                                 {"constants", plan.constants},
                                 {"batches", predicted.batches},
                                 {"program", predicted.program},
                                 {"before", predicted.before},
                                 {"predicted_peak", predicted.total()},
                                 {"measured_peak", measured.process}};
  if (predicted.device > 0) {
    json["predicted_device"] = predicted.device;
    json["measured_device"] = measured.device;
  }
  return json.dump(1) + "\n";
}

}  // namespace halfnote::cli
