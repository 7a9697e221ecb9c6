// Products that make something of their sums: each epilogue on the device against the reference, by
// the library and by plain loops; the rules that requests of them keep.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/ops/epilogue.h"
#include "kernels/cuda/libraries/lt_request.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated::epilogues {
namespace {

using libraries::Epilogue;
using libraries::illegal_request;
using libraries::LtOperands;
using libraries::LtRequest;
using libraries::MatmulProblem;

struct Size {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false;
};
const Size kSizes[] = {{1, 8, 1},
                       {7, 16, 5},
                       {13, 128, 3, false, true},
                       {5, 136, 9, true},
                       {33, 24, 17, true, true},
                       {2, 264, 40, false, true}};
/// Sizes that no row of numbers fits, and none at all.
const Size kUglySizes[] = {{3, 1, 2}, {7, 9, 5, true}, {4, 129, 3, false, true},
                           {0, 8, 4}, {4, 0, 4},       {3, 5, 0}};

Attributes attributes_of(const Size& s, const char* activation = nullptr) {
  Attributes attributes;
  if (s.trans_a) attributes.set("transA", int64_t{1});
  if (s.trans_b) attributes.set("transB", int64_t{1});
  if (activation != nullptr) attributes.set("activation", std::string(activation));
  return attributes;
}

std::vector<Tensor> factors(const Size& s, DType dtype) {
  return {random(dtype, s.trans_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, -1, 1, 1),
          random(dtype, s.trans_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, -1, 1, 2)};
}

Result saved_of(const Size& s, DType dtype, bool relu) {
  return relu ? Result{DType::kU8, {s.m, mask_row_bytes(s.n)}} : Result{dtype, {s.m, s.n}};
}

Call activation(const Size& s, DType dtype, bool relu, bool bias, bool saves) {
  Call call{kOwn,
            "GemmActivation",
            factors(s, dtype),
            attributes_of(s, relu ? "Relu" : "Gelu"),
            {{dtype, {s.m, s.n}}}};
  if (bias) call.inputs.push_back(random(dtype, {s.n}, -1, 1, 3));
  if (saves) call.outputs.push_back(saved_of(s, dtype, relu));
  return call;
}

Call gradient(const Size& s, DType dtype, bool relu, bool sums) {
  Call call{kOwn,
            "GemmActivationGrad",
            factors(s, dtype),
            attributes_of(s, relu ? "Relu" : "Gelu"),
            {{dtype, {s.m, s.n}}}};
  if (relu) {
    const Tensor bits = random(DType::kF32, {s.m, mask_row_bytes(s.n)}, 0, 255.9, 4);
    call.inputs.push_back(bits.cast_to(DType::kU8));
  } else {
    call.inputs.push_back(random(dtype, {s.m, s.n}, -4, 4, 4));
  }
  if (sums) call.outputs.push_back({dtype, {s.n}});
  return call;
}

Call sums(const Size& s, DType dtype, DType result, bool of_a) {
  Call call{kOwn,
            "GemmSums",
            factors(s, dtype),
            attributes_of(s),
            {{result, {s.m, s.n}}, {result, {of_a ? s.m : s.n}}}};
  call.attributes.set("of", std::string(of_a ? "A" : "B"));
  if (result != dtype) call.attributes.set("out_dtype", static_cast<int64_t>(1));
  return call;
}

std::vector<Call> all_calls(const Size& s, DType dtype) {
  std::vector<Call> calls;
  for (const bool relu : {false, true}) {
    for (const bool bias : {false, true}) {
      for (const bool saves : {false, true})
        calls.push_back(activation(s, dtype, relu, bias, saves));
    }
    for (const bool adds : {false, true}) calls.push_back(gradient(s, dtype, relu, adds));
  }
  for (const bool of_a : {false, true}) {
    calls.push_back(sums(s, dtype, dtype, of_a));
    if (is_16bit_float(dtype)) calls.push_back(sums(s, dtype, DType::kF32, of_a));
  }
  return calls;
}

/// Only the library knows where the bits of its masks lie.
bool has_mask(const Call& call) {
  const auto is_bytes = [](DType dtype) { return dtype == DType::kU8; };
  return (call.inputs.size() > 2 && is_bytes(call.inputs[2].dtype())) ||
         (call.outputs.size() > 1 && is_bytes(call.outputs[1].dtype));
}

void expect_as_on_cpu(const Call& call, const std::vector<Tensor>& got, const std::string& what,
                      double lost = 1e-6) {
  const std::vector<Tensor> wanted = on_cpu(call);
  for (size_t i = 0; i < wanted.size(); ++i) {
    // Products with many terms cancel; rounding is relative to the largest sum.
    test::expect_near(got[i], wanted[i], what + " " + std::string(call.op), lost);
  }
}

TEST(Epilogues, ByTheLibrary) {
  for (const DType dtype : kStored) {
    for (const Size& s : kSizes) {
      for (const Call& call : all_calls(s, dtype)) {
        const bool emulated = test::tested_device() == "cuda-emulated";
        if (emulated) {
          EXPECT_EQ(row_of(call), "blas.epilogue") << call.op;
        } else if (has_mask(call)) {
          continue;
        }
        // A GPU's library has the hyperbolic tangent of the hardware, good to 11 bits, of which the
        // gradient keeps 9.
        expect_as_on_cpu(call, on_device(call), "by the library", emulated ? 1e-6 : 0x1p-9);
      }
    }
  }
}

/// Where the library has no epilogue: other sizes and f64, and where it is not wanted.
TEST(Epilogues, ByPlainLoops) {
  const auto device = test::open_tested_device();
  std::vector<Size> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.insert(sizes.end(), std::begin(kUglySizes), std::end(kUglySizes));
  for (const DType dtype : kFloats) {
    for (const Size& s : sizes) {
      for (const Call& call : all_calls(s, dtype)) {
        const KernelCall asked = kernel_call(call);
        const KernelChoice choice = device->kernels().choose(asked, "own.");
        if (has_mask(call) && dtype != DType::kF64) {
          ASSERT_EQ(choice.kernel, nullptr);
          EXPECT_EQ(choice.refusals[0].reason, "the library lays out masks its own way");
          continue;
        }
        ASSERT_NE(choice.kernel, nullptr);
        expect_as_on_cpu(
            call, test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs), "own");
      }
    }
  }
}

