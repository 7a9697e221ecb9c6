// Attention and its gradient on the device against the CPU's reference: heads of every size of
// tile, no queries or keys, what the device refuses; and whole models with fused attention. More
// forms are in tests/kernels/attention_test.cc, which runs them on the device too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "kernels/cuda/libraries/sdpa.h"
#include "kernels/cuda/table.h"
#include "tests/cuda/harness/call.h"
#include "tests/sanitizer.h"

namespace halfnote::cuda_emulated {
namespace {

struct HeadSizes {
  Shape batch;
  int64_t m, n, d, e;
  int64_t group = 1;  // heads of Q that read one of K and V
  bool trans_k = false;
};

Shape joined(Shape shape, std::initializer_list<int64_t> tail) {
  shape.insert(shape.end(), tail);
  return shape;
}

Call attention(const HeadSizes& s, DType dtype, const std::vector<Tensor>& terms = {},
               const Attributes& more = {}) {
  const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
  Shape read = s.batch;
  if (s.group > 1) read.back() /= s.group;
  const Shape keys = s.trans_k ? joined(read, {s.d, s.n}) : joined(read, {s.n, s.d});
  Call call{kOwn,
            "Attention",
            {random(dtype, joined(s.batch, {s.m, s.d}), -2, 2, 1), random(dtype, keys, -2, 2, 2),
             random(dtype, joined(read, {s.n, s.e}), -2, 2, 3)},
            more,
            {{dtype, joined(s.batch, {s.m, s.e})},
             {wide, joined(s.batch, {s.m})},
             {wide, joined(s.batch, {s.m})}}};
  if (s.trans_k) call.attributes.set("transK", int64_t{1});
  call.attributes.set("scale", static_cast<float>(1 / std::sqrt(static_cast<double>(s.d))));
  call.inputs.insert(call.inputs.end(), terms.begin(), terms.end());
  return call;
}

/// The gradient of a forward call, from what the device gave for it; `term`: a gradient for the
/// first term.
Call gradient(const Call& forward, const std::vector<Tensor>& results, bool term = false) {
  Call call{kOwn, "AttentionGrad", {}, forward.attributes, {}};
  call.inputs = {random(results[0].dtype(), results[0].shape(), -1, 1, 8)};
  for (size_t i = 0; i < 3; ++i) {
    call.inputs.push_back(forward.inputs[i]);
    call.outputs.push_back({forward.inputs[i].dtype(), forward.inputs[i].shape()});
  }
  call.inputs.insert(call.inputs.end(), results.begin(), results.end());
  call.inputs.insert(call.inputs.end(), forward.inputs.begin() + 3, forward.inputs.end());
  if (term) call.outputs.push_back({results[1].dtype(), forward.inputs[3].shape()});
  return call;
}

void check_both(const Call& forward, bool term = false) {
  check(forward);
  check(gradient(forward, on_device(forward), term));
}

TEST(CudaAttention, HeadsOfEverySize) {
  for (const DType dtype : kFloats) {
    check_both(attention({{2}, 70, 67, 64, 33}, dtype));
    check_both(attention({{1, 2}, 37, 40, 65, 128}, dtype));
    const int64_t most = dtype == DType::kF64 ? 128 : 256;  // elements of a head
    check_both(attention({{2}, 19, 18, most, most / 2 + 1}, dtype));
    check_both(attention({{3, 1}, 1, 1, 1, 1}, dtype));
  }
}

TEST(CudaAttention, NoQueriesKeysOrBatches) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_both(attention({{2}, 0, 5, 8, 8}, dtype));
    check_both(attention({{2}, 5, 0, 8, 8}, dtype));
    check_both(attention({{0, 3}, 5, 6, 8, 8}, dtype));
  }
}

