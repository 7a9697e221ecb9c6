// Weights that a step reads in 16 bits: which they are, and the pass of the device pipeline
// (runtime/core/device_ready.cc) that keeps their casts as state.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "passes/pass.h"

namespace halfnote {

/// A weight rounded to 16 bits. It follows from the weight: whoever writes the weight writes it
/// too, and no file holds it.
struct WeightCopy {
  std::string weight;
  std::string name;  // that no value of the model has
  DType dtype = DType::kUndefined;
  size_t room = 0;  // bytes of the largest Pad that puts rows of zeros behind it; 0: none does
};

/// The weights that the steps of a model cast to 16 bits, in the order in which they are first
/// read. Only those that nothing but optimizer nodes writes; a weight that is read in both 16-bit
/// types is copied in the one that comes first.
std::vector<WeightCopy> find_weight_copies(const Model& model);

/// States the copies for the pass.
void name_copies(Model& model, std::span<const WeightCopy> copies);

/// Lets the graph read the copies and its optimizer nodes write them; weight_copies.cc says how.
/// Without copies it does nothing.
bool keep_copies(Model& model, PassContext& context);

}  // namespace halfnote
