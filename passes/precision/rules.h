// The user's precision rules, compiled: which nodes they force, and the errors for rules that
// overlap or hit nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/ir/model.h"
#include "passes/options.h"

namespace halfnote {

/// What a rule says of a node, and which rule it was.
struct Forced {
  bool low = false;  // allow: 16 bit; else f32
  std::string rule;  // for the node's reason: `policy: --fp32-node conv1`
};

class PrecisionRules {
 public:
  /// Throws Error(kUsage) for a pattern that is no RE2, an op in both lists, or an op that halfnote
  /// does not know.
  explicit PrecisionRules(const Policy& policy);
  ~PrecisionRules();

  /// The rule for a node: node rules (on its name, or the name of the forward node it was made for)
  /// before op rules. Throws Error(kUsage) for a node that both node lists name.
  std::optional<Forced> find(const Node& node);
  /// Throws Error(kUsage) for rules that hit no node of any graph so far, with the closest name.
  void check_all_matched(const Model& model) const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

}  // namespace halfnote
