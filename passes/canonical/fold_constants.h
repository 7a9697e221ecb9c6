// Folding of nodes one by one: used by the pass and by those that make nodes from constants as they
// go.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "passes/pass.h"

namespace halfnote {

/// What Shape or Size gives, which needs the type of its operand only; nothing for open dims, and
/// for all other nodes.
std::optional<Tensor> dims_of_type(const Graph& graph, NodeId node);

/// What one run of a pass over a graph folds. All results together may take as many bytes as the
/// constants that were there when it began (kMostOfConstants of them), and kMostFolded more;
/// results of up to kSmallFolded bytes do not count. A node over that stays.
class Folder {
 public:
  static constexpr size_t kMostFolded = size_t{64} << 20;
  static constexpr size_t kMostOfConstants = size_t{1} << 30;
  static constexpr size_t kSmallFolded = 1024;

  Folder(Graph& graph, PassContext& context);

  /// Infers the node and, where all it reads is constant, computes it: its results become
  /// initializers of their names and the node goes. Says whether it did.
  bool visit(NodeId node);

 private:
  /// What is known of a tensor into which open dims went: the tensor with one set of numbers in
  /// their places, and with another. What agrees is known.
  struct Partly {
    Tensor one, other;
  };

  bool fold_shape(NodeId id);
  bool fold_eye(NodeId id);
  bool list_open_dims(NodeId id);
  bool fold_movement(NodeId id);
  bool keep_known(NodeId id, std::vector<Tensor> one, std::vector<Tensor> other);
  bool fold(NodeId id);
  bool pass_through(NodeId id);
  bool stays_small(NodeId id, size_t operand_bytes) const;
  Error of_the_model(const Error& error, NodeId id) const;
  bool gives_a_body(NodeId id) const;
  bool gives_a_state(NodeId id) const;
  bool reads_only_made(NodeId id) const;
  void replace(NodeId id, std::vector<Tensor> values);
  /// `made`: of what passes made (Value::made).
  void replace(ValueId output, Tensor value, bool made);

  Graph& graph_;
  PassContext& context_;
  std::map<ValueId, Partly> partly_;
  std::map<std::string, int64_t> symbols_;  // the number of each open dim, from 0
  size_t left_ = kMostFolded;
};

}  // namespace halfnote
