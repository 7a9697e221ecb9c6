// choose_trainable: decides which initializers are parameters.
//
//   (x) => <float[4,3] w, float[4] running_mean, int64[1] axes>      ──▶      w is trainable
//
// With --trainable the patterns decide (RE2, whole name; each must match). Else every float
// initializer of 16 bits or more that a node reads is trainable but for: what the exporter declares
// as a buffer or constant, what it computed from no parameter, masks that it numbered, running
// statistics (BatchNormalization's mean and variance), tables that only shape arithmetic or
// FP32-fixed slots read, and scalars that the file neither declares as parameters nor names as
// weights (passes/exporters/parameters.h). A parameter may also be a RandomNormal or RandomUniform
// node without operands, in a model that stores no weights: it becomes an initializer of that name,
// drawn now (the node's seed, or one made from --seed and the name). Elsewhere such a node is
// noise, unless --trainable names it. A Constant node is a constant, unless --trainable names it,
// or all matrices of the model stand in such nodes. Weights that stand in the bodies of If, Loop
// and Scan are moved to the graph and captured: there they can be trained. --freeze takes names
// away again. Leaves alone: models that are compiled for inference, training models.
#include <re2/re2.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "base/error.h"
#include "base/low_bit.h"
#include "compiler/ir/hash.h"
#include "compiler/ir/query.h"
#include "compiler/onnx/metadata.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/looks.h"
#include "passes/exporters/module_names.h"
#include "passes/exporters/parameters.h"
#include "passes/passes.h"
#include "passes/settings.h"

namespace halfnote {
namespace {

constexpr size_t kMostScalars = 8;  // named in a note

/// Is there no NaN and no Inf? Millions are asked: blocks of a fixed size become vector code.
bool all_numbers(std::span<const float> values) {
  constexpr size_t kBlock = 4096;
  constexpr uint32_t kExponent = 0x7f800000;  // all ones: NaN or Inf
  const auto is_broken = [](float v) {
    return (std::bit_cast<uint32_t>(v) & kExponent) == kExponent;
  };
  for (; values.size() >= kBlock; values = values.subspan(kBlock)) {
    uint32_t broken = 0;
    for (size_t i = 0; i < kBlock; ++i) broken |= is_broken(values[i]) ? 1u : 0u;
    if (broken != 0) return false;
  }
  return std::none_of(values.begin(), values.end(), is_broken);
}

/// Are there -inf, and else numbers only?
bool hides(std::span<const float> values) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  return std::all_of(values.begin(), values.end(),
                     [](float v) { return std::isfinite(v) || v == kHidden; });
}

bool ends_are_numbers(std::span<const float> values) {
  const size_t end = std::min(values.size(), Looks::kEnd / sizeof(float));
  return all_numbers(values.first(end)) && all_numbers(values.last(end));
}

class Chooser {
 public:
  Chooser(Model& model, PassContext& context)
      : model_(model), graph_(model.graph), context_(context), names_(model), declared_(model) {}

  bool run() {
    bool changed = hoist_weights();
    changed |= draw_parameters();
    changed |= lift_constants();
    const TrainOptions& train = context_.options.train;
    std::set<ValueId> chosen;
    for (ValueId id : graph_.initializers()) {
      if (trains(id) && looks_trainable(id)) chosen.insert(id);
    }
    const std::set<ValueId> usual = chosen;
    if (!train.trainable.empty()) chosen = select_trainable();
    for (ValueId id :
         train.frozen.empty() ? std::set<ValueId>{} : select(train.frozen, "train.freeze")) {
      chosen.erase(id);
    }
    changed |= list_frozen(usual, chosen);
    leave_out_broken(chosen);
    if (train.trainable.empty()) {
      note_choice(chosen);
      warn_of_low_bits();
    }
    for (ValueId id : graph_.initializers()) {
      const bool trainable = chosen.contains(id);
      changed |= graph_.value(id).trainable != trainable;
      graph_.value(id).trainable = trainable;
    }
    return changed;
  }

 private:
  /// What only the settings leave alone is a parameter of the trained model all the same: nothing
  /// is computed of it beforehand, and no other one takes its place.
  bool list_frozen(const std::set<ValueId>& usual, const std::set<ValueId>& chosen) {
    std::vector<std::string> frozen;
    bool changed = false;
    for (ValueId id : usual) {
      const bool stays = !chosen.contains(id);
      changed |= graph_.value(id).frozen != stays;
      graph_.value(id).frozen = stays;
      if (stays) frozen.push_back(graph_.value(id).name);
    }
    if (!frozen.empty()) model_.metadata[std::string(kFrozenKey)] = join_names(frozen);
    return changed;
  }

