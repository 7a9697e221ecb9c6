// Sums and means at the end of pointwise programs, down the columns and along the rows: the bits of
// ReduceSum and ReduceMean behind the same steps one by one, on any number of threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/ops/pointwise.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

constexpr DType kSummedTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

/// A shape and what of it is summed: the first dims, or the last ones.
struct Summed {
  Shape shape;
  int64_t dims = 1;
  bool along_rows = false;
  bool is_mean = false;

  std::vector<int64_t> axes() const {
    std::vector<int64_t> axes(static_cast<size_t>(dims));
    std::iota(axes.begin(), axes.end(), along_rows ? -dims : 0);
    return axes;
  }
  Shape result() const {
    return along_rows ? Shape(shape.begin(), shape.end() - dims)
                      : Shape(shape.begin() + dims, shape.end());
  }
  const char* op() const { return is_mean ? "ReduceMean" : "ReduceSum"; }
  std::string text() const { return fmt::format("{}[{}, {}]", op(), axes()[0], dims); }
};

const Summed kSummedColumns[] = {
    {{0, 5}},      {{5, 0}},          {{3, 2}},          {{7, 8}},       {{37, 130}}, {{700, 10}},
    {{129, 1031}}, {{4, 67, 513}, 2}, {{2, 3, 5, 7}, 2}, {{300, 2, 65}}, {{2, 5003}},
};

/// Rows of nothing, of one element, within a tile, of several, and of several units of ReduceSum.
const Summed kSummedRows[] = {
    {{5, 0}, 1, true},           {{0, 5}, 1, true},     {{1, 1}, 1, true},
    {{7, 1}, 1, true},           {{9, 3}, 1, true},     {{37, 8}, 1, true},
    {{600, 13}, 1, true},        {{3, 257}, 1, true},   {{5, 512}, 1, true},
    {{4, 513}, 1, true},         {{3, 520}, 1, true},   {{2, 3, 5, 7}, 2, true},
    {{3, 4, 1, 300}, 2, true},   {{2, 5003}, 1, true},  {{70, 300}, 1, true},
    {{1, 32768}, 1, true},       {{1, 32769}, 1, true}, {{1, 65543}, 1, true},
    {{2, 1, 129, 257}, 2, true}, {{33, 1000}, 2, true}, {{2, 9, 100}, 3, true},
};

/// ReduceSum or ReduceMean of `x` by the row for it, in f32 where `type` is wider than x.
Tensor reduced(const Tensor& x, const Summed& s, DType type) {
  const Attributes axes = {{"axes", s.axes()}, {"keepdims", int64_t{0}}};
  const RunOptions plain{.check_repeats = false, .check_device = false};
  if (type == x.dtype()) {
    const std::vector<int64_t> given = s.axes();
    const Tensor operand = Tensor::of<int64_t>({s.dims}, std::span<const int64_t>(given));
    return run_one("", s.op(), {x, operand}, {{"keepdims", int64_t{0}}}, {type, s.result()}, plain);
  }
  Attributes wide = axes;
  wide.set("out_dtype", static_cast<int64_t>(type));
  return run_one("ai.halfnote", s.op(), {x}, wide, {type, s.result()}, plain);
}

/// A bias is added, an activation's derivative taken, and the result summed, stored too or not.
void expect_sums(DType type, DType result, const Summed& s, std::string_view row) {
  const std::string name(short_name(type));
  const std::string text = fmt::format(
      "t0:{0} = Add(x0, x1); t1:{0} = Tanh(t0); t2:{0} = TanhGrad(x2, t1); t3:{1} = {2}(t2); out ",
      name, short_name(result), s.text());
  Tensor x = random_tensor(type, s.shape, -3, 3, 1), dy = random_tensor(type, s.shape, -3, 3, 3);
  const Tensor bias = random_tensor(type, {s.shape.back()}, -1, 1, 2);
  const OutputSpec same{type, s.shape}, sums{result, s.result()};
  const RunOptions on{.kernel = row, .check_repeats = false, .check_device = false};
  const Tensor t1 =
      run_one("", "Tanh", {run_one("", "Add", {x, bias}, {}, same, on)}, {}, same, on);
  const Tensor t2 = run_one("ai.halfnote", "TanhGrad", {dy, t1}, {}, same, on);
  const Tensor wanted = reduced(t2, s, result);
  for (const int threads : {1, 7}) {
    const bool device = threads == 1 && row == "reference";  // its emulation takes its time
    const RunOptions many{.kernel = row, .threads = threads, .check_device = device};
    SCOPED_TRACE(fmt::format("{} {} of {} to {} {} on {}", row, s.text(), name, short_name(result),
                             to_string(s.shape), threads));
    const std::vector<Tensor> both = run_kernel("ai.halfnote", "Pointwise", {x, bias, dy},
                                                {{"program", text + "t2, t3"}}, {same, sums}, many);
    EXPECT_TRUE(identical(both[0], t2));
    EXPECT_TRUE(identical(both[1], wanted));
    EXPECT_TRUE(identical(
        run_one("ai.halfnote", "Pointwise", {x, bias, dy}, {{"program", text + "t3"}}, sums, many),
        wanted));
  }
}

