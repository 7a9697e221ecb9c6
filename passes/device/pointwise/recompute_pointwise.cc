// recompute_pointwise: what elementwise gradients read of a chain of elementwise nodes is computed
// again right before them, from where the chain begins; fuse_pointwise then makes chain and
// gradients one pass over memory, and the forward pass stores none of it.
//
//   t = Tanh(x)  y = Mul(x, t)  …  g = TanhGrad(d, t)
//     ──▶  t = Tanh(x)  y = Mul(x, t)  …  t' = Tanh(x)  g = TanhGrad(d, t')
//
// Exact: the same ops on the same operands. Done where it saves memory traffic by a fixed count:
// bytes of the results that need not be stored, against bytes of operands that must now be, and
// what functions cost that take longer than memory. Where both are as much, it is done if the
// results need not be written at all and no more is read.
// Leaves alone: what anything else in the backward pass reads, chains of more than kMaxChain nodes,
// and gradients that stand too far apart to become one node.
#include "passes/device/pointwise/recompute_pointwise.h"

#include <algorithm>
#include <map>
#include <set>

#include "passes/device/pointwise/fuse_pointwise.h"

namespace halfnote {
namespace {

constexpr size_t kMaxChain = 12;
/// Bytes an element that are written and read again in the time of a function like tanh.
constexpr int64_t kHeavyBytes = 2;

bool is_heavy(PointwiseOp op) {
  using enum PointwiseOp;
  constexpr PointwiseOp kHeavy[] = {kPow,      kCelu,  kCos,  kSin,    kElu,  kErf,
                                    kExp,      kGelu,  kLog,  kMish,   kSelu, kSigmoid,
                                    kSoftplus, kSwish, kTanh, kDropout};
  return std::ranges::find(kHeavy, op) != std::end(kHeavy);
}

bool only_views(const Node& node) {
  constexpr std::string_view kReshapes[] = {"Reshape", "Squeeze", "Unsqueeze", "Flatten",
                                            "Identity"};
  return node.domain.empty() && std::ranges::find(kReshapes, node.op.str()) != std::end(kReshapes);
}

/// Chains of the forward pass that hang together.
struct Chain {
  std::vector<NodeId> nodes;     // in the order of the graph
  std::vector<ValueId> results;  // those that gradients read
  std::set<ValueId> sources;     // what the chain begins with
};

class Recomputer {
 public:
  explicit Recomputer(Graph& graph)
      : graph_(graph),
        nodes_(graph.nodes()),
        at_(graph.node_capacity(), -1),
        chain_of_(graph.node_capacity(), -1),
        readers_(graph.value_count()) {
    for (size_t i = 0; i < nodes_.size(); ++i) at_[nodes_[i].index] = static_cast<int64_t>(i);
    // Views of a value come after it, and are known then.
    for (size_t i = nodes_.size(); i-- > 0;) find_readers(graph.outputs(nodes_[i]));
    find_readers(graph.inputs());
    find_readers(graph.initializers());
  }

  bool run() {
    for (const NodeId node : nodes_) {
      if (in_chain(node) && is_read(graph_.output(node))) collect(node);
    }
    bool changed = false;
    for (auto& [number, chain] : chains_) changed |= recompute(chain);
    return changed;
  }

 private:
  enum class Reader : uint8_t { kNone, kGradients, kOthers };

  bool is_forward(NodeId node) const {
    const Role role = graph_.node(node).role;
    return role == Role::kForward || role == Role::kLoss;
  }

  Shape shape_of(ValueId value) const { return concrete(*graph_.value(value).type.shape); }

  int64_t bytes_of(ValueId value) const {
    const ValueType& type = graph_.value(value).type;
    if (!type.has_concrete_shape()) return 0;
    return element_count(concrete(*type.shape)) * static_cast<int64_t>(size_of(type.dtype));
  }

  /// Who reads the value, or a view of it, behind the forward pass? Counted once for each value:
  /// one may have as many uses as the graph has nodes.
  Reader reader_of(ValueId value) const { return readers_[value.index]; }