  /// Without a declaration nothing tells a parameter from a buffer, a table or a mask: what is
  /// guessed is listed, with the reason.
  void note_choice(const std::set<ValueId>& chosen) {
    std::string scalars;
    size_t count = 0;
    for (ValueId id : graph_.initializers()) {
      const Value& value = graph_.value(id);
      if (chosen.contains(id)) {
        context_.note(names_.shown(value.name), why_trained(value) + " (" + to_string(value.type) +
                                                    "); --freeze leaves it alone");
      } else if (!trains(id) || !is_operand(id)) {
        continue;
      } else if (const char* why = why_constant(id)) {
        context_.note(names_.shown(value.name), "is not trained: " + std::string(why) + " (" +
                                                    to_string(value.type) +
                                                    "); --trainable decides otherwise");
      } else if (value.tensor.shape().empty() && ++count <= kMostScalars) {
        scalars += (count == 1 ? "" : ", ") + names_.shown(value.name);
      }
    }
    if (count == 0) return;
    context_.note("scalars", "not trained, as nothing says that they are parameters: " + scalars +
                                 (count > kMostScalars ? ", …" : "") + " (" +
                                 std::to_string(count) +
                                 " in all); --trainable decides otherwise, and of shape (1) they "
                                 "would be");
  }

  /// Why the file says that it is no parameter; null where it does not.
  const char* why_constant(ValueId id) const {
    const Value& value = graph_.value(id);
    switch (declared_.of(value.name)) {
      case Declared::kParameter:
        return nullptr;
      case Declared::kBuffer:
        return "the exporter declares it a buffer or constant";
      case Declared::kConstant:
        return "the exporter computed it from no parameter";
      case Declared::kNothing:
        break;
    }
    return declared_.is_mask(id) ? "it holds a mask, and the exporter made its name" : nullptr;
  }

  std::string why_trained(const Value& value) const {
    if (declared_.of(value.name) == Declared::kParameter) {
      return "is trained: the exporter declares it a parameter";
    }
    if (value.tensor.shape().empty()) return "is trained, as a scalar that is named as weights are";
    return "is trained, as every float initializer that looks like a weight";
  }

  /// No training mends such a weight. What holds -inf, and nobody declared or named it, is a mask
  /// and none. Many large ones are looked at by their ends only (looks.h); a run that fails looks
  /// at the rest.
  void leave_out_broken(std::set<ValueId>& chosen) {
    Looks looks;
    std::erase_if(chosen, [&](ValueId id) {
      const Value& value = graph_.value(id);
      if (value.type.dtype != DType::kF32) return false;
      const std::span<const float> numbers = value.tensor.data<float>();
      const bool whole = looks.allow(value.tensor);
      const bool fine = whole ? all_numbers(numbers) : ends_are_numbers(numbers);
      const bool mask = !fine && whole && context_.options.train.trainable.empty() &&
                        declared_.of(value.name) == Declared::kNothing && hides(numbers);
      Looks::release(value.tensor);
      if (mask) {
        context_.note(names_.shown(value.name), "is not trained: it holds -inf, as a mask does (" +
                                                    to_string(value.type) +
                                                    "); --trainable decides otherwise");
      } else if (!fine) {
        context_.warn(names_.shown(value.name),
                      "holds a NaN or Inf, and is to be trained: nothing can come of it; --freeze "
                      "leaves it alone");
      }
      return mask;
    });
  }

  /// Float tables in bodies become initializers of the graph, under their names.
  bool hoist_weights() {
    bool changed = false;
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      for (ValueId id : graph_.initializers(RegionId{i})) {
        const Value value = graph_.value(id);
        const auto uses = graph_.uses(id);
        const bool by_nodes =
            std::all_of(uses.begin(), uses.end(), [](const Use& use) { return use.by_node(); });
        if (!is_float(value.type.dtype) || value.tensor.shape().empty() || value.made) continue;
        if (uses.empty() || !by_nodes) continue;
        graph_.rename(id, graph_.unique_name(value.name + ".body"));
        graph_.replace_uses(id, graph_.add_initializer(value.name, value.tensor));
        graph_.remove_value(id);
        const NodeId owner = graph_.region_owner(RegionId{i});
        context_.note(value.name, "is moved out of the body of " +
                                      (owner.valid() ? graph_.label(owner) : "a node") +
                                      ", where nothing can be trained");
        changed = true;
      }
    }
    return changed;
  }

