// Frameworks by name: what their lists name exists, names are found whatever their case, the
// spellings of precisions, and the report where little was converted.
#include "passes/precision/like.h"

#include "passes/policy_file.h"
#include "passes/precision/presets.h"
#include "passes/precision/values/constants.h"
#include "passes/report.h"
#include "support.h"

namespace halfnote::test {
namespace {

using testing::HasSubstr;

TEST(Like, ListsNameOperatorsAndScalers) {
  for (const LikePreset& preset : like_presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_EQ(scaler_preset(preset.scaler).preset, preset.scaler);
    for (const auto* list : {&preset.low, &preset.fp32, &preset.follow}) {
      for (const std::string_view op : *list) EXPECT_NE(find_operator("", op), nullptr) << op;
    }
  }
}

TEST(Like, SetsListsScalerAndPrecision) {
  Policy policy;
  apply_like("APEX-o1", policy);
  EXPECT_EQ(policy.like, "apex-O1");
  EXPECT_EQ(policy.scaler.preset, "apex");
  EXPECT_EQ(policy.dtype, DType::kF16);
  policy.dtype = DType::kBF16;
  apply_like("keras", policy);
  EXPECT_EQ(policy.dtype, DType::kBF16);
  EXPECT_THAT(error_of([&] { apply_like("pytorhc", policy); }, ErrorCode::kUsage),
              HasSubstr("did you mean pytorch?"));
}

TEST(Like, GradientsTakeTheClassOfTheirForwardOp) {
  const LikePreset& deepspeed = like_preset("deepspeed");
  EXPECT_EQ(like_class(deepspeed, "SoftmaxGrad", PrecisionClass::kFp32), PrecisionClass::kAllow);
  EXPECT_EQ(like_class(deepspeed, "Reshape", PrecisionClass::kClear), std::nullopt);
  EXPECT_EQ(like_class(deepspeed, "Shape", PrecisionClass::kOpaque), std::nullopt);
  EXPECT_EQ(like_class(like_preset("megatron"), "SoftmaxGrad", PrecisionClass::kFp32),
            PrecisionClass::kFp32);
  EXPECT_EQ(like_class(like_preset("apex-O1"), "GeluGrad", PrecisionClass::kInfer),
            PrecisionClass::kFp32);
}

TEST(Like, APolicyFileTakesItBeforeItsOwnKeys) {
  CompileOptions options;
  parse_policy("[loss_scale]\ninit = 512.0\n[precision]\nlike = \"deepspeed\"\n", "p.toml",
               options);
  EXPECT_EQ(options.policy.like, "deepspeed");
  EXPECT_EQ(options.policy.scaler.hysteresis, 2);
  EXPECT_EQ(options.policy.scaler.init, 512);
  EXPECT_EQ(options.policy.dtype, DType::kF16);
}

TEST(PrecisionNames, OfKerasAndLightning) {
  EXPECT_EQ(parse_precision("mixed_float16"), DType::kF16);
  EXPECT_EQ(parse_precision("mixed_bfloat16"), DType::kBF16);
  EXPECT_EQ(parse_precision("float32"), DType::kF32);
  EXPECT_EQ(parse_precision("16-mixed"), DType::kF16);
  EXPECT_THAT(error_of([] { parse_precision("float16"); }, ErrorCode::kUsage),
              HasSubstr("the mixed policy is mixed_float16"));
  EXPECT_THAT(error_of([] { parse_precision("mixed_bfloat61"); }, ErrorCode::kUsage),
              HasSubstr("did you mean mixed_bfloat16?"));
}

TEST(UnfitConstants, AreOnlyThoseThatChangeTheirMeaning) {
  const auto fits = [](const std::vector<float>& numbers, DType low) {
    const Shape shape = {static_cast<int64_t>(numbers.size())};
    return !unfit_constant(Tensor::of<float>(shape, std::span<const float>(numbers)), low);
  };
  EXPECT_TRUE(fits({65504, -65504, 6.2e-5f}, DType::kF16));
  EXPECT_TRUE(fits({0, -INFINITY, 1}, DType::kF16)) << "infinite already";
  EXPECT_TRUE(fits({1, 1e-12f}, DType::kF16)) << "beside a 1 a tiny number is no eps";
  EXPECT_FALSE(fits({1e-12f, 0}, DType::kF16));
  EXPECT_FALSE(fits({1e-7f}, DType::kF16)) << "1.19e-7, off by a fifth";
  EXPECT_FALSE(fits({1, -1e9f}, DType::kF16));
  EXPECT_TRUE(fits({-1e9f, 1e-12f}, DType::kBF16));
  EXPECT_FALSE(fits({-3.4028235e38f}, DType::kBF16));
  EXPECT_TRUE(fits({}, DType::kF16));
}

constexpr const char* kTwoProducts =
    R"(main (float[8,8] x) => (float[8,8] y) <float eps = {1e-12}> {
   a = MatMul (x, x)
   b = Add (a, eps)
   [last] y = MatMul (b, x)
}
)";

CompileResult result_of(const CompileOptions& options, const char* text = kTwoProducts) {
  CompileResult result;
  result.model = model_of(text);
  const Ran ran = run_all(result.model, options);
  result.remarks = ran.remarks;
  result.model.metadata["halfnote.policy"] = describe(options);
  return result;
}

TEST(ConversionWarning, NamesTheBlockersWhereLittleWasConverted) {
  CompileOptions options;
  options.inference_only = true;
  options.policy.dtype = DType::kF16;
  const Report all = make_report(result_of(options));
  EXPECT_EQ(conversion_warning(all), "");
  EXPECT_THAT(report_summary(all), HasSubstr("constants      1 node kept in FP32"));
  options.policy.fp32_ops = {"MatMul"};
  const Report none = make_report(result_of(options));
  EXPECT_THAT(conversion_warning(none), HasSubstr("nothing was converted to 16 bit"));
  EXPECT_THAT(conversion_warning(none), HasSubstr("100.0 %  policy: --fp32-op MatMul (2 nodes: "));
  EXPECT_THAT(report_json(none), HasSubstr("\"blockers\""));
  // The metadata of a file: printing it would overflow the stack.
  Report deep = none;
  deep.policy = std::string(400'000, '[') + std::string(400'000, ']');
  EXPECT_THAT(report_json(deep), HasSubstr("\"policy\": null"));
  options.policy.dtype = DType::kF32;
  options.policy.fp32_ops.clear();
  EXPECT_EQ(conversion_warning(make_report(result_of(options))), "") << "nobody asked for it";
}

TEST(ConversionWarning, SaysThatTheModelIsF64) {
  CompileOptions options;
  options.inference_only = true;
  options.policy.dtype = DType::kBF16;
  const std::string warning = conversion_warning(make_report(
      result_of(options, "main (double[8,8] x) => (double[8,8] y) {\n   y = MatMul (x, x)\n}\n")));
  EXPECT_THAT(warning, HasSubstr("100.0 %  f64 is left alone: for 16 bit, export the model in f32 "
                                 "(1 node: "));
  EXPECT_THAT(warning, HasSubstr("What kept the rest as it is"));
}

}  // namespace
}  // namespace halfnote::test
