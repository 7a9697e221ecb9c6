// What a graph with a classification loss says about accuracy: which of its outputs holds the
// scores, which of its inputs the labels, and how the two lie against each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

struct Classification {
  std::string scores;          // name of the output, (N, C, d…) or (N, d…, C)
  size_t output = 0;           // its index
  std::string labels;          // name of the input, integers (N, d…)
  int64_t batch_axis = 0;      // of the labels, as the run feeds them
  bool class_last = false;     // of the two places of C, try the last one first
  bool probabilities = false;  // the scores are those of a Softmax, not of its operand
  std::optional<int64_t> ignore_index;
  /// The graph's loss is the mean over the labels, unweighted: it can be computed from the scores.
  bool plain_mean = false;
};

/// The elements of the result are those of operand 0, in the same order.
bool keeps_order(const Node& node);
/// SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss?
bool is_loss(const Node& node);

/// Looks for the one SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss of a graph (whose loss is
/// output 0) and follows its operands, through ops that only move numbers, to an output and an
/// input. Nothing if any of that is missing.
std::optional<Classification> find_classification(const Graph& graph);

/// The labels of a mean over labels, and the one that it leaves out.
struct CountedLabels {
  std::string name;  // of the input, integers
  Graph part;        // from that input to the part of it that the loss reads
  int64_t ignore_index = 0;
  size_t input = 0;  // of what feeds the graph
};

/// Of every such loss in the graph whose labels are an input or a part of one; `input` is left 0.
std::vector<CountedLabels> find_counted_labels(const Graph& graph);

/// How many labels count in what feeds the input?
int64_t count_labels(const CountedLabels& labels, const Tensor& fed);

}  // namespace halfnote