/// What the forward product leaves is what the backward product reads, whatever its bits mean.
TEST(Epilogues, MasksGoFromProductToProduct) {
  const Size s{9, 200, 6};
  for (const DType dtype : kStored) {
    const Call forward = activation(s, dtype, true, true, true);
    Call backward = gradient(s, dtype, true, true);
    Call on_host = backward;
    backward.inputs[2] = on_device(forward)[1];
    on_host.inputs[2] = on_cpu(forward)[1];
    expect_as_on_cpu(on_host, on_device(backward), "behind a mask");
  }
}

/// A NaN in the sums must reach the loss and the finite check.
TEST(Epilogues, NanStaysNan) {
  for (const bool relu : {false, true}) {
    Call call = activation({2, 8, 3}, DType::kBF16, relu, true, true);
    Tensor a = call.inputs[0].cast_to(DType::kF32);
    a.mutable_data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    call.inputs[0] = a.cast_to(DType::kBF16);
    const Tensor y = on_device(call)[0].cast_to(DType::kF32);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(std::isnan(y.data<float>()[i]), i < 8) << i;
  }
}

TEST(Epilogues, TheirRequests) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "of the emulated library";
  std::vector<MatmulCall> calls;
  record_matmuls(&calls);
  for (const Call& call : all_calls({5, 136, 9}, DType::kBF16)) on_device(call);
  record_matmuls(nullptr);
  ASSERT_EQ(calls.size(), 16u);
  for (const MatmulCall& made : calls) EXPECT_EQ(illegal_request(made.request, made.operands), "");
  const LtRequest& gelu = calls[3].request;
  EXPECT_EQ(gelu.epilogue, Epilogue::kGelu);
  EXPECT_TRUE(gelu.has_bias);
  EXPECT_EQ(gelu.aux, DType::kBF16);
  EXPECT_EQ(gelu.aux_leading, 136);
  const LtRequest& relu = calls[11].request;
  EXPECT_EQ(relu.epilogue, Epilogue::kReluGrad);
  EXPECT_TRUE(relu.has_sums);
  EXPECT_EQ(relu.aux, DType::kU8);
  EXPECT_EQ(relu.aux_leading, 256);
  // Our B is the library's A.
  EXPECT_EQ(calls[12].request.epilogue, Epilogue::kSumsOfA);
  EXPECT_EQ(libraries::elements_of_sums(calls[12].request), 136);
  EXPECT_EQ(calls[14].request.epilogue, Epilogue::kSumsOfB);
  EXPECT_EQ(libraries::elements_of_sums(calls[14].request), 5);
}

