// ai.halfnote.Dropout with its words drawn many groups at a time: the reference's bits, for
// elements of at most 32 bits.
#include <array>

#include "kernels/cpu/reals.h"
#include "kernels/cpu/stateful/keep.h"
#include "kernels/cpu/stateful/parts.h"
#include "kernels/cpu/stateful/random.h"

namespace halfnote::cpu {
namespace {

constexpr int64_t kPieceWords = 32, kPiece = 64 * kPieceWords;
static_assert(kElementGrain % kPiece == 0);

Prepared prepare_fast_dropout(const KernelCall& call) {
  DropoutPlan plan;
  if (std::string reason = plan_dropout(call, plan); !reason.empty()) return Prepared::no(reason);
  const DType dtype = call.inputs[0].dtype;
  if (dtype == DType::kF64 || !is_real(dtype))
    return Prepared::no("elements of type " + std::string(short_name(dtype)));
  const auto body = [=, factor = plan.rule.factor, count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const KeepStream stream{static_cast<uint64_t>(*buffers.in<int64_t>(1)),
                            static_cast<uint64_t>(*buffers.in<int64_t>(2)), plan.stream.node,
                            plan.rule.threshold};
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      std::array<uint64_t, kPieceWords> bits;
      std::array<float, kPiece> room;
      for (int64_t i = begin; i < end; i += kPiece) {
        const int64_t n = std::min(kPiece, end - i);
        keep_bits(stream, static_cast<uint64_t>(i), (n + 63) / 64, bits.data());
        if (dtype == DType::kF32) {
          keep_loops().drop(buffers.in<float>(0) + i, n, bits.data(), factor,
                            buffers.out<float>(0) + i);
          continue;
        }
        load_reals(buffers.inputs[0], dtype, i, n, room.data());
        keep_loops().drop(room.data(), n, bits.data(), factor, room.data());
        store_reals(room.data(), n, dtype, buffers.outputs[0], i);
      }
    });
  };
  return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
}

}  // namespace

std::vector<KernelRow> fast_dropout_rows() {
  return {{"ai.halfnote", "Dropout", "fast.dropout", prepare_fast_dropout}};
}

}  // namespace halfnote::cpu
