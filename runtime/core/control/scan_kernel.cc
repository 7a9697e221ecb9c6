#include "runtime/core/control/scan_kernel.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

/// Copies `blocks` of `bytes` each, which begin so far apart.
void copy_apart(Stream* stream, const BlockCopy& copy) {
  if (copy.bytes == 0 || copy.blocks == 0) return;
  if (stream != nullptr) {
    stream->copy_blocks(copy);
    return;
  }
  for (size_t i = 0; i < copy.blocks; ++i)
    std::memcpy(copy.to + i * copy.to_apart, copy.from + i * copy.from_apart, copy.bytes);
}

class ScanKernel final : public Kernel {
 public:
  ScanKernel(std::unique_ptr<Body> body, ScanPlan plan, bool on_device)
      : body_(std::move(body)),
        plan_(std::move(plan)),
        on_device_(on_device),
        pointers_(plan_.operands) {
    size_t at = body_->bytes();
    for (size_t bytes : plan_.carried) {
      places_.push_back(at);
      at += align_up(bytes);
    }
    for (const Strip& strip : plan_.inputs) {
      places_.push_back(at);
      at += align_up(strip.element_bytes());
    }
    bytes_ = at;
  }

  size_t workspace_bytes() const override { return bytes_; }
  size_t table_bytes() const override { return body_->table_bytes(); }
  void write_table(const KernelBuffers& buffers, std::byte* to) const override {
    body_->write_table(frame_of(buffers), to);
  }
  void make_ready() const override { body_->make_ready(); }
  int32_t inner_nodes() const override { return body_->inner_nodes(); }
  Place inner_node(int32_t number) const override { return body_->inner_node(number); }

  void run(const KernelBuffers& buffers) const override {
    const BodyFrame frame = frame_of(buffers);
    const size_t carried = plan_.carried.size();
    std::byte* arena = frame.arena;
    for (size_t i = 0; i < carried; ++i)
      copy_bytes(frame.stream, arena + places_[i], buffers.inputs[i], plan_.carried[i]);
    for (size_t trip = 0; trip < plan_.trips; ++trip) {
      for (size_t k = 0; k < plan_.inputs.size(); ++k) {
        const size_t slot = carried + k;
        plan_.inputs[k].take(frame.stream, buffers.inputs[slot], trip, arena + places_[slot]);
      }
      body_->run(frame);
      for (size_t i = 0; i < carried; ++i)
        copy_bytes(frame.stream, arena + places_[i], body_->output(i, frame), plan_.carried[i]);
      for (size_t k = 0; k < plan_.outputs.size(); ++k) {
        std::byte* whole = result(buffers, carried + k);
        if (whole == nullptr) continue;
        plan_.outputs[k].put(frame.stream, body_->output(carried + k, frame), trip, whole);
      }
    }
    for (size_t i = 0; i < carried; ++i) {
      std::byte* last = result(buffers, i);
      if (last != nullptr) copy_bytes(frame.stream, last, arena + places_[i], plan_.carried[i]);
    }
  }

 private:
  static std::byte* result(const KernelBuffers& buffers, size_t index) {
    return index < buffers.outputs.size() ? buffers.outputs[index] : nullptr;
  }

  BodyFrame frame_of(const KernelBuffers& buffers) const {
    std::copy(buffers.inputs.begin(), buffers.inputs.end(), pointers_.begin());
    for (size_t i = 0; i < places_.size(); ++i) pointers_[i] = buffers.workspace + places_[i];
    Stream* stream = on_device_ ? &stream_of(buffers) : nullptr;
    return {buffers.workspace, pointers_, buffers.table, stream,
            stream == nullptr ? -1 : number_in(*stream)};
  }

  std::unique_ptr<Body> body_;
  ScanPlan plan_;
  bool on_device_ = false;
  std::vector<size_t> places_;  // in the workspace: carried values, then slices
  size_t bytes_ = 0;
  mutable std::vector<const std::byte*> pointers_;  // what the body reads
};

}  // namespace

Strip::Strip(const Shape& shape, DType dtype, int64_t axis, bool backwards) : turned(backwards) {
  bytes = size_of(dtype);
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto dim = static_cast<size_t>(shape[i]);
    if (static_cast<int64_t>(i) < axis) outer *= dim;
    if (static_cast<int64_t>(i) == axis) length = dim;
    if (static_cast<int64_t>(i) > axis) bytes *= dim;
  }
}

void Strip::take(Stream* stream, const std::byte* whole, size_t trip, std::byte* element) const {
  copy_apart(stream, {element, bytes, whole + at(trip), length * bytes, bytes, outer});
}

void Strip::put(Stream* stream, const std::byte* element, size_t trip, std::byte* whole) const {
  copy_apart(stream, {whole + at(trip), length * bytes, element, bytes, bytes, outer});
}

std::unique_ptr<Kernel> make_scan_kernel(std::unique_ptr<Body> body, ScanPlan plan,
                                         const Device* device) {
  return std::make_unique<ScanKernel>(std::move(body), std::move(plan), device != nullptr);
}

}  // namespace halfnote
