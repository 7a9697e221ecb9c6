// lower_opset: which op-set each form needs, what is rewritten, and that a lowered model is valid
// there, means the same, and lifts back to what it was.
#include "passes/canonical/lower_opset.h"

#include <string>

#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "compiler/onnx/export.h"
#include "compiler/onnx/import.h"
#include "tests/passes/support.h"

namespace halfnote::test {
namespace {

struct OpsetRow {
  const char* what;
  const char* text;  // behind `main`
  int64_t wanted, got;
  const char* form = "";  // what the node must look like then
};

constexpr OpsetRow kOpsetRows[] = {
    {"types alone were added", "(float[2,3] x) => (y) { y = Relu(x) }", 13, 13},
    {"never below 13", "(float[2,3] x) => (y) { y = Relu(x) }", 7, 13},
    {"never above 23", "(float[2,3] x) => (y) { y = Relu(x) }", 26, 23},
    {"an op that came later", "(float[2,3] x) => (y) { y = Gelu(x) }", 17, 20},
    {"a type that came later", "(bfloat16[2,3] x) => (y) { y = Elu(x) }", 17, 22},
    {"random numbers", "(float[2,3] x) => (y) { y = RandomNormalLike(x) }", 17, 17},
    {"the axes of a mean",
     "(float[2,3,4] x) => (y) <int64[2] a = {1, 2}> { "
     "y = ReduceMean <keepdims: int = 0> (x, a) }",
     17, 17, "axes: ints = [1, 2]"},
    {"the axes of a mean stay in 18",
     "(float[2,3,4] x) => (y) <int64[2] a = {1, 2}> { y = ReduceMean (x, a) }", 18, 18,
     "ReduceMean (x, a)"},
    {"axes that are computed", "(float[2,3,4] x, int64[1] a) => (y) { y = ReduceMean (x, a) }", 17,
     18},
    {"the axes of a sum, an input since 13",
     "(float[2,3] x, int64[1] a) => (y) { "
     "y = ReduceSum (x, a) }",
     13, 13},
    {"equal parts",
     "(float[2,6] x) => (y, z) { y, z = Split <axis: int = -1, num_outputs: int = 2> "
     "(x) }",
     17, 17, "Split <axis: int = -1> (x)"},
    {"parts that differ",
     "(float[2,5] x) => (y, z) { y, z = Split <axis: int = 1, num_outputs: int "
     "= 2> (x) }",
     17, 18},
    {"parts of an open size",
     "(float[2,N] x) => (y, z) { y, z = Split <axis: int = 1, num_outputs: "
     "int = 2> (x) }",
     17, 18},
    {"windows of ceil_mode",
     "(float[1,2,5,5] x) => (y) { y = MaxPool <kernel_shape: ints = [2, 2], "
     "ceil_mode: int = 1> (x) }",
     17, 22},
    {"windows without it",
     "(float[1,2,5,5] x) => (y) { y = MaxPool <kernel_shape: ints = [2, 2], "
     "ceil_mode: int = 0> (x) }",
     17, 17},
    {"names of modes",
     "(float[1,2,5,5] x, float[1,3,3,2] g) => (y) { y = GridSample <mode: string "
     "= \"linear\"> (x, g) }",
     17, 20},
    {"scale per channel",
     "(float[1,4,5] x, float[4] s, float[4] b) => (y) { y = GroupNormalization "
     "<num_groups: int = 2> (x, s, b) }",
     18, 21},
    {"a mode that came later",
     "(float[1,4] x, int64[4] p) => (y) { y = Pad <mode: string = "
     "\"wrap\"> (x, p) }",
     17, 19},
    {"a mode that was there",
     "(float[1,4] x, int64[4] p) => (y) { y = Pad <mode: string = "
     "\"reflect\"> (x, p) }",
     17, 17},
    {"a reduction that came later",
     "(float[4] x, int64[2] i, float[2] u) => (y) { y = "
     "ScatterElements <reduction: string = \"max\"> (x, i, u) }",
     16, 18},
    {"a reduction that was there",
     "(float[4] x, int64[2] i, float[2] u) => (y) { y = "
     "ScatterElements <reduction: string = \"add\"> (x, i, u) }",
     16, 16},
    {"an attribute that says what was so before",
     "(float[2,3] x, int64[1] s) => (y) { y = Reshape "
     "<allowzero: int = 0> (x, s) }",
     13, 13, "Reshape (x, s)"},
    {"and one that does not",
     "(float[2,3] x, int64[1] s) => (y) { y = Reshape <allowzero: int = 1> "
     "(x, s) }",
     13, 14},
    {"one node raises the others",
     "(float[2,3,4] x) => (y) <int64[1] a = {1}> { b = ReduceMean (x, a) y = Gelu(b) }", 17, 20,
     "ReduceMean (x, a)"},
    {"bodies count",
     "(float[2,3] x, bool c) => (y) { y = If (c) <then_branch = t () => (float[2,3] "
     "p) { p = Gelu(x) }, else_branch = e () => (float[2,3] q) { q = Relu(x) }> }",
     17, 20},
};

class LowerOpset : public testing::TestWithParam<OpsetRow> {};

TEST_P(LowerOpset, FindsTheOldest) {
  const OpsetRow& row = GetParam();
  SCOPED_TRACE(row.what);
  Model model =
      model_of("<ir_version: 10, opset_import: [\"\" : 23]>\nmain " + std::string(row.text));
  run_until(model, {}, "lift-opset");
  run_rows(model, {}, {row_of("infer-shapes")});
  EXPECT_EQ(lower_opset(model, row.wanted), row.got) << print(model);
  EXPECT_EQ(model.opsets.at(""), row.got);
  EXPECT_THAT(print(model), testing::HasSubstr(row.form));
  EXPECT_NO_THROW(check_model(model)) << print(model);
  const Model again = import_model_bytes(export_model_bytes(model), "lowered");
  EXPECT_EQ(again.opsets.at(""), row.got);
  EXPECT_EQ(again.ir_version, row.got <= 18 ? 8 : row.got <= 20 ? 9 : 10);
}

INSTANTIATE_TEST_SUITE_P(Rows, LowerOpset, testing::ValuesIn(kOpsetRows));

}  // namespace
}  // namespace halfnote::test
