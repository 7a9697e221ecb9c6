// halfnote run: the run folder, the tables, signals and resume, all through the program.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cli/run_report.h"
#include "runtime/core/pages.h"
#include "tests/cli/support.h"
#include "tests/sanitizer.h"

namespace halfnote::cli_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

/// Steps and losses of metrics.jsonl, without times.
std::vector<std::string> losses(const Workplace& place, const std::string& run) {
  std::istringstream in(place.read(run + "/metrics.jsonl"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("loss")) lines.push_back(json["step"].dump() + " " + json["loss"].dump());
  }
  return lines;
}

std::string train(const std::string& artifact, const std::string& more) {
  return "run " + artifact + " " + kTrain + " " + more;
}

TEST(Run, FillsTheRunFolder) {
  const Workplace place;
  place.compile("tiny.hn.onnx", words("--precision bf16"));
  const Outcome outcome = place.run(words(train("tiny.hn.onnx",
                                                "--epochs 2 --eval-data "
                                                "x=x.npy,labels=labels.npy")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(place.list("runs/tiny-1"), IsSupersetOf({"LATEST", "checkpoints", "config.json",
                                                       "metrics.jsonl", "model.onnx"}));
  EXPECT_EQ(place.read("runs/tiny-1/LATEST"), "checkpoints/step-00000010\n");
  EXPECT_EQ(losses(place, "runs/tiny-1").size(), 10u);
  const auto config = nlohmann::json::parse(place.read("runs/tiny-1/config.json"));
  EXPECT_EQ(config["batch"], 4);
  EXPECT_EQ(config["policy"]["precision"], "bf16");
  for (const char* part :
       {"device=", "precision=bf16", "parameters=", "steps=\"10 = 2 epochs of 5\"", "memory=",
        "peak_memory=", "run_folder=runs/tiny-1", "step=1/10 ", "\nstep=5 evaluation_loss=",
        "evaluation_top-1=", "time_per_step=", "model=runs/tiny-1/model.onnx"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos);
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  // The next run gets the next number; the trained model is plain ONNX that can be inspected.
  EXPECT_EQ(place.run(words(train("tiny.hn.onnx", "--steps 1 -q"))).code, 0);
  EXPECT_THAT(place.list("runs"), ElementsAre("tiny-1", "tiny-2"));
  const Outcome inspected = place.run(words("inspect runs/tiny-1/model.onnx"));
  EXPECT_EQ(inspected.code, 0);
  EXPECT_THAT(inspected.out, Not(HasSubstr("ai.halfnote")));
}

TEST(Run, QuietSaysNothingAndExportGoesWhereItShould) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome outcome =
      place.run(words(train("tiny.hn.onnx", "--steps 3 -q --run-dir r --export trained.onnx")));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out + outcome.err, "");
  EXPECT_TRUE(place.exists("trained.onnx"));
  EXPECT_FALSE(place.exists("r/model.onnx"));
}

TEST(Run, PlanMemoryTrainsNothing) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const auto before = place.list();
  const Outcome outcome = place.run(words(train("tiny.hn.onnx", "--steps 3 --plan-memory")));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"state_weight=", "state_moment=", "step=", "constants=", "total=", "batches=", "peak="}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_EQ(place.list(), before);
}

TEST(Run, ThePeakIsWhatWasPredicted) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome outcome = place.run(words(train("tiny.hn.onnx", "--steps 5 --run-dir r")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(" predicted, "));
  const auto memory = nlohmann::json::parse(place.read("r/memory.json"));
  size_t sum = 0;
  for (const char* part : {"state", "arena", "constants", "batches", "program"})
    sum += memory[part].get<size_t>();
  EXPECT_EQ(memory["predicted_peak"], std::max(sum, memory["before"].get<size_t>()));
  EXPECT_GT(memory["program"], size_t{1} << 20);
  if (under_address_sanitizer()) return;  // which keeps what is freed
  // The model is tiny: what differs is code that comes into memory when it first runs.
  const auto measured = memory["measured_peak"].get<double>();
  EXPECT_NEAR(measured / memory["predicted_peak"].get<double>(), 1, 0.1);
}

