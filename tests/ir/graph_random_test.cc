// 10,000 seeded random edits of a graph with subgraphs and states; the verifier agrees all the way.
#include <random>

#include "compiler/ir/hash.h"
#include "compiler/ir/walk.h"
#include "tests/ir/support.h"

namespace halfnote {
namespace {

class Editor {
 public:
  explicit Editor(unsigned seed) : random_(seed) {
    for (int i = 0; i < 4; ++i) graph_.add_input(graph_.main(), "x", floats({4}));
    for (int i = 0; i < 3; ++i) graph_.add_initializer("w", Tensor(DType::kF32, {4}));
  }

  Graph& graph() { return graph_; }

  void edit() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
        return create();
      case 3:
        return create_owner();
      case 4:
        return remove();
      case 5:
        return set_input();
      case 6:
        return replace_uses();
      case 7:
        return outputs();
      case 8:
        return results();
      case 9:
        return move();
      case 10:
        return states();
      default:
        return values();
    }
  }

 private:
  size_t below(size_t n) { return random_() % n; }

  NodeId any_node() {
    const auto nodes = graph_.all_nodes();
    return nodes.empty() ? NodeId{} : nodes[below(nodes.size())];
  }

  RegionId any_region() {
    std::vector<RegionId> regions = {graph_.main()};
    for (NodeId node : graph_.all_nodes()) {
      for (RegionId region : graph_.subgraphs(node)) regions.push_back(region);
    }
    return regions[below(regions.size())];
  }

  InsertPoint any_point() {
    const RegionId region = any_region();
    const auto nodes = graph_.nodes(region);
    if (nodes.empty() || below(2) == 0) return graph_.end(region);
    return graph_.before(nodes[below(nodes.size())]);
  }

  /// All values that a node at `at` may read.
  std::vector<ValueId> visible(InsertPoint at) {
    std::vector<ValueId> found;
    for (RegionId region = at.region; region.valid(); region = graph_.parent(region)) {
      for (ValueId input : graph_.inputs(region)) found.push_back(input);
      for (ValueId value : graph_.initializers(region)) found.push_back(value);
      for (NodeId node = graph_.first(region); node.valid() && node != at.before;
           node = graph_.next(node)) {
        for (ValueId output : graph_.outputs(node)) {
          if (output.valid()) found.push_back(output);
        }
      }
      at.before = graph_.region_owner(region);
    }
    return found;
  }

  ValueId any_value(InsertPoint at) {
    const auto values = visible(at);
    return values[below(values.size())];
  }

  void create() {
    const InsertPoint at = any_point();
    NodeSpec spec;
    spec.op = "Op";
    for (size_t i = below(4); i > 0; --i) {
      spec.inputs.push_back(below(8) == 0 ? ValueId{} : any_value(at));
    }
    type_results(graph_.create(std::move(spec), static_cast<int>(1 + below(3)), at));
  }

  void type_results(NodeId node) {
    for (ValueId output : graph_.outputs(node)) {
      if (output.valid()) graph_.value(output).type = floats({4});
    }
  }

  void create_owner() {
    const InsertPoint at = any_point();
    if (graph_.region_count() > 400) return;
    NodeSpec spec;
    spec.op = "If";
    std::vector<RegionId> bodies;
    for (size_t i = below(3); i > 0; --i) bodies.push_back(graph_.add_region(at.region));
    for (RegionId body : bodies) {
      if (below(2) == 0) graph_.add_input(body, "p", floats({4}));
      if (below(2) == 0) graph_.add_initializer(body, "k", Tensor(DType::kF32, {4}));
    }
    spec.inputs.push_back(any_value(at));
    spec.attributes.set("bodies", bodies);
    type_results(graph_.create(std::move(spec), 1, at));
  }

  bool is_used(NodeId node) {
    for (ValueId output : graph_.outputs(node)) {
      if (output.valid() && graph_.has_uses(output)) return true;
    }
    return false;
  }

  void remove() {
    const NodeId node = any_node();
    if (node.valid() && !is_used(node)) graph_.remove(node);
  }

  void set_input() {
    const NodeId node = any_node();
    if (!node.valid()) return;
    if (below(4) == 0) return graph_.resize_inputs(node, below(3));
    graph_.set_input(node, below(5), below(6) == 0 ? ValueId{} : any_value(graph_.before(node)));
  }

  /// Towards an earlier definition, which every user of the later one sees as well.
  void replace_uses() {
    const NodeId node = any_node();
    if (!node.valid()) return;
    const ValueId to = any_value(graph_.before(node));
    for (ValueId output : graph_.outputs(node)) {
      if (output.valid()) graph_.replace_uses(output, to);
    }
  }

