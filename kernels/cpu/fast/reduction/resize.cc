// Resize and its gradient, on f32, f16 and bf16: the passes of the reference (reduction/resize.h),
// one after the other on what lies together in memory (a plane, if the last two axes are resized),
// with sums in f32. Along the last axis kTogether rows are turned into columns first, so that every
// pass is a weighted sum of lines.
#include "kernels/cpu/reduction/resize.h"

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu::fast {

namespace {

constexpr int64_t kTogether = 16;

/// The weights of one axis as the loops take them, on one item.
struct Pass {
  int64_t outer = 1, inputs = 0, outputs = 0, inner = 1;
  std::vector<int32_t> starts, sources;
  std::vector<float> weights;

  Pass(const ResizePass& pass, int64_t items)
      : outer(pass.outer / items),
        inputs(pass.taps.inputs),
        outputs(pass.taps.outputs()),
        inner(pass.inner) {
    for (const int64_t start : pass.taps.starts) starts.push_back(static_cast<int32_t>(start));
    for (const int64_t source : pass.taps.sources) sources.push_back(static_cast<int32_t>(source));
    for (const double weight : pass.taps.weights) weights.push_back(static_cast<float>(weight));
  }
  int64_t results() const { return outer * outputs * inner; }
  WeightedLines lines(int64_t size) const {
    return {outputs, size, starts.data(), sources.data(), weights.data()};
  }

  void run(const float* x, float* columns, float* y) const {
    const ResizeLoops& loops = resize_loops();
    if (inner > 1) {
      for (int64_t i = 0; i < outer; ++i)
        loops.weigh(lines(inner), x + i * inputs * inner, y + i * outputs * inner);
      return;
    }
    float* turned = columns + inputs * kTogether;
    for (int64_t row = 0; row < outer; row += kTogether) {
      const int64_t rows = std::min(kTogether, outer - row);
      loops.turn(x + row * inputs, rows, inputs, inputs, columns, rows);
      loops.weigh(lines(rows), columns, turned);
      loops.turn(turned, outputs, rows, rows, y + row * outputs, outputs);
    }
  }
};

/// All passes of an item, and where its scratch memory lies.
struct Plan {
  std::vector<Pass> passes;
  int64_t items = 1, from_size = 0, to_size = 0;
  size_t from = 0, to = 0, between[2] = {0, 0}, columns = 0, size = 0;

  /// `converts`: operands of 16 bits become f32 in the scratch memory.
  Plan(const ResizePlan& plan, bool converts) {
    items = plan.passes.front().outer;
    int64_t largest[2] = {0, 0}, turned = 0;
    for (const ResizePass& pass : plan.passes) {
      passes.emplace_back(pass, items);
      const Pass& own = passes.back();
      int64_t& room = largest[(passes.size() - 1) % 2];
      room = std::max(room, own.results());
      if (own.inner == 1) turned = std::max(turned, (own.inputs + own.outputs) * kTogether);
    }
    from_size = plan.size / items;
    to_size = passes.back().results();
    WorkspacePlan workspace;
    from = workspace.add_elements<float>(converts ? from_size : 0);
    to = workspace.add_elements<float>(converts ? to_size : 0);
    for (size_t i = 0; i < 2; ++i) between[i] = workspace.add_elements<float>(largest[i]);
    columns = workspace.add_elements<float>(turned);
    size = workspace.size();
  }

  void run(const float* x, std::byte* scratch, float* y) const {
    for (size_t i = 0; i < passes.size(); ++i) {
      const bool last = i + 1 == passes.size();
      float* next = last ? y : reinterpret_cast<float*>(scratch + between[i % 2]);
      passes[i].run(x, reinterpret_cast<float*>(scratch + columns), next);
      x = next;
    }
  }
};

template <class T>
Prepared resize_kernel(const KernelCall& call, const Plan& plan) {
  const auto body = [plan, threads = call.threads](const KernelBuffers& buffers) {
    const int64_t grain = (plan.items + threads - 1) / threads;
    parallel_blocks(plan.items, grain, threads, [&](int64_t begin, int64_t end) {
      std::byte* scratch = buffers.workspace + static_cast<size_t>(begin / grain) * plan.size;
      for (int64_t item = begin; item < end; ++item) {
        const float* x = load_block(buffers.in<T>(0) + item * plan.from_size, plan.from_size,
                                    reinterpret_cast<float*>(scratch + plan.from));
        T* target = buffers.out<T>(0) + item * plan.to_size;
        float* y = result_block(target, reinterpret_cast<float*>(scratch + plan.to));
        plan.run(x, scratch, y);
        store_block(y, plan.to_size, target);
      }
    });
  };
  return make_kernel(body,
                     plan.size * static_cast<size_t>(std::min<int64_t>(call.threads, plan.items)));
}

std::string refusal(const KernelCall& call, const ResizePlan& plan) {
  if (plan.passes.empty()) return "nothing to resize";
  if (plan.size == 0 || call.outputs[0].size() == 0) return "no elements";
  for (const ResizePass& pass : plan.passes) {
    for (const uint8_t outside : pass.taps.outside) {
      if (outside != 0) return "results outside of the operand";
    }
    constexpr size_t kMost = std::numeric_limits<int32_t>::max();
    if (pass.taps.sources.size() > kMost) return "too many weights";
  }
  return {};
}

template <std::string (*kPlan)(const KernelCall&, ResizePlan&)>
Prepared prepare(const KernelCall& call) {
  ResizePlan plan;
  if (std::string why = kPlan(call, plan); !why.empty()) return Prepared::no(why);
  if (std::string why = refusal(call, plan); !why.empty()) return Prepared::no(why);
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return resize_kernel<T>(call, Plan(plan, call.inputs[0].dtype != DType::kF32));
  });
}

}  // namespace

std::vector<KernelRow> resize_rows() {
  return {
      {"", "Resize", "fast.resize", prepare<plan_resize>},
      {"ai.halfnote", "ResizeGrad", "fast.resize", prepare<plan_resize_grad>},
  };
}

}  // namespace halfnote::cpu::fast
