// halfnote compile: an ONNX model in, a mixed-precision training artifact out.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/system/temporary_files.h"
#include "base/text/printable.h"
#include "cli/arguments.h"
#include "cli/compile/idle_flags.h"
#include "cli/import_flags.h"
#include "cli/verbs.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/export.h"
#include "passes/deepspeed_file.h"
#include "passes/device/emit_step.h"
#include "passes/policy_file.h"
#include "passes/precision/like.h"
#include "passes/precision/presets.h"
#include "passes/report.h"
#include "passes/settings.h"
#include "passes/train/step.h"
#include "runtime/core/state_store.h"
#include "runtime/train/checkpoint/safetensors.h"
#include "runtime/train/session.h"

namespace halfnote::cli {
namespace {

namespace fs = std::filesystem;

struct CompileArguments {
  std::string model, output, policy, deepspeed, like, precision, emit = "artifact", report;
  std::string loss_scale;
  std::vector<std::string> allow_ops, fp32_ops, allow_nodes, fp32_nodes, dims, no_decay;
  std::vector<std::string> skip, dump;
  std::string stop_after, dump_folder = ".";
  CompileOptions flags;  // values of the plain flags
  ImportFlags import;
  unsigned timeout = 1800;
  bool emulate = false, plan = false, quiet = false, verbose = false, no_pad = false,
       no_refine = false, no_relative_step = false, no_scale_parameter = false;
};

/// What was given by flags, over what a policy file says.
class Override {
 public:
  Override(const CLI::App& verb, CompileOptions& options) : verb_(verb), options_(options) {}

  /// `key`: the name in a policy file.
  template <class T>
  void operator()(const char* flag, const std::string& key, const T& given, T& target) {
    if (names(flag, {key})) target = given;
  }

  /// Names the flag in messages on these keys; says whether it is given.
  bool names(const char* flag, std::initializer_list<std::string> keys) {
    const bool given = verb_.count(flag) > 0;
    for (const std::string& key : keys) {
      options_.flags[key] = flag;
      if (given) options_.sources[key] = {"", flag};
    }
    return given;
  }

