// What a run shows: sparse lines in logs, a bar on terminals, the start table.
#include "runtime/train/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <sstream>

#include "support.h"
#include "tests/environment.h"

namespace halfnote {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

const Terminal kFile{.interactive = false, .color = false, .utf8 = false, .columns = 80};
const Terminal kScreen{.interactive = true, .color = false, .utf8 = true, .columns = 80};

/// A Progress with a clock that the test turns.
class Fixture {
 public:
  Fixture(ProgressMode mode, int64_t total, Terminal terminal)
      : progress(mode, total, terminal, out, [this] { return time; }) {}

  /// Steps `first` to `last`, each of `seconds` and 100 samples.
  void run(int64_t first, int64_t last, double seconds) {
    for (int64_t step = first; step <= last; ++step) {
      time += seconds;
      StepReport report;
      report.step = step;
      report.loss = 1.0 / static_cast<double>(step);
      report.samples = samples += 100;
      report.data_wait = waited += seconds / 4;
      progress.update(report);
    }
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> result;
    std::istringstream in(out.str());
    for (std::string line; std::getline(in, line);) result.push_back(line);
    return result;
  }

  std::ostringstream out;
  double time = 0, waited = 0;
  int64_t samples = 0;
  Progress progress;
};

/// The step of each plain line.
std::vector<int64_t> steps_shown(const Fixture& fixture) {
  std::vector<int64_t> steps;
  for (const std::string& line : fixture.lines()) steps.push_back(std::stoll(line.substr(5)));
  return steps;
}

TEST(PlainProgress, GrowsSparser) {
  Fixture fixture(ProgressMode::kAuto, 1500, kFile);
  fixture.run(1, 1500, 0.001);
  fixture.progress.finish();
  EXPECT_THAT(steps_shown(fixture), ElementsAre(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1500));
  EXPECT_THAT(fixture.out.str(), Not(HasSubstr("\r")));
  EXPECT_THAT(fixture.out.str(), Not(HasSubstr("\x1b")));
}

TEST(PlainProgress, SpeaksEveryThirtySeconds) {
  Fixture fixture(ProgressMode::kPlain, 1000, kScreen);
  fixture.run(1, 100, 7);  // 30 seconds pass in the fifth step after a line
  EXPECT_THAT(steps_shown(fixture), ElementsAre(1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60,
                                                65, 70, 75, 80, 85, 90, 95, 100));
}

TEST(PlainProgress, ShowsTheFirstStepAfterAResumeAndTheLastOfAll) {
  Fixture fixture(ProgressMode::kPlain, 0, kFile);
  fixture.run(1001, 1234, 0.001);
  EXPECT_THAT(steps_shown(fixture), ElementsAre(1001));
  fixture.progress.finish();
  fixture.progress.finish();
  EXPECT_THAT(steps_shown(fixture), ElementsAre(1001, 1234));
}

TEST(PlainProgress, TellsEverything) {
  Fixture fixture(ProgressMode::kPlain, 100, kFile);
  fixture.run(1, 1, 60);  // the first step plans and warms up: it does not count
  fixture.run(2, 2, 0.5);
  StepReport report{.step = 5,
                    .loss = 0.123456,
                    .accuracy = 0.8125,
                    .loss_scale = 65536,
                    .skipped = 3,
                    .samples = 500,
                    .data_wait = 15.25};
  fixture.time += 1.5;
  fixture.progress.update(report);
  EXPECT_THAT(fixture.lines(),
              ElementsAre("step=1/100 loss=1 skipped=0",
                          "step=2/100 loss=0.5 skipped=0 samples/s=200 data_wait=25% eta=49s",
                          "step=5/100 loss=0.12346 accuracy=0.8125 loss_scale=65536 skipped=3 "
                          "samples/s=200 data_wait=12% eta=48s"));
  EXPECT_EQ(fixture.progress.samples_per_second(), 200);
  EXPECT_EQ(*fixture.progress.seconds_left(), 47.5);
}

TEST(PlainProgress, PutsNotesOnLinesOfTheirOwn) {
  Fixture fixture(ProgressMode::kPlain, 10, kFile);
  fixture.progress.note("saved \x1b[31m");
  EXPECT_EQ(fixture.out.str(), "saved \\x1b[31m\n");
}

TEST(PlainProgress, SaysInFieldsWhatABarSaysInASentence) {
  Fixture plain(ProgressMode::kPlain, 10, kFile), bar(ProgressMode::kBar, 10, kScreen);
  Fixture none(ProgressMode::kNone, 10, kFile);
  for (Fixture* fixture : {&plain, &bar, &none})
    fixture->progress.note("evaluation after step 5: loss 0.5", "step=5 evaluation_loss=0.5");
  EXPECT_EQ(plain.out.str(), "step=5 evaluation_loss=0.5\n");
  EXPECT_THAT(bar.out.str(), HasSubstr("evaluation after step 5: loss 0.5\n"));
  EXPECT_EQ(none.out.str(), "");
}

TEST(NoProgress, IsSilent) {
  Fixture fixture(ProgressMode::kNone, 10, kScreen);
  fixture.run(1, 10, 60);
  fixture.progress.note("saved");
  fixture.progress.finish();
  EXPECT_EQ(fixture.out.str(), "");
  EXPECT_GT(fixture.progress.samples_per_second(), 0);
}

TEST(Bar, RedrawsOneLine) {
  Fixture fixture(ProgressMode::kAuto, 4, kScreen);
  fixture.run(1, 2, 1);
  EXPECT_THAT(fixture.out.str(),
              EndsWith("\r[===============>              ] 2/4  loss 0.5  eta 2s  "
                       "100 samples/s  data 25%\x1b[K"));
  EXPECT_THAT(fixture.out.str(), Not(HasSubstr("\n")));
  fixture.progress.note("saved");
  EXPECT_THAT(fixture.out.str(), HasSubstr("\r\x1b[Ksaved\n["));
  fixture.run(3, 4, 1);
  fixture.progress.finish();
  EXPECT_THAT(fixture.out.str(),
              EndsWith("4/4  loss 0.25  eta 0s  100 samples/s  data 25%\x1b[K\n"));
}

TEST(Bar, IsNotRedrawnTooOften) {
  Fixture fixture(ProgressMode::kBar, 1 << 30, kScreen);
  fixture.run(1000001, 1001000, 0.001);  // one second
  const std::string text = fixture.out.str();
  EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 12);
}

