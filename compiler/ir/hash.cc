#include "compiler/ir/hash.h"

#include <bit>
#include <cstring>

namespace halfnote {
namespace {

constexpr size_t kWholeBytes = 4096;
constexpr size_t kSamples = 64;

class Hasher {
 public:
  void add(uint64_t word) { state_ = hash_mix(state_, word); }

  void add_bytes(const void* data, size_t size) {
    const auto* bytes = static_cast<const char*>(data);
    add(size);
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
      uint64_t word;
      std::memcpy(&word, bytes + i, 8);
      add(word);
    }
    if (i == size) return;
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, size - i);
    add(word);
  }

  void add(std::string_view text) { add_bytes(text.data(), text.size()); }
  void add(int64_t number) { add(static_cast<uint64_t>(number)); }
  void add(float number) { add(uint64_t{std::bit_cast<uint32_t>(number)}); }

  void add(const Tensor& tensor) {
    add(static_cast<uint64_t>(tensor.dtype()));
    add(uint64_t{tensor.shape().size()});
    for (int64_t dim : tensor.shape()) add(dim);
    if (!tensor.defined()) return;
    if (tensor.dtype() == DType::kString) {
      for (const std::string& text : tensor.string_data()) add(text);
      return;
    }
    const size_t size = tensor.byte_size();
    if (size <= kWholeBytes) return add_bytes(tensor.bytes(), size);
    add(uint64_t{size});
    for (size_t i = 0; i < kSamples; ++i) {
      uint64_t word;
      std::memcpy(&word, tensor.bytes() + (size - 8) / (kSamples - 1) * i, 8);
      add(word);
    }
  }

  void add(const ValueType& type) {
    add(static_cast<uint64_t>(type.kind));
    add(static_cast<uint64_t>(type.dtype));
    add(static_cast<uint64_t>(type.key));
    add(static_cast<int64_t>(type.rank()));
    if (type.shape) {
      for (const Dim& dim : *type.shape) {
        add(dim.value);
        add(dim.symbol);
      }
    }
    if (type.element) add(*type.element);
  }

  uint64_t result() const { return state_; }

 private:
  uint64_t state_ = 0x2d358dccaa6c78a5u;
};

/// `add_region(RegionId)` says what a graph in an attribute counts as.
template <class AddRegion>
void add_attributes(Hasher& hasher, const Attributes& attributes, AddRegion&& add_region) {
  const auto add_one = [&](const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, RegionId>) {
      add_region(value);
    } else if constexpr (std::is_same_v<T, AttributeReference>) {
      hasher.add(value.name);
      hasher.add(static_cast<int64_t>(value.onnx_type));
    } else {
      hasher.add(value);
    }
  };
  const auto add_list = [&](const auto& values) {
    hasher.add(uint64_t{values.size()});
    for (const auto& value : values) add_one(value);
  };
  hasher.add(uint64_t{attributes.size()});
  for (const auto& [key, attribute] : attributes) {
    hasher.add(key);
    hasher.add(uint64_t{attribute.index()});
    std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string>) {
            add_list(value);
          } else {
            add_one(value);
          }
        },
        attribute);
  }
}

class GraphHasher {
 public:
  GraphHasher(const Graph& graph, Hasher& hasher) : graph_(graph), hasher_(hasher) {}

  void run() {
    hasher_.add(graph_.doc);
    add_region(graph_.main());
    for (const State& state : graph_.states()) {
      hasher_.add(static_cast<uint64_t>(state.kind));
      add_name(state.current);
      add_name(state.next);
    }
  }

 private:
  /// Values are known by their names, which are unique in a graph.
  void add_name(ValueId id) {
    if (!id.valid()) return hasher_.add(uint64_t{0});
    hasher_.add(graph_.value(id).name);
  }

  void add_value(ValueId id) {
    add_name(id);
    if (!id.valid()) return;
    const Value& value = graph_.value(id);
    hasher_.add(value.type);
    hasher_.add(static_cast<int64_t>(value.scale_power));
    if (value.kind != ValueKind::kInitializer) return;
    hasher_.add(uint64_t{value.trainable} << 1 | uint64_t{value.frozen});
    hasher_.add(value.tensor);
    const bool sampled = value.tensor.byte_size() > kWholeBytes;
    if (sampled) hasher_.add(reinterpret_cast<uint64_t>(value.tensor.bytes()));
  }