MatmulProblem with(Epilogue epilogue) {
  MatmulProblem p;
  p.ab = p.d = DType::kBF16;
  p.m = 4;
  p.n = 16;
  p.k = 8;
  p.epilogue = epilogue;
  p.has_aux = libraries::is_activation(epilogue);
  p.has_sums = libraries::is_gradient(epilogue);
  return p;
}

TEST(Epilogues, RefusedWhereTheLibraryWould) {
  struct Case {
    const char* reason;
    Epilogue epilogue;
    void (*spoil)(MatmulProblem& p);
  };
  const Case cases[] = {
      {"", Epilogue::kGelu, [](MatmulProblem&) {}},
      {"", Epilogue::kReluGrad, [](MatmulProblem& p) { p.n = 13; }},
      {"", Epilogue::kGelu, [](MatmulProblem& p) { p.n = 13, p.has_aux = false; }},
      {"rows of what a gradient reads that are no multiple of 8 elements", Epilogue::kGelu,
       [](MatmulProblem& p) { p.n = 13; }},
      {"an epilogue of a stack", Epilogue::kRelu,
       [](MatmulProblem& p) { p.batches = 2, p.stride_d = 64; }},
      {"an epilogue in f64", Epilogue::kRelu, [](MatmulProblem& p) { p.ab = p.d = DType::kF64; }},
      {"sums that belong to no gradient", Epilogue::kSumsOfA,
       [](MatmulProblem& p) { p.has_sums = true; }},
      {"a bias beside a gradient or sums", Epilogue::kSumsOfB,
       [](MatmulProblem& p) { p.has_bias = true; }},
  };
  for (const Case& c : cases) {
    MatmulProblem p = with(c.epilogue);
    c.spoil(p);
    EXPECT_EQ(libraries::illegal_matmul(p), c.reason);
  }
}

/// Room for all that a request can name.
struct Room {
  alignas(256) std::byte bytes[4096];
  LtOperands operands = {bytes,   bytes + 512,  bytes + 1024, bytes + 1536,
                         nullptr, bytes + 2048, bytes + 3072};
};

