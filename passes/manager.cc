#include "passes/manager.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "compiler/ir/hash.h"
#include "compiler/ir/text.h"
#include "compiler/ir/verify.h"
#include "passes/precision/scale_units.h"
#include "passes/unsupported.h"

namespace halfnote {
namespace {

constexpr std::string_view kStageNames[] = {"imported",           "canonical", "differentiated",
                                            "precision-assigned", "padded",    "device-ready"};

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Pass names in the options must exist.
void check_names(const CompileOptions& options, std::span<const PassRow> rows) {
  std::vector<std::string> asked = options.skip_passes;
  if (!options.stop_after.empty()) asked.push_back(options.stop_after);
  for (const std::string& name : options.dump_after) {
    if (name != "all") asked.push_back(name);
  }
  std::vector<std::string_view> known;
  for (const PassRow& row : rows) known.push_back(row.name);
  for (const std::string& name : asked) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string_view near = closest(name, known);
    throw Error(ErrorCode::kUsage, "unknown pass")
        .expected("a pass of the pipeline", "\"" + name + "\"")
        .hint(near.empty() ? "`halfnote ops --passes` lists them"
                           : "did you mean " + std::string(near) + "?");
  }
}

// Of a graph with more nodes or values than this, the fingerprint reads every 16th: reading 100,000
// of them after each of forty passes would be a fifth of a compilation.
constexpr uint32_t kReadWhole = 1000, kSampleStride = 16;

/// What a graph said at some time. `made` counts what it ever held: it tells that a pass made
/// something where the sample would not show it.
struct GraphMark {
  uint64_t content = 0, made = 0;

  explicit GraphMark(const Graph& graph)
      : content(history_hash(graph, is_large(graph) ? kSampleStride : 1)),
        made(uint64_t{graph.node_capacity()} << 32 | graph.value_count()) {}
  static bool is_large(const Graph& graph) {
    return graph.node_capacity() > kReadWhole || graph.value_count() > kReadWhole;
  }
  friend bool operator==(const GraphMark&, const GraphMark&) = default;
};

/// What each graph of a model said at some time, in their order. A model is hashed once a pass:
/// what it said after one pass is what it says before the next.
struct Fingerprint {
  std::vector<GraphMark> graphs;
  size_t functions = 0;

  explicit Fingerprint(const Model& model) : functions(model.functions.size()) {
    graphs.emplace_back(model.graph);
    for (const TrainingStep& step : model.training) {
      graphs.emplace_back(step.graph);
      graphs.emplace_back(step.initialization);
    }
  }
  /// A pass may make nodes and take them away again.
  bool same_content(const Fingerprint& other) const {
    return functions == other.functions &&
           std::equal(graphs.begin(), graphs.end(), other.graphs.begin(), other.graphs.end(),
                      [](const auto& a, const auto& b) { return a.content == b.content; });
  }
};

/// Verifies the graphs whose content is another than before, all of them if that shows in none. The
/// check of the units writes them down: `after` then holds what the model says with them.
void verify_changed(Model& model, const Fingerprint& before, Fingerprint& after, ErrorCode code) {
  std::map<const Graph*, size_t> place = {{&model.graph, 0}};
  for (size_t i = 0; i < model.training.size(); ++i) {
    place[&model.training[i].graph] = 1 + 2 * i;
    place[&model.training[i].initialization] = 2 + 2 * i;
  }
  const bool unseen = before.same_content(after);
  const auto changed = [&](const Graph& graph) {
    if (unseen) return true;
    const auto found = place.find(&graph);
    if (found == place.end()) return true;  // the body of a function
    const size_t index = found->second;
    return index >= before.graphs.size() || !(before.graphs[index] == after.graphs[index]);
  };
  verify(model, changed, {.code = code, .name_stride = kSampleStride});
  for (TrainingStep& step : model.training) {
    if (!changed(step.graph) || !check_scale_units(step.graph, code)) continue;
    after.graphs[place.at(&step.graph)] = GraphMark(step.graph);
  }
}

uint32_t count_nodes(const Model& model) {
  uint32_t count = model.graph.node_count();
  for (const TrainingStep& step : model.training) count += step.graph.node_count();
  return count;
}

bool run_row(const PassRow& row, Model& model, PassContext& context) {
  if (row.on_model != nullptr) return row.on_model(model, context);
  bool changed = false;
  if (row.scope == Scope::kEveryGraph) changed = row.on_graph(model.graph, context);
  for (TrainingStep& step : model.training) changed |= row.on_graph(step.graph, context);
  return changed;
}

void check_flag(const PassRow& row, bool changed, const Fingerprint& before,
                const Fingerprint& after) {
  if (changed || before.same_content(after)) return;
  throw Error(ErrorCode::kInternal,
              "pass " + std::string(row.name) + " changed the model but said it did not");
}

/// What stands in the bodies of If, Loop and Scan, by graph and region.
using Bodies = std::map<std::pair<std::string, uint32_t>, uint64_t>;

void add_bodies(const Graph& graph, const std::string& name, Bodies& bodies) {
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    const NodeId owner = graph.region_owner(RegionId{i});
    if (!owner.valid() || !graph.node(owner).alive) continue;
    uint64_t hash = 0;
    for (NodeId id : graph.nodes(RegionId{i})) {
      const Node& node = graph.node(id);
      hash = hash_mix(hash, hash_text(node.op));
      hash = hash_mix(hash, hash_text(node.domain));
      hash = hash_mix(hash, graph.inputs(id).size() * 64 + graph.outputs(id).size());
      hash = hash_mix(hash, node.attributes.size());
    }
    bodies.emplace(std::pair(name, i), hash);
  }
}