/// More scores of a head than 2^16, more rows and keys than a tile has.
TEST(CudaAttention, ManyScores) {
  const Tensor seed = integers({42}, {}), step = integers({7}, {});
  const Attributes drops = {{"ratio", 0.3f}, {"node", int64_t{5}}, {"is_causal", int64_t{1}}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_both(attention({{1}, 260, 260, 16, 8}, dtype, {random(DType::kF32, {260, 260})}), true);
    check_both(attention({{1}, 260, 260, 16, 8}, dtype, {seed, step}, drops));
  }
}

TEST(CudaAttention, HeadsThatAGroupReads) {
  for (const DType dtype : kFloats) {
    check_both(attention({{2, 6}, 70, 67, 12, 8, 3}, dtype));
    check_both(attention({{4}, 37, 130, 65, 70, 4}, dtype));
    const int64_t wide = dtype == DType::kF64 ? 100 : 200;
    check_both(
        attention({{2, 4}, 21, 20, wide, 12, 2, true}, dtype, {}, {{"is_causal", int64_t{1}}}));
    check_both(attention({{2, 4}, 0, 20, 8, 8, 2}, dtype));
  }
  const Tensor term = random(DType::kF32, {4, 21, 20});
  check_both(attention({{2, 4}, 21, 20, 12, 8, 2}, DType::kF32, {term}), true);
}

TEST(CudaAttention, GradientOfATermIsSummedOverBatches) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const DType wide = DType::kF32;
    check_both(attention({{3, 2}, 70, 66, 16, 8}, dtype, {random(wide, {2, 70, 66})}), true);
    check_both(attention({{3, 2}, 21, 20, 16, 8}, dtype, {random(wide, {3, 1, 21, 20})}), true);
    check_both(attention({{2, 2}, 21, 20, 16, 8}, dtype, {random(wide, {21, 20})}), true);
    Attributes causal;
    causal.set("is_causal", int64_t{1});
    check_both(attention({{2, 2}, 90, 90, 16, 8}, dtype, {random(wide, {90, 90})}, causal), true);
  }
}

/// The forms of attention that the library takes, each with what stands behind Q, K and V.
struct LibraryForm {
  const char* name;
  HeadSizes sizes;
  std::vector<Tensor> terms;
  Attributes more;
  bool has_nan = false;       // a row whose probabilities are NaN
  bool own_gradient = false;  // which the library gets wrong
};