  template <class Values>
  void add_values(const Values& values) {
    hasher_.add(uint64_t{values.size()});
    for (ValueId id : values) add_value(id);
  }

  void add_region(RegionId region) {
    hasher_.add(graph_.region_name(region));
    add_values(graph_.inputs(region));
    add_values(graph_.initializers(region));
    for (NodeId node = graph_.first(region); node.valid(); node = graph_.next(node)) add_node(node);
    hasher_.add(uint64_t{graph_.outputs(region).size()});
    for (ValueId output : graph_.outputs(region)) add_name(output);
  }

  void add_node(NodeId id) {
    const Node& node = graph_.node(id);
    for (const std::string* text : {&node.domain.str(), &node.op.str(), &node.overload.str(),
                                    &node.name, &node.origin.str(), &node.precision.reason.str()}) {
      hasher_.add(*text);
    }
    hasher_.add(static_cast<uint64_t>(node.role));
    hasher_.add(static_cast<uint64_t>(node.precision.dtype));
    hasher_.add(uint64_t{node.metadata.size()});
    for (const auto& [key, value] : node.metadata) {
      hasher_.add(key);
      hasher_.add(value);
    }
    hasher_.add(uint64_t{graph_.inputs(id).size()});
    for (ValueId input : graph_.inputs(id)) add_name(input);
    add_values(graph_.outputs(id));
    add_attributes(hasher_, node.attributes, [&](RegionId region) { add_region(region); });
  }

  const Graph& graph_;
  Hasher& hasher_;
};

/// Nodes and values each for themselves, in the order in which they lie in memory: what does not
/// wait for the one before it is several times as fast. Their places in lists are part of them.
class HistoryHasher {
 public:
  HistoryHasher(const Graph& graph, uint32_t stride) : graph_(graph), stride_(stride) {}

  uint64_t run() {
    Hasher hasher;
    hasher.add(graph_.doc);
    for (uint32_t i = 0; i < graph_.region_count(); ++i) {
      const RegionId region{i};
      const NodeId owner = graph_.region_owner(region);
      if (i > 0 && (!owner.valid() || !graph_.node(owner).alive)) continue;
      hasher.add(graph_.region_name(region));
      hasher.add(uint64_t{graph_.first(region).index});
      for (const auto& list : {graph_.inputs(region), graph_.outputs(region)}) {
        add_handles(hasher, list);
      }
    }
    for (const State& state : graph_.states()) {
      hasher.add(static_cast<uint64_t>(state.kind));
      hasher.add(uint64_t{state.current.index} << 32 | state.next.index);
    }
    hasher.add(uint64_t{graph_.node_count()});
    uint64_t sum = 0;  // each hash has its own handle in it
    for (uint32_t i = 0; i < graph_.node_capacity(); i += stride_) sum += hash_of(NodeId{i});
    for (uint32_t i = 0; i < graph_.value_count(); i += stride_) sum += hash_of(ValueId{i});
    hasher.add(sum);
    return hasher.result();
  }

 private:
  static void add_handles(Hasher& hasher, std::span<const ValueId> list) {
    hasher.add(uint64_t{list.size()});
    for (ValueId id : list) hasher.add(uint64_t{id.index});
  }

  uint64_t hash_of(NodeId id) const {
    const Node& node = graph_.node(id);
    if (!node.alive) return 0;
    Hasher hasher;
    hasher.add(uint64_t{id.index} << 32 | graph_.next(id).index);
    hasher.add(uint64_t{node.region.index} << 32 | static_cast<uint64_t>(node.role) << 16 |
               static_cast<uint64_t>(node.precision.dtype));
    for (const std::string* text : {&node.domain.str(), &node.op.str(), &node.overload.str(),
                                    &node.name, &node.origin.str(), &node.precision.reason.str()}) {
      hasher.add(*text);
    }
    for (const auto& [key, value] : node.metadata) {
      hasher.add(key);
      add_ends(hasher, value);
    }
    add_handles(hasher, graph_.inputs(id));
    add_handles(hasher, graph_.outputs(id));
    add_attributes(hasher, node.attributes,
                   [&](RegionId region) { hasher.add(uint64_t{region.index}); });
    return hasher.result();
  }

