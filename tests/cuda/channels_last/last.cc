#include "tests/cuda/channels_last/last.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "kernels/layout.h"

namespace halfnote::cuda_emulated {

Tensor turned(const Tensor& from, bool to_last) {
  const Shape& shape = from.shape();
  Tensor to(from.dtype(), shape);
  const int64_t channels = shape[1], pixels = from.size() / (shape[0] * channels);
  const size_t size = size_of(from.dtype());
  const std::byte* const in = from.bytes();
  std::byte* const out = to.mutable_bytes();
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < pixels; ++p) {
        const auto plain = static_cast<size_t>((n * channels + c) * pixels + p) * size;
        const auto last = static_cast<size_t>((n * pixels + p) * channels + c) * size;
        std::memcpy(out + (to_last ? last : plain), in + (to_last ? plain : last), size);
      }
    }
  }
  return to;
}

std::vector<Tensor> run_last(const Call& c, uint32_t input_mask, uint32_t output_mask,
                             bool in_place) {
  const auto device = test::open_tested_device();
  KernelCall call = kernel_call(c);
  const KernelChoice plain = device->kernels().choose(call);
  if (plain.row == nullptr) throw Error(ErrorCode::kUnsupported, "no plain kernel");
  const auto rows = blocked_rows_of(device->regions(), *plain.row);
  if (rows.empty()) return {};
  const BlockedOperands operands = rows.back()->operands(call);
  if (!operands.any()) return {};
  std::vector<Tensor> inputs = c.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (((operands.inputs & input_mask) >> i & 1) == 0) continue;
    inputs[i] = turned(inputs[i], true);
    call.inputs[i].layout = channels_last();
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (((operands.outputs & output_mask) >> i & 1) != 0) call.outputs[i].layout = channels_last();
  }
  Prepared prepared;
  for (size_t i = 0; i < rows.size() && !prepared; ++i) prepared = rows[i]->row.prepare(call);
  EXPECT_TRUE(prepared) << c.op << ": " << prepared.refusal;
  if (!prepared) return {};
  prepared.kernel->make_ready();
  std::vector<Tensor> results =
      test::run_kernel(*device, *prepared.kernel, call.outputs, inputs, {.in_place = in_place});
  for (size_t i = 0; i < results.size(); ++i) {
    if (is_channels_last(call.outputs[i])) results[i] = turned(results[i], false);
  }
  return results;
}

void check_last(const Call& call, uint32_t inputs, uint32_t outputs, std::vector<uint64_t> seeds) {
  if (test::tested_device() == "none") return;
  if (seeds.empty()) seeds.assign(test::thread_orders().begin(), test::thread_orders().end());
  const std::string name = std::string(call.op) + " of " +
                           std::string(short_name(call.inputs[0].dtype())) +
                           to_string(call.inputs[0].shape());
  const std::vector<Tensor> wanted = on_cpu(call);
  std::vector<Tensor> first;
  for (const uint64_t seed : seeds) {
    emulation::set_emulation_seed(seed);
    const std::vector<Tensor> got = run_last(call, inputs, outputs, seed == 3);
    ASSERT_EQ(got.size(), wanted.size()) << name;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].defined()) continue;
      if (first.empty())
        test::expect_near(got[i], wanted[i], name + ", output " + std::to_string(i));
      else
        EXPECT_TRUE(identical(got[i], first[i])) << name << ", run " << seed;
    }
    if (first.empty()) first = got;
  }
  emulation::set_emulation_seed(1);
}

}  // namespace halfnote::cuda_emulated
