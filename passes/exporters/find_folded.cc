// find_folded: names the parameters that an exporter computed with before it wrote them. Changes
// nothing.
//
//   w = Conv's weight times BatchNormalization's scale, called onnx::Conv_12      ──▶   a warning
//
// Such a tensor is trained, but it is not the model's parameter: a gradient step on `1 + w` or on a
// folded weight is another step, and 16-bit copies have lost bits. To be seen are only names that
// the exporter made itself (`val_163`, `onnx::Conv_12`, `_to_copy_3`, `…_fused_bn`, `where_1`),
// types, and what the file says of a node: a convolution of the module of a BatchNormalization
// holds it in weights that keep their names. A counted matrix that MatMul or Gemm reads is taken
// for a weight that was transposed, which trains as it would have. Weights and biases of a
// recurrent layer, put one behind the other in ONNX's order, train as they would have too, unless
// the optimizer looks at a tensor as a whole or at its rank; a note tells of them, or then a
// warning. Parameters that the file lists but does not hold were merged with equal ones, or left
// out. A scalar called as a value of PyTorch's (`exp` of a temperature) is not trained, and told as
// well, unless the file says that it came from no parameter. Not to be seen: other values that were
// folded into an initializer that kept its name.
#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <set>

#include "compiler/ir/model.h"
#include "passes/exporters/folded_norms.h"
#include "passes/exporters/lost_settings.h"
#include "passes/exporters/module_names.h"
#include "passes/exporters/parameters.h"
#include "passes/passes.h"

namespace halfnote {

namespace {

constexpr const char* kExporterWayOut =
    "export with optimize=False (PyTorch, dynamo=True), or with do_constant_folding=False and "
    "training=TrainingMode.TRAINING (dynamo=False)";

/// BatchNormalizations that are gone: their modules, their parameters that the file lists, and the
/// parameters of others that hold them now.
struct FoldedNorms {
  std::vector<std::string> modules, lost, holders;
};

struct Found {
  FoldedNorms norms;
  std::vector<std::string> normalized, copies, expressions, scalars, recurrent, merged, left_out;
};

bool is_recurrent(const std::string& op) { return op == "LSTM" || op == "GRU" || op == "RNN"; }

/// `encoder.norm` of `encoder.norm.weight`.
std::string module_of_parameter(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

/// The names of a list with ", " between them.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(", ", at), text.size());
    names.push_back(text.substr(at, end - at));
    at = end + 2;
  }
  return names;
}

/// Are all elements alike, as those of scales and biases are at first? Larger tensors are matrices.
bool starts_alike(const Tensor& tensor) {
  constexpr int64_t kMost = int64_t{1} << 16;
  if (tensor.size() == 0 || tensor.size() > kMost) return false;
  for (int64_t i = 1; i < tensor.size(); ++i) {
    if (tensor.at_as_double(i) != tensor.at_as_double(0)) return false;
  }
  return true;
}

/// Names of PyTorch's values, as the newer exporter calls what it computed; parameters have a path.
bool names_value(const std::string& name) {
  static const RE2 kValue(
      "(abs|add|addmm|arange|cat|clone|cos|cumsum|div|embedding|exp|expand|eye|flip|full|index|"
      "linear|log|masked_fill|matmul|mean|mm|mul|neg|ones|permute|pow|reciprocal|repeat|reshape|"
      "rsqrt|scalar_tensor|select|sigmoid|sin|slice|softmax|softplus|sqrt|squeeze|stack|sub|sum|"
      "tanh|transpose|tril|triu|unsqueeze|view|where|zeros)(_\\d+)?");
  return RE2::FullMatch(name, kValue);
}

/// Names of PyTorch's arithmetic: those of a scalar that came from others, and is no plain
/// constant.
bool names_arithmetic(const std::string& name) {
  static const RE2 kArithmetic(
      "(abs|add|clamp|clamp_max|clamp_min|cos|div|exp|log|mean|mul|neg|pow|reciprocal|rsqrt|"
      "sigmoid|sin|softplus|sqrt|sub|sum|tanh)(_\\d+)?");
  return RE2::FullMatch(name, kArithmetic);
}

class Finder {
 public:
  explicit Finder(const Model& model)
      : graph_(model.graph),
        names_(model),
        declared_(model),
        newer_exporter_(is_newer_export(model.graph)) {}

