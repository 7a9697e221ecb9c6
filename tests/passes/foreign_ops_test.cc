// Every row of the table of foreign ops: lifted, it gives what ONNX Runtime gives (recorded in
// tests/fixtures/ort_training/ops), or is refused with a reason.
#include <filesystem>
#include <set>

#include "compiler/onnx/import.h"
#include "passes/foreign/foreign_ops.h"
#include "runtime/train/checkpoint/safetensors.h"
#include "support.h"

namespace halfnote::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path folder() { return fs::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/ort_training/ops"; }

/// f32 on both sides: a few dozen terms of size 1 summed in another order.
constexpr double kTolerance = 64 * 0x1p-24;

void expect_equal(const Tensor& want, const Tensor& got) {
  ASSERT_EQ(want.dtype(), got.dtype());
  ASSERT_EQ(want.size(), got.size());
  for (int64_t i = 0; i < want.size(); ++i) {
    const double x = want.at_as_double(i);
    EXPECT_NEAR(x, got.at_as_double(i), kTolerance * std::max(1.0, std::fabs(x))) << "at " << i;
  }
}

std::vector<std::string> recorded() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.path().extension() == ".onnx") names.insert(entry.path().stem().string());
  }
  return {names.begin(), names.end()};
}

class ForeignOps : public ::testing::TestWithParam<std::string> {};

TEST_P(ForeignOps, GivesWhatOnnxRuntimeGives) {
  const SafetensorsFile file(folder() / "cases.safetensors");
  Model model = import_model(folder() / (GetParam() + ".onnx"));
  CompileOptions options;
  options.inference_only = true;
  run_until(model, options, "eliminate-dead");
  for (NodeId node : model.graph.all_nodes()) {
    EXPECT_NE(model.graph.node(node).domain, "com.microsoft");
  }
  Feeds feeds;
  const std::string in = GetParam() + "/in/", out = GetParam() + "/out/";
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    if (entry.name.starts_with(in)) feeds[entry.name.substr(in.size())] = file.tensor(entry);
  }
  const Results results = execute(model, {}, feeds);
  int compared = 0;
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    if (!entry.name.starts_with(out)) continue;
    SCOPED_TRACE(entry.name);
    const auto found = results.find("/" + entry.name.substr(out.size()));
    ASSERT_NE(found, results.end());
    expect_equal(file.tensor(entry), found->second);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Recorded, ForeignOps, ::testing::ValuesIn(recorded()),
                         [](const auto& test) { return test.param; });

/// Ops with a rule but no recorded model: covered by the tests named, or another name of a row that
/// is recorded.
const std::set<std::string> kElsewhere = {"BiasSoftmaxDropout",
                                          "BitmaskDropout",
                                          "BitmaskDropoutGrad",
                                          "DropoutGrad",
                                          "SoftmaxDropoutGrad",  // random: DropoutKeepsTheMask
                                          "GRUTraining",
                                          "LSTMTraining",
                                          "FakeQuant",
                                          "SimplifiedLayerNormalization",  // with their Grad
                                          "Group",                         // gives a constant
                                          "NegativeLogLikelihoodLossInternal",
                                          "NegativeLogLikelihoodLossInternal2",
                                          "TransposeMatMul",
                                          "Adagrad",
                                          "Adam",
                                          "Momentum"};  // the last three: Preview…

TEST(ForeignOpTable, EachRowHasARecordOrAReason) {
  std::set<std::string> names;
  for (const std::string& name : recorded()) names.insert(name);
  std::string_view last_domain, last;
  for (const ForeignOp& op : foreign_ops()) {
    EXPECT_TRUE(std::pair(op.domain, op.name) > std::pair(last_domain, last) || last.empty())
        << op.name << " stands out of order";
    last_domain = op.domain, last = op.name;
    const std::string name(op.name);
    EXPECT_NE(op.rule == nullptr, op.refusal.empty()) << name;
    EXPECT_TRUE(op.rule == nullptr || names.contains(name) || kElsewhere.contains(name)) << name;
  }
}

