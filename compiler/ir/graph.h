// The intermediate representation: a typed SSA graph in one arena, addressed by index handles.
//
// A Graph holds regions; the main region is the graph itself, the others are the bodies of If, Loop
// and Scan nodes. A value lives where it is defined and is visible in that region and in the
// regions nested below it, so a capture is an ordinary use. Nodes stand in a doubly linked list per
// region: their order is stable under insertion and removal, and always a topological order (the
// verifier checks it). Users, replacement, insertion and removal are O(1) per use.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/attribute.h"
#include "base/handle.h"
#include "base/tensor.h"
#include "base/text/shared_text.h"
#include "base/type.h"
#include "compiler/ir/store/name_index.h"
#include "compiler/ir/store/node_metadata.h"
#include "compiler/ir/store/small_list.h"
#include "compiler/ir/store/stable_array.h"

namespace halfnote {

/// Which part of the training step a node belongs to. Import gives kForward; the train passes give
/// the others.
enum class Role : uint8_t { kForward, kLoss, kBackward, kScaling, kOptimizer };
std::string_view role_name(Role role);
std::optional<Role> role_from_name(std::string_view name);

/// The decision of the precision passes for one node: the type its contraction or chain runs in,
/// and why.
struct Precision {
  DType dtype = DType::kUndefined;  // undefined: not decided, or the node computes no float
  SharedText reason;  // one line for the user: `allow list: Conv`, `fp32: softmax math`, …
  friend bool operator==(const Precision&, const Precision&) = default;
};

enum class ValueKind : uint8_t { kInput, kInitializer, kResult, kRegionInput };

enum class UseKind : uint8_t { kNodeInput, kRegionOutput, kStateNext };

/// One use of a value: input `slot` of node `owner`, output `slot` of region `owner`, or the new
/// value of state `slot`.
struct Use {
  uint32_t owner = 0;
  UseKind kind : 2 = UseKind::kNodeInput;
  uint32_t slot : 30 = 0;

  constexpr Use() = default;
  constexpr Use(UseKind use_kind, uint32_t owner_index, uint32_t slot_index)
      : owner(owner_index), kind(use_kind), slot(slot_index & 0x3fffffffu) {}
  bool by_node() const { return kind == UseKind::kNodeInput; }
  NodeId node() const { return by_node() ? NodeId{owner} : NodeId{}; }
  friend bool operator==(const Use&, const Use&) = default;
};

// What walks read of every value and node stands first, in one line of the cache.
struct Value {
  ValueKind kind = ValueKind::kResult;
  bool alive = true;
  bool trainable = false;
  bool frozen = false;  // a parameter that is not trained here: not folded, nor merged with others
  bool made = false;    // an initializer of a Builder: in no file, and so no parameter
  /// The power of the loss scale that this value carries: 1 for a scaled gradient, -1 for 1/S, 0
  /// for all others.
  int8_t scale_power = 0;
  RegionId region;
  NodeId producer;      // of a result
  uint32_t output = 0;  // which output of the producer
  uint32_t state = 0;   // of an initializer: one more than the index of its state, 0 for none
  std::string name;
  ValueType type;
  Tensor tensor;  // of an initializer
};

struct Node {
  RegionId region;
  Role role = Role::kForward;
  bool alive = true;
  SharedText domain;  // "" for ONNX's own operators
  SharedText op;
  SharedText overload;
  std::string name;
  Attributes attributes;
  Precision precision;
  SharedText origin;  // name of the forward node that this one was made for
  NodeMetadata metadata;
};

/// `Softmax`, `ai.halfnote.Dropout`: the op with its domain, as messages, policies and queries
/// write it.
std::string op_name(const Node& node);

/// What the training step does to a persistent tensor: `current` (an initializer) becomes `next`
/// when the step ends.
enum class StateKind : uint8_t {
  kWeight,
  kMoment,
  kStatistic,
  kScaler,
  kCounter,
  kAccumulator,
  kRandom
};
std::string_view state_kind_name(StateKind kind);
std::optional<StateKind> state_kind_from_name(std::string_view name);

struct State {
  ValueId current;
  ValueId next;
  StateKind kind = StateKind::kWeight;
};

/// What to build: everything of a node but its outputs.
struct NodeSpec {
  SharedText op;
  std::vector<ValueId> inputs;
  Attributes attributes = {};
  SharedText domain = {};
  std::string name = {};
};

/// Where a new node goes: before `before`, or at the end of `region`.
struct InsertPoint {
  RegionId region;
  NodeId before;
};

class Graph {
 public:
  Graph();

