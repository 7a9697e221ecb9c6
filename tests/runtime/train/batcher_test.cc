// The order of samples, and batches of it: the same with and without the thread, and after a resume
// at any place.
#include <gmock/gmock.h>

#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "runtime/train/data/batcher.h"
#include "runtime/train/data/shuffle.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;

std::vector<int64_t> order_of(int64_t samples, uint64_t seed, int64_t epoch) {
  const Shuffle shuffle(samples, seed, epoch);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < samples; ++i) order.push_back(shuffle[i]);
  return order;
}

TEST(Shuffle, IsAPermutation) {
  for (const int64_t samples : {1, 2, 3, 4, 5, 7, 8, 16, 17, 63, 64, 65, 1000, 4096, 60000}) {
    std::vector<int64_t> order = order_of(samples, 42, 3);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> all(static_cast<size_t>(samples));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all) << samples;
  }
}

TEST(Shuffle, DependsOnSeedAndEpochOnly) {
  EXPECT_EQ(order_of(1000, 1, 0), order_of(1000, 1, 0));
  EXPECT_NE(order_of(1000, 1, 0), order_of(1000, 1, 1));
  EXPECT_NE(order_of(1000, 1, 0), order_of(1000, 2, 0));
  EXPECT_NE(order_of(1000, 1, 0), order_of(1000, 1 + (uint64_t{1} << 32), 0));
  EXPECT_NE(order_of(1000, 1, 0), order_of(1000, 1, int64_t{1} << 32));
}

TEST(Shuffle, StaysAsItIs) {
  // A run of an older version must be resumable: these numbers never change.
  EXPECT_THAT(order_of(10, 0, 0), testing::ElementsAre(0, 3, 8, 9, 5, 2, 6, 1, 4, 7));
  EXPECT_THAT(order_of(12, 0x123456789abcdef, 7),
              testing::ElementsAre(7, 2, 4, 6, 1, 9, 3, 0, 10, 5, 8, 11));
  const Shuffle large(60000, 0, 0);
  EXPECT_EQ(large[0], 47683);
  EXPECT_EQ(large[1], 30807);
  EXPECT_EQ(large[59999], 58443);
}

TEST(Shuffle, SpreadsEverySampleOverAllPlaces) {
  // 4000 epochs of 10 samples: each place is expected 400 times, deviation 19; 100 places stay
  // within 5 deviations (a fair order leaves this once in 17,000 seeds).
  std::vector<std::vector<int>> counts(10, std::vector<int>(10, 0));
  for (int64_t epoch = 0; epoch < 4000; ++epoch) {
    const std::vector<int64_t> order = order_of(10, 7, epoch);
    for (size_t place = 0; place < 10; ++place) ++counts[static_cast<size_t>(order[place])][place];
  }
  for (const auto& row : counts)
    EXPECT_THAT(row, testing::Each(testing::AllOf(testing::Gt(305), testing::Lt(495))));
}

TEST(Shuffle, LeavesNoTraceOfTheOldOrder) {
  // Neighbours that stay neighbours: expected 2 in a random order of any size, Poisson; 15 happens
  // once in 10^8.
  const std::vector<int64_t> order = order_of(60000, 1, 0);
  int kept = 0;
  for (size_t i = 1; i < order.size(); ++i) kept += std::abs(order[i] - order[i - 1]) == 1;
  EXPECT_LT(kept, 15);
}

