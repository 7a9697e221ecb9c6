// Joins the rows of the loss family, and plans a loss.
#include "kernels/cpu/families.h"
#include "kernels/cpu/loss/plan.h"

namespace halfnote::cpu {

namespace {

LossPlan::Reduction read_reduction(const KernelCall& call) {
  const std::string name = attributes_of(call).get_string("reduction", "mean");
  if (name == "none") return LossPlan::Reduction::kNone;
  if (name == "sum") return LossPlan::Reduction::kSum;
  if (name == "mean") return LossPlan::Reduction::kMean;
  throw model_error(call, "unknown reduction").expected("none, sum or mean", name);
}

/// Attribute `classes`: what lies behind them in a line are no classes.
void leave_out_padding(const KernelCall& call, Lines& lines) {
  const int64_t classes = attributes_of(call).get_int("classes", lines.length);
  if (classes < 0 || classes > lines.length) {
    throw model_error(call, "classes that the scores lack")
        .expected("at most " + std::to_string(lines.length), std::to_string(classes));
  }
  lines.padding = lines.length - classes;
  lines.length = classes;
}

}  // namespace

Error bad_label(const BadLabel& bad) {
  const std::string label = std::to_string(bad.label);
  const std::string but = bad.ignored ? " or ignore_index " + std::to_string(*bad.ignored) : "";
  return Error(ErrorCode::kData,
               "label " + label + " at position " + std::to_string(bad.position) + " is no class")
      .expected("0 to " + std::to_string(bad.classes - 1) + but, label)
      .hint("does the model have as many outputs as the data has classes?");
}

double LossPlan::prepare_weights(const KernelBuffers& buffers) const {
  auto* weights = part<double>(buffers, weights_offset);
  double total = 0;
  for (int64_t position = 0; position < lines.count; ++position) {
    const int64_t value = label_at(buffers, position);
    weights[position] = 0;
    if (is_ignored(value)) continue;
    if (value < 0 || value >= lines.length) {
      throw bad_label({value, position, lines.length, ignored});
    }
    weights[position] =
        weight == DType::kUndefined ? 1 : read_real(buffers.inputs[weight_input], weight, value);
    total += weights[position];
  }
  return reduction == Reduction::kMean ? total : 1;
}

LossPlan plan_loss(const KernelCall& call, const Shape& scores, size_t label_input,
                   size_t weight_input, WorkspacePlan& workspace) {
  if (!call.has_input(label_input)) throw model_error(call, "the labels are missing");
  if (scores.size() < 2) {
    throw model_error(call, "scores without classes").expected("(N, C, d…)", to_string(scores));
  }
  LossPlan plan;
  plan.lines = lines_along(scores, 1);
  leave_out_padding(call, plan.lines);
  plan.reduction = read_reduction(call);
  plan.label_input = label_input;
  plan.weight_input = weight_input;
  plan.label = call.inputs[label_input].dtype;
  Shape expected = scores;
  expected.erase(expected.begin() + 1);
  if (call.inputs[label_input].shape != expected) {
    throw model_error(call, "labels of the wrong shape")
        .expected(to_string(expected), to_string(call.inputs[label_input].shape));
  }
  if (call.has_input(weight_input)) {
    const Operand& weights = call.inputs[weight_input];
    if (weights.size() != plan.lines.length) {
      throw model_error(call, "class weights of the wrong shape")
          .expected(to_string(Shape{plan.lines.length}), to_string(weights.shape));
    }
    plan.weight = call.inputs[weight_input].dtype;
  }
  if (attributes_of(call).has("ignore_index")) {
    plan.ignored = attributes_of(call).get_int("ignore_index", 0);
  }
  plan.weights_offset = workspace.add_elements<double>(plan.lines.count);
  return plan;
}

std::string loss_type_refusal(const KernelCall& call, const LossPlan& plan) {
  if (plan.label != DType::kI32 && plan.label != DType::kI64) {
    return "labels of type " + std::string(short_name(plan.label));
  }
  if (plan.weight != DType::kUndefined && !is_real(plan.weight)) {
    return "weights of type " + std::string(short_name(plan.weight));
  }
  if (call.has_output(0) && !is_real(call.outputs[0].dtype)) {
    return "output of type " + std::string(short_name(call.outputs[0].dtype));
  }
  return {};
}

Shape loss_shape(const LossPlan& plan, const Shape& labels) {
  return plan.reduction == LossPlan::Reduction::kNone ? labels : Shape{};
}

std::vector<KernelRow> loss_kernels() {
  std::vector<KernelRow> all;
  for (auto part : {cross_entropy_rows, loss_grad_rows, loss_and_grad_rows, count_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