TEST(Bar, NeverExceedsTheLine) {
  for (int columns = 20; columns <= 200; ++columns) {
    for (const int64_t total : {int64_t{0}, int64_t{100}, int64_t{1} << 40}) {
      Terminal narrow = kScreen;
      narrow.columns = columns;
      Fixture fixture(ProgressMode::kBar, total, narrow);
      fixture.run(1, 2, 1);
      const std::string text = fixture.out.str();
      const size_t begin = text.rfind('\r') + 1;
      EXPECT_LT(text.size() - begin - std::string("\x1b[K").size(), static_cast<size_t>(columns))
          << text;
    }
  }
}

TEST(Bar, HasColourOnlyWhereItIsWanted) {
  Terminal colourful = kScreen;
  colourful.color = true;
  Fixture fixture(ProgressMode::kBar, 10, colourful);
  fixture.run(1, 1, 1);
  EXPECT_THAT(fixture.out.str(), HasSubstr("[\x1b[36m"));
}

TEST(Milestones, AreOneTwoFive) {
  std::vector<int64_t> found;
  for (int64_t step = 0; step <= 5000; ++step) {
    if (is_milestone(step)) found.push_back(step);
  }
  EXPECT_THAT(found, ElementsAre(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000));
}

TEST(Durations, AreShort) {
  EXPECT_EQ(duration_text(0.4), "0s");
  EXPECT_EQ(duration_text(59.6), "1:00");
  EXPECT_EQ(duration_text(187), "3:07");
  EXPECT_EQ(duration_text(3723), "1:02:03");
}

