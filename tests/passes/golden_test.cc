// The golden files of all passes. Each case is parsed, verified and given to its pass; the printed
// result is compared, read again, given to the pass once more (which must find nothing to do), and
// both sides run on the reference kernels. `HALFNOTE_UPDATE_GOLDEN=1` rewrites the expectations
// instead (scripts/update_golden.sh); the difference is for review.
#include <cstdlib>
#include <filesystem>
#include <set>

#include "compiler/ir/text.h"
#include "golden_file.h"
#include "runtime/core/device_ready.h"
#include "source_side.h"
#include "support.h"

namespace halfnote::test {
namespace {

// A relative spacing of the coarser 16-bit type: half a step at 1 is what one rounding costs.
constexpr double kEpsBf16 = 1.0 / 128;
constexpr double kEpsF32 = 0x1p-23;

enum class Sides {
  kExact,     // bit for bit
  kRounding,  // within `bound`
  kCalls,     // bit for bit; the source's calls are run through their bodies
  kForms,  // bit for bit where the source has the forms of op-set 23, which the kernels know; the
           // others run in onnxruntime (tests/judges/judge_lift.py), here the result must run
  kRuns,   // the source is nothing that the kernels know; the result must run
};
enum class Again { kUnchanged, kNotMeant };

struct GoldenRow {
  const char* pass;
  Sides sides;
  double bound = 0;  // of the largest number of a tensor
  Again again = Again::kUnchanged;
};

const GoldenRow kRows[] = {
    {"adopt-training", Sides::kRuns},
    {"bind-gradients", Sides::kRuns},
    {"expand-gradients", Sides::kRuns},
    {"inline-functions", Sides::kCalls},
    {"name-modules", Sides::kExact},
    {"repair-types", Sides::kRuns},
    {"lift-opset", Sides::kForms},
    {"bind-dims", Sides::kExact},
    {"choose-trainable", Sides::kExact},
    {"tie-weights", Sides::kExact, 0, Again::kNotMeant},  // what --tie named is gone
    {"find-folded", Sides::kExact},
    {"infer-shapes", Sides::kExact},
    // The source rounds operands and result of up to three 16-bit ops, sums of two products each.
    {"undo-autocast", Sides::kRounding, 12 * kEpsBf16},
    {"check-nodes", Sides::kExact},
    {"flatten-control", Sides::kExact},
    {"lower-ops", Sides::kRuns},
    {"equal-dims", Sides::kExact},
    {"fold-constants", Sides::kExact},
    {"canonicalize", Sides::kExact},
    {"eliminate-common", Sides::kExact},
    {"find-splits", Sides::kExact},
    {"regroup-dims", Sides::kExact},
    {"swap-batches", Sides::kExact},
    // Sums of at most 16 products, in another order of factors.
    {"scale-queries", Sides::kRounding, 32 * kEpsF32},
    // Sums of at most 16 elements, a root and three more roundings on either side.
    {"find-norms", Sides::kRounding, 32 * kEpsF32},
    {"find-logs", Sides::kRounding, 8 * kEpsF32},
    {"find-gelus", Sides::kRounding, 8 * kEpsF32},
    {"eliminate-dead", Sides::kExact},
    {"mend-constants", Sides::kExact},
    {"attach-loss", Sides::kExact},
    {"force-training", Sides::kExact},
    {"differentiate", Sides::kExact},
    {"append-optimizer", Sides::kExact},
    {"split-accumulation", Sides::kExact},
    {"absorb-gradients", Sides::kExact},
    {"assign-precision", Sides::kExact},
    // The models are at most six 16-bit ops deep, each rounds its operands and its result once:
    // 12 half steps, and as many again for sums of up to four products.
    {"insert-casts", Sides::kRounding, 12 * kEpsBf16},
    {"scale-loss", Sides::kExact},
    {"clean-casts", Sides::kExact},
    {"pad-to-8", Sides::kExact},
    {"clean-padding", Sides::kExact},
    {"initialize-states", Sides::kExact},
    {"bind-all-dims", Sides::kExact},
    {"take-out-padding", Sides::kExact},
    {"take-out-useless-padding", Sides::kExact},
    // One rounding to bf16.
    {"round-conv-gradients", Sides::kRounding, kEpsBf16},
    // Sums of 32 products and a bias, in another order.
    {"multiply-patches", Sides::kRounding, kEpsBf16},
    {"gather-taps", Sides::kRounding, kEpsBf16},
    {"take-branches", Sides::kExact},
    {"absorb-transposes", Sides::kExact},
    // The source side runs in the interpreter, which walks the bodies itself.
    {"expand-without-kernel", Sides::kExact},
    {"keep-copies", Sides::kExact},
    {"fold-factors", Sides::kExact},
    {"expand-clips", Sides::kExact},
    {"expand-powers", Sides::kExact},
    {"compute-late", Sides::kExact},
    {"check-early", Sides::kExact},
    {"rematerialize", Sides::kExact},
    {"update-early", Sides::kExact},
    // A node each in vectors against one: the same numbers, rounded at the same places.
    {"fuse-cross-entropy", Sides::kExact},
    {"keep-padded-classes", Sides::kExact},
    {"keep-reserve", Sides::kExact},
    // The normalized value is rounded once less before the sum, the statistics once more.
    {"fuse-norms", Sides::kRounding, kEpsBf16},
    // The gradient is rounded once less before the sum.
    {"fuse-line-norms", Sides::kRounding, kEpsBf16},
    // Two updates of an element and what they are added to, in another order.
    {"absorb-scatters", Sides::kRounding, 3.0 / (1 << 23)},
    {"absorb-casts", Sides::kExact},
    {"cast-before-views", Sides::kExact},
    {"pool-before-relu", Sides::kExact},
    {"keep-taps", Sides::kExact},
    {"add-strided", Sides::kExact},
    // dY is rounded once less where windows meet.
    {"pool-before-norm", Sides::kRounding, kEpsBf16},
    {"recompute-pointwise", Sides::kExact},
    {"fuse-pointwise", Sides::kExact},
    {"program-large", Sides::kExact},
    // Scores, probabilities and the gradient of the scores are rounded to bf16 once less each, or
    // at another size; f32 sums in another order are far below.
    {"fuse-attention", Sides::kRounding, 3 * kEpsBf16},
    // Sums over a group of heads in f32, rounded once, not once a head.
    {"group-heads", Sides::kRounding, 2 * kEpsBf16},
    {"absorb-heads", Sides::kExact},
    {"absorb-biases", Sides::kExact},
    // One rounding to bf16 less.
    {"absorb-biases-on-gpu", Sides::kRounding, kEpsBf16},
    {"absorb-sums", Sides::kExact},
    // Sums of products are rounded to bf16 once less before a Relu, a Gelu or their gradients.
    {"fuse-epilogues", Sides::kRounding, 2 * kEpsBf16},
    // The kernels round where the casts do: 16-bit in and out, f32 inside.
    {"emulate-16bit", Sides::kExact},
    // Bodies in standard ops against fused kernels: both in f32, sums of at most 16 terms in
    // another order.
    {"emit-step", Sides::kRounding, 16.0 / (1 << 23), Again::kNotMeant},
};

std::string file_of(const GoldenRow& row) {
  std::string name = row.pass;
  for (char& c : name) c = c == '-' ? '_' : c;
  return std::string(HALFNOTE_SOURCE_DIR) + "/tests/passes/golden/" + name + ".txt";
}

bool updating() {
  const char* wish = std::getenv("HALFNOTE_UPDATE_GOLDEN");
  return wish != nullptr && std::string(wish) == "1";
}

/// The model, or the graph that the case shows; without a header where the source has none.
std::string shown(const Model& model, const GoldenCase& golden) {
  for (const TrainingStep& step : model.training) {
    if (step.name == golden.show) return print(step.graph);
  }
  if (golden.show == "graph") return print(model.graph);
  EXPECT_EQ(golden.show, "") << "no such graph";
  const std::string text = print(model);
  const size_t head = text.find("\n>\n");
  return golden.text.starts_with("<") || head == std::string::npos ? text : text.substr(head + 3);
}

std::string notes(const Ran& ran) {
  std::string text;
  for (const Remark& remark : ran.remarks) {
    text += std::string(remark.level == Remark::Level::kWarning ? "# warning: " : "# note: ") +
            remark.where + ": " + remark.text + "\n";
  }
  return text;
}

class Golden : public testing::TestWithParam<GoldenRow> {
 protected:
  /// What the pass makes of the case, as it stands in the file; checks all but the text itself.
  std::string result_of(const GoldenCase& golden) {
    try {
      Model model = model_of(golden.text);
      run_rows(model, golden.options, before(golden));
      const Model source = model;
      const PassRow row = row_of(GetParam().pass);
      const Ran ran = run_rows(model, golden.options, {row});
      EXPECT_EQ(ran.changed, print(model) != print(source)) << "the flag says another thing";
      check_round_trip(model);
      if (golden.no_run.empty()) check_sides(source, model, golden);
      const std::string text = notes(ran) + (ran.changed ? shown(model, golden) : "unchanged\n");
      if (GetParam().again == Again::kUnchanged) {
        const std::string once = print(model);
        EXPECT_FALSE(run_rows(model, golden.options, {row}).changed) << "a second run";
        EXPECT_EQ(print(model), once) << "a second run";
      }
      return text;
    } catch (const Error& error) {
      return "error: " + std::string(kind_name(error.code())) + " " + error.what() + "\n";
    }
  }

