// GoogleTest matchers for graphs, on the questions of compiler/ir/query.h. For tests of passes,
// ours and yours:
//
//   using namespace halfnote::matchers;
//   EXPECT_THAT(graph, HasOp("Softmax", testing::AtLeast(1)));
//   EXPECT_THAT(graph, RunsIn("Softmax", DType::kF32));
//   EXPECT_THAT(graph, CastExactlyOnce("w", DType::kBF16));
//   EXPECT_THAT(graph, HasReason("conv1", testing::HasSubstr("allow list")));
//   EXPECT_THAT(graph, NoPathScalesTwice());
//
// A graph that fails is shown as text, large constants elided.
#pragma once

#include <gmock/gmock.h>

#include <ostream>
#include <string>
#include <utility>

#include "compiler/ir/query.h"
#include "compiler/ir/text.h"

namespace halfnote {

/// How GoogleTest shows a graph and a model.
inline void PrintTo(const Graph& graph, std::ostream* os) {
  *os << "the graph\n" << print(graph, {.elide_above = 16});
}
inline void PrintTo(const Model& model, std::ostream* os) {
  *os << "the model\n" << print(model, {.elide_above = 16});
}

namespace matchers {
namespace internal {

/// `node "conv1" (Conv)`, or by its first result where it has no name.
inline std::string describe(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::string name = node.name;
  if (name.empty() && graph.output(id).valid()) name = graph.value(graph.output(id)).name;
  return "node \"" + name + "\" (" + op_name(node) + ")";
}

inline std::string describe(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::string list;
  for (NodeId node : nodes) list += (list.empty() ? "" : ", ") + describe(graph, node);
  return list.empty() ? "none" : list;
}

/// The node with this name or, if there is none, the one whose result has it.
inline NodeId named(const Graph& graph, const std::string& name) {
  const NodeId node = find_node(graph, name);
  return node.valid() ? node : producer(graph, graph.find(name));
}

class HasOpMatcher {
 public:
  using is_gtest_matcher = void;

  HasOpMatcher(std::string op, ::testing::Matcher<int> count)
      : op_(std::move(op)), count_(std::move(count)) {}

  bool MatchAndExplain(const Graph& graph, std::ostream* os) const {
    const auto nodes = find_nodes(graph, op_);
    if (os != nullptr) *os << "which has " << nodes.size() << ": " << describe(graph, nodes);
    return count_.Matches(static_cast<int>(nodes.size()));
  }
  void DescribeTo(std::ostream* os) const {
    *os << "has a number of " << op_ << " nodes that ";
    count_.DescribeTo(os);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has a number of " << op_ << " nodes that ";
    count_.DescribeNegationTo(os);
  }

 private:
  std::string op_;
  ::testing::Matcher<int> count_;
};

/// A cardinality of gmock (AtLeast, Exactly, Between) as a matcher of numbers.
class CardinalityMatcher {
 public:
  using is_gtest_matcher = void;
  explicit CardinalityMatcher(::testing::Cardinality count) : count_(std::move(count)) {}
  bool MatchAndExplain(int n, std::ostream*) const { return count_.IsSatisfiedByCallCount(n); }
  void DescribeTo(std::ostream* os) const {
    *os << "is ";
    describe(os);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "is not ";
    describe(os);
  }

 private:
  /// gmock speaks of calls: "called at least once".
  void describe(std::ostream* os) const {
    std::ostringstream text;
    count_.DescribeTo(&text);
    const std::string words = text.str();
    *os << (words.rfind("called ", 0) == 0 ? words.substr(7) : words);
  }
  ::testing::Cardinality count_;
};

class RunsInMatcher {
 public:
  using is_gtest_matcher = void;

  RunsInMatcher(std::string op, DType dtype) : op_(std::move(op)), dtype_(dtype) {}

  bool MatchAndExplain(const Graph& graph, std::ostream* os) const {
    const auto nodes = find_nodes(graph, op_);
    if (os != nullptr && nodes.empty()) *os << "which has no " << op_;
    for (NodeId node : nodes) {
      const DType dtype = compute_dtype(graph, node);
      if (os == nullptr || dtype == dtype_) continue;
      *os << "where " << describe(graph, node) << " runs in " << short_name(dtype);
      const std::string& reason = graph.node(node).precision.reason;
      if (!reason.empty()) *os << " (reason: " << reason << ")";
      break;
    }
    return runs_in(graph, op_, dtype_);
  }
  void DescribeTo(std::ostream* os) const {
    *os << "runs every " << op_ << ", at least one, in " << short_name(dtype_);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has no " << op_ << " or runs one in another type than " << short_name(dtype_);
  }

 private:
  std::string op_;
  DType dtype_;
};

class CastMatcher {
 public:
  using is_gtest_matcher = void;

  CastMatcher(std::string value, DType dtype, int count)
      : value_(std::move(value)), dtype_(dtype), count_(count) {}

  bool MatchAndExplain(const Graph& graph, std::ostream* os) const {
    const ValueId value = graph.find(value_);
    if (!value.valid()) {
      if (os != nullptr) *os << "which has no value \"" << value_ << "\"";
      return false;
    }
    const auto casts = casts_of(graph, value, dtype_);
    if (os != nullptr)
      *os << "where it is cast " << casts.size() << " times: " << describe(graph, casts);
    return static_cast<int>(casts.size()) == count_;
  }
  void DescribeTo(std::ostream* os) const { describe_count(os, "casts"); }
  void DescribeNegationTo(std::ostream* os) const { describe_count(os, "does not cast"); }