std::vector<LibraryForm> library_forms() {
  const Tensor seed = integers({42}, {}), step = integers({7}, {});
  Tensor mask(DType::kBool, {2, 1, 1, 20}), rows(DType::kBool, {1, 1, 21, 20});
  for (int64_t i = 0; i < mask.size(); ++i) mask.mutable_data<bool>()[i] = i % 3 != 0;
  for (int64_t i = 0; i < rows.size(); ++i)
    rows.mutable_data<bool>()[i] = i / 20 != 4 && i % 7 != 2;
  const float inf = std::numeric_limits<float>::infinity();
  const float low = std::numeric_limits<float>::lowest();
  const Attributes causal = {{"is_causal", int64_t{1}}};
  const auto hides = [](std::vector<float> hidden) {
    return Attributes{{"hidden", std::move(hidden)}};
  };
  Attributes zero = hides({-inf});
  zero.set("nan_is_zero", int64_t{1});
  Attributes causal_mask = hides({-inf});
  causal_mask.set("is_causal", int64_t{1});
  const auto dropout = [](Attributes more) {
    more.set("ratio", 0.3f);
    more.set("node", int64_t{5});
    return more;
  };
  return {
      {"plain", {{2, 3}, 21, 20, 16, 8}, {}, {}},
      {"one head", {{}, 5, 9, 8, 16}, {}, {}},
      {"many batch dims", {{2, 1, 3}, 6, 7, 8, 8}, {}, {}},
      {"causal", {{2, 2}, 20, 20, 64, 64}, {}, causal},
      {"more keys than queries", {{1, 2}, 9, 20, 24, 8}, {}, causal},
      {"keys are masked", {{2, 2}, 21, 20, 16, 8}, {mask}, hides({low})},
      {"a row of -inf", {{2, 2}, 21, 20, 16, 8}, {rows}, hides({-inf}), true},
      {"a row of -1e4", {{2, 2}, 21, 20, 16, 8}, {rows}, hides({-1e4f})},
      {"a row of -inf is 0", {{2, 2}, 21, 20, 16, 8}, {rows}, zero},
      {"causal and masked", {{2, 2}, 21, 20, 16, 8}, {mask}, causal_mask, true},
      {"a term of each head", {{2, 3}, 21, 20, 16, 8}, {random(DType::kF32, {3, 21, 20})}, {}},
      {"two terms",
       {{2, 2}, 21, 20, 16, 8},
       {random(DType::kF32, {2, 2, 21, 20}), mask},
       hides({0, low})},
      {"groups", {{2, 6}, 21, 20, 16, 8, 3}, {}, {}},
      {"one head of keys, masked", {{2, 4}, 21, 20, 16, 8, 4}, {rows}, hides({-1e4f})},
      {"keys transposed", {{2, 2}, 21, 20, 16, 8, 1, true}, {}, causal},
      {"groups of transposed keys", {{2, 4}, 37, 45, 8, 24, 2, true}, {}, {}},
      {"groups, dropout", {{2, 2}, 21, 20, 16, 8, 2}, {seed, step}, dropout({}), false, true},
      {"dropout", {{2, 2}, 21, 20, 16, 8}, {seed, step}, dropout({}), false, true},
      {"dropout, mask",
       {{2, 2}, 21, 20, 16, 8},
       {mask, seed, step},
       dropout(hides({low})),
       false,
       true},
      {"dropout of whole tiles", {{2, 2}, 64, 128, 32, 64}, {seed, step}, dropout({}), false, true},
  };
}

TEST(CudaAttention, TheLibraryTakes16BitHeads) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const LibraryForm& form : library_forms()) {
      SCOPED_TRACE(std::string(short_name(dtype)) + " " + form.name);
      const Call call = attention(form.sizes, dtype, form.terms, form.more);
      EXPECT_EQ(row_of(call), "dnn.attention");
      if (form.has_nan) {
        // The finite check finds it in dV. Ours, the CPU's too, have dQ and dK without.
        check(call);
        const auto slopes = on_device(gradient(call, on_device(call)));
        EXPECT_TRUE(std::isnan(slopes[2].at_as_double(0)));
      } else {
        EXPECT_EQ(row_of(gradient(call, on_device(call))),
                  form.own_gradient ? "own.attention" : "dnn.attention");
        check_both(call);
      }
      Call without = call;
      without.outputs.resize(1);
      check(without);
    }
  }
}

