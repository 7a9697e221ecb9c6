#include "cli/run_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <iostream>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text/printable.h"
#include "cli/arguments.h"
#include "compiler/ops/operator.h"
#include "kernels/device.h"
#include "kernels/kernel.h"
#include "passes/canonical/bind_dims.h"
#include "passes/train/step.h"
#include "runtime/train/checkpoint/run_folder.h"
#include "runtime/train/data/spec.h"

namespace halfnote::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPlanFileLimit = size_t{64} << 20;

/// A flag that nothing reads is taken for one that works.
[[noreturn]] void refuse_idle(const char* flag, const char* wanted, const char* got) {
  throw Error(ErrorCode::kUsage, std::string(flag) + " does nothing here")
      .expected(wanted, got)
      .hint(std::string("take ") + flag + " away");
}

/// The name of the artifact without `.hn.onnx`.
std::string stem_of(const fs::path& artifact) {
  std::string name = artifact.filename().string();
  for (const std::string_view end : {".onnx", ".onnxtxt", ".hn"}) {
    if (name.ends_with(end) && name.size() > end.size()) name.resize(name.size() - end.size());
  }
  return name;
}

/// N of `NAME-N`; 0 for other names.
int64_t run_number(const std::string& folder, const std::string& name) {
  if (!folder.starts_with(name + "-")) return 0;
  const char* begin = folder.data() + name.size() + 1;
  int64_t number = 0;
  const auto [end, code] = std::from_chars(begin, folder.data() + folder.size(), number);
  return code == std::errc() && end == folder.data() + folder.size() ? number : 0;
}

}  // namespace

void check_device(const std::string& device) { open_device(device); }

namespace {

/// The kernels of --device, and where their times are true.
struct TunedKernels {
  const KernelTable& table;
  TunedMachine machine;
};

TunedKernels kernels_of(const RunArguments& arguments) {
  if (const std::unique_ptr<Device> device = open_device(arguments.device))
    return {device->kernels(), machine_of(*device)};
  const int threads = arguments.threads > 0 ? arguments.threads : omp_get_num_procs();
  return {cpu_kernels(), this_machine(threads)};
}

}  // namespace

void check_kernels(const std::string& kernels, const std::string& device) {
  if (kernels.empty()) return;
  const std::unique_ptr<Device> opened = open_device(device);
  const KernelTable& table = opened == nullptr ? cpu_kernels() : opened->kernels();
  std::set<std::string, std::less<>> names;
  for (const KernelRow& row : table.rows()) {
    if (row.name.starts_with(kernels)) return;
    names.emplace(row.name.substr(0, row.name.find('.')));
  }
  throw Error(ErrorCode::kUsage, "--kernels names no kernel")
      .expected(fmt::format("the start of a kernel's name: {}", fmt::join(names, ", ")),
                fmt::format("\"{}\"", kernels))
      .hint("`halfnote ops --device DEVICE` lists the kernels");
}

SessionOptions::Memory parse_memory(const std::string& text) {
  if (text.empty()) return {};
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array<Unit, 7> kUnits = {{{"B", 1},
                                           {"KB", 1e3},
                                           {"MB", 1e6},
                                           {"GB", 1e9},
                                           {"KiB", 1024.0},
                                           {"MiB", 1048576.0},
                                           {"GiB", 1073741824.0}}};
  constexpr double kMost = 1e15;
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (code == std::errc() && number > 0) {
    if (unit.empty() && number <= 1) return {number, 0};
    for (const Unit& each : kUnits) {
      const double bytes = number * each.bytes;
      if (unit == each.name && bytes >= 1 && bytes <= kMost) {
        return {0, static_cast<int64_t>(bytes)};
      }
    }
  }
  throw Error(ErrorCode::kUsage, "--memory is not understood")
      .expected("a share up to 1 as in 0.6, or bytes as in 3GB or 500MiB",
                fmt::format("\"{}\"", text));
}

namespace {

void refuse_idle_data_flags(const RunArguments& arguments, const RunData& data) {
  const InputMap* evaluation = data.evaluation ? &*data.evaluation : nullptr;
  const bool normalises =
      data.train.normalises() || (evaluation != nullptr && evaluation->normalises());
  if (!arguments.normalize.empty() && !normalises) {
    refuse_idle("--normalize", "an input of floats", "none");
  }
  const bool resizes = data.train.resizes() || (evaluation != nullptr && evaluation->resizes());
  if (resize_from_name(arguments.resize) != Resize::kNone && !resizes) {
    refuse_idle("--resize", "images of another size than the input", "none");
  }
  const bool bytes =
      data.train.takes_bytes() || (evaluation != nullptr && evaluation->takes_bytes());
  if (!arguments.bytes.empty() && !bytes) {
    refuse_idle("--bytes", "data of type u8 for an input of floats", "none");
  }
}

}  // namespace

void refuse_idle_flags(const CLI::App& verb, const RunArguments& arguments) {
  if (arguments.dump.empty() && verb.count("--dump-folder") > 0) {
    refuse_idle("--dump-folder", "--dump-after with it", "none");
  }
  const ProgressMode progress = progress_mode_from_name(arguments.progress);
  if (arguments.quiet && verb.count("--progress") > 0 && progress != ProgressMode::kNone) {
    refuse_idle("--progress", "--progress without --quiet", "both");
  }
  const DataSpec spec = parse_data_spec(arguments.data);
  if (verb.count("--eval-every") > 0 && arguments.eval_data.empty() && !spec.has_test_split()) {
    refuse_idle("--eval-every", "--eval-data, or data with a test split", "neither");
  }
}

