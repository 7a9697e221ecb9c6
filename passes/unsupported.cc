#include "passes/unsupported.h"

#include <algorithm>
#include <vector>

#include "base/text/printable.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

constexpr size_t kMostNames = 50;

std::string joined(const std::vector<std::string>& names) {
  const size_t left_out = names.size() > kMostNames ? names.size() - kMostNames : 0;
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : ", ";
    if (left_out > 0 && i == kMostNames / 2) {
      text += "… " + std::to_string(left_out) + " more …, ";
      i += left_out;
    }
    text += names[i];
  }
  return text;
}

/// The reason of an op that was written in others: its own, or that of the part.
std::string why_of_whole(const Graph& graph, NodeId part, const NodeInModel& whole,
                         const std::string& why) {
  const OperatorRow* row = find_operator(whole.domain, whole.op);
  if (row != nullptr && row->no_gradient_here != nullptr) {
    const std::string own = row->no_gradient_here(graph, part);
    if (!own.empty()) return own;
  }
  return "written with " + graph.node(part).op + ": " + why;
}

struct Form {
  std::string_view op, instead;
};

// Ops that models are exported with and that have no row, or no gradient.
constexpr Form kNearestForms[] = {
    {"Compress", "Mul or Where with a mask"},
    {"Det", "of triangular matrices ReduceProd of the diagonal"},
    {"FlexAttention", "Attention"},
    {"Loop",
     "a bound on its trips (M) that is a number or follows from shapes; where its condition is "
     "computed, carried values of fixed shapes and no collected results"},
    {"MaxRoiPool", "RoiAlign"},
    {"NonMaxSuppression", "none: take it out of the model that is trained"},
    {"NonZero", "Where or Mul with the mask whose places it lists"},
    {"Unique", "none: take it out of the model that is trained"},
    {"com.microsoft.Attention", "Attention of op-set 23"},
    {"com.microsoft.EmbedLayerNormalization", "Gather, Add and LayerNormalization"},
    {"com.microsoft.FusedConv", "Conv and the activation"},
    {"com.microsoft.GroupQueryAttention", "Attention of op-set 23"},
    {"com.microsoft.MultiHeadAttention", "Attention of op-set 23"},
    {"com.microsoft.RotaryEmbedding", "RotaryEmbedding of op-set 23"},
    {"com.microsoft.SkipLayerNormalization", "Add and LayerNormalization"},
    {"com.microsoft.SkipSimplifiedLayerNormalization", "Add and RMSNormalization"},
};

/// ` (then_branch of b)` for a node in a body.
std::string body_text(const Graph& graph, RegionId region) {
  const NodeId owner = graph.region_owner(region);
  if (!owner.valid()) return "";
  for (const auto& [key, attribute] : graph.node(owner).attributes) {
    const auto* body = std::get_if<RegionId>(&attribute);
    if (body != nullptr && *body == region) return " (" + key + " of " + graph.label(owner) + ")";
  }
  return "";
}

}  // namespace

std::string nearest_form(std::string_view op) {
  for (const Form& form : kNearestForms) {
    if (form.op == op) return std::string(form.instead);
  }
  if (find_operator("", op) != nullptr) return "";
  const size_t dot = op.rfind('.');
  const std::string_view name = dot == std::string_view::npos ? op : op.substr(dot + 1);
  std::vector<std::string_view> known;
  for (const OperatorRow& row : operator_rows()) {
    if (row.domain.empty() && (row.gradient != nullptr || row.lower != nullptr)) {
      known.push_back(row.name);
    }
  }
  return std::string(closest(name, known));
}

NodeInModel as_in_model(const Graph& graph, NodeId node) {
  const Node& data = graph.node(node);
  for (const auto& [key, whole] : data.metadata) {
    if (key == kLoweredFromKey && !data.origin.empty()) return {"", whole, data.origin, true};
  }
  return {data.domain, op_name(data), graph.label(node) + body_text(graph, data.region), false};
}

