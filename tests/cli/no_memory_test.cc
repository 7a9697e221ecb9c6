// A process that may not have the memory it wants: wherever the want meets it, in a library, in a
// thread or at the start of one, the end is the documented one.
#include <algorithm>

#include "tests/cli/support.h"
#include "tests/sanitizer.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

Outcome run_within(const Workplace& place, uint64_t limit, const std::string& line) {
  Launch launch;
  launch.memory_limit = limit;
  return place.run(words(line), launch);
}

/// The least address space that the program starts in, to 2 MiB; what is before main is not ours.
uint64_t least_space(const Workplace& place) {
  uint64_t limit = 32 * kMiB;
  while (limit < (uint64_t{64} << 30) && run_within(place, limit, "--version").code != 0)
    limit += limit < 512 * kMiB ? 2 * kMiB : limit / 2;
  return limit;
}

void expect_done_or_seven(const Outcome& outcome) {
  if (outcome.code == 0) return;
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("halfnote: error (memory): "));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST(NoMemory, EndsWithSevenAndOneLineUnderAnyLimit) {
  if (under_address_sanitizer())
    GTEST_SKIP() << "a sanitizer takes more address space than any limit";
  const Workplace place;
  place.compile("a.onnx");
  const uint64_t least = least_space(place);
  int done = 0, refused = 0;
  for (uint64_t limit = least; limit < least + 256 * kMiB; limit += 6 * kMiB) {
    SCOPED_TRACE(testing::Message() << limit / kMiB << " MiB");
    const Outcome ran = run_within(
        place, limit,
        "run a.onnx -q --steps 3 --data x=x.npy,labels=labels.npy --batch 4 --threads 3");
    expect_done_or_seven(ran);
    expect_done_or_seven(run_within(
        place, limit, "compile tiny.onnxtxt -q --loss cross_entropy --precision bf16 -o b.onnx"));
    done += ran.code == 0 ? 1 : 0;
    refused += ran.code == 7 ? 1 : 0;
  }
  EXPECT_GT(done, 0);
  EXPECT_GT(refused, 0);
}

TEST(NoMemory, ThreadsThatCannotStartAreSaidBeforeTheFirstStep) {
  if (under_address_sanitizer())
    GTEST_SKIP() << "a sanitizer takes more address space than any limit";
  const Workplace place;
  place.compile("a.onnx");
  // 1023 stacks of some MB.
  const Outcome outcome = run_within(
      place, 1024 * kMiB,
      "run a.onnx -q --steps 3 --data x=x.npy,labels=labels.npy --batch 4 --threads 1024");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_THAT(outcome.err, HasSubstr("cannot start 1024 threads"));
  EXPECT_THAT(outcome.err, HasSubstr("--threads N takes fewer"));
  EXPECT_FALSE(place.exists("runs/a-1"));
}

}  // namespace
}  // namespace halfnote::cli_test