/// Several tiles of rows and of columns, edges, and what is not plain: each of these the library
/// has no gradient for.
TEST(CudaAttention, GradientsOnTensorCores) {
  const Tensor seed = integers({42}, {}), step = integers({7}, {});
  const auto with = [](std::initializer_list<std::pair<const char*, int64_t>> more) {
    Attributes all = {{"ratio", 0.3f}, {"node", int64_t{5}}};
    for (const auto& [name, value] : more) all.set(name, value);
    return all;
  };
  Tensor mask(DType::kBool, {2, 1, 101});
  for (int64_t i = 0; i < mask.size(); ++i) mask.mutable_data<bool>()[i] = i % 3 != 0;
  Attributes hides = with({});
  hides.set("hidden", std::vector<float>{-1e4f});
  // Rows and batches of which every key is hidden have equal probabilities.
  Tensor rows(DType::kBool, {100, 101}), batch(DType::kBool, {2, 1, 101});
  Tensor low(DType::kF32, {2, 1, 101});
  for (int64_t i = 0; i < rows.size(); ++i)
    rows.mutable_data<bool>()[i] = i / 101 != 5 && i % 7 != 2;
  for (int64_t i = 0; i < batch.size(); ++i) {
    batch.mutable_data<bool>()[i] = i < 101;
    low.mutable_data<float>()[i] = i < 101 ? 0.1f * static_cast<float>(i % 9) : -1e9f;
  }
  const auto hidden_as = [&](float hidden) {
    Attributes all = with({});
    all.set("hidden", std::vector<float>{hidden});
    return all;
  };
  const float lowest = std::numeric_limits<float>::lowest();
  const Tensor bias = random(DType::kF32, {2, 100, 101});
  struct Form {
    HeadSizes sizes;
    std::vector<Tensor> terms;
    Attributes more;
    bool term = false;
  };
  const std::vector<Form> forms = {
      {{{2}, 128, 96, 64, 64}, {seed, step}, with({})},
      {{{2}, 100, 101, 40, 72}, {seed, step}, with({})},
      {{{2}, 100, 101, 33, 7}, {seed, step}, with({{"is_causal", 1}})},
      {{{1}, 101, 100, 128, 128}, {seed, step}, with({{"is_causal", 1}})},
      {{{4}, 70, 101, 16, 24, 2}, {seed, step}, with({{"is_causal", 1}})},
      {{{2}, 100, 101, 24, 16, 2, true}, {seed, step}, with({})},
      {{{2}, 100, 101, 16, 8}, {mask, seed, step}, hides},
      {{{2}, 100, 101, 16, 8}, {bias, seed, step}, with({}), true},
      {{{2}, 100, 101, 16, 8}, {rows, seed, step}, hidden_as(-1e9f)},
      {{{2}, 100, 101, 16, 8}, {rows, seed, step}, hidden_as(lowest)},
      {{{2}, 100, 101, 16, 8}, {batch, seed, step}, hidden_as(-1e9f)},
      {{{2}, 100, 101, 16, 8}, {batch, seed, step}, hidden_as(lowest)},
      {{{2}, 100, 101, 16, 8}, {low, seed, step}, with({{"is_causal", 1}})},
      {{{2}, 100, 101, 16, 8}, {low.cast_to(DType::kBF16), seed, step}, with({})},
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Form& form : forms) {
      SCOPED_TRACE(short_name(dtype));
      const Call call = attention(form.sizes, dtype, form.terms, form.more);
      const Call back = gradient(call, on_device(call), form.term);
      EXPECT_EQ(row_of(back), "own.attention");
      check(back);
    }
  }
}

/// A row of scores is the same softmax however low all its terms are.
TEST(CudaAttention, ALowTermOfAWholeRowChangesNothing) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    // A warp has a row of few keys, a block one of many.
    for (const auto& [keys, causal] : {std::pair(20, false), {20, true}, {520, false}}) {
      const int64_t n = keys, is_causal = causal ? 1 : 0;
      const auto run = [&](float low) {
        Tensor term(DType::kF32, {3, 1, 1, n});
        for (int64_t i = 0; i < term.size(); ++i)
          term.mutable_data<float>()[i] = n <= i && i < 2 * n ? low : 0;
        const Call call =
            attention({{3, 2}, 20, n, 16, 8}, dtype, {term}, {{"is_causal", is_causal}});
        EXPECT_EQ(row_of(call), "dnn.attention");
        std::vector<Tensor> results = on_device(call);
        const Call back = gradient(call, results);
        EXPECT_EQ(row_of(back), "dnn.attention");
        const std::vector<Tensor> gradients = on_device(back);
        results.resize(1);
        results.insert(results.end(), gradients.begin(), gradients.end());
        return results;
      };
      const std::vector<Tensor> plain = run(0);
      for (const float low : {-1e4f, -1e6f, -1e7f, -5e7f}) {
        const std::vector<Tensor> shifted = run(low);
        for (size_t i = 0; i < plain.size(); ++i)
          test::expect_near(shifted[i], plain[i], fmt::format("{} of {}", i, low));
      }
    }
  }
}

