// The scheduler of emulated threads. One fiber runs thread after thread; when a thread waits, the
// next one that can go on is chosen at random and entered: on its own fiber if it has begun, on a
// pooled one if not.
#include "kernels/cuda/emulation/emulator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/environment.h"
#include "kernels/cuda/emulation/copies.h"
#include "kernels/cuda/emulation/fiber.h"
#include "kernels/cuda/emulation/guarded.h"

namespace halfnote::emulation {

constinit thread_local Builtins builtins;

namespace {

constexpr size_t kSharedAlignment = 16;  // that HN_DYNAMIC_SHARED promises

/// xorshift64*: quick, and good enough to shuffle with.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du) {
    if (state_ == 0) state_ = 1;
  }
  uint32_t below(uint32_t bound) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    const auto high = static_cast<uint32_t>((state_ * 0x2545f4914f6cdd1du) >> 32);
    return static_cast<uint32_t>((uint64_t{high} * bound) >> 32);
  }

 private:
  uint64_t state_;
};

enum class Wait : uint8_t { kNone, kBarrier, kLanes, kDone };

struct Thread {
  Fiber* fiber = nullptr;  // null: not begun
  Wait wait = Wait::kNone;
  LaneCall call;
  uint64_t result = 0;
  std::source_location place;
};

/// The lanes of a warp that wait in a warp operation.
struct WaitingLanes {
  unsigned lanes = 0;
  unsigned mask = 0;      // of the operation in which they all wait …
  const char* name = "";  // … if they do
  bool alike = true;

  bool is_same(const LaneCall& call) const {
    return alike && mask == call.mask && is_named(call.name);
  }
  bool is_named(const char* other) const { return name == other || std::strcmp(name, other) == 0; }
  void add(const LaneCall& call, int lane) {
    if (lanes == 0) *this = {0, call.mask, call.name};
    alike = is_same(call);
    lanes |= 1u << lane;
  }
};

struct SharedVariable {
  std::byte* memory;
  size_t bytes;
};

/// A permutation of the numbers below a bound: rounds of a Feistel network on as many bits as the
/// bound has, again while the result is not below it.
class Order {
 public:
  void mix(uint64_t bound, Random& random) {
    bound_ = bound;
    bits_ = std::max(2, static_cast<int>(std::bit_width(bound - 1)));
    for (uint32_t& key : keys_) key = random.below(0xffffffffu);
  }
  uint64_t at(uint64_t number) const {
    if (bound_ < 2) return number;
    do {
      number = encrypted(number);
    } while (number >= bound_);
    return number;
  }

 private:
  static constexpr size_t kRounds = 6;

  uint64_t encrypted(uint64_t number) const {
    int low = bits_ / 2, high = bits_ - low;  // the halves' bits; they change sides in each round
    for (const uint32_t key : keys_) {
      const uint64_t right = number & ((uint64_t{1} << low) - 1);
      uint64_t mixed = (right + key + 1) * 0x9e3779b97f4a7c15u;
      mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u;
      const uint64_t left = number >> low ^ (mixed >> 32 & ((uint64_t{1} << high) - 1));
      number = right << high | left;
      std::swap(low, high);
    }
    return number;
  }

  uint64_t bound_ = 0;
  int bits_ = 2;
  uint32_t keys_[kRounds] = {};
};

thread_local uint64_t seed_of_thread = 0;
thread_local bool seed_is_set = false;

class Grid {
 public:
  Grid(const GridShape& shape, uint64_t seed, void (*body)(const void*), const void* arguments);
  void run();
  int barrier(bool predicate, const std::source_location& place);
  uint64_t lanes(const LaneCall& call, const std::source_location& place);
  int lane() const { return static_cast<int>(current_ % kWarpSize); }
  int threads() const { return static_cast<int>(threads_.size()); }
  void note_shared(const SharedVariable& variable, const std::source_location& place);
  CopiesAhead& copies();

 private:
  static void work(void* fiber);
  static void work_until_done(Fiber& own);
  bool begin_block();
  void enter(uint32_t thread);
  /// Leaves the fiber `own`, which waits or is free, for one of the threads that can go on.
  void go_on(Fiber& own);
  uint32_t take_ready();
  Fiber& free_fiber();
  void release_barrier();
  void release_lanes(uint32_t warp, unsigned mask);
  void refuse_other_lanes(const WaitingLanes& waiting, const LaneCall& call,
                          const std::source_location& place) const;
  [[noreturn]] void stalled() const;