TEST(ForeignOpTable, RefusalsComeInOneListWithTheirReasons) {
  Model model = model_of(R"(<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
main (float[4] x) => (float[4] z) {
   [a] float[4] y = com.microsoft.GistPack8Decoder (x)
   [b] float[4] u = com.microsoft.MegatronF (y)
   [c] float[4] v = com.microsoft.ReluGrad (u)
   [e] string s = com.microsoft.SummaryScalar <tags: strings = ["loss"]> (v)
   [f] float w = SparseSoftmaxCrossEntropy <reduction: string = "none"> (x, x)
   [d] float[4] z = com.microsoft.NoSuchOp (v)
})");
  try {
    run_until(model, {}, "lift-opset");
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    for (const char* part : {"GistPack8Decoder", "memory optimizations", "MegatronF",
                             "several devices", "operand 1 is missing", "NoSuchOp",
                             "com.microsoft.SummaryScalar (op-set 1; 1 node; writes events",
                             "SparseSoftmaxCrossEntropy (op-set 17; 1 node; reduction none"}) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

/// One optimizer of ai.onnx.preview.training on two parameters, by the formulas of ONNX.
struct PreviewCase {
  const char* name;
  const char* node;  // op and attributes
  int states;
  double (*rule)(double r, int t, double x, double g, double& v, double& h);
};

double preview_momentum(int t, double x, double g, double& v, double r, bool nesterov) {
  const double grad = 0.25 * x + g;
  v = 0.5 * v + (t > 0 ? 0.75 : 1) * grad;
  return x - r * (nesterov ? grad + 0.5 * v : v);
}

const PreviewCase kPreviewCases[] = {
    {"Adam",
     "Adam <alpha = 0.5, beta = 0.75, epsilon = 0.125, norm_coefficient = 0.25, "
     "norm_coefficient_post = 0.5>",
     2,
     [](double r, int t, double x, double g, double& v, double& h) {
       const double grad = 0.25 * x + g;
       v = 0.5 * v + 0.5 * grad;
       h = 0.75 * h + 0.25 * grad * grad;
       const double rate =
           t > 0 ? r * std::sqrt(1 - std::pow(0.75, t)) / (1 - std::pow(0.5, t)) : r;
       return 0.5 * (x - rate * v / (std::sqrt(h) + 0.125));
     }},
    {"Adagrad", "Adagrad <decay_factor = 0.5, epsilon = 0.125, norm_coefficient = 0.25>", 1,
     [](double r, int t, double x, double g, double& v, double&) {
       const double grad = 0.25 * x + g;
       v += grad * grad;
       return x - r / (1 + t * 0.5) * grad / (std::sqrt(v) + 0.125);
     }},
    {"Momentum",
     "Momentum <alpha = 0.5, beta = 0.75, norm_coefficient = 0.25, mode = \"standard\">", 1,
     [](double r, int t, double x, double g, double& v, double&) {
       return preview_momentum(t, x, g, v, r, false);
     }},
    {"Nesterov",
     "Momentum <alpha = 0.5, beta = 0.75, norm_coefficient = 0.25, mode = \"nesterov\">", 1,
     [](double r, int t, double x, double g, double& v, double&) {
       return preview_momentum(t, x, g, v, r, true);
     }},
};

TEST(PreviewOptimizers, FollowOnnx) {
  for (const PreviewCase& test : kPreviewCases) {
    for (int t : {0, 1, 3}) {
      SCOPED_TRACE(std::string(test.name) + " at T = " + std::to_string(t));
      const bool two = test.states == 2;
      const std::string text =
          std::string("<ir_version: 8, opset_import: [\"ai.onnx.preview.training\" : 1]>\n") +
          "main (float R, int64 T, float[3] X0, float[2] X1, float[3] G0, float[2] G1, float[3] "
          "V0, "
          "float[2] V1" +
          (two ? ", float[3] H0, float[2] H1" : "") +
          ") => (float[3] Y0, float[2] Y1, float[3] W0, "
          "float[2] W1" +
          (two ? ", float[3] K0, float[2] K1" : "") + ") {\n [n] Y0, Y1, W0, W1" +
          (two ? ", K0, K1" : "") + " = ai.onnx.preview.training." + test.node +
          " (R, T, X0, X1, G0, G1, V0, V1" + (two ? ", H0, H1" : "") + ")\n}";
      Model model = model_of(text);
      CompileOptions options;
      options.inference_only = true;
      run_until(model, options, "eliminate-dead");
      Feeds feeds;
      feeds["R"] = Tensor::scalar<float>(0.5f);
      feeds["T"] = Tensor::scalar<int64_t>(t);
      for (const char* name : {"X0", "G0", "V0", "H0"})
        feeds[name] = Tensor::of<float>({3}, {0.5f, -1, 2});
      for (const char* name : {"X1", "G1", "V1", "H1"})
        feeds[name] = Tensor::of<float>({2}, {1, 0.25f});
      feeds["H0"] = feeds["V0"] = Tensor::of<float>({3}, {0.5f, 1, 2});
      if (!two) feeds.erase("H0"), feeds.erase("H1");
      const Results results = execute(model, {}, feeds);
      for (const std::string k : {"0", "1"}) {
        const Tensor &x = feeds["X" + k], &g = feeds["G" + k];
        for (int64_t i = 0; i < x.size(); ++i) {
          double v = feeds["V" + k].at_as_double(i), h = two ? feeds["H" + k].at_as_double(i) : 0;
          const double y = test.rule(0.5, t, x.at_as_double(i), g.at_as_double(i), v, h);
          EXPECT_NEAR(results.at("/Y" + k).at_as_double(i), y, kTolerance);
          EXPECT_NEAR(results.at("/W" + k).at_as_double(i), v, kTolerance);
          if (!two) continue;
          EXPECT_NEAR(results.at("/K" + k).at_as_double(i), h, kTolerance);
        }
      }
    }
  }
}

/// The gradient drops what the forward op drops: with equal operands both give the same.
TEST(ForeignOpTable, DropoutKeepsTheMask) {
  for (const char* forward : {"Dropout", "com.microsoft.BitmaskDropout"}) {
    SCOPED_TRACE(forward);
    Model model =
        model_of(std::string(R"(<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
main (float[64] x) => (float[64] y, float[64] dx) <float r = {0.5}, bool on = {1}> {
   [fwd] float[64] y, bool[64] mask = )") +
                 forward + R"( (x, r, on)
   [bwd] float[64] dx = com.microsoft.DropoutGrad (x, mask, r, on)
})");
    CompileOptions options;
    options.inference_only = true;
    run_until(model, options, "eliminate-dead");
    const Results results = execute(model);
    const Tensor &y = results.at("/y"), &dx = results.at("/dx");
    EXPECT_TRUE(identical(y, dx));
    int dropped = 0;
    for (int64_t i = 0; i < y.size(); ++i) dropped += y.at_as_double(i) == 0;
    EXPECT_GT(dropped, 10);
    EXPECT_LT(dropped, 54);
  }
}

}  // namespace
}  // namespace halfnote::test
