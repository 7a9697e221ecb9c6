// Which matrix products may be asked of the library, and what all models of the fixtures ask of it.
#include "kernels/cuda/libraries/blas.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/libraries/lt_request.h"
#include "tests/cuda/harness/asked.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote::libraries {
namespace {

MatmulProblem legal() {
  MatmulProblem p;
  p.ab = DType::kBF16;
  p.d = DType::kF32;
  p.m = 4;
  p.n = 6;
  p.k = 8;
  p.batches = 3;
  p.stride_a = 32;
  p.stride_d = 24;
  return p;
}

TEST(Blas, RefusesWhatTheLibraryWould) {
  EXPECT_EQ(illegal_matmul(legal()), "");
  struct Case {
    const char* reason;
    void (*spoil)(MatmulProblem& p);
  };
  const Case cases[] = {
      {"no product of bf16 gives f16", [](MatmulProblem& p) { p.d = DType::kF16; }},
      {"no product of i32 gives f32", [](MatmulProblem& p) { p.ab = DType::kI32; }},
      {"no product of f32 gives bf16",
       [](MatmulProblem& p) { p.ab = DType::kF32, p.d = DType::kBF16; }},
      {"an empty matrix", [](MatmulProblem& p) { p.k = 0; }},
      {"an empty matrix", [](MatmulProblem& p) { p.batches = 0; }},
      {"a matrix too large", [](MatmulProblem& p) { p.m = int64_t{1} << 31; }},
      {"matrices that overlap", [](MatmulProblem& p) { p.stride_a = 31; }},
      {"matrices that overlap", [](MatmulProblem& p) { p.stride_b = 1; }},
      {"matrices that overlap", [](MatmulProblem& p) { p.stride_d = 0; }},
  };
  for (const Case& c : cases) {
    MatmulProblem p = legal();
    c.spoil(p);
    EXPECT_EQ(illegal_matmul(p), c.reason);
  }
}

/// Room for A, B, D and workspace of legal(), as the library gets them.
struct Room {
  alignas(256) std::byte bytes[1024];
  LtOperands operands = {bytes, bytes + 256, bytes + 512, bytes + 768};
};

TEST(Blas, ABiasBelongsToTheRequest) {
  Room room;
  MatmulProblem p = legal();
  p.batches = 1;
  p.has_bias = true;
  LtOperands operands = room.operands;
  operands.bias = room.bytes + 516;
  LtRequest r = lt_request(p, operands);
  EXPECT_TRUE(r.has_bias);
  EXPECT_EQ(r.alignment, 4u);
  operands.bias = nullptr;
  EXPECT_EQ(illegal_request(lt_request(p, operands), operands), "no address of the bias");
  operands.bias = room.bytes + 512;
  EXPECT_EQ(illegal_request(r, operands), "a result over an operand");
  operands.bias = room.bytes + 640;
  EXPECT_EQ(illegal_request(r, operands), "");
  p.batches = 2;
  r = lt_request(p, operands);
  EXPECT_EQ(illegal_request(r, operands), "a bias of a stack, or in f64");
}

TEST(Blas, Tf32IsForF32) {
  Room room;
  MatmulProblem p = legal();
  p.tf32 = true;
  EXPECT_NE(illegal_request(lt_request(p, room.operands), room.operands), "");
  p.ab = DType::kF32;
  p.batches = 1;
  EXPECT_EQ(illegal_request(lt_request(p, room.operands), room.operands), "");
}

TEST(Blas, RequestIsTheProductTransposed) {
  Room room;
  MatmulProblem p = legal();
  p.trans_b = true;
  LtRequest r = lt_request(p, room.operands);
  EXPECT_EQ(r.compute, DType::kF32);
  EXPECT_EQ(r.scale, DType::kF32);
  EXPECT_TRUE(r.trans_a);
  EXPECT_FALSE(r.trans_b);
  EXPECT_EQ(r.a, (LtMatrix{DType::kBF16, 8, 6, 8, 3, 0}));   // B, n by k in rows
  EXPECT_EQ(r.b, (LtMatrix{DType::kBF16, 8, 4, 8, 3, 32}));  // A, m by k in rows
  EXPECT_EQ(r.d, (LtMatrix{DType::kF32, 6, 4, 6, 3, 24}));
  EXPECT_EQ(r.alignment, 64u);  // what every buffer of a plan has
  const LtOperands given =
      lt_operands({room.bytes, room.bytes + 2, room.bytes + 4, room.bytes + 1});
  EXPECT_EQ(given.a, room.bytes + 2);
  EXPECT_EQ(given.b, room.bytes);
  EXPECT_EQ(given.workspace, room.bytes + 256);
  EXPECT_EQ(lt_request(p, given).alignment, 2u);
}

TEST(Blas, RulesOfTheLibrary) {
  struct Case {
    const char* reason;
    void (*spoil)(LtRequest& r, LtOperands& o);
  };
  const Case cases[] = {
      {"", [](LtRequest&, LtOperands&) {}},
      {"types that do not go together: bf16 and f16 to f32 in f32",
       [](LtRequest& r, LtOperands&) { r.b.dtype = DType::kF16; }},
      {"types that do not go together: bf16 and bf16 to f32 in f64",
       [](LtRequest& r, LtOperands&) { r.compute = r.scale = DType::kF64; }},
      {"types that do not go together: bf16 and bf16 to f32 in f32",
       [](LtRequest& r, LtOperands&) { r.scale = DType::kF64; }},
      {"no elements of A", [](LtRequest& r, LtOperands&) { r.a.rows = 0; }},
      {"too large extents of B", [](LtRequest& r, LtOperands&) { r.b.leading = int64_t{1} << 31; }},
      {"a leading dimension below the rows of D", [](LtRequest& r, LtOperands&) { --r.d.leading; }},
      {"a negative stride of A", [](LtRequest& r, LtOperands&) { r.a.stride = -1; }},
      {"unequal numbers of batches", [](LtRequest& r, LtOperands&) { r.a.batches = 2; }},
      {"extents that do not fit each other", [](LtRequest& r, LtOperands&) { r.trans_a = true; }},
      {"extents that do not fit each other", [](LtRequest& r, LtOperands&) { --r.d.columns; }},
      {"results that overlap each other", [](LtRequest& r, LtOperands&) { --r.d.stride; }},
      {"no alignment that can be promised", [](LtRequest& r, LtOperands&) { r.alignment = 24; }},
      {"no alignment that can be promised", [](LtRequest& r, LtOperands&) { r.alignment = 512; }},
      {"no address of B", [](LtRequest&, LtOperands& o) { o.b = nullptr; }},
      {"an address not aligned to the elements of D",
       [](LtRequest& r, LtOperands& o) {
         r.alignment = 2;
         o.d = static_cast<std::byte*>(o.d) + 2;
       }},
      {"an address not aligned as promised of A",
       [](LtRequest&, LtOperands& o) { o.a = static_cast<const std::byte*>(o.a) + 16; }},
      {"a result over an operand", [](LtRequest&, LtOperands& o) { o.d = const_cast<void*>(o.b); }},
      {"no workspace", [](LtRequest&, LtOperands& o) { o.workspace = nullptr; }},
      {"a workspace that is not aligned",
       [](LtRequest&, LtOperands& o) { o.workspace = static_cast<std::byte*>(o.workspace) + 64; }},
  };
  for (const Case& c : cases) {
    Room room;
    LtOperands operands = room.operands;
    LtRequest request = lt_request(legal(), operands);
    c.spoil(request, operands);
    EXPECT_EQ(illegal_request(request, operands), c.reason);
  }
}

TEST(Blas, IllegalRequestIsABugOfOurs) {
  cuda_emulated::EmulatedDevice device;
  const auto stream = device.make_stream();
  const auto memory = device.allocate(1024);
  const auto workspace = device.allocate(kLtWorkspaceRoom);
  const auto library = [&](size_t offset) {
    cuda_emulated::blas().matmul(
        *stream, legal(),
        {memory.get() + offset, memory.get() + 256, memory.get() + 512, workspace.get()});
  };
  EXPECT_THROW(library(1), Error) << "not aligned to its elements";
  EXPECT_NO_THROW(library(2));
}

/// The products of a training step, recorded while it is captured; it does not run.
std::vector<cuda_emulated::MatmulCall> products_of(const std::filesystem::path& folder,
                                                   DType precision) {
  test::CapturedStep step(folder, precision);
  std::vector<cuda_emulated::MatmulCall> calls;
  cuda_emulated::record_matmuls(&calls);
  step.capture();
  cuda_emulated::record_matmuls(nullptr);
  return calls;
}

/// An illegal one is thrown; what is left to expect is that tensor cores can be used: operands at
/// multiples of 16 bytes, unless batches of odd sizes lie one behind the other.
TEST(Blas, ModelsAskForWhatIsLegalAndFast) {
  const std::filesystem::path models =
      std::filesystem::path(test::source_folder()) / "tests/fixtures/models";
  size_t folders = 0, steps = 0, all = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    ++folders;
    for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(entry.path().filename().string() + " in " + std::string(short_name(precision)));
      const auto calls = products_of(entry.path(), precision);
      steps += calls.empty() ? 0 : 1;
      all += calls.size();
      for (const auto& [request, operands, algorithm] : calls) {
        EXPECT_EQ(illegal_request(request, operands), "");
        EXPECT_GE(request.alignment, 16u);
        if (precision == DType::kF32) {
          EXPECT_EQ(request.a.dtype, DType::kF32);
        }
      }
    }
  }
  EXPECT_GE(folders, 13u);
  EXPECT_GE(steps, 3 * (folders - 1)) << "all but the U-Net, which has nothing but convolutions";
  RecordProperty("products", static_cast<int>(all));
}

}  // namespace
}  // namespace halfnote::libraries
