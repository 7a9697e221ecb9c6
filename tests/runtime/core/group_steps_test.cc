// The order in which steps come together to groups.
#include "runtime/core/steps/group_steps.h"

#include <gtest/gtest.h>

#include <string>

#include "compiler/ir/text.h"

namespace halfnote::test {
namespace {

/// The order of a graph's nodes as text: `0 (1 3) 2`. Nodes named `u…` are of one group, `v…` of
/// another, and gradients may be held over those named `o…`.
std::string grouped(std::string_view text, size_t bytes = 1) {
  const Graph graph = parse_graph(text, "grouped");
  std::vector<std::vector<ValueId>> reads, writes;
  std::vector<GroupedStep> steps;
  std::vector<std::string> names;
  for (const NodeId node : graph.nodes()) {
    const auto inputs = graph.inputs(node), outputs = graph.outputs(node);
    reads.emplace_back(inputs.begin(), inputs.end());
    writes.emplace_back(outputs.begin(), outputs.end());
    names.push_back(std::string(graph.value(outputs[0]).name));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const int key = names[i][0] == 'u' ? 0 : names[i][0] == 'v' ? 1 : -1;
    steps.push_back({reads[i], writes[i], key, names[i][0] == 'o'});
  }
  std::string order;
  for (const auto& group : order_groups(graph, steps, [&](ValueId) { return bytes; })) {
    std::string members;
    for (const size_t i : group) members += (members.empty() ? "" : " ") + names[i];
    order += (order.empty() ? "" : " ") + (group.size() > 1 ? "(" + members + ")" : members);
  }
  return order;
}

constexpr std::string_view kHead = R"(g (float[4] x) => (float[4] y)
  <float[4] w = {1, 2, 3, 4}, float[4] s = {0, 0, 0, 0}> {
)";

std::string with_head(std::string_view nodes) { return std::string(kHead) + std::string(nodes); }

TEST(GroupSteps, ComeTogetherWhereTheLastOfThemStands) {
  EXPECT_EQ(grouped(with_head(R"(
  a = Neg (x)
  u1 = Neg (a)
  v1 = Exp (a)
  b = Neg (a)
  u2 = Neg (b)
  c = Neg (b)
  v2 = Exp (b)
  y = Neg (c)
})")),
            "a b (u1 u2) c (v1 v2) y");
}

TEST(GroupSteps, OneAloneStaysWhereItIs) {
  EXPECT_EQ(grouped(with_head(R"(
  u1 = Neg (x)
  v1 = Neg (x)
  y = Neg (x)
})")),
            "u1 v1 y");
}

TEST(GroupSteps, WhatReadsTheirResultsComesBehindThem) {
  EXPECT_EQ(grouped(with_head(R"(
  u1 = Neg (x)
  o1 = Exp (u1)
  o2 = Neg (o1)
  a = Neg (x)
  u2 = Neg (a)
  y = Neg (a)
})")),
            "a (u1 u2) o1 o2 y");
}

TEST(GroupSteps, WhatWritesTheStatesThatTheyReadComesBehindThem) {
  EXPECT_EQ(grouped(with_head(R"(
  u1 = Add (x, s)
  o1 = Neg (x)
  a = Neg (x)
  u2 = Neg (a)
  y = Neg (a)
  state weight s -> o1
})")),
            "a (u1 u2) o1 y");
}

TEST(GroupSteps, OneThatNeedsAnotherIsOfTheNextGroup) {
  EXPECT_EQ(grouped(with_head(R"(
  u1 = Neg (x)
  u2 = Exp (x)
  o1 = Neg (u1)
  u3 = Neg (o1)
  u4 = Exp (x)
  y = Neg (x)
})")),
            "(u1 u2) o1 (u3 u4) y");
}

TEST(GroupSteps, ManyBytesAreHeldOnlyWhereNothingElseIsComputed) {
  const std::string apart = with_head(R"(
  a = Neg (x)
  u1 = Neg (a)
  u2 = Exp (a)
  b = Neg (a)
  u3 = Neg (b)
  y = Neg (b)
})");
  EXPECT_EQ(grouped(apart, kMostHeld / 2), "a b (u1 u2 u3) y");
  EXPECT_EQ(grouped(apart, kMostHeld), "a (u1 u2) b u3 y");
  EXPECT_EQ(grouped(with_head(R"(
  a = Neg (x)
  b = Neg (a)
  u1 = Neg (a)
  o1 = Exp (a)
  u2 = Exp (a)
  u3 = Neg (b)
  y = Neg (b)
})"),
                    kMostHeld),
            "a b o1 (u1 u2 u3) y");
  EXPECT_EQ(grouped(with_head(R"(
  u1 = Neg (s)
  u2 = Exp (w)
  a = Neg (x)
  u3 = Neg (s)
  y = Neg (a)
})"),
                    kMostHeld),
            "a (u1 u2 u3) y")
      << "states are there anyhow";
}

}  // namespace
}  // namespace halfnote::test
