// One call on the device under test, and where its data is.
#include "device_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "kernels/cuda/emulation/emulator.h"

namespace halfnote::test {

namespace {

std::string why_not(const KernelChoice& choice) {
  std::string text;
  for (const Refusal& r : choice.refusals) text += std::string(r.kernel) + ": " + r.reason + "; ";
  return text.empty() ? "no row" : text;
}

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

/// What lies on the device during one call.
class Operands {
 public:
  Operands(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  std::byte* room(size_t bytes) {
    memory_.push_back(device_.allocate(bytes));
    return memory_.back().get();
  }
  std::byte* copy_of(const Tensor& input) {
    if (!input.defined()) return nullptr;
    std::byte* copy = room(input.byte_size());
    stream_.copy(copy, input.bytes(), input.byte_size());
    return copy;
  }

 private:
  Device& device_;
  Stream& stream_;
  std::vector<Device::Memory> memory_;
};

}  // namespace

std::string tested_device() {
  const char* name = std::getenv("HALFNOTE_TEST_DEVICE");
  return name == nullptr ? "cuda-emulated" : name;
}

std::shared_ptr<Device> open_tested_device() {
  const std::string name = tested_device();
  if (name == "cuda-emulated") return open_device(name);
  static const std::shared_ptr<Device> device = open_device(name);
  if (device == nullptr) throw Error(ErrorCode::kUsage, "these tests are for devices, not for cpu");
  return device;
}

std::string source_folder() {
  const char* folder = std::getenv("HALFNOTE_TEST_SOURCES");
  return folder == nullptr ? HALFNOTE_SOURCE_DIR : folder;
}

void expect_near(const Tensor& got, const Tensor& wanted, const std::string& what) {
  if (!is_float(wanted.dtype())) {
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
    ASSERT_LE(std::fabs(a - b), tolerance(wanted.dtype(), b, largest))
        << what << ", element " << i << ": got " << a << ", wanted " << b;
  }
}

std::vector<Tensor> run_on_device(const KernelCall& call, const std::vector<Tensor>& inputs,
                                  bool in_place) {
  const std::shared_ptr<Device> device = open_tested_device();
  const KernelChoice choice = device->kernels().choose(call);
  if (!choice.kernel) throw Error(ErrorCode::kUnsupported, why_not(choice));
  return run_on_device(*device, *choice.kernel, call, inputs, in_place);
}

std::vector<Tensor> run_on_device(Device& device, const Kernel& kernel, const KernelCall& call,
                                  const std::vector<Tensor>& inputs, bool in_place) {
  const auto stream = device.make_stream();
  Operands operands(device, *stream);
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const Tensor& input : inputs) from.push_back(operands.copy_of(input));
  std::vector<Tensor> results;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const Operand& output = call.outputs[i];
    results.push_back(!output.present() ? Tensor() : Tensor(output.dtype, output.shape));
    const bool over = in_place && i == 0 && kernel.can_share(0, 0) &&
                      inputs[0].byte_size() == results[0].byte_size();
    to.push_back(!results[i].defined() ? nullptr
                 : over                ? const_cast<std::byte*>(from[0])
                                       : operands.room(results[i].byte_size()));
  }
  DeviceBuffers buffers;
  buffers.inputs = from;
  buffers.outputs = to;
  buffers.workspace = operands.room(kernel.workspace_bytes());
  buffers.stream = stream.get();
  kernel.run(buffers);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;
    stream->copy(results[i].mutable_bytes(), to[i], results[i].byte_size());
  }
  stream->synchronise();
  return results;
}

void check_on_device(const KernelCall& call, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& wanted) {
  if (tested_device() == "none") return;
  if (!open_tested_device()->kernels().choose(call).kernel) return;
  const Operand& first_operand = call.inputs.empty() ? call.outputs[0] : call.inputs[0];
  const std::string name = std::string(call.op) + " of " +
                           std::string(short_name(first_operand.dtype)) +
                           to_string(first_operand.shape) + " on " + tested_device();
  std::vector<Tensor> first;
  for (const uint64_t seed : {1, 2, 3}) {
    emulation::set_emulation_seed(seed);
    const std::vector<Tensor> got = run_on_device(call, inputs, seed == 3);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].defined()) continue;
      if (seed == 1) expect_near(got[i], wanted[i], name + ", output " + std::to_string(i));
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
