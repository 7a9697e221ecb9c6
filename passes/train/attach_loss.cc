// attach_loss: makes the steps of training out of a forward graph.
//
//   model.graph (x -> logits)
//     ──▶   training step       (x, labels -> loss, logits)   training form
//           training evaluate   (x, labels -> loss, logits)   inference form
//           model.graph         (x -> logits)                 inference form
//
// Exact in the step. A graph that has its loss inside (--loss-output) keeps it in both steps; in
// model.graph the loss and the inputs that only it reads are taken away where another output
// remains. Several losses (--loss-output A --loss-output B*0.5) are summed in f32. With --loss the
// loss is attached to the first output (or --loss-input): losses.cc. A loss, or what it is made of,
// that the model rounds to 16 bits at its border is taken before that rounding. A value whose name
// the train passes need (step.h) gets another in the steps; an input or weight of such a name is an
// error. Leaves alone: a model that has training steps already.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "compiler/onnx/metadata.h"
#include "passes/passes.h"
#include "passes/settings.h"
#include "passes/train/losses.h"
#include "passes/train/step.h"
#include "passes/train/step_form.h"

namespace halfnote {
namespace {

std::string list_outputs(const Graph& graph) {
  std::string names;
  for (ValueId output : graph.outputs()) {
    names += (names.empty() ? "" : ", ") + graph.value(output).name;
  }
  return names;
}

[[noreturn]] void refuse(const PassContext& context, const char* key, SettingText text) {
  text.what = "{" + std::string(key) + "} " + text.what;
  throw SettingError(key, std::move(text)).named(context.options);
}

constexpr const char *kLossOutput = "train.loss_output", *kLossInput = "train.loss_input";

ValueId named_value(const Graph& graph, const std::string& name, const char* key,
                    const PassContext& context) {
  const ValueId value = graph.find(name);
  if (value.valid() && graph.value(value).region == graph.main()) return value;
  std::vector<std::string> outputs;
  for (ValueId output : graph.outputs()) outputs.push_back(graph.value(output).name);
  const std::string_view near = closest(name, outputs);
  refuse(context, key,
         {"names no value of the graph", "one of the outputs: " + list_outputs(graph),
          "\"" + name + "\"",
          near.empty() ? "see halfnote inspect for the names"
                       : "did you mean " + std::string(near) + "?"});
}

/// One loss inside the graph: `NAME` or `NAME*WEIGHT`.
struct LossTerm {
  ValueId value;
  double weight = 1;
};

/// A value may have a star in its name: the whole text is tried first.
LossTerm term_of(const Graph& graph, const std::string& text, const PassContext& context) {
  const ValueId whole = graph.find(text);
  const size_t star = text.rfind('*');
  if (whole.valid() || star == std::string::npos) {
    return {named_value(graph, text, kLossOutput, context), 1};
  }
  const std::string number = text.substr(star + 1);
  double weight = 0;
  const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), weight);
  const auto single = static_cast<float>(weight);
  const bool fits = std::isfinite(single) && (single != 0 || weight == 0);
  if (code == std::errc::result_out_of_range || (std::isfinite(weight) && !fits)) {
    refuse(
        context, kLossOutput,
        {"has a weight that is out of range", "a number that FP32 holds", "\"" + text + "\"", {}});
  }
  if (code != std::errc() || end != number.data() + number.size() || !std::isfinite(weight)) {
    refuse(context, kLossOutput,
           {"has a weight that is no number", "NAME or NAME*0.5", "\"" + text + "\"", {}});
  }
  return {named_value(graph, text.substr(0, star), kLossOutput, context), weight};
}

/// The loss without a rounding at its end; its name stays.
ValueId take_rounding_away(Graph& graph, ValueId loss) {
  const ValueId source = before_rounding(graph, loss);
  if (source == loss || graph.value(source).kind != ValueKind::kResult) return source;
  const NodeId cast = graph.value(loss).producer;
  const std::string name = graph.value(loss).name;
  graph.replace_uses(loss, source);
  graph.remove(cast);
  graph.rename(source, name);
  return source;
}

/// The weighted sum of the terms, in f32; a single plain one is the loss as it is.
ValueId sum_of_losses(Graph& graph, const std::vector<LossTerm>& terms, PassContext& context) {
  if (terms.size() == 1 && terms[0].weight == 1) return terms[0].value;
  Builder b(graph, graph.end(), context.infer);
  b.set_role(Role::kLoss);
  Expr total = b.none();
  for (const LossTerm& term : terms) {
    Expr loss = b.to_math(b.value(term.value));
    if (loss.rank() > 0) loss = b.reshape(loss, b.ints({}));
    if (term.weight != 1) loss = loss * term.weight;
    total = total.valid() ? total + b.cast(loss, total.dtype()) : loss;
  }
  graph.rename(total.id, graph.unique_name("loss"));
  return total.id;
}

