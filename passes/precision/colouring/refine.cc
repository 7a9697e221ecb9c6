// What the op-set and constants that do not fit forbid, and what the bytes moved advise.
#include "passes/precision/colouring/colouring.h"

namespace halfnote {

void Colouring::check_legality() {
  for (NodeId id : nodes_) {
    if (state(id).colour != Colour::kLow) continue;
    const std::string why = why_illegal(id);
    if (why.empty()) continue;
    if (state(id).reason.starts_with("policy:")) {
      context_.warn(graph_.node(id).name, "stays f32 against the " + state(id).reason + ": " + why);
    }
    pin(id, Colour::kF32, why);
    if (why.starts_with("constant ")) report(id, why + "; kept in f32");
  }
}

void Colouring::report(NodeId id, const std::string& text) {
  const std::string& name = graph_.node(id).name;
  const std::string& where = name.empty() ? graph_.value(graph_.output(id)).name : name;
  for (; told_until_ < context_.remarks.size(); ++told_until_) {
    const Remark& remark = context_.remarks[told_until_];
    told_.emplace(remark.where, remark.text);
  }
  if (!told_.contains({where, text})) context_.note(where, text);
}

std::string Colouring::why_illegal(NodeId id) const {
  const OperatorRow* row = find_operator(graph_.node(id));
  const int since = low_ == DType::kF16 ? row->legality.f16 : row->legality.bf16;
  const std::string type(short_name(low_));
  if (since == 0 || since > kOpsetVersion) {
    return graph_.node(id).op + " is not legal in " + type + " at op-set " +
           std::to_string(kOpsetVersion);
  }
  return why_unfit(id, *row);
}

std::string Colouring::why_unfit(NodeId id, const OperatorRow& row) const {
  const auto inputs = graph_.inputs(id);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_f32_tensor(graph_, inputs[i]) || (i < 32 && (row.fp32_inputs >> i & 1u) != 0)) continue;
    const UnfitConstant* unfit =
        row.precision == Kind::kAllow ? facts_.unfit.itself(inputs[i]) : facts_.unfit.of(inputs[i]);
    if (unfit != nullptr) return describe(*unfit, low_);
  }
  return "";
}

std::vector<bool> Colouring::kept_exact() {
  std::vector<NodeId> magnifying, comparing;
  for (NodeId id : nodes_) {
    const OperatorRow* row = find_operator(graph_.node(id));
    if (row != nullptr && row->magnifies) magnifying.push_back(id);
    const bool compares = state(id).colour == Colour::kNone;
    if (compares && graph_.node(id).role == Role::kBackward) comparing.push_back(id);
  }
  std::vector<bool> exact = reach(magnifying, above(), [&](NodeId id) {
    return state(id).colour == Colour::kF32 &&
           (state(id).kind == Kind::kInfer || state(id).kind == Kind::kClear);
  });
  const std::vector<bool> moved = reach(comparing, above(), [&](NodeId id) {
    return state(id).colour == Colour::kF32 && state(id).kind == Kind::kClear &&
           graph_.node(id).role == Role::kBackward;
  });
  for (size_t i = 0; i < exact.size(); ++i) exact[i] = exact[i] || moved[i];
  return exact;
}

void Colouring::refine_by_cost() {
  const std::vector<bool> exact = kept_exact();
  const std::vector<bool> none(colours_.size(), false);
  std::vector<bool> low = none, free = none;
  for (NodeId id : nodes_) {
    low[id.index] = state(id).colour == Colour::kLow;
    const bool coloured = state(id).colour == Colour::kLow || state(id).colour == Colour::kF32;
    // A normalization takes their mean from the data, whatever else it reads.
    const bool reads_fed = facts_.fed.are_read_by(graph_, id, normalizes(id) ? none : low);
    const bool held = exact[id.index] || (!low[id.index] && reads_fed);
    free[id.index] = coloured && !state(id).pinned && !held && why_illegal(id).empty();
  }
  for (const CostFlip& flip : refine_cost(graph_, facts_.fixed, low, free)) {
    set(flip.node, flip.low ? Colour::kLow : Colour::kF32,
        "cost: saves " + std::to_string(flip.saved_bytes) + " bytes of casts and traffic");
  }
}

}  // namespace halfnote
