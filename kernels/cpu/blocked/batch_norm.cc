// BatchNormalization and its gradient in channel blocks: 16 channels at a time, a
// channel a lane. As in the plain form (fast/batch_norm.cc) the statistics of short pieces are
// merged in double, f32 results are rounded once, and x is read twice.
#include <cmath>

#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu::blocked {

namespace {

void write(const KernelBuffers& buffers, size_t output, int64_t c, double value) {
  if (output < buffers.outputs.size() && buffers.outputs[output]) {
    buffers.out<float>(output)[c] = static_cast<float>(value);
  }
}

/// Calls `first(unit, plane)` for all planes, then `between(block)`, then `second(block, plane)`;
/// what belongs together does not depend on the number of threads.
template <class First, class Between, class Second>
void two_passes(const Groups& groups, int threads, const First& first, const Between& between,
                const Second& second) {
  if (groups.block_by_block(threads)) {
    parallel_blocks(groups.geometry.blocks, 1, threads, [&](int64_t block, int64_t) {
      groups.for_block(block, first);
      between(block);
      groups.for_block(block, [&](int64_t, int64_t plane) { second(block, plane); });
    });
    return;
  }
  groups.for_planes(threads, [&](int64_t unit, int64_t, int64_t plane) { first(unit, plane); });
  for (int64_t block = 0; block < groups.geometry.blocks; ++block) between(block);
  groups.for_planes(threads, [&](int64_t, int64_t block, int64_t plane) { second(block, plane); });
}

struct Forward {
  Groups groups;
  DType type;
  double epsilon = 0, momentum = 0;
  bool saves = false;  // mean and 1/σ are results too

  const Loops& loops() const { return *loops_for(type); }
  size_t units() const { return static_cast<size_t>(groups.units()); }
  size_t workspace() const {
    return units() * sizeof(Moments16) +
           static_cast<size_t>(groups.geometry.blocks) * sizeof(Scale16);
  }

  void finish(const KernelBuffers& buffers, int64_t block, const Moments16& m, Scale16& s) const {
    for (int64_t lane = 0; lane < kBlockChannels; ++lane) {
      const int64_t c = block * kBlockChannels + lane;
      const double variance = m.squares[lane] / m.count;
      const double inv_std = 1 / std::sqrt(variance + epsilon);
      const auto blend = [this](double running, double now) {
        return running * momentum + now * (1 - momentum);
      };
      write(buffers, 1, c, blend(buffers.in<float>(3)[c], m.mean[lane]));
      write(buffers, 2, c, blend(buffers.in<float>(4)[c], variance));
      if (saves) {
        write(buffers, 3, c, m.mean[lane]);
        write(buffers, 4, c, inv_std);
      }
      s.mean[lane] = m.mean[lane];
      s.factor[lane] = buffers.in<float>(1)[c] * inv_std;
      s.shift[lane] = buffers.in<float>(2)[c];
    }
  }

  void run(const KernelBuffers& buffers, int threads) const {
    const int64_t lines = groups.geometry.plane;
    auto* moments = reinterpret_cast<Moments16*>(buffers.workspace);
    auto* scales = reinterpret_cast<Scale16*>(moments + units());
    std::uninitialized_fill_n(moments, units(), Moments16{});
    const auto measure = [&](int64_t unit, int64_t plane) {
      loops().moments(plane_at(buffers.inputs[0], type, plane, lines), lines, moments[unit]);
    };
    const auto merge = [&](int64_t block) {
      Moments16& all = moments[block * groups.count];
      for (int64_t g = 1; g < groups.count; ++g) all.merge(moments[block * groups.count + g]);
      finish(buffers, block, all, scales[block]);
    };
    const auto normalize = [&](int64_t block, int64_t plane) {
      loops().normalize(plane_at(buffers.inputs[0], type, plane, lines), lines, scales[block],
                        plane_at(buffers.outputs[0], type, plane, lines));
    };
    two_passes(groups, threads, measure, merge, normalize);
  }
};

/// In inference: with the statistics that came.
struct Inference {
  Groups groups;
  DType type;
  double epsilon = 0;

  void run(const KernelBuffers& buffers, int threads) const {
    const int64_t lines = groups.geometry.plane;
    const Loops& loops = *loops_for(type);
    groups.for_planes(threads, [&](int64_t, int64_t block, int64_t plane) {
      Scale16 scale;
      for (int64_t lane = 0; lane < kBlockChannels; ++lane) {
        const int64_t c = block * kBlockChannels + lane;
        scale.mean[lane] = buffers.in<float>(3)[c];
        scale.factor[lane] =
            buffers.in<float>(1)[c] * (1 / std::sqrt(buffers.in<float>(4)[c] + epsilon));
        scale.shift[lane] = buffers.in<float>(2)[c];
      }
      loops.normalize(plane_at(buffers.inputs[0], type, plane, lines), lines, scale,
                      plane_at(buffers.outputs[0], type, plane, lines));
    });
  }
};

/// Σ dy and Σ dy·(x − mean) of 16 channels.
struct GradientSums {
  double sum[kBlockChannels] = {}, product[kBlockChannels] = {};

