// Which dim of each input of an artifact counts the samples, and how many there are in a batch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/run_setup.h"
#include "compiler/ir/model.h"
#include "runtime/train/data/route.h"

namespace halfnote::cli {

/// The inputs of an artifact with their symbolic dims bound.
struct BoundInputs {
  int64_t batch = 0;                    // 1 if every input is whole
  bool batch_is_fixed = false;          // by the artifact
  std::map<std::string, int64_t> dims;  // every symbol that is bound
  std::vector<ModelInput> inputs;       // dims that stay symbolic take the data's sizes
  std::string note;                     // which of two symbols was taken for the batch; or empty
};

/// Binds the batch and the dims of --dim. The batch is the first dim of an input that is not whole,
/// unless --batch-axis, or the symbol of another input's batch, says that it is a later one, as in
/// recurrent models that take time first. Throws Error(kUsage) for a batch that a fixed artifact
/// does not take, for contradictions, for names that do not exist, and where two symbols could be
/// the batch.
BoundInputs bind_inputs(const Model& model, const RunArguments& arguments);

}  // namespace halfnote::cli
