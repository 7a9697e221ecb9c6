#include "passes/precision/rules.h"

#include <re2/re2.h>

#include <algorithm>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/exporters/module_names.h"

namespace halfnote {

struct PrecisionRules::Rule {
  bool low = false;
  bool by_node = false;
  std::string text;  // as given
  std::string flag;
  std::string name;   // what errors call it: the flag, or the key of the policy file
  std::string place;  // FILE:LINE of the latter
  std::unique_ptr<RE2> pattern;
  bool matched = false;

  /// `--fp32-op "Gemm"`, or `"precision.fp32_ops" "Gemm" (FILE:LINE)`.
  std::string full_text() const {
    return name + " \"" + text + "\"" + (place.empty() ? "" : " (" + place + ")");
  }

  bool hits(const Node& node) const {
    if (by_node) {
      const std::string in_file(source_name(node));
      return RE2::FullMatch(node.name, *pattern) ||
             (!node.origin.empty() && RE2::FullMatch(node.origin.str(), *pattern)) ||
             (!in_file.empty() && RE2::FullMatch(in_file, *pattern));
    }
    return text == node.op || text == node.domain + "." + node.op;
  }
};

namespace {

std::string suggestion(std::string_view near, const char* otherwise) {
  return near.empty() ? otherwise : "did you mean " + std::string(near) + "?";
}

void check_op_exists(const std::string& op, const std::string& name, const std::string& place) {
  std::vector<std::string> known;
  for (const OperatorRow& row : operator_rows()) {
    const std::string full = row.domain.empty()
                                 ? std::string(row.name)
                                 : std::string(row.domain) + "." + std::string(row.name);
    if (full == op || row.name == op) return;
    known.push_back(full);
  }
  throw Error(ErrorCode::kUsage, name + " names no operator")
      .at({place, {}, {}})
      .expected("an op type such as Softmax", "\"" + op + "\"")
      .hint(suggestion(closest(op, known), "`halfnote ops` lists the operators"));
}

}  // namespace

PrecisionRules::PrecisionRules(const Policy& policy) {
  const auto add = [&](const std::vector<std::string>& list, bool low, bool by_node,
                       const char* flag, const char* key) {
    for (const std::string& text : list) {
      const auto source = policy.sources.find({key, text});
      const bool from_file = source != policy.sources.end();
      Rule rule{
          low, by_node, text, flag, from_file ? "\"precision." + std::string(key) + "\"" : flag,
          {},  nullptr, false};
      if (from_file) rule.place = source->second;
      if (by_node) {
        rule.pattern = std::make_unique<RE2>(text, RE2::Quiet);
        if (!rule.pattern->ok()) {
          throw Error(ErrorCode::kUsage, rule.name + " is no regular expression")
              .at({rule.place, {}, {}})
              .expected("RE2 syntax", "\"" + text + "\" (" + rule.pattern->error() + ")");
        }
      } else {
        check_op_exists(text, rule.name, rule.place);
      }
      rules_.push_back(std::move(rule));
    }
  };
  add(policy.fp32_nodes, false, true, "--fp32-node", "fp32_nodes");
  add(policy.allow_nodes, true, true, "--allow-node", "allow_nodes");
  add(policy.fp32_ops, false, false, "--fp32-op", "fp32_ops");
  add(policy.allow_ops, true, false, "--allow-op", "allow_ops");
  for (const Rule& rule : rules_) {
    const auto opposite = std::ranges::find_if(rules_, [&](const Rule& other) {
      return other.text == rule.text && !other.by_node && !other.low;
    });
    if (rule.by_node || !rule.low || opposite == rules_.end()) continue;
    throw Error(ErrorCode::kUsage, "op " + rule.text + " stands in both lists")
        .at({rule.place.empty() ? opposite->place : rule.place, {}, {}})
        .expected("one of the two rules", opposite->full_text() + " and " + rule.full_text())
        .hint("take one of them away");
  }
}

PrecisionRules::~PrecisionRules() = default;

std::optional<Forced> PrecisionRules::find(const Node& node) {
  const Rule* found = nullptr;
  for (Rule& rule : rules_) {
    if (found != nullptr && found->by_node && !rule.by_node) {
      // A node rule wins; op rules that also hit still count as matched.
      rule.matched |= rule.hits(node);
      continue;
    }
    if (!rule.hits(node)) continue;
    rule.matched = true;
    if (found != nullptr && found->low != rule.low) {
      throw Error(ErrorCode::kUsage, "two precision rules contradict each other")
          .at({rule.place.empty() ? found->place : rule.place, node.name, op_name(node)})
          .expected("one of them", found->full_text() + " and " + rule.full_text())
          .hint("take one of the two rules away, or narrow it");
    }
    if (found == nullptr) found = &rule;
  }
  if (found == nullptr) return std::nullopt;
  return Forced{found->low, "policy: " + found->flag + " " + found->text};
}

constexpr const char* kNodes = "`halfnote inspect MODEL --nodes` lists nodes and their ops";
constexpr const char* kNodesAndTaken =
    "`halfnote inspect MODEL --nodes` lists nodes and their ops; some that the model spells out "
    "are one by now: norms (the pass find-norms), logarithms of probabilities (find-logs), Gelus "
    "(find-gelus)";
/// What find-norms, find-logs and find-gelus make of several nodes.
constexpr std::string_view kTakeIn[] = {"Gelu",       "GroupNormalization", "LayerNormalization",
                                        "LogSoftmax", "RMSNormalization",   "Softplus"};

void PrecisionRules::check_all_matched(const Model& model) const {
  std::vector<std::string> nodes;
  bool taken_in = false;
  const auto collect = [&](const Graph& graph) {
    for (NodeId id : graph.all_nodes()) {
      const Node& node = graph.node(id);
      nodes.push_back(node.name);
      taken_in |= std::ranges::find(kTakeIn, node.op.str()) != std::end(kTakeIn);
    }
  };
  for (const Rule& rule : rules_) {
    if (rule.matched) continue;
    if (nodes.empty()) {
      collect(model.graph);
      for (const TrainingStep& step : model.training) collect(step.graph);
    }
    // An operator that is known is no misspelt one.
    const std::string_view near = rule.by_node ? closest(rule.text, nodes) : std::string_view();
    throw Error(ErrorCode::kUsage, rule.name + " matches nothing in this model")
        .at({rule.place, {}, {}})
        .expected(rule.by_node ? "a pattern for the whole name of a node" : "an op of the graph",
                  "\"" + rule.text + "\"")
        .hint(suggestion(near, taken_in ? kNodesAndTaken : kNodes));
  }
}

}  // namespace halfnote
