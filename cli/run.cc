// halfnote run: trains an artifact on data. Everything that can fail is checked and planned before
// the first step; what happens then is in the run folder: config.json, metrics.jsonl, checkpoints/,
// LATEST and, at the end, the trained model.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text/printable.h"
#include "cli/arguments.h"
#include "cli/run_files.h"
#include "cli/run_inputs.h"
#include "cli/run_report.h"
#include "cli/verbs.h"
#include "compiler/onnx/export.h"
#include "compiler/onnx/import.h"
#include "passes/train/step.h"
#include "runtime/core/pages.h"
#include "runtime/core/profile/output.h"
#include "runtime/train/checkpoint/run_folder.h"
#include "runtime/train/signals.h"

namespace halfnote::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    "Data: mnist:DIR, cifar10:DIR, cifar100:DIR, FILE.npz, or NAME=FILE.npy,… one file a field.\n"
    "A field goes to the input of its name, the rest in order; --map says otherwise. Its first\n"
    "dim counts samples, of which a step takes --batch, along the first dim of the input or\n"
    "that of --batch-axis, unless the input is named by --whole, is a scalar, is a table (its\n"
    "first dim is a number where another input has a symbol), or (without --whole) the first\n"
    "dims of the model's inputs are numbers that differ, as in a graph network: then every\n"
    "input is fed whole, and an epoch is one step. The formats with a test split are evaluated\n"
    "on it unless --eval-data names another set.\n"
    "Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 finish the step, save and exit with code 75; the same\n"
    "command with --resume goes on, bit-identical to a run that was not stopped.\n"
    "A step is one batch; an artifact compiled with --accumulate N updates the weights every N\n"
    "steps.";

/// The dropout seed of the artifact gives way to --seed.
void set_random_seed(Session& session, uint64_t seed) {
  const StateEntry* entry = session.state().find(kSeed);
  if (entry == nullptr) return;
  session.state().set(*entry, Tensor::scalar<int64_t>(static_cast<int64_t>(seed)));
}

/// What that takes (ONNX's schemas among it) finds room where the activations were.
std::string write_model(Session& session, const RunArguments& arguments,
                        const TrainerOptions& options) {
  session.release_arena();
  const fs::path file = trained_model_file(arguments, options.run_folder);
  export_model(session.trained_model(TrainedForm::kF32, TensorsAs::kViews), file, {});
  return file.string();
}

/// The table goes to the screen, its JSON and the trace into files.
void write_profile(const RunArguments& arguments, const Profiler& profiler, const MachinePeak& peak,
                   const fs::path& run_folder) {
  const fs::path file = profile_file(arguments, run_folder), trace = trace_file(file);
  write_file_atomic(file, profile_json(profiler, peak));
  write_file_atomic(trace, profile_trace(profiler));
  if (arguments.quiet) return;
  std::cout << profile_text(profiler, peak)
            << fmt::format("\nprofile: {}; trace for ui.perfetto.dev: {}\n", file.string(),
                           trace.string());
}

std::string plan_text(const KernelChoices& choices, const fs::path& run_folder) {
  return fmt::format("{}: kernels of {} calls by measurement", (run_folder / kRunPlan).string(),
                     choices.used());
}

void warn_of_strange_plan(const KernelChoices& choices, const RunArguments& arguments) {
  if (arguments.plan.empty() || choices.used() > 0 || choices.size() == 0) return;
  std::cerr << fmt::format(
      "warning: {}: none of its {} calls occurs here: it was measured for another model or batch, "
      "and the table's kernels run\n",
      printable(arguments.plan), choices.size());
}

/// Of calls that --tune left to the table.
void tell_of_unmeasured(const KernelChoices& choices) {
  if (choices.unmeasured().empty()) return;
  const auto& [key, why] = *choices.unmeasured().begin();
  std::cerr << fmt::format(
      "note: {} calls could not be measured, and take the kernels of the table; the first: {} {}: "
      "{}\n",
      choices.unmeasured().size(), key.op, key.operands, printable(why));
}

int stopped(const TrainResult& result, int signal) {
  std::cerr << fmt::format("stopped by {} after step {}, saved in {}; go on with --resume\n",
                           ::strsignal(signal), result.steps, result.checkpoint.string());
  return static_cast<int>(ErrorCode::kPreempted);
}

void warn_of_resume(const RunArguments& arguments, const TrainerOptions& options,
                    const std::optional<FoundCheckpoint>& found) {
  if (arguments.resume && !found) {
    std::cerr << fmt::format(
        "note: {}: the run ended before its first checkpoint, and begins again\n",
        printable(options.run_folder.string()));
  }
  if (!found) return;
  for (const std::string& warning : found->warnings)
    std::cerr << "warning: " << printable(warning) << "\n";
}

