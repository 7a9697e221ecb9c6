// The folder of a run, and all other files that a run must not write over.
#include <map>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHuggingFace = R"({"architectures": ["BertModel"], "hidden_size": 768})";

/// Names and contents of all files under the workplace.
std::map<std::string, std::string> everything(const Workplace& place) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(place / ".")) {
    const std::string name = fs::relative(entry.path(), place / ".").string();
    files[name] = entry.is_regular_file() ? place.read(name) : "a folder";
  }
  return files;
}

std::string run_line(const std::string& more) {
  return std::string("run a.onnx --steps 2 -q ") + kTrain + " " + more;
}

/// Refused with exit code `code`, all of `said` in the message, and not a byte of difference.
void expect_untouched(const Workplace& place, const std::string& line, int code,
                      const std::vector<std::string>& said) {
  SCOPED_TRACE(line);
  const auto before = everything(place);
  const Outcome outcome = place.run(words(line));
  EXPECT_EQ(outcome.code, code) << outcome.err;
  for (const std::string& text : said) EXPECT_THAT(outcome.err, HasSubstr(text));
  EXPECT_EQ(everything(place), before);
}

TEST(RunFolder, AForeignFolderIsLeftAsItIs) {
  const Workplace place;
  place.compile("a.onnx");
  struct Row {
    const char *file, *content;
  };
  // The names of ours, without their content.
  const Row rows[] = {
      {"config.json", kHuggingFace}, {"config.json", "[]"},
      {"model.onnx", "a model"},     {"lock", ""},
      {"notes.txt", "mine"},         {"metrics.jsonl", "{}\n"},
      {"LATEST", "checkpoint-500"},  {"plan.json", "{\"a\":1}"},
      {"config.json", "{"},
  };
  for (const Row& row : rows) {
    fs::remove_all(place / "dir");
    fs::create_directory(place / "dir");
    place.write(std::string("dir/") + row.file, row.content);
    if (row.file == std::string("lock")) place.write("dir/config.json", kHuggingFace);
    for (const char* more : {"", " --resume"}) {
      expect_untouched(place, run_line(std::string("--run-dir dir") + more), 2,
                       {"dir: the run folder holds what is not of a run", row.file,
                        "choose another one with --run-dir"});
    }
  }
  EXPECT_THAT(place.run(words(run_line("--run-dir dir"))).err, Not(HasSubstr("remove")));
}

TEST(RunFolder, CheckpointsOfOthersAreNone) {
  const Workplace place;
  place.compile("a.onnx");
  fs::create_directories(place / "dir/checkpoints/epoch-1");
  place.write("dir/checkpoints/epoch-1/manifest.json", "{\"format\": \"of others\"}");
  expect_untouched(place, run_line("--run-dir dir"), 2, {"the folder holds checkpoints"});
}

TEST(RunFolder, TheFolderOfTheArtifactIsNone) {
  const Workplace place;
  place.compile("a.onnx");
  fs::create_directory(place / "dir");
  place.compile("dir/model.onnx");
  expect_untouched(place, std::string("run dir/model.onnx --steps 2 -q --run-dir dir ") + kTrain, 2,
                   {"the folder holds model.onnx"});
}

TEST(RunFolder, AnEmptyOneAndOneOfARunAreTaken) {
  const Workplace place;
  place.compile("a.onnx");
  fs::create_directory(place / "dir");
  EXPECT_EQ(place.run(words(run_line("--run-dir dir"))).code, 0);
  EXPECT_THAT(place.run(words(run_line("--run-dir dir"))).err, HasSubstr("holds another run"));
  // What the user put beside it does no harm, nor that the configuration went.
  place.write("dir/notes.txt", "mine");
  const std::string longer =
      std::string("run a.onnx --steps 3 -q --resume --run-dir dir ") + kTrain;
  EXPECT_EQ(place.run(words(longer)).code, 0);
  fs::remove(place / "dir/config.json");
  EXPECT_EQ(place.run(words(longer)).code, 0);
}

TEST(RunFolder, WhatEndedBeforeItsFirstFilesIsOurs) {
  const Workplace place;
  place.compile("a.onnx");
  fs::create_directory(place / "dir");
  place.write("dir/lock", "process 12345\n");
  place.write("dir/metrics.jsonl", "");
  EXPECT_EQ(place.run(words(run_line("--run-dir dir"))).code, 0);
}

TEST(RunFolder, ItIsNotToBeRemovedWithFilesOfTheUser) {
  const Workplace place;
  place.compile("a.onnx", words("--lr 1e30 --optimizer sgd"));
  const std::string line =
      std::string("run a.onnx --steps 8 --save-every 0 --run-dir dir ") + kTrain;
  EXPECT_EQ(place.run(words(line)).code, 6);
  EXPECT_THAT(place.run(words(line)).err, HasSubstr("begin it again by --resume"));
  place.write("dir/notes.txt", "mine");
  for (const char* more : {"", " --resume"}) {
    const Outcome outcome = place.run(words(line + more));
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.err, Not(HasSubstr("remove"))) << more;
  }
}

