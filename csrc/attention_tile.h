// The micro-kernel of attention: R rows of weights against up to four vectors of sixteen lanes, one step after another.
//
// Both products of attention are this one chain of multiply-adds.  Scores: a row's weights are its q, a vector is a step of one tile of
// K (16 tokens in its lanes), the steps run through head_dim.  Outputs: the weights are the row's probabilities, a vector is 16 dims of
// V, the steps run through tokens.  Every sum takes its steps in order and meets nothing but its own row's weights, so the bits
// of a row do not depend on R, on the number of vectors, or on its neighbours.
#pragma once
#include "abi.h"
#include "simd.h"

namespace octavo {
namespace OCTAVO_PATH {

// Rows and vectors of the widest tile whose sums stay in registers.
#if defined(__AVX512F__)
constexpr int kRows = 6, kVectors = 4;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int kRows = 6, kVectors = 1;
#else
constexpr int kRows = 2, kVectors = 1;
#endif

constexpr int kTile = 16;                      // tokens of a page
constexpr int kGroup = 64;                     // tokens between two looks at the running maximum
constexpr int kGroupTiles = kGroup / kTile;
constexpr int kMaxHeadDim = 256;
constexpr int kVectorBytes = 64;               // of stored K or V per vector and step: 16 floats, or 16 pairs of 16-bit values

// What a step is, for each storage.  `pair`: elements of K (along head_dim) or V (along tokens) that one step takes.  `halves`: the
// multiply-adds that it needs.  Weight: what rows of q and probabilities are held in.
struct FloatStep {
  typedef float Weight;
  static constexpr int pair = 1, halves = 1;
  template <int H>
  static inline F16 vector(const uint8_t* p) { return load((const float*)p); }
  template <int H>
  static inline F16 half_vector(const uint8_t* p) { return load_first((const float*)p, 8); }
  template <int H>
  static inline F16 factor(const float* w) { return set1(*w); }
  static inline F16 step(F16 sum, F16 w, F16 v) { return fma(w, v, sum); }
};

// 16-bit storage, computed in float32: the low half of a pair, then the high one.
template <F16 (*Low)(Pairs), F16 (*High)(Pairs)>
struct WidenedStep {
  typedef float Weight;
  static constexpr int pair = 2, halves = 2;
  template <int H>
  static inline F16 vector(const uint8_t* p) { return H ? High(load_pairs((const half_t*)p)) : Low(load_pairs((const half_t*)p)); }
  template <int H>
  static inline F16 half_vector(const uint8_t* p) {
    Pairs x = load_half_pairs((const half_t*)p);
    return H ? High(x) : Low(x);
  }
  template <int H>
  static inline F16 factor(const float* w) { return set1(w[H]); }
  static inline F16 step(F16 sum, F16 w, F16 v) { return fma(w, v, sum); }
};
typedef WidenedStep<bf16_low, bf16_high> BFloatStep;
typedef WidenedStep<fp16_low, fp16_high> HalfStep;

#if defined(__AVX512BF16__)
// bfloat16 throughout, summed in float32: one instruction a pair.
struct BFloatDot {
  typedef half_t Weight;
  static constexpr int pair = 2, halves = 1;
  template <int H>
  static inline Pairs vector(const uint8_t* p) { return load_pairs((const half_t*)p); }
  template <int H>
  static inline Pairs half_vector(const uint8_t* p) { return load_half_pairs((const half_t*)p); }
  template <int H>
  static inline Pairs factor(const half_t* w) { return set1_pair(w); }
  static inline F16 step(F16 sum, Pairs w, Pairs v) { return dot_bf16(sum, w, v); }
};
#endif

template <class S, int R, int V, bool Half, int H>
static inline __attribute__((always_inline)) void half_step(F16 (&sum)[R][V], const typename S::Weight* w, int ldw,
                                                            const uint8_t* const* vectors, int64_t offset) {
  decltype(S::template vector<H>(nullptr)) x[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    if constexpr (Half)
      x[v] = S::template half_vector<H>(vectors[v] + offset);
    else
      x[v] = S::template vector<H>(vectors[v] + offset);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    auto f = S::template factor<H>(w + r * ldw);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = S::step(sum[r][v], f, x[v]);
  }
}

// sum [R][V] += over `steps` steps of w [R][ldw] * vectors [V][stride bytes from step to step].  Half: only 8 lanes are read.
template <class S, int R, int V, bool Half>
static inline __attribute__((always_inline)) void multiply(F16 (&sum)[R][V], const typename S::Weight* w, int ldw,
                                                           const uint8_t* const* vectors, int64_t stride, int steps) {
#pragma GCC unroll 2
  for (int64_t at = 0; at < stride * steps; at += stride) {
    half_step<S, R, V, Half, 0>(sum, w, ldw, vectors, at);
    if constexpr (S::halves == 2) half_step<S, R, V, Half, 1>(sum, w, ldw, vectors, at);
    w += S::pair;
  }
}

// out [R][kGroup], from lane `tile * 16` on: scale * (q [R][head_dim] . K) for V tiles.
template <class S, int R, int V>
static inline __attribute__((always_inline)) void score_tiles(const typename S::Weight* q, int head_dim,
                                                              const uint8_t* const* tiles, float scale, float* out) {
  F16 sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = zero();
  multiply<S, R, V, false>(sum, q, head_dim, tiles, kVectorBytes, head_dim / S::pair);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(out + r * kGroup + v * kLanes, mul(sum[r][v], set1(scale)));
}

// The same for tiles `first` to `last` of a group, as many at a time as there are registers for.
template <class S, int R, int V = kVectors>
static inline void scores(const typename S::Weight* q, int head_dim, const uint8_t* const* tiles, int first, int last, float scale,
                          float* out) {
  for (; first + V <= last; first += V) score_tiles<S, R, V>(q, head_dim, tiles + first, scale, out + first * kTile);
  if constexpr (V > 1)
    if (first < last) scores<S, R, V / 2>(q, head_dim, tiles, first, last, scale, out);
}

// What a sum starts from.
enum class Carry { nothing, same, scaled };

// acc [R][ld], 16 * V dims of it = what it carries on from (scaled: keep[r] * acc) + p [R][kGroup] * V, over tokens `begin` to `end`
// of the group (whole steps).
template <class S, int R, int V, bool Half>
static inline __attribute__((always_inline)) void output_dims(float* acc, int ld, Carry carry, const float* keep,
                                                              const typename S::Weight* p, const uint8_t* const* tiles, int dim,
                                                              int stride, int begin, int end) {
  F16 sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = carry == Carry::nothing ? zero() : load(acc + r * ld + dim + v * kLanes);
  if (carry == Carry::scaled)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sum[r][v] = mul(sum[r][v], set1(keep[r]));
  while (begin < end) {
    int in_tile = begin % kTile, stop = begin - in_tile + kTile;
    if (stop > end) stop = end;
    const uint8_t* at = tiles[begin / kTile] + in_tile / S::pair * stride + dim / kLanes * kVectorBytes;
    const uint8_t* vectors[V];
    for (int v = 0; v < V; v++) vectors[v] = at + v * kVectorBytes;
    multiply<S, R, V, Half>(sum, p + begin, kGroup, vectors, stride, (stop - begin) / S::pair);
    begin = stop;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(acc + r * ld + dim + v * kLanes, sum[r][v]);
}

// All dims from `dim` on: slices of 16 * V while they last, then narrower ones, then the half vector of a head_dim that is 8 mod 16.
template <class S, int R, int V = kVectors>
static void outputs(float* acc, int ld, Carry carry, const float* keep, const typename S::Weight* p, const uint8_t* const* tiles,
                    int head_dim, int begin, int end, int dim = 0) {
  const int stride = 4 * head_dim;
  for (; dim + V * kLanes <= head_dim; dim += V * kLanes)
    output_dims<S, R, V, false>(acc, ld, carry, keep, p, tiles, dim, stride, begin, end);
  if (dim == head_dim) return;
  if constexpr (V > 1)
    outputs<S, R, V / 2>(acc, ld, carry, keep, p, tiles, head_dim, begin, end, dim);
  else
    output_dims<S, R, 1, true>(acc, ld, carry, keep, p, tiles, dim, stride, begin, end);
}

// acc += p * V for `rows` rows, 1 to R.
template <class S, int R = kRows>
static void add_outputs(int rows, float* acc, int ld, const typename S::Weight* p, const uint8_t* const* tiles, int head_dim,
                        int begin, int end) {
  if (rows == R) return outputs<S, R>(acc, ld, Carry::same, nullptr, p, tiles, head_dim, begin, end);
  if constexpr (R > 1) add_outputs<S, R - 1>(rows, acc, ld, p, tiles, head_dim, begin, end);
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