void warn_of_skipped(const TrainResult& result) {
  const int64_t updates = result.applied + result.skipped;
  if (result.skipped * 2 <= updates) return;
  std::cerr << fmt::format(
      "warning: {} of {} updates were skipped: their gradients were not finite; compile again with "
      "a smaller --lr or --loss-scale, or --precision bf16\n",
      result.skipped, updates);
}

/// Without the table nothing else would tell.
void warn_of_missed_limit(const Session& session) {
  const std::optional<Recomputation>& again = session.recomputation();
  if (!again || again->after <= again->limit) return;
  std::cerr << fmt::format(
      "warning: the limit of --memory is not reached: activations and workspaces take {}, the "
      "limit is {}\n",
      bytes_text(again->after), bytes_text(again->limit));
}

/// What is trained in vain, or not at all, is said before.
void warn_of_idle_steps(const Session& session, const Trainer& trainer, bool resumed) {
  const int64_t total = trainer.total_steps(), done = trainer.position().step;
  if (resumed && done >= total) {
    std::cerr << fmt::format(
        "note: nothing is left to train: the run has done {} steps of {}; --epochs and --steps "
        "count from its start\n",
        done, total);
    return;
  }
  const int64_t each = session.accumulation(), rest = total % each;
  if (rest == 0) return;
  std::cerr << fmt::format(
      "warning: an update takes {} steps (--accumulate): the last {} of {} will change nothing; "
      "--steps {} leaves them out\n",
      each, rest, total, total - rest);
}

/// The speed of the machine, for a profile, and the most memory that the process had before: what
/// measuring takes is given back, and counts in no peak where the system can forget it. Of another
/// device nothing is measured.
struct MachineAtStart {
  MachinePeak peak;
  size_t memory = 0;
};

MachineAtStart measure_machine(const RunArguments& arguments) {
  if (arguments.profile.empty() || arguments.plan_memory || arguments.device != "cpu") return {};
  const size_t memory = resident_memory().peak;
  const MachinePeak peak = measure_peak(arguments.threads);
  trim_heap();
  reset_resident_peak();
  return {peak, memory};
}

int train(const RunArguments& arguments, Session& session, const BoundInputs& bound,
          const RunData& data, Trainer& trainer, TrainerOptions options, const SignalScope& signals,
          const Profiler& profiler, const PredictedMemory& predicted, const MachineAtStart& machine,
          const KernelChoices* choices) {
  const Terminal terminal = Terminal::detect(STDOUT_FILENO);
  const auto found = trainer.open();
  options.run_folder = trainer.run_folder();
  std::vector<std::string> earlier;
  const auto so_far = found ? data_so_far(options.run_folder) : std::nullopt;
  if (found && !so_far) {
    std::cerr << fmt::format(
        "warning: {} is missing or damaged: what data the run was trained on before is not known\n",
        printable((options.run_folder / kRunConfig).string()));
  }
  if (so_far) earlier = *so_far;
  const bool same_data = earlier.empty() || earlier.back() == arguments.data;
  if (same_data && !earlier.empty()) earlier.pop_back();
  if (choices != nullptr) write_file_atomic(options.run_folder / kRunPlan, choices->to_json());
  write_file_atomic(options.run_folder / kRunConfig,
                    config_json(arguments, session, bound, data, options, earlier));
  warn_of_resume(arguments, options, found);
  if (!same_data) {
    std::cerr << fmt::format("warning: the data was {}, and is now {}\n", printable(earlier.back()),
                             printable(arguments.data));
  }
  if (!arguments.quiet) {
    std::vector<TableRow> rows =
        start_rows(arguments, session, bound, data, trainer, options, predicted);
    if (choices != nullptr) rows.push_back({"plan", plan_text(*choices, options.run_folder)});
    if (found) rows.push_back({"resumed", fmt::format("after step {}", found->step)});
    print_table(std::cout, terminal, "run", rows);
  }
  check_standard_output();
  warn_of_idle_steps(session, trainer, found.has_value());
  const ProgressMode mode =
      arguments.quiet ? ProgressMode::kNone : progress_mode_from_name(arguments.progress);
  Progress progress(mode, trainer.total_steps(), terminal, std::cout);
  const TrainResult result = trainer.run(progress);
  warn_of_skipped(result);
  // The model first: what was trained does not go with a profile for which there is no room.
  const std::string model =
      result.stopped ? std::string() : write_model(session, arguments, options);
  const MeasuredMemory measured = {std::max(machine.memory, resident_memory().peak),
                                   session.device_memory().most};
  write_file_atomic(options.run_folder / kRunMemory, memory_json(predicted, measured));
  if (!arguments.profile.empty())
    write_profile(arguments, profiler, machine.peak, options.run_folder);
  if (result.stopped) return stopped(result, signals.requested());
  if (!arguments.quiet) {
    print_table(std::cout, terminal, "result", result_rows(result, predicted, measured, model));
  }
  return 0;
}

