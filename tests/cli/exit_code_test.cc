// Every documented exit code on real bad input, and that a failure leaves no file behind.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;

struct Refused {
  const char* what;
  int code;
  std::string line;
  std::vector<std::string> said;
};

/// Runs each line in a fresh workplace with `artifact.onnx` in it: the code must be right, the
/// message must say what it should, and nothing may be left in the folder.
void expect_refused(const std::vector<Refused>& cases,
                    const std::function<void(Workplace&)>& prepare = {}) {
  Workplace place;
  place.compile("artifact.onnx");
  if (prepare) prepare(place);
  const auto before = place.list();
  for (const Refused& c : cases) {
    const Outcome outcome = place.run(words(c.line));
    EXPECT_EQ(outcome.code, c.code) << c.what << ": " << outcome.err;
    for (const std::string& part : c.said) EXPECT_THAT(outcome.err, HasSubstr(part)) << c.what;
    EXPECT_THAT(outcome.err, HasSubstr("halfnote: error (")) << c.what;
    EXPECT_EQ(outcome.out, "") << c.what;
    EXPECT_EQ(place.list(), before) << c.what;
  }
}

TEST(ExitCode, ZeroWhenAllIsWell) {
  const Workplace place;
  for (const char* line :
       {"--version", "--help", "compile --help", "run --help", "inspect --help", "ops --help",
        "ops", "ops --passes", "ops --presets", "ops conv",
        "compile tiny.onnxtxt --loss cross_entropy --plan", "inspect tiny.onnxtxt"}) {
    const Outcome outcome = place.run(words(line));
    EXPECT_EQ(outcome.code, 0) << line << ": " << outcome.err;
    EXPECT_NE(outcome.out, "") << line;
    EXPECT_EQ(outcome.err, "") << line;
  }
}

TEST(ExitCode, EightForOutputThatCannotBeWritten) {
  const Workplace place;
  for (const char* line :
       {"--version", "--help", "compile --help", "run --help", "ops", "inspect tiny.onnxtxt",
        "inspect tiny.onnxtxt --format json", "--version --json-errors"}) {
    const Outcome outcome = place.run(words(line), {.output = "/dev/full"});
    EXPECT_EQ(outcome.code, 8) << line;
    EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output")) << line;
  }
}

/// A compilation that lives long enough to be ended while it writes.
void write_large_model(const Workplace& place) {
  place.write("large.onnxtxt",
              "<ir_version: 10, opset_import: [\"\" : 23]>\n"
              "g (float[N,5000] x) => (float[N,5000] y) {\n"
              "w = RandomNormal <shape = [5000, 5000], seed = 1.0> ()\ny = MatMul (x, w)\n}\n");
}

std::vector<std::string> temporary_files(const Workplace& place) {
  std::vector<std::string> names = place.list();
  std::erase_if(names, [](const std::string& name) { return !name.starts_with(".hn-"); });
  return names;
}

/// Sends the signal as soon as a temporary file has bytes.
Outcome end_while_writing(const Workplace& place, int signal) {
  Launch launch;
  launch.meanwhile = [&](pid_t program) {
    for (int i = 0; i < 60'000; ++i) {
      for (const std::string& name : temporary_files(place)) {
        std::error_code error;
        if (std::filesystem::file_size(place / name, error) == 0 || error) continue;
        ::kill(program, signal);
        return;
      }
      if (::waitid(P_PID, static_cast<id_t>(program), nullptr, WEXITED | WNOHANG | WNOWAIT) != 0)
        return;
      ::usleep(1000);
    }
    ::kill(program, SIGKILL);
  };
  return place.run(words("compile large.onnxtxt -o large.hn.onnx --loss mse --optimizer sgd -q"),
                   launch);
}

