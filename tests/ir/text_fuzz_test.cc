// Broken text gives an Error or a sound graph, never anything else: truncations, and seeded random
// changes.
#include <random>

#include "tests/ir/support.h"

namespace halfnote {
namespace {

constexpr std::string_view kSeed = R"(<
   ir_version: 10,
   opset_import: ["" : 23],
   metadata_props: ["a": "1"]
>
main (float[N,2] x, seq(float[?]) s, bool c) => (float[N,2] y) <
   float[2,2] w = {1, -2.5e3, nan, -inf},  # trainable scale=1
   float16[2] h = {0.5, 15360},
   string[1] t = {"a\"b\x41"},
   int64 i = {-7}
> {  # doc="d"
   ["n 1"] float[N,2] y, "" = my.dom.Op:o <a: int = 1, b = [1.5], c = float[1] {nan(0x7fc00001)}> (x, , w)  # role=backward precision=bf16 reason="r" scale=1 meta={"k": "v"}
   z = If (c) <then_branch = t (q) => (r) { r = Neg (q) }, else_branch: graph = e () => (u) { u = Abs (x) }>
   state weight w -> y
}
<domain: "d", opset_import: ["" : 23]>
f <p, q: float = 0.5> (a, float b) => (o) { o = Op <v: float = @q> (a, b) }
training_info step {
   initialization: init () => (float i0) { float i0 = C () }
   initialization_binding: [w = i0]
   algorithm: alg (x) => (x) <float[2,2] w = @w> { state weight w -> w }
}
)";

/// Parses; what is accepted must verify (states aside, whose types a text may get wrong) and print
/// to a fixpoint.
void check(const std::string& text) {
  Model model;
  try {
    model = parse_model(text, "fuzz");
  } catch (const Error& error) {
    const bool known = error.code() == ErrorCode::kModel || error.code() == ErrorCode::kUnsupported;
    ASSERT_TRUE(known) << error.what() << "\n" << text;
    ASSERT_EQ(error.place().file.rfind("fuzz:", 0), 0u) << error.what();
    return;
  }
  try {
    verify(model, {.code = ErrorCode::kModel});
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::kModel) << error.what() << "\n" << text;
  }
  const std::string printed = print(model);
  ASSERT_EQ(print(parse_model(printed, "again")), printed) << text;
}

TEST(TextFuzz, TheSeedIsRead) { EXPECT_NO_THROW(verify(parse_model(kSeed, "seed"))); }

TEST(TextFuzz, EveryTruncation) {
  for (size_t length = 0; length < kSeed.size(); ++length) {
    check(std::string(kSeed.substr(0, length)));
  }
}

TEST(TextFuzz, EveryDeletionOfOneCharacter) {
  for (size_t at = 0; at < kSeed.size(); ++at) {
    std::string text(kSeed);
    text.erase(at, 1);
    check(text);
  }
}

constexpr std::string_view kPieces[] = {"(",
                                        ")",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "<",
                                        ">",
                                        "=",
                                        "=>",
                                        "->",
                                        ",",
                                        ":",
                                        ".",
                                        "@",
                                        "?",
                                        "...",
                                        "\"",
                                        "\\",
                                        "#",
                                        "\n",
                                        "-",
                                        "0",
                                        "1",
                                        "9e99",
                                        "1e-400",
                                        "nan",
                                        "inf",
                                        "float",
                                        "seq(",
                                        "map(int64,",
                                        "x",
                                        "y",
                                        "w",
                                        "state ",
                                        "training_info ",
                                        "\x00\x01",
                                        "\xff",
                                        "  # role=",
                                        "  # scale=1",
                                        "99999999999999999999",
                                        "graph = g () => ()"};

TEST(TextFuzz, RandomChanges) {
  std::mt19937 random(7);
  for (int round = 0; round < 6000; ++round) {
    std::string text(kSeed);
    for (unsigned change = random() % 4; change < 4; ++change) {
      const size_t at = random() % text.size();
      const std::string_view piece = kPieces[random() % std::size(kPieces)];
      switch (random() % 4) {
        case 0:
          text.erase(at, 1 + random() % 12);
          break;
        case 1:
          text.insert(at, piece);
          break;
        case 2:
          text.replace(at, std::min<size_t>(1 + random() % 6, text.size() - at), piece);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 60));
      }
      if (text.empty()) text = "g";
    }
    check(text);
    if (HasFatalFailure()) return;
  }
}

TEST(TextFuzz, RandomBytes) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string text = round % 2 == 0 ? "" : "g (x) => (y) {";
    for (unsigned i = random() % 80; i > 0; --i) text += static_cast<char>(random());
    check(text);
  }
}

}  // namespace
}  // namespace halfnote
