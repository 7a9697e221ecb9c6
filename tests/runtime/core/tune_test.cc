// Kernels by measurement: what a plan file holds, what it refuses, and that its choice is taken.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runtime/core/tune/tuner.h"

namespace halfnote::test {
namespace {

using testing::HasSubstr;

const TunedMachine kMachine{"some CPU", "oneDNN 3.2.0", 2};

Operand operand_of(DType dtype, Shape shape) { return {dtype, std::move(shape), {}, nullptr}; }

/// A product that two fast rows take.
KernelCall product(int64_t rows) {
  KernelCall call;
  call.op = "MatMul";
  call.inputs = {operand_of(DType::kF32, {rows, 16}), operand_of(DType::kF32, {16, 8})};
  call.outputs = {operand_of(DType::kF32, {rows, 8})};
  return call;
}

/// The fast rows that take the call, in the order of the table.
std::vector<std::string> fast_rows(const KernelCall& call) {
  std::vector<std::string> names;
  for (const KernelRow* row : cpu_kernels().rows_of(call.domain, call.op)) {
    if (row->name != "reference" && row->prepare(call)) names.emplace_back(row->name);
  }
  return names;
}

Error error_of(const std::string& text, const TunedMachine& machine = kMachine) {
  try {
    KernelChoices::parse(text, "p.json", machine);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "was taken: " << text;
  return Error(ErrorCode::kInternal, "none");
}

TEST(Tune, AFileOfAnotherKindIsNoDamagedPlan) {
  for (const char* text : {"PK\x03\x04", "", "[1]", "{}", "{\"format\": \"other\"}"}) {
    SCOPED_TRACE(text);
    const Error error = error_of(text);
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_THAT(error.what(), testing::HasSubstr("p.json: the file is no plan file"));
  }
  EXPECT_THAT(error_of("{\"format\": \"halfnote-plan\", ").what(),
              testing::HasSubstr("the plan file is damaged"));
}

TEST(Tune, MeasuresEveryFastRowOnceAndNoReference) {
  const KernelCall call = product(4);
  std::vector<std::string> rows = fast_rows(call), measured;
  ASSERT_GE(rows.size(), 2u) << "another call is needed for this test";
  for (const MeasuredKernel& kernel : measure_kernels(call)) {
    EXPECT_GT(kernel.ms, 0) << kernel.kernel;
    measured.push_back(kernel.kernel);
  }
  EXPECT_THAT(measured, testing::UnorderedElementsAreArray(rows));
}

TEST(Tune, LeavesACallOfOneKernelToTheTable) {
  KernelCall call;
  call.op = "Relu";
  call.inputs = {operand_of(DType::kF32, {3})};
  call.outputs = {operand_of(DType::kF32, {3})};
  EXPECT_TRUE(measure_kernels(call).empty());
  KernelChoices choices(kMachine);
  const KernelChoice choice = choose_kernel(call, {{}, &choices, true});
  ASSERT_NE(choice.row, nullptr);
  EXPECT_EQ(choice.row->name, cpu_kernels().choose(call).row->name);
  EXPECT_EQ(choices.size(), 0u);
  EXPECT_EQ(nlohmann::json::parse(choices.to_json())["kernels"].size(), 0u);
}

TEST(Tune, TakesTheKernelOfThePlanAndTheTablesForOtherCalls) {
  const KernelCall call = product(4), other = product(5);
  const std::vector<std::string> rows = fast_rows(call);
  ASSERT_GE(rows.size(), 2u);
  KernelChoices choices(kMachine);
  choices.set(key_of(call), {{rows.back(), 1.5}, {rows.front(), 2.5}});
  const KernelChoice choice = choose_kernel(call, {{}, &choices, false});
  EXPECT_EQ(choice.row->name, rows.back());
  EXPECT_FALSE(choice.refusals.empty());  // the rows before it, with the reason
  EXPECT_EQ(choose_kernel(other, {{}, &choices, false}).row->name, fast_rows(other).front());
}

TEST(Tune, RefusesAKernelThatDoesNotTakeTheCall) {
  KernelCall call = product(4);
  const CallKey key = key_of(call);
  KernelChoices choices(kMachine);
  choices.set(key, {{"onednn.matmul_via_f32", 1}});
  try {
    choose_kernel(call, {{}, &choices, false});
    FAIL() << "an f32 product went through the kernel for 16 bits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("--tune"));
  }
}

TEST(Tune, KeysTellCallsApart) {
  const Tensor axes = Tensor::of<int64_t>({1}, {0}), last = Tensor::of<int64_t>({1}, {1});
  KernelCall sum;
  sum.op = "ReduceSum";
  sum.inputs = {operand_of(DType::kF32, {3, 4}), {DType::kI64, {1}, {}, &axes}};
  sum.outputs = {operand_of(DType::kF32, {1, 4})};
  const CallKey key = key_of(sum);
  EXPECT_EQ(key.operands, "f32[3,4] i64[1]={0} -> f32[1,4]");
  sum.inputs[1].constant = &last;
  EXPECT_NE(key_of(sum), key);
  const Attributes flags = {{"keepdims", int64_t{0}}, {"name", std::string("x")}};
  sum.attributes = &flags;
  EXPECT_EQ(key_of(sum).attributes, "keepdims=0 name=x");
  sum.inputs.push_back({});
  EXPECT_THAT(key_of(sum).operands, HasSubstr("- ->"));
}

TEST(Tune, APlanFileIsReadAsItWasWritten) {
  const KernelCall call = product(4);
  const std::vector<std::string> rows = fast_rows(call);
  ASSERT_GE(rows.size(), 2u);
  KernelChoices choices(kMachine);
  choices.set(key_of(call), {{rows.back(), 1.5}, {rows.front(), 2.5}});
  KernelChoices again = KernelChoices::parse(choices.to_json(), "p.json", kMachine);
  EXPECT_EQ(again.to_json(), choices.to_json());
  EXPECT_EQ(again.used(), 0u);
  EXPECT_EQ(again.find(key_of(call)), rows.back());
  EXPECT_EQ(again.used(), 1u);
  auto twice = nlohmann::json::parse(choices.to_json());
  twice["kernels"].push_back(twice["kernels"][0]);
  EXPECT_THAT(error_of(twice.dump()).what(), HasSubstr("twice"));
  EXPECT_EQ(again.digest(), choices.digest());
  KernelChoices other(kMachine);
  other.set(key_of(call), {{rows.back(), 9}});
  EXPECT_EQ(other.digest(), choices.digest()) << "times are no arithmetic";
  other.set(key_of(call), {{rows.front(), 9}});
  EXPECT_NE(other.digest(), choices.digest());
}

TEST(Tune, WhatIsMeasuredCanBeKeptAtOnce) {
  KernelChoices choices(kMachine);
  std::string kept;
  choices.on_measured([&](const KernelChoices& all) { kept = all.to_json(); });
  choices.set(key_of(product(3)), {});
  EXPECT_EQ(kept, "") << "there was nothing to choose";
  choose_kernel(product(4), {{}, &choices, true, nullptr});
  EXPECT_EQ(KernelChoices::parse(kept, "p.json", kMachine).size(), 1u);
  choices.set_fusion(key_of(product(5)), {true, 1, 2});
  EXPECT_EQ(kept, choices.to_json());
}

TEST(Tune, RefusesFilesOfOtherMachinesAndDamagedOnes) {
  const std::string good = KernelChoices(kMachine).to_json();
  const auto with = [&](const char* name, const nlohmann::ordered_json& value) {
    auto json = nlohmann::ordered_json::parse(good);
    json[name] = value;
    return json.dump();
  };
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, nlohmann::ordered_json>>{{"version", 2},
                                                                   {"halfnote", "9.9"},
                                                                   {"device", "another CPU"},
                                                                   {"library", "oneDNN 9"},
                                                                   {"threads", 3}}) {
    const Error error = error_of(with(name, value));
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << name;
    EXPECT_THAT(error.what(), HasSubstr("--tune")) << name;
  }
  const nlohmann::ordered_json unknown = {
      {{"op", "MatMul"}, {"operands", ""}, {"attributes", ""}, {"kernel", "nobody"}}};
  const nlohmann::ordered_json timeless = {{{"op", "MatMul"},
                                            {"operands", ""},
                                            {"attributes", ""},
                                            {"kernel", "reference"},
                                            {"ms", {{"reference", "long"}}}}};
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), with("format", "other"),
        with("format", 7), with("version", "1"), with("threads", nullptr), with("kernels", 3),
        with("kernels", {1}), with("kernels", unknown), with("kernels", timeless),
        std::string(100000, '['), "{\"format\": 1, " + good.substr(1)}) {
    EXPECT_EQ(error_of(text).code(), ErrorCode::kData) << text.substr(0, 80);
  }
}

}  // namespace
}  // namespace halfnote::test
