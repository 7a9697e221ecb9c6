// Checkpoints as a run sees them: saved, found, loaded, pruned, refused when damaged.
#include "runtime/train/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "base/system/hash.h"
#include "runtime/train/checkpoint/manifest.h"
#include "runtime/train/checkpoint/run_lock.h"
#include "support.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::random_tensor;
using test::read_bytes;
using test::TempFolder;
using test::write_bytes;

Checkpoint small(int64_t step) {
  const auto seed = static_cast<uint64_t>(step);
  return {step,
          {{"w", random_tensor(DType::kF32, {3, 5}, seed)},
           {"step", Tensor::scalar<int64_t>(step)},
           {"flag", Tensor::scalar<bool>(true)},
           {"empty", Tensor(DType::kF16, {0})}},
          fmt::format(R"({{"z":{},"a":[1.5,null,"é"]}})", step)};
}

void expect_same(const Checkpoint& loaded, const Checkpoint& saved) {
  EXPECT_EQ(loaded.step, saved.step);
  EXPECT_EQ(loaded.extra, saved.extra);
  ASSERT_EQ(loaded.tensors.size(), saved.tensors.size());
  for (const NamedTensor& tensor : saved.tensors) {
    ASSERT_NE(loaded.find(tensor.name), nullptr) << tensor.name;
    EXPECT_TRUE(identical(*loaded.find(tensor.name), tensor.tensor)) << tensor.name;
  }
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, ComesBackAsItWas) {
  const TempFolder run;
  const SavedCheckpoint saved = save_checkpoint(run.path(), small(123));
  EXPECT_EQ(saved.folder, run.path() / "checkpoints/step-00000123");
  EXPECT_THAT(saved.warnings, testing::IsEmpty());
  expect_same(load_checkpoint(saved.folder), small(123));
  EXPECT_THAT(names_in(saved.folder), testing::ElementsAre("manifest.json", "state.safetensors"));
  EXPECT_EQ(read_bytes(run / "LATEST"), "checkpoints/step-00000123\n");
  EXPECT_THAT(names_in(run.path()), testing::ElementsAre("LATEST", "checkpoints"));
  EXPECT_EQ(load_checkpoint(saved.folder).find("nothing"), nullptr);
}

TEST(Checkpoint, KeepsTensorsOfEveryType) {
  const TempFolder run;
  Checkpoint checkpoint{7, {}, "{}"};
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (size_of(dtype) > 0)
      checkpoint.tensors.push_back(
          {std::string(short_name(dtype)), random_tensor(dtype, {2, 3}, 1)});
  }
  expect_same(load_checkpoint(save_checkpoint(run.path(), checkpoint).folder), checkpoint);
}

TEST(Checkpoint, WritesTheSameBytesEveryTime) {
  const TempFolder one, two;
  const fs::path a = save_checkpoint(one.path(), small(5)).folder,
                 b = save_checkpoint(two.path(), small(5)).folder;
  for (const char* name : {"manifest.json", "state.safetensors"})
    EXPECT_EQ(read_bytes(a / name), read_bytes(b / name));
}

TEST(Checkpoint, KeepsTheLastOnes) {
  const TempFolder run;
  for (int64_t step = 1; step <= 5; ++step)
    save_checkpoint(run.path(), small(step), {.keep_last = 2});
  EXPECT_THAT(names_in(run / "checkpoints"),
              testing::ElementsAre("step-00000004", "step-00000005"));
  for (int64_t step = 6; step <= 8; ++step)
    save_checkpoint(run.path(), small(step), {.keep_last = 0});
  EXPECT_EQ(names_in(run / "checkpoints").size(), 5u);
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const TempFolder run;
  save_checkpoint(run.path(), small(3));
  Checkpoint other = small(3);
  other.tensors[0].tensor = random_tensor(DType::kF32, {3, 5}, 99);
  expect_same(load_checkpoint(save_checkpoint(run.path(), other).folder), other);
  EXPECT_THAT(names_in(run / "checkpoints"), testing::ElementsAre("step-00000003"));
}

TEST(Checkpoint, RefusesExtraThatIsNoObject) {
  const TempFolder run;
  for (const char* extra : {"", "[]", "{", "{\"a\":1,\"a\":2}"}) {
    Checkpoint checkpoint = small(1);
    checkpoint.extra = extra;
    expect_error(ErrorCode::kCheckpoint, {"extra of the checkpoint"},
                 [&] { save_checkpoint(run.path(), checkpoint); });
  }
  Checkpoint deep = small(1);
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  deep.extra = nested(40);
  expect_error(ErrorCode::kCheckpoint, {"nested deeper than 32"},
               [&] { save_checkpoint(run.path(), deep); });
  EXPECT_THAT(names_in(run.path()), testing::IsEmpty());
}

