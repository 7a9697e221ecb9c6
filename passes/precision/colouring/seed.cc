// Where the colouring begins: what the user's rules, the role and the class of a node say.
#include "passes/precision/colouring/colouring.h"
#include "passes/precision/colouring/reasons.h"
#include "passes/precision/group_form.h"

namespace halfnote {
namespace {

const Precision* find_decision(const Node& node, const std::map<std::string, Precision>& decided) {
  const auto found = decided.find(node.name);
  return found == decided.end() ? nullptr : &found->second;
}

}  // namespace

bool Colouring::has_choice(NodeId id, const OperatorRow& row) const {
  bool reads = false, writes = false;
  const auto inputs = graph_.inputs(id);
  for (size_t i = 0; i < inputs.size(); ++i) {
    reads |= is_f32_tensor(graph_, inputs[i]) && (i >= 32 || (row.fp32_inputs >> i & 1u) == 0);
  }
  const auto outputs = graph_.outputs(id);
  for (size_t i = 0; i < outputs.size(); ++i) {
    writes |= is_f32_tensor(graph_, outputs[i]) && (i >= 32 || (row.fp32_outputs >> i & 1u) == 0);
  }
  return reads && writes;
}

void Colouring::set(NodeId id, Colour colour, std::string reason) {
  state(id).colour = colour;
  state(id).reason = std::move(reason);
}

const std::string* Colouring::f32_whole(const Node& node) const {
  auto found = wholes_.find(node.name);
  if (found == wholes_.end()) found = wholes_.find(node.origin);
  return found == wholes_.end() ? nullptr : &found->second;
}

void Colouring::seed(const std::map<std::string, Precision>& decided) {
  for (NodeId id : nodes_) {
    for (const auto& [key, value] : graph_.node(id).metadata) {
      if (key == kLoweredFromKey) wholes_.emplace(graph_.node(id).name, value);
    }
  }
  for (NodeId id : nodes_) {
    const Node& node = graph_.node(id);
    const OperatorRow* row = find_operator(node);
    const std::string op(node.op);
    const auto forced = rules_.find(node);
    if (row == nullptr) {
      set(id, Colour::kF32, "unknown op: f32");
      state(id).pinned = true;
      continue;
    }
    if (row->precision == Kind::kOpaque || row->precision == Kind::kStruct || !has_choice(id, *row))
      continue;
    const std::string list = choose_kind(id, *row);
    if (node.role == Role::kOptimizer || node.role == Role::kScaling) {
      if (forced && forced->low) {
        context_.warn(node.name, "stays f32 against the " + forced->rule + ": the update is f32");
      }
      pin(id, Colour::kF32, "the " + std::string(role_name(node.role)) + " works in f32");
    } else if (forced) {
      pin(id, forced->low ? Colour::kLow : Colour::kF32, forced->rule);
    } else if (const Precision* known = find_decision(node, decided)) {
      pin(id, known->dtype == low_ ? Colour::kLow : Colour::kF32, known->reason);
    } else if (const std::string* whole = f32_whole(node)) {
      pin(id, Colour::kF32, "fp32 list: part of " + *whole);
    } else if (node.role == Role::kLoss) {
      pin(id, Colour::kF32, "the loss is computed in f32");
    } else if (rounds(id) && (facts_.positions.computes(id) || of_positions(node))) {
      pin(id, Colour::kF32, kPositions);
      if (!node.name.empty()) on_positions_.insert(node.name);
    } else if (state(id).kind == Kind::kAllow) {
      pin(id, Colour::kLow, list + "allow list: " + op);
    } else if (state(id).kind == Kind::kFp32) {
      pin(id, Colour::kF32, list + "fp32 list: " + op);
    } else {
      set(id, Colour::kOpen, "");
    }
  }
}

bool Colouring::of_positions(const Node& node) const {
  return !node.origin.empty() && on_positions_.contains(node.origin);
}

bool Colouring::rounds(NodeId id) {
  return state(id).kind == Kind::kAllow || state(id).kind == Kind::kInfer;
}

std::string Colouring::choose_kind(NodeId id, const OperatorRow& row) {
  state(id).kind = row.fp32_math_inside ? Kind::kInfer : row.precision;
  if (like_ == nullptr) {
    if (!row.fp32_math_inside) state(id).kind = class_of(row, graph_.node(id));
    if (has_group_form(graph_, id)) state(id).kind = Kind::kInfer;
    return "";
  }
  const auto kind = like_class(*like_, row.name, state(id).kind);
  if (!kind || *kind == state(id).kind) return "";
  state(id).kind = *kind;
  return "like " + std::string(like_->name) + ", ";
}

void Colouring::pin(NodeId id, Colour colour, std::string reason) {
  set(id, colour, std::move(reason));
  state(id).pinned = true;
}

}  // namespace halfnote