/// Of a term, with a row that another one hides whole; not behind a dropout.
TEST(CudaAttention, TheLibraryGivesTheGradientOfATerm) {
  const Tensor of_heads = random(DType::kF32, {2, 21, 20}), of_all = random(DType::kF32, {21, 20});
  const Tensor of_samples = random(DType::kF32, {3, 1, 21, 20});
  const Tensor few_keys = random(DType::kF32, {2, 5, 6});
  const Tensor of_windows = random(DType::kF32, {35, 1, 5, 6});
  Tensor rows(DType::kBool, {1, 1, 21, 1}), low(DType::kF32, {3, 1, 21, 1});
  for (int64_t i = 0; i < 21; ++i) rows.mutable_data<bool>()[i] = i != 4;
  for (int64_t i = 0; i < low.size(); ++i) low.mutable_data<float>()[i] = i % 5 == 0 ? -1e9f : 0;
  const Attributes hides = {{"hidden", std::vector<float>{0, -1e9f}}};
  const Attributes drops = {{"ratio", 0.3f}, {"node", int64_t{5}}};
  const Tensor seed = integers({42}, {}), step = integers({7}, {});
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(dtype));
    const auto check_term = [&](const Call& call) {
      const Call back = gradient(call, on_device(call), true);
      EXPECT_EQ(row_of(back), "dnn.attention");
      check(back);
    };
    check_term(attention({{3, 2}, 21, 20, 16, 8}, dtype, {of_heads}));
    check_term(attention({{3, 2}, 21, 20, 16, 8}, dtype, {of_samples}));
    check_term(attention({{3, 2}, 21, 20, 16, 8, 2, true}, dtype, {of_heads}));
    check_term(attention({{3, 2}, 21, 20, 16, 8}, dtype, {of_all}, {{"is_causal", int64_t{1}}}));
    check_term(attention({{3, 2}, 21, 20, 16, 8}, dtype, {of_heads, rows}, hides));
    // More batches than a thread sums, and a mask by window, as Swin has it.
    check_term(attention({{2, 35, 2}, 5, 6, 8, 8}, dtype, {few_keys, of_windows}));
    // Rows that a float term hides have equal probabilities, which are passed back through.
    check_term(attention({{3, 2}, 21, 20, 16, 8}, dtype, {of_heads, low}));
    const Call dropped = attention({{3, 2}, 21, 20, 16, 8}, dtype, {of_heads, seed, step}, drops);
    EXPECT_EQ(row_of(gradient(dropped, on_device(dropped), true)), "own.attention");
    check_both(dropped, true);
  }
}

