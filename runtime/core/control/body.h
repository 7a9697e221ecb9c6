// The body of a node as a program of its own, run within a step of another program: on the CPU at
// once, on a device by putting its kernels into the stream.
#pragma once

#include <span>
#include <vector>

#include "compiler/ir/graph.h"
#include "kernels/device.h"
#include "runtime/core/plan.h"
#include "runtime/core/steps/step_numbers.h"

namespace halfnote {

/// Where a body lies in one run of its step.
struct BodyFrame {
  std::byte* arena = nullptr;
  std::span<const std::byte* const> inputs;  // those of the region, then the step's captures
  const std::byte* table = nullptr;          // of the device
  Stream* stream = nullptr;                  // null: on the CPU
  int32_t number = -1;                       // of its first node, in the stream's program; -1: none
};

/// What it needs to run is resolved anew each time, into vectors that are as long as they ever get.
class Body {
 public:
  /// Plans the region for inputs of these types, and these captures.
  Body(const Graph& graph, NodeId owner, RegionId region, const std::vector<ValueType>& types,
       const std::vector<ValueId>& captures, const PlanOptions& options);

  const Program& program() const { return program_; }
  /// Of the arena.
  size_t bytes() const;
  /// On a device: the constants of the body, and the tables of its kernels.
  size_t table_bytes() const { return table_bytes_; }
  void write_table(const BodyFrame& frame, std::byte* to);
  void make_ready() const;
  /// All nodes, those of bodies in it too.
  int32_t inner_nodes() const { return numbers_.count(); }
  Place inner_node(int32_t number) const { return numbers_.place(program_, number); }

  void run(const BodyFrame& frame);
  /// Output `index` of the last run.
  const std::byte* output(size_t index, const BodyFrame& frame) const;
  size_t output_bytes(size_t index) const { return program_.outputs[index].bytes; }

 private:
  const std::byte* address(const BufferRef& ref, const BodyFrame& frame) const;
  /// The buffers of step `index`, until the next call.
  DeviceBuffers buffers_of(size_t index, const BodyFrame& frame);

  Program program_;
  StepNumbers numbers_;
  std::vector<size_t> constant_offsets_, table_offsets_;  // in the table
  size_t table_bytes_ = 0;
  std::vector<const std::byte*> reads_;
  std::vector<std::byte*> writes_;
};

/// The number of the first node in a body of the kernel that is put into the stream, `skipped`
/// nodes behind the first one of all.
int32_t number_in(const Stream& stream, int32_t skipped = 0);

/// Copies on the CPU, or in the stream.
void copy_bytes(Stream* stream, std::byte* to, const std::byte* from, size_t bytes);

}  // namespace halfnote