RunData load_run_data(const RunArguments& arguments, std::span<const ModelInput> inputs) {
  InputOptions options;
  for (const std::string& text : arguments.normalize) parse_normalize(text, options);
  for (const std::string& text : arguments.bytes) parse_bytes(text, options);
  for (const std::string& map : arguments.maps) parse_input_names(map, options);
  options.resize = resize_from_name(arguments.resize);
  options.limit = arguments.limit_samples;
  const DataSpec spec = parse_data_spec(arguments.data);
  const auto load = [&](const DataSpec& from, Split split) {
    return InputMap(load_dataset(from, split), inputs, options);
  };
  RunData data{load(spec, Split::kTrain), std::nullopt};
  if (!arguments.eval_data.empty()) {
    const DataSpec other = parse_data_spec(arguments.eval_data);
    data.evaluation.emplace(load(other, other.has_test_split() ? Split::kTest : Split::kTrain));
  } else if (spec.has_test_split()) {
    data.evaluation.emplace(load(spec, Split::kTest));
  }
  refuse_idle_data_flags(arguments, data);
  return data;
}

fs::path choose_run_folder(const RunArguments& arguments) {
  if (!arguments.run_dir.empty()) return arguments.run_dir;
  const fs::path runs = "runs";
  const std::string name = stem_of(arguments.artifact);
  int64_t last = 0;
  std::error_code error;
  for (fs::directory_iterator at(runs, error), end; !error && at != end; at.increment(error)) {
    last = std::max(last, run_number(at->path().filename().string(), name));
  }
  if (arguments.resume && last == 0) {
    throw Error(ErrorCode::kCheckpoint, "no run to resume")
        .expected(fmt::format("a folder runs/{}-N", name), "none")
        .hint("name the run folder with --run-dir");
  }
  return runs / fmt::format("{}-{}", name, arguments.resume ? last : last + 1);
}

std::unique_ptr<KernelChoices> load_choices(const RunArguments& arguments,
                                            const fs::path& run_folder) {
  std::error_code error;
  fs::path file = arguments.plan;
  if (file.empty() && arguments.resume && fs::exists(run_folder / kRunPlan, error))
    file = run_folder / kRunPlan;
  if (file.empty() && !arguments.tune) return nullptr;
  const auto [table, machine] = kernels_of(arguments);
  if (arguments.tune) return std::make_unique<KernelChoices>(machine);
  const std::string text = read_text(file, kPlanFileLimit);
  try {
    return std::make_unique<KernelChoices>(
        KernelChoices::parse(text, file.string(), machine, table));
  } catch (const Error& foreign) {
    if (!arguments.plan.empty() || foreign.code() != ErrorCode::kUsage) throw;
    std::cerr << fmt::format(
        "warning: {} was measured elsewhere (expected {}, got {}): the run goes on with the "
        "kernels of the table; for measured ones, train a step with --tune --run-dir OTHER and "
        "resume with --plan OTHER/plan.json\n",
        printable(file.string()), printable(foreign.expectation()), printable(foreign.value()));
    return nullptr;
  }
}

bool draws_values(const Model& model) {
  const auto draws = [](const Graph& graph, NodeId id) {
    const OperatorRow* row = find_operator(graph.node(id));
    return row != nullptr && row->purity == Purity::kRandom &&
           !graph.node(id).attributes.has("seed");
  };
  return std::any_of(model.training.begin(), model.training.end(), [&](const TrainingStep& step) {
    const auto nodes = step.initialization.all_nodes();
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](NodeId id) { return draws(step.initialization, id); });
  });
}

void warn_of_idle_seed(const Model& model, const RunArguments& arguments,
                       const BoundInputs& bound) {
  if (!arguments.seed_given || arguments.quiet) return;
  const bool samples = std::any_of(bound.inputs.begin(), bound.inputs.end(),
                                   [](const ModelInput& input) { return !input.whole; });
  const bool dropout = std::any_of(
      model.training.begin(), model.training.end(),
      [](const TrainingStep& step) { return find_state(step.graph, kSeed).has_value(); });
  if (dropout || (samples && !arguments.no_shuffle)) return;
  std::cerr << fmt::format(
      "warning: --seed does nothing here: {}, and there is no dropout\n",
      samples ? "samples are taken in the order of the data" : "all inputs are fed whole");
}

TrainerOptions trainer_options(const RunArguments& arguments, int64_t batch) {
  TrainerOptions options;
  options.run_folder = choose_run_folder(arguments);
  options.artifact = artifact_hash(fs::path(arguments.artifact));
  options.batch = batch;
  options.seed = arguments.seed;
  options.shuffle = !arguments.no_shuffle;
  options.epochs = arguments.epochs;
  options.steps = arguments.steps;
  // A plan has no length, but the trainer wants one.
  if (arguments.plan_memory && options.epochs == 0 && options.steps == 0) options.steps = 1;
  options.evaluate = parse_every("--eval-every", arguments.eval_every);
  options.save = parse_every("--save-every", arguments.save_every);
  options.keep = arguments.keep;
  options.log_every = arguments.log_every;
  options.resume = arguments.resume;
  options.new_number = arguments.run_dir.empty() && !arguments.resume;
  return options;
}

}  // namespace halfnote::cli