// The emulated device's memory is the process's, and in its peak once.
TEST(Run, ADeviceHasAPeakOfItsOwn) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome outcome = place.run(
      words(train("tiny.hn.onnx", "--steps 5 --run-dir r --device cuda-emulated --save-every 0")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("device_memory=\""));
  const auto memory = nlohmann::json::parse(place.read("r/memory.json"));
  const auto device = memory["predicted_device"].get<size_t>();
  EXPECT_EQ(memory["measured_device"], device);
  EXPECT_GE(device, memory["arena"].get<size_t>() + memory["state"].get<size_t>());
  EXPECT_GE(memory["predicted_peak"], device);
  // Without a step the same is said, but for the tables of kernels.
  const Outcome planned = place.run(
      words(train("tiny.hn.onnx", "--steps 5 --run-dir p --device cuda-emulated --plan-memory")));
  EXPECT_EQ(planned.code, 0) << planned.err;
  const std::string mebibytes = fmt::format("{:.1f}", static_cast<double>(device) / 0x1p20);
  EXPECT_THAT(planned.out, HasSubstr("device_memory=\"" + mebibytes + " MiB")) << planned.out;
  if (under_address_sanitizer()) return;
  // The emulation's own code and stacks come with the first step: 10 % of so little.
  EXPECT_NEAR(memory["measured_peak"].get<double>() / memory["predicted_peak"].get<double>(), 1,
              0.2);
}

// Beside a device's own memory the process holds no arena.
TEST(Run, AnArenaOfADeviceIsNotTheHosts) {
  cli::PredictedMemory predicted;
  predicted.plan.state = 1000;
  predicted.plan.arena = 500;
  predicted.plan.constants = 30;
  predicted.batches = 7;
  predicted.program = 2;
  EXPECT_EQ(predicted.total(), 1539u);
  predicted.device = 1600;
  EXPECT_EQ(predicted.total(), 2639u);
  predicted.own = true;
  EXPECT_EQ(predicted.total(), 1039u);
  predicted.before = 1040;
  EXPECT_EQ(predicted.total(), 1040u);
}

// Reading thousands of small weights takes more than the steps with them do.
TEST(Run, WhatReadingTheModelTookIsPredicted) {
  constexpr int kLayers = 6000;
  const Workplace place;
  std::ostringstream weights, nodes;
  for (int i = 0; i < kLayers; ++i) {
    weights << (i == 0 ? "" : ", ") << "float[1] w" << i << " = {0}";
    nodes << "h" << i + 1 << " = Add (" << (i == 0 ? "x" : "h" + std::to_string(i)) << ", w" << i
          << ")\n";
  }
  place.write("many.onnxtxt",
              "<ir_version: 10, opset_import: [\"\" : 23]>\nm (float[N,6] x) => "
              "(float[N,6] h6000) <" +
                  weights.str() + "> {\n" + nodes.str() + "}");
  ASSERT_EQ(place.run(words("compile many.onnxtxt --loss cross_entropy -q -o many.hn.onnx")).code,
            0);
  const Outcome outcome =
      place.run(words(train("many.hn.onnx", "--steps 1 --run-dir r --save-every 0")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto memory = nlohmann::json::parse(place.read("r/memory.json"));
  if (under_address_sanitizer()) return;
  EXPECT_GT(memory["before"].get<size_t>(), size_t{64} << 20);
  EXPECT_NEAR(memory["measured_peak"].get<double>() / memory["predicted_peak"].get<double>(), 1,
              0.02);
}

// Accuracy is counted in the scores as they lie, and an evaluation needs no copies of them.
TEST(Run, ManyClassesAreInThePeakOnce) {
  const Workplace place;
  place.write("wide.onnxtxt", R"(<ir_version: 10, opset_import: ["" : 23]>
m (float[N,6] x) => (float[N,900000] y) <float[6] w = {1, 2, 3, 4, 5, 6}, int64[2] r = {1, 150000}> {
  h = Mul (x, w)
  y = Tile (h, r)
})");
  for (const char* precision : {"fp32", "bf16"}) {
    ASSERT_EQ(place
                  .run(words("compile wide.onnxtxt --loss cross_entropy -q -o wide.hn.onnx "
                             "--precision " +
                             std::string(precision)))
                  .code,
              0);
    for (const std::string more : {"", " --eval-data x=x.npy,labels=labels.npy --eval-every 2"}) {
      const std::string folder = precision + std::to_string(more.size());
      const Outcome outcome =
          place.run(words(train("wide.hn.onnx", "--steps 4 --run-dir " + folder + more)));
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      if (under_address_sanitizer()) continue;
      // Code that comes into memory on its way is up to 2 MB, a copy of the scores 7.
      const auto memory = nlohmann::json::parse(place.read(folder + "/memory.json"));
      EXPECT_NEAR(memory["measured_peak"].get<double>() / memory["predicted_peak"].get<double>(), 1,
                  0.04)
          << folder << memory;
    }
  }
}

TEST(Run, AProfileIsInNoPeak) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome outcome =
      place.run(words(train("tiny.hn.onnx", "--steps 3 --profile --run-dir r")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  if (!reset_resident_peak()) GTEST_SKIP() << "the system does not forget a peak";
  if (under_address_sanitizer()) return;
  const auto memory = nlohmann::json::parse(place.read("r/memory.json"));
  const auto measured = memory["measured_peak"].get<double>();
  EXPECT_NEAR(measured / memory["predicted_peak"].get<double>(), 1, 0.1)
      << "measuring the machine's speed takes 100 MB and more";
}

TEST(Run, LessMemoryTrainsTheSame) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome plain = place.run(words(train("tiny.hn.onnx", "--steps 3 --run-dir a")));
  const Outcome small =
      place.run(words(train("tiny.hn.onnx", "--steps 3 --run-dir b --memory 0.9")));
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(small.code, 0) << small.err;
  EXPECT_EQ(losses(place, "a"), losses(place, "b"));
  EXPECT_EQ(plain.out.find("recomputation="), std::string::npos);
  for (const char* part : {"recomputation=", "activations=", " planned\""}) {
    EXPECT_THAT(small.out, HasSubstr(part));
  }
  for (const char* bad : {"0", "1.5", "-1", "3XB", "much", "0GB", "1e300GB"}) {
    const Outcome refused =
        place.run(words(train("tiny.hn.onnx", std::string("--steps 1 --memory=") + bad)));
    EXPECT_EQ(refused.code, 2) << bad;
    EXPECT_THAT(refused.err, HasSubstr("a share up to 1 as in 0.6")) << bad;
  }
}

TEST(Run, ALimitThatCannotBeReachedIsNotCalledEnough) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome outcome = place.run(words(train("tiny.hn.onnx", "--steps 1 --memory 1B")));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("NOT reached"));
  EXPECT_THAT(outcome.err, HasSubstr("warning: the limit of --memory is not reached"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("none is needed")));
}

