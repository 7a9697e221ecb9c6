// Ops whose results have no size that is known beforehand, and those on strings.
#include "kernels/dynamic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "harness.h"

namespace halfnote {
namespace {

using test::values;

using Strings = std::vector<std::string>;

std::vector<Tensor> run(std::string_view op, const std::vector<Tensor>& inputs,
                        const Attributes& attributes = {}) {
  const DynamicCall call{"", op, attributes, inputs, 1};
  const DynamicRow* row = find_dynamic(call);
  EXPECT_NE(row, nullptr) << op;
  return row == nullptr ? std::vector<Tensor>{} : row->run(call);
}

Tensor words(Strings elements) {
  const auto size = static_cast<int64_t>(elements.size());
  return Tensor::strings({size}, std::move(elements));
}

using Ints = std::vector<int64_t>;

TEST(Dynamic, NonZeroGivesIndicesRowByRow) {
  const Tensor found = run("NonZero", {Tensor::of<float>({2, 2}, {1, 0, -2, 3})})[0];
  EXPECT_EQ(found.shape(), (Shape{2, 3}));
  EXPECT_EQ(values<int64_t>(found), (Ints{0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(run("NonZero", {Tensor::of<float>({2}, {0, 0})})[0].shape(), (Shape{1, 0}));
}

TEST(Dynamic, CompressIgnoresWhatTheConditionLacks) {
  const Tensor x = Tensor::of<int64_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor condition = Tensor::of<bool>({2}, {false, true});
  const Tensor columns = run("Compress", {x, condition}, {{"axis", int64_t{1}}})[0];
  EXPECT_EQ(columns.shape(), (Shape{2, 1}));
  EXPECT_EQ(values<int64_t>(columns), (Ints{2, 5}));
  EXPECT_EQ(values<int64_t>(run("Compress", {x, condition})[0]), (Ints{2}));
}

TEST(Dynamic, UniqueSortsOrKeepsTheOrder) {
  const Tensor x = Tensor::of<float>({5}, {3, 1, 3, 2, 1});
  const auto sorted = run("Unique", {x});
  EXPECT_EQ(values<float>(sorted[0]), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(values<int64_t>(sorted[1]), (Ints{1, 3, 0}));
  EXPECT_EQ(values<int64_t>(sorted[2]), (Ints{2, 0, 2, 1, 0}));
  EXPECT_EQ(values<int64_t>(sorted[3]), (Ints{2, 1, 2}));
  const auto kept = run("Unique", {x}, {{"sorted", int64_t{0}}});
  EXPECT_EQ(values<float>(kept[0]), (std::vector<float>{3, 1, 2}));
  EXPECT_EQ(values<int64_t>(kept[2]), (Ints{0, 1, 0, 2, 1}));
}

TEST(Dynamic, NonMaxSuppressionKeepsTheBestOfOverlappingBoxes) {
  // Two boxes that share most of their area, and one far off.
  const Tensor boxes = Tensor::of<float>({1, 3, 4}, {0, 0, 1, 1, 0, 0.1f, 1, 1.1f, 0, 10, 1, 11});
  const Tensor scores = Tensor::of<float>({1, 1, 3}, {0.5f, 0.9f, 0.1f});
  const Tensor most = Tensor::scalar<int64_t>(3), limit = Tensor::scalar<float>(0.5f);
  const Tensor kept = run("NonMaxSuppression", {boxes, scores, most, limit})[0];
  EXPECT_EQ(values<int64_t>(kept), (Ints{0, 0, 1, 0, 0, 2}));
  const Tensor none = run("NonMaxSuppression", {boxes, scores})[0];
  EXPECT_EQ(none.shape(), (Shape{0, 3})) << "no number of boxes means none";
  EXPECT_THROW(run("NonMaxSuppression", {boxes, boxes}), Error);
}

TEST(Dynamic, StringsAreJoinedAndCompared) {
  const Tensor one = Tensor::strings({1}, {"a"});
  EXPECT_EQ(run("StringConcat", {one, words({"x", "y"})})[0].string_data(), (Strings{"ax", "ay"}));
  EXPECT_EQ(values<bool>(run("Equal", {one, words({"a", "b"})})[0]),
            (std::vector<bool>{true, false}));
}

TEST(Dynamic, SplitPadsAndCounts) {
  const auto parts = run("StringSplit", {words({" a  b c", "", "d"})});
  EXPECT_EQ(parts[0].shape(), (Shape{3, 3}));
  EXPECT_EQ(parts[0].string_data(), (Strings{"a", "b", "c", "", "", "", "d", "", ""}));
  EXPECT_EQ(values<int64_t>(parts[1]), (Ints{3, 0, 1}));
  const auto cut = run("StringSplit", {words({"a,,b"})},
                       {{"delimiter", std::string(",")}, {"maxsplit", int64_t{1}}});
  EXPECT_EQ(cut[0].string_data(), (Strings{"a", ",b"}));
}

TEST(Dynamic, NormalizeDropsStopWords) {
  const Attributes lower = {{"case_change_action", std::string("LOWER")},
                            {"stopwords", Strings{"Monday"}}};
  EXPECT_EQ(run("StringNormalizer", {words({"MONDAY", "Sun"})}, lower)[0].string_data(),
            (Strings{"sun"}));
  EXPECT_EQ(run("StringNormalizer", {words({"monday"})}, lower)[0].string_data(), (Strings{""}));
  EXPECT_THROW(run("StringNormalizer", {words({"\xc3\x84"})}, lower), Error) << "not ASCII";
}

TEST(Dynamic, CastsReadAndWriteNumbers) {
  const Attributes to_text = {{"to", static_cast<int64_t>(DType::kString)}};
  const Tensor numbers = Tensor::of<float>({4}, {0.1f, 2, -INFINITY, NAN});
  EXPECT_EQ(run("Cast", {numbers}, to_text)[0].string_data(),
            (Strings{"0.1", "2.0", "-inf", "nan"}));
  const Attributes to_int = {{"to", static_cast<int64_t>(DType::kI64)}};
  EXPECT_EQ(values<int64_t>(run("Cast", {words({"+7", "-3"})}, to_int)[0]), (Ints{7, -3}));
  EXPECT_THROW(run("Cast", {words({"seven"})}, to_int), Error);
}

TEST(Dynamic, MatchesWholeStrings) {
  const Attributes pattern = {{"pattern", std::string("a+")}};
  EXPECT_EQ(values<bool>(run("RegexFullMatch", {words({"aa", "aab"})}, pattern)[0]),
            (std::vector<bool>{true, false}));
  EXPECT_THROW(run("RegexFullMatch", {words({"a"})}, {{"pattern", std::string("(")}}), Error);
}

TEST(Dynamic, TfIdfCountsNgramsWithSkips) {
  Attributes attributes = {{"mode", std::string("TF")},      {"min_gram_length", int64_t{1}},
                           {"max_gram_length", int64_t{2}},  {"max_skip_count", int64_t{1}},
                           {"ngram_counts", Ints{0, 2}},     {"ngram_indexes", Ints{0, 1, 2}},
                           {"pool_int64s", Ints{1, 2, 1, 2}}};
  const Tensor x = Tensor::of<int64_t>({5}, {1, 2, 3, 1, 2});
  // 1 and 2 stand there twice each; "1 2" twice as neighbours, never with one token between.
  EXPECT_EQ(values<float>(run("TfIdfVectorizer", {x}, attributes)[0]),
            (std::vector<float>{2, 2, 2}));
  attributes.set("mode", std::string("TFIDF"));
  attributes.set("weights", std::vector<float>{1, 2, 3});
  EXPECT_EQ(values<float>(run("TfIdfVectorizer", {x}, attributes)[0]),
            (std::vector<float>{2, 4, 6}));
  attributes.set("ngram_counts", Ints{0, 9});
  EXPECT_THROW(run("TfIdfVectorizer", {x}, attributes), Error);
}

TEST(Dynamic, LeavesNumbersToTheKernels) {
  const std::vector<Tensor> numbers = {Tensor::scalar<float>(1), Tensor::scalar<float>(1)};
  const Attributes none;
  EXPECT_EQ(find_dynamic({"", "Equal", none, numbers, 1}), nullptr);
  EXPECT_EQ(find_dynamic({"", "Cast", none, numbers, 1}), nullptr);
}

}  // namespace
}  // namespace halfnote
