// The contract of a pass: one function that rewrites a graph (or the model) and says whether it
// changed it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "passes/options.h"

namespace halfnote {

/// Runs one node on constant operands; given by the runtime, which has kernels. Throws
/// Error(kUnsupported) if it cannot.
using EvaluateConstants =
    std::function<std::vector<Tensor>(const Graph&, NodeId, const std::vector<Tensor>&)>;

/// A change that a pass could make: nodes as they are and as they would be, each a graph of its
/// own. Both make the same results of the same inputs, those and these in one order.
struct Exchange {
  const Graph& now;
  const Graph& instead;
  /// Numbers of an input and a result that are one state, before and behind: one may lie where the
  /// other does.
  std::vector<std::pair<size_t, size_t>> states;
};
/// Is what would be there faster on the device at hand? Given by the runtime, which can measure.
using Pays = std::function<bool(const Exchange& exchange)>;

/// Has the device at hand kernels for the operator at all? Given by the runtime.
using HasKernels = std::function<bool(std::string_view domain, std::string_view op)>;

/// Something the user should know: what was done beyond the ordinary, with the place.
struct Remark {
  enum class Level : uint8_t { kNote, kWarning };
  Level level = Level::kNote;
  std::string pass;
  std::string where;  // node or value name
  std::string text;
};

/// The note on what is drawn by --seed; a file that holds none, nor dropout, has no use for it.
inline constexpr std::string_view kDrawnBySeed = "is drawn by --seed";

struct PassContext {
  const CompileOptions& options;
  InferNode infer;
  EvaluateConstants evaluate;  // may be empty: nothing is folded then
  std::vector<Remark>& remarks;
  std::string_view pass;        // the running one, set by the manager
  Pays pays = {};               // may be empty: what must be measured to pay stays as it is
  HasKernels has_kernels = {};  // of the device passes

  void note(std::string where, std::string text) {
    remarks.push_back({Remark::Level::kNote, std::string(pass), std::move(where), std::move(text)});
  }
  void warn(std::string where, std::string text) {
    remarks.push_back(
        {Remark::Level::kWarning, std::string(pass), std::move(where), std::move(text)});
  }
};

/// How far a model has come. A pass needs one stage and may give the next.
enum class Stage : uint8_t {
  kImported,
  kCanonical,
  kDifferentiated,
  kPrecisionAssigned,
  kPadded,
  kDeviceReady
};
std::string_view stage_name(Stage stage);

/// Which graphs of the model a graph pass visits.
enum class Scope : uint8_t { kEveryGraph, kTrainingSteps };

using GraphPass = bool (*)(Graph&, PassContext&);
using ModelPass = bool (*)(Model&, PassContext&);

struct PassRow {
  std::string_view name;
  GraphPass on_graph = nullptr;  // exactly one of the two is set
  ModelPass on_model = nullptr;
  Scope scope = Scope::kEveryGraph;
  Stage needs = Stage::kImported;
  Stage gives = Stage::kImported;
  /// Does it rewrite the bodies of If, Loop and Scan? If not, it must leave those regions as they
  /// are.
  bool enters_subgraphs = false;
  std::string_view reason;  // why it is there, one line
  /// Of a graph that is not valid after it. kModel: it only brings out what the file says.
  ErrorCode invalid_is = ErrorCode::kInternal;
};

/// What the manager measured of one run.
struct PassRecord {
  std::string name;
  bool changed = false;
  double milliseconds = 0;
  uint32_t nodes_before = 0, nodes_after = 0;
};

}  // namespace halfnote
