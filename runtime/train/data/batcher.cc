#include "runtime/train/data/batcher.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "runtime/train/data/shuffle.h"

namespace halfnote {
namespace {

void check(const InputMap& map, const BatcherOptions& options, DataPosition start) {
  const int64_t samples = map.data().size();
  if (options.batch_size < 1) {
    throw Error(ErrorCode::kUsage, "bad batch size")
        .expected("1 or more", std::to_string(options.batch_size));
  }
  const int64_t needed = options.tail == Tail::kDrop ? options.batch_size : 1;
  if (samples < needed) {
    throw Error(ErrorCode::kData, "too few samples for one batch")
        .at({map.data().origin(), {}, {}})
        .expected(fmt::format("at least {}", needed), std::to_string(samples))
        .hint(samples == 0 ? "the data holds no sample"
                           : "choose a smaller batch size (where the model fixes it, export it "
                             "with a smaller one)");
  }
  if (start.epoch < 0 || start.sample < 0 || start.sample > samples) {
    throw Error(ErrorCode::kCheckpoint, "the data position does not fit the data")
        .at({map.data().origin(), {}, {}})
        .expected(fmt::format("a sample of {}", samples),
                  fmt::format("epoch {}, sample {}", start.epoch, start.sample))
        .hint("resume with the data of the run that was saved");
  }
}

/// Makes batches one after the other; knows no threads.
class BatchMaker {
 public:
  BatchMaker(InputMap map, const BatcherOptions& options, DataPosition start)
      : map_(std::move(map)),
        options_(options),
        at_(start),
        order_(map_.data().size(), options.seed, start.epoch) {
    skip_epoch_end();
  }

  const InputMap& map() const { return map_; }
  const BatcherOptions& options() const { return options_; }
  DataPosition position() const { return at_; }

  bool make(Batch& batch) {
    if (options_.epochs > 0 && at_.epoch >= options_.epochs) return false;
    batch.start = at_;
    batch.count = std::min(options_.batch_size, map_.data().size() - at_.sample);
    const int64_t rows = options_.tail == Tail::kPad ? options_.batch_size : batch.count;
    batch.rows = rows;
    prepare(batch, rows);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t place = at_.sample + std::min(row, batch.count - 1);
      const int64_t sample = options_.shuffle ? order_[place] : place;
      for (size_t i = 0; i < map_.size(); ++i) {
        if (!map_.is_whole(i)) map_.fill(i, sample, row, batch.inputs[i], room_);
      }
    }
    at_.sample += batch.count;
    skip_epoch_end();
    batch.next = at_;
    return true;
  }

 private:
  /// Moves on to the next epoch when this one has no further batch.
  void skip_epoch_end() {
    const int64_t left = map_.data().size() - at_.sample;
    if (left >= (options_.tail == Tail::kDrop ? options_.batch_size : 1)) return;
    at_ = {at_.epoch + 1, 0};
    order_ = Shuffle(map_.data().size(), options_.seed, at_.epoch);
  }

  /// Reuses the tensors unless their shape is another or somebody else still holds them.
  void prepare(Batch& batch, int64_t rows) const {
    batch.inputs.resize(map_.size());
    for (size_t i = 0; i < map_.size(); ++i) {
      Tensor& tensor = batch.inputs[i];
      if (map_.is_whole(i)) {
        tensor = map_.whole(i);
        continue;
      }
      const bool fits = tensor.defined() && tensor.dtype() == map_.input(i).dtype &&
                        tensor.is_sole() && tensor.shape() == map_.batch_shape(i, rows);
      if (!fits) tensor = map_.make_batch(i, rows);
    }
  }

  InputMap map_;
  BatcherOptions options_;
  DataPosition at_;
  Shuffle order_;
  ConvertRoom room_;
};

}  // namespace

class Batcher::Impl {
 public:
  Impl(InputMap map, const BatcherOptions& options, DataPosition start)
      : maker_(std::move(map), options, start), position_(maker_.position()) {
    if (options.prefetch <= 0) return;
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::kMemory, "cannot start the data thread").hint(error.what());
    }
  }

  ~Impl() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool next(Batch& batch) {
    const auto begin = std::chrono::steady_clock::now();
    const bool more = thread_.joinable() ? take(batch) : maker_.make(batch);
    wait_ += std::chrono::steady_clock::now() - begin;
    if (more) position_ = batch.next;
    return more;
  }

  const BatchMaker& maker() const { return maker_; }
  DataPosition position() const { return position_; }
  double wait_seconds() const { return std::chrono::duration<double>(wait_).count(); }

 private:
  struct Item {
    Batch batch;
    bool last = false;  // the end, or `error`
    std::exception_ptr error;
  };

  Item make_item(Batch batch) {
    Item item{std::move(batch), false, nullptr};
    try {
      item.last = !maker_.make(item.batch);
    } catch (...) {
      item.last = true;
      item.error = std::current_exception();
    }
    return item;
  }

  void work() {
    const auto depth = static_cast<size_t>(maker_.options().prefetch);
    for (bool last = false; !last;) {
      Batch reused;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || ready_.size() < depth; });
        if (stop_) return;
        if (!spare_.empty()) {
          reused = std::move(spare_.back());
          spare_.pop_back();
        }
      }
      Item item = make_item(std::move(reused));
      last = item.last;
      {
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(item));
      }
      changed_.notify_all();
    }
  }

  bool take(Batch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty(); });
    Item& front = ready_.front();
    if (front.error) std::rethrow_exception(front.error);
    if (front.last) return false;
    std::swap(batch, front.batch);
    spare_.push_back(std::move(front.batch));
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return true;
  }

  BatchMaker maker_;  // the thread's own while it runs, but for the map and the options, which do
                      // not change
  DataPosition position_;
  std::chrono::steady_clock::duration wait_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> ready_;
  std::vector<Batch> spare_;
  bool stop_ = false;
  std::thread thread_;
};

Batcher::Batcher(InputMap map, const BatcherOptions& options, DataPosition start) {
  check(map, options, start);
  impl_ = std::make_unique<Impl>(std::move(map), options, start);
}

Batcher::~Batcher() = default;

bool Batcher::next(Batch& batch) { return impl_->next(batch); }

const InputMap& Batcher::map() const { return impl_->maker().map(); }

DataPosition Batcher::position() const { return impl_->position(); }

int64_t Batcher::batches_per_epoch() const {
  const BatchMaker& maker = impl_->maker();
  const int64_t size = maker.options().batch_size;
  const int64_t samples = maker.map().data().size();
  return maker.options().tail == Tail::kDrop ? samples / size : (samples + size - 1) / size;
}

double Batcher::wait_seconds() const { return impl_->wait_seconds(); }

}  // namespace halfnote
