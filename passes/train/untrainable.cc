#include "passes/train/untrainable.h"

#include <vector>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/lower_ops.h"
#include "passes/passes.h"
#include "passes/train/backward.h"
#include "passes/train/gradient_path.h"
#include "passes/train/sizes_of_data.h"

namespace halfnote {
namespace {

constexpr const char* kFreeze =
    "freeze the weights before these nodes (--freeze REGEX), or rewrite the nodes";
constexpr const char* kKeepAll =
    "keep all elements, and give those left out no weight: labels that the loss ignores "
    "(ignore_index) instead of logits[mask], Where or Mul with the mask, "
    "instead of a selection by it";

void append(std::string& text, std::string_view separator, const std::string& more) {
  if (!text.empty() && !more.empty()) text += separator;
  text += more;
}

/// Writes what is raw as the passes would, as far as that goes. Says whether what stands in bodies
/// and containers is known as well as it ever will be.
bool make_canonical(Graph& graph, PassContext& context, UnsupportedOps& refused) {
  const auto attempt = [](const auto& rewrite) {
    try {
      rewrite();
      return true;
    } catch (const Error&) {  // types that nobody knows: what stands there is left out
      return false;
    }
  };
  attempt([&] { fold_constants(graph, context); });
  const bool flat = attempt([&] { flatten_control(graph, context); });
  attempt([&] { lower_graph(graph, context.infer, refused); });
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
  UnsupportedOps unlowered, sizes, gradients;
  const bool raw = progress == Progress::kRaw;
  const bool flat = !raw || make_canonical(graph, context, unlowered);
  add_sizes_of_data(
      graph, ends, [&](NodeId node) { return flat || !may_be_flattened(graph, node); }, sizes);
  const std::vector<ValueId> sources = trainable_initializers(graph);
  try {
    for (ValueId end : ends) write_out_derivatives(graph, context.infer, sources, end);
  } catch (const Error&) {  // its parts are judged as they are
  }
  const auto stays = [&](NodeId node) { return !raw || !may_go(graph, node, flat); };
  Backward(graph, graph.main(), context.infer, gradients).ask(graph.nodes(), sources, ends, stays);
  Untrainable found;
  found.sizes.add_new(sizes, {&known});
  found.gradients.add_new(gradients, {&known, &found.sizes});
  found.gradients.add_new(unlowered, {&known, &found.sizes});
  return found;
}

void refuse_all(std::string what, std::string hint, const UnsupportedOps& known,
                const Untrainable& rest) {
  UnsupportedOps all;
  for (const UnsupportedOps* part : {&known, &rest.gradients, &rest.sizes}) all.add_new(*part, {});
  if (!rest.gradients.empty()) {
    append(what, ", ",
           "no gradient for " + rest.gradients.ops_text() + " between the weights and the loss");
    append(hint, "; ", kFreeze);
  }
  if (!rest.sizes.empty()) {
    append(what, ", ", "no step can be planned for " + rest.sizes.ops_text() + " before the loss");
    append(hint, "; ", kKeepAll);
  }
  throw UnsupportedError(what, all, hint);
}

}  // namespace halfnote