  /// Random nodes without operands that stand for the first value of a parameter: in a model that
  /// stores no weights, and those that --trainable names. All others (torch.randn) are noise.
  bool draw_parameters() {
    bool changed = false;
    const bool stores = stores_weights();
    for (NodeId id : graph_.nodes()) {
      const OperatorRow* row = find_operator(graph_.node(id));
      if (row == nullptr || row->purity != Purity::kRandom || !graph_.inputs(id).empty()) continue;
      const std::string name = graph_.value(graph_.output(id)).name;
      if (stores && !is_asked_for(name)) {
        context_.warn(graph_.label(id),
                      "is noise and no first value of a parameter, as the model stores its "
                      "weights; --trainable makes a parameter of it");
        continue;
      }
      if (!graph_.node(id).attributes.has("seed")) {
        const uint64_t seed =
            hash_mix(hash_text(name), static_cast<uint64_t>(context_.options.train.seed));
        graph_.node(id).attributes.set("seed", static_cast<float>(seed >> 40));  // 24 bits: exact
        context_.note(name, std::string(kDrawnBySeed));
      }
      Tensor drawn = draw(id);
      graph_.rename(graph_.output(id), graph_.unique_name(name + ".drawn"));
      graph_.replace_uses(graph_.output(id), graph_.add_initializer(name, std::move(drawn)));
      graph_.remove(id);
      changed = true;
    }
    return changed;
  }

