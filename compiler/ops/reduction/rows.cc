// The operator rows of the reductions and of pooling.
#include <iterator>

#include "compiler/ir/model.h"
#include "compiler/ops/families.h"
#include "compiler/ops/reduction/parts.h"

namespace halfnote {
namespace {

using namespace reduction;  // NOLINT(google-build-using-namespace): the rules of this family
using enum PrecisionClass;

constexpr std::string_view kSecond = "not in this release: second derivatives";
constexpr std::string_view kIndices = "the results are indices: no gradient exists";
constexpr std::string_view kRegions =
    "not in this release: gradients of region-of-interest pooling";

constexpr Legality kFrom13 = {1, 13};

constexpr OperatorRow kReduceRows[] = {
    {.name = "ArgMax",
     .precision = kClear,
     .legality = kFrom13,
     .scale = ScaleRule::kAbsorb,
     .no_gradient = kIndices,
     .note = "index of the maximum; rounding may make ties"},
    {.name = "ArgMin",
     .precision = kClear,
     .legality = kFrom13,
     .scale = ScaleRule::kAbsorb,
     .no_gradient = kIndices,
     .note = "index of the minimum; rounding may make ties"},
    {.name = "CumProd",
     .precision = kFp32,
     .legality = {26, 26},
     .no_gradient = "not in this release: gradients of ops newer than op-set 23",
     .note = "running product"},
    {.name = "CumSum",
     .precision = kFp32,
     .legality = {14, 14},
     .scale = ScaleRule::kSame,
     .gradient = cum_sum_gradient,
     .note = "the error of the running sum grows with its length"},
    {.name = "Det",
     .precision = kFp32,
     .legality = {11, 22},
     .no_gradient = "not in this release: ONNX has no matrix inverse to write it with",
     .note = "determinant"},
    {.name = "ReduceL1",
     .precision = kFp32,
     .legality = kFrom13,
     .gradient = reduce_l1_gradient,
     .note = "sum of magnitudes, f32 accumulation"},
    {.name = "ReduceL2",
     .precision = kFp32,
     .legality = kFrom13,
     .gradient = reduce_l2_gradient,
     .note = "squares overflow f16"},
    {.name = "ReduceLogSum",
     .precision = kFp32,
     .legality = kFrom13,
     .gradient = reduce_log_sum_gradient,
     .note = "f32 math"},
    {.name = "ReduceLogSumExp",
     .precision = kFp32,
     .legality = kFrom13,
     .gradient = reduce_log_sum_exp_gradient,
     .note = "f32 math"},
    {.name = "ReduceMax",
     .precision = kClear,
     .legality = kFrom13,
     .gradient = reduce_extreme_gradient,
     .note = "exact; ties share the gradient"},
    {.name = "ReduceMean",
     .precision = kFp32,
     .legality = kFrom13,
     .scale = ScaleRule::kSame,
     .gradient = reduce_mean_gradient,
     .note = "f32 accumulation"},
    {.name = "ReduceMin",
     .precision = kClear,
     .legality = kFrom13,
     .gradient = reduce_extreme_gradient,
     .note = "exact; ties share the gradient"},
    {.name = "ReduceProd",
     .precision = kFp32,
     .legality = kFrom13,
     .gradient = reduce_prod_gradient,
     .note = "f32 math"},
    {.name = "ReduceSum",
     .precision = kFp32,
     .legality = kFrom13,
     .scale = ScaleRule::kSame,
     .gradient = reduce_sum_gradient,
     .note = "f32 accumulation"},
    {.name = "ReduceSumSquare",
     .precision = kFp32,
     .legality = kFrom13,
     .gradient = reduce_sum_square_gradient,
     .note = "squares overflow f16"},
    {.name = "TopK",
     .precision = kClear,
     .legality = {1, 24},
     .no_gradient = "not in this release: gradient of TopK",
     .note = "rounding may change the order"},
};

constexpr Legality kFrom22 = {1, 22};

constexpr OperatorRow kPoolRows[] = {
    {.name = "AveragePool",
     .precision = kInfer,
     .legality = kFrom22,
     .scale = ScaleRule::kFirst,
     .gradient = average_pool_gradient,
     .note = "f32 sum in each window"},
    {.name = "GlobalAveragePool",
     .precision = kFp32,
     .legality = kFrom22,
     .scale = ScaleRule::kFirst,
     .gradient = global_average_pool_gradient,
     .note = "ReduceMean over the spatial dims"},
    {.name = "GlobalLpPool",
     .precision = kFp32,
     .legality = kFrom22,
     .no_gradient = "not in this release: gradient of GlobalLpPool; write it as ReduceL2",
     .note = "powers in f32"},
    {.name = "GlobalMaxPool",
     .precision = kClear,
     .legality = kFrom22,
     .gradient = global_max_pool_gradient,
     .note = "exact; ties share the gradient"},
    {.name = "LpPool",
     .precision = kFp32,
     .legality = kFrom22,
     .no_gradient = "not in this release: gradient of LpPool",
     .note = "powers in f32"},
    {.name = "MaxPool",
     .precision = kClear,
     .legality = kFrom22,
     .gradient = max_pool_gradient,
     .note = "exact; the first maximum takes the gradient"},
    {.name = "MaxRoiPool",
     .precision = kFp32,
     .legality = kFrom22,
     .no_gradient = kRegions,
     .note = "the regions share the type of X and need f32"},
    {.name = "MaxUnpool",
     .precision = kClear,
     .legality = {9, 22},
     .no_gradient = "not in this release: gradient of MaxUnpool",
     .note = "places elements by index"},
    {.name = "RoiAlign",
     .precision = kFp32,
     .legality = {10, 22},
     .no_gradient = kRegions,
     .note = "the regions share the type of X and need f32"},
    {.domain = kHalfnoteDomain,
     .name = "AveragePoolGrad",
     .precision = kInfer,
     .legality = {1, 1},
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_average_pool_grad,
     .body = average_pool_grad_body,
     .note = "gradient of AveragePool"},
    {.domain = kHalfnoteDomain,
     .name = "MaxPoolGrad",
     .precision = kClear,
     .legality = {1, 1},
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_max_pool_grad,
     .body = max_pool_grad_body,
     .note = "gradient of MaxPool; overlapping windows add in f32"},
};

}  // namespace

std::vector<OperatorRow> reduction_rows() {
  std::vector<OperatorRow> rows(std::begin(kReduceRows), std::end(kReduceRows));
  rows.insert(rows.end(), std::begin(kPoolRows), std::end(kPoolRows));
  return rows;
}

}  // namespace halfnote