void UnsupportedOps::add(const Graph& graph, NodeId node, const std::string& why,
                         std::string instead) {
  const NodeInModel told = as_in_model(graph, node);
  if (told.is_part && holds(told.op, told.name)) return;  // of one op one part will do
  Nodes& nodes = rows_[{told.op, told.is_part ? why_of_whole(graph, node, told, why) : why}];
  nodes.domain = told.domain;
  nodes.instead = std::move(instead);
  if (nodes.seen.insert(told.name).second) nodes.names.push_back(told.name);
}

void UnsupportedOps::add_new(const UnsupportedOps& more,
                             std::initializer_list<const UnsupportedOps*> known) {
  for (const auto& [row, nodes] : more.rows_) {
    for (const std::string& name : nodes.names) {
      const auto holds_it = [&, op = row.first](const UnsupportedOps* one) {
        return one->holds(op, name);
      };
      if (std::any_of(known.begin(), known.end(), holds_it)) continue;
      Nodes& own = rows_[row];
      own.domain = nodes.domain;
      own.instead = nodes.instead;
      if (own.seen.insert(name).second) own.names.push_back(name);
    }
  }
}

std::string counted(size_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

bool UnsupportedOps::contains(const Graph& graph, NodeId node) const {
  const NodeInModel told = as_in_model(graph, node);
  return holds(told.op, told.name);
}

bool UnsupportedOps::holds(const std::string& op, const std::string& name) const {
  for (auto row = rows_.lower_bound({op, {}}); row != rows_.end(); ++row) {
    if (row->first.first != op) break;
    if (row->second.seen.contains(name)) return true;
  }
  return false;
}

size_t UnsupportedOps::op_count() const {
  std::set<std::string> ops;
  for (const auto& [row, nodes] : rows_) ops.insert(row.first);
  return ops.size();
}

int64_t UnsupportedOps::opset_of(const std::string& domain) const {
  const auto found = opsets_.find(domain);
  if (found != opsets_.end()) return found->second;
  return domain.empty() ? kOpsetVersion : 1;
}

bool UnsupportedOps::shortened() const {
  return std::any_of(rows_.begin(), rows_.end(),
                     [](const auto& row) { return row.second.names.size() > kMostNames; });
}

std::vector<RefusedNodes> UnsupportedOps::refused() const {
  std::vector<RefusedNodes> all;
  for (const auto& [row, nodes] : rows_) {
    RefusedNodes told{row.first, opset_of(nodes.domain), row.second, nodes.instead, {}};
    if (told.instead.empty()) told.instead = nearest_form(row.first);
    for (const std::string& name : nodes.names) told.nodes.push_back(printable(name));
    all.push_back(std::move(told));
  }
  return all;
}

std::string UnsupportedOps::list(Advice advice) const {
  std::string text;
  for (const RefusedNodes& row : refused()) {
    const bool told = advice == Advice::kForms && !row.instead.empty();
    text += (text.empty() ? "" : "; ") + printable(row.op) + " (op-set " +
            std::to_string(row.opset) + "; " + counted(row.nodes.size(), "node") + "; " + row.why +
            (told ? "; instead: " + row.instead : "") + "): " + joined(row.nodes);
  }
  return text;
}

UnsupportedError::UnsupportedError(std::string what, UnsupportedOps ops, std::string hint)
    : Error(ErrorCode::kUnsupported, ""),
      head_(std::move(what)),
      ops_(std::move(ops)),
      advice_(std::move(hint)) {
  render();
}

void UnsupportedError::set_opsets(const std::map<std::string, int64_t>& opsets) {
  ops_.set_opsets(opsets);
  render();
}

void UnsupportedError::render() {
  const Place where = place();
  static_cast<Error&>(*this) =
      Error(ErrorCode::kUnsupported, head_ + ": " + ops_.list_with_forms())
          .at(where)
          .hint(advice_ + (ops_.shortened() ? "; --json-errors names all nodes" : ""));
}

}  // namespace halfnote