TEST(FindLatest, FindsNothingInAFreshRun) {
  const TempFolder run;
  EXPECT_FALSE(find_latest(run.path()));
  EXPECT_FALSE(find_latest(run / "not/there"));
}

TEST(FindLatest, TakesTheOneSavedLast) {
  const TempFolder run;
  save_checkpoint(run.path(), small(300));
  save_checkpoint(run.path(), small(200));  // a run that was resumed from an older step
  const auto found = find_latest(run.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 200);
  EXPECT_THAT(found->warnings, testing::IsEmpty());
}

TEST(FindLatest, FallsBackToAnOlderOne) {
  const TempFolder run;
  for (const int64_t step : {1, 2, 3}) save_checkpoint(run.path(), small(step));
  fs::resize_file(run / "checkpoints/step-00000003/state.safetensors", 100);
  write_bytes(run / "checkpoints/step-00000002/manifest.json", "{}");
  const auto found = find_latest(run.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 1);
  EXPECT_THAT(
      found->warnings,
      testing::ElementsAre(testing::HasSubstr("step-00000002/manifest.json"),
                           testing::HasSubstr("step-00000003/state.safetensors"),
                           testing::HasSubstr("names \"checkpoints/step-00000003\", but the newest "
                                              "intact checkpoint is checkpoints/step-00000001")));
}

TEST(FindLatest, FailsWhenAllAreDamaged) {
  const TempFolder run;
  save_checkpoint(run.path(), small(1));
  fs::remove(run / "checkpoints/step-00000001/state.safetensors");
  expect_error(ErrorCode::kCheckpoint,
               {"all 1 checkpoints are damaged", "state.safetensors", "start a new run"},
               [&] { find_latest(run.path()); });
}

TEST(FindLatest, TrustsNoName) {
  const TempFolder run;
  save_checkpoint(run.path(), small(1));
  save_checkpoint(run.path(), small(2));
  fs::create_directory(run / "checkpoints/step-00000099");
  fs::rename(run / "checkpoints/step-00000002", run / "checkpoints/step-00000088");
  write_bytes(run / "checkpoints/step-00000077", "a file");
  const auto found = find_latest(run.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 1);
  EXPECT_THAT(found->warnings,
              testing::Contains(testing::HasSubstr("expected step-00000002, got step-00000088")));
}

TEST(FindLatest, NeedsNoPointer) {
  const TempFolder run;
  save_checkpoint(run.path(), small(1));
  save_checkpoint(run.path(), small(2));
  struct Case {
    std::optional<std::string> pointer;
    const char* warning;  // null: none
  };
  const Case cases[] = {{std::nullopt, nullptr},
                        {"checkpoints/step-00000002\n", nullptr},
                        {"checkpoints/step-00000001\n", "names \"checkpoints/step-00000001\""},
                        {"checkpoints/step-00000009\n", "names \"checkpoints/step-00000009\""},
                        {"", "names \"\""},
                        {std::string(5000, 'x'), "LATEST"}};
  for (const Case& row : cases) {
    fs::remove(run / "LATEST");
    if (row.pointer) write_bytes(run / "LATEST", *row.pointer);
    const auto found = find_latest(run.path());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, 2);
    EXPECT_EQ(found->warnings.size(), row.warning == nullptr ? 0u : 1u);
    if (row.warning == nullptr || found->warnings.empty()) continue;
    EXPECT_THAT(found->warnings[0], testing::HasSubstr(row.warning));
  }
}

TEST(LocateCheckpoint, TakesRunFoldersAndCheckpoints) {
  const TempFolder run;
  save_checkpoint(run.path(), small(1));
  const fs::path second = save_checkpoint(run.path(), small(2)).folder;
  EXPECT_EQ(locate_checkpoint(run.path()).folder, second);
  EXPECT_EQ(locate_checkpoint(run / "checkpoints/step-00000001").step, 1);
  expect_error(ErrorCode::kCheckpoint, {"no checkpoint here", "got nothing of this name"},
               [&] { locate_checkpoint(run / "other"); });
  expect_error(ErrorCode::kCheckpoint, {"no checkpoint here", "got neither"},
               [&] { locate_checkpoint(run / "LATEST"); });
  for (const char* name : {"model.pt", "model.PTH", "a/b.h5", "x.keras", "x.ckpt"}) {
    expect_error(ErrorCode::kUnsupported, {"convert it in Python", "safetensors.torch.save_file"},
                 [&] { locate_checkpoint(run / name); });
  }
}