TEST(ExitCode, ACompilationThatIsEndedLeavesNothing) {
  const Workplace place;
  write_large_model(place);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Outcome outcome = end_while_writing(place, signal);
    EXPECT_EQ(outcome.code, -signal) << outcome.err;
    EXPECT_EQ(temporary_files(place), std::vector<std::string>{});
    EXPECT_FALSE(place.exists("large.hn.onnx"));
  }
}

TEST(ExitCode, WhatAKilledCompilationLeavesGoesWithTheNext) {
  const Workplace place;
  write_large_model(place);
  EXPECT_EQ(end_while_writing(place, SIGKILL).code, -SIGKILL);
  EXPECT_EQ(temporary_files(place).size(), 1u);
  // Of a process that lives, and of nobody that could have a process number.
  const std::string living = ".hn-" + std::to_string(::getpid()) + "-7.tmp";
  place.write(living, "kept");
  place.write(".hn-notes.tmp", "kept");
  place.compile("artifact.onnx");
  EXPECT_EQ(temporary_files(place), (std::vector<std::string>{living, ".hn-notes.tmp"}));
}

TEST(ExitCode, TwoForUsage) {
  const std::string train = kTrain;
  expect_refused({
      {"no verb", 2, "", {"no verb is given: expected one of compile, run", "--help"}},
      {"no number",
       2,
       "compile tiny.onnxtxt --lr abc",
       {"--lr has", "a number, as in 0.001 or 1e-3, got \"abc\""}},
      {"no whole number",
       2,
       "compile tiny.onnxtxt --seed 1.5",
       {"a whole number from", "got \"1.5\""}},
      {"given twice", 2, "compile tiny.onnxtxt --lr 1 --lr 2", {"--lr is given more than once"}},
      {"without value", 2, "compile tiny.onnxtxt --lr", {"--lr needs a value"}},
      {"below 0", 2, "run artifact.onnx --limit-samples -1 " + train, {"at least 1, got \"-1\""}},
      {"too many", 2, "run artifact.onnx --threads 5000 " + train, {"from 0 to 1024"}},
      {"too large",
       2,
       "compile tiny.onnxtxt --loss mse --precision fp16 --loss-scale 1e39",
       {"--loss-scale", "got \"1e39\""}},
      {"frozen", 2, "compile tiny.onnxtxt --loss cross_entropy --freze .*", {"--freeze?"}},
      {"idle graph", 2, "inspect artifact.onnx --graph step", {"--graph does nothing here"}},
      {"idle dim", 2, "inspect artifact.onnx --format dot --dim N=2", {"--dim does nothing here"}},
      {"no such dim", 2, "inspect artifact.onnx --why h --dim M=2", {"--dim M", "one of N"}},
      {"bad bytes", 2, "run artifact.onnx --steps 1 --bytes al " + train, {"auto, scale or keep"}},
      {"unknown verb", 2, "inspekt x", {"unknown verb", "did you mean inspect?"}},
      {"unknown option", 2, "compile tiny.onnxtxt --precison bf16", {"did you mean --precision?"}},
      {"option of another verb", 2, "run artifact.onnx --epoch 3", {"did you mean --epochs?"}},
      {"option of another verb, rightly spelt",
       2,
       "run artifact.onnx --lr 1",
       {"unknown option --lr", "option of halfnote compile"}},
      {"no argument", 2, "compile", {"model is required"}},
      {"superfluous argument", 2, "inspect tiny.onnxtxt more", {"unexpected argument \"more\""}},
      {"bad number", 2, "run artifact.onnx --epochs many " + train, {"--epochs"}},
      {"bad precision", 2, "compile tiny.onnxtxt -o out.onnx --loss mse --precision f61", {"f61"}},
      {"bad loss", 2, "compile tiny.onnxtxt -o out.onnx --loss cross_entrpy", {"cross_entropy"}},
      {"neither length", 2, "run artifact.onnx " + train, {"--epochs or --steps", "neither"}},
      {"both lengths", 2, "run artifact.onnx --epochs 1 --steps 1 " + train, {"both"}},
      {"unknown dim", 2, "run artifact.onnx --steps 1 --dim M=2 " + train, {"\"M\"", "one of N"}},
      {"two batches", 2, "run artifact.onnx --steps 1 --dim N=8 " + train, {"expected 8, got 4"}},
      {"bad save-every", 2, "run artifact.onnx --steps 1 --save-every 2days " + train, {"2days"}},
      {"bad progress", 2, "run artifact.onnx --steps 1 --progress planes " + train, {"plain"}},
      {"bad device", 2, "run artifact.onnx --steps 1 --device cude " + train, {"cuda"}},
      {"bad spec", 2, "run artifact.onnx --steps 1 --data nothing", {"mnist"}},
      {"unknown node", 2, "inspect artifact.onnx --why logitz", {"logitz"}},
      {"unknown graph", 2, "inspect artifact.onnx --format dot --graph stap", {"step"}},
      {"unknown format", 2, "inspect artifact.onnx --format jsno", {"did you mean json?"}},
      {"unknown operator", 2, "ops Sofmax", {"did you mean Softmax?"}},
  });
}