  void add(const GradientSums& more) {
    for (int64_t c = 0; c < kBlockChannels; ++c) {
      sum[c] += more.sum[c];
      product[c] += more.product[c];
    }
  }
};

struct Backward {
  Groups groups;
  DType type;

  const Loops& loops() const { return *loops_for(type); }
  size_t units() const { return static_cast<size_t>(groups.units()); }
  size_t workspace() const {
    return units() * sizeof(GradientSums) +
           static_cast<size_t>(groups.geometry.blocks) * sizeof(Gradient16);
  }

  void finish(const KernelBuffers& buffers, int64_t block, GradientSums& all,
              Gradient16& by) const {
    const double count = static_cast<double>(groups.geometry.images * groups.geometry.plane);
    for (int64_t lane = 0; lane < kBlockChannels; ++lane) {
      const int64_t c = block * kBlockChannels + lane;
      const double inv_std = buffers.in<float>(4)[c];
      const double product = all.product[lane] * inv_std;
      write(buffers, 1, c, product);
      write(buffers, 2, c, all.sum[lane]);
      by.mean[lane] = buffers.in<float>(3)[c];
      by.factor[lane] = static_cast<float>(buffers.in<float>(2)[c] * inv_std);
      by.offset[lane] = static_cast<float>(all.sum[lane] / count);
      by.slope[lane] = static_cast<float>(product / count * inv_std);
    }
  }

  void run(const KernelBuffers& buffers, int threads) const {
    const int64_t lines = groups.geometry.plane;
    auto* sums = reinterpret_cast<GradientSums*>(buffers.workspace);
    auto* gradients = reinterpret_cast<Gradient16*>(sums + units());
    std::uninitialized_fill_n(sums, units(), GradientSums{});
    const auto add = [&](int64_t unit, int64_t plane) {
      const int64_t block = unit / groups.count;
      loops().gradient_sums(plane_at(buffers.inputs[0], type, plane, lines),
                            plane_at(buffers.inputs[1], type, plane, lines), lines,
                            buffers.in<float>(3) + block * kBlockChannels, sums[unit].sum,
                            sums[unit].product);
    };
    const auto merge = [&](int64_t block) {
      GradientSums& all = sums[block * groups.count];
      for (int64_t g = 1; g < groups.count; ++g) all.add(sums[block * groups.count + g]);
      finish(buffers, block, all, gradients[block]);
    };
    const auto apply = [&](int64_t block, int64_t plane) {
      loops().normalize_gradient(plane_at(buffers.inputs[0], type, plane, lines),
                                 plane_at(buffers.inputs[1], type, plane, lines), lines,
                                 gradients[block],
                                 plane_at(buffers.outputs[0], type, plane, lines));
    };
    two_passes(groups, threads, add, merge, apply);
  }
};

Prepared prepare_forward(const KernelCall& call) {
  const auto first_in_place = [](size_t input, size_t output) { return input == 0 && output == 0; };
  if (in_inference(call)) {
    const Inference inference{Groups(geometry_of(call.inputs[0].shape)), call.inputs[0].dtype,
                              attributes_of(call).get_float("epsilon", 1e-5f)};
    return make_kernel([inference, threads = call.threads](
                           const KernelBuffers& buffers) { inference.run(buffers, threads); },
                       0, first_in_place);
  }
  const bool saves = !call.domain.empty();
  const Forward forward{Groups(geometry_of(call.inputs[0].shape)), call.inputs[0].dtype,
                        attributes_of(call).get_float("epsilon", 1e-5f),
                        attributes_of(call).get_float("momentum", 0.9f), saves};
  return make_kernel([forward, threads = call.threads](
                         const KernelBuffers& buffers) { forward.run(buffers, threads); },
                     forward.workspace(), first_in_place);
}

Prepared prepare_gradient(const KernelCall& call) {
  const Backward backward{Groups(geometry_of(call.inputs[1].shape)), call.inputs[1].dtype};
  return make_kernel(
      [backward, threads = call.threads](const KernelBuffers& buffers) {
        backward.run(buffers, threads);
      },
      backward.workspace(), [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

BlockedOperands x_and_y(const KernelCall& call) { return together(call, 0b1, 0b1); }
BlockedOperands dy_x_and_dx(const KernelCall& call) { return together(call, 0b11, 0b1); }

}  // namespace

std::vector<BlockedRow> batch_norm_rows() {
  constexpr std::string_view kPlain = "fast.batch_norm", kName = "blocked.batch_norm";
  return {
      {{"", "BatchNormalization", kName, prepare_forward}, kPlain, x_and_y},
      {{"ai.halfnote", "BatchNormalization", kName, prepare_forward}, kPlain, x_and_y},
      {{"ai.halfnote", "BatchNormalizationGrad", kName, prepare_gradient}, kPlain, dy_x_and_dx},
  };
}

}  // namespace halfnote::cpu::blocked
