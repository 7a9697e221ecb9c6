// CountCorrect: how many labels have the highest score, and how many count. Reference.
#include <atomic>

#include "kernels/cpu/loss/plan.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

/// A line with a NaN is never right, nor is a label outside the classes.
template <class T>
bool is_right(const T* line, const Lines& lines, int64_t label) {
  if (label < 0 || label >= lines.length) return false;
  const auto wanted = load(line[label * lines.stride]);
  for (int64_t c = 0; c < lines.length; ++c) {
    const auto score = load(line[c * lines.stride]);
    if (!(score < wanted || (score == wanted && c >= label))) return false;
  }
  return true;
}

Prepared prepare(const KernelCall& call) {
  CountPlan plan;
  if (std::string why = plan_count(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([plan, threads = call.threads](const KernelBuffers& buffers) {
      const LossPlan& loss = plan.loss;
      std::atomic<int64_t> correct = 0, counted = 0;
      parallel_blocks(loss.lines.count, loss.lines.grain(), threads,
                      [&](int64_t begin, int64_t end) {
                        int64_t right = 0, all = 0;
                        for (int64_t line = begin; line < end; ++line) {
                          const int64_t label = loss.label_at(buffers, line);
                          if (loss.is_ignored(label)) continue;
                          const T* scores = buffers.in<T>(0) + loss.lines.start(line);
                          right += is_right(scores, loss.lines, label) ? 1 : 0;
                          ++all;
                        }
                        correct += right;
                        counted += all;
                      });
      if (plan.gives_correct) *buffers.out<int64_t>(0) = correct;
      if (plan.gives_counted) *buffers.out<int64_t>(1) = counted;
    });
  });
}

}  // namespace

std::string plan_count(const KernelCall& call, CountPlan& plan) {
  WorkspacePlan unused;
  plan.loss = plan_loss(call, call.inputs.at(0).shape, 1, 2, unused);
  plan.gives_correct = call.has_output(0);
  plan.gives_counted = call.has_output(1);
  for (const size_t output : {0, 1}) {
    if (!call.has_output(output)) continue;
    const Operand& count = call.outputs[output];
    if (count.dtype != DType::kI64 || count.size() != 1)
      throw model_error(call, "a count of another type or shape")
          .expected("i64[]", std::string(short_name(count.dtype)) + to_string(count.shape));
  }
  const bool labels = plan.loss.label == DType::kI32 || plan.loss.label == DType::kI64;
  return labels ? "" : "labels of type " + std::string(short_name(plan.loss.label));
}

std::vector<KernelRow> count_rows() {
  return {{"ai.halfnote", "CountCorrect", "reference", prepare}};
}

}  // namespace halfnote::cpu
