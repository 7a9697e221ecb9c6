// How a run ends that something goes wrong with: nothing that was trained is lost, nothing that
// diverged is exported, and --resume goes on from whatever there is.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// `x.npy` with a NaN in this sample.
void write_bad(const Workplace& place, const std::string& name, size_t sample) {
  std::string bytes = place.read("x.npy");
  const float bad = NAN;
  std::memcpy(bytes.data() + bytes.size() - (22 - sample) * 24, &bad, sizeof bad);
  place.write(name, bytes);
}

std::string line(const std::string& data, const std::string& more) {
  return "run a.onnx -q --batch 4 --threads 1 --run-dir r --data " + data + " " + more;
}

const std::string kGood = "x=x.npy,labels=labels.npy";

TEST(RunEnd, ABadSampleOfTheEvaluationKeepsWhatWasTrained) {
  const Workplace place;
  place.compile("a.onnx");
  write_bad(place, "e.npy", 20);
  for (const char* when : {"--epochs 2 --save-every 0", "--epochs 2 --eval-every 3 --save-every 0",
                           "--steps 1", "--epochs 2 --eval-every 0"}) {
    SCOPED_TRACE(when);
    fs::remove_all(place / "r");
    const std::string more = std::string(when) + " --eval-data x=e.npy,labels=labels.npy";
    const Outcome bad = place.run(words(line(kGood, more)));
    EXPECT_EQ(bad.code, 5);
    EXPECT_THAT(bad.err, HasSubstr("sample 20"));
    EXPECT_THAT(bad.err, HasSubstr("what was trained up to step "));
    EXPECT_THAT(bad.err, HasSubstr(" is saved in r/checkpoints/step-"));
    EXPECT_FALSE(place.exists("r/model.onnx"));
    // With data that is whole, the run goes on with the evaluation that was missed.
    const Outcome mended = place.run(
        words(line(kGood, std::string(when) + " --eval-data x=x.npy,labels=labels.npy --resume")));
    EXPECT_EQ(mended.code, 0) << mended.err;
    EXPECT_THAT(place.read("r/metrics.jsonl"), HasSubstr("\"event\":\"evaluation\""));
  }
}

TEST(RunEnd, ABadSampleOfTheTrainingKeepsWhatWasTrained) {
  const Workplace place;
  place.compile("a.onnx");
  write_bad(place, "b.npy", 13);
  const std::string more = "--epochs 2 --no-shuffle";
  const Outcome bad = place.run(words(line("x=b.npy,labels=labels.npy", more)));
  EXPECT_EQ(bad.code, 5);
  EXPECT_THAT(bad.err, HasSubstr("what was trained up to step 3 is saved in"));
  EXPECT_EQ(place.read("r/LATEST"), "checkpoints/step-00000003\n");
  const Outcome mended = place.run(words(line(kGood, more + " --resume")));
  EXPECT_EQ(mended.code, 0) << mended.err;
  EXPECT_EQ(place.read("r/LATEST"), "checkpoints/step-00000010\n");
}

/// a.onnx looks up rows by `ids`; good.npy has 12 of them, of which the tenth is none in bad.npy.
void compile_lookup(const Workplace& place) {
  place.write(
      "rows.onnxtxt",
      "<ir_version: 8, opset_import: [\"\" : 17]>\nrows (int64[N] ids, float[N,2] x) => (float[] "
      "loss)\n<float[3,2] w = {6, 5, 4, 3, 2, 1} >\n{ e = Gather (w, ids) d = Sub (e, x) s = Mul "
      "(d, d)\n  loss = ReduceMean <keepdims = 0> (s) }\n");
  const std::string compile =
      "compile rows.onnxtxt -o a.onnx --loss-output loss --optimizer adamw --precision bf16";
  ASSERT_EQ(place.run(words(compile)).code, 0);
  std::string ids(12 * 8, '\0');
  place.write("good.npy", npy("<i8", "(12,)", ids));
  ids[9 * 8] = 7;
  place.write("bad.npy", npy("<i8", "(12,)", ids));
  place.write("floats.npy", npy("<f4", "(12, 2)", std::string(12 * 2 * 4, '\0')));
}