TEST(Run, ProfileIsATableAndTwoFiles) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome outcome =
      place.run(words(train("tiny.hn.onnx", "--steps 4 --profile --run-dir r")));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"the machine's peak", "by op and kernel", "by shape", "matmul peak",
                           "mean of 3 runs after the first", "r/profile.trace.json"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  const auto profile = nlohmann::json::parse(place.read("r/profile.json"));
  EXPECT_EQ(profile["programs"][0]["program"], "step");
  EXPECT_EQ(profile["programs"][0]["runs"], 3);
  EXPECT_GT(nlohmann::json::parse(place.read("r/profile.trace.json"))["traceEvents"].size(), 9u);

  const Outcome elsewhere =
      place.run(words(train("tiny.hn.onnx", "--steps 2 -q --profile=p.json --run-dir s")));
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.err;
  EXPECT_EQ(elsewhere.out + elsewhere.err, "");
  EXPECT_TRUE(place.exists("p.json"));
  EXPECT_TRUE(place.exists("p.trace.json"));
  EXPECT_FALSE(place.exists("s/profile.json"));

  const Outcome nowhere =
      place.run(words(train("tiny.hn.onnx", "--steps 2 --profile=no/p.json --run-dir t")));
  EXPECT_EQ(nowhere.code, 8);
  EXPECT_THAT(nowhere.err, HasSubstr("the profile cannot be written there"));
  EXPECT_FALSE(place.exists("t"));
}