/// Rows that a float term hides: their probabilities are those of the term, and are passed back
/// through to dQ and dK as those of other rows are.
TEST(CudaAttention, TheLibrarysHiddenRowsArePassedBackThrough) {
  Tensor low(DType::kF32, {3, 1, 21, 1}), none(DType::kF32, {3, 1, 21, 1});
  for (int64_t i = 0; i < low.size(); ++i) {
    low.mutable_data<float>()[i] = i % 5 == 0 ? -1e9f : 0;
    none.mutable_data<float>()[i] = i % 5 == 0 ? -std::numeric_limits<float>::infinity() : 0;
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    if (under_address_sanitizer() && dtype == DType::kF16) continue;  // the same code
    SCOPED_TRACE(short_name(dtype));
    // bf16 has a little less than 1e9.
    const Tensor less = low.cast_to(DType::kBF16).cast_to(DType::kF32);
    for (const HeadSizes& sizes : {HeadSizes{{3, 2}, 21, 20, 16, 8},
                                   {{3, 2}, 21, 20, 16, 8, 2, true},
                                   {{3, 2}, 21, 300, 200, 8},
                                   {{3, 4}, 21, 20, 40, 72, 2}}) {
      for (const Attributes& more :
           {Attributes{}, Attributes{{"is_causal", int64_t{1}}},
            Attributes{{"rows_first", std::vector<int64_t>{0, 0, 0, 1}}}}) {
        const bool rows_first = more.has("rows_first");
        if (rows_first && sizes.group > 1) continue;
        Call forward = attention(sizes, dtype, {less}, more);
        if (rows_first) std::swap(forward.outputs[0].shape[1], forward.outputs[0].shape[2]);
        Call back = gradient(forward, on_device(forward));
        EXPECT_EQ(row_of(back), "dnn.attention");
        check(back);
        // The library has them in 16 bits first.
        for (Result& result : back.outputs) result.dtype = DType::kF32;
        back.attributes.set("out_dtypes", std::vector<int64_t>{1, 1, 1});
        const std::vector<Tensor> wide = on_device(back), wanted = on_cpu(back);
        for (size_t i = 0; i < 3; ++i) test::expect_near(wide[i], wanted[i], "f32", 0x1p-7);
      }
    }
    // All keys at −∞ whose NaN the model makes 0: nothing is passed back, where the reference has
    // NaN in dQ and dK.
    const Call zeros =
        attention({{3, 2}, 21, 20, 16, 8}, dtype, {none}, {{"nan_is_zero", int64_t{1}}});
    Call back = gradient(zeros, on_device(zeros));
    const std::vector<Tensor> slopes = on_device(back);
    for (size_t i = 0; i < 2; ++i) EXPECT_FALSE(std::isnan(slopes[i].at_as_double(0))) << i;
    back.outputs[0] = back.outputs[1] = {};
    check(back);
  }
}

TEST(CudaAttention, TheLibraryIsAskedForHeadsWhereTheyLie) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "only the emulation records";
  Call call = attention({{2, 3}, 10, 12, 8, 16}, DType::kBF16);
  const Shape rows_first[] = {{2, 10, 3, 8}, {2, 12, 3, 8}, {2, 12, 3, 16}};
  for (size_t i = 0; i < 3; ++i) call.inputs[i] = random(DType::kBF16, rows_first[i], -2, 2, i);
  call.attributes.set("rows_first", std::vector<int64_t>{1, 1, 1, 1});
  call.outputs[0].shape = {2, 10, 3, 16};
  std::vector<libraries::SdpaProblem> asked;
  record_attentions(&asked);
  check_both(call);
  record_attentions(nullptr);
  ASSERT_FALSE(asked.empty());
  EXPECT_EQ(asked[0].q, (libraries::SdpaTensor{{2, 3, 10, 8}, {240, 8, 24, 1}}));
  EXPECT_EQ(asked[0].v, (libraries::SdpaTensor{{2, 3, 12, 16}, {576, 16, 48, 1}}));
  EXPECT_EQ(asked[0].y, (libraries::SdpaTensor{{2, 3, 10, 16}, {480, 16, 48, 1}}));

  Call packed{kOwn, "Attention", {}, call.attributes, {}};
  packed.inputs.assign(3, random(DType::kF16, {2, 10, 3, 3, 8}, -2, 2, 9));
  packed.attributes.set("packed", int64_t{1});
  packed.outputs = {
      {DType::kF16, {2, 10, 3, 8}}, {DType::kF32, {2, 3, 10}}, {DType::kF32, {2, 3, 10}}};
  asked.clear();
  record_attentions(&asked);
  check(packed);
  Call back{kOwn, "AttentionGrad", {}, packed.attributes, {{DType::kF16, {2, 10, 3, 3, 8}}}};
  const std::vector<Tensor> results = on_device(packed);
  back.inputs = {random(DType::kF16, {2, 10, 3, 8}, -1, 1, 3)};
  back.inputs.insert(back.inputs.end(), packed.inputs.begin(), packed.inputs.end());
  back.inputs.insert(back.inputs.end(), results.begin(), results.end());
  check(back);
  record_attentions(nullptr);
  ASSERT_FALSE(asked.empty());
  EXPECT_EQ(asked[0].k, (libraries::SdpaTensor{{2, 3, 10, 8}, {720, 8, 72, 1}}));
  EXPECT_TRUE(asked.back().gradient);
}

