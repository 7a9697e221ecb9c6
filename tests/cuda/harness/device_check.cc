// One call on the device under test, and where its data is.
#include "tests/cuda/harness/device_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/low_bit.h"
#include "kernels/cuda/emulation/emulator.h"
#include "kernels/cuda/emulation/guarded.h"
#include "tests/cuda/harness/reserve.h"
#include "tests/sanitizer.h"

namespace halfnote::test {

namespace {

/// The CPU sums products of floats in f32, the emulated library in f64: what 2^10 roundings of an
/// f32 (or f64) may make of the largest element, and two of a 16-bit result.
double tolerance(DType dtype, double wanted, double largest) {
  switch (dtype) {
    case DType::kF16:
      return 0x1p-10 * 2 * std::fabs(wanted) + 0x1p-13 * largest + 0x1p-24;
    case DType::kBF16:
      return 0x1p-7 * 2 * std::fabs(wanted) + 0x1p-13 * largest;
    case DType::kF32:
      return 0x1p-13 * largest;
    default:
      return 0x1p-42 * largest;
  }
}

/// Of the largest element, what 16-bit attention may lose: probabilities are rounded before they
/// are multiplied, gradients in f32 too.
double lost_in_products(const KernelCall& call, size_t output) {
  const bool statistics = call.op == "Attention" && output > 0;
  if (!call.op.starts_with("Attention") || statistics) return 0;
  const DType dtype = call.inputs[1].dtype;
  return dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : 0;
}

bool has_nan(const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (std::isnan(tensor.at_as_double(i))) return true;
  }
  return false;
}

/// Where the gradient of V is NaN (a row whose scores are all −∞), the library of 16-bit attention
/// has NaN in those of Q and K too: the step is lost either way.
bool is_lost(const KernelCall& call, const std::vector<Tensor>& wanted, size_t output) {
  return call.op == "AttentionGrad" && is_16bit_float(call.inputs[1].dtype) && output < 2 &&
         wanted.size() > 2 && wanted[2].defined() && has_nan(wanted[2]);
}

/// Attention promises MAX + log SUM of a row, not which part is in which: the logarithm of the sum
/// of all its exponentials in place of MAX, and nothing in place of SUM.
std::vector<Tensor> comparable(const KernelCall& call, std::vector<Tensor> results) {
  const bool has_sums = call.op == "Attention" && results.size() == 3 && results[1].defined() &&
                        results[1].dtype() == DType::kF32;
  if (!has_sums) return results;
  Tensor joined(DType::kF32, results[1].shape());
  const auto most = results[1].data<float>(), sum = results[2].data<float>();
  const auto to = joined.mutable_data<float>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = most[i] + std::log(sum[i]);
  return {results[0], joined, Tensor()};
}

/// Is the memory of a call its own? Always under the emulation, which finds who goes beyond it; on
/// a GPU where compute-sanitizer is to.
bool has_own_memory() {
  const char* wish = std::getenv("HALFNOTE_TEST_MEMORY");
  return tested_device() == "cuda-emulated" || (wish != nullptr && std::string(wish) == "own");
}

/// What lies on the device during one call; each operand `offset` bytes, or an element that is
/// longer, behind an aligned address. From a reserve, unless there is none.
class Operands {
 public:
  Operands(Device& device, Stream& stream, Reserve* reserve, size_t offset = 0)
      : device_(device), stream_(stream), reserve_(reserve), offset_(offset) {}

  std::byte* room(size_t bytes, DType dtype = DType::kU8) {
    const size_t offset = offset_ == 0 ? 0 : std::max(offset_, size_of(dtype));
    if (reserve_ != nullptr) return reserve_->take(bytes, offset);
    memory_.push_back(device_.allocate(bytes + offset));
    if (tested_device() == "cuda-emulated") emulation::forbid_access(memory_.back().get(), offset);
    return memory_.back().get() + offset;
  }
  std::byte* copy_of(const Tensor& input) {
    if (!input.defined()) return nullptr;
    std::byte* copy = room(input.byte_size(), input.dtype());
    stream_.copy(copy, input.bytes(), input.byte_size());
    return copy;
  }