/// An embedding reads an index that only the data show to be none: the step breaks off behind the
/// count of steps, which is taken back.
TEST(RunEnd, ABadIndexKeepsWhatWasTrained) {
  const Workplace place;
  compile_lookup(place);
  for (const char* device : {"cpu", "cuda-emulated"}) {
    SCOPED_TRACE(device);
    fs::remove_all(place / "r");
    const std::string more =
        std::string("--epochs 2 --no-shuffle --save-every 0 --device ") + device;
    const Outcome bad = place.run(words(line("ids=bad.npy,x=floats.npy", more)));
    EXPECT_EQ(bad.code, 5);
    EXPECT_THAT(bad.err, HasSubstr("sample 9 of \"ids\": 7 is out of range for the Gather"));
    EXPECT_THAT(bad.err, HasSubstr("what was trained up to step 2 is saved in"));
    // The run that goes on is the one that was never stopped.
    const std::string good = "ids=good.npy,x=floats.npy";
    ASSERT_EQ(place.run(words(line(good, more + " --resume"))).code, 0);
    const std::string resumed = place.read("r/checkpoints/step-00000006/state.safetensors");
    fs::remove_all(place / "r");
    ASSERT_EQ(place.run(words(line(good, more))).code, 0);
    EXPECT_EQ(place.read("r/checkpoints/step-00000006/state.safetensors"), resumed);
  }
}

TEST(RunEnd, ABadIndexOfAnEvaluationNamesItsFile) {
  const Workplace place;
  compile_lookup(place);
  for (const char* device : {"cpu", "cuda-emulated"}) {
    SCOPED_TRACE(device);
    fs::remove_all(place / "r");
    const Outcome bad = place.run(words(
        line("ids=good.npy,x=floats.npy",
             std::string("--epochs 2 --eval-data ids=bad.npy,x=floats.npy --device ") + device)));
    EXPECT_EQ(bad.code, 5);
    EXPECT_THAT(bad.err, HasSubstr("bad.npy"));
    EXPECT_THAT(bad.err, HasSubstr("sample 9 of \"ids\": 7 is out of range for the Gather"));
    EXPECT_THAT(bad.err, HasSubstr("what was trained up to step 3 is saved in"));
  }
}

TEST(RunEnd, AModelWithoutSamplesIsRefused) {
  const Workplace place;
  place.write("none.onnxtxt",
              "<ir_version: 8, opset_import: [\"\" : 17]>\nnone (float[0,2] x) => (float[] loss)\n"
              "<float[2] w = {1, 2}>\n{ y = Mul (x, w) loss = ReduceSum <keepdims = 0> (y) }\n");
  ASSERT_EQ(
      place.run(words("compile none.onnxtxt -o a.onnx --loss-output loss --optimizer adamw")).code,
      0);
  place.write("floats.npy", npy("<f4", "(12, 2)", std::string(12 * 2 * 4, '\0')));
  const Outcome run = place.run(words("run a.onnx --data x=floats.npy --steps 2 --run-dir r"));
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err, HasSubstr("a batch without samples"));
  EXPECT_FALSE(place.exists("r"));
}

TEST(RunEnd, ADamagedConfigurationIsTold) {
  const Workplace place;
  place.compile("a.onnx");
  ASSERT_EQ(place.run(words(line(kGood, "--steps 2"))).code, 0);
  place.write("r/config.json", "{\"data\": ");
  const Outcome resumed = place.run(words(line(kGood, "--steps 3 --resume")));
  EXPECT_EQ(resumed.code, 0);
  EXPECT_EQ(resumed.err,
            "warning: r/config.json is missing or damaged: what data the run was trained on before "
            "is not known\n");
}

