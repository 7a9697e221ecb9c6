#include "runtime/core/control/if_kernel.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

class IfKernel final : public Kernel {
 public:
  IfKernel(std::unique_ptr<Body> then, std::unique_ptr<Body> otherwise)
      : then_(std::move(then)), else_(std::move(otherwise)) {}

  size_t workspace_bytes() const override { return std::max(then_->bytes(), else_->bytes()); }

  void run(const KernelBuffers& buffers) const override {
    Body& body = *buffers.in<uint8_t>(0) != 0 ? *then_ : *else_;
    const BodyFrame frame{buffers.workspace, buffers.inputs.subspan(1)};
    body.run(frame);
    for (size_t i = 0; i < buffers.outputs.size(); ++i) {
      if (buffers.outputs[i] == nullptr) continue;
      copy_bytes(nullptr, buffers.outputs[i], body.output(i, frame), body.output_bytes(i));
    }
  }

 private:
  std::unique_ptr<Body> then_, else_;
};

/// Faults of a branch go to the stream's own place only if it is the branch that was asked for.
class FaultsAside {
 public:
  FaultsAside(Stream& stream, DeviceFault* aside) : stream_(stream), aside_(aside) {
    static_assert(DeviceFault::kNone == 0);
    stream_.fill(aside_, 0, sizeof(DeviceFault));
    before_ = stream_.note_faults_in(aside_);
  }
  ~FaultsAside() { stream_.note_faults_in(before_); }
  FaultsAside(const FaultsAside&) = delete;
  FaultsAside& operator=(const FaultsAside&) = delete;

 private:
  Stream& stream_;
  DeviceFault* aside_;
  DeviceFault* before_ = nullptr;
};

/// One branch after the other, in the same arena. Each leaves its results only if the condition is
/// the one it runs for: what the other one made (NaN, infinities) meets nothing.
class IfOnDeviceKernel final : public Kernel {
 public:
  IfOnDeviceKernel(std::unique_ptr<Body> then, std::unique_ptr<Body> otherwise)
      : then_(std::move(then)), else_(std::move(otherwise)) {}

  size_t workspace_bytes() const override { return arena_bytes() + align_up(sizeof(DeviceFault)); }
  size_t table_bytes() const override { return then_->table_bytes() + else_->table_bytes(); }
  void write_table(const KernelBuffers& buffers, std::byte* to) const override {
    then_->write_table(frame_of(buffers, true), to);
    else_->write_table(frame_of(buffers, false), to + then_->table_bytes());
  }
  void make_ready() const override {
    then_->make_ready();
    else_->make_ready();
  }
  int32_t inner_nodes() const override { return then_->inner_nodes() + else_->inner_nodes(); }
  Place inner_node(int32_t number) const override {
    const int32_t first = then_->inner_nodes();
    return number < first ? then_->inner_node(number) : else_->inner_node(number - first);
  }

  void run(const KernelBuffers& buffers) const override {
    for (const bool side : {true, false}) run_branch(buffers, side);
  }

 private:
  size_t arena_bytes() const { return std::max(then_->bytes(), else_->bytes()); }

  BodyFrame frame_of(const KernelBuffers& buffers, bool side) const {
    return {buffers.workspace, buffers.inputs.subspan(1),
            buffers.table + (side ? 0 : then_->table_bytes()), &stream_of(buffers),
            number_in(stream_of(buffers), side ? 0 : then_->inner_nodes())};
  }

  void run_branch(const KernelBuffers& buffers, bool side) const {
    Stream& stream = stream_of(buffers);
    Body& body = side ? *then_ : *else_;
    auto* aside = reinterpret_cast<DeviceFault*>(buffers.workspace + arena_bytes());
    const BodyFrame frame = frame_of(buffers, side);
    {
      const FaultsAside faults(stream, aside);
      body.run(frame);
    }
    const DeviceCondition condition{buffers.inputs[0], side};
    for (size_t i = 0; i < buffers.outputs.size(); ++i) {
      if (buffers.outputs[i] == nullptr) continue;
      stream.copy_if(condition, buffers.outputs[i], body.output(i, frame), body.output_bytes(i));
    }
    stream.note_fault_if(condition, aside);
  }

  std::unique_ptr<Body> then_, else_;
};

}  // namespace

std::unique_ptr<Kernel> make_if_kernel(std::unique_ptr<Body> then, std::unique_ptr<Body> otherwise,
                                       const Device* device) {
  if (device == nullptr) return std::make_unique<IfKernel>(std::move(then), std::move(otherwise));
  return std::make_unique<IfOnDeviceKernel>(std::move(then), std::move(otherwise));
}

}  // namespace halfnote
