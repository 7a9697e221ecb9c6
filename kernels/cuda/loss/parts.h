// What the cross-entropy losses and their gradients share on the device. The weight of each
// position (0 where the label is ignored) and the losses stay in f64 in the workspace; sums run in
// a fixed order.
#pragma once

#include "kernels/cpu/loss/plan.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

using cpu::Lines;
using cpu::LossPlan;

std::vector<KernelRow> loss_rows();           // loss.cu: the losses, and the gradients alone
std::vector<KernelRow> loss_and_grad_rows();  // loss_and_grad.cu: both at once
std::vector<KernelRow> count_rows();          // count.cu: labels with the highest scores

/// A LossPlan as a kernel's argument.
struct DeviceLoss {
  Lines lines;
  bool mean, has_ignored;
  int64_t ignored;
  IndexPointer labels;
  RealPointer class_weights;  // null: all 1
  double* weights;            // of the positions
  double* divisor;
  FaultPlace fault;

  __device__ bool counts(int64_t label) const { return !has_ignored || label != ignored; }
  /// Is it a class? Others that count were noted when they were weighed.
  __device__ bool inside(int64_t label) const { return label >= 0 && label < lines.length; }
  __device__ void note_bad(int64_t label, int64_t position) const {
    const int32_t kind = has_ignored ? DeviceFault::kLabelNotIgnored : DeviceFault::kLabel;
    note_fault(fault.at, {kind, fault.step, label, lines.length, position, ignored});
  }
  __device__ int64_t start(int64_t position) const {
    const int64_t whole = lines.length + lines.padding;
    return position / lines.stride * whole * lines.stride + position % lines.stride;
  }
};

/// dL as a kernel's argument.
struct DeviceUpstream {
  RealPointer values;
  bool per_position;

  /// w·dL/D of a position.
  __device__ double at(const DeviceLoss& loss, int64_t position) const {
    return loss.weights[position] * values[per_position ? position : 0] / *loss.divisor;
  }
};

inline DeviceUpstream on_device(const cpu::Upstream& upstream, const KernelBuffers& buffers) {
  return {{buffers.inputs[upstream.input], upstream.type}, upstream.per_position};
}

/// The plan, and where its parts of the workspace are.
struct PlannedLoss {
  LossPlan plan;
  size_t divisor_offset = 0;

  DeviceLoss on_device(const KernelBuffers& buffers) const;
  /// Finds the weights of all positions and what a loss is divided by.
  void weigh(const KernelBuffers& buffers, const DeviceLoss& loss) const;
  /// Writes output 0, of type `type`, from the losses of all positions.
  void reduce(const KernelBuffers& buffers, const DeviceLoss& loss, const double* losses,
              DType type) const;
};

struct KeepLargerScore {
  template <class M>
  __device__ static M merge(M a, M b) {
    return a > b ? a : b;
  }
};

}  // namespace halfnote::HN_CUDA