int run(const CLI::App& verb, const RunArguments& arguments) {
  check_device(arguments.device);
  refuse_idle_flags(verb, arguments);
  Model read = import_model(arguments.artifact, import_options(arguments.import));
  const bool draws = draws_values(read);
  Model model = adopt_training_info(std::move(read), static_cast<int64_t>(arguments.seed));
  const BoundInputs bound = bind_inputs(model, arguments);
  if (!bound.note.empty() && !arguments.quiet)
    std::cerr << "note: " << printable(bound.note) << "\n";
  if (!draws) warn_of_idle_seed(model, arguments, bound);
  check_kernels(arguments.kernels, arguments.device);
  const SessionOptions::Memory memory = parse_memory(arguments.memory);
  TrainerOptions options = trainer_options(arguments, bound.batch);
  check_run_files(arguments, model, options.run_folder);
  const RunData data = load_run_data(arguments, bound.inputs);
  const std::unique_ptr<KernelChoices> choices = load_choices(arguments, options.run_folder);
  const MachineAtStart machine = measure_machine(arguments);
  Profiler profiler;
  if (arguments.device != "cpu") profiler.set_device(arguments.device);
  // Kept to the end of the process: to take graphs and plans of 100,000 nodes apart takes long.
  static Session* kept = nullptr;
  SessionOptions settings{arguments.threads,
                          arguments.kernels,
                          bound.dims,
                          arguments.plan_memory,
                          {arguments.dump, arguments.dump_folder},
                          arguments.profile.empty() ? nullptr : &profiler,
                          memory,
                          choices.get(),
                          arguments.tune,
                          arguments.device,
                          arguments.tf32};
  settings.only_trains = true;
  kept = new Session(std::move(model), std::move(settings));
  Session& session = *kept;
  if (arguments.seed_given) set_random_seed(session, arguments.seed);
  std::optional<SignalScope> signals;
  options.stop = [&signals] { return signals && signals->requested() != 0; };
  Trainer trainer(session, data.train, data.evaluation, options);
  trainer.plan();
  std::set<std::pair<std::string, std::string>> told;  // training and evaluation say the same
  for (const Remark& remark : session.device_remarks()) {
    const bool warns = remark.level == Remark::Level::kWarning;
    if ((!warns && arguments.quiet) || !told.emplace(remark.where, remark.text).second) continue;
    std::cerr << (warns ? "warning: " : "note: ") << printable(remark.where) << ": "
              << printable(remark.text) << "\n";
  }
  warn_of_missed_limit(session);
  if (choices != nullptr) warn_of_strange_plan(*choices, arguments);
  if (choices != nullptr && !arguments.quiet) tell_of_unmeasured(*choices);
  const PredictedMemory predicted = predict_memory(session, trainer, machine.memory);
  if (arguments.plan_memory) {
    print_table(std::cout, Terminal::detect(STDOUT_FILENO), "memory",
                memory_rows(session, predicted));
    return 0;
  }
  signals.emplace();  // until here a signal ends the process: there is nothing to save
  return train(arguments, session, bound, data, trainer, options, *signals, profiler, predicted,
               machine, choices.get());
}

void add_data_flags(CLI::App* verb, RunArguments& a) {
  verb->add_option("--data", a.data, "training data")->required();
  verb->add_option("--eval-data", a.eval_data, "evaluation data");
  verb->add_option("--map", a.maps, "which field feeds an input: INPUT=FIELD")->take_all();
  verb->add_option("--whole", a.whole,
                   "an input without a dim for the batch: its field is fed whole in every step; "
                   "all: every input")
      ->take_all();
  verb->add_option("--batch-axis", a.batch_axes,
                   "the dim of an input that counts the samples of a batch, where it is not the "
                   "first: INPUT=AXIS")
      ->take_all();
  verb->add_option("--normalize", a.normalize,
                   "MEAN,STD of the float input, one number each or one a channel with slashes; "
                   "of several: INPUT=MEAN,STD. The target of the loss only by its name")
      ->take_all();
  verb->add_option("--resize", a.resize,
                   "images of another size: none (refuse), nearest, bilinear");
  verb->add_option("--bytes", a.bytes,
                   "u8 data of float inputs: scale (divide by 255), keep, or auto: scale images, "
                   "whose samples have two dims or more (default); of one input: INPUT=scale. "
                   "The target of the loss keeps them unless it is named")
      ->take_all();
  verb->add_option("--limit-samples", a.limit_samples, "only the first N samples of each data set")
      ->check(at_least_one());
}