TEST(Run, TuneLeavesAPlanThatGivesTheSameBytesAgain) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome tuned = place.run(words(train("tiny.hn.onnx", "--epochs 1 --tune --run-dir a")));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_THAT(tuned.out, HasSubstr("a/plan.json: kernels of"));
  const auto plan = nlohmann::json::parse(place.read("a/plan.json"));
  EXPECT_EQ(plan["format"], "halfnote-plan");
  EXPECT_EQ(plan["threads"], 1);
  ASSERT_EQ(
      place.run(words(train("tiny.hn.onnx", "--epochs 1 -q --plan a/plan.json --run-dir b"))).code,
      0);
  EXPECT_EQ(losses(place, "a"), losses(place, "b"));
  EXPECT_TRUE(place.read("a/model.onnx") == place.read("b/model.onnx"));
  EXPECT_EQ(place.read("a/plan.json"), place.read("b/plan.json"));
  // A resumed run goes on with its own plan, and says so where it cannot.
  const Outcome on = place.run(words(train("tiny.hn.onnx", "--epochs 2 --resume --run-dir a")));
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_THAT(on.out, HasSubstr("a/plan.json"));
  EXPECT_EQ(on.err, "");
  std::filesystem::remove(place / "b/plan.json");
  const Outcome without =
      place.run(words(train("tiny.hn.onnx", "--epochs 2 --resume --run-dir b")));
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_THAT(without.err, HasSubstr("not bit for bit"));
}

TEST(Run, TuneOnADeviceLeavesAPlanOfTheLibrarysAlgorithms) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const std::string device = "-q --steps 3 --device cuda-emulated ";
  const Outcome tuned = place.run(words(train("tiny.hn.onnx", device + "--tune --run-dir a")));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  auto plan = nlohmann::json::parse(place.read("a/plan.json"));
  EXPECT_EQ(plan["device"], "emulated CUDA device");
  ASSERT_FALSE(plan["kernels"].empty());
  EXPECT_THAT(plan["kernels"][0]["kernel"].get<std::string>(), HasSubstr("blas."));
  const std::string with = device + "--plan a/plan.json --run-dir ";
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", with + "b"))).code, 0);
  EXPECT_EQ(losses(place, "a"), losses(place, "b"));
  EXPECT_EQ(place.read("a/plan.json"), place.read("b/plan.json"));
  // A resumed run goes on with it; without it the arithmetic is said to be another.
  const std::string on = "-q --steps 4 --device cuda-emulated --resume --run-dir ";
  const Outcome resumed = place.run(words(train("tiny.hn.onnx", on + "a")));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.err, "");
  std::filesystem::remove(place / "b/plan.json");
  EXPECT_THAT(place.run(words(train("tiny.hn.onnx", on + "b"))).err, HasSubstr("not bit for bit"));
  // It is of no use on the CPU, nor where the library lacks the algorithm.
  const Outcome cpu = place.run(words(train("tiny.hn.onnx", "--steps 1 --plan a/plan.json")));
  EXPECT_EQ(cpu.code, 2);
  EXPECT_THAT(cpu.err, HasSubstr("measured elsewhere"));
  for (auto& entry : plan["kernels"]) {
    const std::string kernel = entry["kernel"];
    entry["kernel"] = kernel.substr(0, kernel.find(' ')) + " lt:9:gone";
  }
  place.write("gone.json", plan.dump());
  const Outcome gone =
      place.run(words(train("tiny.hn.onnx", device + "--plan gone.json --run-dir c")));
  EXPECT_EQ(gone.code, 2);
  EXPECT_THAT(gone.err, testing::StartsWith("halfnote: error (usage): gone.json: "));
  EXPECT_THAT(gone.err, HasSubstr("an algorithm that the emulated library does not take"));
  EXPECT_FALSE(place.exists("c"));
}

TEST(Run, KernelsAreThoseOfTheDevice) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const std::string own = "-q --steps 1 --kernels own --run-dir ";
  const Outcome there = place.run(words(train("tiny.hn.onnx", own + "a --device cuda-emulated")));
  EXPECT_NE(there.code, 2) << there.err;
  EXPECT_EQ(place.run(words(train("tiny.hn.onnx", own + "b"))).code, 2);
}

