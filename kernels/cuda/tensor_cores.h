// Products of small matrices by a warp on tensor cores (sm_80 on), and what brings their operands
// from shared memory into registers. A warp multiplies 16 rows of 16 elements by 16 rows of 8: of
// the result a lane has four numbers, of rows g and g + 8 (g = lane / 4) the columns 2·t and
// 2·t + 1 (t = lane % 4). All lanes of the warp must call.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/numbers.h"

namespace halfnote::HN_CUDA {

/// Four matrices of 8 by 8 elements of 16 bits, a register each.
using FourTiles = uint32_t[4];

#if !defined(__CUDACC__)
namespace tensor_cores {

/// The numbers of a lane's registers, as the emulation hands them to the others of its warp.
struct Product {
  const uint32_t *a, *b;
  float* sums;
};

template <class T>
float element(uint32_t word, int half) {
  return load_number(T{static_cast<uint16_t>(word >> 16 * half)});
}

/// Element (row, k) of A, of the registers of the lane that has it; likewise (k, column) of B.
template <class T>
float of_a(const Product* const* lanes, int row, int k) {
  const int lane = row % 8 * 4 + k % 8 / 2;
  return element<T>(lanes[lane]->a[row / 8 + k / 8 * 2], k % 2);
}
template <class T>
float of_b(const Product* const* lanes, int k, int column) {
  const int lane = column * 4 + k % 8 / 2;
  return element<T>(lanes[lane]->b[k / 8], k % 2);
}

template <class T>
void add_product(const Product* const* lanes, int lane) {
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += of_a<T>(lanes, row, k) * of_b<T>(lanes, k, column);
    lanes[lane]->sums[i] += sum;
  }
}

/// Calls `all(values, lane)` for each lane once all have brought an address.
template <class Value, class All>
void with_all_lanes(const char* name, Value* own, All, const std::source_location& place) {
  emulation::LaneCall call{0xffffffffu, name, std::bit_cast<uint64_t>(own)};
  call.result = [](const emulation::LaneCall* calls, int lane) -> uint64_t {
    Value* values[emulation::kWarpSize];
    for (int i = 0; i < emulation::kWarpSize; ++i)
      values[i] = std::bit_cast<Value*>(static_cast<uintptr_t>(calls[i].value));
    All::of(values, lane);
    return 0;
  };
  emulation::wait_for_lanes(call, place);
}

template <class T>
struct AddProduct {
  static void of(Product* const* lanes, int lane) { add_product<T>(lanes, lane); }
};

struct Tiles {
  const uint16_t* row;
  uint32_t* to;
};
template <bool kTurned>
struct LoadTiles {
  static void of(Tiles* const* lanes, int lane) {
    for (int tile = 0; tile < 4; ++tile) {
      const auto at = [&](int row, int column) -> uint32_t {
        return lanes[tile * 8 + row]->row[column];
      };
      const int line = lane / 4, pair = lane % 4 * 2;
      lanes[lane]->to[tile] = kTurned ? at(pair, line) | at(pair + 1, line) << 16
                                      : at(line, pair) | at(line, pair + 1) << 16;
    }
  }
};

}  // namespace tensor_cores
#endif

/// Lanes 8·i to 8·i + 7 name the rows of tile i, of 16 bytes each and aligned to that. A lane gets
/// of each tile the elements 2·t and 2·t + 1 of row g; turned, the elements g of rows 2·t and
/// 2·t + 1.
template <bool kTurned>
__device__ __forceinline__ void load_tiles([[maybe_unused]] FourTiles& to,
                                           [[maybe_unused]] const void* shared_row) {
#if defined(__CUDA_ARCH__)
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  if constexpr (kTurned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
#elif !defined(__CUDACC__)
  const auto place = std::source_location::current();
  if (reinterpret_cast<uintptr_t>(shared_row) % 16 != 0)
    emulation::broken_kernel("a row of a tile at no multiple of 16 bytes", place);
  tensor_cores::Tiles own{static_cast<const uint16_t*>(shared_row), to};
  tensor_cores::with_all_lanes("load_tiles", &own, tensor_cores::LoadTiles<kTurned>{}, place);
#endif
}

/// sums += A·B, of f16 or bf16, added up in f32. A: tiles of the rows 0 to 7 and 8 to 15 by the
/// elements 0 to 7, then the same by the elements 8 to 15. B: of its 8 columns the elements 0 to 7,
/// and 8 to 15.
template <class T>
__device__ __forceinline__ void add_product_of_tiles([[maybe_unused]] const FourTiles& a,
                                                     [[maybe_unused]] const uint32_t* b,
                                                     [[maybe_unused]] float (&sums)[4]) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#elif !defined(__CUDACC__)
  tensor_cores::Product own{a, b, sums};
  tensor_cores::with_all_lanes("mma", &own, tensor_cores::AddProduct<T>{},
                               std::source_location::current());
#endif
}

/// Two numbers rounded to a T each, the first one in the low half.
template <class T>
__device__ __forceinline__ uint32_t two_of(float first, float second) {
#if defined(__CUDA_ARCH__)
  return bits_of_two<std::is_same_v<T, Half>>(first, second);
#elif defined(__CUDACC__)
  return 0;  // the host's half of a kernel is never run
#else
  return store_number<T>(first).bits | uint32_t{store_number<T>(second).bits} << 16;
#endif
}

}  // namespace halfnote::HN_CUDA