TEST(RunFolder, OutputsNeverTakeThePlaceOfData) {
  const Workplace place;
  place.compile("a.onnx");
  place.write("e.npy", place.read("labels.npy"));
  fs::create_directory_symlink(place / ".", place / "link");
  const std::string evaluation = "--eval-data x=x.npy,labels=e.npy ";
  for (const char* output : {"--export x.npy", "--export labels.npy", "--export link/labels.npy",
                             "--export e.npy", "--profile=x.npy", "--profile=e.npy"}) {
    expect_untouched(place, run_line(evaluation + output), 2, {"data and --", "the same file"});
  }
  place.write("p.trace.json", place.read("x.npy"));
  fs::create_hard_link(place / "x.npy", place / "q.trace.json");
  expect_untouched(place, run_line("--profile=q.json"), 2,
                   {"--data and the trace of --profile are the same file"});
}

TEST(RunFolder, OutputsNeverTakeThePlaceOfADataSet) {
  const Workplace place;
  place.compile("a.onnx");
  fs::create_directories(place / "set/cifar-10-batches-bin");
  const char* names[] = {"train-images-idx3-ubyte", "t10k-labels.idx1-ubyte.gz",
                         "cifar-10-batches-bin/data_batch_5.bin",
                         "cifar-10-batches-bin/test_batch.bin"};
  for (const std::string name : names) {
    place.write("set/" + name, "data");
    const std::string kind = name.starts_with("cifar") ? "cifar10" : "mnist";
    expect_untouched(place, "run a.onnx --steps 1 --data " + kind + ":set --export set/" + name, 2,
                     {"--data and --export are the same file"});
  }
}

TEST(RunFolder, OutputsNeverTakeThePlaceOfItsOwnFiles) {
  const Workplace place;
  place.compile("a.onnx");
  for (const std::string folder : {"new", "old"}) {
    if (folder == "old") {
      ASSERT_EQ(place.run(words(run_line("--run-dir old"))).code, 0);
    }
    for (const char* name :
         {"config.json", "metrics.jsonl", "LATEST", "lock", "memory.json", "plan.json",
          "checkpoints", "checkpoints/x.onnx", "checkpoints/step-00000002/state.safetensors"}) {
      for (const char* flag : {"--export ", "--profile="}) {
        expect_untouched(place, run_line("--run-dir " + folder + " " + flag + folder + "/" + name),
                         2,
                         {name[0] == 'c' && name[1] == 'h' ? "is among the checkpoints of the run"
                                                           : "are the same file"});
      }
    }
    expect_untouched(place, run_line("--run-dir " + folder + " --export " + folder), 2,
                     {"the run folder and --export are the same file"});
    expect_untouched(place,
                     run_line("--run-dir " + folder + " --profile=" + folder + "/model.onnx"), 2,
                     {"the trained model and --profile are the same file"});
  }
}

TEST(RunFolder, TheModelMayGoIntoTheNewFolderUnderAnyName) {
  const Workplace place;
  place.compile("a.onnx");
  EXPECT_EQ(place.run(words(run_line("--run-dir r --export r/best.onnx --profile=r/p.json"))).code,
            0);
  EXPECT_TRUE(place.exists("r/best.onnx"));
  EXPECT_TRUE(place.exists("r/p.trace.json"));
  EXPECT_FALSE(place.exists("r/model.onnx"));
  EXPECT_EQ(place.run(words(run_line("--export ./runs/a-1/model.onnx"))).code, 0);
  EXPECT_TRUE(place.exists("runs/a-1/model.onnx"));
  expect_untouched(place, run_line("--run-dir s --export s/deeper/best.onnx"), 8,
                   {"cannot be written"});
}

TEST(RunFolder, AFolderIsNoPlaceForTheModel) {
  const Workplace place;
  place.compile("a.onnx");
  fs::create_directory(place / "models");
  for (const char* output : {"--export models", "--export models/", "--export new/"}) {
    expect_untouched(place, run_line(output), 8, {"cannot be written there"});
  }
  expect_untouched(place, run_line("--export s/ --run-dir s"), 2, {"the same file"});
}

TEST(Compile, OutputsNeverTakeThePlaceOfTheDeepSpeedFile) {
  const Workplace place;
  place.write("ds.json", "{}");
  for (const char* output : {"-o ds.json", "--report ds.json", "-o ./ds.json"}) {
    expect_untouched(
        place,
        std::string("compile tiny.onnxtxt --loss cross_entropy --deepspeed ds.json ") + output, 2,
        {"--deepspeed and", "are the same file"});
  }
}

}  // namespace
}  // namespace halfnote::cli_test
