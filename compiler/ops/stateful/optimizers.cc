// Bodies of SGD, Momentum, Adam and AdamW: PyTorch's rules. What all elements share (bias
// corrections, decay factors) is computed in f64 and rounded once; `commit` false gives the old
// state back.
#include <algorithm>

#include "base/error.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/stateful/parts.h"

namespace halfnote::stateful {

std::vector<ValueType> infer_copy(const Graph& graph, NodeId node, std::vector<ValueType> types) {
  const int64_t dtype = graph.node(node).attributes.get_int("copy_dtype", 0);
  if (dtype == 0) return types;
  ValueType copy = types[0];
  copy.dtype = static_cast<DType>(dtype);
  if (!is_16bit_float(copy.dtype)) {
    throw Error(ErrorCode::kModel, "copy_dtype is no 16-bit float type")
        .expected("f16 or bf16", std::to_string(dtype));
  }
  types.push_back(std::move(copy));
  return types;
}

std::vector<Expr> body_with_copy(BodyContext& body, size_t commit, BodyRule rule) {
  const std::vector<Expr>& operands = body.inputs;
  const size_t plain_inputs = std::min(commit + 1, operands.size());
  std::vector<Expr> inputs(operands.begin(),
                           operands.begin() + static_cast<ptrdiff_t>(plain_inputs));
  inputs[1] = body.b.cast(inputs[1], inputs[0].dtype());
  for (size_t factor = commit + 1; factor < operands.size(); ++factor) {
    if (operands[factor].valid()) inputs[1] = inputs[1] * operands[factor];
  }
  BodyContext plain{body.b, body.attributes, std::move(inputs), body.output_types};
  std::vector<Expr> results = rule(plain);
  if (body.output_types.size() > results.size()) {
    results.push_back(body.b.cast(results[0], body.output_types.back().dtype));
  }
  return results;
}

std::vector<Expr> committed(BodyContext& body, size_t commit, const std::vector<Expr>& fresh,
                            const std::vector<Expr>& old) {
  if (commit >= body.inputs.size() || !body.inputs[commit].valid()) return fresh;
  std::vector<Expr> results;
  for (size_t i = 0; i < fresh.size(); ++i) {
    results.push_back(body.b.op("Where", {body.inputs[commit], fresh[i], old[i]}));
  }
  return results;
}

Expr with_decay(Expr grad, Expr param, double weight_decay) {
  return weight_decay == 0 ? grad : grad + param * weight_decay;
}

namespace {

std::vector<Expr> adam(BodyContext& body, bool decoupled) {
  Builder& b = body.b;
  const Expr param = body.inputs[0], m = body.inputs[2], v = body.inputs[3];
  const DType dtype = param.dtype();
  const double beta1 = body.attributes.get_float("beta1", 0.9f);
  const double beta2 = body.attributes.get_float("beta2", 0.999f);
  const double epsilon = body.attributes.get_float("epsilon", 1e-8f);
  const double decay = body.attributes.get_float("weight_decay", decoupled ? 0.01f : 0.0f);

  const Expr lr = b.cast(body.inputs[4], DType::kF64);
  const Expr step = b.cast(body.inputs[5], DType::kF64);
  const bool corrects = !decoupled || body.attributes.get_int("correct_bias", 1) != 0;
  const bool decays_last = decoupled && body.attributes.get_int("adam_mode", 0) == 1;
  const auto correction = [&](double beta) {
    if (!corrects) return b.scalar(DType::kF64, 1);
    return 1.0 - b.op("Pow", {b.scalar(DType::kF64, beta), step});
  };
  const Expr first = correction(beta1), root = b.op("Sqrt", {correction(beta2)});
  const Expr step_size = b.cast(decays_last ? lr * root / first : lr / first, dtype);

  const Expr grad = decoupled ? body.inputs[1] : with_decay(body.inputs[1], param, decay);
  const bool shrinks = decoupled && decay != 0;
  const auto keep = [&](Expr x) { return x * b.cast(1.0 - lr * decay, dtype); };
  const Expr base = shrinks && !decays_last ? keep(param) : param;
  const Expr new_m = m * beta1 + grad * (1 - beta1);
  const Expr new_v = v * beta2 + grad * (1 - beta2) * grad;
  const Expr length = b.op("Sqrt", {new_v});
  const Expr scale = (decays_last ? length : length / b.cast(root, dtype)) + epsilon;
  const Expr moved = base - step_size * new_m / scale;
  const Expr fresh = shrinks && decays_last ? keep(moved) : moved;
  return committed(body, 6, {fresh, new_m, new_v}, {param, m, v});
}

}  // namespace

std::vector<Expr> sgd_body(BodyContext& body) {
  const Expr param = body.inputs[0];
  const double decay = body.attributes.get_float("weight_decay", 0);
  const Expr grad = with_decay(body.inputs[1], param, decay);
  return committed(body, 3, {param - body.inputs[2] * grad}, {param});
}

std::vector<Expr> momentum_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr param = body.inputs[0], velocity = body.inputs[2], lr = body.inputs[3];
  const double momentum = body.attributes.get_float("momentum", 0.9f);
  const double dampening = body.attributes.get_float("dampening", 0);
  const double decay = body.attributes.get_float("weight_decay", 0);
  const bool nesterov = body.attributes.get_int("nesterov", 0) != 0;

  const Expr grad = with_decay(body.inputs[1], param, decay);
  const Expr first = b.op("LessOrEqual", {body.inputs[4], b.scalar(DType::kI64, 1)});
  const Expr later = velocity * momentum + grad * (1 - dampening);
  const Expr fresh = b.op("Where", {first, grad, later});
  const Expr direction = nesterov ? grad + fresh * momentum : fresh;
  return committed(body, 5, {param - lr * direction, fresh}, {param, velocity});
}

std::vector<Expr> adam_body(BodyContext& body) { return adam(body, false); }
std::vector<Expr> adam_w_body(BodyContext& body) { return adam(body, true); }

}  // namespace halfnote::stateful
