// The rewrites of lift_opset: one row for each change of an op's meaning or form between op-set 6
// and 23.
#pragma once

#include <span>
#include <string_view>

#include "compiler/ir/builder.h"

namespace halfnote {

struct LiftContext {
  Graph& graph;
  Builder& b;  // inserts before the node
  NodeId node;
  int64_t from;  // the model's op-set
};

/// In place of an op-set: the rule spells out, for models of every op-set, what ONNX's library gets
/// wrong where the op leaves it to a default.
constexpr int64_t kAlways = 1 << 20;

struct LiftRule {
  std::string_view op;
  int64_t changed_in;  // applies to models below this op-set
  void (*apply)(const LiftContext&);
  std::string_view what;
};

std::span<const LiftRule> lift_rules();

}  // namespace halfnote
