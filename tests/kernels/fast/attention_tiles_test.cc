// The tile loops of blockwise attention, those of every instruction set that this CPU has, not only
// those that it is given: products around their blocks against f64, transpositions exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/contraction/attention/pack.h"
#include "kernels/cpu/contraction/attention/tile_math.h"
#include "kernels/cpu/cpu_info.h"

namespace halfnote::cpu::attention {
namespace {

/// Numbers of few bits, so that their products are exact: a sum of n of them is off by n roundings.
float number(size_t i) {
  return static_cast<float>(static_cast<int>(i * 2654435761u >> 20 & 63) - 32) / 16;
}

std::vector<TileMath> all_loops() {
  std::vector<TileMath> all = {kBaselineTiles};
#if defined(__x86_64__)
  if (vector_isa() >= VectorIsa::kAvx2) all.push_back(kAvx2Tiles);
  if (vector_isa() == VectorIsa::kAvx512) {
    all.push_back(kAvx512Tiles);
    if (__builtin_cpu_supports("avx512bf16")) {
      all.push_back(kAvx512Tiles);
      add_pair_loops(all.back());
    }
  }
#endif
  return all;
}

struct Size {
  int64_t rows, k, width;
};

constexpr Size kSizes[] = {{1, 2, 16},  {2, 64, 64},  {5, 8, 32},    {6, 10, 48},
                           {8, 64, 64}, {13, 30, 16}, {128, 64, 64}, {64, 128, 64}};

/// A·B (+ C) where the packed B holds b(term, column).
template <class A, class B>
double exact(const Size& s, int64_t row, int64_t column, const A& a, const B& b) {
  double sum = 0;
  for (int64_t i = 0; i < s.k; ++i)
    sum += static_cast<double>(a(row, i)) * static_cast<double>(b(i, column));
  return sum;
}

TEST(AttentionTiles, ProductsOfEveryInstructionSet) {
  const auto a_at = [](int64_t row, int64_t i) {
    return number(static_cast<size_t>(row * 301 + i));
  };
  const auto b_at = [](int64_t i, int64_t column) {
    return number(static_cast<size_t>(i * 77 + column + 5));
  };
  for (const TileMath& math : all_loops()) {
    for (const Size& s : kSizes) {
      for (const bool add : {false, true}) {
        SCOPED_TRACE(std::string(math.name) + " rows " + std::to_string(s.rows));
        std::vector<float> a, b, c(static_cast<size_t>(s.rows * s.width), 0.5f), c_pairs = c;
        std::vector<BFloat16> a_pairs, b_pairs(static_cast<size_t>(s.k * s.width));
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t i = 0; i < s.k; ++i) {
            a.push_back(a_at(r, i));
            a_pairs.push_back(to_bf16(a.back()));
          }
        }
        for (int64_t i = 0; i < s.k; ++i) {
          for (int64_t j = 0; j < s.width; ++j) {
            b.push_back(b_at(i, j));
            b_pairs[static_cast<size_t>(i / 2 * 2 * s.width + 2 * j + i % 2)] = to_bf16(b.back());
          }
        }
        math.product(a.data(), s.k, b.data(), s.width, s.rows, s.k, c.data(), s.width, add);
        if (math.pair_product) {
          math.pair_product(a_pairs.data(), s.k, reinterpret_cast<const uint32_t*>(b_pairs.data()),
                            s.width, s.rows, s.k, c_pairs.data(), s.width, add);
        }
        // The products are multiples of 2^-8, the sums below 2^10: f32 holds them all.
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t j = 0; j < s.width; ++j) {
            const double want = exact(s, r, j, a_at, b_at) + (add ? 0.5 : 0);
            const auto at = static_cast<size_t>(r * s.width + j);
            ASSERT_EQ(static_cast<double>(c[at]), want) << r << ", " << j;
            if (math.pair_product) {
              ASSERT_EQ(static_cast<double>(c_pairs[at]), want);
            }
          }
        }
      }
    }
  }
}

TEST(AttentionTiles, TranspositionsOfEveryInstructionSet) {
  for (const TileMath& math : all_loops()) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{1, 1}, {16, 16}, {17, 33}, {64, 128}, {15, 40}, {48, 7}}) {
      SCOPED_TRACE(std::string(math.name) + " " + std::to_string(rows));
      const int64_t from_ld = columns + 3, to_ld = rows + 5;
      std::vector<float> from(static_cast<size_t>(rows * from_ld));
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
      std::vector<float> to(static_cast<size_t>(columns * to_ld), -1.0f);
      math.transpose(from.data(), from_ld, rows, columns, to.data(), to_ld);
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t i = 0; i < to_ld; ++i) {
          const float want = i < rows ? from[static_cast<size_t>(i * from_ld + j)] : -1.0f;
          ASSERT_EQ(to[static_cast<size_t>(j * to_ld + i)], want) << i << ", " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::cpu::attention