  std::string name;
  std::string doc;

  RegionId main() const { return RegionId{0}; }

  // --- regions -----------------------------------------------------------------------------------
  RegionId add_region(RegionId parent);
  RegionId parent(RegionId region) const;
  std::span<const ValueId> inputs(RegionId region) const;
  std::span<const ValueId> outputs(RegionId region) const;
  std::span<const ValueId> inputs() const { return inputs(main()); }
  std::span<const ValueId> outputs() const { return outputs(main()); }
  /// Initializers of a region, in the order of their creation.
  std::vector<ValueId> initializers(RegionId region) const;
  std::vector<ValueId> initializers() const { return initializers(main()); }
  void set_outputs(RegionId region, std::vector<ValueId> values);
  void add_output(RegionId region, ValueId value);
  uint32_t region_count() const { return static_cast<uint32_t>(regions_.size()); }
  std::string& region_name(RegionId region);
  const std::string& region_name(RegionId region) const;
  /// The node whose attribute this region is; invalid for the main region.
  NodeId region_owner(RegionId region) const;

  // --- values ------------------------------------------------------------------------------------
  ValueId add_input(RegionId region, std::string value_name, ValueType type);
  ValueId add_initializer(RegionId region, std::string value_name, Tensor tensor);
  ValueId add_initializer(std::string value_name, Tensor tensor) {
    return add_initializer(main(), std::move(value_name), std::move(tensor));
  }
  /// Removes an input or initializer that nothing uses.
  void remove_value(ValueId value);
  Value& value(ValueId id) { return values_[id.index]; }
  const Value& value(ValueId id) const { return values_[id.index]; }
  uint32_t value_count() const { return values_.size(); }
  std::span<const Use> uses(ValueId value) const { return uses_[value.index]; }
  bool has_uses(ValueId value) const { return !uses_[value.index].empty(); }
  /// Nodes that read the value, each once, in the order of the graph.
  std::vector<NodeId> users(ValueId value) const;
  /// Gives all uses of `from` to `to`.
  void replace_uses(ValueId from, ValueId to);
  /// Gives the uses of `from` for which `which` holds to `to`.
  template <class Predicate>
  void replace_uses_if(ValueId from, ValueId to, Predicate&& which);
  void replace_use(Use use, ValueId to);
  /// The value with this name; invalid if there is none.
  ValueId find(std::string_view value_name) const;
  /// Gives the value another name, which must be free (see `unique_name`).
  void rename(ValueId value, std::string new_name);
  /// `hint`, or `hint_1`, `hint_2`, … : the first that no value has.
  std::string unique_name(std::string_view hint);
  /// The value of an initializer, or of a Constant node, if it is one.
  const Tensor* constant(ValueId value) const;

  // --- nodes -------------------------------------------------------------------------------------
  /// Makes a node with `output_names.size()` new results. Empty names get one from the node; an
  /// output that shall be absent is given as "-". Result types are unknown until inferred or set.
  NodeId create(NodeSpec spec, std::vector<std::string> output_names, InsertPoint at);
  /// As `create`, with `output_count` results named after the op.
  NodeId create(NodeSpec spec, int output_count, InsertPoint at);
  /// Removes a node whose results nobody uses, with its regions.
  void remove(NodeId node);
  void move_before(NodeId node, InsertPoint at);
  Node& node(NodeId id) { return nodes_[id.index]; }
  const Node& node(NodeId id) const { return nodes_[id.index]; }
  uint32_t node_capacity() const { return nodes_.size(); }
  /// Number of nodes alive, all regions together.
  uint32_t node_count() const { return alive_nodes_; }

