#include "runtime/train/plain_model.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/walk.h"
#include "compiler/onnx/metadata.h"
#include "passes/canonical/lower_opset.h"
#include "passes/device/emit_step.h"
#include "passes/precision/to_f32.h"

namespace halfnote {
namespace {

/// Takes out what halfnote notes in a model and no other tool reads.
void drop_notes(Graph& graph) {
  for (NodeId id : graph.all_nodes()) {
    Node& node = graph.node(id);
    node.role = Role::kForward;
    node.precision = {};
    node.origin = {};
    node.metadata.erase_if([](const auto& e) { return e.first.starts_with("halfnote."); });
  }
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    graph.value(ValueId{i}).trainable = false;
    graph.value(ValueId{i}).scale_power = 0;
  }
}

using Notes = std::map<std::string, std::string>;

std::set<std::string> listed(const Notes& notes, std::string_view key) {
  const auto found = notes.find(std::string(key));
  if (found == notes.end()) return {};
  const std::vector<std::string> names = split_names(found->second);
  return {names.begin(), names.end()};
}

/// Lists the floats of the graph as what they are: parameters are those that were trained, that
/// the exporter declared, or that the settings left alone; constants are all others but statistics
/// and declared buffers, such as masks and tables that were folded.
void declare(Model& model, const Notes& notes, const StateStore& states) {
  std::set<std::string> parameters = listed(notes, kParametersKey);
  parameters.merge(listed(notes, kFrozenKey));
  const std::set<std::string> buffers = listed(notes, kBuffersKey);
  std::vector<std::string> trained, constants, kept;
  for (ValueId id : model.graph.initializers()) {
    const Value& value = model.graph.value(id);
    if (!is_float(value.type.dtype)) continue;
    const StateEntry* state = states.find(value.name);
    const bool weight = state != nullptr && state->kind == StateKind::kWeight;
    if (weight || parameters.contains(value.name)) {
      trained.push_back(value.name);
    } else if (buffers.contains(value.name)) {
      kept.push_back(value.name);
    } else if (state == nullptr) {
      constants.push_back(value.name);
    }
  }
  const auto list = [&](std::string_view key, const std::vector<std::string>& names) {
    if (!names.empty()) model.metadata[std::string(key)] = join_names(names);
  };
  list(kParametersKey, trained);
  list(kBuffersKey, kept);
  list(kConstantsKey, constants);
}

}  // namespace

void make_plain(Model& model, const StateStore& states) {
  to_f32(model.graph);
  inline_bodies(model.graph);
  drop_notes(model.graph);
  model.opsets = {{"", kOpsetVersion}};
  model.functions.clear();
  lower_opset(model, source_opset(model));
  erase_dead(model.graph, [](const Graph&, NodeId) { return true; });
  erase_unused_initializers(model.graph);
  const Notes notes = model.metadata;
  std::erase_if(model.metadata, [](const auto& e) { return e.first.starts_with("halfnote."); });
  declare(model, notes, states);
  const auto dropouts = notes.find(std::string(kDropoutsKey));
  if (dropouts != notes.end()) model.metadata.insert(*dropouts);
}

}  // namespace halfnote
