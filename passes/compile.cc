#include "passes/compile.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/version.h"
#include "compiler/ir/hash.h"
#include "compiler/ir/node_names.h"
#include "compiler/ops/body.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/bind_dims.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_opset.h"
#include "passes/foreign/training_info.h"
#include "passes/unsupported.h"

namespace halfnote {
namespace {

/// The types of a call's operands and results as numbers. Which names its symbols have does not
/// matter to a body, only which of them are the same; where a dim is made of others (`N + 1`,
/// `N_times_4`), the names stay.
class Signature {
 public:
  Signature(const Graph& graph, NodeId id) {
    for (const auto values : {graph.inputs(id), graph.outputs(id)}) {
      numbers_.push_back(static_cast<int64_t>(values.size()));
      for (ValueId value : values) add(value.valid() ? &graph.value(value).type : nullptr);
    }
    if (!has_formula_) symbols_.clear();
  }

  uint64_t hash() const {
    uint64_t hash = 0;
    for (const int64_t number : numbers_) hash = hash_mix(hash, static_cast<uint64_t>(number));
    return hash;
  }
  friend bool operator==(const Signature&, const Signature&) = default;

 private:
  void add(const ValueType* type) {
    if (type == nullptr) return numbers_.push_back(-1);
    numbers_.push_back(
        (static_cast<int64_t>(type->kind) * 256 + static_cast<int64_t>(type->dtype)) * 256 +
        static_cast<int64_t>(type->key));
    numbers_.push_back(type->rank());
    if (type->element != nullptr) add(type->element.get());
    if (!type->shape) return;
    for (const Dim& dim : *type->shape) {
      numbers_.push_back(dim.known() || dim.symbol.empty() ? dim.value : number_of(dim.symbol));
    }
  }
  int64_t number_of(const std::string& symbol) {
    has_formula_ |= symbol.find_first_of(" +-*/") != std::string::npos ||
                    symbol.find("_times_") != std::string::npos;
    auto found = std::ranges::find(symbols_, symbol);
    if (found == symbols_.end()) found = symbols_.insert(found, symbol);
    return -2 - (found - symbols_.begin());
  }

  std::vector<int64_t> numbers_;
  std::vector<std::string> symbols_;
  bool has_formula_ = false;
};

/// The bodies that nodes call. A body follows from the op, the attributes and the types of a call:
/// calls that agree in them share one, and only the first builds it.
class Bodies {
 public:
  void add_calls(Graph& graph) {
    for (NodeId id : graph.all_nodes()) {
      if (graph.node(id).domain == kHalfnoteDomain) add_call(graph, id);
    }
  }

  std::map<std::string, Function> take() { return std::move(bodies_); }

 private:
  struct Call {
    const Node* node;
    Signature signature;
  };

  void add_call(Graph& graph, NodeId id) {
    Node& node = graph.node(id);
    Signature signature(graph, id);
    const uint64_t hash =
        hash_mix(hash_mix(hash_text(node.op), content_hash(node.attributes)), signature.hash());
    std::vector<Call>& alike = calls_[hash];
    for (const Call& call : alike) {
      if (call.node->op != node.op || !(call.node->attributes == node.attributes)) continue;
      if (!(call.signature == signature)) continue;
      node.overload = call.node->overload;
      return;
    }
    Function body = build_body(graph, id, infer_node);
    node.overload = body.overload;
    alike.push_back({&node, std::move(signature)});
    bodies_.try_emplace(body.name + ":" + body.overload, std::move(body));
  }

  std::unordered_map<uint64_t, std::vector<Call>> calls_;
  std::map<std::string, Function> bodies_;
};

/// Drops the op-sets of domains that no node is of any more (ONNX Runtime lists all it has).
void drop_unused_opsets(Model& model) {
  std::set<std::string> used = {""};
  for_each_graph(model, [&](const Graph& graph) {
    for (NodeId id : graph.all_nodes()) used.insert(graph.node(id).domain);
  });
  for (const Function& function : model.functions) used.insert(function.domain);
  std::erase_if(model.opsets, [&](const auto& entry) { return !used.contains(entry.first); });
}

}  // namespace

void attach_bodies(Model& model) {
  Bodies calls;
  for_each_graph(model, [&](Graph& graph) { calls.add_calls(graph); });
  std::map<std::string, Function> bodies = calls.take();
  const bool any = !bodies.empty();
  std::erase_if(model.functions, [](const Function& f) { return f.domain == kHalfnoteDomain; });
  model.functions.reserve(model.functions.size() + bodies.size());
  for (auto& [name, body] : bodies) model.functions.push_back(std::move(body));
  model.opsets[""] = kOpsetVersion;
  if (any) model.opsets[std::string(kHalfnoteDomain)] = 1;
}

namespace {

/// Steps, padding and casts of an earlier compilation would be taken for the user's own.
void refuse_compiled(const Model& model) {
  const auto stage = model.metadata.find("halfnote.stage");
  if (stage == model.metadata.end()) return;
  throw Error(ErrorCode::kModel, "the model was compiled by halfnote already")
      .at({model.source, {}, {}})
      .expected("a source model", "stage " + stage->second)
      .hint("compile the model that this was made from, or one that halfnote run exported");
}

/// A step that came with the model is run as it is: precision and optimizer are its own.
void refuse_foreign_step(const Model& model) {
  if (!has_foreign_step(model)) return;
  throw Error(ErrorCode::kUnsupported, "the model has a training step of its own (training_info)")
      .at({model.source, {}, {}})
      .expected("a forward model", counted(model.training.size(), "step"))
      .hint(
          "`halfnote run` trains it as it is; for mixed precision take training_info out, and "
          "compile the forward graph");
}

}  // namespace

CompileResult compile(Model model, const CompileOptions& options, EvaluateConstants evaluate) {
  refuse_compiled(model);
  refuse_foreign_step(model);
  name_input_dims(model.graph);
  check_dim_names(model.graph, options.dims);
  note_source_opset(model);
  CompileResult result;
  PassContext context{options, infer_node, std::move(evaluate), result.remarks, {}};
  result.pipeline = run_pipeline(model, context, compile_pipeline());
  for_each_graph(model, make_node_names_unique);
  attach_bodies(model);
  drop_unused_opsets(model);
  model.ir_version = kIrVersion;
  model.producer_name = "halfnote";
  model.producer_version = kVersion;
  model.metadata["halfnote.version"] = kVersion;
  model.metadata["halfnote.policy"] = describe(options);
  if (options.train.micro_batch > 0) {
    model.metadata["halfnote.micro_batch"] = std::to_string(options.train.micro_batch);
  }
  model.metadata["halfnote.stage"] = std::string(stage_name(result.pipeline.stage));
  result.model = std::move(model);
  return result;
}

}  // namespace halfnote