  const GridShape shape_;
  void (*const body_)(const void*);
  const void* const arguments_;
  Random random_;
  std::vector<Thread> threads_;
  std::vector<WaitingLanes> warps_;
  std::vector<uint3> indices_;
  std::vector<uint32_t> ready_;
  std::vector<Fiber*> free_;
  std::vector<CopiesAhead> copies_;  // of each thread; none while no thread has set one off
  Guarded shared_;                   // dynamic
  std::vector<SharedVariable> variables_;
  Fiber host_;
  std::exception_ptr error_;
  Order order_;  // of the blocks
  uint64_t blocks_ = 0, next_block_ = 0, static_bytes_ = 0;
  uint32_t current_ = 0, done_ = 0, at_barrier_ = 0;
  int count_ = 0, counted_ = 0;
  std::source_location barrier_;  // where the first thread waits
};

thread_local Grid* running = nullptr;
// Kept from grid to grid; between two of them none stands within a kernel.
thread_local std::vector<std::unique_ptr<Fiber>> fibers;

void refuse_shape(const GridShape& shape) {
  const uint64_t threads = uint64_t{shape.block.x} * shape.block.y * shape.block.z;
  const bool block = threads > 0 && threads <= kMaxThreadsPerBlock && shape.block.z <= 64;
  const bool grid = shape.grid.x > 0 && shape.grid.y > 0 && shape.grid.z > 0 &&
                    shape.grid.x <= 0x7fffffffu && shape.grid.y <= 65535 && shape.grid.z <= 65535;
  if (block && grid && shape.shared_bytes <= kMaxSharedBytes) return;
  const auto text = [](const dim3& d) {
    return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" + std::to_string(d.z);
  };
  throw Error(ErrorCode::kInternal, "a kernel launch that no GPU takes")
      .expected("1 to 1024 threads a block, a grid of at most 2^31-1 x 65535 x 65535, at most " +
                    std::to_string(kMaxSharedBytes) + " bytes of shared memory",
                "blocks of " + text(shape.block) + ", a grid of " + text(shape.grid) + ", " +
                    std::to_string(shape.shared_bytes) + " bytes");
}

Grid::Grid(const GridShape& shape, uint64_t seed, void (*body)(const void*), const void* arguments)
    : shape_(shape), body_(body), arguments_(arguments), random_(seed) {
  refuse_shape(shape);
  const dim3 b = shape.block;
  threads_.resize(size_t{b.x} * b.y * b.z);
  warps_.resize((threads_.size() + kWarpSize - 1) / kWarpSize);
  for (unsigned z = 0; z < b.z; ++z) {
    for (unsigned y = 0; y < b.y; ++y) {
      for (unsigned x = 0; x < b.x; ++x) indices_.push_back({x, y, z});
    }
  }
  ready_.reserve(threads_.size());
  blocks_ = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  order_.mix(blocks_, random_);
  if (shape.shared_bytes > 0) shared_ = allocate_guarded(shape.shared_bytes, kSharedAlignment);
  ++builtins.grid;
  builtins.block_dim = shape.block;
  builtins.grid_dim = shape.grid;
  builtins.shared = shared_.get();
}

bool Grid::begin_block() {
  if (next_block_ == blocks_) return false;
  const uint64_t block = order_.at(next_block_++);
  builtins.block = {static_cast<unsigned>(block % shape_.grid.x),
                    static_cast<unsigned>(block / shape_.grid.x % shape_.grid.y),
                    static_cast<unsigned>(block / shape_.grid.x / shape_.grid.y)};
  for (const SharedVariable& v : variables_) std::memset(v.memory, 0xff, v.bytes);
  if (shared_) std::memset(shared_.get(), 0xff, shape_.shared_bytes);
  ready_.resize(threads_.size());
  std::iota(ready_.begin(), ready_.end(), 0u);
  for (Thread& thread : threads_) {
    thread.fiber = nullptr;
    thread.wait = Wait::kNone;
  }
  std::ranges::fill(warps_, WaitingLanes{});
  for (CopiesAhead& copies : copies_) copies.drop();
  done_ = at_barrier_ = 0;
  count_ = 0;
  return true;
}

void Grid::work(void* fiber) {
  Fiber& own = **static_cast<std::unique_ptr<Fiber>*>(fiber);
  for (;;) {
    try {
      work_until_done(own);
    } catch (...) {
      running->error_ = std::current_exception();
    }
    Fiber::switch_over(own, running->host_);
  }
}