  /// A Constant node that holds floats which an optimizer works on.
  bool is_float_constant(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.op != "Constant" || !node.domain.empty()) return false;
    const Tensor* tensor = graph_.constant(graph_.output(id));
    return tensor != nullptr && is_float(tensor->dtype()) && !is_low_bit(tensor->dtype());
  }

  /// Is the result of the node a matrix that a product reads, as it is or moved?
  bool is_factor(NodeId id) const {
    const ValueId result = graph_.output(id);
    return graph_.constant(result)->shape().size() >= 2 && is_multiplied(result);
  }
  bool is_multiplied(ValueId value) const {
    const auto uses = graph_.uses(value);
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      if (!use.by_node()) return false;
      const Node& node = graph_.node(use.node());
      const OperatorRow* row = find_operator(node);
      if (row != nullptr && row->precision == PrecisionClass::kAllow) return true;
      const bool moved = node.domain.empty() && use.slot == 0 &&
                         (node.op == "Transpose" || node.op == "Identity" || node.op == "Cast");
      return moved && is_multiplied(graph_.output(use.node()));
    });
  }

  /// Does an initializer of two dims and more look like a weight, or the exporter store all so?
  bool stores_matrices() const {
    const std::vector<ValueId> all = graph_.initializers();
    return declared_.stores_weights() || declared_.any() ||
           std::any_of(all.begin(), all.end(), [&](ValueId id) {
             return graph_.value(id).tensor.shape().size() >= 2 && trains(id) &&
                    looks_trainable(id);
           });
  }

  /// Does --trainable name the Constant node: a matrix that a product reads by a pattern, any other
  /// by its whole name? A pattern that is meant for initializers takes no exponent and no size.
  bool is_asked_for(NodeId id) const {
    const std::string& name = graph_.value(graph_.output(id)).name;
    const std::vector<std::string>& patterns = context_.options.train.trainable;
    const bool named = std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
      return p == name || p == names_.shown(name);
    });
    return named || (is_asked_for(name) && is_factor(id));
  }

  /// Constant nodes that hold a weight become initializers: those that --trainable names, and where
  /// all matrices of the model stand in such nodes, these and what has dims behind them.
  bool lift_constants() {
    std::vector<NodeId> constants = graph_.all_nodes();
    std::erase_if(constants, [&](NodeId id) { return !is_float_constant(id); });
    const auto factor = [&](NodeId id) { return is_factor(id); };
    const bool all = std::any_of(constants.begin(), constants.end(), factor) && !stores_matrices();
    const std::vector<bool> behind = all ? behind_products() : std::vector<bool>();
    std::vector<std::string> lifted, left;
    for (NodeId id : constants) {
      const bool in_main = graph_.node(id).region == graph_.main();
      const bool asked = in_main && is_asked_for(id);
      if (asked || (in_main && all && (factor(id) || is_read_behind(id, behind)))) {
        lifted.push_back(lift(id));
      } else if (factor(id)) {
        left.push_back(names_.shown(graph_.value(graph_.output(id)).name));
      }
    }
    warn_of_constants(all, lifted, left);
    return !lifted.empty();
  }

  /// The name of the initializer that the Constant node has become.
  std::string lift(NodeId id) {
    const ValueId result = graph_.output(id);
    const std::string name = graph_.value(result).name;
    Tensor weight = *graph_.constant(result);
    graph_.rename(result, graph_.unique_name(name + ".node"));
    graph_.replace_uses(result, graph_.add_initializer(name, std::move(weight)));
    graph_.remove(id);
    return name;
  }

  /// By node: does it compute of what a product gives?
  std::vector<bool> behind_products() const {
    std::vector<bool> behind(graph_.node_capacity(), false);
    for (NodeId id : graph_.nodes()) {
      const OperatorRow* row = find_operator(graph_.node(id));
      behind[id.index] = row != nullptr && row->precision == PrecisionClass::kAllow;
      for (ValueId input : graph_.inputs(id)) {
        const NodeId from = producer(graph_, input);
        if (from.valid() && behind[from.index]) behind[id.index] = true;
      }
    }
    return behind;
  }
  bool is_read_behind(NodeId id, const std::vector<bool>& behind) const {
    const ValueId result = graph_.output(id);
    if (graph_.constant(result)->shape().empty()) return false;
    const auto uses = graph_.uses(result);
    return std::any_of(uses.begin(), uses.end(),
                       [&](const Use& use) { return use.by_node() && behind[use.owner]; });
  }

  /// Of matrices that stay constants where neither the file nor the user has said what is a
  /// parameter.
  void warn_of_constants(bool all, const std::vector<std::string>& lifted,
                         const std::vector<std::string>& left) {
    const bool decided =
        declared_.any() || declared_.stores_weights() || !context_.options.train.trainable.empty();
    if (all && !lifted.empty()) {
      context_.warn("Constant nodes",
                    "hold the weights, as no initializer is a matrix: " + counted(lifted) +
                        " are read as initializers; --trainable and --freeze "
                        "name them");
    }
    if (left.empty() || decided) return;
    context_.warn("Constant nodes", "that products read are not trained: " + counted(left) +
                                        "; --trainable decides otherwise, or store them as "
                                        "initializers");
  }

  Tensor draw(NodeId id) {
    try {
      check_room(id);
      return context_.evaluate(graph_, id, {}).front();
    } catch (Error& error) {
      throw error.within({.node = graph_.label(id), .op = graph_.node(id).op});
    }
  }

  /// What is drawn is read into memory, as the weights of a file are that cannot be mapped.
  void check_room(NodeId id) {
    context_.infer(graph_, id);
    const ValueType& type = graph_.value(graph_.output(id)).type;
    if (!type.has_concrete_shape()) return;
    const auto count = static_cast<uint64_t>(element_count(concrete(*type.shape)));
    drawn_bytes_ += count * size_of(type.dtype);  // at most 2^43 a node
    const uint64_t limit = memory_limit(context_.options.limits);
    if (drawn_bytes_ <= limit) return;
    throw Error(ErrorCode::kModel, "the parameters that random nodes draw are over the limit")
        .expected("at most " + std::to_string(limit) + " bytes",
                  std::to_string(drawn_bytes_) + " with " + to_string(type))
        .hint("--max-memory raises the limit");
  }

  /// Are the weights of this model initializers?
  bool stores_weights() const {
    if (declared_.stores_weights()) return true;
    const std::vector<ValueId> all = graph_.initializers();
    return std::any_of(all.begin(), all.end(),
                       [&](ValueId id) { return trains(id) && looks_trainable(id); });
  }

  bool is_asked_for(const std::string& name) const {
    const std::vector<std::string>& patterns = context_.options.train.trainable;
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      const RE2 re(pattern, RE2::Quiet);
      return re.ok() && names_.matches(name, re);
    });
  }

  /// No optimizer works on floats of 8 bits and fewer: such a weight is a constant of the model.
  bool trains(ValueId id) const {
    const Value& value = graph_.value(id);
    return is_float(value.type.dtype) && !is_low_bit(value.type.dtype) && !value.made;
  }

  void warn_of_low_bits() {
    for (ValueId id : graph_.initializers()) {
      const ValueType& type = graph_.value(id).type;
      if (!is_low_bit(type.dtype) || !is_float(type.dtype) || !looks_trainable(id)) continue;
      context_.warn(names_.shown(graph_.value(id).name),
                    "looks like a weight, but is not trained: no optimizer works on " +
                        std::string(short_name(type.dtype)) +
                        "; store it as f32 and round it in the graph");
    }
  }

  bool looks_trainable(ValueId id) const {
    const Value& value = graph_.value(id);
    const Declared declared = declared_.of(value.name);
    if (declared == Declared::kBuffer || declared == Declared::kConstant) return false;
    const bool undecided = declared == Declared::kNothing && value.tensor.shape().empty();
    if (!is_operand(id) || (undecided && !declared_.names_weight(id))) return false;
    return declared == Declared::kParameter || !declared_.is_mask(id);
  }

  /// Has an operand that stays in f32 a gradient? It is a weight only if the file says so: an
  /// exponent is mostly a plain 2, a mask hides what is not there.
  static bool is_learned(const Node& node, int slot) {
    return (node.op == "Pow" && slot == 1) || (node.op == "Attention" && slot == 3);
  }

  /// Does a node read it as an operand that may be trained, and none as a statistic? What stays in
  /// f32 (scales of Resize, the type of CastLike) is no such operand.
  bool is_operand(ValueId id) const {
    const bool is_parameter = declared_.of(graph_.value(id).name) == Declared::kParameter;
    bool read = false;
    for (const Use& use : graph_.uses(id)) {
      if (!use.by_node()) continue;
      const Node& node = graph_.node(use.node());
      const OperatorRow* row = find_operator(node);
      const bool statistic = node.op == "BatchNormalization" && use.slot >= 3;
      const bool fixed = row != nullptr && use.slot < 32 &&
                         (row->fp32_inputs >> use.slot & 1u) != 0 &&
                         node.op != "BatchNormalization" &&
                         !(is_parameter && is_learned(node, static_cast<int>(use.slot)));
      if (statistic) return false;
      read |= !fixed;
    }
    return read;
  }

  std::set<ValueId> select_trainable() const {
    std::set<ValueId> found = select(context_.options.train.trainable, "train.trainable");
    for (ValueId id : found) {
      if (trains(id)) continue;
      const Value& value = graph_.value(id);
      throw Error(ErrorCode::kUnsupported,
                  "--trainable: \"" + names_.shown(value.name) + "\" cannot be trained")
          .expected("a float of 16 bits or more, which optimizers work on",
                    std::string(short_name(value.type.dtype)))
          .hint("store it as f32 and round it in the graph");
    }
    return found;
  }

  std::set<ValueId> select(const std::vector<std::string>& patterns, const char* key) const {
    const std::string setting = std::string("{") + key + "}";
    std::set<ValueId> found;
    std::vector<std::string> names;
    for (ValueId id : graph_.initializers()) {
      const Value& value = graph_.value(id);
      if (is_float(value.type.dtype) && !value.made) names.push_back(value.name);
    }
    for (const std::string& pattern : patterns) {
      const RE2 re(pattern, RE2::Quiet);
      if (!re.ok()) {
        throw SettingError(key, {setting + " is no regular expression",
                                 "RE2 syntax",
                                 "\"" + pattern + "\" (" + re.error() + ")",
                                 {}})
            .named(context_.options);
      }
      bool any = false;
      for (const std::string& name : names) {
        if (!names_.matches(name, re)) continue;
        found.insert(graph_.find(name));
        any = true;
      }
      if (any) continue;
      const std::string_view near = closest(pattern, names);
      throw SettingError(
          key, {setting + " matches no float initializer", "a pattern for a whole name",
                "\"" + pattern + "\"",
                near.empty() ? "`halfnote inspect MODEL --format text` shows the initializers"
                             : "did you mean " + std::string(near) + "?"})
          .named(context_.options);
    }
    return found;
  }

  Model& model_;
  Graph& graph_;
  PassContext& context_;
  const ParameterNames names_;
  const Declarations declared_;
  uint64_t drawn_bytes_ = 0;
};

}  // namespace

bool choose_trainable(Model& model, PassContext& context) {
  if (context.options.inference_only || model.is_training()) return false;
  return Chooser(model, context).run();
}

}  // namespace halfnote
