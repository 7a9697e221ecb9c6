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

constexpr int64_t kDefaultBatch = 32;
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

/// The numbers that the first dims of the inputs must have: from the artifact, from --dim.
struct BatchSource {
  std::optional<int64_t> fixed, bound;
  std::set<std::string> symbols;
};

void add_batch_dim(const Value& input, const std::map<std::string, int64_t>& dims,
                   BatchSource& source) {
  const Dim& dim = input.type.shape->front();
  std::optional<int64_t>& slot = dim.known() ? source.fixed : source.bound;
  std::optional<int64_t> number;
  if (dim.known()) number = dim.value;
  if (!dim.known() && !dim.symbol.empty()) {
    source.symbols.insert(dim.symbol);
    if (const auto found = dims.find(dim.symbol); found != dims.end()) number = found->second;
  }
  if (!number) return;
  if (slot && *slot != *number) {
    throw Error(ErrorCode::kUsage, "the inputs do not agree on the batch size")
        .at({{}, input.name, {}})
        .expected(std::to_string(*slot), std::to_string(*number))
        .hint("--whole INPUT names an input without a dim for the batch");
  }
  slot = number;
}

/// Throws for an input whose rank is not known.
void check_shapes(const Model& model) {
  const Graph& graph = model.training.front().graph;
  for (const ValueId input : graph.inputs()) {
    const Value& value = graph.value(input);
    if (value.type.is_tensor() && value.type.shape) continue;
    throw Error(ErrorCode::kUnsupported, fmt::format("input \"{}\" takes no data", value.name))
        .at({model.source, {}, {}})
        .expected("a tensor of known rank", to_string(value.type));
  }
}

/// Are all first dims numbers, and not all the same? Then none of them can be the batch.
bool has_no_batch(const Graph& graph) {
  std::set<int64_t> numbers;
  for (const ValueId input : graph.inputs()) {
    const SymbolicShape& shape = *graph.value(input).type.shape;
    if (shape.empty()) continue;
    if (!shape.front().known()) return false;
    numbers.insert(shape.front().value);
  }
  return numbers.size() > 1;
}

/// The inputs that are fed whole: those of --whole, scalars, and without --whole all inputs of a
/// model whose first dims cannot be a batch.
std::set<std::string> whole_inputs(const Graph& graph, const std::vector<std::string>& given) {
  std::vector<std::string_view> names;
  for (const ValueId input : graph.inputs()) names.push_back(graph.value(input).name);
  const bool all = std::find(given.begin(), given.end(), "all") != given.end() ||
                   (given.empty() && has_no_batch(graph));
  std::set<std::string> whole;
  for (const ValueId input : graph.inputs()) {
    const Value& value = graph.value(input);
    if (all || value.type.shape->empty()) whole.insert(value.name);
  }
  for (const std::string& name : given) {
    if (name == "all") continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string_view near = closest(name, names);
      throw Error(ErrorCode::kUsage, fmt::format("--whole {}: no such input", name))
          .expected(fmt::format("all, {}", fmt::join(names, ", ")), name)
          .hint(near.empty() ? std::string() : fmt::format("did you mean {}?", near));
    }
    whole.insert(name);
  }
  return whole;
}

/// The micro-batch that the artifact was compiled for (a DeepSpeed file says it), else our default.
int64_t default_batch(const Model& model) {
  const auto found = model.metadata.find("halfnote.micro_batch");
  if (found == model.metadata.end()) return kDefaultBatch;
  const std::string& text = found->second;
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = code == std::errc() && end == text.data() + text.size();
  return whole && number > 0 ? number : kDefaultBatch;
}

