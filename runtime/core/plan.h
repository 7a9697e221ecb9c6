// The plan: a graph with concrete shapes becomes a Program: steps (kernel + buffers), one arena,
// state by name.
//
// Everything is decided here: which kernel runs each node (and why better ones said no), where
// every buffer lies, which results are written over their operands, and how much memory the run
// takes. Executing a Program allocates nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/ir/graph.h"
#include "kernels/kernel.h"
#include "runtime/core/memory/placement.h"
#include "runtime/core/state_store.h"
#include "runtime/core/tune/kernel_choices.h"

namespace halfnote {

/// Where the bytes of a value are while the program runs.
struct BufferRef {
  enum class Space : uint8_t { kNone, kArena, kState, kConstant, kInput };
  Space space = Space::kNone;
  size_t offset = 0;  // in the arena or the state store; index of the constant or the input
};

/// Type and shape of an operand of a step; kUndefined for one that is absent.
struct StepOperand {
  DType dtype = DType::kUndefined;
  Shape shape;
  bool constant = false;  // known before the first step
};

struct ProgramStep {
  std::string node, op;  // names for profiles and errors
  NodeId id;
  const KernelRow* row = nullptr;  // null for a node with bodies (control/control_step.h)
  std::unique_ptr<Kernel> kernel;
  std::vector<Refusal> refusals;  // of the kernels that were tried first
  std::string algorithm;          // of a library, as a plan file names it; empty: its own choice
  std::vector<BufferRef> inputs, outputs;
  BufferRef workspace;
  int moment = 0;  // of the arena's events: all that the step needs is there
  /// 0, or the step before which this one has to be done, which a device may do beside those before
  /// that (steps/branches.h); the number of steps: before the end.
  size_t joins_before = 0;
  double flops = 0;          // of contractions, by the usual count of 2·M·N·K
  size_t nodes = 1;          // that a device runs for it, those of bodies in all trips included
  bool reads_16bit = false;  // a contraction whose operands are 16-bit
  std::vector<StepOperand> input_types, output_types;  // with PlanOptions::keep_types
};

/// Copies a value into its state at the end of the program.
struct StateCopy {
  BufferRef from;
  size_t to = 0;
  size_t bytes = 0;
};

/// Saves a value at a fixed place of the arena before the states change: a result that is a state
/// or an input, or a state's new value that is another state's old one.
struct SavedCopy {
  BufferRef from;
  size_t to = 0;  // offset in the arena
  size_t bytes = 0;
};

struct ProgramOperand {
  std::string name;
  DType dtype = DType::kUndefined;
  Shape shape;
  BufferRef buffer;
  size_t bytes = 0;
};

struct Program {
  std::string name;
  std::vector<ProgramStep> steps;
  std::vector<Tensor> constants;
  std::vector<ProgramOperand> inputs, outputs;
  std::vector<SavedCopy> saves;    // done after the steps …
  std::vector<StateCopy> commits;  // … and these after the saves
  size_t arena_bytes = 0;
  std::vector<ArenaBlock> arena_blocks;  // what lies in it, and when
  size_t constant_bytes = 0;
  uint32_t views = 0;     // nodes that cost nothing: their result is their operand
  uint32_t in_place = 0;  // results written over an operand
};

struct PlanOptions {
  std::string_view kernels;  // only rows whose name starts with this; empty: all
  int threads = 1;
  bool keep_types = false;           // steps remember the types of their operands, for a profile
  KernelChoices* choices = nullptr;  // of a plan file; it comes before the table
  bool tune = false;                 // measures the calls that `choices` lacks
  Device* device = nullptr;          // whose kernels are planned; null: the CPU's
  /// What forward and backward pass read in another layout is reordered in both, not held between.
  bool reorder_again = false;
  bool tf32 = false;  // a GPU may round the f32 operands of products to TF32
  /// Steps of a device may leave the main line (steps/branches.h); that takes memory.
  bool branches = true;
};

/// Plans a graph. Initializers that `store` holds are read from it, and the graph's
/// states are written to it. Throws Error(kUnsupported) for a dim that is not bound, or naming
/// every node that no kernel takes.
Program plan(const Graph& graph, const StateStore& store, const PlanOptions& options);

}  // namespace halfnote
