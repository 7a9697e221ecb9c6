// States that a skipped step leaves as they were: Where with one condition for all of their
// elements. However many there are, it is one launch.
#include "base/low_bit.h"
#include "kernels/cuda/stateful/parts.h"
#include "kernels/cuda/stateful/segments.h"

namespace halfnote::HN_CUDA {

namespace {

/// What one Where chooses between, as bytes.
struct KeptState {
  const uint8_t *yes, *no;
  uint8_t* to;
  int64_t bytes;
  bool aligned;
};

__global__ void __launch_bounds__(kBlock)
    keep_chunks(const KeptState* states, const Chunk* chunks, const bool* condition) {
  const Chunk chunk = chunks[blockIdx.x];
  const KeptState s = states[chunk.segment];
  const uint8_t* from = *condition ? s.yes : s.no;
  if (from == s.to) return;
  walk_chunk<16>(chunk.index, s.bytes, s.aligned, [&](const auto& place) {
    const Packed<uint8_t, 16> pack = place.load(from);
    place.store(s.to, pack);
  });
}

/// The reason why a call is none of this kind, or an empty string.
std::string unfit(const KernelCall& call) {
  if (!call.has_input(2) || !call.has_output(0)) return "an operand is missing";
  if (call.inputs[0].dtype != DType::kBool) return "the condition is not bool";
  if (call.inputs[0].size() != 1) return "a condition for each element";
  for (const Operand* side : {&call.inputs[1], &call.inputs[2]}) {
    if (side->dtype != call.outputs[0].dtype) return "operands of different types";
    if (side->shape != call.outputs[0].shape) return "a side that is broadcast";
  }
  return is_low_bit(call.outputs[0].dtype) ? "elements of less than a byte" : "";
}

Prepared prepare_keep(std::span<const KernelCall> calls) {
  std::vector<int64_t> bytes, chunks;
  for (const KernelCall& call : calls) {
    if (std::string why = unfit(call); !why.empty()) return Prepared::no(why);
    bytes.push_back(call.outputs[0].size() * static_cast<int64_t>(size_of(call.outputs[0].dtype)));
    chunks.push_back(chunks_of(bytes.back()));
  }
  const TableForm table(sizeof(KeptState), {chunks});
  // The operands of all calls, one behind the other.
  const auto write = [bytes, table](const KernelBuffers& buffers, std::byte* to) {
    std::vector<KeptState> all;
    for (size_t k = 0; k < bytes.size(); ++k) {
      const auto* yes = buffers.in<uint8_t>(3 * k + 1);
      const auto* no = buffers.in<uint8_t>(3 * k + 2);
      auto* result = buffers.out<uint8_t>(k);
      all.push_back({yes, no, result, bytes[k], aligned_for_packs({yes, no, result})});
    }
    table.write<KeptState>(all, to);
  };
  const auto run = [table](const KernelBuffers& buffers) {
    launch(stream_of(buffers), keep_chunks, table.blocks(0), kBlock, 0,
           table.segments<KeptState>(buffers), table.chunks(buffers), buffers.in<bool>(0));
  };
  return make_table_kernel(table.bytes(), 0, run, write, [](size_t input, size_t output) {
    return input == 3 * output + 1 || input == 3 * output + 2;
  });
}

}  // namespace

std::vector<KernelRow> keeping_rows() {
  const auto alone = [](const KernelCall& call) { return prepare_keep({&call, 1}); };
  return {{"",
           "Where",
           "own.keep",
           alone,
           {.own_inputs = 2, .prepare = prepare_keep, .shared_before = 1}}};
}

}  // namespace halfnote::HN_CUDA