void Grid::work_until_done(Fiber& own) {
  for (;;) {
    Grid& grid = *running;  // another one, perhaps, than before the last switch
    if (grid.done_ == grid.threads_.size() && !grid.begin_block()) return;
    const uint32_t next = grid.take_ready();
    if (grid.threads_[next].fiber != nullptr) {
      grid.free_.push_back(&own);
      grid.enter(next);
      Fiber::switch_over(own, *grid.threads_[next].fiber);
      continue;  // somebody wants a free fiber, and has put the thread back for it
    }
    grid.threads_[next].fiber = &own;
    grid.enter(next);
    grid.body_(grid.arguments_);
    grid.threads_[grid.current_].wait = Wait::kDone;
    ++grid.done_;
  }
}

uint32_t Grid::take_ready() {
  if (ready_.empty()) stalled();
  const uint32_t at = random_.below(static_cast<uint32_t>(ready_.size()));
  const uint32_t thread = ready_[at];
  ready_[at] = ready_.back();
  ready_.pop_back();
  return thread;
}

void Grid::enter(uint32_t thread) {
  current_ = thread;
  builtins.thread = indices_[thread];
}

Fiber& Grid::free_fiber() {
  if (!free_.empty()) {
    Fiber* fiber = free_.back();
    free_.pop_back();
    return *fiber;
  }
  // The fiber finds itself through its slot, which stays where it is.
  if (fibers.capacity() == 0) fibers.reserve(kMaxThreadsPerBlock + 1);
  fibers.emplace_back();
  fibers.back() = std::make_unique<Fiber>(work, &fibers.back());
  return *fibers.back();
}

void Grid::go_on(Fiber& own) {
  const uint32_t self = current_;
  const uint32_t next = take_ready();
  if (next == self) return;
  if (threads_[next].fiber != nullptr) {
    enter(next);
    Fiber::switch_over(own, *threads_[next].fiber);
  } else {
    ready_.push_back(next);  // the free fiber takes it, or another one that waits
    Fiber::switch_over(own, free_fiber());
  }
  enter(self);
}

int Grid::barrier(bool predicate, const std::source_location& place) {
  const uint32_t self = current_;
  Thread& thread = threads_[self];
  if (at_barrier_ == 0) barrier_ = place;
  if (barrier_.line() != place.line() || barrier_.column() != place.column()) {
    broken_kernel("threads of one block wait at different barriers", place);
  }
  thread.wait = Wait::kBarrier;
  thread.place = place;
  count_ += predicate ? 1 : 0;
  ++at_barrier_;
  if (at_barrier_ == threads_.size()) release_barrier();
  go_on(*thread.fiber);
  return counted_;
}

void Grid::release_barrier() {
  counted_ = count_;
  count_ = 0;
  at_barrier_ = 0;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    threads_[i].wait = Wait::kNone;
    ready_.push_back(i);
  }
}

void Grid::refuse_other_lanes(const WaitingLanes& waiting, const LaneCall& call,
                              const std::source_location& place) const {
  const uint32_t warp = current_ / kWarpSize * kWarpSize;
  if ((call.mask >> lane() & 1) == 0) {
    broken_kernel("a warp operation whose mask lacks the calling lane", place);
  }
  const size_t present = threads_.size() - warp;
  if (present < kWarpSize && call.mask >> present != 0) {
    broken_kernel("a warp operation on lanes that the block does not have", place);
  }
  if (waiting.lanes == 0 || waiting.is_same(call)) return;
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if ((call.mask & waiting.lanes) >> i == 0) break;
    if (((call.mask & waiting.lanes) >> i & 1) == 0) continue;
    const LaneCall& other = threads_[warp + i].call;
    const bool same = other.mask == call.mask && std::strcmp(other.name, call.name) == 0;
    if (!same) broken_kernel("lanes of one warp wait in different operations or masks", place);
  }
}

uint64_t Grid::lanes(const LaneCall& call, const std::source_location& place) {
  WaitingLanes& waiting = warps_[current_ / kWarpSize];
  refuse_other_lanes(waiting, call, place);
  waiting.add(call, lane());
  Thread& thread = threads_[current_];
  thread.wait = Wait::kLanes;
  thread.place = place;
  thread.call = call;
  if ((waiting.lanes & call.mask) == call.mask)
    release_lanes(current_ / kWarpSize * kWarpSize, call.mask);
  go_on(*thread.fiber);
  return thread.result;
}