 private:
  const CLI::App& verb_;
  CompileOptions& options_;
};

/// Adds a flag's rules; the policy file's rule for the same thing in the other list gives way.
void add_rules(std::vector<std::string>& to, std::vector<std::string>& other,
               const std::vector<std::string>& rules, const std::vector<std::string>& opposite) {
  for (const std::string& rule : rules) {
    to.push_back(rule);
    const bool both_flags = std::find(opposite.begin(), opposite.end(), rule) != opposite.end();
    if (!both_flags) std::erase(other, rule);
  }
}

void override_optimizer(Override& take, const Optimizer& f, Optimizer& o) {
  const auto number = [&](const char* flag, const char* key, const auto& given, auto& target) {
    take(flag, std::string("optimizer.") + key, given, target);
  };
  number("--lr", "lr", f.lr, o.lr);
  number("--momentum", "momentum", f.momentum, o.momentum);
  number("--beta1", "beta1", f.beta1, o.beta1);
  number("--beta2", "beta2", f.beta2, o.beta2);
  number("--epsilon", "epsilon", f.epsilon, o.epsilon);
  number("--rms-alpha", "alpha", f.alpha, o.alpha);
  number("--centered", "centered", f.centered, o.centered);
  number("--lr-decay", "lr_decay", f.lr_decay, o.lr_decay);
  number("--initial-accumulator", "initial_accumulator", f.initial_accumulator,
         o.initial_accumulator);
  number("--max-trust-ratio", "max_ratio", f.max_ratio, o.max_ratio);
  number("--min-trust-ratio", "min_ratio", f.min_ratio, o.min_ratio);
  number("--weight-decay", "weight_decay", f.weight_decay, o.weight_decay);
  number("--grad-clip", "clip_norm", f.clip_norm, o.clip_norm);
  number("--schedule", "schedule.kind", f.schedule.kind, o.schedule.kind);
  number("--warmup", "schedule.warmup", f.schedule.warmup, o.schedule.warmup);
  number("--schedule-steps", "schedule.total", f.schedule.total, o.schedule.total);
  number("--schedule-step-size", "schedule.step_size", f.schedule.step_size, o.schedule.step_size);
  number("--schedule-gamma", "schedule.gamma", f.schedule.gamma, o.schedule.gamma);
}

/// --accumulate over a file that fixes the samples of an update: the micro-batch gives way.
void keep_update_batch(TrainOptions& train) {
  if (train.update_batch == 0 || train.accumulation < 1) return;
  if (train.update_batch % train.accumulation != 0) {
    throw Error(ErrorCode::kUsage, "--accumulate does not divide the batch of the configuration")
        .expected(fmt::format("a divisor of its \"train_batch_size\", {}", train.update_batch),
                  std::to_string(train.accumulation));
  }
  train.micro_batch = train.update_batch / train.accumulation;
}

/// The flags of training over the policy's settings.
void override_training(const CLI::App& verb, const CompileArguments& a, CompileOptions& options) {
  Override take(verb, options);
  const TrainOptions& f = a.flags.train;
  TrainOptions& t = options.train;
  take("--loss", "train.loss", f.loss, t.loss);
  take("--loss-output", "train.loss_output", f.loss_outputs, t.loss_outputs);
  take("--huber-delta", "train.huber_delta", f.huber_delta, t.huber_delta);
  take("--label-smoothing", "train.label_smoothing", f.label_smoothing, t.label_smoothing);
  take("--ignore-index", "train.ignore_index", f.ignore_index, t.ignore_index);
  take("--class-axis", "train.class_axis", f.class_axis, t.class_axis);
  take("--loss-input", "train.loss_input", f.loss_input, t.loss_input);
  take("--accumulate", "train.accumulate", f.accumulation, t.accumulation);
  if (verb.count("--accumulate") > 0) keep_update_batch(t);
  take("--seed", "train.seed", f.seed, t.seed);
  take("--force-training", "train.force_training", f.force_training, t.force_training);
  take("--trainable", "train.trainable", f.trainable, t.trainable);
  take("--freeze", "train.freeze", f.frozen, t.frozen);
  take("--tie", "train.tie", f.tied, t.tied);
  options.inference_only = a.flags.inference_only;
  for (const std::string& pattern : a.no_decay) {
    const std::string group = fmt::format("optimizer.group[{}]", t.optimizer.groups.size());
    take.names("--no-decay", {group + ".pattern"});
    t.optimizer.groups.push_back({pattern, 0.0f, std::nullopt});
  }
  take("--optimizer", "optimizer.kind", f.optimizer.kind, t.optimizer.kind);
  if (verb.count("--optimizer") > 0) t.optimizer.chosen = true;
  override_optimizer(take, f.optimizer, t.optimizer);
  if (a.no_relative_step) t.optimizer.relative_step = false;
  if (a.no_scale_parameter) t.optimizer.scale_parameter = false;
}

/// A preset, or a fixed number.
LossScaler scaler_from(const std::string& text) {
  float fixed = 0;
  const char* const last = text.data() + text.size();
  const auto [end, code] = std::from_chars(text.data(), last, fixed);
  if (end != last || code == std::errc::invalid_argument) return scaler_preset(text);
  if (code == std::errc::result_out_of_range) {
    throw SettingError("loss_scale.preset", {"{loss_scale.preset} is no number that FP32 holds",
                                             "a preset, or a number from 1.4e-45 to 3.4e38",
                                             "\"" + text + "\"",
                                             {}});
  }
  LossScaler scaler = scaler_preset("static");
  scaler.init = fixed;
  return scaler;
}

/// A scaler as a whole takes the place of a file's.
void set_scaler(CompileOptions& o, const std::function<void()>& set) {
  std::erase_if(o.sources, [](const auto& at) { return at.first.starts_with("loss_scale."); });
  with_names(o, set);
}

void override_precision(const CLI::App& verb, const CompileArguments& a, CompileOptions& o) {
  Override take(verb, o);
  if (take.names("--like", {"precision.like"})) {
    set_scaler(o, [&] { apply_like(a.like, o.policy); });
  }
  if (take.names("--precision", {"precision.dtype"})) {
    with_names(o, [&] { o.policy.dtype = parse_precision(a.precision); });
  }
  if (verb.count("--loss-scale") > 0) {
    set_scaler(o, [&] {
      take.names("--loss-scale", {"loss_scale.preset", "loss_scale.init"});
      o.policy.scaler = scaler_from(a.loss_scale);
    });
  }
}

CompileOptions options_of(const CLI::App& verb, const CompileArguments& a) {
  CompileOptions o;
  if (!a.policy.empty()) load_policy(a.policy, o);
  if (!a.deepspeed.empty()) {
    for (const std::string& note : load_deepspeed(a.deepspeed, o)) {
      if (!a.quiet) std::cerr << "note: " << a.deepspeed << ": " << note << "\n";
    }
  }
  override_precision(verb, a, o);
  Policy& p = o.policy;
  add_rules(p.allow_ops, p.fp32_ops, a.allow_ops, a.fp32_ops);
  add_rules(p.fp32_ops, p.allow_ops, a.fp32_ops, a.allow_ops);
  add_rules(p.allow_nodes, p.fp32_nodes, a.allow_nodes, a.fp32_nodes);
  add_rules(p.fp32_nodes, p.allow_nodes, a.fp32_nodes, a.allow_nodes);
  if (a.no_pad) o.policy.pad = false;
  if (a.no_refine) o.policy.cost_refinement = false;
  override_training(verb, a, o);
  for (const auto& [name, number] : parse_dims(a.dims)) o.dims[name] = number;
  o.limits = a.import.limits;
  o.skip_passes = a.skip;
  o.stop_after = a.stop_after;
  o.dump_after = a.dump;
  o.dump_folder = a.dump_folder;
  return o;
}

fs::path output_of(const CompileArguments& a) {
  if (!a.output.empty()) return a.output;
  fs::path path(a.model);
  if (!path.has_filename()) path = path.parent_path();  // FOLDER/
  path.replace_extension();
  return path.string() + (a.emit == "step" ? ".step.onnx" : ".hn.onnx");
}

constexpr const char* kUpdate = ".apply.onnx";
constexpr const char* kStates = ".states.safetensors";

/// What an emitted step has beside it; none without one.
fs::path beside(fs::path step, const char* extension) {
  return step.empty() ? step : step.replace_extension(extension);
}

/// An output must not take the place of an input or of another output.
void refuse_same_file(const CompileArguments& a, std::span<const std::string> data_files) {
  const fs::path output = a.plan ? fs::path() : output_of(a);
  const fs::path step = a.emit == "step" ? output : fs::path();
  fs::path external = output;
  if (!external.empty()) external += ".data";
  std::vector<NamedFile> files = {
      {"the model", a.model}, {"--policy", a.policy}, {"--deepspeed", a.deepspeed}};
  for (const std::string& data : data_files) files.push_back({"the model's external data", data});
  const size_t first_written = files.size();
  files.push_back({"--report", a.report});
  files.push_back({"the output", output});
  files.push_back({"the output's external data", external});
  files.push_back({"the update", beside(step, kUpdate)});
  files.push_back({"the states", beside(step, kStates)});
  refuse_same_file(files, first_written, "name another one (-o)");
}

/// A place that cannot be written is told before the long work.
void check_outputs(const CompileArguments& a, bool accumulates) {
  if (!a.report.empty()) check_writable(a.report);
  if (a.plan) return;
  const fs::path output = output_of(a);
  check_writable(output);
  if (a.emit != "step") return;
  check_writable(beside(output, kStates));
  if (accumulates) check_writable(beside(output, kUpdate));
}

/// What each pass did and took, for --verbose.
void print_passes(const CompileResult& result) {
  for (const PassRecord& pass : result.pipeline.records) {
    std::cerr << fmt::format("pass {:<20} {:>8.2f} ms  {:>6} -> {} nodes{}\n", pass.name,
                             pass.milliseconds, pass.nodes_before, pass.nodes_after,
                             pass.changed ? "" : ", unchanged");
  }
}

/// The first values of the states, which an emitted step takes as inputs.
void write_states(const Model& model, const fs::path& file, FileSet& files) {
  const StateStore store(model);
  std::vector<NamedTensor> tensors;
  for (const StateEntry& entry : store.entries()) tensors.push_back({entry.name, store.get(entry)});
  const SafetensorsLayout layout = lay_out_safetensors(tensors);
  files.add(file, safetensors_parts(layout, tensors));
}

/// Returns what it wrote.
std::string write_steps(const CompileResult& result, const fs::path& file,
                        const CompileArguments& a, bool accumulates, FileSet& files) {
  const Emulation emulation = a.emulate ? Emulation::k16Bit : Emulation::kNone;
  std::vector<std::string> written = {file.string()};
  export_model(emit_step(result.model, accumulates ? kAccumulateName : kStepName, emulation), file,
               files);
  if (accumulates) {
    written.push_back(beside(file, kUpdate).string());
    export_model(emit_step(result.model, kApplyName, emulation), written.back(), files);
  }
  written.push_back(beside(file, kStates).string());
  write_states(result.model, written.back(), files);
  return fmt::format("{}", fmt::join(written, ", "));
}

/// All outputs appear together: a failure in one leaves none of them.
void write_outputs(const CompileResult& result, const Report& report, const CompileArguments& a,
                   bool accumulates) {
  FileSet files;
  std::string written;
  if (!a.plan) {
    const fs::path file = output_of(a);
    if (a.emit == "step") {
      written = write_steps(result, file, a, accumulates, files);
    } else {
      // What stopped early may lack types that the checker asks for.
      export_model(result.model, file, files, {.check = result.pipeline.stage == Stage::kPadded});
      written = file.string();
    }
  }
  if (!a.report.empty()) files.add(a.report, report_json(report));
  files.commit();
  if (!written.empty() && !a.quiet) std::cout << "wrote " << written << "\n";
}

/// Does anything depend on --seed? Only the compiled model tells.
bool reads_seed(const CompileResult& result) {
  const auto& remarks = result.remarks;
  const auto& steps = result.model.training;
  return std::any_of(remarks.begin(), remarks.end(),
                     [](const Remark& remark) { return remark.text == kDrawnBySeed; }) ||
         std::any_of(steps.begin(), steps.end(), [](const TrainingStep& step) {
           return find_state(step.graph, kSeed).has_value();
         });
}

/// Ends the process when the time is up; outputs appear whole or not at all. In a handler: only
/// calls that are safe there.
void end_late(int) {
  static constexpr char kMessage[] =
      "halfnote: error (model): the compilation took longer than --timeout; nothing was written\n";
  remove_temporary_files();
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  ::_exit(static_cast<int>(ErrorCode::kModel));
}

/// Limits the time from here on; a hostile model must not keep a machine busy.
void start_clock(unsigned seconds) {
  if (seconds == 0) return;
  ::signal(SIGALRM, end_late);
  ::alarm(seconds);
}

int run(const CLI::App& verb, const CompileArguments& a) {
  if (a.emit != "artifact" && a.emit != "step") {
    throw Error(ErrorCode::kUsage, "unknown --emit")
        .expected("artifact or step", "\"" + a.emit + "\"");
  }
  if (a.emulate && a.emit != "step")
    throw Error(ErrorCode::kUsage, "--emulate-16bit goes with --emit step");
  refuse_same_file(a, {});
  start_clock(a.timeout);
  if (!a.policy.empty() && !a.deepspeed.empty()) {
    throw Error(ErrorCode::kUsage, "--policy and --deepspeed are two settings of the same")
        .expected("one of them", "both");
  }
  const CompileOptions options = options_of(verb, a);
  refuse_idle_flags(verb, options);
  check_outputs(a, options.train.accumulation > 1);
  // Kept to the end of the process: to take a graph of 100,000 nodes apart costs as much as a pass.
  static const CompileResult* kept = nullptr;
  kept = new CompileResult(compile_file(a.model, options, a.import.folders()));
  const CompileResult& result = *kept;
  refuse_same_file(a, result.model.data_files);
  for (const Remark& remark : result.remarks) {
    const bool warning = remark.level == Remark::Level::kWarning;
    if (a.quiet || (!warning && !a.verbose)) continue;
    const bool has_file = remark.where.starts_with(a.model);
    std::cerr << (warning ? "warning: " : "note: ") << (has_file ? "" : printable(a.model) + ": ")
              << printable(remark.where) << ": " << printable(remark.text) << "\n";
  }
  if (a.verbose && !a.quiet) print_passes(result);
  if (!a.quiet && verb.count("--seed") > 0 && !reads_seed(result)) {
    std::cerr
        << "warning: --seed does nothing here: no parameter is drawn, and no dropout trained\n";
  }
  const bool asked = !a.quiet || !a.report.empty();
  const Report report = asked ? make_report(result) : Report{};
  if (!a.quiet) {
    std::cout << report_summary(report);
    std::cerr << conversion_warning(report);
  }
  if (!a.plan && result.pipeline.stage != Stage::kPadded && !a.quiet) {
    std::cerr << "warning: stopped after " << options.stop_after
              << ": the file is good for inspect, but not for run\n";
  }
  // A failure leaves no output: a full disk behind the summary counts, a reader who left does not.
  check_standard_output();
  write_outputs(result, report, a, options.train.accumulation > 1);
  return 0;
}

void add_precision_flags(CLI::App* verb, CompileArguments& a) {
  verb->add_option("--precision", a.precision,
                   "fp32, fp16 or bf16, or a Keras policy (default: the policy's, else fp32)");
  verb->add_option("--policy", a.policy, "policy file (TOML, docs/policy.md); flags win over it");
  verb->add_option("--deepspeed", a.deepspeed,
                   "DeepSpeed configuration (JSON): fp16, bf16, batch sizes, optimizer, scheduler");
  verb->add_option("--like", a.like,
                   "op lists and loss scaler of a framework (pytorch, keras, apex-O1, …)");
  verb->add_option("--allow-op", a.allow_ops, "op type that runs in 16 bit")->take_all();
  verb->add_option("--fp32-op", a.fp32_ops, "op type that stays in FP32")->take_all();
  verb->add_option("--allow-node", a.allow_nodes, "nodes that run in 16 bit (RE2, whole name)")
      ->take_all();
  verb->add_option("--fp32-node", a.fp32_nodes, "nodes that stay in FP32 (RE2, whole name)")
      ->take_all();
  verb->add_option("--loss-scale", a.loss_scale,
                   "preset (halfnote, pytorch, keras, deepspeed, …) or a fixed number");
  verb->add_flag("--no-pad", a.no_pad, "do not pad 16-bit contractions to multiples of 8");
  verb->add_flag("--no-cost-refinement", a.no_refine, "take the colouring by the lists as it is");
}

void add_train_flags(CLI::App* verb, CompileArguments& a) {
  TrainOptions& t = a.flags.train;
  verb->add_option("--loss", t.loss,
                   "attach a loss: cross_entropy, nll, mse, l1, huber, bce_with_logits or kl");
  verb->add_option("--loss-output", t.loss_outputs,
                   "output that is the loss; several (NAME or NAME*0.5) are summed")
      ->take_all();
  verb->add_option("--loss-input", t.loss_input,
                   "value that --loss reads (default: the first output)");
  verb->add_option("--huber-delta", t.huber_delta, "where huber turns linear (default: 1)");
  verb->add_option("--label-smoothing", t.label_smoothing,
                   "share of the other classes in cross_entropy and nll (default: 0)");
  verb->add_option("--ignore-index", t.ignore_index,
                   "label that cross_entropy and nll leave out (default: -100)");
  verb->add_option("--class-axis", t.class_axis,
                   "axis of the scores that counts the classes; -1: the last (default: 1)");
  verb->add_option("--accumulate", t.accumulation, "micro-batches per update (default: 1)");
  verb->add_option("--trainable", t.trainable, "parameters to train (RE2, whole name)")->take_all();
  verb->add_option("--freeze", t.frozen, "parameters to leave alone (RE2, whole name)")->take_all();
  verb->add_option("--tie", t.tied,
                   "A=B: initializers of equal contents, or transposed, that are one parameter")
      ->take_all();
  verb->add_flag("--force-training", t.force_training,
                 "train BatchNormalization and Dropout exported for inference");
  verb->add_option("--seed", t.seed,
                   "seed of drawn parameters, dropout and random nodes (default: 0)");
  verb->add_flag("--inference", a.flags.inference_only, "precision passes only, no training step");
}

void add_optimizer_flags(CLI::App* verb, CompileArguments& a) {
  Optimizer& o = a.flags.train.optimizer;
  verb->add_option("--optimizer", o.kind,
                   "sgd, momentum, nesterov, adam, adamw, hf_adamw, adagrad, rmsprop, lamb,\n"
                   "deepspeed_lamb, lion, adafactor, none (default: adamw)");
  verb->add_option("--lr", o.lr, "learning rate (default: 1e-3)");
  verb->add_option("--momentum", o.momentum, "of momentum, nesterov (default: 0.9), rmsprop (0)");
  verb->add_option("--beta1", o.beta1, "of adam, adamw, lamb, lion (default: 0.9)");
  verb->add_option("--beta2", o.beta2, "likewise (default: 0.999; lion 0.99)");
  verb->add_option("--epsilon", o.epsilon, "default: PyTorch's of the optimizer");
  verb->add_option("--rms-alpha", o.alpha, "of rmsprop (default: 0.99)");
  verb->add_flag("--centered", o.centered, "rmsprop by the variance");
  verb->add_option("--lr-decay", o.lr_decay, "of adagrad (default: 0)");
  verb->add_option("--initial-accumulator", o.initial_accumulator, "of adagrad (default: 0)");
  verb->add_option("--min-trust-ratio", o.min_ratio, "of lamb (default: 0, no bound)");
  verb->add_option("--max-trust-ratio", o.max_ratio, "of lamb (default: 0, no bound)");
  verb->add_flag("--no-relative-step", a.no_relative_step,
                 "adafactor: lr as it is, not at most 1/sqrt(step)");
  verb->add_flag("--no-scale-parameter", a.no_scale_parameter,
                 "adafactor: lr not times the parameter's size");
  verb->add_option("--weight-decay", o.weight_decay, "decoupled for adamw (default: 0)");
  verb->add_option("--no-decay", a.no_decay, "parameters without weight decay (RE2, whole name)")
      ->take_all();
  verb->add_option("--grad-clip", o.clip_norm, "clip the global gradient norm");
  verb->add_option("--schedule", o.schedule.kind,
                   "constant, linear, cosine, step, range_test or one_cycle");
  verb->add_option("--warmup", o.schedule.warmup, "steps of linear warm-up");
  verb->add_option("--schedule-steps", o.schedule.total,
                   "steps until the end of linear, cosine and one_cycle");
  verb->add_option("--schedule-step-size", o.schedule.step_size,
                   "steps between drops of step, until the top of one_cycle");
  verb->add_option("--schedule-gamma", o.schedule.gamma, "factor of each drop (default: 0.1)");
}

}  // namespace

void add_compile(CLI::App& app, Action& action) {
  auto a = std::make_shared<CompileArguments>();
  CLI::App* verb =
      app.add_subcommand("compile", "turn an ONNX model into a mixed-precision training artifact");
  verb->add_option("model", a->model,
                   "the model (.onnx, ONNX text: .onnxtxt, or a folder of ONNX Runtime artifacts)")
      ->required();
  verb->add_option("-o,--output", a->output, "the artifact (default: MODEL.hn.onnx)");
  add_precision_flags(verb, *a);
  add_train_flags(verb, *a);
  add_optimizer_flags(verb, *a);
  verb->add_option("--dim", a->dims, "fix a symbolic dim: NAME=N")->take_all();
  verb->add_option(
      "--emit", a->emit,
      "artifact, or step: the training step as one ordinary model (with --accumulate two: a "
      "micro-batch, and beside it .apply.onnx, the update)");
  verb->add_flag("--emulate-16bit", a->emulate,
                 "with --emit step: every 16-bit op as FP32 between casts");
  verb->add_option("--report", a->report,
                   "write the report as JSON: every node, its type and the reason");
  verb->add_flag("--plan", a->plan, "print the report, write no artifact");
  verb->add_option("--skip-pass", a->skip, "leave a pass out")->take_all();
  verb->add_option("--stop-after", a->stop_after, "stop after this pass");
  verb->add_option("--dump-after", a->dump, "write the text after this pass, or all")->take_all();
  verb->add_option("--dump-folder", a->dump_folder, "where dumps go (default: .)");
  verb->add_option("--timeout", a->timeout,
                   "seconds that a compilation may take; 0: any (default: 1800)")
      ->check(whole_number(0, std::numeric_limits<unsigned>::max()));
  verb->add_flag("-q,--quiet", a->quiet, "no summary, no warnings");
  verb->add_flag("-v,--verbose", a->verbose, "notes too, and what each pass did");
  add_import_flags(verb, a->import);
  verb->callback([verb, a, &action] { action = [verb, a] { return run(*verb, *a); }; });
}

}  // namespace halfnote::cli
