// Graphs timed by turns: the same model with and without a pass of the device.
#pragma once

#include <algorithm>
#include <ctime>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "passes/canonical/infer_shapes.h"
#include "passes/manager.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/executor.h"

namespace halfnote::bench {

/// A model behind the passes of the CPU, ready to run on one thread.
struct Side {
  StateStore store;
  std::unique_ptr<Executor> executor;
  double best = 1e9;  // seconds of processor time of the fastest run

  /// `without`: a pass that is left out; empty: none.
  explicit Side(Model model, std::string_view without = "") {
    std::vector<PassRow> rows;
    std::ranges::remove_copy(device_pipeline(DeviceClass::kCpu), std::back_inserter(rows), without,
                             &PassRow::name);
    CompileOptions options;
    std::vector<Remark> remarks;
    const auto evaluate = [](const Graph& g, NodeId n, const std::vector<Tensor>& inputs) {
      return evaluate_node(g, n, inputs);
    };
    PassContext context{options, infer_node, evaluate, remarks, {}};
    run_pipeline(model, context, rows);
    executor = std::make_unique<Executor>(plan(model.graph, store, {}), store);
  }

  void turn(const std::vector<Tensor>& inputs) {
    const std::clock_t begin = std::clock();
    executor->run(inputs);
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }

  double mebibytes() const {
    return static_cast<double>(executor->program().arena_bytes) / (1 << 20);
  }
};

/// Numbers in [-largest, largest) for all inputs of a graph, the same ones every time.
inline std::vector<Tensor> inputs_of(const Graph& graph, float largest) {
  std::vector<Tensor> inputs;
  for (const ValueId input : graph.inputs()) {
    Tensor numbers(DType::kF32, concrete(*graph.value(input).type.shape));
    uint32_t state = input.index + 1;
    for (float& number : numbers.mutable_data<float>()) {
      state = state * 1664525u + 1013904223u;
      number = (static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1) * largest;
    }
    inputs.push_back(numbers.cast_to(graph.value(input).type.dtype));
  }
  return inputs;
}

}  // namespace halfnote::bench