void expect_all_sums(std::span<const Summed> shapes) {
  for (const DType type : kSummedTypes) {
    for (Summed s : shapes) {
      for (const std::string_view row : {"fast", "reference"}) {
        expect_sums(type, DType::kF32, s, row);
        if (type != DType::kF32) expect_sums(type, type, s, row);
        s.is_mean = true;
        expect_sums(type, type, s, row);
        s.is_mean = false;
      }
    }
  }
}

TEST(PointwiseSums, OfColumnsHaveTheBitsOfReduceSum) { expect_all_sums(kSummedColumns); }
TEST(PointwiseSums, OfRowsHaveTheBitsOfReduceSum) { expect_all_sums(kSummedRows); }

/// Sums of inputs as they are, of one that broadcasts, and of what was dropped from.
TEST(PointwiseSums, OfWhatIsBroadcastOrDropped) {
  const Tensor seed = Tensor::scalar(int64_t{4}), step = Tensor::scalar(int64_t{2});
  for (const Summed& s : {Summed{{70, 600}}, Summed{{70, 600}, 1, true}, Summed{{70, 130}, 1, true},
                          Summed{{10, 7, 600}, 2, true}, Summed{{2, 40000}, 1, true}}) {
    SCOPED_TRACE(s.text() + to_string(s.shape));
    const Tensor x = random_tensor(DType::kF32, s.shape, -2, 2, 1),
                 row = random_tensor(DType::kF32, {s.shape.back()}, -2, 2, 2),
                 column = random_tensor(DType::kF32, {s.shape[s.shape.size() - 2], 1}, -2, 2, 3);
    const OutputSpec same{DType::kF32, s.shape}, sums{DType::kF32, s.result()};
    const auto spread = [&](const Tensor& y) {
      return run_one("", "Add", {Tensor::full(DType::kF32, s.shape, 0), y}, {}, same);
    };
    const Tensor dropped = run_one("ai.halfnote", "Dropout", {x, seed, step},
                                   {{"ratio", 0.4f}, {"node", int64_t{6}}}, same);
    const auto program = [&](const std::string& text, std::vector<Tensor> inputs) {
      return run_one("ai.halfnote", "Pointwise", inputs, {{"program", text}}, sums,
                     {.kernel = "fast", .threads = 3});
    };
    const auto sum = [&](const Tensor& of) { return reduced(of, s, DType::kF32); };
    EXPECT_TRUE(identical(program("t0:f32 = " + s.text() + "(x0); out t0", {x}), sum(x)));
    for (const Tensor& y : {row, column}) {
      EXPECT_TRUE(
          identical(program("t0:f32 = Add(x0, x1); t1:f32 = " + s.text() + "(x1); out t1", {x, y}),
                    sum(spread(y))));
    }
    EXPECT_TRUE(identical(
        program("t0:f32 = Dropout[0.4, 6](x0, x1, x2); t1:f32 = " + s.text() + "(t0); out t1",
                {x, seed, step}),
        sum(dropped)));
  }
}