TEST(ExitCode, TwoForValuesThatDoNotFit) {
  const std::string train = kTrain;
  expect_refused({
      {"hexadecimal",
       2,
       "compile tiny.onnxtxt --lr 0x10",
       {"--lr has", "a number, as in 0.001 or 1e-3, got \"0x10\""}},
      {"0 in FP32", 2, "compile tiny.onnxtxt --lr 1e-50", {"--lr has", "at least 1.4e-45"}},
      {"beyond FP32", 2, "compile tiny.onnxtxt --lr 1e40", {"--lr has", "at most 3.4e38"}},
      {"beyond 64 bits",
       2,
       "compile tiny.onnxtxt --accumulate 99999999999999999999",
       {"--accumulate has", "from -9223372036854775808 to 9223372036854775807"}},
      {"a step of none",
       2,
       "compile tiny.onnxtxt --inference --emit step",
       {"--emit step does nothing with --inference"}},
      {"negative seed", 2, "run artifact.onnx --steps 1 --seed -1 " + train, {"--seed has"}},
      {"too many epochs",
       2,
       "run artifact.onnx --epochs 9223372036854775807 " + train,
       {"--epochs is too large"}},
      {"mapped twice",
       2,
       "run artifact.onnx --steps 1 --map x=x --map x=labels " + train,
       {"--map names input \"x\" twice"}},
      {"standard output", 2, "compile tiny.onnxtxt --loss mse -o -", {"--output cannot be", "./-"}},
  });
}

/// A variable of the shell that is not set.
TEST(ExitCode, TwoForEmptyValues) {
  const Workplace place;
  const auto before = place.list();
  for (const char* flag : {"-o", "--precision", "--policy", "--report", "--lr", "--loss"}) {
    std::vector<std::string> line = words("compile tiny.onnxtxt --optimizer sgd");
    line.insert(line.end(), {flag, ""});
    const Outcome outcome = place.run(line);
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr("needs a value: expected a value, got an empty text"));
  }
  EXPECT_EQ(place.run({"inspect", ""}).code, 2);
  EXPECT_EQ(place.list(), before);
}