  Found run() {
    for (ValueId id : graph_.initializers()) {
      const Value& value = graph_.value(id);
      if (value.trainable && value.tensor.size() > 1) visit(id);
      const bool scalar = is_float(value.type.dtype) && value.tensor.shape().empty();
      if (!value.trainable && scalar && newer_exporter_ && names_arithmetic(value.name) &&
          declared_.of(value.name) != Declared::kConstant && !graph_.uses(id).empty()) {
        found_.scalars.push_back(value.name);
      }
    }
    find_folded_norms();
    find_lost();
    return found_;
  }

 private:
  void find_folded_norms() {
    for (NodeId id : graph_.nodes()) {
      if (!is_folded_norm(graph_.node(id))) continue;
      const std::string module = module_of(graph_.node(id));
      if (!norms_.insert(module).second) continue;  // a module that is called again
      found_.norms.modules.push_back(module.empty() ? graph_.label(id) : module);
      for (size_t slot : {1, 2}) {
        const ValueId operand = graph_.input(id, slot);
        if (!operand.valid() || !graph_.value(operand).trainable) continue;
        found_.norms.holders.push_back(names_.shown(graph_.value(operand).name));
      }
    }
    for (const std::string& name : declared_.lost()) {
      if (norms_.contains(module_of_parameter(name))) found_.norms.lost.push_back(name);
    }
  }

  void visit(ValueId id) {
    const Value& value = graph_.value(id);
    if (is_of_folded_norm(id)) return;
    const std::string sources = declared_.sources_of(value.name);
    const std::string shown =
        sources.empty() ? names_.shown(value.name) : value.name + " of " + sources;
    if (is_of_recurrence(id)) {
      found_.recurrent.push_back(shown);
    } else if (is_fused(id)) {
      found_.normalized.push_back(shown);
    } else if (value.name.starts_with("_to_copy") && is_16bit_float(value.type.dtype)) {
      found_.copies.push_back(shown);
    } else if (newer_exporter_ && names_value(value.name)) {
      found_.expressions.push_back(shown);
    } else if (is_counted_name(value.name) && !is_matrix(id)) {
      found_.expressions.push_back(shown);
    }
  }

  /// Is it W, R, B or P of recurrent layers, and nothing else, under a name of the exporter's?
  bool is_of_recurrence(ValueId id) const {
    const std::string& name = graph_.value(id).name;
    if (!is_counted_name(name) && declared_.sources_of(name).empty()) return false;
    const auto uses = graph_.uses(id);
    return !uses.empty() && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
      return use.by_node() && is_recurrent(graph_.node(use.node()).op) && use.slot >= 1 &&
             (use.slot <= 3 || use.slot == 7);
    });
  }

  /// Parameters that are listed and not there. Of those whose module reads an initializer of
  /// another one, it is that: with all elements alike and more readers, equal ones were merged;
  /// else they are one by design, as a tied embedding is. Where nothing of another module is read,
  /// but the module's weight is there, a zero was left out. What a model does not use is no loss.
  void find_lost() {
    if (declared_.lost().empty()) return;
    std::set<std::string> present;
    std::map<std::string, std::set<ValueId>> foreign;
    for (ValueId id : graph_.initializers()) {
      if (!is_float(graph_.value(id).type.dtype)) continue;
      const std::set<std::string> own = modules_of(id);
      present.insert(own.begin(), own.end());
      for (NodeId user : graph_.users(id)) {
        const std::string reader = module_of(graph_.node(user));
        if (is_folded_norm(graph_.node(user))) continue;
        if (!own.empty() && !own.contains(reader)) foreign[reader].insert(id);
      }
    }
    for (const std::string& name : declared_.lost()) {
      const std::string module = module_of_parameter(name);
      if (norms_.contains(module)) continue;
      const auto others = foreign.find(module);
      if (others == foreign.end()) {
        if (present.contains(module)) found_.left_out.push_back(name);
        continue;
      }
      const std::string now = merged_into(name, others->second);
      if (!now.empty()) found_.merged.push_back(name + " (now " + now + ")");
    }
  }

  /// The one of these initializers that a lost parameter is now: one of its kind, if there is one.
  std::string merged_into(const std::string& name, const std::set<ValueId>& others) const {
    const std::string kind = name.substr(name.rfind('.') + 1);
    std::string found;
    for (ValueId id : others) {
      const Value& other = graph_.value(id);
      if (graph_.users(id).size() < 2 || !starts_alike(other.tensor)) continue;
      if (other.name.ends_with("." + kind)) return other.name;
      if (found.empty()) found = other.name;
    }
    return found;
  }

  /// The modules of the parameters that an initializer is, or was computed from.
  std::set<std::string> modules_of(ValueId id) const {
    const std::string& name = graph_.value(id).name;
    std::set<std::string> modules;
    if (declared_.of(name) == Declared::kParameter) modules.insert(module_of_parameter(name));
    for (const std::string& source : split(declared_.sources_of(name)))
      modules.insert(module_of_parameter(source));
    return modules;
  }

  /// Does a node read it that is told apart, as the file says what was folded into it?
  bool is_of_folded_norm(ValueId id) const {
    const auto uses = graph_.uses(id);
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      return use.by_node() && use.slot >= 1 && is_folded_norm(graph_.node(use.node()));
    });
  }

  bool is_fused(ValueId id) const {
    const auto uses = graph_.uses(id);
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      return use.by_node() && names_folded_norm(graph_, use.node(), use.slot);
    });
  }

  /// A weight that was transposed, and nothing else.
  bool is_matrix(ValueId id) const {
    const auto uses = graph_.uses(id);
    return graph_.value(id).tensor.shape().size() == 2 &&
           std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
             if (!use.by_node()) return false;
             const std::string& op = graph_.node(use.node()).op;
             return (op == "MatMul" || op == "Gemm" || op == "Transpose") && use.slot <= 1;
           });
  }

  const Graph& graph_;
  const ParameterNames names_;
  const Declarations declared_;
  const bool newer_exporter_;
  std::set<std::string> norms_;  // modules of BatchNormalizations that were folded
  Found found_;
};

