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