TEST(ExitCode, ThreeForModels) {
  expect_refused(
      {
          {"garbage", 3, "compile garbage.onnx -o out.onnx --loss mse", {"garbage.onnx"}},
          {"truncated", 3, "run cut.onnx --steps 1 --data x.npy", {"cut.onnx"}},
          {"truncated, inspected", 3, "inspect cut.onnx", {"cut.onnx"}},
          {"bad text", 3, "compile bad.onnxtxt -o out.onnx --loss mse", {"bad.onnxtxt:1:"}},
          {"division", 3, "compile divides.onnxtxt --loss mse", {"\"d\" (Div)", "\"z\"", "0 at"}},
          {"folded", 3, "compile folds.onnxtxt --loss mse", {"\"d\" (Mod)", "division by zero"}},
          {"step",
           3,
           "compile range.onnxtxt --loss mse",
           {"\"d\" (Range)", "the delta \"z\" makes no range", "got 0"}},
          {"position",
           3,
           "compile at.onnxtxt --loss mse",
           {"\"y\" (SequenceAt)", "-2 to 1 in a sequence of length 2, got 5"}},
          {"no training step", 3, "run tiny.onnxtxt --steps 1 --data x.npy", {"halfnote compile"}},
      },
      [](Workplace& place) {
        place.write("garbage.onnx", "this is no model\xff\xff\xff");
        const std::string whole = place.read("artifact.onnx");
        place.write("cut.onnx", whole.substr(0, whole.size() / 2));
        place.write("bad.onnxtxt", "tiny (float[N] x => y {}");
        const auto write = [&](const char* name, const std::string& nodes) {
          place.write(name,
                      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
                      "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, "
                      "int64 a = {5}, int64 z = {0}, int64[2] k = {3, 4}> { h = MatMul (x, w) " +
                          nodes + " }");
        };
        write("divides.onnxtxt", "d = Div (k, z) c = Cast <to = 1> (d) y = Add (h, c)");
        write("folds.onnxtxt",
              "none = Sub (a, a) d = Mod (k, none) c = Cast <to = 1> (d) y = Add (h, c)");
        write("range.onnxtxt", "d = Range (z, a, z) c = Cast <to = 1> (d) y = Add (h, c)");
        write("at.onnxtxt", "q = SequenceConstruct (h, h) y = SequenceAt (q, a)");
      });
}

TEST(ExitCode, ThreeForAnArtifactThatIsCompiledInPart) {
  Workplace place;
  place.compile("part.hn.onnx", words("--precision fp16 --stop-after insert-casts"));
  EXPECT_EQ(place.run(words("inspect part.hn.onnx")).code, 0);
  const Outcome run = place.run(words(std::string("run part.hn.onnx ") + kTrain));
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err, HasSubstr("compiled only in part"));
}

TEST(ExitCode, FourForWhatHalfnoteLacks) {
  expect_refused({{"unknown operator",
                   4,
                   "compile strange.onnxtxt -o out.onnx --loss mse",
                   {"org.example", "Mystery"}}},
                 [](Workplace& place) {
                   place.write(
                       "strange.onnxtxt",
                       "<ir_version: 10, opset_import: [\"\" : 23, \"org.example\" : 1]>\n"
                       "g (float[N,2] x) => (float[N,2] y) < float[2,2] w = {1, 2, 3, 4} >\n"
                       "{ h = MatMul (x, w) y = org.example.Mystery (h) }\n");
                 });
}

TEST(ExitCode, FiveForData) {
  expect_refused(
      {
          {"label",
           5,
           "run artifact.onnx --steps 1 --batch 4 --data x=x.npy,labels=wrong.npy",
           {"sample 5", "0 to 2"}},
          {"cut off",
           5,
           "run artifact.onnx --steps 1 --batch 4 --data x=cut.npy,labels=labels.npy",
           {"cut.npy"}},
          {"shape",
           5,
           "run artifact.onnx --steps 1 --batch 4 --data x=labels.npy,labels=labels.npy",
           {"does not fit input \"x\""}},
          {"too few",
           5,
           std::string("run artifact.onnx --steps 1 --batch 64 ") +
               "--data x=x.npy,labels=labels.npy",
           {"at least 64", "got 22"}},
          {"one array short", 5, "run artifact.onnx --steps 1 --data x=x.npy", {"labels"}},
      },
      [](Workplace& place) { place.write("cut.npy", place.read("x.npy").substr(0, 300)); });
}

TEST(ExitCode, SixForNumerics) {
  const Workplace place;
  place.compile("wild.onnx", words("--lr 1e30"));
  const Outcome outcome = place.run(words(std::string("run wild.onnx --epochs 40 -q ") + kTrain));
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("at step "));
  EXPECT_FALSE(place.exists("runs/wild-1/model.onnx"));
}