TEST(Epilogues, RulesOfTheLibrary) {
  struct Case {
    const char* reason;
    Epilogue epilogue;
    void (*spoil)(LtRequest& r, LtOperands& o);
  };
  const Case cases[] = {
      {"", Epilogue::kGelu, [](LtRequest&, LtOperands&) {}},
      {"", Epilogue::kReluGrad, [](LtRequest&, LtOperands&) {}},
      {"", Epilogue::kSumsOfA, [](LtRequest&, LtOperands&) {}},
      {"a gradient without its auxiliary matrix", Epilogue::kGeluGrad,
       [](LtRequest& r, LtOperands&) { r.aux = DType::kUndefined; }},
      {"an auxiliary matrix that nothing asks for", Epilogue::kSumsOfB,
       [](LtRequest& r, LtOperands&) { r.aux = DType::kBF16; }},
      {"sums that nothing asks for", Epilogue::kGelu,
       [](LtRequest& r, LtOperands&) { r.has_sums = true; }},
      {"sums of an operand that go nowhere", Epilogue::kSumsOfB,
       [](LtRequest& r, LtOperands&) { r.has_sums = false; }},
      {"a bias beside a gradient or sums", Epilogue::kReluGrad,
       [](LtRequest& r, LtOperands& o) {
         r.has_bias = true;
         o.bias = static_cast<const std::byte*>(o.a) + 256;
       }},
      {"an auxiliary matrix of another type", Epilogue::kGelu,
       [](LtRequest& r, LtOperands&) { r.aux = DType::kF32; }},
      {"an auxiliary matrix of another type", Epilogue::kRelu,
       [](LtRequest& r, LtOperands&) { r.aux = DType::kBF16; }},
      {"a leading dimension below the rows of aux", Epilogue::kGelu,
       [](LtRequest& r, LtOperands&) { r.aux_leading = 8; }},
      {"an auxiliary matrix whose columns are no whole groups", Epilogue::kGelu,
       [](LtRequest& r, LtOperands&) { r.aux_leading = 20; }},
      {"an auxiliary matrix whose columns are no whole groups", Epilogue::kRelu,
       [](LtRequest& r, LtOperands&) { r.aux_leading = 192; }},
      {"no address of aux", Epilogue::kRelu, [](LtRequest&, LtOperands& o) { o.aux = nullptr; }},
      {"an address not aligned as promised of aux", Epilogue::kRelu,
       [](LtRequest& r, LtOperands& o) {
         r.alignment = 8;
         o.aux = static_cast<std::byte*>(o.aux) + 8;
       }},
      {"no address of the sums", Epilogue::kSumsOfA,
       [](LtRequest&, LtOperands& o) { o.sums = nullptr; }},
      {"a result over an operand", Epilogue::kGelu, [](LtRequest&, LtOperands& o) { o.aux = o.d; }},
      {"a result over an operand", Epilogue::kSumsOfB,
       [](LtRequest&, LtOperands& o) { o.sums = const_cast<void*>(o.b); }},
  };
  for (const Case& c : cases) {
    Room room;
    LtOperands operands = room.operands;
    LtRequest request = lt_request(with(c.epilogue), operands);
    c.spoil(request, operands);
    EXPECT_EQ(illegal_request(request, operands), c.reason);
  }
}

TEST(Epilogues, ShapesThatDoNotFitAreErrors) {
  const Size s{4, 16, 8};
  const auto expect_refused = [](const Call& call) {
    EXPECT_THROW(cpu_kernels().choose(kernel_call(call)), Error) << call.op;
  };
  Call call = activation(s, DType::kF32, true, true, true);
  call.inputs[2] = random(DType::kF32, {15});
  expect_refused(call);
  call = activation(s, DType::kF32, true, true, true);
  call.outputs[1].shape = {4, 2};
  expect_refused(call);
  call = gradient(s, DType::kF32, false, true);
  call.inputs[2] = random(DType::kF32, {4, 15});
  expect_refused(call);
  call = sums(s, DType::kF32, DType::kF32, true);
  call.outputs[1].shape = {16};
  expect_refused(call);
  call = activation(s, DType::kF32, true, true, true);
  call.attributes.set("activation", std::string("Tanh"));
  expect_refused(call);
}

/// The sum of gradients of earlier micro-batches: the product is added to it where it lies.
TEST(Epilogues, AddsToASumInItsPlace) {
  for (const DType dtype : kStored) {
    Call call{kOwn,
              "Gemm",
              factors({5, 16, 7, true}, dtype),
              attributes_of({5, 16, 7, true}),
              {{DType::kF32, {5, 16}}}};
    call.attributes.set("out_dtype", int64_t{1});
    call.inputs.push_back(random(DType::kF32, {5, 16}, -1, 1, 5));
    const auto device = test::open_tested_device();
    const KernelCall asked = kernel_call(call);
    const KernelChoice choice = device->kernels().choose(asked);
    ASSERT_TRUE(choice.kernel->can_share(2, 0));
    EXPECT_FALSE(choice.kernel->can_share(0, 0));
    const auto placed =
        test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs, {.in_place = true});
    const auto apart = test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs);
    test::expect_near(placed[0], on_cpu(call)[0], "in place", 1e-6);
    test::expect_near(placed[0], apart[0], "in place and apart");
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated::epilogues