/// A row in pieces of whole lanes has the bits of the row, on every instruction set.
TEST(PointwiseSums, PiecesOfARowAreTheRow) {
  std::vector<const cpu::fast::ReduceLoops*> sets = {&cpu::fast::kBaselineReduce};
#if defined(__x86_64__)
  if (cpu::vector_isa() != cpu::VectorIsa::kBaseline) sets.push_back(&cpu::fast::kAvx2Reduce);
  if (cpu::vector_isa() == cpu::VectorIsa::kAvx512) sets.push_back(&cpu::fast::kAvx512Reduce);
#endif
  for (const int64_t length : {1, 7, 8, 100, 1037}) {
    const Tensor x = random_tensor(DType::kF32, {length}, -2, 2, 1);
    double wanted = 0;
    cpu::fast::kBaselineReduce.sum(x.data<float>().data(), 1, length, &wanted);
    for (const auto* loops : sets) {
      for (const int64_t piece : {8, 24, 512, 2048}) {
        double lanes[cpu::fast::ReduceLoops::kLanes] = {}, sum = 0;
        for (int64_t at = 0; at < length; at += piece)
          sum = loops->add_run(x.data<float>().data() + at, std::min(piece, length - at), lanes);
        EXPECT_EQ(sum, wanted) << length << " in pieces of " << piece;
      }
    }
  }
}

TEST(PointwiseSums, TextGoesThereAndBack) {
  const DType inputs[] = {DType::kBF16}, outputs[] = {DType::kBF16, DType::kF32};
  for (const Summed& s : {Summed{{}, 2}, Summed{{}, 2, true}, Summed{{}, 1, true, true}}) {
    const std::string text = "t0:bf16 = Neg(x0); t1:f32 = " + s.text() + "(t0); out t0, t1";
    const PointwiseProgram program = parse_pointwise(text, inputs, outputs);
    EXPECT_EQ(to_text(program), text);
    const std::optional<PointwiseSum> sum = sum_of(program);
    ASSERT_TRUE(sum);
    EXPECT_EQ(sum->output, 1u);
    EXPECT_EQ(sum->dims, static_cast<size_t>(s.dims));
    EXPECT_EQ(sum->along_rows, s.along_rows);
    EXPECT_EQ(sum->is_mean, s.is_mean);
    EXPECT_EQ(sum_parameters(*sum), program.steps[1].parameters);
  }
}

TEST(PointwiseSums, BrokenTextIsAnError) {
  const DType inputs[] = {DType::kBF16}, outputs[] = {DType::kBF16, DType::kF32};
  for (const char* broken :
       {"t0:bf16 = Neg(x0); t1:f32 = ReduceSum[1, 2](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[-1, 2](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[-2, 1](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceMean[-9, 9](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[-1.5, 1.5](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[nan, 1](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[0, 0](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[0, 1.5](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[0, nan](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[0, 9](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum(t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f16 = ReduceSum[0, 1](t0); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[0, 1](t0); t2:f32 = Neg(t1); out t0, t1",
        "t0:bf16 = Neg(x0); t1:f32 = ReduceSum[0, 1](t0); t2:f32 = ReduceMean[-1, 1](t0); "
        "out t0, t1",
        "t0:bf16 = ReduceSum[0, 1](x0); t1:f32 = Cast(x0); out t0, t0",
        "t0:bf16 = ReduceSum[0, 1](x0); t1:bf16 = Neg(x0); t2:f32 = Cast(t1); out t1, t2"}) {
    EXPECT_THROW(parse_pointwise(broken, inputs, outputs), Error) << broken;
  }
}

TEST(PointwiseSums, ShapesThatDoNotFitAreRefused) {
  const Tensor x(DType::kF32, {3, 4});
  const auto reason = [&](const char* sums, const Shape& shape) {
    return refusals("ai.halfnote", "Pointwise", {x}, {{"program", std::string(sums)}},
                    {{DType::kF32, shape}}, {.kernel = "fast"});
  };
  for (const char* text :
       {"t0:f32 = ReduceSum[0, 3](x0); out t0", "t0:f32 = ReduceSum[-3, 3](x0); out t0"})
    EXPECT_NE(reason(text, {}).find("not there"), std::string::npos);
  EXPECT_NE(reason("t0:f32 = ReduceSum[0, 1](x0); out t0", {3}).find("different shapes"),
            std::string::npos);
  EXPECT_NE(reason("t0:f32 = ReduceSum[-1, 1](x0); out t0", {4}).find("different shapes"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
