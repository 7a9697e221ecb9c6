#include "kernels/cpu/fast/reduction/window_lines.h"

namespace halfnote::cpu::fast {

namespace {

/// Elements of a line are at least about so many, if there are planes enough...
constexpr int64_t kWanted = 64;
/// ... and those of the planes at most about so many: half a megabyte of lines.
constexpr int64_t kMostElements = int64_t{1} << 15;

int64_t rounded(int64_t n) { return (n + kLine - 1) / kLine * kLine; }

/// Elements of window `at` that a mean counts along one axis.
int64_t counted(const PoolGeometry& g, size_t d, int64_t at, bool include_pad) {
  const int64_t first = at * g.stride[d] - g.pad_begin[d];
  int64_t count = 0;
  for (int64_t tap = 0; tap < g.kernel[d]; ++tap) {
    const int64_t place = first + tap * g.dilation[d];
    count += place < g.in[d] + (include_pad ? g.pad_end[d] : 0) && (include_pad || place >= 0);
  }
  return std::max<int64_t>(count, 1);
}

LineWindows windows_of(const PoolGeometry& g, size_t d, bool include_pad) {
  LineWindows w;
  w.in = g.in[d];
  w.out = g.out[d];
  w.dilation = g.dilation[d];
  w.trivial = g.kernel[d] == 1 && g.stride[d] == 1 && g.pad_begin[d] == 0 && w.in == w.out;
  std::vector<std::vector<LineWindows::Use>> uses(static_cast<size_t>(w.in));
  for (int64_t o = 0; o < w.out; ++o) {
    LineWindows::Window window;
    window.count = static_cast<float>(counted(g, d, o, include_pad));
    for (int64_t tap = 0; tap < g.kernel[d]; ++tap) {
      const int64_t line = o * g.stride[d] - g.pad_begin[d] + tap * g.dilation[d];
      if (line < 0 || line >= w.in) continue;
      if (window.taps++ == 0) {
        window.line = line;
        window.tap = static_cast<int32_t>(tap);
      }
      uses[static_cast<size_t>(line)].push_back(
          {static_cast<int32_t>(o), static_cast<int32_t>(tap)});
    }
    w.windows.push_back(window);
  }
  for (const auto& of_line : uses) {
    w.starts.push_back(static_cast<int64_t>(w.uses.size()));
    w.uses.insert(w.uses.end(), of_line.begin(), of_line.end());
  }
  w.starts.push_back(static_cast<int64_t>(w.uses.size()));
  return w;
}

/// The lines of one window.
template <class M>
int64_t lines_of(const LineWindows& axis, const LineWindows::Window& window, const M* lines,
                 int64_t size, const M** taps) {
  for (int32_t tap = 0; tap < window.taps; ++tap) {
    taps[tap] = lines + (window.line + tap * axis.dilation) * size;
  }
  return window.taps;
}

/// Pools lines of `size` elements.
void pool_lines(const LineWindows& axis, bool sums, const float* lines, int64_t size, float* to) {
  const float* taps[kMostTaps];
  const PoolLoops& loops = pool_loops();
  for (const LineWindows::Window& window : axis.windows) {
    const int64_t count = lines_of(axis, window, lines, size, taps);
    if (sums) {
      loops.sum(taps, count, size, to);
    } else if (count > 0) {
      loops.maximum(taps, count, size, to);
    } else {
      std::fill_n(to, size, -std::numeric_limits<float>::infinity());
    }
    to += size;
  }
}

void find_in_lines(const LineWindows& axis, const int32_t* lines, int64_t size, int32_t* best,
                   int32_t* which) {
  const int32_t* taps[kMostTaps];
  for (const LineWindows::Window& window : axis.windows) {
    const int64_t count = lines_of(axis, window, lines, size, taps);
    if (count > 0) {
      pool_loops().first_maximum(taps, count, window.tap, size, best, which);
    } else {
      std::fill_n(best, size, PoolLoops::kPadding);
      std::fill_n(which, size, -1);
    }
    best += size;
    which += size;
  }
}

/// The gradients of the lines from those of their windows; without `which` each window gives its
/// own to all.
void spread_lines(const LineWindows& axis, const float* dy, const int32_t* which, int64_t size,
                  float* dx) {
  const float* gradients[kMostTaps];
  const int32_t* places[kMostTaps];
  int32_t wanted[kMostTaps];
  for (int64_t line = 0; line < axis.in; ++line) {
    int64_t count = 0;
    const auto first = static_cast<size_t>(axis.starts[static_cast<size_t>(line)]);
    const auto last = static_cast<size_t>(axis.starts[static_cast<size_t>(line) + 1]);
    for (size_t i = first; i < last; ++i, ++count) {
      const LineWindows::Use& use = axis.uses[i];
      gradients[count] = dy + use.window * size;
      places[count] = which ? which + use.window * size : nullptr;
      wanted[count] = use.tap;
    }
    if (which) {
      pool_loops().spread(gradients, places, wanted, count, size, dx + line * size);
    } else {
      pool_loops().sum(gradients, count, size, dx + line * size);
    }
  }
}

}  // namespace

std::string WindowLines::refusal(const PoolGeometry& g) {
  for (size_t d = 0; d < 3; ++d) {
    if (g.kernel[d] > kMostTaps) return "windows too large";
    if (g.stride[d] > kMostTaps) return "strides too large";
    const int64_t extent = (g.kernel[d] - 1) * g.dilation[d] + 1;
    if (extent > g.in[d] + g.pad_begin[d] + g.pad_end[d] + kMostTaps) return "windows too far";
    if (g.pad_begin[d] > extent + kMostTaps) return "too much padding";
  }
  if (g.in_size() == 0 || g.out_size() == 0) return "nothing to pool";
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 4;
  if (g.in_size() > kMost || g.out_size() > kMost) return "planes too large";
  return {};
}

WindowLines::WindowLines(const PoolGeometry& g, Pool pool) : geometry_(g), pool_(pool) {
  const bool padded = pool == Pool::kMeanPadded;
  height_ = windows_of(g, 1, padded);
  depth_ = windows_of(g, 0, padded);
  reach_ = (g.kernel[2] - 1) * g.dilation[2] / g.stride[2];
  const int64_t columns = (g.pad_begin[2] + g.in[2] + g.stride[2] - 1) / g.stride[2];
  segment_ = std::max(g.out[2] + reach_, columns);
  const int64_t lines = std::max(in_lines(), out_lines());
  const int64_t most = std::max<int64_t>(1, kMostElements / checked_mul(segment_, lines));
  planes_ = std::min({(kWanted + segment_ - 1) / segment_, most, std::max<int64_t>(1, g.planes)});
  const bool back = pool != Pool::kMaximum;
  margin_ = back ? rounded(reach_) : 0;
  line_ = margin_ + used(planes_);
  phase_size_ = used(planes_) + rounded(reach_) + kLine;
  plan_scratch();
}

void WindowLines::plan_scratch() {
  const PoolGeometry& g = geometry_;
  WorkspacePlan plan;
  const auto add = [&](int64_t lines) { return plan.add_elements<float>(lines * line_ + kLine); };
  const int64_t in = in_lines(), out = out_lines(), rows = g.in[0] * g.out[1];
  const bool back = pool_ != Pool::kMaximum, finds = pool_ == Pool::kMaximumGradient;
  scratch_.phases = plan.add_elements<float>(g.stride[2] * phase_size_);
  scratch_.columns = add(in);
  scratch_.rows = add(height_.trivial ? 0 : rows);
  scratch_.depths = add(depth_.trivial ? 0 : out);
  scratch_.from_column = add(finds ? in : 0);
  scratch_.from_row = add(finds && !height_.trivial ? rows : 0);
  scratch_.from_depth = add(finds && !depth_.trivial ? out : 0);
  scratch_.d_phases = plan.add_elements<float>(back ? g.stride[2] * phase_size_ : 0);
  scratch_.dy = add(back ? out : 0);
  scratch_.d_rows = add(back && !depth_.trivial ? rows : 0);
  scratch_.d_columns = add(back && !height_.trivial ? in : 0);
  scratch_.counts = add(back && !finds ? 1 : 0);
  scratch_.bytes = plan.size();
}

/// Tap k of output j is element j + k·dilation / stride of the phase k·dilation % stride.
float* WindowLines::run_of(float* phases, int64_t tap) const {
  const int64_t place = tap * geometry_.dilation[2], stride = geometry_.stride[2];
  return phases + place % stride * phase_size_ + place / stride;
}

/// Column r goes to runs[r], r below the stride.
void WindowLines::runs_of_columns(float* phases, float** runs) const {
  const int64_t stride = geometry_.stride[2];
  for (int64_t r = 0; r < stride; ++r) {
    const int64_t place = r + geometry_.pad_begin[2];
    runs[r] = phases + place % stride * phase_size_ + place / stride;
  }
}

/// Splits each row of x and calls `row(number)`.
template <class Row>
void WindowLines::for_rows(const float* x, int64_t planes, float* phases, const Row& row) const {
  float* runs[kMostTaps];
  runs_of_columns(phases, runs);
  const SplitRows split{planes, geometry_.in[2], geometry_.stride[2], geometry_.in_size(),
                        segment_};
  for (int64_t line = 0; line < in_lines(); ++line) {
    pool_loops().split(split, x + line * geometry_.in[2], runs);
    row(line);
  }
}

/// Calls `row(number)`, which fills the phases, and merges them to each row of dx.
template <class Row>
void WindowLines::to_rows(int64_t planes, float* phases, float* dx, const Row& row) const {
  float* runs[kMostTaps];
  runs_of_columns(phases, runs);
  const SplitRows split{planes, geometry_.in[2], geometry_.stride[2], geometry_.in_size(),
                        segment_};
  for (int64_t line = 0; line < in_lines(); ++line) {
    row(line);
    pool_loops().merge(split, runs, dx + line * geometry_.in[2]);
  }
}

void WindowLines::put_lines(const float* y, int64_t planes, float* lines) const {
  const SplitRows rows{planes, geometry_.out[2], 1, geometry_.out_size(), segment_};
  for (int64_t line = 0; line < out_lines(); ++line) {
    float* to = lines + line * line_ + margin_;
    pool_loops().split(rows, y + line * geometry_.out[2], &to);
  }
}

void WindowLines::take_lines(const float* lines, int64_t planes, float* y) const {
  const SplitRows rows{planes, geometry_.out[2], 1, geometry_.out_size(), segment_};
  for (int64_t line = 0; line < out_lines(); ++line) {
    const float* from = lines + line * line_ + margin_;
    pool_loops().merge(rows, &from, y + line * geometry_.out[2]);
  }
}

void WindowLines::divide(const float* counts, float* lines) const {
  for (const LineWindows::Window& depth : depth_.windows) {
    for (const LineWindows::Window& height : height_.windows) {
      pool_loops().divide(counts, depth.count * height.count, line_, lines);
      lines += line_;
    }
  }
}

void WindowLines::prepare(std::byte* scratch) const {
  const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  const int64_t phases = geometry_.stride[2] * phase_size_;
  if (pool_ == Pool::kMaximum) {
    std::fill_n(at(scratch_.phases), phases, -std::numeric_limits<float>::infinity());
    return;
  }
  std::fill_n(at(scratch_.dy), out_lines() * line_ + kLine, 0.0f);
  if (pool_ == Pool::kMaximumGradient) {
    std::fill_n(reinterpret_cast<int32_t*>(at(scratch_.phases)), phases, PoolLoops::kPadding);
    return;
  }
  std::fill_n(at(scratch_.phases), phases, 0.0f);
  float* counts = at(scratch_.counts);
  std::fill_n(counts, line_, 1.0f);
  for (int64_t column = 0; column < geometry_.out[2]; ++column) {
    const auto count =
        static_cast<float>(counted(geometry_, 2, column, pool_ == Pool::kMeanPadded));
    for (int64_t plane = 0; plane < planes_; ++plane)
      counts[margin_ + plane * segment_ + column] = count;
  }
}

/// Pools the rows of windows, then their depth; the lines of y.
float* WindowLines::pool_rows(bool sums, std::byte* scratch) const {
  const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  float* lines = at(scratch_.columns);
  if (!height_.trivial) {
    float* rows = at(scratch_.rows);
    for (int64_t d = 0; d < geometry_.in[0]; ++d) {
      pool_lines(height_, sums, lines + d * height_.in * line_, line_,
                 rows + d * height_.out * line_);
    }
    lines = rows;
  }
  if (!depth_.trivial) {
    pool_lines(depth_, sums, lines, height_.out * line_, at(scratch_.depths));
    lines = at(scratch_.depths);
  }
  return lines;
}

void WindowLines::maximum(const float* x, int64_t planes, std::byte* scratch, float* y) const {
  const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  float *phases = at(scratch_.phases), *columns = at(scratch_.columns) + margin_;
  const float* taps[kMostTaps];
  for (int64_t tap = 0; tap < geometry_.kernel[2]; ++tap) taps[tap] = run_of(phases, tap);
  for_rows(x, planes, phases, [&](int64_t line) {
    pool_loops().maximum(taps, geometry_.kernel[2], used(planes), columns + line * line_);
  });
  take_lines(pool_rows(false, scratch), planes, y);
}

void WindowLines::mean(const float* x, int64_t planes, std::byte* scratch, float* y) const {
  const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  float *phases = at(scratch_.phases), *columns = at(scratch_.columns) + margin_;
  const float* taps[kMostTaps];
  for (int64_t tap = 0; tap < geometry_.kernel[2]; ++tap) taps[tap] = run_of(phases, tap);
  for_rows(x, planes, phases, [&](int64_t line) {
    pool_loops().sum(taps, geometry_.kernel[2], used(planes), columns + line * line_);
  });
  float* lines = pool_rows(true, scratch);
  divide(at(scratch_.counts), lines);
  take_lines(lines, planes, y);
}

/// Notes where each maximum came from, axis by axis.
void WindowLines::find(const int32_t* x, int64_t planes, std::byte* scratch) const {
  const auto keys = [&](size_t offset) { return reinterpret_cast<int32_t*>(scratch + offset); };
  auto* phases = reinterpret_cast<float*>(scratch + scratch_.phases);
  const int32_t* taps[kMostTaps];
  for (int64_t tap = 0; tap < geometry_.kernel[2]; ++tap)
    taps[tap] = reinterpret_cast<const int32_t*>(run_of(phases, tap));
  int32_t* lines = keys(scratch_.columns);
  for_rows(reinterpret_cast<const float*>(x), planes, phases, [&](int64_t line) {
    const int64_t to = line * line_ + margin_;
    pool_loops().first_maximum(taps, geometry_.kernel[2], 0, used(planes), lines + to,
                               keys(scratch_.from_column) + to);
  });
  if (!height_.trivial) {
    for (int64_t d = 0; d < geometry_.in[0]; ++d) {
      const int64_t to = d * height_.out * line_;
      find_in_lines(height_, lines + d * height_.in * line_, line_, keys(scratch_.rows) + to,
                    keys(scratch_.from_row) + to);
    }
    lines = keys(scratch_.rows);
  }
  if (!depth_.trivial) {
    find_in_lines(depth_, lines, height_.out * line_, keys(scratch_.depths),
                  keys(scratch_.from_depth));
  }
}

/// Brings the gradients of y from its lines to those of the rows of x.
const float* WindowLines::spread_rows(bool finds, std::byte* scratch) const {
  const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  const auto from = [&](size_t offset) -> const int32_t* {
    return finds ? reinterpret_cast<const int32_t*>(scratch + offset) : nullptr;
  };
  const float* lines = at(scratch_.dy);
  if (!depth_.trivial) {
    spread_lines(depth_, lines, from(scratch_.from_depth), height_.out * line_,
                 at(scratch_.d_rows));
    lines = at(scratch_.d_rows);
  }
  if (height_.trivial) return lines;
  float* columns = at(scratch_.d_columns);
  for (int64_t d = 0; d < geometry_.in[0]; ++d) {
    const int64_t first = d * height_.out * line_;
    const int32_t* which = from(scratch_.from_row);
    spread_lines(height_, lines + first, which ? which + first : nullptr, line_,
                 columns + d * height_.in * line_);
  }
  return columns;
}

/// From the lines of rows to their columns. Element i of a phase takes from the window that starts
/// at i, then from those before it: the later taps come first.
void WindowLines::spread_columns(const float* lines, const int32_t* which, int64_t planes,
                                 float* phases, float* dx) const {
  const float* gradients[kMostTaps];
  const int32_t* places[kMostTaps];
  int32_t wanted[kMostTaps];
  const int64_t stride = geometry_.stride[2], dilation = geometry_.dilation[2];
  to_rows(planes, phases, dx, [&](int64_t line) {
    const int64_t first = line * line_ + margin_;
    for (int64_t phase = 0; phase < stride; ++phase) {
      int64_t count = 0;
      for (int64_t tap = geometry_.kernel[2] - 1; tap >= 0; --tap) {
        if (tap * dilation % stride != phase) continue;
        const int64_t start = first - tap * dilation / stride;
        gradients[count] = lines + start;
        places[count] = which ? which + start : nullptr;
        wanted[count++] = static_cast<int32_t>(tap);
      }
      float* to = phases + phase * phase_size_;
      if (which) {
        pool_loops().spread(gradients, places, wanted, count, used(planes), to);
      } else {
        pool_loops().sum(gradients, count, used(planes), to);
      }
    }
  });
}

void WindowLines::maximum_gradient(const float* dy, const int32_t* keys, int64_t planes,
                                   std::byte* scratch, float* dx) const {
  const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  find(keys, planes, scratch);
  put_lines(dy, planes, at(scratch_.dy));
  spread_columns(spread_rows(true, scratch),
                 reinterpret_cast<const int32_t*>(at(scratch_.from_column)), planes,
                 at(scratch_.d_phases), dx);
}

void WindowLines::mean_gradient(const float* dy, int64_t planes, std::byte* scratch,
                                float* dx) const {
  const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  put_lines(dy, planes, at(scratch_.dy));
  divide(at(scratch_.counts), at(scratch_.dy));
  spread_columns(spread_rows(false, scratch), nullptr, planes, at(scratch_.d_phases), dx);
}

}  // namespace halfnote::cpu::fast