TEST(RunEnd, NothingIsSavedBeforeTheFirstStep) {
  const Workplace place;
  place.compile("a.onnx");
  write_bad(place, "b.npy", 0);
  const Outcome bad =
      place.run(words(line("x=b.npy,labels=labels.npy", "--epochs 2 --no-shuffle")));
  EXPECT_EQ(bad.code, 5);
  EXPECT_THAT(bad.err, Not(HasSubstr("saved")));
  EXPECT_FALSE(place.exists("r/LATEST"));
}

TEST(RunEnd, EvaluationDataWithoutSamplesIsRefusedBeforeTheTraining) {
  const Workplace place;
  place.compile("a.onnx");
  place.write("ex.npy", npy("<f4", "(0, 6)", ""));
  place.write("el.npy", npy("<i8", "(0,)", ""));
  const Outcome outcome =
      place.run(words(line(kGood, "--epochs 2 --eval-data x=ex.npy,labels=el.npy")));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.err, HasSubstr("expected at least 1, got 0"));
  EXPECT_FALSE(place.exists("r"));
}

TEST(RunEnd, ADivergedRunGivesNoModel) {
  const Workplace place;
  place.compile("a.onnx", words("--lr 1e10 --precision fp16 --optimizer sgd"));
  const std::string more = "--epochs 1 --eval-data " + kGood;
  for (const char* resume : {"", " --resume"}) {
    const Outcome outcome = place.run(words(line(kGood, more + resume)));
    EXPECT_EQ(outcome.code, 6) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("is not finite at the end of the run"));
    EXPECT_TRUE(place.exists("r/LATEST"));
    EXPECT_FALSE(place.exists("r/model.onnx"));
  }
  EXPECT_THAT(place.read("r/metrics.jsonl"), HasSubstr("\"event\":\"diverged\""));
}

TEST(RunEnd, ManySkippedUpdatesAreTold) {
  const Workplace place;
  place.write("p.toml", "[loss_scale]\ninit = 1099511627776.0\n");  // 22 halvings too large
  place.compile("a.onnx", words("--precision fp16 --policy p.toml"));
  const Outcome few = place.run(words(line(kGood, "--steps 30")));
  const Outcome longer = place.run(words(line(kGood, "--steps 300 --resume")));
  EXPECT_EQ(few.code, 0) << few.err;
  EXPECT_THAT(few.err, HasSubstr(" of 30 updates were skipped"));
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_THAT(longer.err, Not(HasSubstr("were skipped")));
}

TEST(RunEnd, AResizeThatResizesNothingIsRefused) {
  const Workplace place;
  place.compile("a.onnx");
  const Outcome outcome = place.run(words(line(kGood, "--steps 1 --resize bilinear")));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--resize does nothing here"));
}

/// Runs it with a standard output whose reader leaves before anything is printed.
Outcome run_unread(const Workplace& place, const std::string& line) {
  Launch launch;
  launch.output = (place / "pipe").string();
  EXPECT_EQ(::mkfifo(launch.output.c_str(), 0600), 0);
  launch.meanwhile = [&](pid_t) { ::close(::open(launch.output.c_str(), O_RDONLY)); };
  Outcome outcome = place.run(words(line), launch);
  fs::remove(launch.output);
  return outcome;
}

TEST(RunEnd, AReaderWhoLeavesStopsNothing) {
  const Workplace place;
  place.compile("a.onnx");
  const Outcome ran = run_unread(
      place, "run a.onnx --steps 30 --run-dir r --data x=x.npy,labels=labels.npy --batch 4");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_TRUE(place.exists("r/model.onnx"));
  EXPECT_THAT(place.read("r/metrics.jsonl"), HasSubstr("\"step\":30,"));
  for (const char* listing : {"inspect a.onnx --nodes", "ops", "ops --passes", "run --help"}) {
    const Outcome outcome = run_unread(place, listing);
    EXPECT_EQ(outcome.code, 0) << listing;
    EXPECT_EQ(outcome.err, "") << listing;
  }
}