/// Every damaged copy must be refused as a checkpoint error that names the file.
void expect_refused(const fs::path& folder, const fs::path& file, const std::string& bytes,
                    const std::string& what) {
  write_bytes(file, bytes);
  try {
    load_checkpoint(folder);
    ADD_FAILURE() << file << ": not detected: " << what;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpoint) << what << ": " << error.what();
    EXPECT_TRUE(error.place().file.starts_with(folder.string())) << error.what();
  }
}

class Damage : public testing::TestWithParam<const char*> {};

TEST_P(Damage, OfAnyBitIsDetected) {
  const TempFolder run;
  const fs::path folder = save_checkpoint(run.path(), small(1)).folder;
  const fs::path file = folder / GetParam();
  const std::string good = read_bytes(file);
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {1 << (i % 8), 0x0a ^ good[i], 0xff}) {
      if (static_cast<char>(good[i] ^ flip) == good[i]) continue;
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      expect_refused(folder, file, bad, fmt::format("byte {} xor {}", i, flip));
    }
  }
  write_bytes(file, good);
  expect_same(load_checkpoint(folder), small(1));
}

TEST_P(Damage, ByTruncationOrMoreBytesIsDetected) {
  const TempFolder run;
  const fs::path folder = save_checkpoint(run.path(), small(1)).folder;
  const fs::path file = folder / GetParam();
  const std::string good = read_bytes(file);
  for (size_t size = 0; size < good.size(); ++size) {
    expect_refused(folder, file, good.substr(0, size), fmt::format("the first {} bytes", size));
    expect_refused(folder, file, good.substr(0, size) + std::string(good.size() - size, '\0') + "x",
                   "zeros");
  }
  for (const char* tail : {"x", "\n", " "}) expect_refused(folder, file, good + tail, "a tail");
  fs::remove(file);
  expect_error(ErrorCode::kCheckpoint, {GetParam(), "use an older checkpoint"},
               [&] { load_checkpoint(folder); });
}

INSTANTIATE_TEST_SUITE_P(Of, Damage, testing::Values("state.safetensors", "manifest.json"),
                         [](const auto& row) { return std::string(row.param).substr(0, 5); });

TEST(Damage, NamesTheTensor) {
  const TempFolder run;
  const fs::path folder = save_checkpoint(run.path(), small(1)).folder;
  std::string bytes = read_bytes(folder / "state.safetensors");
  bytes[bytes.size() - 3] ^= 1;  // w is behind step, in front of the one byte of flag
  write_bytes(folder / "state.safetensors", bytes);
  expect_error(
      ErrorCode::kCheckpoint,
      {"state.safetensors: tensor \"w\" is damaged: expected hash", "use an older checkpoint"},
      [&] { load_checkpoint(folder); });
}

TEST(Damage, OfAFileFromAnotherCheckpointIsDetected) {
  const TempFolder run;
  const fs::path one = save_checkpoint(run.path(), small(1)).folder,
                 two = save_checkpoint(run.path(), small(2)).folder;
  fs::copy_file(one / "state.safetensors", two / "state.safetensors",
                fs::copy_options::overwrite_existing);
  expect_error(ErrorCode::kCheckpoint, {"is damaged"}, [&] { load_checkpoint(two); });
}

/// A manifest text with its closing hash made right again.
std::string resealed(std::string text) {
  const size_t comma = text.rfind(",\n \"xxh3_128\"");
  text.resize(comma);
  return text + ",\n \"xxh3_128\": \"" + content_hash(text) + "\"\n}\n";
}

TEST(Manifest, RefusesOtherVersionsClearly) {
  const std::string text = write_manifest({});
  EXPECT_NO_THROW(parse_manifest(resealed(text), "m"));
  std::string newer = text;
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 2");
  expect_error(ErrorCode::kCheckpoint,
               {"m: not a checkpoint that this version reads", "got halfnote-checkpoint version 2",
                "newer halfnote"},
               [&] { parse_manifest(resealed(newer), "m"); });
  std::string other = text;
  other.replace(other.find("halfnote-checkpoint"), 8, "fullnote");
  expect_error(ErrorCode::kCheckpoint, {"fullnote-checkpoint"},
               [&] { parse_manifest(resealed(other), "m"); });
}