 private:
  Device& device_;
  Stream& stream_;
  Reserve* reserve_;
  size_t offset_;
  std::vector<Device::Memory> memory_;
};

/// A stream, and a reserve on it, for all calls on a GPU: making them takes it its time.
struct Lasting {
  std::unique_ptr<Stream> stream;
  Reserve reserve;
  explicit Lasting(Device& device) : stream(device.make_stream()), reserve(device, *stream) {}
};

Lasting& lasting(Device& device) {
  static auto& all = *new std::map<Device*, Lasting>;  // it ends with the process
  return all.try_emplace(&device, device).first->second;
}

/// Where one call runs.
struct Bench {
  std::unique_ptr<Stream> own;
  Stream* stream = nullptr;
  Reserve* reserve = nullptr;

  explicit Bench(Device& device) {
    if (has_own_memory()) {
      own = device.make_stream();
      stream = own.get();
    } else {
      stream = lasting(device).stream.get();
      reserve = &lasting(device).reserve;
      reserve->free_all();  // of a call that ended in an error too
    }
  }
};

/// The first input, of those not yet `taken`, over which an output of these bytes may be written.
std::optional<size_t> take_input(const Kernel& kernel, const std::vector<Tensor>& inputs,
                                 size_t output, size_t bytes, std::vector<bool>& taken) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (taken[i] || !inputs[i].defined() || inputs[i].byte_size() != bytes) continue;
    if (!kernel.can_share(i, output)) continue;
    taken[i] = true;
    return i;
  }
  return std::nullopt;
}

/// Brings the table of a kernel to the device and runs it.
void run_with_table(const Kernel& kernel, Operands& operands, DeviceBuffers& buffers) {
  std::vector<std::byte> table(kernel.table_bytes());
  std::byte* const on_device = operands.room(table.size());
  buffers.workspace = operands.room(kernel.workspace_bytes());
  buffers.table = on_device;
  kernel.write_table(buffers, table.data());
  buffers.stream->copy(on_device, table.data(), table.size());
  buffers.stream->synchronise();
  kernel.run(buffers);
}

}  // namespace

std::string refusals_of(const KernelChoice& choice) {
  std::string text;
  for (const Refusal& r : choice.refusals) text += std::string(r.kernel) + ": " + r.reason + "; ";
  return text.empty() ? "no row" : text;
}

std::string tested_device() {
  const char* name = std::getenv("HALFNOTE_TEST_DEVICE");
  return name == nullptr ? "cuda-emulated" : name;
}

/// After an illegal address or the like all that a process asks of a GPU fails: tests that have not
/// run yet would say nothing.
static void stop_if_lost(Device& device) {
  try {
    lasting(device).stream->synchronise();
  } catch (const Error& error) {
    std::fprintf(stderr, "the device is lost since the last test: %s\n", error.what());
    std::_Exit(static_cast<int>(error.code()));
  }
}

std::shared_ptr<Device> open_tested_device() {
  const std::string name = tested_device();
  if (name == "cuda-emulated") return open_device(name);
  static const std::shared_ptr<Device> device = open_device(name);
  if (device == nullptr) throw Error(ErrorCode::kUsage, "these tests are for devices, not for cpu");
  stop_if_lost(*device);
  return device;
}

std::string source_folder() {
  const char* folder = std::getenv("HALFNOTE_TEST_SOURCES");
  return folder == nullptr ? HALFNOTE_SOURCE_DIR : folder;
}

