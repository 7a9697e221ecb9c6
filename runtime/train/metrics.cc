#include "runtime/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "runtime/train/checkpoint/run_folder.h"

namespace halfnote {
namespace {

constexpr std::string_view kStart = "{\"step\":";

Error io_error(const std::filesystem::path& path, const char* what) {
  return Error(ErrorCode::kIo, fmt::format("cannot {} ({})", what, std::strerror(errno)))
      .at({path.string(), {}, {}});
}

int open_file(const std::filesystem::path& path) {
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) throw io_error(path, "open the metrics");
  return file;
}

template <class Float>
std::string number(Float value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos)
    text += ".0";  // a reader takes it for a float, also -0
  return text;
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string value_text(const MetricValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* narrow = std::get_if<float>(&value)) return number(*narrow);
  if (const auto* wide = std::get_if<double>(&value)) return number(*wide);
  return json_string(std::get<std::string>(value));
}

/// The step of a line that `log` wrote completely.
std::optional<int64_t> step_of(std::string_view line) {
  if (!line.starts_with(kStart) || !line.ends_with('}')) return std::nullopt;
  int64_t step = 0;
  const char* begin = line.data() + kStart.size();
  const auto [end, status] = std::from_chars(begin, line.data() + line.size(), step);
  if (status != std::errc() || (*end != ',' && *end != '}')) return std::nullopt;
  return step;
}

/// How many bytes to keep: whole lines, up to the first that is beyond the step or damaged.
size_t bytes_to_keep(std::string_view text, int64_t last_step) {
  size_t kept = 0;
  while (kept < text.size()) {
    const size_t end = text.find('\n', kept);
    if (end == std::string_view::npos) break;
    const std::optional<int64_t> step = step_of(text.substr(kept, end - kept));
    if (!step || *step > last_step) break;
    kept = end + 1;
  }
  return kept;
}

/// An evaluation is done when its line is there; one whose loss is no number counts as none.
int64_t last_evaluation_in(std::string_view text) {
  int64_t last = -1;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find(R"("event":"evaluation")") == std::string_view::npos) continue;
    if (line.find(R"("eval_loss":")") != std::string_view::npos) continue;
    last = step_of(line).value_or(last);
  }
  return last;
}

int64_t count_lines(std::string_view text) {
  const auto ends = std::count(text.begin(), text.end(), '\n');
  return ends + (!text.empty() && text.back() != '\n' ? 1 : 0);
}

}  // namespace

std::string metrics_line(int64_t step, std::span<const Metric> metrics) {
  std::string line = fmt::format("{}{}", kStart, step);
  for (const Metric& metric : metrics)
    line += fmt::format(",{}:{}", json_string(metric.name), value_text(metric.value));
  return line + "}";
}

MetricsWriter::MetricsWriter(std::filesystem::path path, int file, int64_t bytes, int64_t dropped)
    : path_(std::move(path)), file_(file), bytes_(bytes), dropped_(dropped) {}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      bytes_(other.bytes_),
      dropped_(other.dropped_),
      evaluated_(other.evaluated_) {}

MetricsWriter::~MetricsWriter() {
  if (file_ >= 0) ::close(file_);
}

MetricsWriter MetricsWriter::create(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && std::filesystem::file_size(path, error) > 0) {
    const bool saved = std::filesystem::exists(path.parent_path() / kRunLatest, error);
    throw Error(ErrorCode::kUsage, "the run folder has the metrics of another run")
        .at({path.string(), {}, {}})
        .hint(saved
                  ? "go on with it by --resume, or choose another run folder"
                  : "that run ended before it saved: begin it again by --resume, or choose another "
                    "folder with --run-dir");
  }
  return resume(path, 0);
}

MetricsWriter MetricsWriter::resume(const std::filesystem::path& path, int64_t last_step) {
  MetricsWriter writer(path, open_file(path), 0, 0);
  const MappedFile content(path);
  const std::string_view text(reinterpret_cast<const char*>(content.bytes().data()),
                              content.bytes().size());
  const size_t kept = bytes_to_keep(text, last_step);
  writer.bytes_ = static_cast<int64_t>(kept);
  writer.evaluated_ = last_evaluation_in(text.substr(0, kept));
  writer.dropped_ = count_lines(text.substr(kept));
  if (kept < text.size()) {
    if (::ftruncate(writer.file_, writer.bytes_) != 0) throw io_error(path, "cut the metrics");
    writer.sync();
  }
  return writer;
}

void MetricsWriter::log(int64_t step, std::span<const Metric> metrics) {
  const std::string line = metrics_line(step, metrics) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t put = ::write(file_, line.data() + done, line.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const Error failure = io_error(path_, "write the metrics");
      if (done > 0 && ::ftruncate(file_, bytes_) != 0)
        throw io_error(path_, "take back half a line of the metrics");
      throw failure;
    }
    done += static_cast<size_t>(put);
  }
  bytes_ += static_cast<int64_t>(line.size());
}

void MetricsWriter::sync() {
  if (::fdatasync(file_) != 0) throw io_error(path_, "flush the metrics");
}

}  // namespace halfnote