TEST(Shuffle, LooksUpPlacesOfHugeDataSets) {
  const int64_t samples = int64_t{1} << 40;
  const Shuffle shuffle(samples, 1, 0);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(shuffle[samples - 1 - i], 0);
    EXPECT_LT(shuffle[samples - 1 - i], samples);
    seen.insert(shuffle[samples - 1 - i]);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

/// Samples 0, 1, 2, … as both fields, so that a batch shows its order.
InputMap counting_map(int64_t samples) {
  Tensor x(DType::kF32, {samples, 2}), y(DType::kI32, {samples});
  for (int64_t i = 0; i < samples; ++i) {
    x.mutable_data<float>()[static_cast<size_t>(2 * i)] = static_cast<float>(i);
    x.mutable_data<float>()[static_cast<size_t>(2 * i + 1)] = static_cast<float>(-i);
    y.mutable_data<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  }
  const ModelInput inputs[] = {{"x", DType::kF32, {Dim::named("N"), Dim(2)}},
                               {"y", DType::kI64, {Dim::named("N")}}};
  return InputMap(Dataset("counting", {{"x", x}, {"y", y}}), inputs);
}

struct Seen {
  std::vector<int64_t> labels;
  int64_t count;
  DataPosition start, next;
  friend bool operator==(const Seen&, const Seen&) = default;
};

/// Up to `limit` batches; also checks that both inputs agree.
std::vector<Seen> read_all(Batcher& batcher, int limit) {
  std::vector<Seen> seen;
  Batch batch;
  while (limit-- > 0 && batcher.next(batch)) {
    const std::vector<int64_t> labels = batch.inputs[1].to_ints();
    for (size_t row = 0; row < labels.size(); ++row) {
      EXPECT_EQ(batch.inputs[0].data<float>()[2 * row], static_cast<float>(labels[row]));
      EXPECT_EQ(batch.inputs[0].data<float>()[2 * row + 1], static_cast<float>(-labels[row]));
    }
    EXPECT_EQ(batcher.position(), batch.next);
    seen.push_back({labels, batch.count, batch.start, batch.next});
  }
  return seen;
}

TEST(Batcher, FollowsTheShuffleAndDropsTheRest) {
  Batcher batcher(counting_map(10), {.batch_size = 4, .seed = 5});
  EXPECT_EQ(batcher.batches_per_epoch(), 2);
  const std::vector<Seen> seen = read_all(batcher, 5);
  ASSERT_EQ(seen.size(), 5u);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const std::vector<int64_t> order = order_of(10, 5, epoch);
    for (int64_t i = 0; i < 2; ++i) {
      const Seen& batch = seen[static_cast<size_t>(2 * epoch + i)];
      EXPECT_EQ(batch.start, (DataPosition{epoch, 4 * i}));
      EXPECT_EQ(batch.next, (i == 0 ? DataPosition{epoch, 4} : DataPosition{epoch + 1, 0}));
      EXPECT_EQ(batch.labels,
                std::vector<int64_t>(order.begin() + 4 * i, order.begin() + 4 * i + 4));
    }
  }
}

TEST(Batcher, DeliversEverySampleInEvaluation) {
  for (const int prefetch : {0, 2}) {
    Batcher shorter(counting_map(10), {.batch_size = 4,
                                       .shuffle = false,
                                       .tail = Tail::kShort,
                                       .epochs = 1,
                                       .prefetch = prefetch});
    EXPECT_EQ(shorter.batches_per_epoch(), 3);
    const std::vector<Seen> seen = read_all(shorter, 9);
    ASSERT_EQ(seen.size(), 3u);
    EXPECT_THAT(seen[0].labels, testing::ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(seen[2].labels, testing::ElementsAre(8, 9));
    EXPECT_EQ(seen[2].count, 2);
    Batch batch;
    EXPECT_FALSE(shorter.next(batch));
    EXPECT_FALSE(shorter.next(batch));

    Batcher padded(
        counting_map(10),
        {.batch_size = 4, .shuffle = false, .tail = Tail::kPad, .epochs = 1, .prefetch = prefetch});
    const std::vector<Seen> full = read_all(padded, 9);
    ASSERT_EQ(full.size(), 3u);
    EXPECT_THAT(full[2].labels, testing::ElementsAre(8, 9, 9, 9));
    EXPECT_EQ(full[2].count, 2);
  }
}

TEST(Batcher, IsTheSameWithAndWithoutTheThread) {
  for (const Tail tail : {Tail::kDrop, Tail::kShort, Tail::kPad}) {
    BatcherOptions options{.batch_size = 7, .seed = 3, .tail = tail, .epochs = 3, .prefetch = 0};
    Batcher plain(counting_map(50), options);
    const std::vector<Seen> expected = read_all(plain, 100);
    EXPECT_EQ(expected.size(), tail == Tail::kDrop ? 21u : 24u);
    for (const int prefetch : {1, 2, 5}) {
      options.prefetch = prefetch;
      Batcher threaded(counting_map(50), options);
      EXPECT_EQ(read_all(threaded, 100), expected);
    }
  }
}

TEST(Batcher, ResumesAnywhere) {
  const BatcherOptions options{.batch_size = 7, .seed = 3, .epochs = 4};
  Batcher whole(counting_map(50), options);
  const std::vector<Seen> expected = read_all(whole, 100);
  for (size_t stop = 0; stop < expected.size(); ++stop) {
    Batcher resumed(counting_map(50), options, expected[stop].start);
    EXPECT_EQ(resumed.position(), expected[stop].start);
    EXPECT_EQ(read_all(resumed, 100),
              std::vector<Seen>(expected.begin() + static_cast<int64_t>(stop), expected.end()));
  }
}

TEST(Batcher, TreatsThePlaceBehindTheLastBatchAsTheNextEpoch) {
  Batcher batcher(counting_map(10), {.batch_size = 4}, {2, 8});
  EXPECT_EQ(batcher.position(), (DataPosition{3, 0}));
}

TEST(Batcher, ReusesTheTensorsOfTheBatch) {
  Batcher batcher(counting_map(100), {.batch_size = 4, .prefetch = 0});
  Batch batch;
  ASSERT_TRUE(batcher.next(batch));
  const std::byte* memory = batch.inputs[0].bytes();
  ASSERT_TRUE(batcher.next(batch));
  EXPECT_EQ(batch.inputs[0].bytes(), memory);

  Batcher threaded(counting_map(100), {.batch_size = 4, .prefetch = 2});
  std::set<const std::byte*> memories;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(threaded.next(batch));
    memories.insert(batch.inputs[0].bytes());
  }
  EXPECT_LE(memories.size(),
            6u);  // two ready, one in the making, one here, and those that it took over
}