TEST(Run, ATunedRunIsResumedElsewhereWithoutItsPlan) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", "--epochs 1 -q --tune --run-dir a"))).code, 0);
  const std::string plan = place.read("a/plan.json");
  const std::string elsewhere =
      "run tiny.hn.onnx --data x=x.npy,labels=labels.npy --batch 4 --threads 2 -q --resume ";
  const Outcome on = place.run(words(elsewhere + "--epochs 2 --run-dir a"));
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_THAT(on.err, HasSubstr("warning: a/plan.json was measured elsewhere (expected 2 threads, "
                                "got 1 threads)"));
  EXPECT_THAT(on.err, HasSubstr("--plan OTHER/plan.json"));
  EXPECT_THAT(on.err, HasSubstr("not bit for bit"));
  EXPECT_EQ(place.read("a/plan.json"), plan) << "of use where it was measured";
  // One that is named is meant.
  const Outcome named = place.run(words(elsewhere + "--epochs 3 --run-dir a --plan a/plan.json"));
  EXPECT_EQ(named.code, 2);
  EXPECT_THAT(named.err, HasSubstr("--tune in another run folder"));
  // What the warning advises.
  ASSERT_EQ(place
                .run(words("run tiny.hn.onnx --data x=x.npy,labels=labels.npy --batch 4 "
                           "--threads 2 -q --steps 1 --tune --run-dir OTHER"))
                .code,
            0);
  const Outcome advised =
      place.run(words(elsewhere + "--epochs 3 --run-dir a --plan OTHER/plan.json"));
  EXPECT_EQ(advised.code, 0) << advised.err;
  EXPECT_EQ(place.read("a/plan.json"), place.read("OTHER/plan.json"));
}

TEST(Run, RefusesPlansOfOtherMachinesAndContradictions) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", "--steps 1 -q --tune --run-dir a"))).code, 0);
  const Outcome threads = place.run(
      words("run tiny.hn.onnx --data x=x.npy,labels=labels.npy --batch 4 --threads 2 --steps 1 "
            "--plan a/plan.json"));
  EXPECT_EQ(threads.code, 2);
  EXPECT_THAT(threads.err, HasSubstr("2 threads"));
  place.write("p.json", "{}");
  EXPECT_EQ(place.run(words(train("tiny.hn.onnx", "--steps 1 --plan p.json"))).code, 5);
  EXPECT_EQ(place.run(words(train("tiny.hn.onnx", "--steps 1 --plan none.json"))).code, 8);
  for (const char* other :
       {"--tune --plan a/plan.json", "--tune --kernels reference", "--tune --resume",
        "--tune --plan-memory", "--plan a/plan.json --kernels reference"}) {
    EXPECT_EQ(place.run(words(train("tiny.hn.onnx", std::string("--steps 1 ") + other))).code, 2)
        << other;
  }
}

TEST(Run, TheSameRunGivesTheSameBytes) {
  const Workplace place;
  place.compile("tiny.hn.onnx", words("--precision fp16"));
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", "--epochs 3 -q --run-dir a"))).code, 0);
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", "--epochs 3 -q --run-dir b"))).code, 0);
  EXPECT_EQ(losses(place, "a"), losses(place, "b"));
  EXPECT_TRUE(place.read("a/model.onnx") == place.read("b/model.onnx"));
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", "--epochs 3 -q --run-dir c --seed 1"))).code, 0);
  EXPECT_NE(losses(place, "a"), losses(place, "c"));
}

TEST(Run, LimitSamplesTakesTheFirst) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome outcome = place.run(words(train("tiny.hn.onnx", "--epochs 1 --limit-samples 9")));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("9 samples"));
  EXPECT_THAT(outcome.out, HasSubstr("2 = 1 epoch of 2"));
}

/// The arguments that train the fixture of a graph network, whose inputs have no batch.
std::vector<std::string> graph_network(const char* more) {
  const std::string data = std::string(HALFNOTE_SOURCE_DIR) + "/tests/fixtures/models/gcn/";
  return words("run gcn.hn.onnx --steps 6 --data " + data + "inputs.npz " + more);
}

void compile_graph_network(const Workplace& place, const char* precision) {
  const std::string model =
      std::string(HALFNOTE_SOURCE_DIR) + "/tests/fixtures/models/gcn/model.onnx";
  const Outcome outcome =
      place.run(words("compile " + model + " -o gcn.hn.onnx --loss-output 60 --optimizer sgd " +
                      "--lr 0.05 --precision " + precision));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Run, FeedsInputsWithoutABatchWhole) {
  // PyTorch's losses of the fixture.
  const double kLosses[] = {1.36200154, 1.35427761, 1.34772623, 1.34114540, 1.33452749, 1.32786524};
  for (const char* precision : {"fp32", "bf16"}) {
    const Workplace place;
    compile_graph_network(place, precision);
    const Outcome outcome = place.run(graph_network("--run-dir r"));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("ei i64[2,14]: whole"));
    std::istringstream in(place.read("r/metrics.jsonl"));
    size_t step = 0;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("loss") || json.contains("event")) continue;
      ASSERT_LT(step, std::size(kLosses));
      // f32: 8 roundings of 1.2e-7; bf16 activations: 2^-8, as the fixture's own bar.
      const double bound = std::string_view(precision) == "fp32" ? 1e-6 : 4e-3;
      EXPECT_NEAR(json["loss"].get<double>(), kLosses[step++], bound) << precision;
    }
    EXPECT_EQ(step, std::size(kLosses));
    // A run that is resumed takes the same arrays.
    EXPECT_EQ(place.run(graph_network("--whole all -q --run-dir s")).code, 0);
    EXPECT_EQ(losses(place, "r"), losses(place, "s"));
  }
}