TEST(RunEnd, ANegativeLabelNamesTheIndexToIgnore) {
  const Workplace place;
  place.compile("a.onnx");
  std::string bytes = place.read("labels.npy");
  std::fill(bytes.end() - 8, bytes.end(), '\xff');
  place.write("minus.npy", bytes);
  const Outcome outcome = place.run(words(line("x=x.npy,labels=minus.npy", "--steps 1")));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.err, HasSubstr("compile with --ignore-index -1"));
}

TEST(RunEnd, AResumeWithOtherDataIsToldAndKept) {
  const Workplace place;
  place.compile("a.onnx");
  place.write("z.npy", place.read("x.npy"));
  const std::string other = "x=z.npy,labels=labels.npy";
  ASSERT_EQ(place.run(words(line(kGood, "--steps 2"))).code, 0);
  EXPECT_EQ(place.run(words(line(kGood, "--steps 3 --resume"))).err, "");
  const Outcome changed = place.run(words(line(other, "--steps 4 --resume")));
  EXPECT_EQ(changed.code, 0);
  EXPECT_EQ(changed.err, "warning: the data was " + kGood + ", and is now " + other + "\n");
  EXPECT_EQ(place.run(words(line(other, "--steps 5 --resume"))).err, "");
  const auto config = nlohmann::json::parse(place.read("r/config.json"));
  EXPECT_EQ(config["earlier_data"], nlohmann::json::array({kGood}));
  EXPECT_EQ(config["tf32"], false);
  EXPECT_EQ(config["tune"], false);
  EXPECT_EQ(config["plan"], "");
}

TEST(RunEnd, ARunWithoutACheckpointBeginsAgain) {
  const Workplace place;
  place.compile("a.onnx");
  ASSERT_EQ(place.run(words(line(kGood, "--steps 3"))).code, 0);
  const std::string metrics = place.read("r/metrics.jsonl");
  fs::remove_all(place / "r/checkpoints");
  // A name of what is not there is no run that ended early.
  const Outcome lost = place.run(words(line(kGood, "--steps 3 --resume")));
  EXPECT_EQ(lost.code, 9);
  EXPECT_THAT(lost.err, HasSubstr("r: the checkpoints are gone"));
  EXPECT_EQ(place.read("r/metrics.jsonl"), metrics);
  fs::remove(place / "r/LATEST");
  const Outcome plain = place.run(words(line(kGood, "--steps 3")));
  EXPECT_EQ(plain.code, 2);
  EXPECT_THAT(plain.err, HasSubstr("--resume"));
  const Outcome again = place.run(words(line(kGood, "--steps 3 --resume")));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.err, "note: r: the run ended before its first checkpoint, and begins again\n");
  const std::string now = place.read("r/metrics.jsonl");
  EXPECT_EQ(std::count(now.begin(), now.end(), '\n'),
            std::count(metrics.begin(), metrics.end(), '\n'));
  // A folder that no run has written is a mistake.
  fs::create_directory(place / "empty");
  for (const char* folder : {"empty", "none"}) {
    const Outcome refused = place.run(words("run a.onnx -q --batch 4 --steps 3 --resume --data " +
                                            kGood + " --run-dir " + folder));
    EXPECT_EQ(refused.code, 9) << folder;
    EXPECT_FALSE(place.exists(std::string(folder) + "/lock"));
  }
}

TEST(RunEnd, RunsThatBeginTogetherGetAFolderEach) {
  const Workplace place;
  place.compile("a.onnx");
  const std::string run = "run a.onnx -q --batch 4 --threads 1 --steps 300 --data " + kGood;
  std::vector<Outcome> inner;
  Launch outer;
  outer.meanwhile = [&](pid_t) {
    for (int i = 0; i < 2; ++i) inner.push_back(place.run(words(run)));
  };
  EXPECT_EQ(place.run(words(run), outer).code, 0);
  for (const Outcome& outcome : inner) EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(place.list("runs"), ElementsAre("a-1", "a-2", "a-3"));
}

}  // namespace
}  // namespace halfnote::cli_test