 private:
  static std::vector<PassRow> before(const GoldenCase& golden) {
    if (golden.before == std::vector<std::string>{"all"}) return rows_before(GetParam().pass);
    std::vector<PassRow> rows;
    for (const std::string& name : golden.before) rows.push_back(row_of(name));
    return rows;
  }

  static void check_round_trip(const Model& model) {
    const std::string text = print(model);
    EXPECT_EQ(print(parse_model(text, "again")), text);
  }

  /// What the pass made to carry the loss scale S is S times what it was; S itself is new.
  static void carry_scale(const Model& source, const Model& model, Results& want) {
    for (size_t i = 0; i < model.training.size() && i < source.training.size(); ++i) {
      const TrainingStep& step = model.training[i];
      const Graph& before = source.training[i].graph;
      const ValueId scale = step.graph.find("loss_scale");
      for (const State& state : step.graph.states()) {
        const Value& value = step.graph.value(state.current);
        const ValueId old = before.find(value.name);
        if (!old.valid() || before.value(old).scale_power == value.scale_power) continue;
        const auto found = want.find(step.name + "/" + value.name + ".new");
        if (found == want.end()) continue;
        if (state.kind == StateKind::kScaler) {
          want.erase(found);
          continue;
        }
        const float factor = step.graph.value(scale).tensor.data<float>()[0];
        Tensor scaled = found->second.deep_copy();
        for (float& x : scaled.mutable_data<float>()) x *= factor;
        found->second = scaled;
      }
    }
  }

