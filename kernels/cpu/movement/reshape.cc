// Ops that keep the bytes and change the shape: a plan lets output and input share a buffer and
// skips the run.
#include <cstring>

#include "kernels/cpu/movement/parts.h"

namespace halfnote::cpu {

namespace {

class SameBytes final : public Kernel {
 public:
  SameBytes(size_t bytes, bool is_all) : bytes_(bytes), is_all_(is_all) {}
  void run(const KernelBuffers& buffers) const override {
    if (bytes_ != 0 && buffers.inputs[0] != buffers.outputs[0]) {
      std::memmove(buffers.outputs[0], buffers.inputs[0], bytes_);
    }
  }
  bool can_share(size_t input, size_t /*output*/) const override { return is_all_ && input == 0; }
  bool is_view() const override { return true; }

 private:
  size_t bytes_;
  bool is_all_;  // of input 0
};

Prepared prepare_same_bytes(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  if (size_of(from.dtype) == 0) {
    return Prepared::no("cannot move elements of type " + std::string(short_name(from.dtype)));
  }
  if (from.dtype != to.dtype) return Prepared::no("operands of different types");
  if (from.size() != to.size()) {
    throw Error(ErrorCode::kModel, "the shape that is asked for has another number of elements")
        .at({.op = std::string(call.op)})
        .expected(std::to_string(from.size()) + " elements, as " + to_string(from.shape),
                  to_string(to.shape))
        .hint(
            "exporters write the sizes of the example's input into shapes: run with such inputs, "
            "or export with dynamic axes");
  }
  return same_bytes(call);
}

}  // namespace

Prepared same_bytes(const KernelCall& call) {
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  const size_t bytes = static_cast<size_t>(to.size()) * size_of(to.dtype);
  return Prepared::yes(std::make_unique<SameBytes>(bytes, from.size() == to.size()));
}

std::vector<KernelRow> reshape_rows() {
  return {
      {"", "Flatten", "reference", prepare_same_bytes},
      {"", "Identity", "reference", prepare_same_bytes},
      {"", "Reshape", "reference", prepare_same_bytes},
      {"", "Squeeze", "reference", prepare_same_bytes},
      {"", "Unsqueeze", "reference", prepare_same_bytes},
  };
}

}  // namespace halfnote::cpu