/// A loss of weight 0 trains nothing: a switch among several, a mistake where it is all there is.
void judge_weights(const Graph& graph, const std::vector<LossTerm>& terms, PassContext& context) {
  const auto is_idle = [](const LossTerm& term) { return term.weight == 0; };
  if (!terms.empty() && std::all_of(terms.begin(), terms.end(), is_idle)) {
    refuse(context, kLossOutput,
           {"leaves no loss", "a weight that is not 0", "0",
            "a loss of weight 0 has no gradient: nothing would be trained"});
  }
  for (const LossTerm& term : terms) {
    if (!is_idle(term)) continue;
    context.warn(graph.value(term.value).name,
                 "is a loss of weight 0 (--loss-output): it trains nothing");
  }
}

/// The losses in the graph, by --loss-output.
std::vector<LossTerm> terms_of(const Graph& graph, PassContext& context) {
  std::vector<LossTerm> terms;
  for (const std::string& text : context.options.train.loss_outputs) {
    const LossTerm term = term_of(graph, text, context);
    for (const LossTerm& other : terms) {
      if (other.value != term.value) continue;
      refuse(context, kLossOutput,
             {"names a loss twice", "each loss once, with its weight", "\"" + text + "\"", {}});
    }
    terms.push_back(term);
  }
  judge_weights(graph, terms, context);
  return terms;
}

/// What no run has data for is told before one is begun.
void warn_of_unfed_inputs(const Graph& graph, PassContext& context) {
  for (const ValueId input : graph.inputs()) {
    const Value& value = graph.value(input);
    if (value.type.dtype == DType::kString) {
      context.warn(value.name, "is an input of strings: no data of a run becomes that");
    } else if (value.type.rank() > 0 && (*value.type.shape)[0].known() &&
               (*value.type.shape)[0].value == 0) {
      context.warn(value.name, "is an input without samples, " + to_string(*value.type.shape) +
                                   ": no run trains on that; export the model with a symbolic "
                                   "first dim");
    }
  }
}

ValueId loss_input(const Graph& graph, const PassContext& context) {
  const std::string& name = context.options.train.loss_input;
  if (name.empty()) return graph.outputs().front();
  return named_value(graph, name, kLossInput, context);
}

}  // namespace

bool attach_loss(Model& model, PassContext& context) {
  const TrainOptions& train = context.options.train;
  if (context.options.inference_only || model.is_training()) return false;
  if (train.loss.empty() == train.loss_outputs.empty()) {
    throw SettingError(
        "train.loss",
        {"a training step needs exactly one loss",
         "{train.loss} NAME for a graph without a loss, or {train.loss_output} NAME for one that "
         "has it",
         train.loss.empty() ? "neither" : "both",
         "the outputs of the graph are " + list_outputs(model.graph)})
        .named(context.options);
  }
  if (model.graph.outputs().empty()) throw Error(ErrorCode::kModel, "the graph has no output");

  TrainingStep step;
  step.name = kStepName;
  step.graph = model.graph;
  std::vector<LossTerm> terms = terms_of(step.graph, context);
  std::set<std::string> names;
  for (LossTerm& term : terms) {
    names.insert(step.graph.value(term.value).name);
    term.value = take_rounding_away(step.graph, term.value);
    check_scalar(step.graph, term.value, ErrorCode::kUsage);
  }
  const ValueId loss =
      train.loss.empty() ? sum_of_losses(step.graph, terms, context)
                         : attach_named_loss(step.graph, loss_input(step.graph, context), context);
  put_loss_first(step.graph, loss);
  free_reserved_names(step.graph, context);
  warn_of_unfed_inputs(step.graph, context);
  if (!train.loss.empty()) {
    const ValueId target = step.graph.inputs().back();  // the one that was added
    model.metadata[std::string(kTargetKey)] =
        join_names(std::vector<std::string>{step.graph.value(target).name, train.loss});
  }
  TrainingStep evaluation;
  evaluation.name = kEvaluateName;
  evaluation.graph = step.graph;
  to_inference_form(evaluation.graph);
  warn_of_lost_dropouts(model, context);
  make_inference_form(model);
  drop_losses(model.graph, names, context);
  warn_of_noise(model.graph, context);
  model.training.reserve(2);
  model.training.push_back(std::move(step));
  model.training.push_back(std::move(evaluation));
  return true;
}

}  // namespace halfnote
