#include "runtime/core/tune/device_trial.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "runtime/core/memory/best_fit.h"
#include "runtime/core/tune/made_up.h"

namespace halfnote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;
constexpr double kGraphSeconds = 2e-3;  // of one launch of a captured way
constexpr int kMostRepeats = 200;       // in it
/// Ways so many times slower than the fastest cannot win: their first times stand.
constexpr double kHopeless = 4;
/// What is so much slower than the fastest after so many rounds wins in no later one.
constexpr double kBehind = 1.25;
constexpr int kSureRounds = 2;
/// A launch and a wait for its end take so long by themselves.
constexpr double kLaunchSeconds = 30e-6;
/// What all sets of operands take together: more than the cache of any GPU.
constexpr size_t kColdBytes = size_t{192} << 20;
constexpr size_t kMostSets = 8;
/// Made-up numbers that are repeated along an operand.
constexpr int64_t kPattern = int64_t{1} << 20;

size_t bytes_of(const Operand& value) {
  return value.present() ? static_cast<size_t>(value.size()) * size_of(value.dtype) : 0;
}

/// The values of a trial in the device's memory, several times, and what kernels need besides.
class Room {
 public:
  Room(Device& device, const std::vector<Operand>& values, const std::vector<TrialWay>& ways)
      : values_(values), stream_(device.make_stream()), device_(&device) {
    size_t scratch = 0;
    for (const TrialWay& way : ways) {
      for (const TrialStep& step : way) {
        scratch = std::max(scratch, step.kernel->workspace_bytes());
      }
    }
    offsets_ = {0};
    for (const Operand& value : values)
      offsets_.push_back(offsets_.back() + align_up(bytes_of(value)));
    const size_t one = std::max<size_t>(offsets_.back(), 1);
    sets_ = std::clamp<size_t>((kColdBytes + one - 1) / one, 1, kMostSets);
    scratch_ = device.allocate(scratch);
    take_memory();
    for (size_t i = 0; i < values.size(); ++i) fill(i);
  }

  Stream& stream() { return *stream_; }

  /// Puts a way into the stream, on the operands of its so-manieth repetition.
  void run(const TrialWay& way, size_t repetition) {
    for (const TrialStep& step : way) {
      with_buffers(step, repetition,
                   [&](const DeviceBuffers& buffers) { step.kernel->run(buffers); });
    }
  }

  /// Before the first run of a way: the tables that its kernels read, for all sets.
  void put_tables(const TrialWay& way) {
    for (const TrialStep& step : way) {
      const size_t bytes = step.kernel->table_bytes();
      if (bytes == 0) continue;
      std::vector<std::byte> table(bytes);
      for (size_t set = 0; set < sets_; ++set) {
        Device::Memory& place = tables_[{step.kernel, set}];
        place = device_->allocate(bytes);
        with_buffers(step, set, [&](const DeviceBuffers& buffers) {
          step.kernel->write_table(buffers, table.data());
        });
        stream_->copy(place.get(), table.data(), bytes);
        stream_->synchronise();
      }
    }
  }

 private:
  /// As many sets as there is room for.
  void take_memory() {
    for (;; sets_ /= 2) {
      try {
        memory_ = device_->allocate(sets_ * offsets_.back());
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kMemory || sets_ == 1) throw;
      }
    }
  }

  template <class Body>
  void with_buffers(const TrialStep& step, size_t repetition, const Body& body) {
    const size_t set = repetition % sets_;
    const auto at = [&](int value) {
      return value < 0
                 ? nullptr
                 : memory_.get() + set * offsets_.back() + offsets_[static_cast<size_t>(value)];
    };
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    for (const int value : step.inputs) inputs.push_back(at(value));
    for (const int value : step.outputs) outputs.push_back(at(value));
    DeviceBuffers buffers;
    buffers.inputs = inputs;
    buffers.outputs = outputs;
    buffers.workspace = scratch_.get();
    const auto table = tables_.find({step.kernel, set});
    buffers.table = table == tables_.end() ? nullptr : table->second.get();
    buffers.stream = stream_.get();
    body(buffers);
  }

  /// The numbers of value `index` in all sets.
  void fill(size_t index) {
    const Operand& value = values_[index];
    const size_t bytes = bytes_of(value);
    if (bytes == 0) return;
    const int64_t count =
        value.constant != nullptr ? value.size() : std::min(value.size(), kPattern);
    std::vector<std::byte> made(static_cast<size_t>(count) * size_of(value.dtype));
    const std::byte* from = made.data();
    if (value.constant != nullptr) from = value.constant->bytes();
    if (value.constant == nullptr) make_up(value.dtype, count, made.data());
    for (size_t set = 0; set < sets_; ++set) {
      std::byte* to = memory_.get() + set * offsets_.back() + offsets_[index];
      for (size_t at = 0; at < bytes; at += made.size())
        stream_->copy(to + at, from, std::min(made.size(), bytes - at));
    }
    stream_->synchronise();
  }

  const std::vector<Operand>& values_;
  std::unique_ptr<Stream> stream_;
  Device* device_ = nullptr;
  std::vector<size_t> offsets_;  // in a set; the last is its size
  size_t sets_ = 1;
  Device::Memory memory_, scratch_;
  std::map<std::pair<const Kernel*, size_t>, Device::Memory> tables_;
};

/// Seconds until all that `work` puts into the stream is done.
template <class Work>
double seconds_of(Stream& stream, const Work& work) {
  const Clock::time_point begin = Clock::now();
  work();
  stream.synchronise();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

std::vector<double> time_on_device(Device& device, const std::vector<Operand>& values,
                                   const std::vector<TrialWay>& ways) {
  for (const TrialWay& way : ways) {
    for (const TrialStep& step : way) step.kernel->make_ready();
  }
  Room room(device, values, ways);
  Stream& stream = room.stream();
  std::vector<double> times;
  for (const TrialWay& way : ways) {
    room.put_tables(way);
    seconds_of(stream, [&] { room.run(way, 0); });  // what libraries load, caches, clocks
    times.push_back(seconds_of(stream, [&] { room.run(way, 1); }));
  }
  const double fastest = *std::min_element(times.begin(), times.end());
  struct Captured {
    size_t way = 0;
    int repeats = 0;
    std::unique_ptr<DeviceGraph> graph;
  };
  std::vector<Captured> captured;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (times[i] > kHopeless * fastest + kLaunchSeconds) continue;
    const double repeats = std::clamp(kGraphSeconds / times[i], 1.0, double{kMostRepeats});
    Captured made{i, static_cast<int>(repeats), nullptr};
    Capture capture(stream);
    for (int k = 0; k < made.repeats; ++k) room.run(ways[i], static_cast<size_t>(k));
    made.graph = capture.end();
    times[i] = std::numeric_limits<double>::infinity();
    captured.push_back(std::move(made));
  }
  for (int round = 0; round <= kRounds; ++round) {
    const double best = *std::min_element(times.begin(), times.end());
    for (const Captured& each : captured) {
      if (round > kSureRounds && times[each.way] > kBehind * best) continue;
      const double seconds = seconds_of(stream, [&] { stream.launch(*each.graph); }) / each.repeats;
      if (round > 0) times[each.way] = std::min(times[each.way], seconds);  // 0: its upload
    }
  }
  return times;
}

}  // namespace halfnote
