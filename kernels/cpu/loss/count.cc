// CountCorrect: how many labels have the highest score, how many have one of the five highest, and
// how many count. Reference.
#include <atomic>

#include "kernels/cpu/loss/plan.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

template <class T>
void count_labels(const CountPlan& plan, const KernelBuffers& buffers, int threads) {
  const LossPlan& loss = plan.loss;
  std::atomic<int64_t> correct = 0, counted = 0, among = 0;
  parallel_blocks(loss.lines.count, loss.lines.grain(), threads, [&](int64_t begin, int64_t end) {
    int64_t right = 0, all = 0, near = 0;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t label = loss.label_at(buffers, line);
      if (loss.is_ignored(label)) continue;
      const T* scores = buffers.in<T>(0) + loss.lines.start(line);
      const int64_t rank =
          rank_of(scores, loss.lines.length, loss.lines.stride, label, plan.most());
      right += rank < 1 ? 1 : 0;
      near += rank < kTopFive ? 1 : 0;
      ++all;
    }
    correct += right;
    counted += all;
    among += near;
  });
  if (plan.gives_correct) *buffers.out<int64_t>(0) = correct;
  if (plan.gives_counted) *buffers.out<int64_t>(1) = counted;
  if (plan.gives_among) *buffers.out<int64_t>(2) = among;
}

Prepared prepare(const KernelCall& call) {
  CountPlan plan;
  if (std::string why = plan_count(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([plan, threads = call.threads](const KernelBuffers& buffers) {
      count_labels<T>(plan, buffers, threads);
    });
  });
}

}  // namespace

std::string plan_count(const KernelCall& call, CountPlan& plan) {
  WorkspacePlan unused;
  plan.loss = plan_loss(call, call.inputs.at(0).shape, 1, 2, unused);
  plan.gives_correct = call.has_output(0);
  plan.gives_counted = call.has_output(1);
  plan.gives_among = call.has_output(2);
  for (const size_t output : {0, 1, 2}) {
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