void add_length_flags(CLI::App* verb, RunArguments& a) {
  verb->add_option("--epochs", a.epochs, "passes over the training data")->check(at_least_one());
  verb->add_option("--steps", a.steps, "batches, in place of --epochs")->check(at_least_one());
  verb->add_option("--batch", a.batch,
                   "samples in a batch, where the model leaves it open "
                   "(default: 32)")
      ->check(at_least_one());
  verb->add_option("--dim", a.dims, "bind another symbolic dim of the inputs: NAME=N")->take_all();
  verb->add_option("--seed", a.seed,
                   "order of the data, dropout and random nodes (default: 0, and for "
                   "these two the artifact's)");
  verb->add_flag("--no-shuffle", a.no_shuffle, "take the samples in the order of the data");
}

void add_run_flags(CLI::App* verb, RunArguments& a) {
  verb->add_option("--device", a.device,
                   "cpu, cuda, cuda:N, or cuda-emulated (slow: for tests), never another than that "
                   "(default: cpu)");
  verb->add_flag("--tf32", a.tf32,
                 "on a GPU: f32 products and convolutions on tensor cores, their operands rounded "
                 "to TF32");
  verb->add_option("--threads", a.threads, "CPU threads, at most 1024 (default, and 0: all cores)")
      ->check(whole_number(0, kMaxThreads));
  verb->add_option("--kernels", a.kernels, "only kernels whose name starts so, as in reference");
  verb->add_option("--run-dir", a.run_dir, "run folder (default: runs/NAME-N)");
  verb->add_flag("--resume", a.resume, "go on from the newest intact checkpoint of the run folder");
  verb->add_option("--save-every", a.save_every,
                   "checkpoint every N steps, or Ne epochs; 0: only "
                   "at the end (default: 1e)");
  verb->add_option("--keep", a.keep, "checkpoints to keep; 0: all (default: 3)")
      ->check(at_least_zero());
  verb->add_option("--eval-every", a.eval_every,
                   "evaluate every N steps, or Ne epochs; 0: only at "
                   "the end (default: 1e)");
  verb->add_option("--log-every", a.log_every, "steps between lines of metrics.jsonl (default: 1)")
      ->check(at_least_one());
  verb->add_option("--progress", a.progress, "auto, bar, plain or none");
  verb->add_option("--export", a.export_file,
                   "where the trained model goes, as plain inference "
                   "ONNX (default: RUN/model.onnx)");
  verb->add_option("--dump-after", a.dump,
                   "write the text after this pass of the device pipeline (halfnote ops "
                   "--passes), or all")
      ->take_all();
  verb->add_option("--dump-folder", a.dump_folder,
                   "where dumps go, a folder for each step (default: .)");
  verb->add_flag("--profile{RUN/profile.json}", a.profile,
                 "time by op, kernel and shape: a table, FILE as JSON, and beside it a trace for "
                 "Perfetto (--profile=FILE)");
  verb->add_option("--memory", a.memory,
                   "what the activations may take: a share of what they do (0.6), or bytes (3GB);\n"
                   "the rest is computed again in the backward pass, with the same bits\n"
                   "(docs/run.md)");
  CLI::Option* memory = verb->add_flag("--plan-memory", a.plan_memory,
                                       "print the memory plan; trains and writes nothing");
  CLI::Option* tune = verb->add_flag(
      "--tune", a.tune,
      "measure which kernels, and on a GPU which algorithms of its libraries, are fastest on this "
      "machine before the first step, and train with them; RUN/plan.json keeps the choice");
  tune->excludes(memory)->excludes("--resume")->excludes("--kernels");
  verb->add_option("--plan", a.plan, "kernels as a plan file of --tune says")
      ->excludes(tune)
      ->excludes("--kernels");
  verb->add_flag("-q,--quiet", a.quiet, "no tables, no progress");
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto a = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("run", "train an artifact on data");
  verb->add_option("artifact", a->artifact, "what halfnote compile wrote")->required();
  add_data_flags(verb, *a);
  add_length_flags(verb, *a);
  add_run_flags(verb, *a);
  add_import_flags(verb, a->import);
  verb->footer(kFooter);
  verb->callback([verb, a, &action] {
    a->seed_given = verb->count("--seed") > 0;
    action = [verb, a] { return run(*verb, *a); };
  });
}

}  // namespace halfnote::cli
