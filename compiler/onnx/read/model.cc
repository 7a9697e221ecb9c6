// The checks that need the whole model: op-sets are known, every domain is imported, functions do
// not recur.
#include "compiler/onnx/read/model.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "compiler/onnx/read/declarations.h"
#include "compiler/onnx/read/graph.h"
#include "compiler/onnx/read/training.h"
#include "compiler/onnx/schema.h"

namespace halfnote::proto {
namespace {

constexpr int64_t kOldestIrVersion = 3;

void check_ir_version(const onnx::ModelProto& proto) {
  const int64_t version = proto.ir_version();
  if (!proto.has_ir_version()) {
    const bool empty = proto.ByteSizeLong() == 0;
    throw Error(ErrorCode::kModel, std::string("not a valid ONNX file: it ") +
                                       (empty ? "is empty" : "has no IR version"));
  }
  if (version >= kOldestIrVersion && version <= onnx::Version::IR_VERSION) return;
  throw Error(ErrorCode::kUnsupported, "the IR version of the model is not supported")
      .expected(std::to_string(kOldestIrVersion) + " to " +
                    std::to_string(static_cast<int>(onnx::Version::IR_VERSION)),
                std::to_string(version));
}

void check_opset(const std::string& domain, int64_t version) {
  const int64_t newest = newest_opset(domain);
  constexpr int64_t oldest = 1;
  if (version >= oldest && (newest == 0 || version <= newest)) return;
  const std::string name = domain.empty() ? "ai.onnx" : domain;
  throw Error(ErrorCode::kUnsupported, "the op-set version of \"" + name + "\" is not supported")
      .expected(std::to_string(oldest) + " to " + std::to_string(newest), std::to_string(version))
      .hint(version < oldest ? "convert the model with ONNX's version converter first" : "");
}

template <class Imports>
std::map<std::string, int64_t> read_opsets(const Imports& imports) {
  std::map<std::string, int64_t> opsets;
  for (const auto& import : imports) {
    const std::string domain = normalized_domain(import.domain());
    check_opset(domain, import.version());
    if (!opsets.emplace(domain, import.version()).second) {
      throw Error(ErrorCode::kModel, "the op-set of \"" + domain + "\" is imported twice");
    }
  }
  return opsets;
}

using Imports = std::map<std::string, int64_t>;

/// Domains of functions may be left out (some exporters do); all others must be imported.
void check_imports(const Graph& graph, Imports& opsets, const std::set<std::string>& own) {
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    if (opsets.contains(node.domain)) continue;
    if (own.contains(node.domain)) {
      opsets.emplace(node.domain, 1);
      continue;
    }
    const std::string domain = node.domain.empty() ? "ai.onnx" : node.domain;
    throw Error(ErrorCode::kModel, "the model does not import the op-set of \"" + domain + "\"")
        .at({.node = node.name, .op = node.op});
  }
}

using FunctionKey = std::tuple<std::string, std::string, std::string>;
using FunctionIndex = std::map<FunctionKey, size_t>;

FunctionIndex index_functions(const Model& model) {
  FunctionIndex index;
  for (size_t i = 0; i < model.functions.size(); ++i) {
    const Function& function = model.functions[i];
    if (index.emplace(FunctionKey{function.domain, function.name, function.overload}, i).second) {
      continue;
    }
    throw Error(ErrorCode::kModel,
                "function \"" + function.domain + "." + function.name + "\" is defined twice");
  }
  return index;
}

/// Indices of the functions that a graph calls, once a call; everything else counts as one node.
std::vector<size_t> calls_of(const Graph& graph, const FunctionIndex& index, uint64_t& other) {
  std::vector<size_t> calls;
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    const auto found = index.find({node.domain, node.op, node.overload});
    if (found == index.end()) {
      ++other;
    } else {
      calls.push_back(found->second);
    }
  }
  return calls;
}

/// A file holds its own nodes, but functions that call functions are a few bytes for as many nodes
/// as one likes: all calls together may come to this share of the limit. 40,000 nodes make a
/// training graph of 160,000, in 2 s of processor time and 300 MB. Or to some times the nodes that
/// stand in the file: a large model made of layers.
constexpr uint64_t kShareOfCalls = 25, kTimesWritten = 4;
constexpr uint64_t kFewNodes = 1000;  // calls may come to these under any limit that holds in all

uint64_t saturating_add(uint64_t a, uint64_t b) { return a + b < a ? ~uint64_t{0} : a + b; }

