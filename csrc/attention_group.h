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

// The K and V of one head in a group's tiles, and in those that are read after them (null where no row sees a token).
struct GroupTiles {
  const uint8_t *k[kGroupTiles], *v[kGroupTiles];
  const uint8_t *next_k[kGroupTiles], *next_v[kGroupTiles];
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

// -inf for every token outside [from, to), in tiles `first` to `last`.
static inline void mask_scores(float* s, int first, int last, int from, int to) {
  for (int t = first; t < last; t++) {
    F16 x = keep_first(load(s + t * kTile), to - t * kTile, -INFINITY);
    store(s + t * kTile, drop_first(x, from - t * kTile, -INFINITY));
  }
}

// Scores [R][kGroup] of tiles `first` to `last` to weights p [R][kGroup], 0 in the other tiles; the new maximum and sum go to `sums`, the
// factor for what was summed before to `keep`.
template <class Weight, int R>
static inline __attribute__((always_inline)) void softmax_step(const float* s, int first, int last, RowSums sums, float* keep,
                                                               Weight* p) {
  alignas(64) float old_max[kLanes] = {}, new_max[kLanes] = {};
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    F16 highest = load(s + r * kGroup + first * kTile);
    for (int t = first + 1; t < last; t++) highest = max(highest, load(s + r * kGroup + t * kTile));
    float top = reduce_max(highest);
    old_max[r] = sums.max[r];
    sums.max[r] = new_max[r] = top > old_max[r] ? top : old_max[r];
  }
  store(keep, exp2_nonpositive(sub(load(old_max), load(new_max))));
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    F16 top = set1(new_max[r]), w[kGroupTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kGroupTiles; t++)
      w[t] = t >= first && t < last ? exp2_weight(sub(load(s + r * kGroup + t * kTile), top), p) : zero();
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

// Tokens [from, to), in order, none outside, for rows that see at least these and are equal in that.
template <class S>
static void exact_outputs(int rows, RowSums sums, const float* keep, const typename S::Weight* p, const GroupTiles& tiles,
                          int head_dim, int from, int to) {
  auto sum = [&](const uint8_t* const* v, const uint8_t* const* ahead, const typename S::Weight* weights, int begin, int end) {
    outputs_of<S>(rows, sums.acc, sums.ld, keep, weights, v, ahead, head_dim, begin, end);
  };
  if constexpr (S::pair == 2) {
    alignas(64) half_t copy[2 * kMaxHeadDim];
    auto lone = [&](int token) {
      const uint8_t* v = tiles.v[token / kTile] + token % kTile / 2 * (4 * head_dim);
      const uint8_t* pair = lone_token(v, head_dim, token % 2, copy);
      sum(&pair, &pair, p + (token & ~1), 0, 2);
    };
    if (from < to && from % 2) lone(from++);
    if (from < (to & ~1)) sum(tiles.v, tiles.next_v, p, from, to & ~1);
    if (from < to && to % 2) lone(to - 1);
  } else if (from < to) {
    sum(tiles.v, tiles.next_v, p, from, to);
  }
}

// Rows that do not all see the whole group: first what each run of equal rows sees before the others begin, then what all see, then the
// rest run by run.  Each row's tokens come in order, and only its own.
template <class S, int R>
static void ragged_outputs(RowSums sums, const float* keep, const typename S::Weight* p, const GroupTiles& tiles, int head_dim,
                           const int* from, const int* to) {
  int begin = (from[R - 1] + S::pair - 1) / S::pair * S::pair, end = to[0] / S::pair * S::pair;
  if (begin >= end) begin = end = kGroup;  // nothing in common
  for (int r = 0; r < R; r++) {
    float* acc = sums.acc + r * sums.ld;
    for (int d = 0; d < sums.ld; d += kLanes) store(acc + d, mul(load(acc + d), set1(keep[r])));
  }
  alignas(64) float ones[kLanes];
  store(ones, set1(1.f));
  auto by_runs = [&](int low, int high) {
    for (int r = 0, next; r < R; r = next) {
      for (next = r + 1; next < R && from[next] == from[r] && to[next] == to[r];) next++;
      exact_outputs<S>(next - r, sums.from(r), ones, p + r * kGroup, tiles, head_dim, from[r] > low ? from[r] : low,
                       to[r] < high ? to[r] : high);
    }
  };
  by_runs(0, begin);
  if (begin < end) outputs<S, R>(sums.acc, sums.ld, ones, p, tiles.v, tiles.next_v, head_dim, begin, end);
  by_runs(end, kGroup);
}

// The group for R rows whose q is [R][head_dim]; row r sees tokens [from[r], to[r]), at least one; both grow with r.
template <class S, int R>
static void group_rows(const typename S::Weight* q, int head_dim, float scale, const GroupTiles& tiles, const int* from,
                       const int* to, RowSums sums) {
  alignas(64) float s[R * kGroup], keep[kLanes];
  alignas(64) typename S::Weight p[R * kGroup];
  if (from[R - 1] == 0 && to[0] == kGroup) {
    scores<S, R>(q, head_dim, tiles.k, tiles.next_k, 0, kGroupTiles, scale, s);
    softmax_step<typename S::Weight, R>(s, 0, kGroupTiles, sums, keep, p);
    outputs<S, R>(sums.acc, sums.ld, keep, p, tiles.v, tiles.next_v, head_dim, 0, kGroup);
  } else {
    int first = from[0] / kTile, last = (to[R - 1] + kTile - 1) / kTile;
    scores<S, R>(q, head_dim, tiles.k, tiles.next_k, first, last, scale, s);
    for (int r = 0; r < R; r++) mask_scores(s + r * kGroup, first, last, from[r], to[r]);
    softmax_step<typename S::Weight, R>(s, first, last, sums, keep, p);
    ragged_outputs<S, R>(sums, keep, p, tiles, head_dim, from, to);
  }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
