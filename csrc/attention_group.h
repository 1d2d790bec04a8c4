// One group of 64 tokens for up to kRows rows: scores, the running softmax (Milakov & Gimelshein 2018, in base 2), and the output sums.
//
// A row sees the tokens [from, to) of the group.  What lies outside is computed with at most where a neighbour needs it: its score is
// replaced by -inf before anything looks at it, and its V is never multiplied, so whatever the memory holds there does not matter.
#pragma once
#include "attention_tile.h"

namespace octavo {
namespace OCTAVO_PATH {

// A row's softmax over the tokens so far: maximum, sum of weights (one partial sum a lane), weighted sum of V.
struct RowSums {
  float* max;     // [rows]
  float* weight;  // [rows][16]
  float* acc;     // [rows][ld]
  int ld;         // head_dim up to a multiple of 16
  RowSums from(int row) const { return {max + row, weight + row * kLanes, acc + row * ld, ld}; }
};

// The K and V of one head in a group's tiles (null beyond the last token that any row sees).
struct GroupTiles {
  const uint8_t* k[kGroupTiles];
  const uint8_t* v[kGroupTiles];
};

static inline F16 exp2_weight(F16 x, const float*) { return exp2_nonpositive(x); }
static inline void store_weights(float* p, const F16* w) {
  for (int t = 0; t < kGroupTiles; t++) store(p + t * kTile, w[t]);
}
#if defined(__AVX512BF16__)
static inline F16 exp2_weight(F16 x, const half_t*) { return exp2_nonpositive_coarse(x); }
static inline void store_weights(half_t* p, const F16* w) {
  for (int t = 0; t < kGroupTiles; t += 2) store_bf16_pairs(p + t * kTile, w[t], w[t + 1]);
}
#endif

// -inf for every token outside [from, to).
static inline void mask_scores(float* s, int from, int to) {
  for (int t = 0; t < kGroupTiles; t++) {
    F16 x = set1(-INFINITY);
    if (from < (t + 1) * kTile && to > t * kTile) {
      x = keep_first(load(s + t * kTile), to - t * kTile, -INFINITY);
      x = drop_first(x, from - t * kTile, -INFINITY);
    }
    store(s + t * kTile, x);
  }
}

// Scores [R][kGroup] to weights p [R][kGroup]; the new maximum and sum go to `sums`, the factor for what was summed before to `keep`.
template <class Weight, int R>
static inline void softmax_step(const float* s, RowSums sums, float* keep, Weight* p) {
  alignas(64) float old_max[kLanes] = {}, new_max[kLanes] = {};
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const float* x = s + r * kGroup;
    float top = reduce_max(max(max(load(x), load(x + 16)), max(load(x + 32), load(x + 48))));
    old_max[r] = sums.max[r];
    sums.max[r] = new_max[r] = top > old_max[r] ? top : old_max[r];
  }
  store(keep, exp2_nonpositive(sub(load(old_max), load(new_max))));
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    F16 top = set1(new_max[r]), w[kGroupTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kGroupTiles; t++) w[t] = exp2_weight(sub(load(s + r * kGroup + t * kTile), top), p);
    store_weights(p + r * kGroup, w);
    F16 sum = add(add(w[0], w[1]), add(w[2], w[3]));
    store(sums.weight + r * kLanes, fma(load(sums.weight + r * kLanes), set1(keep[r]), sum));
  }
}

// The last token of an odd range, or the first of one that starts odd, shares its pair with a token that must not count: a copy of the
// pair's V with that half zeroed.
static inline const uint8_t* lone_token(const uint8_t* v, int head_dim, bool high, half_t* copy) {
  const half_t* pairs = (const half_t*)v;
  for (int d = 0; d < head_dim; d++) {
    copy[2 * d] = high ? half_t(0) : pairs[2 * d];
    copy[2 * d + 1] = high ? pairs[2 * d + 1] : half_t(0);
  }
  return (const uint8_t*)copy;
}

// One row's tokens [from, to), in order, none outside.
template <class S>
static void row_outputs(float* acc, int ld, const typename S::Weight* p, const uint8_t* const* tiles, int head_dim, int from, int to) {
  const float one[1] = {1.f};
  if (from >= to) return;
  if constexpr (S::pair == 2) {
    alignas(64) half_t copy[2 * 256];
    auto lone = [&](int token) {
      const uint8_t* v = tiles[token / kTile] + token % kTile / 2 * (4 * head_dim);
      const uint8_t* pair = lone_token(v, head_dim, token % 2, copy);
      outputs<S, 1>(acc, ld, one, p + (token & ~1), &pair, head_dim, 0, 2);
    };
    if (from % 2) lone(from++);
    int even = to & ~1;
    if (from < even) outputs<S, 1>(acc, ld, one, p, tiles, head_dim, from, even);
    if (to % 2 && to > from) lone(to - 1);
  } else {
    outputs<S, 1>(acc, ld, one, p, tiles, head_dim, from, to);
  }
}

// Rows that do not see the whole group: what all of them see at once, the rest row by row; each row's tokens still come in order.
template <class S, int R>
static void ragged_outputs(RowSums sums, const float* keep, const typename S::Weight* p, const uint8_t* const* tiles, int head_dim,
                           const int* from, const int* to) {
  int begin = 0, end = kGroup;
  for (int r = 0; r < R; r++) {
    if (from[r] > begin) begin = from[r];
    if (to[r] < end) end = to[r];
  }
  begin += begin % S::pair;
  end -= end % S::pair;
  if (begin >= end) begin = end = kGroup;  // nothing in common: each row alone
  for (int r = 0; r < R; r++) {
    float* acc = sums.acc + r * sums.ld;
    for (int d = 0; d < sums.ld; d += kLanes) store(acc + d, mul(load(acc + d), set1(keep[r])));
    row_outputs<S>(acc, sums.ld, p + r * kGroup, tiles, head_dim, from[r], begin < to[r] ? begin : to[r]);
  }
  alignas(64) float ones[kLanes];
  store(ones, set1(1.f));
  if (begin < end) outputs<S, R>(sums.acc, sums.ld, ones, p, tiles, head_dim, begin, end);
  for (int r = 0; r < R; r++)
    row_outputs<S>(sums.acc + r * sums.ld, sums.ld, p + r * kGroup, tiles, head_dim, end, to[r]);
}

// The group for R rows whose q is [R][head_dim]; row r sees tokens [from[r], to[r]), at least one.
template <class S, int R>
static void group_rows(const typename S::Weight* q, int head_dim, float scale, const GroupTiles& tiles, const int* from,
                       const int* to, RowSums sums) {
  alignas(64) float s[R * kGroup], keep[kLanes];
  alignas(64) typename S::Weight p[R * kGroup];
  bool whole = from[R - 1] == 0 && to[0] == kGroup;  // both grow with the row
  int first = from[0] / kTile, last = (to[R - 1] + kTile - 1) / kTile;
  scores<S, R>(q, head_dim, tiles.k, first, last, scale, s);
  if (!whole)
    for (int r = 0; r < R; r++) mask_scores(s + r * kGroup, from[r], to[r]);
  softmax_step<typename S::Weight, R>(s, sums, keep, p);
  if (whole)
    outputs<S, R>(sums.acc, sums.ld, keep, p, tiles.v, head_dim, 0, kGroup);
  else
    ragged_outputs<S, R>(sums, keep, p, tiles.v, head_dim, from, to);
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