TEST(Batcher, LeavesTensorsAloneThatSomebodyKeeps) {
  Batcher batcher(counting_map(100), {.batch_size = 4, .prefetch = 0});
  Batch batch;
  ASSERT_TRUE(batcher.next(batch));
  const Tensor kept = batch.inputs[1];
  const Tensor copy = kept.deep_copy();
  ASSERT_TRUE(batcher.next(batch));
  EXPECT_TRUE(identical(kept, copy));
}

TEST(Batcher, RaisesErrorsInTheirTurn) {
  const ModelInput input{"y", DType::kI8, {Dim::named("N")}};
  Tensor labels(DType::kI32, {6});
  labels.mutable_data<int32_t>()[4] = 1000;
  for (const int prefetch : {0, 1, 3}) {
    Batcher batcher(InputMap(Dataset("d", {{"y", labels}}), {&input, 1}),
                    {.batch_size = 2, .shuffle = false, .prefetch = prefetch});
    Batch batch;
    EXPECT_TRUE(batcher.next(batch));
    EXPECT_TRUE(batcher.next(batch));
    expect_error(ErrorCode::kData, {"sample 4", "got 1000"}, [&] { batcher.next(batch); });
    expect_error(ErrorCode::kData, {"sample 4"}, [&] { batcher.next(batch); });
    EXPECT_EQ(batcher.position(), (DataPosition{0, 4}));
  }
}

TEST(Batcher, StopsItsThreadWhenNobodyReads) {
  for (int i = 0; i < 50; ++i) {
    Batcher batcher(counting_map(100), {.batch_size = 4, .prefetch = 1 + i % 4});
    Batch batch;
    for (int read = 0; read < i % 3; ++read) ASSERT_TRUE(batcher.next(batch));
  }
}

TEST(Batcher, MeasuresTheWait) {
  Batcher batcher(counting_map(100), {.batch_size = 4, .prefetch = 0});
  EXPECT_EQ(batcher.wait_seconds(), 0);
  Batch batch;
  ASSERT_TRUE(batcher.next(batch));
  const double once = batcher.wait_seconds();
  EXPECT_GT(once, 0);
  ASSERT_TRUE(batcher.next(batch));
  EXPECT_GT(batcher.wait_seconds(), once);
}

TEST(Batcher, RefusesWhatGivesNoBatch) {
  expect_error(
      ErrorCode::kData,
      {"too few samples for one batch: expected at least 128, got 10", "smaller batch size"},
      [] { Batcher(counting_map(10), {.batch_size = 128}); });
  EXPECT_NO_THROW(Batcher(counting_map(10), {.batch_size = 128, .tail = Tail::kShort}));
  expect_error(ErrorCode::kData, {"expected at least 1, got 0"},
               [] { Batcher(counting_map(0), {.tail = Tail::kShort}); });
  expect_error(ErrorCode::kUsage, {"bad batch size"},
               [] { Batcher(counting_map(10), {.batch_size = 0}); });
  expect_error(ErrorCode::kCheckpoint, {"epoch 0, sample 11"}, [] {
    Batcher(counting_map(10), {}, {0, 11});
  });
  expect_error(ErrorCode::kCheckpoint, {"epoch -1"}, [] {
    Batcher(counting_map(10), {}, {-1, 0});
  });
}

}  // namespace
}  // namespace halfnote