/// Does a step depend on more of a parameter than each element's own numbers: its norm, its rank?
bool sees_whole_tensors(const Optimizer& optimizer) {
  const bool by_norms = optimizer.kind.ends_with("lamb") || optimizer.kind == "adafactor";
  return by_norms || (optimizer.no_decay_on_1d && optimizer.weight_decay != 0);
}

void tell_recurrent(PassContext& context, const std::string& source,
                    const std::vector<std::string>& names) {
  if (names.empty()) return;
  const std::string what =
      "weights and biases of recurrent layers that the exporter put one behind "
      "the other, as ONNX has them: " +
      counted(names) + "; ";
  const Optimizer& optimizer = context.options.train.optimizer;
  if (!sees_whole_tensors(optimizer)) {
    context.note(source, what + "their elements are trained as in the model");
    return;
  }
  const bool by_rank = !optimizer.kind.ends_with("lamb") && optimizer.kind != "adafactor";
  context.warn(source,
               what + (by_rank ? "a bias is no tensor of rank 1 any more, and weight decay takes it"
                               : optimizer.kind + " looks at each as a whole: its steps are not "
                                                  "those of the single parameters"));
}

void warn(PassContext& context, const std::string& source, const std::vector<std::string>& names,
          const std::string& text, const char* what = "trained, but no parameter of the model: ") {
  if (names.empty()) return;
  context.warn(source, what + counted(names) + ": " + text + "; " + kExporterWayOut);
}

void warn_of_norms(PassContext& context, const std::string& source, const FoldedNorms& norms) {
  if (norms.modules.empty()) return;
  std::string text = "no BatchNormalization any more: " + counted(norms.modules) +
                     ": the exporter folded it into the weights of the layer before it";
  if (!norms.lost.empty()) {
    text += "; not trained, as the file lists them and does not hold them: " + counted(norms.lost);
  }
  if (!norms.holders.empty()) text += "; trained in their place: " + counted(norms.holders);
  context.warn(source, text + "; " + kFoldedNormWayOut);
}

}  // namespace

bool find_folded(Model& model, PassContext& context) {
  if (context.options.inference_only || model.is_training()) return false;
  const Found found = Finder(model).run();
  warn_of_norms(context, model.source, found.norms);
  warn(context, model.source, found.normalized,
       "a BatchNormalization is folded into the convolution, and there is none left to train");
  warn(context, model.source, found.copies,
       "copies of parameters that autocast rounded to 16 bits, and the bits are lost");
  warn(context, model.source, found.expressions,
       "tables (--freeze leaves them alone), or expressions of parameters (1 + w) that the "
       "exporter computed");
  tell_recurrent(context, model.source, found.recurrent);
  warn(context, model.source, found.merged,
       "the exporter made one parameter of several that start equal, and they are trained as one",
       "no parameters of their own: ");
  warn(context, model.source, found.left_out,
       "the file lists them and does not hold them; the exporter leaves biases of zeros out, and "
       "merges what starts equal",
       "not trained: ");
  warn(context, model.source, found.scalars,
       "scalars that the exporter computed; a parameter that one was computed from (the scale of "
       "scale.exp()) is gone",
       "not trained: ");
  warn_of_lost_settings(model, context);
  return false;
}

}  // namespace halfnote