  void find_readers(std::span<const ValueId> values) {
    for (const ValueId value : values) {
      if (value.valid()) readers_[value.index] = find_reader(value);
    }
  }

  Reader find_reader(ValueId value) const {
    Reader found = Reader::kNone;
    for (const Use& use : graph_.uses(value)) {
      found = std::max(found, reader_by(use, value));
      if (found == Reader::kOthers) break;
    }
    return found;
  }

  Reader reader_by(const Use& use, ValueId value) const {
    const NodeId user = use.node();
    if (!user.valid() || graph_.node(user).region != graph_.main()) return Reader::kOthers;
    if (is_forward(user)) {
      const bool view = only_views(graph_.node(user));
      return view && reader_of(graph_.output(user)) != Reader::kNone ? Reader::kOthers
                                                                     : Reader::kNone;
    }
    const bool fits = graph_.node(user).role == Role::kBackward &&
                      pointwise_row_of(graph_, user) != nullptr &&
                      shape_of(graph_.output(user)) == shape_of(value);
    return fits ? Reader::kGradients : Reader::kOthers;
  }

  /// A node of the backward pass reads the value from now on.
  void add_reader(ValueId value, Reader reader) {
    while (readers_[value.index] < reader) {
      const bool known = readers_[value.index] != Reader::kNone;
      readers_[value.index] = reader;
      const NodeId producer = graph_.value(value).producer;
      if (known || !producer.valid() || !is_forward(producer)) return;
      if (!only_views(graph_.node(producer))) return;
      value = graph_.input(producer, 0);
      reader = Reader::kOthers;
    }
  }

  bool is_read(ValueId value) const { return reader_of(value) == Reader::kGradients; }

  /// Will the value be there in the backward pass anyway?
  bool is_kept(ValueId value) const {
    while (graph_.value(value).producer.valid() &&
           only_views(graph_.node(graph_.value(value).producer))) {
      value = graph_.input(graph_.value(value).producer, 0);
    }
    return graph_.value(value).kind != ValueKind::kResult || reader_of(value) != Reader::kNone;
  }

  /// May the node be computed again?
  bool in_chain(NodeId node) const {
    return node.valid() && graph_.node(node).region == graph_.main() && is_forward(node) &&
           pointwise_row_of(graph_, node) != nullptr &&
           reader_of(graph_.output(node)) != Reader::kOthers;
  }

  /// The chain that ends in `last`, joined with those that it meets.
  void collect(NodeId last) {
    int number = chain_of_[last.index] >= 0 ? chain_of_[last.index] : next_++;
    chains_[number].results.push_back(graph_.output(last));
    std::vector<NodeId> open = {last};
    while (!open.empty()) {
      const NodeId node = open.back();
      open.pop_back();
      const int other = chain_of_[node.index];
      if (other == number) continue;
      if (other >= 0) {
        number = join(number, other);
        continue;
      }
      chain_of_[node.index] = number;
      chains_[number].nodes.push_back(node);
      for (const ValueId input : graph_.inputs(node)) {
        const NodeId producer = graph_.value(input).producer;
        if (in_chain(producer) && shape_of(input) == shape_of(graph_.output(node))) {
          open.push_back(producer);
        } else {
          chains_[number].sources.insert(input);
        }
      }
    }
  }

  /// Gives the number of both: of chains too long to be computed again the longer one stays.
  int join(int to, int from) {
    const size_t length = chains_[from].nodes.size();
    if (length > kMaxChain && length > chains_[to].nodes.size()) std::swap(to, from);
    Chain& chain = chains_[to];
    const Chain other = std::move(chains_[from]);
    chains_.erase(from);
    for (const NodeId node : other.nodes) chain_of_[node.index] = to;
    chain.nodes.insert(chain.nodes.end(), other.nodes.begin(), other.nodes.end());
    chain.results.insert(chain.results.end(), other.results.begin(), other.results.end());
    chain.sources.insert(other.sources.begin(), other.sources.end());
    return to;
  }

