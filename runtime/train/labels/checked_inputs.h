// Labels and indices that a graph reads from its inputs as they are: a device would find out that
// one is out of range when the step has changed the states, so they are looked at before it starts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/graph.h"
#include "runtime/train/labels/index_readers.h"
#include "runtime/train/labels/index_source.h"

namespace halfnote {

/// What a loss, a Gather or a GatherElements reads of the inputs, through nodes that move numbers
/// or widen them, where the number of classes or the dim is known.
class CheckedInput {
 public:
  CheckedInput(const Graph& graph, const IndexReader& reader, IndexSource source);

  /// The input that labels are, all of them in their order; nothing for indices, and for labels
  /// that are left out or put together.
  std::optional<size_t> labels_input() const;
  /// How many classes there are, or indices.
  int64_t size() const { return *reader_.size; }
  std::optional<int64_t> ignore_index() const { return reader_.ignore_index; }

  /// Finds out which elements are read of inputs of these shapes, those of the whole graph.
  void prepare(std::span<const Shape> shapes);
  /// Throws Error(kData), as the kernels of the CPU do, for the first number out of range. `fed`
  /// are all inputs of the graph. Allocates nothing for the shapes that it was prepared for last.
  void check(std::span<const Tensor> fed);

 private:
  void check_in_order(const Tensor& fed) const;
  void find_elements(std::span<const Tensor> fed);
  [[noreturn]] void refuse(int64_t value, int64_t position) const;

  IndexReader reader_;
  IndexSource source_;
  std::string node_, op_;
  std::vector<DType> types_;   // of the inputs on the way
  std::vector<Shape> shapes_;  // of the inputs on the way that elements_ is for
  ReadElements elements_;      // where they are not in order; without numbers
};

std::vector<CheckedInput> find_checked_inputs(const Graph& graph);

}  // namespace halfnote
