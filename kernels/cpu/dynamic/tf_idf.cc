// TfIdfVectorizer: how often each n-gram of a pool occurs in a row of tokens, with up to
// max_skip_count tokens left out between neighbours.
#include <algorithm>
#include <map>

#include "kernels/cpu/dynamic/parts.h"

namespace halfnote::cpu {

namespace {

using Gram = std::vector<std::string>;

/// Integers and strings alike, as strings.
std::vector<std::string> tokens_of(const Tensor& x) {
  if (x.dtype() == DType::kString) return x.string_data();
  std::vector<std::string> tokens;
  for (const int64_t number : x.to_ints()) tokens.push_back(std::to_string(number));
  return tokens;
}

std::vector<std::string> pool_of(const DynamicCall& call) {
  if (const Attribute* strings = call.attributes.find("pool_strings")) {
    if (const auto* list = std::get_if<std::vector<std::string>>(strings)) return *list;
  }
  std::vector<std::string> pool;
  for (const int64_t number : call.attributes.get_ints("pool_int64s"))
    pool.push_back(std::to_string(number));
  return pool;
}

/// The n-grams of the pool, by size, with their number.
std::map<Gram, size_t> read_grams(const DynamicCall& call, int64_t least, int64_t most) {
  const std::vector<std::string> pool = pool_of(call);
  const std::vector<int64_t> starts = call.attributes.get_ints("ngram_counts");
  std::map<Gram, size_t> grams;
  size_t number = 0;
  for (size_t n = 1; n <= starts.size(); ++n) {
    const auto size = static_cast<int64_t>(pool.size());
    const int64_t end = n < starts.size() ? starts[n] : size;
    if (starts[n - 1] < 0 || end < starts[n - 1] || end > size) {
      throw data_error(call, "ngram_counts do not fit the pool");
    }
    for (int64_t at = starts[n - 1]; at + static_cast<int64_t>(n) <= end;
         at += static_cast<int64_t>(n), ++number) {
      if (static_cast<int64_t>(n) < least || static_cast<int64_t>(n) > most) continue;
      grams.emplace(Gram(pool.begin() + at, pool.begin() + at + static_cast<int64_t>(n)), number);
    }
  }
  return grams;
}

struct Counter {
  std::map<Gram, size_t> grams;
  std::vector<int64_t> columns;  // of each n-gram
  int64_t least = 1, most = 1, skips = 0;

  void count(const std::string* row, int64_t length, float* to) const {
    for (int64_t n = least; n <= most; ++n) {
      // Skips make no difference to single tokens.
      for (int64_t step = 1; step <= (n == 1 ? 1 : skips + 1); ++step) {
        for (int64_t at = 0; at + (n - 1) * step < length; ++at) {
          Gram gram;
          for (int64_t k = 0; k < n; ++k) gram.push_back(row[at + k * step]);
          const auto found = grams.find(gram);
          if (found != grams.end()) to[columns[found->second]] += 1;
        }
      }
    }
  }
};

Counter read_counter(const DynamicCall& call) {
  Counter counter;
  counter.least = call.attributes.get_int("min_gram_length", 1);
  counter.most = call.attributes.get_int("max_gram_length", 1);
  counter.skips = call.attributes.get_int("max_skip_count", 0);
  counter.columns = call.attributes.get_ints("ngram_indexes");
  counter.grams = read_grams(call, counter.least, counter.most);
  size_t largest = 0;
  for (const auto& [gram, number] : counter.grams) largest = std::max(largest, number + 1);
  const bool positive = std::all_of(counter.columns.begin(), counter.columns.end(),
                                    [](int64_t column) { return column >= 0; });
  if (!positive || counter.columns.empty() || largest > counter.columns.size() ||
      counter.least < 1 || counter.skips < 0) {
    throw data_error(call, "the attributes do not fit each other");
  }
  return counter;
}

std::vector<Tensor> run_tf_idf(const DynamicCall& call) {
  const Tensor& x = required(call, 0);
  const Shape& shape = x.shape();
  if (shape.empty() || shape.size() > 2) throw data_error(call, "needs tokens of rank 1 or 2");
  const Counter counter = read_counter(call);
  const int64_t width = *std::max_element(counter.columns.begin(), counter.columns.end()) + 1;
  const std::vector<float> weights = call.attributes.get_floats("weights");
  const std::string mode = call.attributes.get_string("mode", "TF");
  if (!weights.empty() && weights.size() < counter.columns.size()) {
    throw data_error(call, "too few weights");
  }
  const int64_t rows = shape.size() == 2 ? shape[0] : 1;
  Tensor result(DType::kF32, shape.size() == 2 ? Shape{rows, width} : Shape{width});
  const std::vector<std::string> tokens = tokens_of(x);
  float* to = result.mutable_data<float>().data();
  for (int64_t row = 0; row < rows; ++row)
    counter.count(tokens.data() + row * shape.back(), shape.back(), to + row * width);
  // Weights belong to the n-grams, in the order of the pool.
  std::vector<float> weight_of(static_cast<size_t>(width), 1);
  for (size_t k = 0; k < weights.size() && k < counter.columns.size(); ++k)
    weight_of[static_cast<size_t>(counter.columns[k])] = weights[k];
  for (int64_t i = 0; mode != "TF" && i < rows * width; ++i) {
    const float count = mode == "IDF" ? static_cast<float>(to[i] > 0) : to[i];
    to[i] = count * weight_of[static_cast<size_t>(i % width)];
  }
  return {result};
}

}  // namespace

std::vector<DynamicRow> count_dynamic_rows() {
  return {{"", "TfIdfVectorizer", nullptr, run_tf_idf}};
}

}  // namespace halfnote::cpu