void Grid::release_lanes(uint32_t warp, unsigned mask) {
  warps_[warp / kWarpSize].lanes &= ~mask;
  LaneCall calls[kWarpSize];
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if ((mask >> i & 1) != 0) calls[i] = threads_[warp + i].call;
  }
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if ((mask >> i & 1) == 0) continue;
    Thread& thread = threads_[warp + i];
    thread.result =
        thread.call.result == nullptr ? 0 : thread.call.result(calls, static_cast<int>(i));
    thread.wait = Wait::kNone;
    ready_.push_back(warp + i);
  }
}

void Grid::note_shared(const SharedVariable& variable, const std::source_location& place) {
  std::memset(variable.memory, 0xff, variable.bytes);  // this block's is the first access
  variables_.push_back(variable);
  static_bytes_ += variable.bytes;
  if (static_bytes_ <= kMaxStaticSharedBytes &&
      static_bytes_ + shape_.shared_bytes <= kMaxSharedBytes)
    return;
  const std::string what =
      "more shared memory than every GPU has: " + std::to_string(static_bytes_) +
      " bytes static, " + std::to_string(shape_.shared_bytes) + " dynamic";
  broken_kernel(what.c_str(), place);
}

CopiesAhead& Grid::copies() {
  if (copies_.empty()) copies_.resize(threads_.size());
  return copies_[current_];
}

void Grid::stalled() const {
  for (const Thread& thread : threads_) {
    if (thread.wait == Wait::kLanes) {
      broken_kernel("a warp operation that not all lanes of its mask reach", thread.place);
    }
  }
  for (const Thread& thread : threads_) {
    if (thread.wait != Wait::kBarrier) continue;
    const std::string what = "a barrier that only " + std::to_string(at_barrier_) + " of " +
                             std::to_string(threads_.size()) + " threads reach";
    broken_kernel(what.c_str(), thread.place);
  }
  throw Error(ErrorCode::kInternal, "the emulator has lost a thread");
}

void Grid::run() {
  done_ = static_cast<uint32_t>(threads_.size());  // of the block before the first
  for (const std::unique_ptr<Fiber>& fiber : fibers) free_.push_back(fiber.get());
  Fiber::switch_over(host_, free_fiber());
  if (!error_) return;
  fibers.clear();  // some stand within the kernel
  std::rethrow_exception(error_);
}

}  // namespace

void run_grid(const GridShape& shape, uint64_t seed, void (*body)(const void*),
              const void* arguments) {
  if (running != nullptr) {
    throw Error(ErrorCode::kInternal, "a kernel is launched from within a kernel");
  }
  Grid grid(shape, seed, body, arguments);
  running = &grid;
  try {
    grid.run();
  } catch (...) {
    running = nullptr;
    throw;
  }
  running = nullptr;
}

uint64_t emulation_seed() {
  if (!seed_is_set) {
    set_emulation_seed(number_of_environment("HALFNOTE_EMULATION_SEED").value_or(1));
  }
  return seed_of_thread;
}

void set_emulation_seed(uint64_t seed) {
  seed_of_thread = seed;
  seed_is_set = true;
}

int wait_at_barrier(bool predicate, const std::source_location& place) {
  return running->barrier(predicate, place);
}

int threads_in_block() { return running->threads(); }

uint64_t wait_for_lanes(const LaneCall& call, const std::source_location& place) {
  return running->lanes(call, place);
}

int lane_index() { return running->lane(); }

void note_shared(std::byte* variable, size_t bytes, const std::source_location& place) {
  running->note_shared({variable, bytes}, place);
}

void copy_ahead(void* shared, const void* global, const std::source_location& place) {
  running->copies().set_off(shared, global, place);
}

void end_copy_group() { running->copies().end_group(); }

void wait_for_copies(uint64_t groups, const std::source_location& place) {
  running->copies().wait(groups, place);
}

void broken_kernel(const char* what, const std::source_location& place) {
  const uint3 block = builtins.block, thread = builtins.thread;
  const auto text = [](const uint3& i) {
    return std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z);
  };
  throw Error(ErrorCode::kInternal,
              "emulated kernel, block " + text(block) + ", thread " + text(thread) + ": " + what)
      .at({place.file_name() + (":" + std::to_string(place.line())), {}, {}});
}

}  // namespace halfnote::emulation
