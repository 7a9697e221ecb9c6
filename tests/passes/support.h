// What the tests of passes share: models from text, one pass or a part of the pipeline on them, and
// both sides of a pass on the reference kernels.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "passes/manager.h"

namespace halfnote::test {

/// A model from text, verified. Without a header it is op-set 23.
Model model_of(std::string_view text);

/// What a run of passes left behind.
struct Ran {
  bool changed = false;
  std::vector<Remark> remarks;
};

/// Runs rows with the reference kernels behind constant folding, whatever stage they want; verifies
/// and checks the flag as the manager does.
Ran run_rows(Model& model, const CompileOptions& options, std::vector<PassRow> rows);
/// The row of the compile or the device pipeline with this name (`fold-constants`), or
/// `emulate-16bit`, `emit-step`.
PassRow row_of(std::string_view name);
/// The rows before the first one with this name; the whole pipeline for those it does not have.
std::vector<PassRow> rows_before(std::string_view name);
/// Runs the pipeline up to and including this row.
Ran run_until(Model& model, const CompileOptions& options, std::string_view name);
/// Runs all of it.
Ran run_all(Model& model, const CompileOptions& options);

/// Results by `GRAPH/OUTPUT` (graph: empty for the inference graph) and `GRAPH/NAME.new` for new
/// states.
using Results = std::map<std::string, Tensor>;
/// Tensors by input name that stand in place of generated ones.
using Feeds = std::map<std::string, Tensor>;

/// What stands in for an input: small multiples of 1/8 (0 and 1 for integers), the same for the
/// same name, shape and type; symbolic dims are those of `dims`, else 3.
Tensor test_input(const Graph& graph, ValueId input, const std::map<std::string, int64_t>& dims,
                  uint64_t seed = 0);

/// Runs every graph of the model on the reference kernels, with `feeds` and for the rest
/// `test_input`.
Results execute(const Model& model, const std::map<std::string, int64_t>& dims = {},
                const Feeds& feeds = {}, uint64_t seed = 0);
/// The first values of everything persistent in a training step, by name.
Feeds states_of(const Model& model, std::string_view step);

/// Expects what both sides have to agree: bit for bit where `bound` is 0, else within `bound` times
/// the largest number of the tensor (and at least 1). Returns how many tensors were compared.
int expect_agreement(const Results& before, const Results& after, double bound);

/// The Error that `run` throws; fails the test if there is none or if it has another code.
template <class Run>
std::string error_of(Run&& run, ErrorCode code) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(kind_name(error.code()), kind_name(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace halfnote::test