  void outputs() {
    const RegionId region = any_region();
    if (below(3) > 0) return graph_.add_output(region, any_value(graph_.end(region)));
    std::vector<ValueId> values;
    for (size_t i = below(4); i > 0; --i) values.push_back(any_value(graph_.end(region)));
    graph_.set_outputs(region, std::move(values));
  }

  void results() {
    const NodeId node = any_node();
    if (!node.valid()) return;
    const size_t slot = below(5);
    const ValueId output = graph_.output(node, slot);
    if (!output.valid()) {
      graph_.value(graph_.add_node_output(node, slot, "extra")).type = floats({4});
    } else if (!graph_.has_uses(output)) {
      graph_.drop_output(node, slot);
    }
  }

  /// To the end of its region when nothing reads it, else to just behind what it reads last: next
  /// to where it is.
  void move() {
    const NodeId node = any_node();
    if (!node.valid()) return;
    if (!is_used(node)) return graph_.move_before(node, graph_.end(graph_.node(node).region));
    graph_.move_before(node, graph_.after(node));
  }

  void states() {
    if (!graph_.states().empty() && below(3) == 0) {
      return graph_.remove_state(static_cast<uint32_t>(below(graph_.states().size())));
    }
    for (ValueId value : graph_.initializers()) {
      if (graph_.state_of(value)) continue;
      graph_.add_state(value, any_value(graph_.end()), StateKind::kMoment);
      return;
    }
    const auto state = static_cast<uint32_t>(below(graph_.states().size()));
    graph_.set_state_next(state, any_value(graph_.end()));
  }

  void values() {
    if (below(2) == 0) {
      graph_.add_initializer("w", Tensor(DType::kF32, {4}));
      return;
    }
    const auto initializers = graph_.initializers();
    if (initializers.empty()) return;
    const ValueId value = initializers[below(initializers.size())];
    if (graph_.has_uses(value) || graph_.state_of(value)) {
      graph_.rename(value, graph_.unique_name("renamed"));
    } else {
      graph_.remove_value(value);
    }
  }

  Graph graph_;
  std::mt19937 random_;
};

TEST(GraphRandom, TenThousandEditsKeepTheGraphSound) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u}) {
    Editor editor(seed);
    for (int i = 0; i < 2000; ++i) {
      editor.edit();
      if (i % 20 != 0) continue;
      ASSERT_NO_THROW(verify(editor.graph(), {.typed = true})) << seed << " " << i;
    }
    ASSERT_NO_THROW(verify(editor.graph(), {.typed = true}));
    EXPECT_GT(editor.graph().node_count(), 100u);
  }
}

// Text and hash forget the history: the graph that is read back has other handles and the same
// hash.
TEST(GraphRandom, TextAndHashForgetTheHistory) {
  for (const unsigned seed : {6u, 7u, 8u}) {
    Editor editor(seed);
    for (int i = 0; i < 300; ++i) editor.edit();
    const std::string text = print(editor.graph());
    const Graph again = parse_graph(text, "again");
    EXPECT_EQ(print(again), text);
    EXPECT_EQ(content_hash(again), content_hash(editor.graph()));
  }
}

TEST(GraphRandom, CopiesOfRandomGraphsAreSoundAndEqual) {
  for (const unsigned seed : {9u, 10u, 11u}) {
    Editor editor(seed);
    for (int i = 0; i < 300; ++i) editor.edit();
    const Graph& from = editor.graph();
    Graph to;
    ValueMap values;
    for (ValueId input : from.inputs()) {
      values[input] = to.add_input(to.main(), from.value(input).name, from.value(input).type);
    }
    for (ValueId value : from.initializers()) {
      values[value] = to.add_initializer(from.value(value).name, from.value(value).tensor);
    }
    const std::vector<ValueId> outputs = clone_into(to, to.end(), from, values);
    to.set_outputs(to.main(), outputs);
    for (const State& state : from.states()) {
      to.add_state(values.at(state.current), values.at(state.next), state.kind);
    }
    verify(to, {.typed = true});
    // Absent results at the end of a list are not copied; such lists do not occur here.
    EXPECT_EQ(print(to), print(from));
  }
}

TEST(GraphRandom, DeadNodesGoAndNothingElse) {
  Editor editor(12);
  for (int i = 0; i < 1000; ++i) editor.edit();
  Graph& graph = editor.graph();
  const auto always = [](const Graph&, NodeId) { return true; };
  EXPECT_GT(erase_dead(graph, always), 0u);
  verify(graph, {.typed = true});
  EXPECT_EQ(erase_dead(graph, always), 0u);
  std::vector<ValueId> roots(graph.outputs().begin(), graph.outputs().end());
  for (const State& state : graph.states()) roots.push_back(state.next);
  EXPECT_EQ(backward_slice(graph, roots).size(), graph.node_count());
}

}  // namespace
}  // namespace halfnote