  std::span<const ValueId> inputs(NodeId node) const { return operands_[node.index].inputs; }
  std::span<const ValueId> outputs(NodeId node) const { return operands_[node.index].outputs; }
  /// Input `index`, invalid if the node has no such input or leaves it out.
  ValueId input(NodeId node, size_t index) const;
  ValueId output(NodeId node, size_t index = 0) const;
  /// What messages call a node: its name, or that of its first result (the first output may be
  /// absent), or its op.
  const std::string& label(NodeId node) const;
  void set_input(NodeId node, size_t index, ValueId value);
  void add_node_input(NodeId node, ValueId value);
  /// Drops trailing absent inputs and inputs from `count` on.
  void resize_inputs(NodeId node, size_t count);
  /// Appends a result; used by rules that ask for an optional output. Fills a slot that was absent.
  ValueId add_node_output(NodeId node, size_t index, std::string value_name);
  /// Takes away an unused optional result (the slot stays, absent; trailing absent slots are
  /// dropped).
  void drop_output(NodeId node, size_t index);

  NodeId first(RegionId region) const;
  NodeId next(NodeId node) const { return links_[node.index].next; }
  NodeId prev(NodeId node) const { return links_[node.index].prev; }
  /// A snapshot of the nodes of one region, in order; safe while the region is changed.
  std::vector<NodeId> nodes(RegionId region) const;
  std::vector<NodeId> nodes() const { return nodes(main()); }
  /// All nodes of all regions: a node, then the nodes of its subgraphs, then the next.
  std::vector<NodeId> all_nodes() const;
  /// The regions that a node's attributes hold, in the order of the attribute names.
  std::vector<RegionId> subgraphs(NodeId node) const;
  /// True when `a` stands before `b` in the same region.
  bool is_before(NodeId a, NodeId b) const;
  InsertPoint before(NodeId node) const { return {nodes_[node.index].region, node}; }
  InsertPoint after(NodeId node) const { return {nodes_[node.index].region, next(node)}; }
  InsertPoint end(RegionId region) const { return {region, NodeId{}}; }
  InsertPoint end() const { return end(main()); }
  /// Is `inner` the same region as `outer` or nested below it?
  bool is_inside(RegionId inner, RegionId outer) const;

  // --- training state ----------------------------------------------------------------------------
  /// Adds a state whose new value is `next` (may be the initializer itself until a pass sets it).
  uint32_t add_state(ValueId current, ValueId next, StateKind kind);
  std::span<const State> states() const { return states_; }
  void set_state_next(uint32_t state, ValueId next);
  /// Takes a state away; its initializer stays, as a constant. Indices of later states go down by
  /// one.
  void remove_state(uint32_t state);
  /// Index of the state whose current value is this initializer.
  std::optional<uint32_t> state_of(ValueId current) const;

 private:
  friend struct GraphAccess;  // the verifier's view (verify.cc)

  struct Links {
    NodeId prev, next;
    int64_t order = 0;
  };
  struct Operands {  // one line of the cache
    SmallList<ValueId, 4> inputs;
    SmallList<uint32_t, 4> use_index;  // position of input i in its value's list of uses
    SmallList<ValueId, 2> outputs;
  };
  using Uses = SmallList<Use, 3>;

  struct Region {
    RegionId parent;
    NodeId owner;
    std::string name;
    std::vector<ValueId> inputs, outputs;
    std::vector<ValueId> initializers;  // dead ones too
    std::vector<uint32_t> output_use_index;
    NodeId first, last;
  };

  ValueId new_value(Value value);
  void link(NodeId node, InsertPoint at);
  void unlink(NodeId node);
  void add_use(ValueId value, Use use);
  void remove_use(ValueId value, uint32_t position);
  uint32_t& use_position(const Use& use);
  ValueId& used_value(const Use& use);
  void make_room(NodeId node);

  // Arrays that do not move: references and lists stay valid while nodes are added. What a walk
  // along the nodes reads lies apart from what they say.
  StableArray<Node> nodes_;
  std::vector<Links> links_;
  StableArray<Operands> operands_;
  StableArray<Value> values_;
  StableArray<Uses> uses_;
  std::vector<Region> regions_;
  std::vector<State> states_;
  std::vector<uint32_t> state_use_index_;
  NameIndex by_name_;
  std::unordered_map<std::string, uint32_t> name_counter_;
  uint32_t alive_nodes_ = 0;
};

template <class Predicate>
void Graph::replace_uses_if(ValueId from, ValueId to, Predicate&& which) {
  const auto snapshot = uses_[from.index];
  for (const Use& use : snapshot) {
    if (which(use)) replace_use(use, to);
  }
}

}  // namespace halfnote
