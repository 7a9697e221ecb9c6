// What a file tells of its initializers: which are parameters, and which are not.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/ir/model.h"

namespace halfnote {

enum class Declared : uint8_t { kNothing, kParameter, kBuffer, kConstant };

class Declarations {
 public:
  explicit Declarations(const Model& model);

  /// What the exporter wrote of the initializer (kParametersKey, kBuffersKey,
  /// kConstantsKey).
  Declared of(const std::string& name) const;
  /// Does the name alone say that a scalar is a weight? It does where the exporter gives constants
  /// other names, or where it is a path as those of other weights are. Asked only of files that
  /// declare nothing.
  bool names_weight(ValueId scalar) const;
  /// The parameters that the exporter computed an initializer from, with commas; empty where it
  /// does not say.
  std::string sources_of(const std::string& name) const;
  /// Parameters that the exporter lists, and of which nothing is in the file.
  const std::set<std::string>& lost() const { return lost_; }
  /// Is it a mask that the exporter folded? It has a number for a name, and holds what a mask
  /// holds: 0, 1, and what hides (-inf, -1e9, any number of -1e4 and below), a table of 0 and 1
  /// that is read element by element, or zeros for all heads that are added to scores of an
  /// attention. Asked of what the file does not declare.
  bool is_mask(ValueId table) const;
  /// Does the file say of its parameters that they are?
  bool any() const { return !parameters_.empty(); }
  /// Does an exporter write all weights of such a model as initializers?
  bool stores_weights() const { return stores_weights_; }

 private:
  const Graph& graph_;
  std::set<std::string> parameters_, buffers_, constants_, lost_;
  std::map<std::string, std::string> sources_;  // initializer -> parameters
  bool newer_exporter_ = false;
  bool by_modules_ = false;  // PyTorch's older exporter: weights, and only they, have module paths
  bool by_paths_ = false;    // weights have paths with dots
  bool stores_weights_ = false;
};

/// `a, b, c (7 in all)`.
std::string counted(const std::vector<std::string>& names);

/// Was the model written by PyTorch's newer exporter? Its nodes name their modules in metadata.
bool is_newer_export(const Graph& graph);

}  // namespace halfnote
