#include "cli/run_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "cli/arguments.h"
#include "compiler/onnx/metadata.h"
#include "passes/canonical/bind_dims.h"
#include "passes/precision/values/masks.h"

namespace halfnote::cli {
namespace {

constexpr int64_t kDefaultBatch = 32;

/// The numbers that the batches of the inputs must have: from the artifact, from --dim.
struct BatchSource {
  std::optional<int64_t> fixed, bound;
  std::set<std::string> symbols;
};

void add_batch_dim(const Value& input, size_t axis, const std::map<std::string, int64_t>& dims,
                   BatchSource& source) {
  const Dim& dim = (*input.type.shape)[axis];
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

/// Where the batch is in an input, by name; 0 for those that are not there.
using BatchAxes = std::map<std::string, size_t, std::less<>>;

size_t axis_of(const BatchAxes& axes, const std::string& input) {
  const auto found = axes.find(input);
  return found == axes.end() ? 0 : found->second;
}

/// What exporters and people call the dim that counts samples.
bool is_batch_word(std::string symbol) {
  std::transform(symbol.begin(), symbol.end(), symbol.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 7> kWords = {"batch", "batch_size", "batchsize", "bs",
                                                      "bsz",   "batch_dim",  "minibatch"};
  return std::find(kWords.begin(), kWords.end(), symbol) != kWords.end();
}

/// Is a dim called the batch, and `axis`, a number, cannot be it?
bool has_another_batch(const SymbolicShape& shape, size_t axis) {
  return shape[axis].known() && std::any_of(shape.begin(), shape.end(), [](const Dim& dim) {
           return !dim.known() && is_batch_word(dim.symbol);
         });
}

/// `INPUT=K` of --batch-axis.
BatchAxes given_axes(const Graph& graph, const std::vector<std::string>& texts) {
  BatchAxes axes;
  std::vector<std::string_view> names;
  for (const ValueId input : graph.inputs()) names.push_back(graph.value(input).name);
  for (const auto& [name, axis] : parse_axes("--batch-axis", texts)) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      const std::string_view near = closest(name, names);
      throw Error(ErrorCode::kUsage, fmt::format("--batch-axis {}: no such input", name))
          .expected(fmt::format("{}", fmt::join(names, ", ")), name)
          .hint(near.empty() ? std::string() : fmt::format("did you mean {}?", near));
    }
    const ValueId input = graph.inputs()[static_cast<size_t>(at - names.begin())];
    const ValueType& type = graph.value(input).type;
    if (axis < 0 || axis >= static_cast<int64_t>(type.shape->size())) {
      throw Error(ErrorCode::kUsage, fmt::format("--batch-axis {}: no such axis", name))
          .expected(type.shape->empty() ? std::string("an input that is no scalar")
                                        : fmt::format("0 to {}", type.shape->size() - 1),
                    fmt::format("{} of {}", axis, to_string(type)));
    }
    if (has_another_batch(*type.shape, static_cast<size_t>(axis))) {
      throw Error(ErrorCode::kUsage, fmt::format("--batch-axis {}: that dim is no batch", name))
          .expected("the dim that is called so", fmt::format("{} of {}", axis, to_string(type)));
    }
    axes.emplace(name, static_cast<size_t>(axis));
  }
  return axes;
}

/// The first dims of the inputs that may be batches, and the inputs that have them.
using FirstDims = std::map<std::string, std::string>;

/// Where the batch is in an input that nobody speaks of: first, unless a later dim is the symbol
/// that stands first in another input, and its own first dim is a number, or another word than
/// the batch.
size_t find_axis(const Value& input, const FirstDims& firsts) {
  const SymbolicShape& shape = *input.type.shape;
  const Dim& own = shape.front();
  if (!own.known() && (own.symbol.empty() || is_batch_word(own.symbol))) return 0;
  for (size_t axis = 1; axis < shape.size(); ++axis) {
    const Dim& dim = shape[axis];
    if (dim.known() || dim.symbol.empty() || dim.symbol == own.symbol) continue;
    if (is_batch_word(dim.symbol)) return axis;
    const auto first = firsts.find(dim.symbol);
    if (first == firsts.end()) continue;
    if (own.known()) return axis;
    throw Error(ErrorCode::kUsage,
                fmt::format("it is not clear which dim of \"{}\" counts the samples", input.name))
        .expected("one symbol that is the batch",
                  fmt::format("{}, and {} first in \"{}\"", to_string(input.type), dim.symbol,
                              first->second))
        .hint(fmt::format("--batch-axis {}={} if {} does, --whole {} if \"{}\" has no batch",
                          input.name, axis, dim.symbol, first->second, first->second));
  }
  return 0;
}

/// The symbols of the first two dims, where all inputs that are fed by samples have the same;
/// empty ones stand for numbers.
std::optional<std::pair<std::string, std::string>> shared_dims(const Graph& graph,
                                                               const std::set<std::string>& whole) {
  std::optional<std::pair<std::string, std::string>> shared;
  for (const ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    const SymbolicShape& shape = *input.type.shape;
    if (whole.contains(input.name)) continue;
    if (shape.size() < 2 || (shape[0].known() && shape[0].value < 2)) return std::nullopt;
    const auto symbol = [](const Dim& dim) {
      return dim.known() ? std::string() : dim.symbol.str();
    };
    std::pair<std::string, std::string> own = {symbol(shape[0]), symbol(shape[1])};
    if (own.second.empty() || (shared && *shared != own)) return std::nullopt;
    shared = std::move(own);
  }
  return shared;
}

/// A number first and one symbol behind it, in all inputs: a batch of that size with a length that
/// is open, or that many times with an open batch.
void refuse_unclear(const Graph& graph, const std::set<std::string>& whole) {
  const auto shared = shared_dims(graph, whole);
  if (!shared || !shared->first.empty() || is_batch_word(shared->second)) return;
  const Value& input = graph.value(graph.inputs().front());
  const Dim& first = input.type.shape->front();
  throw Error(ErrorCode::kUsage,
              fmt::format("it is not clear which dim of \"{}\" counts the samples", input.name))
      .expected("one that can be the batch", to_string(input.type))
      .hint(
          fmt::format("--batch-axis {0}=1 if {1} does (time first), --batch-axis {0}=0 if {2} does",
                      input.name, shared->second, first.known() ? first.value : 0));
}

BatchAxes batch_axes(const Graph& graph, const std::set<std::string>& whole, BatchAxes axes) {
  if (axes.empty()) refuse_unclear(graph, whole);
  FirstDims firsts;
  for (const ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    if (whole.contains(input.name)) continue;
    const Dim& dim = (*input.type.shape)[axis_of(axes, input.name)];
    if (!dim.known() && !dim.symbol.empty()) firsts.emplace(dim.symbol, input.name);
  }
  const BatchAxes given = axes;
  for (const ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    if (whole.contains(input.name) || given.contains(input.name)) continue;
    axes.emplace(input.name, find_axis(input, firsts));
  }
  return axes;
}

/// Two symbols in all inputs: the first is the batch unless one is called so; that is said.
std::string note_of_symbols(const Graph& graph, const std::set<std::string>& whole,
                            const BatchAxes& axes) {
  const auto shared = shared_dims(graph, whole);
  const Value& input = graph.value(graph.inputs().front());
  if (!shared || shared->first.empty() || axis_of(axes, input.name) > 0) return {};
  if (is_batch_word(shared->first)) return {};
  return fmt::format(
      "\"{}\" is taken to count the samples, as the first dim of \"{}\" {}; --batch-axis {}=1 "
      "takes "
      "\"{}\"",
      shared->first, input.name, to_string(input.type), input.name, shared->second);
}

/// Are all first dims (or those of --batch-axis) numbers, and not all the same? Then none of them
/// can be the batch.
bool has_no_batch(const Graph& graph, const BatchAxes& axes) {
  std::set<int64_t> numbers;
  for (const ValueId input : graph.inputs()) {
    const SymbolicShape& shape = *graph.value(input).type.shape;
    if (shape.empty()) continue;
    // A batch at a later axis of a symbol is one all the same.
    if (std::any_of(shape.begin(), shape.end(),
                    [](const Dim& dim) { return !dim.known() && is_batch_word(dim.symbol); })) {
      return false;
    }
    const Dim& dim = shape[axis_of(axes, graph.value(input).name)];
    if (!dim.known()) return false;
    numbers.insert(dim.value);
  }
  return numbers.size() > 1;
}

/// The input that a loss compares with, and the loss; empty where the file does not say so.
struct Target {
  std::string input, loss;
};

Target target_of(const Model& model) {
  const auto found = model.metadata.find(std::string(kTargetKey));
  if (found == model.metadata.end()) return {};
  const std::vector<std::string> names = split_names(found->second);
  if (names.size() != 2) return {};
  return {names[0], names[1]};
}

/// Tables beside samples: inputs that begin with a number where the batch of another input is a
/// symbol. The target of the loss is neither.
void add_tables(const Model& model, const BatchAxes& given, const BatchAxes& axes,
                std::set<std::string>& whole) {
  const Graph& graph = model.training.front().graph;
  const std::string target = target_of(model).input;
  bool samples = false;
  std::vector<std::string> tables;
  for (const ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    if (whole.contains(input.name) || input.name == target) continue;
    const Dim& batch = (*input.type.shape)[axis_of(axes, input.name)];
    samples |= !batch.known();
    if (batch.known() && !given.contains(input.name)) tables.push_back(input.name);
  }
  if (samples) whole.insert(tables.begin(), tables.end());
}

/// The inputs that are fed whole: those of --whole, scalars, and without --whole all inputs of a
/// model whose first dims cannot be a batch.
std::set<std::string> whole_inputs(const Graph& graph, const std::vector<std::string>& given,
                                   const BatchAxes& axes) {
  std::vector<std::string_view> names;
  for (const ValueId input : graph.inputs()) names.push_back(graph.value(input).name);
  const bool all = std::find(given.begin(), given.end(), "all") != given.end() ||
                   (given.empty() && has_no_batch(graph, axes));
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

namespace {

/// What the loss that was attached compares with, and which numbers inputs take: a log-likelihood
/// of others has no lower bound, and masks hide scores by -Inf.
void mark_inputs(const Model& model, std::vector<ModelInput>& inputs) {
  const Target target = target_of(model);
  for (ModelInput& input : inputs) {
    const Graph& graph = model.training.front().graph;
    const ValueId value = graph.find(input.name);
    input.hides = is_float(input.dtype) && value.valid() && is_mask_of_scores(graph, value);
    if (target.input.empty() || input.name != target.input || !is_float(input.dtype)) continue;
    input.target = true;
    if (target.loss == "bce_with_logits") input.range = Range{0, 1};
    if (target.loss == "kl") input.range = Range{0, HUGE_VAL};
  }
}

}  // namespace

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
  const BatchAxes given = given_axes(graph, arguments.batch_axes);
  std::set<std::string> whole = whole_inputs(graph, arguments.whole, given);
  for (const auto& [name, axis] : given) {
    if (!whole.contains(name)) continue;
    throw Error(ErrorCode::kUsage, fmt::format("--batch-axis {} does nothing here", name))
        .expected("an input that is fed by samples", "one that is fed whole");
  }
  const BatchAxes axes = batch_axes(graph, whole, given);
  if (arguments.whole.empty()) add_tables(model, given, axes, whole);
  if (given.empty()) bound.note = note_of_symbols(graph, whole, axes);
  BatchSource source;
  for (const ValueId input : graph.inputs()) {
    const Value& value = graph.value(input);
    if (!whole.contains(value.name))
      add_batch_dim(value, axis_of(axes, value.name), bound.dims, source);
  }
  const bool batched = whole.size() < graph.inputs().size();
  if (!batched && arguments.limit_samples > 0) {
    throw Error(ErrorCode::kUsage, "--limit-samples does nothing here")
        .expected("an input that is fed by samples", "inputs that are fed whole")
        .hint("take --limit-samples away");
  }
  if (!batched && arguments.batch > 0) {
    throw Error(ErrorCode::kUsage, "no input has a dim for the batch: all are fed whole")
        .expected("no --batch", std::to_string(arguments.batch));
  }
  if (!batched && arguments.no_shuffle) {
    throw Error(ErrorCode::kUsage, "--no-shuffle does nothing here")
        .expected("an input that is fed by samples", "inputs that are fed whole")
        .hint("take --no-shuffle away");
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
    const size_t axis = axis_of(axes, value.name);
    if (!shape.empty()) std::rotate(shape.begin(), shape.begin() + axis, shape.begin() + axis + 1);
    bound.inputs.push_back({value.name, value.type.dtype, std::move(shape),
                            whole.contains(value.name), static_cast<int64_t>(axis)});
  }
  mark_inputs(model, bound.inputs);
  return bound;
}

}  // namespace halfnote::cli
