// assign_precision: decides the type each node computes in, and says why. Rewrites nothing:
// insert_casts does.
//
//   c = Conv(x, w)  r = Relu(c)  p = Softmax(r)
//       ──▶  Conv: bf16 "allow list: Conv"   Relu: bf16 "between 16-bit nodes …"   Softmax: f32
//       "fp32 list: Softmax"
//
// The colouring is TensorFlow grappler's (auto_mixed_precision), on our classes:
//   1. allow ops are 16-bit, fp32 ops are f32, the user's rules before both;
//   2. f32 floods from fp32 nodes forwards through clear and infer nodes that lie above an fp32 or
//   infer node;
//   3. infer and clear nodes between two 16-bit nodes become 16-bit;
//   4. clear nodes that touch a 16-bit node through clear ones become 16-bit;
//   5. what op-set 23 does not allow in that type, or what reads a constant that does not fit it
//   (constants.h), however far it has been moved, goes back to f32, with a note in the report;
//   6. the cost refinement flips single infer and clear nodes while that saves bytes (cost.h), but
//   for what feeds an op that makes small errors large (Log), and what computes of fed data alone.
// A mask that is an input is f32 on its way into a softmax, and so are the scores from where it is
// added to them (values/masks.h). Sums of data as they are fed and of what is computed are f32
// where an f32 node reads them, or a sum or a normalization takes most of them away, and so is what
// moves such data to one, and gradients that look at them again. What computes on positions
// (positions.h), or leads to coordinates (places.h), is f32, and so is what moves them on the way
// there, and what computes of several coordinates alone. A slot that is f32 whatever its node
// computes in (the biases of an LSTM) connects nothing. A node that lowering made of an fp32 op,
// and its gradients, are f32 as that op is. A normalization that does f32 math on 16-bit tensors
// counts as infer, InstanceNormalization among them (group_form.h) but under `like`. Nodes of the
// optimizer and the scaler are f32. The decisions of the training step hold for the same nodes of
// the other graphs. Bodies of control flow are coloured each by itself: what crosses their border
// is f32. Leaves alone: nodes without f32 operands and results, everything under --precision fp32.
#include <map>

#include "base/error.h"
#include "passes/passes.h"
#include "passes/precision/colouring/colouring.h"
#include "passes/precision/keep_f32.h"
#include "passes/precision/rules.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

/// Decisions by node name, and by the name of the forward node where the step has another form of
/// it.
std::map<std::string, Precision> decisions_of(const Graph& graph) {
  std::map<std::string, Precision> decided;
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    if (node.precision.dtype == DType::kUndefined || node.role != Role::kForward) continue;
    decided.emplace(node.name, node.precision);
    if (!node.origin.empty()) decided.emplace(node.origin, node.precision);
  }
  return decided;
}

/// Colours the graph, then each body in it. A body is small, and its casts are cheap next to what
/// it does in each trip: it is not refined.
bool colour(Graph& graph, PassContext& context, PrecisionRules& rules,
            const std::map<std::string, Precision>& decided) {
  const ValueFacts facts(graph, context.options.policy.dtype);
  const auto run = [&](RegionId region, bool refine) {
    return Colouring(graph, region, context, rules, facts).run(decided, refine);
  };
  bool changed = run(graph.main(), context.options.policy.cost_refinement);
  for (NodeId id : graph.all_nodes()) {
    for (RegionId body : graph.subgraphs(id)) changed |= run(body, false);
  }
  return changed;
}

}  // namespace

bool assign_precision(Model& model, PassContext& context) {
  const Policy& policy = context.options.policy;
  PrecisionRules rules(policy);
  if (policy.dtype == DType::kF32) {
    bool changed = keep_f32(model.graph, rules);
    for (TrainingStep& step : model.training) changed |= keep_f32(step.graph, rules);
    rules.check_all_matched(model);
    return changed;
  }
  if (policy.dtype != DType::kF16 && policy.dtype != DType::kBF16) {
    throw Error(ErrorCode::kUsage, "no such training precision")
        .expected("fp32, fp16 or bf16", std::string(short_name(policy.dtype)));
  }
  std::map<std::string, Precision> decided;
  bool changed = false;
  for (TrainingStep& step : model.training) {
    const bool first = step.name == kStepName || step.name == kAccumulateName;
    changed |=
        colour(step.graph, context, rules, first ? std::map<std::string, Precision>{} : decided);
    if (first) decided = decisions_of(step.graph);
  }
  changed |= colour(model.graph, context, rules, decided);
  rules.check_all_matched(model);
  return changed;
}

}  // namespace halfnote
