// A model with a training_info that others wrote: run trains it as it is, compile says so; and
// --tie, whose errors name the flag.
#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;

/// `rows` samples of `columns` numbers between -1 and 1.
std::string samples(size_t rows, size_t columns) {
  std::vector<float> numbers(rows * columns);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(i * 37 % 64) / 32.0f - 1.0f;
  }
  const std::string shape = "(" + std::to_string(rows) + ", " + std::to_string(columns) + ")";
  return npy("<f4", shape,
             {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
}

void prepare(const Workplace& place) {
  std::filesystem::copy_file(
      std::filesystem::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/training_info/mlp_gradient.onnx",
      place / "mlp.onnx");
  place.write("inputs.npy", samples(16, 3));
  place.write("targets.npy", samples(16, 2));
}

TEST(TrainingInfo, RunTrainsItAndResumes) {
  const Workplace place;
  prepare(place);
  const std::string run = "run mlp.onnx --data x=inputs.npy,t=targets.npy --batch 4 --run-dir out ";
  const Outcome half = place.run(words(run + "--steps 4"));
  ASSERT_EQ(half.code, 0) << half.err;
  const Outcome rest = place.run(words(run + "--steps 8 --resume"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  const Outcome whole = place.run(
      words("run mlp.onnx --data x=inputs.npy,t=targets.npy --batch 4 --run-dir all --steps 8"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("8, 8 updates applied, 0 skipped"));
  EXPECT_EQ(place.read("out/model.onnx"), place.read("all/model.onnx"));
  EXPECT_EQ(place.run(words("inspect all/model.onnx")).code, 0);
}

/// What the model binds to a weight has another shape or type; found when it is read, or inferred.
TEST(TrainingInfo, ANewValueThatDoesNotFitIsAnErrorOfTheModel) {
  struct Misfit {
    const char *node, *got;
  };
  const Misfit misfits[] = {{"w_new = Transpose (w)", "float[2,3]"},
                            {"w_new = Cast <to = 10> (w)", "float16[3,2]"},
                            {"s = Shape (w) n = Constant <value: tensor = int64[1] {6}> () "
                             "w_new = Reshape (w, n)",
                             "float[6]"}};
  for (const Misfit& misfit : misfits) {
    SCOPED_TRACE(misfit.node);
    const Workplace place;
    place.write("model.onnxtxt",
                "<ir_version: 10, opset_import: [\"\" : 23]>\n"
                "g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> "
                "{ y = MatMul (x, w) }\n"
                "training_info t { algorithm: a (float[N,3] u) => (float loss) "
                "<float[3,2] w = @w> { p = MatMul (u, w) loss = ReduceMean <keepdims = 0> (p) " +
                    std::string(misfit.node) + " state weight w -> w_new } }\n");
    place.write("u.npy", samples(8, 3));
    const Outcome outcome = place.run(words("run model.onnxtxt --data u=u.npy --steps 1"));
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_THAT(outcome.err,
                HasSubstr("\"w_new\" cannot be the new value of \"w\": expected float[3,2]"));
    EXPECT_THAT(outcome.err, HasSubstr(misfit.got));
  }
}

TEST(TrainingInfo, CompileSendsToRun) {
  const Workplace place;
  prepare(place);
  const Outcome outcome = place.run(words("compile mlp.onnx"));
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("`halfnote run` trains it as it is"));
}

TEST(Tie, IsAFlagOfCompile) {
  const Workplace place;
  const Outcome outcome =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --tie nothing=like_it"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--tie names no float initializer"));
}

}  // namespace
}  // namespace halfnote::cli_test