[[noreturn]] void report_recursion(const Model& model, const std::vector<uint64_t>& waiting) {
  std::string names;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] == 0) continue;
    names += (names.empty() ? "\"" : ", \"") + model.functions[i].name + "\"";
    if (names.size() > 200) break;
  }
  throw Error(ErrorCode::kModel, "functions call each other in a circle")
      .expected("functions without recursion", names);
}

/// What a model is when its calls are expanded: nodes that stay, nodes of functions called; and all
/// nodes that stand in the file.
struct NodeCounts {
  uint64_t own = 0, called = 0, written = 0;
};

void check_expanded(const NodeCounts& nodes, uint64_t limit) {
  const auto& [own, called, written] = nodes;
  const uint64_t total = saturating_add(own, called);
  const uint64_t most = std::max({limit / kShareOfCalls, kFewNodes, kTimesWritten * written});
  const bool many = called > most;
  if (!many && total <= limit) return;
  throw Error(ErrorCode::kModel,
              "the number of nodes with all functions expanded is over the limit")
      .expected(many ? "at most " + std::to_string(most) + " by calls of functions"
                     : "at most " + std::to_string(limit),
                std::to_string(many ? called : total))
      .hint(
          "--max-nodes raises it; calls may come to a twenty-fifth of that, or to four times the "
          "nodes of the file");
}

}  // namespace

void check_functions(const Model& model, uint64_t limit) {
  if (model.functions.empty()) return;
  const FunctionIndex index = index_functions(model);
  const size_t count = model.functions.size();
  std::vector<uint64_t> size(count, 0), waiting(count, 0);
  std::vector<std::vector<size_t>> callers(count);
  std::vector<size_t> ready;
  NodeCounts nodes;
  for (size_t i = 0; i < count; ++i) {
    nodes.written += model.functions[i].body.node_count();
    for (size_t callee : calls_of(model.functions[i].body, index, size[i])) {
      callers[callee].push_back(i);
      ++waiting[i];
    }
    if (waiting[i] == 0) ready.push_back(i);
  }
  // Our own functions stay calls: a training step has one for each parameter.
  const auto nodes_of = [&](size_t callee) {
    return model.functions[callee].domain == kHalfnoteDomain ? 1 : size[callee];
  };
  size_t done = 0;
  for (; !ready.empty(); ++done) {
    const size_t callee = ready.back();
    ready.pop_back();
    for (size_t caller : callers[callee]) {
      size[caller] = saturating_add(size[caller], nodes_of(callee));
      if (--waiting[caller] == 0) ready.push_back(caller);
    }
  }
  if (done != count) report_recursion(model, waiting);

  const auto add = [&](const Graph& graph) {
    nodes.written += graph.node_count();
    for (size_t callee : calls_of(graph, index, nodes.own)) {
      const bool stays = model.functions[callee].domain == kHalfnoteDomain;
      uint64_t& sum = stays ? nodes.own : nodes.called;
      sum = saturating_add(sum, nodes_of(callee));
    }
  };
  add(model.graph);
  for (const TrainingStep& step : model.training) add(step.graph);
  check_expanded(nodes, limit);
}

Model read_model(const onnx::ModelProto& proto, TensorSource& source) {
  check_ir_version(proto);
  if (!proto.has_graph()) {
    throw Error(ErrorCode::kModel, "not a valid ONNX file: it has no graph");
  }
  Model model;
  model.ir_version = proto.ir_version();
  model.producer_name = proto.producer_name();
  model.producer_version = proto.producer_version();
  model.domain = proto.domain();
  model.doc = proto.doc_string();
  model.model_version = proto.model_version();
  model.opsets = read_opsets(proto.opset_import());
  for (const auto& entry : proto.metadata_props()) model.metadata[entry.key()] = entry.value();
  std::set<std::string> own;
  model.functions.reserve(static_cast<size_t>(proto.functions_size()));
  for (const auto& function : proto.functions()) {
    model.functions.push_back(read_function(function, source));
    own.insert(model.functions.back().domain);
  }
  read_graph(proto.graph(), source, model.graph);
  read_declarations(proto.graph(), model);
  read_training(proto, source, model);
  check_imports(model.graph, model.opsets, own);
  for (const TrainingStep& step : model.training) check_imports(step.graph, model.opsets, own);
  for (Function& function : model.functions) {
    for (const auto& [domain, version] : function.opsets) check_opset(domain, version);
    check_imports(function.body, function.opsets, own);
  }
  check_functions(model, source.limits.nodes);
  return model;
}

}  // namespace halfnote::proto
