// consumer MODEL: compiles a classifier of images float[N, 1, 28, 28] to bf16 through the installed
// headers and trains it for some steps on one batch; the loss must fall.
#include <cstdio>
#include <exception>
#include <utility>

#include "base/version.h"
#include "runtime/train/session.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer MODEL\n");
    return 2;
  }
  try {
    constexpr int64_t kBatch = 8;
    constexpr int kSteps = 5;
    halfnote::CompileOptions options;
    options.policy.dtype = halfnote::DType::kBF16;
    options.train.loss = "cross_entropy";
    halfnote::Session session(halfnote::compile_file(argv[1], options).model, {});

    halfnote::Tensor images(halfnote::DType::kF32, {kBatch, 1, 28, 28});
    halfnote::Tensor labels(halfnote::DType::kI64, {kBatch});
    int64_t n = 0;
    for (float& pixel : images.mutable_data<float>()) pixel = static_cast<float>(n++ % 17) / 17;
    for (int64_t& label : labels.mutable_data<int64_t>()) label = n++ % 10;

    double first = 0, last = 0;
    for (int i = 0; i < kSteps; ++i) {
      last = session.step({images, labels}).loss;
      if (i == 0) first = last;
    }
    std::printf("halfnote %s: loss %.4f -> %.4f\n", halfnote::kVersion, first, last);
    return last < first ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
}
