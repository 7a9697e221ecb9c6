// find_folded: names the parameters that an exporter computed with before it wrote them. Changes
// nothing.
//
//   w = Conv's weight times BatchNormalization's scale, called onnx::Conv_12      ──▶   a warning
//
// Such a tensor is trained, but it is not the model's parameter: a gradient step on `1 + w` or on a
// folded weight is another step, and 16-bit copies have lost bits. To be seen are only names that
// the exporter made itself (`val_163`, `onnx::Conv_12`, `_to_copy_3`, `…_fused_bn`, `where_1`), and
// types. A
// counted matrix that MatMul or Gemm reads is taken for a weight that was transposed, which trains
// as it would have. A scalar called as a value of PyTorch's (`exp` of a temperature) is not
// trained, and told as well, unless the file says that it came from no parameter. Not to be seen:
// values that were folded into an initializer that kept its name.
#include <re2/re2.h>

#include <algorithm>

#include "compiler/ir/model.h"
#include "passes/exporters/module_names.h"
#include "passes/exporters/parameters.h"
#include "passes/passes.h"

namespace halfnote {

namespace {

constexpr size_t kMostNames = 4;
constexpr const char* kExporterWayOut =
    "export with optimize=False (PyTorch, dynamo=True), or with do_constant_folding=False and "
    "training=TrainingMode.TRAINING (dynamo=False)";

struct Found {
  std::vector<std::string> normalized, copies, expressions, scalars;
};

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > kMostNames ? text + ", …" : text;
}

bool is_convolution(const std::string& op) { return op == "Conv" || op == "ConvTranspose"; }

/// Names that say that a BatchNormalization is in there.
bool names_fused(const std::string& name) {
  static const RE2 kFused("onnx::Conv(Transpose)?_\\d+|.*_fused_bn");
  return RE2::FullMatch(name, kFused);
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
    return found_;
  }

 private:
  void visit(ValueId id) {
    const Value& value = graph_.value(id);
    const std::string shown = names_.shown(value.name);
    if (is_fused(id)) {
      found_.normalized.push_back(shown);
    } else if (value.name.starts_with("_to_copy") && is_16bit_float(value.type.dtype)) {
      found_.copies.push_back(shown);
    } else if (newer_exporter_ && names_value(value.name)) {
      found_.expressions.push_back(shown);
    } else if (is_counted_name(value.name) && !is_matrix(id)) {
      found_.expressions.push_back(shown);
    }
  }

  bool is_fused(ValueId id) const {
    const std::string& name = graph_.value(id).name;
    const auto uses = graph_.uses(id);
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      if (!use.by_node() || !is_convolution(graph_.node(use.node()).op)) return false;
      if (names_fused(name)) return true;
      const ValueId weight = graph_.input(use.node(), 1);
      return use.slot == 2 && weight.valid() && name == graph_.value(weight).name + "_bias";
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
  Found found_;
};

void warn(PassContext& context, const std::string& source, const std::vector<std::string>& names,
          const std::string& text, const char* what = "trained, but no parameter of the model: ") {
  if (names.empty()) return;
  context.warn(source, what + listed(names) + " (" + std::to_string(names.size()) +
                           " in all): " + text + "; " + kExporterWayOut);
}

}  // namespace

bool find_folded(Model& model, PassContext& context) {
  if (context.options.inference_only || model.is_training()) return false;
  const Found found = Finder(model).run();
  warn(context, model.source, found.normalized,
       "a BatchNormalization is folded into the convolution, and there is none left to train");
  warn(context, model.source, found.copies,
       "copies of parameters that autocast rounded to 16 bits, and the bits are lost");
  warn(context, model.source, found.expressions,
       "tables (--freeze leaves them alone), or expressions of parameters (1 + w) that the "
       "exporter computed");
  warn(context, model.source, found.scalars,
       "scalars that the exporter computed; a parameter that one was computed from (the scale of "
       "scale.exp()) is gone",
       "not trained: ");
  return false;
}

}  // namespace halfnote
