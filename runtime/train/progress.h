// How far a run is: a bar that redraws itself on a terminal, sparse lines everywhere else.
//
// A log gets a line at step 1, 2, 5, 10, 20, 50, 100, … and whenever 30 seconds have passed since
// the last one, so that neither a short run is silent nor a long one floods; it never gets a
// carriage return.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "runtime/train/terminal.h"

namespace halfnote {

enum class ProgressMode { kAuto, kBar, kPlain, kNone };

/// `auto`, `bar`, `plain`, `none`; throws Error(kUsage) for other words.
ProgressMode progress_mode_from_name(std::string_view name);
/// `0.69315`; `nan` whatever its sign.
std::string loss_text(double loss);

/// What is known after a step.
struct StepReport {
  int64_t step = 0;  // just done, counted from 1
  std::optional<double> loss, accuracy, loss_scale;
  int64_t skipped = 0;   // steps of the run that were skipped
  int64_t samples = 0;   // trained on since this process began
  double data_wait = 0;  // seconds spent waiting for data since this process began
  double paused = 0;     // seconds spent on evaluation and checkpoints since this process began
};

class Progress {
 public:
  using Clock = std::function<double()>;  // seconds

  /// `total_steps` 0: not known. Without a clock the machine's steady one.
  Progress(ProgressMode mode, int64_t total_steps, const Terminal& terminal, std::ostream& out,
           Clock clock = {});

  void update(const StepReport& report);
  /// A line of its own, above the bar; shown in every mode but kNone.
  void note(std::string_view text);
  /// The same in the words of the mode: a sentence beside a bar, `key=value` in plain lines.
  void note(std::string_view sentence, std::string_view fields);
  /// Shows the last step, if it was not, and leaves the bar's line.
  void finish();

  /// Samples a second since the first step, which is not counted: it plans and warms up. Pauses do
  /// not count either. 0 before the second step.
  double samples_per_second() const;
  /// Share of that time spent waiting for data.
  double data_wait_share() const;
  /// Seconds to the last step; nothing while unknown.
  std::optional<double> seconds_left() const;

 private:
  double training_seconds() const;
  bool line_is_due() const;
  void draw();
  void write_line();
  std::string bar_text() const;

  ProgressMode mode_;
  int64_t total_steps_;
  Terminal terminal_;
  std::ostream& out_;
  Clock clock_;
  StepReport first_, last_;
  double first_time_ = 0, last_time_ = 0, shown_time_ = 0;
  int64_t shown_step_ = -1;
  bool started_ = false;
  bool bar_open_ = false;
};

/// 1, 2 or 5 times a power of ten.
/// `0.69315`; `nan` whatever its sign.
std::string loss_text(double loss);
bool is_milestone(int64_t step);

/// `42s`, `3:07`, `1:02:03`.
std::string duration_text(double seconds);

}  // namespace halfnote