 private:
  void describe_count(std::ostream* os, const char* verb) const {
    *os << verb << " value \"" << value_ << "\" to " << short_name(dtype_) << " exactly " << count_
        << (count_ == 1 ? " time" : " times");
  }
  std::string value_;
  DType dtype_;
  int count_;
};

class HasReasonMatcher {
 public:
  using is_gtest_matcher = void;

  HasReasonMatcher(std::string node, ::testing::Matcher<const std::string&> reason)
      : node_(std::move(node)), reason_(std::move(reason)) {}

  bool MatchAndExplain(const Graph& graph, std::ostream* os) const {
    const NodeId node = named(graph, node_);
    if (!node.valid()) {
      if (os != nullptr) *os << "which has no node \"" << node_ << "\"";
      return false;
    }
    const Precision& precision = graph.node(node).precision;
    if (os != nullptr) {
      *os << "where its reason is \"" << precision.reason << "\", its precision "
          << short_name(precision.dtype);
    }
    return reason_.Matches(precision.reason);
  }
  void DescribeTo(std::ostream* os) const {
    *os << "has for the precision of node \"" << node_ << "\" a reason that ";
    reason_.DescribeTo(os);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has for the precision of node \"" << node_ << "\" no reason that ";
    reason_.DescribeTo(os);
  }

 private:
  std::string node_;
  ::testing::Matcher<const std::string&> reason_;
};

class ScaleMatcher {
 public:
  using is_gtest_matcher = void;

  explicit ScaleMatcher(std::string loss_scale) : loss_scale_(std::move(loss_scale)) {}

  bool MatchAndExplain(const Graph& graph, std::ostream* os) const {
    const auto fault = find_scale_fault(graph, loss_scale_);
    if (fault && os != nullptr) *os << "where " << fault->text;
    return !fault;
  }
  void DescribeTo(std::ostream* os) const {
    *os << "has no path that scales or unscales twice by \"" << loss_scale_ << "\"";
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has a path that scales or unscales twice by \"" << loss_scale_ << "\"";
  }

 private:
  std::string loss_scale_;
};

class PathMatcher {
 public:
  using is_gtest_matcher = void;

  PathMatcher(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  bool MatchAndExplain(const Graph& graph, std::ostream* os) const {
    const ValueId from = graph.find(from_), to = graph.find(to_);
    for (const auto& [id, name] : {std::pair(from, &from_), std::pair(to, &to_)}) {
      if (id.valid()) continue;
      if (os != nullptr) *os << "which has no value \"" << *name << "\"";
      return false;
    }
    const auto path = find_path(graph, from, to);
    if (path && os != nullptr) *os << "by way of " << describe(graph, *path);
    return path.has_value();
  }
  void DescribeTo(std::ostream* os) const {
    *os << "has a path from value \"" << from_ << "\" to value \"" << to_ << "\"";
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has no path from value \"" << from_ << "\" to value \"" << to_ << "\"";
  }

 private:
  std::string from_, to_;
};

}  // namespace internal

/// The number of nodes of an op (`Softmax`, `ai.halfnote.Dropout`), in all regions: a number, a
/// matcher (`Ge(2)`) or one of gmock's cardinalities (`AtLeast(1)`). Without it: at least one.
inline internal::HasOpMatcher HasOp(std::string op, ::testing::Matcher<int> count) {
  return {std::move(op), std::move(count)};
}
inline internal::HasOpMatcher HasOp(std::string op, ::testing::Cardinality count) {
  return {std::move(op), ::testing::Matcher<int>(internal::CardinalityMatcher(std::move(count)))};
}
inline internal::HasOpMatcher HasOp(std::string op) {
  return HasOp(std::move(op), ::testing::AtLeast(1));
}

/// All nodes of this op, at least one, compute in this type (see `compute_dtype`).
inline internal::RunsInMatcher RunsIn(std::string op, DType dtype) {
  return {std::move(op), dtype};
}

/// The value with this name is cast to this type by one node (or `count` nodes).
inline internal::CastMatcher CastExactlyOnce(std::string value, DType dtype) {
  return {std::move(value), dtype, 1};
}
inline internal::CastMatcher CastTimes(std::string value, DType dtype, int count) {
  return {std::move(value), dtype, count};
}

/// The reason for the precision of the node with this name (or with a result of this name).
inline internal::HasReasonMatcher HasReason(std::string node,
                                            ::testing::Matcher<const std::string&> reason) {
  return {std::move(node), std::move(reason)};
}

/// No value carries the loss scale twice, none is unscaled twice (see `find_scale_fault`).
inline internal::ScaleMatcher NoPathScalesTwice(std::string loss_scale = "loss_scale") {
  return internal::ScaleMatcher(std::move(loss_scale));
}

/// Value `to` depends on value `from`.
inline internal::PathMatcher HasPath(std::string from, std::string to) {
  return {std::move(from), std::move(to)};
}

}  // namespace matchers
}  // namespace halfnote
