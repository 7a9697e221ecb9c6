// What a compilation did, for people and for scripts: per node its type, class and reason; casts
// and their cost.
#pragma once

#include <string>
#include <vector>

#include "passes/compile.h"

namespace halfnote {

struct NodeReport {
  std::string graph, name, op, role, precision_class, dtype, reason, origin;
};

struct CastReport {
  std::string graph, value, from, to;
  std::vector<std::string> readers;  // nodes that read the result
  int64_t bytes = -1;                // read and written per run; -1 where a dim is symbolic
  std::string symbolic;              // then: `150528·N`; `?` where the rank is unknown
};

struct Report {
  std::string source, policy;
  std::vector<NodeReport> nodes;
  std::vector<CastReport> casts;
  std::vector<Remark> remarks;
  std::vector<PassRecord> passes;
  int64_t parameters = 0, parameter_tensors = 0;
  double contraction_flops = 0,
         low_contraction_flops = 0;  // of the training step, symbolic dims counted as 1
  /// Contractions of the training step that stayed in FP32, by reason: FLOPs, nodes, the first.
  struct Blocker {
    std::string reason;
    double flops = 0;
    int64_t nodes = 0;
    std::string first;
  };
  std::vector<Blocker> blockers;  // the largest first
};

Report make_report(const CompileResult& result);
/// The same for a model that was imported.
Report make_report(const Model& model);
/// The name of a node that reads a value; of one that only prepares for another (a Pad to multiples
/// of 8) the name of that.
std::string reader_name(const Graph& graph, NodeId reader);

/// A few lines for the terminal: nodes per type, casts, share of contraction FLOPs in 16 bit, loud
/// where nothing was lowered.
std::string report_summary(const Report& report);
/// What to say aloud (stderr) where 16 bits were asked for and less than half of the contraction
/// FLOPs got them: how much, and the blockers. Empty where all is well.
std::string conversion_warning(const Report& report);
/// Everything, keys in fixed order.
std::string report_json(const Report& report);
/// A table of the nodes (name, op, type, reason).
std::string report_table(const Report& report);

}  // namespace halfnote