  /// Does a node of the forward pass read it that elementwise nodes cannot be one with?
  bool is_stored(ValueId result) const {
    return std::ranges::any_of(graph_.uses(result), [&](const Use& use) {
      if (!use.by_node()) return true;
      const NodeId user = use.node();
      if (!is_forward(user)) return false;
      return pointwise_row_of(graph_, user) == nullptr ||
             shape_of(graph_.output(user)) != shape_of(result);
    });
  }

  bool pays(const Chain& chain) const {
    int64_t saved = 0, cost = 0, read = 0, stored = 0;
    for (const ValueId result : chain.results) {
      saved += bytes_of(result);
      stored += is_stored(result) ? 1 : 0;
    }
    for (const ValueId source : chain.sources) {
      cost += is_kept(source) ? 0 : bytes_of(source);
      read += bytes_of(source);
    }
    for (const NodeId node : chain.nodes) {
      if (is_heavy(pointwise_row_of(graph_, node)->code))
        cost += kHeavyBytes * element_count(shape_of(graph_.output(node)));
    }
    // What is read in place of the results is written in any case.
    const bool spares_writing = saved == cost && stored == 0 && read < 2 * saved;
    return saved > cost || spares_writing;
  }

  bool recompute(Chain& chain) {
    if (chain.nodes.size() > kMaxChain) return false;
    NodeId first;
    int64_t end = 0;
    for (const ValueId result : chain.results) {
      for (const Use& use : graph_.uses(result)) {
        if (is_forward(use.node())) continue;
        if (!first.valid() || graph_.is_before(use.node(), first)) first = use.node();
        end = std::max(end, at_[use.node().index]);
      }
    }
    if (end - at_[first.index] >= kPointwiseWindow || !pays(chain)) return false;
    std::ranges::sort(chain.nodes, {}, [&](NodeId node) { return at_[node.index]; });
    std::map<ValueId, ValueId> again;
    for (const NodeId node : chain.nodes) copy(node, first, again);
    for (const ValueId result : chain.results) {
      graph_.replace_uses_if(result, again.at(result), [&](const Use& use) {
        return use.by_node() && graph_.node(use.node()).role == Role::kBackward;
      });
      readers_[result.index] = find_reader(result);
    }
    return true;
  }

  void copy(NodeId from, NodeId before, std::map<ValueId, ValueId>& again) {
    const ValueId result = graph_.output(from);
    const std::string name = graph_.unique_name(graph_.value(result).name + ".again");
    NodeSpec spec;
    spec.op = graph_.node(from).op;
    spec.domain = graph_.node(from).domain;
    spec.attributes = graph_.node(from).attributes;
    spec.name = name;
    for (const ValueId input : graph_.inputs(from)) {
      const auto found = again.find(input);
      spec.inputs.push_back(found == again.end() ? input : found->second);
    }
    const NodeId node = graph_.create(std::move(spec), {name}, graph_.before(before));
    at_.resize(graph_.node_capacity(), at_[before.index]);
    graph_.node(node).role = Role::kBackward;
    graph_.node(node).overload = graph_.node(from).overload;
    graph_.node(node).precision = graph_.node(from).precision;
    graph_.node(node).origin = graph_.label(from);
    graph_.value(graph_.output(node)).type = graph_.value(result).type;
    for (const ValueId input : graph_.inputs(from)) {
      if (again.contains(input)) continue;
      const bool fits = shape_of(input) == shape_of(result);
      add_reader(input, fits ? Reader::kGradients : Reader::kOthers);
    }
    again[result] = graph_.output(node);
  }

  Graph& graph_;
  std::vector<NodeId> nodes_;
  std::vector<int64_t> at_;      // position of a node of the main region
  std::vector<int> chain_of_;    // by node
  std::vector<Reader> readers_;  // by value
  std::map<int, Chain> chains_;
  int next_ = 0;
};

}  // namespace

bool recompute_pointwise(Graph& graph, PassContext&) { return Recomputer(graph).run(); }

}  // namespace halfnote
