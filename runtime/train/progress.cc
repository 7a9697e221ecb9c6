#include "runtime/train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/text/printable.h"

namespace halfnote {
namespace {

constexpr double kLineSeconds = 30;
constexpr double kRedrawSeconds = 0.1;
constexpr std::array<std::string_view, 4> kModeNames = {"auto", "bar", "plain", "none"};

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string loss_scale_text(double scale) {
  return scale == std::floor(scale) && scale < 1e15 ? fmt::format("{:.0f}", scale)
                                                    : fmt::format("{:g}", scale);
}

}  // namespace

ProgressMode progress_mode_from_name(std::string_view name) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (kModeNames[i] == name) return static_cast<ProgressMode>(i);
  }
  const std::string_view near = closest(name, kModeNames);
  throw Error(ErrorCode::kUsage, "unknown way to show progress")
      .expected("auto, bar, plain or none", fmt::format("\"{}\"", name))
      .hint(near.empty() ? std::string() : fmt::format("did you mean {}?", near));
}

std::string loss_text(double loss) {
  return std::isnan(loss) ? "nan" : fmt::format("{:.5g}", loss);
}

bool is_milestone(int64_t step) {
  while (step >= 10 && step % 10 == 0) step /= 10;
  return step == 1 || step == 2 || step == 5;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(ProgressMode mode, int64_t total_steps, const Terminal& terminal,
                   std::ostream& out, Clock clock)
    : mode_(mode),
      total_steps_(total_steps),
      terminal_(terminal),
      out_(out),
      clock_(clock ? std::move(clock) : Clock(steady_seconds)) {
  if (mode_ == ProgressMode::kAuto)
    mode_ = terminal.interactive ? ProgressMode::kBar : ProgressMode::kPlain;
}

double Progress::training_seconds() const {
  return last_time_ - first_time_ - (last_.paused - first_.paused);
}

double Progress::samples_per_second() const {
  const double seconds = training_seconds();
  return seconds > 0 ? static_cast<double>(last_.samples - first_.samples) / seconds : 0;
}

double Progress::data_wait_share() const {
  const double seconds = training_seconds();
  return seconds > 0 ? std::clamp((last_.data_wait - first_.data_wait) / seconds, 0.0, 1.0) : 0;
}

std::optional<double> Progress::seconds_left() const {
  const int64_t steps = last_.step - first_.step;
  if (total_steps_ <= 0 || steps <= 0) return std::nullopt;
  const double each = (last_time_ - first_time_) / static_cast<double>(steps);
  return each * static_cast<double>(std::max<int64_t>(0, total_steps_ - last_.step));
}

bool Progress::line_is_due() const {
  if (shown_step_ < 0 || is_milestone(last_.step) || last_.step == total_steps_) return true;
  return last_time_ - shown_time_ >= (mode_ == ProgressMode::kBar ? kRedrawSeconds : kLineSeconds);
}

void Progress::update(const StepReport& report) {
  last_ = report;
  last_time_ = clock_();
  if (!started_) {
    started_ = true;
    first_ = last_;
    first_time_ = last_time_;
  }
  if (mode_ != ProgressMode::kNone && line_is_due()) draw();
}

void Progress::draw() {
  shown_step_ = last_.step;
  shown_time_ = last_time_;
  if (mode_ == ProgressMode::kPlain) return write_line();
  out_ << '\r' << bar_text() << "\x1b[K";
  out_.flush();
  bar_open_ = true;
}

void Progress::write_line() {
  std::string line = fmt::format("step={}", last_.step);
  if (total_steps_ > 0) line += fmt::format("/{}", total_steps_);
  if (last_.loss) line += " loss=" + loss_text(*last_.loss);
  if (last_.accuracy) line += fmt::format(" accuracy={:.4f}", *last_.accuracy);
  if (last_.loss_scale) line += fmt::format(" loss_scale={}", loss_scale_text(*last_.loss_scale));
  line += fmt::format(" skipped={}", last_.skipped);
  if (samples_per_second() > 0) {
    line += fmt::format(" samples/s={:.0f} data_wait={:.0f}%", samples_per_second(),
                        100 * data_wait_share());
  }
  if (const auto left = seconds_left()) line += fmt::format(" eta={}", duration_text(*left));
  out_ << line << '\n';
  out_.flush();
}

std::string Progress::bar_text() const {
  std::vector<std::string> parts;
  if (last_.loss) parts.push_back("loss " + loss_text(*last_.loss));
  if (last_.accuracy) parts.push_back(fmt::format("acc {:.1f}%", 100 * *last_.accuracy));
  if (const auto left = seconds_left()) parts.push_back("eta " + duration_text(*left));
  if (samples_per_second() > 0)
    parts.push_back(fmt::format("{:.0f} samples/s", samples_per_second()));
  if (last_.loss_scale) parts.push_back("scale " + loss_scale_text(*last_.loss_scale));
  if (last_.skipped > 0) parts.push_back(fmt::format("skipped {}", last_.skipped));
  if (samples_per_second() > 0)
    parts.push_back(fmt::format("data {:.0f}%", 100 * data_wait_share()));

  // What does not fit is left out from the right; the rest of the line is the bar.
  constexpr size_t kLeastBar = 10;
  const auto columns = static_cast<size_t>(std::max(terminal_.columns, 20)) - 1;
  std::string head = total_steps_ > 0 ? fmt::format("{}/{}", last_.step, total_steps_)
                                      : fmt::format("step {}", last_.step);
  const size_t bar_room = total_steps_ > 0 ? kLeastBar + 3 : 0;
  for (const std::string& part : parts) {
    if (head.size() + 2 + part.size() + bar_room > columns) break;
    head += "  " + part;
  }
  if (total_steps_ <= 0 || head.size() + bar_room > columns) return head.substr(0, columns);
  const size_t width = std::min<size_t>(columns - head.size() - 3, 40);
  const double share =
      std::clamp(static_cast<double>(last_.step) / static_cast<double>(total_steps_), 0.0, 1.0);
  const auto done = static_cast<size_t>(share * static_cast<double>(width));
  std::string bar = std::string(done, '=') + (done < width ? ">" : "");
  bar.resize(width, ' ');
  if (terminal_.color) bar = "\x1b[36m" + bar + "\x1b[0m";
  return "[" + bar + "] " + head;
}

void Progress::note(std::string_view text) {
  if (mode_ == ProgressMode::kNone) return;
  if (bar_open_) out_ << "\r\x1b[K";
  out_ << printable(text) << '\n';
  if (bar_open_) out_ << bar_text() << "\x1b[K";
  out_.flush();
}

void Progress::note(std::string_view sentence, std::string_view fields) {
  note(mode_ == ProgressMode::kPlain ? fields : sentence);
}

void Progress::finish() {
  if (mode_ != ProgressMode::kNone && started_ && shown_step_ != last_.step) draw();
  if (bar_open_) out_ << '\n';
  out_.flush();
  bar_open_ = false;
}

}  // namespace halfnote