TEST(ExitCode, SevenForMemory) {
  // Activations of 2^40 elements in a machine with 64 GiB.
  const Workplace place;
  place.write("vast.onnxtxt",
              "<ir_version: 10, opset_import: [\"\" : 23]>\n"
              "g (float[N,6] x) => (float loss) < float[6,2] w = {1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, "
              "1}, int64[4] shape = {1, 1048576, 131072, 1}, int64[2] axes = {1, 2} >\n"
              "{ h = MatMul (x, w) u = Unsqueeze (h, axes) y = Expand (u, shape) t = Tanh (y)\n"
              "  loss = ReduceMean <keepdims: int = 0> (t) }\n");
  ASSERT_EQ(place.run(words("compile vast.onnxtxt -q --loss-output loss -o vast.onnx")).code, 0);
  Launch limited;
  limited.memory_limit = uint64_t{64} << 30;
  const auto before = place.list();
  const Outcome outcome =
      place.run(words("run vast.onnx --steps 1 --batch 4 --data x=x.npy"), limited);
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("halfnote: error (memory): no memory"));
  EXPECT_THAT(outcome.err, HasSubstr("--batch"));
  EXPECT_EQ(place.list(), before);
  EXPECT_EQ(place.run(words("run vast.onnx --steps 1 --batch 4 --data x=x.npy --plan-memory")).code,
            0);
}

TEST(ExitCode, EightForFiles) {
  expect_refused({
      {"no model", 8, "compile missing.onnx -o out.onnx --loss mse", {"missing.onnx"}},
      {"no data", 8, "run artifact.onnx --steps 1 --data missing.npz", {"missing.npz"}},
      {"no folder", 8, "compile tiny.onnxtxt --loss cross_entropy -q -o none/out.onnx", {"none"}},
      {"run folder is a file",
       8,
       std::string("run artifact.onnx --steps 1 --run-dir x.npy ") + kTrain,
       {"x.npy"}},
  });
}

TEST(ExitCode, EightWhenTheDiskIsFull) {
  // A limit on the size of files stands for it: the write fails half-way.
  const Workplace place;
  place.write("old.onnx", "what was there before");
  const auto before = place.list();
  for (const char* file : {"out.onnx", "old.onnx"}) {
    Launch limited;
    limited.file_size_limit = 4096;
    const Outcome outcome = place.run(
        words(std::string("compile tiny.onnxtxt --loss cross_entropy -q -o ") + file), limited);
    EXPECT_EQ(outcome.code, 8) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(file));
    EXPECT_EQ(place.list(), before);
  }
  EXPECT_EQ(place.read("old.onnx"), "what was there before");
}

TEST(ExitCode, EightAndNoOutputIfTheSummaryCannotBeWritten) {
  const Workplace place;
  const auto before = place.list();
  Launch full;
  full.output = "/dev/full";
  const Outcome outcome =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy -o out.onnx"), full);
  EXPECT_EQ(outcome.code, 8) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("standard output"));
  EXPECT_EQ(place.list(), before);
}