  uint64_t hash_of(ValueId id) const {
    const Value& value = graph_.value(id);
    if (!value.alive) return 0;
    Hasher hasher;
    hasher.add(uint64_t{id.index} << 32 | value.region.index);
    hasher.add(value.name);
    hasher.add(value.type);
    const uint64_t parameter = uint64_t{value.trainable} << 1 | uint64_t{value.frozen};
    hasher.add(parameter << 8 | static_cast<uint8_t>(value.scale_power));
    if (value.kind == ValueKind::kInitializer) add_tensor(hasher, value.tensor);
    return hasher.result();
  }

  /// What an exporter noted on a node may be a page of text (a stack trace).
  static void add_ends(Hasher& hasher, std::string_view text) {
    constexpr size_t kEnd = 32;
    if (text.size() <= 2 * kEnd) return hasher.add(text);
    hasher.add(uint64_t{text.size()});
    hasher.add(text.substr(0, kEnd));
    hasher.add(text.substr(text.size() - kEnd));
  }

  /// A large tensor counts by its place: it is never written while others share it.
  static void add_tensor(Hasher& hasher, const Tensor& tensor) {
    if (tensor.byte_size() <= kWholeBytes) return hasher.add(tensor);
    hasher.add(reinterpret_cast<uint64_t>(tensor.bytes()));
    hasher.add(uint64_t{tensor.byte_size()});
  }

  const Graph& graph_;
  const uint32_t stride_;
};

void add_graph(Hasher& hasher, const Graph& graph) { GraphHasher(graph, hasher).run(); }

void add_opsets(Hasher& hasher, const std::map<std::string, int64_t>& opsets) {
  hasher.add(uint64_t{opsets.size()});
  for (const auto& [domain, version] : opsets) {
    hasher.add(domain);
    hasher.add(version);
  }
}

void add_function(Hasher& hasher, const Function& function) {
  hasher.add(function.domain);
  hasher.add(function.name);
  hasher.add(function.overload);
  hasher.add(uint64_t{function.attributes.size()});
  for (const std::string& name : function.attributes) hasher.add(name);
  Attributes defaults;
  for (const auto& [name, value] : function.default_attributes) {
    hasher.add(name);  // in their order
    defaults.set(name, value);
  }
  add_attributes(hasher, defaults, [&](RegionId region) { hasher.add(uint64_t{region.index}); });
  add_opsets(hasher, function.opsets);
  add_graph(hasher, function.body);
}

}  // namespace

// Both halves of the product of two words: one step of wyhash.
uint64_t hash_mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xe7037ed1a0b428dbu);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_text(std::string_view text) {
  Hasher hasher;
  hasher.add(text);
  return hasher.result();
}

uint64_t content_hash(const Tensor& tensor) {
  Hasher hasher;
  hasher.add(tensor);
  return hasher.result();
}

uint64_t content_hash(const Attributes& attributes) {
  Hasher hasher;
  add_attributes(hasher, attributes, [&](RegionId region) { hasher.add(uint64_t{region.index}); });
  return hasher.result();
}

uint64_t content_hash(const ValueType& type) {
  Hasher hasher;
  hasher.add(type);
  return hasher.result();
}

uint64_t content_hash(const Graph& graph) {
  Hasher hasher;
  add_graph(hasher, graph);
  return hasher.result();
}

uint64_t history_hash(const Graph& graph, uint32_t stride) {
  return HistoryHasher(graph, stride).run();
}

uint64_t content_hash(const Model& model) {
  Hasher hasher;
  add_graph(hasher, model.graph);
  hasher.add(uint64_t{model.functions.size()});
  for (const Function& function : model.functions) add_function(hasher, function);
  hasher.add(uint64_t{model.training.size()});
  for (const TrainingStep& step : model.training) {
    hasher.add(step.name);
    add_graph(hasher, step.graph);
    add_graph(hasher, step.initialization);
    hasher.add(uint64_t{step.initialization_binding.size()});
    for (const auto& [target, source] : step.initialization_binding) {
      hasher.add(target);
      hasher.add(source);
    }
  }
  add_opsets(hasher, model.opsets);
  hasher.add(uint64_t{model.metadata.size()});
  for (const auto& [key, value] : model.metadata) {
    hasher.add(key);
    hasher.add(value);
  }
  hasher.add(model.ir_version);
  hasher.add(model.model_version);
  for (const std::string* text :
       {&model.producer_name, &model.producer_version, &model.domain, &model.doc}) {
    hasher.add(*text);
  }
  return hasher.result();
}

}  // namespace halfnote
