// metrics.jsonl: one JSON object a line, `{"step":12,"loss":0.25,…}`, for whoever plots or watches
// a run.
//
// Every line is one write to the file, so that it is there as soon as the step is logged and
// survives a killed process. `sync` makes the lines survive a power cut; call it before a
// checkpoint is saved. On resume the lines beyond the checkpoint's step are cut off, so that no
// step stands in the file twice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace halfnote {

/// Floats are written with the fewest digits that give them back; NaN and infinities as the strings
/// "NaN", "Infinity",
/// "-Infinity", which JSON has no numbers for.
using MetricValue = std::variant<bool, int64_t, float, double, std::string>;

struct Metric {
  std::string_view name;
  MetricValue value;
};

class MetricsWriter {
 public:
  /// A new file. Throws Error(kUsage) if there is one with lines in it.
  static MetricsWriter create(const std::filesystem::path& path);
  /// Goes on with a file, keeping the lines up to the first one that is beyond `last_step` or
  /// damaged. A missing file is made.
  static MetricsWriter resume(const std::filesystem::path& path, int64_t last_step);
  ~MetricsWriter();
  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&&) = delete;

  /// Appends one line. Throws Error(kIo), and then takes back a line that was written in part.
  void log(int64_t step, std::span<const Metric> metrics);
  void log(int64_t step, std::initializer_list<Metric> metrics) {
    log(step, std::span(metrics.begin(), metrics.size()));
  }
  /// Flushes to the disk. Throws Error(kIo).
  void sync();

  /// Lines that resume cut off.
  int64_t dropped_lines() const { return dropped_; }
  /// The step of the last evaluation with a finite loss in the lines that resume kept; -1: none.
  int64_t last_evaluation() const { return evaluated_; }

 private:
  MetricsWriter(std::filesystem::path path, int file, int64_t bytes, int64_t dropped);

  std::filesystem::path path_;
  int file_ = -1;
  int64_t bytes_ = 0;
  int64_t dropped_ = 0;
  int64_t evaluated_ = -1;
};

/// One line without its end, as `log` writes it.
std::string metrics_line(int64_t step, std::span<const Metric> metrics);

}  // namespace halfnote
