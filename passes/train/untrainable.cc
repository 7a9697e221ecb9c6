#include "passes/train/untrainable.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/lower_ops.h"
#include "passes/passes.h"
#include "passes/train/backward.h"
#include "passes/train/gradient_path.h"
#include "passes/train/sizes_of_data.h"
#include "passes/train/stopped.h"

namespace halfnote {
namespace {

constexpr const char* kFreeze =
    "freeze the weights before these nodes (--freeze REGEX), or rewrite the nodes";
constexpr const char* kTakeOut = "take these nodes out of the way from the weights to the loss";
constexpr const char* kKeepAll =
    "keep all elements, and give those left out no weight: labels that the loss ignores "
    "(ignore_index) instead of logits[mask], Where or Mul with the mask, "
    "instead of a selection by it";

constexpr const char* kFixed =
    "what sizes and trips follow from must be constant, or follow from shapes";

void append(std::string& text, std::string_view separator, const std::string& more) {
  if (!text.empty() && !more.empty()) text += separator;
  text += more;
}

/// Writes what is raw as the passes would, as far as that goes; `untold` are the lowerings that
/// only fail for want of types. Says whether what stands in bodies and containers is known as well
/// as it ever will be.
bool make_canonical(Graph& graph, const PassContext& context, UnsupportedOps& refused,
                    UnsupportedOps& untold) {
  const auto infer = [&](Graph& inner, NodeId node) {
    try {
      context.infer(inner, node);
    } catch (const Error&) {  // an op that nobody knows, or behind one: types stay open
    }
  };
  std::vector<Remark> remarks;
  PassContext lenient{context.options, infer, context.evaluate, remarks, context.pass};
  const auto attempt = [](const auto& rewrite) {
    try {
      rewrite();
      return true;
    } catch (const Error&) {  // the model is wrong there: that is told when all else is right
      return false;
    }
  };
  attempt([&] { fold_constants(graph, lenient); });
  const bool flat = attempt([&] { flatten_control(graph, lenient); });
  attempt([&] { lower_graph(graph, lenient.infer, refused); });
  for (NodeId node : graph.all_nodes()) {
    if (!has_known_types(graph, node)) untold.add(graph, node, "");
  }
  return flat;
}

/// Can other nodes still take the place of this one?
bool may_go(const Graph& graph, NodeId node, bool flat) {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr) return true;  // told as unknown
  if (row->gradient == nullptr && (row->lower != nullptr || row->body != nullptr)) return true;
  return !flat && may_be_flattened(graph, node);
}

}  // namespace

std::vector<ValueId> results_to_train(const Graph& graph, const PassContext& context) {
  std::vector<ValueId> ends;
  if (context.options.inference_only) return ends;
  for (const std::string& name : context.options.train.loss_outputs) {
    if (const ValueId value = graph.find(name); value.valid()) ends.push_back(value);
  }
  if (ends.empty()) ends.assign(graph.outputs().begin(), graph.outputs().end());
  return ends;
}

Untrainable find_untrainable(Graph graph, Progress progress, std::span<const ValueId> ends,
                             const UnsupportedOps& known, PassContext& context) {
  if (ends.empty()) return {};
  UnsupportedOps unlowered, untold, sizes, gradients;
  const bool raw = progress == Progress::kRaw;
  const bool flat = !raw || make_canonical(graph, context, unlowered, untold);
  add_sizes_of_data(
      graph, ends, [&](NodeId node) { return flat || !may_be_flattened(graph, node); }, sizes);
  const std::vector<ValueId> sources = trainable_initializers(graph);
  try {
    for (ValueId end : ends) write_out_derivatives(graph, context.infer, sources, end);
  } catch (const Error&) {  // its parts are judged as they are
  }
  const auto stays = [&](NodeId node) { return !raw || !may_go(graph, node, flat); };
  Graph again = graph;  // rules write
  Backward(graph, graph.main(), context.infer, gradients).ask(graph.nodes(), sources, ends, stays);
  Untrainable found;
  const auto judged = [&](NodeId node) { return !raw || !may_go(again, node, flat); };
  const UnsupportedOps stops = find_closed_ways(again, sources, ends, context.infer, judged);
  found.sizes.add_new(sizes, {&known});
  found.gradients.add_new(gradients, {&known, &found.sizes});
  found.gradients.add_new(unlowered, {&known, &found.sizes, &untold});
  found.stops.add_new(stops, {&known, &found.sizes, &found.gradients});
  return found;
}

void refuse_all(std::string what, std::string hint, const UnsupportedOps& known,
                const Untrainable& rest) {
  UnsupportedOps all;
  for (const UnsupportedOps* part : {&known, &rest.gradients, &rest.sizes, &rest.stops}) {
    all.add_new(*part, {});
  }
  if (!rest.gradients.empty()) {
    append(what, ", ",
           "no gradient for " + rest.gradients.ops_text() + " between the weights and the loss");
    append(hint, "; ", kFreeze);
  }
  if (!rest.sizes.empty()) {
    append(what, ", ", "no step can be planned for " + rest.sizes.ops_text() + " before the loss");
    const std::vector<RefusedNodes> rows = rest.sizes.refused();
    const bool selects = std::ranges::any_of(
        rows, [](const RefusedNodes& row) { return row.why == kSizedByValues; });
    append(hint, "; ", selects ? kKeepAll : kFixed);
  }
  if (!rest.stops.empty()) {
    append(what, ", ",
           "no weight has a gradient: " + rest.stops.ops_text() +
               " between the weights and the loss let none through");
    append(hint, "; ", kTakeOut);
  }
  throw UnsupportedError(what, all, hint);
}

}  // namespace halfnote