TEST(Manifest, RefusesWhatOnlyLooksSealed) {
  const auto sealed = [](const std::string& body) { return resealed(body + ",\n \"xxh3_128\""); };
  expect_error(ErrorCode::kCheckpoint, {"lacks something"},
               [&] { parse_manifest(sealed("{\"a\": 1"), "m"); });
  expect_error(ErrorCode::kCheckpoint, {"bad JSON"},
               [&] { parse_manifest(sealed("{\"a\": "), "m"); });
  expect_error(ErrorCode::kCheckpoint, {"twice"},
               [&] { parse_manifest(sealed("{\"a\": 1, \"a\": 2"), "m"); });
  expect_error(ErrorCode::kCheckpoint, {"nested deeper"}, [&] {
    parse_manifest(sealed("{\"a\": " + std::string(50, '[') + std::string(50, ']')), "m");
  });
  std::string wrong = write_manifest({});
  wrong.replace(wrong.find("\"step\": 0"), 9, "\"step\": []");
  expect_error(ErrorCode::kCheckpoint, {"lacks something"},
               [&] { parse_manifest(resealed(wrong), "m"); });
}

Manifest of_two_tensors() {
  Manifest manifest;
  manifest.step = 7;
  manifest.sequence = 3;
  manifest.state_bytes = 120;
  manifest.header_hash = "ab";
  manifest.tensors = {{"a \"b\"", DType::kF32, {2, 3}, "01"}, {"s", DType::kBF16, {}, "02"}};
  manifest.extra = R"({"list":[1,-2,[],{}],"deep":{"text":"x\n\"y\"","no":null},"half":0.5})";
  return manifest;
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest saved = of_two_tensors();
  const Manifest read = parse_manifest(write_manifest(saved), "m");
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.sequence, 3);
  EXPECT_EQ(read.state_bytes, 120u);
  EXPECT_EQ(read.header_hash, "ab");
  EXPECT_EQ(read.extra, saved.extra);
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0].name, "a \"b\"");
  EXPECT_EQ(read.tensors[0].dtype, DType::kF32);
  EXPECT_EQ(read.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(read.tensors[0].hash, "01");
  EXPECT_EQ(read.tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(read.tensors[1].shape, Shape{});
}

TEST(Manifest, HasAHeadThatOrdersCheckpoints) {
  const std::string text = write_manifest(of_two_tensors());
  const Manifest head = parse_manifest_head(text, "m");
  EXPECT_EQ(head.step, 7);
  EXPECT_EQ(head.sequence, 3);
  EXPECT_TRUE(head.tensors.empty());
  std::string damaged = text;
  damaged[damaged.find("\"01\"") + 1] = '9';  // behind the head: the hash covers it all the same
  expect_error(ErrorCode::kCheckpoint, {"damaged"}, [&] { parse_manifest_head(damaged, "m"); });
  std::string newer = text;
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 2");
  expect_error(ErrorCode::kCheckpoint, {"newer halfnote"},
               [&] { parse_manifest_head(resealed(newer), "m"); });
}

TEST(Manifest, RefusesTensorsThatAreNone) {
  const std::string text = write_manifest(of_two_tensors());
  const auto refused = [&](const std::string& what, const std::string& by, const char* message) {
    std::string other = text;
    ASSERT_NE(other.find(what), std::string::npos) << what;
    other.replace(other.find(what), what.size(), by);
    expect_error(ErrorCode::kCheckpoint, {message}, [&] { parse_manifest(resealed(other), "m"); });
  };
  refused("\"dtype\": \"f32\"", "\"dtype\": \"f33\"", "unknown type of tensor");
  refused("\"dtype\": \"f32\"", "\"dtype\": 1", "lacks something");
  refused("\"dtype\": \"f32\"", "\"name\": \"f32\"", "the key \"tensors.name\" twice");
  refused("\"xxh3_128\": \"01\"", "\"hash\": \"01\"", "lacks something");
  refused("   2,\n", "   \"2\",\n", "lacks something");
  refused("   2,\n", "   {},\n", "lacks something");
  refused("\"tensors\": [", "\"others\": [", "lacks something");
  refused("\"bytes\": 120", "\"bytes\": -120", "lacks something");
  refused("\"step\": 7", "\"step\": 7.5", "lacks something");
}

TEST(Manifest, HashesAreStandardXxh3) {
  // From the reference implementation's test values: XXH3-128 of nothing, seed 0.
  EXPECT_EQ(content_hash(std::string_view()), "99aa06d3014798d86001c324468d497f");
}

TEST(RunLock, LetsOneIn) {
  const TempFolder run;
  {
    const RunLock lock(run.path());
    expect_error(ErrorCode::kUsage,
                 {run.path().string() + ": the run folder is in use",
                  fmt::format("got process {}", ::getpid())},
                 [&] { RunLock(run.path()); });
  }
  EXPECT_NO_THROW(RunLock(run.path()));
  expect_error(ErrorCode::kIo, {"lock"}, [&] { RunLock(run.path() / "missing"); });
}

}  // namespace
}  // namespace halfnote