int64_t choose_batch(const BatchSource& source, int64_t given, int64_t otherwise) {
  const auto refuse = [&](const char* who, int64_t wanted, int64_t got) {
    throw Error(ErrorCode::kUsage, fmt::format("{} has another batch size", who))
        .expected(std::to_string(wanted), std::to_string(got))
        .hint(
            "leave --batch out; a symbolic first dim in the model lets the run choose; an input "
            "without a "
            "batch is named by --whole");
  };
  if (source.fixed && given > 0 && given != *source.fixed)
    refuse("the artifact", *source.fixed, given);
  if (source.fixed && source.bound && *source.bound != *source.fixed) {
    refuse("the artifact", *source.fixed, *source.bound);
  }
  if (source.bound && given > 0 && given != *source.bound) refuse("--dim", *source.bound, given);
  if (source.fixed) return *source.fixed;
  if (source.bound) return *source.bound;
  return given > 0 ? given : otherwise;
}

}  // namespace

void check_device(const std::string& device) { open_device(device); }

void check_kernels(const std::string& kernels) {
  if (kernels.empty()) return;
  std::set<std::string, std::less<>> names;
  for (const KernelRow& row : cpu_kernels().rows()) {
    if (row.name.starts_with(kernels)) return;
    names.emplace(row.name.substr(0, row.name.find('.')));
  }
  throw Error(ErrorCode::kUsage, "--kernels names no kernel")
      .expected(fmt::format("the start of a kernel's name: {}", fmt::join(names, ", ")),
                fmt::format("\"{}\"", kernels))
      .hint("`halfnote ops` lists the kernels");
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

BoundInputs bind_inputs(const Model& model, const RunArguments& arguments) {
  if (!model.is_training()) {
    throw Error(ErrorCode::kModel, "the model has no training step")
        .at({model.source, {}, {}})
        .hint("run halfnote compile first, and give its output");
  }
  const Graph& graph = model.training.front().graph;
  BoundInputs bound;
  bound.dims = parse_dims(arguments.dims);
  check_dim_names(graph, bound.dims);
  check_shapes(model);
  const std::set<std::string> whole = whole_inputs(graph, arguments.whole);
  BatchSource source;
  for (const ValueId input : graph.inputs()) {
    const Value& value = graph.value(input);
    if (!whole.contains(value.name)) add_batch_dim(value, bound.dims, source);
  }
  const bool batched = whole.size() < graph.inputs().size();
  if (!batched && arguments.batch > 1) {
    throw Error(ErrorCode::kUsage, "no input has a dim for the batch: all are fed whole")
        .expected("no --batch", std::to_string(arguments.batch));
  }
  if (!batched && arguments.no_shuffle) {
    refuse_idle("--no-shuffle", "an input that is fed by samples", "inputs that are fed whole");
  }
  bound.batch = batched ? choose_batch(source, arguments.batch, default_batch(model)) : 1;
  bound.batch_is_fixed = source.fixed.has_value() || !batched;
  for (const std::string& symbol : source.symbols) bound.dims[symbol] = bound.batch;
  for (const ValueId input : graph.inputs()) {
    const Value& value = graph.value(input);
    SymbolicShape shape = *value.type.shape;
    for (Dim& dim : shape) {
      const auto found = dim.known() ? bound.dims.end() : bound.dims.find(dim.symbol);
      if (found != bound.dims.end()) dim = Dim(found->second);
    }
    bound.inputs.push_back(
        {value.name, value.type.dtype, std::move(shape), whole.contains(value.name)});
  }
  return bound;
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
  if (bytes_from_name(arguments.bytes) != Bytes::kAuto && !bytes) {
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
  if (!arguments.normalize.empty()) parse_normalize(arguments.normalize, options);
  for (const std::string& map : arguments.maps) parse_input_names(map, options);
  options.resize = resize_from_name(arguments.resize);
  options.bytes = bytes_from_name(arguments.bytes);
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
  const TunedMachine machine =
      this_machine(arguments.threads > 0 ? arguments.threads : omp_get_num_procs());
  if (arguments.tune) return std::make_unique<KernelChoices>(machine);
  std::error_code error;
  fs::path file = arguments.plan;
  if (file.empty() && arguments.resume && fs::exists(run_folder / kRunPlan, error))
    file = run_folder / kRunPlan;
  if (file.empty()) return nullptr;
  return std::make_unique<KernelChoices>(
      KernelChoices::parse(read_text(file, kPlanFileLimit), file.string(), machine));
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
