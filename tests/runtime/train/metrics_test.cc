// metrics.jsonl: what a line looks like, and what a resume keeps.
#include "runtime/train/metrics.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;
using test::read_bytes;
using test::TempFolder;
using test::write_bytes;

TEST(MetricsLine, KeepsOrderAndDigits) {
  const Metric metrics[] = {{"loss", 0.1f},     {"scale", 65536.0},
                            {"third", 1.0 / 3}, {"skipped", int64_t{2}},
                            {"applied", true},  {"note", std::string("a\"b\n\xff")}};
  const std::string line = metrics_line(12, metrics);
  EXPECT_EQ(line,
            "{\"step\":12,\"loss\":0.1,\"scale\":65536.0,\"third\":0.3333333333333333,\"skipped\":"
            "2,\"applied\":true,\"note\":\"a\\\"b\\n\xef\xbf\xbd\"}");
  EXPECT_EQ(nlohmann::json::parse(line)["third"].get<double>(), 1.0 / 3);
}

TEST(MetricsLine, IsJsonForEveryNumber) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Metric metrics[] = {{"a", std::nan("")}, {"b", infinity}, {"c", -infinity},
                            {"d", 1e-40f},       {"e", 1e300},    {"f", -0.0}};
  const auto json = nlohmann::json::parse(metrics_line(1, metrics));
  EXPECT_EQ(json["a"], "NaN");
  EXPECT_EQ(json["b"], "Infinity");
  EXPECT_EQ(json["c"], "-Infinity");
  EXPECT_EQ(json["d"].get<float>(), 1e-40f);
  EXPECT_EQ(json["e"].get<double>(), 1e300);
  EXPECT_TRUE(std::signbit(json["f"].get<double>()));
}

std::string line(int64_t step) { return metrics_line(step, {}) + "\n"; }

TEST(MetricsWriter, AppendsAtOnce) {
  const TempFolder folder;
  MetricsWriter writer = MetricsWriter::create(folder / "m");
  EXPECT_EQ(read_bytes(folder / "m"), "");
  for (int64_t step = 1; step <= 3; ++step) {
    writer.log(step, {{"loss", 0.5}});
    EXPECT_THAT(read_bytes(folder / "m"),
                testing::EndsWith("{\"step\":" + std::to_string(step) + ",\"loss\":0.5}\n"));
  }
  writer.sync();
}

TEST(MetricsWriter, CreatesOnlyNewFiles) {
  const TempFolder folder;
  write_bytes(folder / "empty", "");
  EXPECT_NO_THROW(MetricsWriter::create(folder / "empty"));
  write_bytes(folder / "m", line(1));
  expect_error(ErrorCode::kUsage, {"metrics of another run", "ended before it saved"},
               [&] { MetricsWriter::create(folder / "m"); });
  write_bytes(folder / "LATEST", "checkpoints/step-00000001");
  expect_error(ErrorCode::kUsage, {"metrics of another run", "--resume"},
               [&] { MetricsWriter::create(folder / "m"); });
  EXPECT_EQ(read_bytes(folder / "m"), line(1));
  expect_error(ErrorCode::kIo, {"open the metrics"},
               [&] { MetricsWriter::create(folder / "no/m"); });
}

struct KeptCase {
  const char* name;
  std::string before;
  int64_t last_step;
  std::string kept;
  int64_t dropped;
};

class MetricsResume : public testing::TestWithParam<KeptCase> {};

TEST_P(MetricsResume, CutsLinesBeyondTheStep) {
  const KeptCase& row = GetParam();
  const TempFolder folder;
  write_bytes(folder / "m", row.before);
  MetricsWriter writer = MetricsWriter::resume(folder / "m", row.last_step);
  EXPECT_EQ(read_bytes(folder / "m"), row.kept);
  EXPECT_EQ(writer.dropped_lines(), row.dropped);
  writer.log(row.last_step + 1, {});
  EXPECT_EQ(read_bytes(folder / "m"), row.kept + line(row.last_step + 1));
}

INSTANTIATE_TEST_SUITE_P(
    All, MetricsResume,
    testing::Values(
        KeptCase{"all", line(1) + line(2), 2, line(1) + line(2), 0},
        KeptCase{"beyond", line(1) + line(2) + line(3) + line(4), 2, line(1) + line(2), 2},
        KeptCase{"sparse", line(1) + line(10) + line(100), 50, line(1) + line(10), 1},
        KeptCase{"same_step_twice", line(2) + line(2) + line(3), 2, line(2) + line(2), 1},
        KeptCase{"torn", line(1) + "{\"step\":2,\"lo", 5, line(1), 1},
        KeptCase{"torn_number", line(1) + "{\"step\":2", 5, line(1), 1},
        KeptCase{"without_end", line(1) + "{\"step\":2}", 5, line(1), 1},
        KeptCase{"zeros", line(1) + std::string(100, '\0'), 5, line(1), 1},
        KeptCase{"garbage", line(1) + "hello\n" + line(2), 5, line(1), 2},
        KeptCase{"nothing", "", 5, "", 0}, KeptCase{"from_the_start", line(1) + line(2), 0, "", 2}),
    [](const auto& row) { return row.param.name; });

TEST(MetricsWriter, TakesBackHalfALineWhenTheDiskIsFull) {
  const TempFolder folder;
  MetricsWriter writer = MetricsWriter::create(folder / "m");
  writer.log(1, {});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit less{line(1).size() + 4, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &less), 0);
  std::optional<Error> failure;
  try {
    writer.log(2, {});
  } catch (const Error& error) {
    failure = error;
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::kIo);
  EXPECT_THAT(failure->what(), testing::HasSubstr("m: cannot write the metrics (File too large)"));
  EXPECT_EQ(read_bytes(folder / "m"), line(1));
  writer.log(3, {});
  EXPECT_EQ(read_bytes(folder / "m"), line(1) + line(3));
}

}  // namespace
}  // namespace halfnote