TEST(Run, NamesWhatCannotBeFedWhole) {
  const Workplace place;
  compile_graph_network(place, "fp32");
  const Outcome batch = place.run(graph_network("--batch 4"));
  EXPECT_EQ(batch.code, 2);
  EXPECT_THAT(batch.err, HasSubstr("no input has a dim for the batch"));
  const Outcome name = place.run(graph_network("--whole eii"));
  EXPECT_EQ(name.code, 2);
  EXPECT_THAT(name.err, HasSubstr("--whole eii: no such input"));
  EXPECT_THAT(name.err, HasSubstr("did you mean ei?"));
  // Six nodes as six samples: the edges alone are whole.
  const Outcome some = place.run(graph_network("--whole ei -q"));
  EXPECT_EQ(some.code, 0) << some.err;
}

/// Sends the signal once the run has logged `lines` steps.
Launch interrupt(const Workplace& place, const std::string& run, int signal, size_t lines) {
  Launch launch;
  launch.meanwhile = [&place, run, signal, lines](pid_t child) {
    for (int i = 0; i < 3000; ++i) {
      const std::string text =
          place.exists(run + "/metrics.jsonl") ? place.read(run + "/metrics.jsonl") : std::string();
      if (std::count(text.begin(), text.end(), '\n') >= static_cast<std::ptrdiff_t>(lines)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ::kill(child, signal);
  };
  return launch;
}

TEST(Run, ASignalSavesAndResumeIsBitIdentical) {
  const Workplace place;
  place.compile("tiny.hn.onnx", words("--precision bf16"));
  // Long enough that the signal comes in the middle; the unbroken run is as long as the other.
  const std::string length = "--steps 8000 -q --save-every 0 --log-every 100 ";
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", length + "--run-dir unbroken"))).code, 0);
  const Outcome stopped = place.run(words(train("tiny.hn.onnx", length + "--run-dir broken")),
                                    interrupt(place, "broken", SIGTERM, 2));
  ASSERT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("saved in broken/checkpoints/step-"));
  EXPECT_THAT(stopped.err, HasSubstr("--resume"));
  EXPECT_FALSE(place.exists("broken/model.onnx"));
  const Outcome resumed =
      place.run(words(train("tiny.hn.onnx", length + "--run-dir broken --resume")));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(place.read("broken/model.onnx") == place.read("unbroken/model.onnx"));
  EXPECT_EQ(losses(place, "broken"), losses(place, "unbroken"));
}

TEST(Run, CtrlCIsTheSame) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  const Outcome stopped =
      place.run(words(train("tiny.hn.onnx", "--steps 100000000 -q --run-dir r --save-every 0")),
                interrupt(place, "r", SIGINT, 1));
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_TRUE(place.exists("r/LATEST"));
}

TEST(Run, ResumeWithoutAFolderTakesTheLastRun) {
  const Workplace place;
  place.compile("tiny.hn.onnx");
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", "--steps 2 -q"))).code, 0);
  ASSERT_EQ(place.run(words(train("tiny.hn.onnx", "--steps 3 -q"))).code, 0);
  const Outcome resumed = place.run(words(train("tiny.hn.onnx", "--steps 6 --resume")));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resumed=\"after step 3\""));
  EXPECT_THAT(place.list("runs"), ElementsAre("tiny-1", "tiny-2"));
  const Outcome again = place.run(words(train("tiny.hn.onnx", "--steps 6 --run-dir runs/tiny-1")));
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("--resume"));
}

}  // namespace
}  // namespace halfnote::cli_test