  static void check_sides(const Model& source, const Model& model, const GoldenCase& golden) {
    const GoldenRow& row = GetParam();
    const Results after =
        execute(model, golden.options.dims,
                std::string(row.pass) == "emit-step" ? states_of(source, "step") : Feeds{});
    EXPECT_FALSE(after.empty());
    if (row.sides == Sides::kRuns) return;
    if (row.sides == Sides::kForms && !has_forms_of_today(source)) return;
    Results want = row.sides == Sides::kCalls ? execute_calls(source, golden.options.dims)
                                              : execute(source, golden.options.dims);
    if (std::string(row.pass) == "emit-step") {
      // The step becomes the graph.
      Results moved;
      for (const auto& [name, tensor] : want) {
        if (name.starts_with("step/")) moved[name.substr(4)] = tensor;
      }
      want = std::move(moved);
    }
    carry_scale(source, model, want);
    EXPECT_GT(expect_agreement(want, after, row.bound), 0) << "nothing to compare";
  }
};

bool agrees(const std::string& want, const std::string& got) {
  if (!want.starts_with("error: ")) return want == got;
  const size_t space = want.find(' ', 7);  // behind the kind
  if (space == std::string::npos) return false;
  const std::string kind = want.substr(0, space + 1);
  std::string part = want.substr(space + 1);
  while (part.ends_with("\n")) part.pop_back();
  return got.starts_with(kind) && got.find(part) != std::string::npos;
}

TEST_P(Golden, EveryCase) {
  setenv("HALFNOTE_ATTENTION", "always", 1);  // the cases are too small for it to pay
  GoldenFile file = read_golden(file_of(GetParam()));
  ASSERT_GT(file.cases.size(), 2u);
  std::set<std::string> titles;
  for (GoldenCase& golden : file.cases) {
    SCOPED_TRACE(file.path + ":" + std::to_string(golden.line) + ": " + golden.title);
    EXPECT_TRUE(titles.insert(golden.title).second) << "the title stands twice";
    const std::string got = result_of(golden);
    if (updating()) {
      if (!agrees(golden.expected, got)) golden.expected = got;
      continue;
    }
    if (golden.expected.starts_with("error: ")) {
      EXPECT_TRUE(agrees(golden.expected, got)) << "want " << golden.expected << "got  " << got;
    } else {
      EXPECT_EQ(golden.expected, got);
    }
  }
  if (updating()) write_golden(file);
}

std::string name_of(const testing::TestParamInfo<GoldenRow>& info) {
  std::string name;
  for (const char* c = info.param.pass; *c != 0; ++c) {
    if (*c != '-') name += *c;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Passes, Golden, testing::ValuesIn(kRows), name_of);

TEST(GoldenFiles, EachBelongsToAPassAndAThirdLeavesAlone) {
  std::set<std::string> known;
  int cases = 0, alone = 0;
  for (const GoldenRow& row : kRows) {
    known.insert(file_of(row));
    for (const GoldenCase& golden : read_golden(file_of(row)).cases) {
      ++cases;
      alone += golden.expected.ends_with("unchanged\n") || golden.title.starts_with("leaves alone");
    }
  }
  const std::filesystem::path folder =
      std::filesystem::path(HALFNOTE_SOURCE_DIR) / "tests/passes/golden";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_TRUE(known.contains(entry.path().string())) << entry.path();
  }
  EXPECT_GE(3 * alone, cases) << alone << " of " << cases;
}

TEST(GoldenFiles, EveryRowOfBothPipelinesHasOne) {
  std::set<void*> covered;
  const auto key = [](const PassRow& row) {
    return row.on_graph != nullptr ? reinterpret_cast<void*>(row.on_graph)
                                   : reinterpret_cast<void*>(row.on_model);
  };
  for (const GoldenRow& row : kRows) covered.insert(key(row_of(row.pass)));
  for (const PassRow& row : compile_pipeline()) EXPECT_TRUE(covered.contains(key(row))) << row.name;
  for (const PassRow& row : device_pipeline()) EXPECT_TRUE(covered.contains(key(row))) << row.name;
}

}  // namespace
}  // namespace halfnote::test