TEST(ProgressModes, HaveNames) {
  EXPECT_EQ(progress_mode_from_name("plain"), ProgressMode::kPlain);
  test::expect_error(ErrorCode::kUsage,
                     {"auto, bar, plain or none", "\"plian\"", "did you mean plain?"},
                     [] { progress_mode_from_name("plian"); });
}

TEST(TerminalDetection, TakesAFileForWhatItIs) {
  FILE* file = std::tmpfile();
  const Variable columns("COLUMNS", nullptr);
  const Terminal terminal = Terminal::detect(::fileno(file));
  std::fclose(file);
  EXPECT_FALSE(terminal.interactive);
  EXPECT_FALSE(terminal.color);
  EXPECT_EQ(terminal.columns, 80);
}

TEST(TerminalDetection, RespectsTheEnvironment) {
  struct Case {
    const char* columns;
    int expected;
  };
  for (const Case& row : {Case{"120", 120}, Case{"5", 20}, Case{"99999", 500}, Case{"wide", 80},
                          Case{"-3", 80}, Case{"", 80}}) {
    const Variable columns("COLUMNS", row.columns);
    EXPECT_EQ(Terminal::detect(-1).columns, row.expected) << row.columns;
  }
  const Variable all("LC_ALL", nullptr), type("LC_CTYPE", "C"), lang("LANG", "de_DE.UTF-8");
  EXPECT_FALSE(Terminal::detect(-1).utf8);
  const Variable stronger("LC_ALL", "en_US.utf8");
  EXPECT_TRUE(Terminal::detect(-1).utf8);
}

const std::vector<TableRow> kRows = {
    {"device", "cpu (2 threads)"}, {"loss scale", "65536"}, {"model", "a\"b\x1b[0m"}, {"note", ""}};

TEST(StartTable, IsPlainInAFile) {
  std::ostringstream out;
  print_table(out, kFile, "halfnote run", kRows);
  EXPECT_EQ(out.str(),
            "device=\"cpu (2 threads)\"\nloss_scale=65536\nmodel=\"a\\\"b\\x1b[0m\"\nnote=\"\"\n");
}

TEST(StartTable, IsABoxOnATerminal) {
  std::ostringstream out;
  print_table(out, kScreen, "run", std::vector<TableRow>{{"device", "cpu"}, {"naïve", "größe"}});
  EXPECT_EQ(out.str(),
            "╭─ run ─────────╮\n"
            "│ device  cpu   │\n"
            "│ naïve   größe │\n"
            "╰───────────────╯\n");
  Terminal ascii = kScreen;
  ascii.utf8 = false;
  ascii.columns = 20;
  std::ostringstream narrow;
  print_table(narrow, ascii, "a title that is too long",
              std::vector<TableRow>{{"key", "a value that is too long"}});
  std::istringstream lines(narrow.str());
  for (std::string line; std::getline(lines, line);) EXPECT_EQ(line.size(), 20u) << line;
}

TEST(Color, IsForTerminalsThatWantIt) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  const int plain = open("/dev/null", O_WRONLY);
  if (terminal < 0) GTEST_SKIP() << "this system gives no pseudo-terminal";
  {
    const Variable no_color("NO_COLOR", nullptr), term("TERM", "xterm");
    EXPECT_TRUE(wants_color(terminal));
    EXPECT_FALSE(wants_color(plain));
    EXPECT_FALSE(wants_color(-1));
  }
  {
    const Variable no_color("NO_COLOR", "1"), term("TERM", "xterm");
    EXPECT_FALSE(wants_color(terminal));
  }
  {
    const Variable no_color("NO_COLOR", ""), term("TERM", "dumb");
    EXPECT_FALSE(wants_color(terminal));
  }
  close(terminal);
  close(plain);
}

}  // namespace
}  // namespace halfnote