TEST(ExitCode, EightAndNoOutputIfOneOfThemCannotBeWritten) {
  struct Row {
    const char* blocked;  // a folder stands in the place of this file
    const char* line;
  };
  const Row rows[] = {
      {"out.apply.onnx", "--emit step --accumulate 2 -o out.onnx"},
      {"out.states.safetensors", "--emit step --accumulate 2 -o out.onnx"},
      {"out.states.safetensors", "--emit step --report report.json -o out.onnx"},
      {"report.json", "--emit step --report report.json -o out.onnx"},
      {"report.json", "--report report.json -o out.onnx"},
      {"out.onnx", "--report report.json -o out.onnx"},
      {"report.json", "--report report.json -o old.onnx"},
      {"old.states.safetensors", "--emit step --report report.json -o old.onnx"},
  };
  for (const Row& row : rows) {
    const Workplace place;
    place.write("old.onnx", "what was there before");
    std::filesystem::create_directory(place / row.blocked);
    const auto before = place.list();
    const std::string line =
        std::string("compile tiny.onnxtxt --loss cross_entropy -q ") + row.line;
    const Outcome outcome = place.run(words(line));
    EXPECT_EQ(outcome.code, 8) << line << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(row.blocked)) << line;
    EXPECT_EQ(place.list(), before) << row.blocked << ": " << line;
    EXPECT_EQ(place.read("old.onnx"), "what was there before") << line;
    std::filesystem::remove(place / row.blocked);
    EXPECT_EQ(place.run(words(line)).code, 0) << line;
    EXPECT_TRUE(place.exists(row.blocked)) << line;
  }
}

TEST(ExitCode, TwoForOutputsInOnePlace) {
  const std::string step = "compile tiny.onnxtxt --loss cross_entropy --emit step ";
  expect_refused({
      {"the states", 2, step + "-o out.onnx --report out.states.safetensors", {"the same file"}},
      {"the update", 2, step + "--accumulate 2 -o out.onnx --report out.apply.onnx", {"the same"}},
  });
}

TEST(ExitCode, AFailedCompileLeavesTheOldArtifact) {
  const Workplace place;
  place.compile("artifact.onnx");
  const std::string before = place.read("artifact.onnx");
  for (const char* line : {"compile tiny.onnxtxt --loss nonsense -o artifact.onnx",
                           "compile missing.onnx --loss mse -o artifact.onnx",
                           "compile tiny.onnxtxt --loss cross_entropy --fp32-node nothing "
                           "--precision bf16 -o artifact.onnx"}) {
    EXPECT_NE(place.run(words(line)).code, 0) << line;
    EXPECT_TRUE(place.read("artifact.onnx") == before) << line;
  }
}

TEST(ExitCode, NineForCheckpoints) {
  const Workplace place;
  place.compile("artifact.onnx");
  place.compile("other.onnx", words("--lr 0.5"));
  const std::string run = std::string("--run-dir run -q --steps 4 ") + kTrain;
  EXPECT_EQ(place.run(words("run artifact.onnx --resume " + run)).code, 9);
  EXPECT_EQ(place.run(words(std::string("run artifact.onnx --resume --steps 1 ") + kTrain)).code,
            9);
  ASSERT_EQ(place.run(words("run artifact.onnx --save-every 0 " + run)).code, 0);
  const Outcome other = place.run(words("run other.onnx --resume " + run));
  EXPECT_EQ(other.code, 9);
  EXPECT_THAT(other.err, HasSubstr("another artifact"));
  const std::string state = "run/checkpoints/step-00000004/state.safetensors";
  std::string bytes = place.read(state);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 0x10);
  place.write(state, bytes);
  const Outcome damaged = place.run(words("run artifact.onnx --resume " + run));
  EXPECT_EQ(damaged.code, 9);
  EXPECT_THAT(damaged.err, HasSubstr("damaged"));
}

TEST(ExitCode, ErrorsAsJson) {
  const Workplace place;
  const Outcome outcome = place.run(words("--json-errors compile missing.onnx --loss mse"));
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr("{\"code\":8,\"kind\":\"io\""));
  const Outcome usage = place.run(words("compile --json-errors --precison bf16 x.onnx"));
  EXPECT_EQ(usage.code, 2);
  EXPECT_THAT(usage.err, HasSubstr("{\"code\":2,\"kind\":\"usage\""));
}

TEST(ExitCode, NamesFromFilesCannotSteerTheTerminal) {
  const Workplace place;
  place.write("x\x1b[31m.onnx", "no model");
  const Outcome outcome = place.run({"inspect", "x\x1b[31m.onnx"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace halfnote::cli_test