Bodies bodies_of(const Model& model) {
  Bodies bodies;
  add_bodies(model.graph, "graph", bodies);
  for (const TrainingStep& step : model.training) add_bodies(step.graph, step.name, bodies);
  return bodies;
}

/// A body that is still there must be as it was, unless the pass enters bodies.
void check_bodies(const PassRow& row, const Bodies& before, const Bodies& after) {
  for (const auto& [where, hash] : before) {
    const auto found = after.find(where);
    if (found == after.end() || found->second == hash) continue;
    throw Error(ErrorCode::kInternal, "pass " + std::string(row.name) +
                                          " changed a body of control flow, which it is not "
                                          "said to enter")
        .at({where.first, {}, {}});
  }
}

void dump(const Model& model, const PassRow& row, size_t index, const CompileOptions& options) {
  std::string number = std::to_string(index);
  number.insert(0, number.size() < 2 ? 1 : 0, '0');
  const std::filesystem::path file = std::filesystem::path(options.dump_folder) /
                                     (number + "-" + std::string(row.name) + ".onnxtxt");
  std::error_code error;
  std::filesystem::create_directories(options.dump_folder, error);  // the write below says why not
  const std::string text = print(model, {.elide_above = 64});
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  write_file_atomic(file, std::span(&bytes, 1));
}

using Opsets = std::map<std::string, int64_t>;

/// Says where an error happened. A list of nodes tells the op-sets that the file had.
void complete(Error& error, const PassRow& row, const Model& model, const Opsets& imported) {
  if (auto* list = dynamic_cast<UnsupportedError*>(&error)) list->set_opsets(imported);
  std::move(error.within({model.source, {}, {}})).in_pass(row.name);
}

/// `said` is what the model says before the pass, and then what it says after it.
PassRecord run_one(const PassRow& row, Model& model, PassContext& context, Fingerprint& said,
                   const Opsets& imported) {
  PassRecord record;
  record.name = row.name;
  record.nodes_before = count_nodes(model);
  const Bodies bodies = row.enters_subgraphs ? Bodies{} : bodies_of(model);
  const auto start = std::chrono::steady_clock::now();
  context.pass = row.name;
  try {
    record.changed = run_row(row, model, context);
    Fingerprint after(model);
    check_flag(row, record.changed, said, after);
    if (record.changed) verify_changed(model, said, after, row.invalid_is);
    said = std::move(after);
  } catch (Error& error) {
    complete(error, row, model, imported);
    throw;  // as the kind of Error that it is
  }
  record.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  record.nodes_after = count_nodes(model);
  if (!row.enters_subgraphs) check_bodies(row, bodies, bodies_of(model));
  return record;
}

}  // namespace

std::string_view stage_name(Stage stage) { return kStageNames[static_cast<size_t>(stage)]; }

PipelineResult run_pipeline(Model& model, PassContext& context, std::span<const PassRow> rows) {
  const CompileOptions& options = context.options;
  check_names(options, rows);
  PipelineResult result;
  Fingerprint said(model);
  const Opsets imported = model.opsets;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PassRow& row = rows[i];
    if (!contains(options.skip_passes, row.name)) {
      if (row.needs > result.stage) {
        throw Error(ErrorCode::kInternal, "pass " + std::string(row.name) + " needs stage " +
                                              std::string(stage_name(row.needs)))
            .expected(std::string(stage_name(row.needs)), std::string(stage_name(result.stage)));
      }
      result.records.push_back(run_one(row, model, context, said, imported));
    }
    result.stage = std::max(result.stage, row.gives);
    if (contains(options.dump_after, row.name) || contains(options.dump_after, "all")) {
      dump(model, row, i, options);
    }
    if (options.stop_after == row.name) break;
  }
  verify(model);  // what the samples of large graphs did not show
  return result;
}

}  // namespace halfnote