/// Q, K and V in one tensor beside a term whose gradient is wanted, as in Swin's windows.
TEST(CudaAttention, TheLibraryGivesTheGradientOfATermBesidePackedOnes) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Call packed{kOwn, "Attention", {}, {{"packed", int64_t{1}}}, {}};
    packed.attributes.set("rows_first", std::vector<int64_t>{1, 1, 1, 1});
    packed.inputs.assign(3, random(dtype, {2, 10, 3, 3, 8}, -2, 2, 9));
    packed.inputs.push_back(random(DType::kF32, {1, 3, 10, 10}));
    packed.outputs = {{dtype, {2, 10, 3, 8}}, {DType::kF32, {2, 3, 10}}, {DType::kF32, {2, 3, 10}}};
    Call back{kOwn,
              "AttentionGrad",
              {random(dtype, {2, 10, 3, 8}, -1, 1, 3)},
              packed.attributes,
              {{dtype, {2, 10, 3, 3, 8}}, {}, {}, {DType::kF32, {1, 3, 10, 10}}}};
    const std::vector<Tensor> results = on_device(packed);
    back.inputs.insert(back.inputs.end(), packed.inputs.begin(), packed.inputs.begin() + 3);
    back.inputs.insert(back.inputs.end(), results.begin(), results.end());
    back.inputs.push_back(packed.inputs[3]);
    EXPECT_EQ(row_of(back), "dnn.attention");
    check(back);
  }
}

TEST(CudaAttention, GradientsOfOtherTypesAndOfNobody) {
  const Call forward = attention({{2, 3}, 21, 20, 16, 8}, DType::kBF16);
  const std::vector<Tensor> results = on_device(forward);
  Call wide = gradient(forward, results);
  wide.outputs[0].dtype = DType::kF32;
  wide.attributes.set("out_dtypes", std::vector<int64_t>{1, 16, 16});
  EXPECT_EQ(row_of(wide), "dnn.attention");
  check(wide);
  Call only_v = gradient(forward, results);
  only_v.outputs[0] = only_v.outputs[1] = {};
  EXPECT_EQ(row_of(only_v), "dnn.attention");
  check(only_v);
}

TEST(CudaAttention, WhatTheLibraryLacksIsOurs) {
  const auto bf16 = [](const HeadSizes& sizes, const std::vector<Tensor>& terms = {},
                       const Attributes& more = {}) {
    return row_of(attention(sizes, DType::kBF16, terms, more));
  };
  EXPECT_EQ(bf16({{2}, 8, 8, 12, 8}), "own.attention") << "no multiple of 8";
  EXPECT_EQ(bf16({{0}, 8, 8, 8, 8}), "own.attention") << "no batch";
  EXPECT_EQ(bf16({{2}, 8, 0, 8, 8}), "own.attention") << "no keys";
  const Tensor mask(DType::kBool, {8});
  EXPECT_EQ(bf16({{2}, 8, 8, 8, 8}, {mask}, {{"hidden", std::vector<float>{-5}}}), "own.attention")
      << "a mask that hides nothing";
  EXPECT_EQ(row_of(attention({{2}, 8, 8, 8, 8}, DType::kF32)), "own.attention");
}

TEST(CudaAttention, SaysWhatItRefuses) {
  const auto refused = [](const Call& call) {
    try {
      on_device(call);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(refused(attention({{1}, 2, 2, 257, 2}, DType::kF32)).find("more than 256"),
            std::string::npos);
  EXPECT_NE(refused(attention({{1}, 2, 2, 2, 129}, DType::kF64)).find("more than 128"),
            std::string::npos);
  const std::vector<Tensor> five(5, random(DType::kF32, {2, 2}));
  EXPECT_NE(refused(attention({{1}, 2, 2, 4, 4}, DType::kF32, five)).find("four terms"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::cuda_emulated
