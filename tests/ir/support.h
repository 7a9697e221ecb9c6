// What the tests of the IR share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "compiler/ir/verify.h"

namespace halfnote {

/// A graph from text, verified.
inline Graph graph_of(std::string_view text) {
  Graph graph = parse_graph(text, "test");
  verify(graph);
  return graph;
}

/// The names of nodes, of values.
inline std::vector<std::string> names(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::vector<std::string> list;
  for (NodeId node : nodes) list.push_back(graph.node(node).name);
  return list;
}

inline std::vector<std::string> names(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<std::string> list;
  for (ValueId value : values) list.push_back(graph.value(value).name);
  return list;
}

/// The message of the Error that `run` throws; fails the test if there is none or if it has another
/// code.
template <class Run>
std::string error_of(Run&& run, ErrorCode code) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// A float vector.
inline ValueType floats(std::initializer_list<Dim> dims) {
  return ValueType::tensor(DType::kF32, SymbolicShape(dims));
}

/// A node with one typed result at the end of a region.
inline ValueId add_op(Graph& graph, std::string_view op, std::vector<ValueId> inputs,
                      std::string name, RegionId region = RegionId{0}) {
  NodeSpec spec;
  spec.op = op;
  spec.inputs = std::move(inputs);
  spec.name = name;
  const NodeId node = graph.create(std::move(spec), {name}, graph.end(region));
  const ValueId result = graph.output(node);
  graph.value(result).type = floats({4});
  return result;
}

}  // namespace halfnote