void expect_near(const Tensor& got, const Tensor& wanted, const std::string& what, double lost) {
  if (!is_float(wanted.dtype()) || is_low_bit(wanted.dtype())) {
    EXPECT_TRUE(identical(got, wanted)) << what;
    return;
  }
  double largest = 0;
  for (int64_t i = 0; i < wanted.size(); ++i) {
    const double x = std::fabs(wanted.at_as_double(i));
    if (std::isfinite(x)) largest = std::max(largest, x);
  }
  for (int64_t i = 0; i < wanted.size(); ++i) {
    const double a = got.at_as_double(i), b = wanted.at_as_double(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    ASSERT_LE(std::fabs(a - b), tolerance(wanted.dtype(), b, largest) + lost * largest)
        << what << ", element " << i << ": got " << a << ", wanted " << b;
  }
}

std::vector<Tensor> run_on_device(const KernelCall& call, const std::vector<Tensor>& inputs,
                                  bool in_place) {
  const std::shared_ptr<Device> device = open_tested_device();
  const KernelChoice choice = device->kernels().choose(call);
  if (!choice.kernel) throw Error(ErrorCode::kUnsupported, refusals_of(choice));
  return run_kernel(*device, *choice.kernel, call.outputs, inputs, {.in_place = in_place});
}

std::vector<Tensor> run_kernel(Device& device, const Kernel& kernel,
                               const std::vector<Operand>& outputs,
                               const std::vector<Tensor>& inputs, const Placing& placing) {
  const Bench bench(device);
  Stream* const stream = bench.stream;
  Operands operands(device, *stream, bench.reserve, placing.offset),
      room(device, *stream, bench.reserve);
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const Tensor& input : inputs) from.push_back(operands.copy_of(input));
  std::vector<Tensor> results;
  std::vector<bool> taken(inputs.size(), false);
  for (size_t i = 0; i < outputs.size(); ++i) {
    results.push_back(!outputs[i].present() ? Tensor()
                                            : Tensor(outputs[i].dtype, outputs[i].shape));
    const bool wanted = results[i].defined();
    const size_t bytes = wanted ? results[i].byte_size() : 0;
    const bool over = wanted && placing.in_place;
    const auto old = over ? take_input(kernel, inputs, i, bytes, taken) : std::nullopt;
    to.push_back(!wanted ? nullptr
                 : old   ? const_cast<std::byte*>(from[*old])
                         : operands.room(bytes, outputs[i].dtype));
  }
  DeviceBuffers buffers;
  buffers.inputs = from;
  buffers.outputs = to;
  buffers.stream = stream;
  run_with_table(kernel, room, buffers);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;
    stream->copy(results[i].mutable_bytes(), to[i], results[i].byte_size());
  }
  stream->synchronise();
  if (bench.reserve != nullptr) {
    EXPECT_EQ(bench.reserve->free_all(), 0u) << "buffers that were written over their end";
  }
  return results;
}

std::span<const uint64_t> thread_orders() {
  static constexpr uint64_t kAll[] = {1, 2, 3};
  static constexpr uint64_t kFirstAndLast[] = {1, 3};
  if (under_address_sanitizer()) return kAll;
  return kFirstAndLast;  // a GPU takes its own order
}

void check_on_device(const KernelCall& call, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& wanted) {
  if (tested_device() == "none") return;
  const Operand& first_operand = call.inputs.empty() ? call.outputs[0] : call.inputs[0];
  const std::string name = std::string(call.op) + " of " +
                           std::string(short_name(first_operand.dtype)) +
                           to_string(first_operand.shape) + " on " + tested_device();
  if (const KernelChoice choice = open_tested_device()->kernels().choose(call); !choice.kernel) {
    ADD_FAILURE() << name << " has no kernel: " << refusals_of(choice);
    return;
  }
  std::vector<Tensor> first;
  const std::vector<Tensor> expected = comparable(call, wanted);
  for (const uint64_t seed : thread_orders()) {
    emulation::set_emulation_seed(seed);
    const std::vector<Tensor> got = run_on_device(call, inputs, seed == 3);
    const std::vector<Tensor> compared = comparable(call, got);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].defined()) continue;
      if (seed == 1 && expected[i].defined() && !is_lost(call, wanted, i))
        expect_near(compared[i], expected[i], name + ", output " + std::to_string(i),
                    lost_in_products(call, i));
      // The order of threads must not change a bit.
      if (seed != 1) {
        EXPECT_TRUE(identical(got[i], first[i])) << name << ", run " << seed;
      }
    }
    if (seed == 1) first = got;
  }
  emulation::set_emulation_seed(1);
}

}  // namespace halfnote::test
