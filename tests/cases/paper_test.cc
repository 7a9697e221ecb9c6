// What the models that halfnote is measured on ask of cuDNN, planned by cuDNN itself for an H200
// and an A100 that are not there: it finds engines, compiles their kernels, and says how much
// workspace they take. In builds with CUDA only.
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "kernels/cuda/libraries/dnn_request.h"
#include "kernels/cuda/libraries/rnn.h"
#include "kernels/cuda/libraries/sdpa.h"
#include "tests/cases/paper_gpus.h"

namespace halfnote::libraries {
namespace {

using Paper = test::Paper;
using test::gpus;
using test::PaperGpu;

SdpaTensor rows_first(int64_t batch, int64_t heads, int64_t rows, int64_t size, int64_t parts = 1) {
  return {{batch, heads, rows, size}, {rows * parts * heads * size, size, parts * heads * size, 1}};
}
SdpaTensor heads_first(int64_t batch, int64_t heads, int64_t rows, int64_t size) {
  return {{batch, heads, rows, size}, {heads * rows * size, rows * size, size, 1}};
}

struct AskedAttention {
  const char* name;
  SdpaProblem problem;
};

SdpaProblem attention(const SdpaTensor& q, const SdpaTensor& y) {
  SdpaProblem p;
  p.dtype = DType::kBF16;
  p.q = p.k = p.v = q;
  p.y = y;
  p.scale = 0.125f;
  return p;
}

std::vector<AskedAttention> asked_attentions() {
  std::vector<AskedAttention> all;
  SdpaProblem bert = attention(rows_first(32, 12, 512, 64), rows_first(32, 12, 512, 64));
  all.push_back({"BERT-base 32x512", bert});
  bert.bias = {32, 1, 1, 512};
  all.push_back({"BERT-base with a mask of keys", bert});
  bert.kept = 1 / 0.9f;
  all.push_back({"BERT-base with a mask and dropout", bert});
  SdpaProblem gpt2 = attention(rows_first(16, 12, 1024, 64, 3), rows_first(16, 12, 1024, 64));
  gpt2.causal = true;
  all.push_back({"GPT-2 16x1024", gpt2});
  all.push_back(
      {"ViT-B/16 b128", attention(rows_first(128, 12, 197, 64, 3), rows_first(128, 12, 197, 64))});
  SdpaProblem llama = attention(heads_first(4, 32, 2048, 128), rows_first(4, 32, 2048, 128));
  llama.causal = true;
  all.push_back({"LLaMA 4x2048", llama});
  SdpaProblem bias = attention(heads_first(8, 8, 100, 40), heads_first(8, 8, 100, 40));
  bias.bias = {1, 8, 100, 100};
  all.push_back({"a term of each head", bias});
  bias.bias = {1, 1, 100, 100};
  bias.causal = true;
  all.push_back({"causal, and a term of all", bias});
  bias.bias = {8, 1, 100, 100};
  bias.dtype = DType::kF16;
  all.push_back({"f16, a term of each sample", bias});
  SdpaProblem inference = attention(heads_first(2, 4, 64, 128), heads_first(2, 4, 64, 128));
  inference.dtype = DType::kF16;
  inference.statistics = false;
  all.push_back({"f16, no statistics", inference});
  SdpaProblem cross = attention(heads_first(3, 5, 77, 24), heads_first(3, 5, 77, 16));
  cross.k = heads_first(3, 5, 13, 24);
  cross.v = heads_first(3, 5, 13, 16);
  all.push_back({"other keys than queries", cross});
  SdpaProblem grouped = attention(rows_first(4, 32, 2048, 128), rows_first(4, 32, 2048, 128));
  grouped.k = grouped.v = rows_first(4, 8, 2048, 128);
  grouped.causal = true;
  all.push_back({"LLaMA with groups of 4 queries", grouped});
  SdpaProblem shared = attention(rows_first(8, 16, 100, 64), rows_first(8, 16, 100, 64));
  shared.k = shared.v = heads_first(8, 1, 100, 64);
  shared.bias = {8, 1, 1, 100};
  shared.kept = 1 / 0.9f;
  all.push_back({"one head of keys, a mask and dropout", shared});
  SdpaProblem t5 = attention(rows_first(32, 12, 512, 64), rows_first(32, 12, 512, 64));
  t5.bias = {32, 12, 512, 512};
  t5.bias_gradient = true;
  all.push_back({"T5-base 32x512", t5});
  t5.kept = 1 / 0.9f;
  all.push_back({"T5-base with dropout", t5});
  t5.q = t5.k = t5.v = t5.y = rows_first(3, 4, 77, 40);
  t5.bias = {1, 4, 77, 77};
  t5.kept = 0;
  t5.causal = true;
  all.push_back({"the gradient of a term of all samples", t5});
  t5.k = t5.v = rows_first(3, 2, 77, 40);
  all.push_back({"the same, and groups of 2 queries", t5});
  return all;
}

TEST_F(Paper, AttentionHasPlans) {
  for (const PaperGpu& gpu : gpus()) {
    for (const AskedAttention& asked : asked_attentions()) {
      for (const bool gradient : {false, true}) {
        SdpaProblem problem = asked.problem;
        problem.gradient = gradient;
        problem.bias_gradient &= gradient;
        SCOPED_TRACE(std::string(gpu.name) + ", " + asked.name + (gradient ? ", gradient" : ""));
        // Beside a gradient a term has all its rows.
        if (gradient && problem.bias[2] == 1) problem.bias[2] = problem.q.dims[2];
        if (gradient && problem.drops()) {
          EXPECT_EQ(illegal_attention(problem), "the gradient behind a dropout");
          continue;
        }
        EXPECT_EQ(illegal_attention(problem), "");
        const cuda::PaperPlan plan = cuda::plan_on_paper(problem, gpu.json);
        EXPECT_EQ(plan.refusal, "");
        EXPECT_TRUE(plan.engine.starts_with("eng")) << plan.engine;
        const auto whole_tiles = [](int64_t size) { return (size + 127) / 128 * 128; };
        const int64_t scores = problem.q.dims[0] * problem.q.dims[1] *
                               whole_tiles(problem.q.dims[2]) * whole_tiles(problem.k.dims[2]);
        // The gradients of the scores in 16 bits, of heads in groups those of K and V for each head
        // of Q, and little else; forward nothing of that size.
        int64_t most = (gradient ? 2 * scores : 0) + (int64_t{4} << 20);
        if (gradient && problem.k.dims[1] != problem.q.dims[1]) {
          most += 2 * problem.q.dims[0] * problem.q.dims[1] * problem.k.dims[2] *
                  (problem.k.dims[3] + problem.v.dims[3]);
        }
        EXPECT_LE(static_cast<int64_t>(plan.workspace_bytes), most);
      }
    }
  }
}

struct AskedConvolution {
  const char* name;
  int64_t batch, channels, size, filters, kernel, stride, groups = 1;
};

ConvProblem convolution(const AskedConvolution& c, DType operands) {
  ConvProblem problem;
  cpu::ConvPlan& p = problem.plan;
  // As many results as elements, in strides of 1: even kernels are padded less at the end.
  const int64_t before = c.kernel / 2, behind = (c.kernel - 1) / 2;
  const int64_t out = (c.size + before + behind - c.kernel) / c.stride + 1;
  p.batch = c.batch;
  p.channels = c.channels;
  p.filters = c.filters;
  p.groups = c.groups;
  p.spatial = 2;
  p.in = {1, c.size, c.size};
  p.out = {1, out, out};
  p.kernel = {1, c.kernel, c.kernel};
  p.stride = {1, c.stride, c.stride};
  p.pad_begin = {0, before, before};
  p.pad_end = {0, behind, behind};
  problem.operands = problem.result = operands;
  return problem;
}

/// Of ResNet-50 and the CIFAR CNN, each in three directions.
TEST_F(Paper, ConvolutionsHavePlans) {
  const AskedConvolution asked[] = {
      {"the CIFAR CNN's first", 128, 8, 32, 32, 3, 1},
      {"its second", 128, 32, 16, 64, 3, 1},
      {"ResNet-50's first", 256, 8, 224, 64, 7, 2},
      {"the same of blocks of 2 by 2", 256, 16, 112, 64, 4, 1},
      {"the CIFAR CNN's first of all taps", 128, 32, 32, 32, 1, 1},
      {"1x1", 256, 64, 56, 256, 1, 1},
      {"3x3", 256, 64, 56, 64, 3, 1},
      {"3x3 with stride 2", 256, 128, 56, 128, 3, 2},
      {"1x1 with stride 2", 256, 256, 56, 512, 1, 2},
      {"3x3 of 512", 256, 512, 7, 512, 3, 1},
      {"ResNeXt's groups", 64, 128, 56, 128, 3, 1, 32},
  };
  for (const PaperGpu& gpu : gpus()) {
    for (const AskedConvolution& c : asked) {
      for (const ConvResult wanted : {ConvResult::kY, ConvResult::kX, ConvResult::kW}) {
        for (const DType dtype : {DType::kBF16, DType::kF16}) {
          ConvProblem problem = convolution(c, dtype);
          problem.wanted = wanted;
          SCOPED_TRACE(std::string(gpu.name) + ", " + c.name + ", " +
                       std::string(short_name(dtype)) + ", result " +
                       std::to_string(static_cast<int>(wanted)));
          const DnnRequest request = dnn_request(problem);
          EXPECT_EQ(illegal_request(request), "");
          EXPECT_EQ(cuda::plan_on_paper(request, gpu.json).refusal, "");
          // Our rules say: weights have no bias, and sums in f32 are there forward only.
          problem.bias = dtype;
          const DnnRequest biased = dnn_request(problem);
          EXPECT_EQ(illegal_request(biased).empty(), wanted != ConvResult::kW);
          // Gradients beside a bias are compiled, which takes time: one of them, in one type.
          const bool transposed =
              wanted == ConvResult::kX && c.kernel == 3 && c.stride == 2 && dtype == DType::kBF16;
          if (wanted == ConvResult::kY || transposed) {
            EXPECT_EQ(cuda::plan_on_paper(biased, gpu.json).refusal, "");
          }
          problem.bias = DType::kUndefined;
          problem.result = DType::kF32;
          const DnnRequest wide = dnn_request(problem);
          EXPECT_EQ(illegal_request(wide).empty(), wanted == ConvResult::kY);
          EXPECT_EQ(cuda::plan_on_paper(wide, gpu.json).refusal.empty(), wanted == ConvResult::kY);
        }
      }
    }
  }
}

/// Where cuDNN looks for weights, and what it keeps for the gradient: said without any GPU. What
/// the kernels of a GPU are is not asked.
TEST_F(Paper, WeightsOfRecurrentLayersLieWhereWePackThem) {
  const std::array<std::array<int64_t, 4>, 5> sizes = {
      {{5, 7, 20, 12}, {3, 2, 5, 3}, {1, 1, 1, 1}, {35, 20, 650, 650}, {128, 64, 512, 1024}}};
  for (const RnnCell cell : {RnnCell::kTanh, RnnCell::kGru, RnnCell::kLstm}) {
    for (const int64_t directions : {1, 2}) {
      for (const auto& [steps, batch, inputs, hidden] : sizes) {
        const RnnProblem problem = {cell, directions, steps, batch, inputs, hidden, true, false};
        SCOPED_TRACE("cell " + std::to_string(static_cast<int>(cell)) + ", " +
                     std::to_string(directions) + " directions, " + std::to_string(hidden));
        EXPECT_EQ(illegal_rnn(problem), "");
        const cuda::PaperRnn said = cuda::describe_on_paper(problem);
        EXPECT_EQ(said.weight_bytes, problem.weights() * 4);
        ASSERT_EQ(said.parts.size(), static_cast<size_t>(directions * 2 * problem.gates()));
        size_t at = 0;
        for (int64_t d = 0; d < directions; ++d) {
          for (int64_t index = 0; index < 2 * problem.gates(); ++index, ++at) {
            const RnnPart ours = rnn_part(problem, d, index);
            EXPECT_EQ(said.parts[at].matrix, ours.matrix * 4) << d << ", " << index;
            EXPECT_EQ(said.parts[at].bias, ours.bias * 4) << d << ", " << index;
          }
        }
        EXPECT_GT(said.reserve_bytes, 0);
        EXPECT_LE(said.reserve_bytes, rnn_reserve_room(problem));
      }
    }
  }
}

/// What a plan file names is found again: each engine that would be measured, by its name alone.
TEST_F(Paper, EnginesAreFoundByTheirNames) {
  const AskedConvolution asked[] = {
      {"the CIFAR CNN's second", 128, 32, 16, 64, 3, 1},
      {"ResNet-50's 3x3", 256, 64, 56, 64, 3, 1},
  };
  size_t choices = 0;
  for (const PaperGpu& gpu : gpus()) {
    for (const AskedConvolution& c : asked) {
      for (const ConvResult wanted : {ConvResult::kY, ConvResult::kX, ConvResult::kW}) {
        ConvProblem problem = convolution(c, DType::kBF16);
        problem.wanted = wanted;
        SCOPED_TRACE(std::string(gpu.name) + ", " + c.name + ", result " +
                     std::to_string(static_cast<int>(wanted)));
        const DnnRequest request = dnn_request(problem);
        const std::vector<std::string> engines = cuda::engines_on_paper(request, gpu.json);
        EXPECT_FALSE(engines.empty());
        EXPECT_LE(engines.size(), kMostEngines);
        choices += engines.size() > 1 ? 1 : 0;
        for (const std::string& engine : engines) {
          EXPECT_TRUE(engine.starts_with("eng")) << engine;
          EXPECT_EQ(engine.find(' '), std::string::npos) << engine;
          EXPECT_EQ(cuda::plan_on_paper(request, gpu.json, engine).refusal, "") << engine;
        }
        EXPECT_NE(cuda::plan_on_paper(request, gpu.json, "eng9999_k1=1").refusal, "");
      }
    }
  }
  EXPECT_GT(choices, 0u) << "there is nothing to measure";
}

}  // namespace
}  // namespace halfnote::libraries
