// A strip, one group of 64 tokens for up to kRows rows: scores, the running softmax (Milakov & Gimelshein 2018, in base 2), and the
// output sums.
//
// A row sees the tokens [from, to) of the group.  What lies outside is computed with at most where a neighbour needs it: its score is
// replaced by -inf before anything looks at it, and its V is never multiplied, so whatever the memory holds there does not matter.
#pragma once
#include "attention_plan.h"
#include "attention_tile.h"

namespace octavo {
namespace OCTAVO_PATH {

// Weights are 2^(score - base).  A row's base is a score that it has seen; it moves up when a score exceeds it by more than this, so
// weights stay below 2^kSlack and sums are seldom rescaled.
constexpr float kSlack = 8.f;

// A row's softmax over the tokens so far: base, sum of weights (one partial sum a lane), weighted sum of V.
struct RowSums {
  float* base;    // [rows], readable 16 at a time
  float* weight;  // [rows][16]
  float* acc;     // [rows][ld]
  int ld;         // head_dim up to a multiple of 16
  RowSums row(int r) const { return {base + r, weight + r * kLanes, acc + r * ld, ld}; }
};

// The K and V of one head in a group's tiles (null where no row sees a token).
struct GroupTiles {
  const uint8_t *k[kGroupTiles], *v[kGroupTiles];
};

// Up to kRows rows of one group.  Row r sees the group's tokens [from[r], to[r]), at least one; both grow with r.
template <class S>
struct Strip {
  int rows;
  const typename S::Weight* q;  // [rows][head_dim]
  RowSums sums;
  const GroupTiles* tiles;
  int from[kRows], to[kRows];
  Carry carry;                  // `nothing` in the rows' first group of a segment; else softmax_phase decides
  alignas(64) float scores[kRows * kGroup];
  alignas(64) float keep[kLanes];  // by row: the factor for what was summed before
  alignas(64) typename S::Weight weights[kRows * kGroup];

  bool whole() const { return from[rows - 1] == 0 && to[0] == kGroup; }
  int first_tile() const { return from[0] / kTile; }
  int last_tile() const { return (to[rows - 1] + kTile - 1) / kTile; }  // excluded
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

// Scores of tiles `first` to `last` to weights, 0 in the other tiles; the base and the sum of weights move on.
template <class S, int R>
static inline __attribute__((always_inline)) void softmax(Strip<S>& strip, int first, int last) {
  const RowSums sums = strip.sums;
  F16 highest[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; r++) {
    const float* x = strip.scores + (r < R ? r : 0) * kGroup;
    highest[r] = load(x + first * kTile);
    if (r < R)
      for (int t = first + 1; t < last; t++) highest[r] = max(highest[r], load(x + t * kTile));
  }
  const F16 top = reduce_max_each(highest), old_base = load(sums.base), limit = add(old_base, set1(kSlack));
  const F16 new_base = if_greater(top, limit, top, old_base);
  alignas(64) float base[kLanes];
  store(base, new_base);
  if (greater_lanes(top, limit) & ((1u << R) - 1)) {
    store_first(sums.base, new_base, R);
    store(strip.keep, exp2_nonpositive(sub(old_base, new_base)));
    if (strip.carry == Carry::same) strip.carry = Carry::scaled;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) store(sums.weight + r * kLanes, mul(load(sums.weight + r * kLanes), set1(strip.keep[r])));
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    typename S::Weight* p = strip.weights + r * kGroup;
    F16 w[kGroupTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kGroupTiles; t++)
      w[t] = t >= first && t < last ? exp2_weight(sub(load(strip.scores + r * kGroup + t * kTile), set1(base[r])), p) : zero();
    store_weights(p, w);
    store(sums.weight + r * kLanes, add(load(sums.weight + r * kLanes), add(add(w[0], w[1]), add(w[2], w[3]))));
  }
}

// The last token of an odd range, or the first of one that starts odd, shares its pair with a token that must not count: a copy of the
// pair's V with that half zeroed.
static inline const uint8_t* lone_token(const uint8_t* v, int head_dim, bool high, uint32_t* copy) {
  const uint32_t mask = high ? 0xffff0000u : 0x0000ffffu;
  std::memcpy(copy, v, head_dim * sizeof(uint32_t));
  for (int d = 0; d < head_dim; d++) copy[d] &= mask;
  return (const uint8_t*)copy;
}

// Tokens [from, to), in order, none outside, for rows that see at least these and are equal in that.
template <class S>
static void exact_outputs(int rows, RowSums sums, const typename S::Weight* p, const GroupTiles& tiles, int head_dim, int from,
                          int to) {
  auto sum = [&](const uint8_t* const* v, const typename S::Weight* weights, int begin, int end) {
    add_outputs<S>(rows, sums.acc, sums.ld, weights, v, head_dim, begin, end);
  };
  if constexpr (S::pair == 2) {
    alignas(64) uint32_t copy[kMaxHeadDim];
    auto lone = [&](int token) {
      const uint8_t* v = tiles.v[token / kTile] + token % kTile / 2 * (4 * head_dim);
      const uint8_t* pair = lone_token(v, head_dim, token % 2, copy);
      sum(&pair, p + (token & ~1), 0, 2);
    };
    if (from < to && from % 2) lone(from++);
    if (from < (to & ~1)) sum(tiles.v, p, from, to & ~1);
    if (from < to && to % 2) lone(to - 1);
  } else if (from < to) {
    sum(tiles.v, p, from, to);
  }
}

// Rows that do not all see the whole group: first what each run of equal rows sees before the others begin, then what all see, then
// the rest run by run.  Each row's tokens come in order, and only its own.
template <class S, int R>
static void ragged_outputs(const Strip<S>& strip, int head_dim) {
  const RowSums sums = strip.sums;
  int begin = round_up(strip.from[R - 1], S::pair), end = strip.to[0] / S::pair * S::pair;
  if (begin >= end) begin = end = kGroup;  // nothing in common
  auto by_runs = [&](int low, int high) {
    for (int r = 0, next; r < R; r = next) {
      const int from = strip.from[r], to = strip.to[r];
      for (next = r + 1; next < R && strip.from[next] == from && strip.to[next] == to;) next++;
      exact_outputs<S>(next - r, sums.row(r), strip.weights + r * kGroup, *strip.tiles, head_dim, from > low ? from : low,
                       to < high ? to : high);
    }
  };
  auto common = [&](Carry carry, int low, int high) {
    outputs<S, R>(sums.acc, sums.ld, carry, strip.keep, strip.weights, strip.tiles->v, head_dim, low, high);
  };
  if (begin > 0) {
    if (strip.carry != Carry::same) common(strip.carry, 0, 0);
    by_runs(0, begin);
  }
  if (begin < end) common(begin > 0 ? Carry::same : strip.carry, begin, end);
  by_runs(end, kGroup);
}

// The three phases of a strip of R rows.  Each needs the one before; strips of different rows, or of the next group, don't need each
// other's last phase, so that a processor can work on two of them at once.
template <class S, int R>
static void score_phase(Strip<S>& strip, int head_dim, float scale) {
  const int first = strip.first_tile(), last = strip.last_tile();
  scores<S, R>(strip.q, head_dim, strip.tiles->k, first, last, scale, strip.scores);
  if (!strip.whole())
    for (int r = 0; r < R; r++) mask_scores(strip.scores + r * kGroup, first, last, strip.from[r], strip.to[r]);
}

template <class S, int R>
static void softmax_phase(Strip<S>& strip) {
  if (strip.whole())
    softmax<S, R>(strip, 0, kGroupTiles);
  else
    softmax<S, R>(strip, strip.first_tile(), strip.last_tile());
}

template <class S, int R>
static void output_phase(const Strip<S>& strip, int head_dim) {
  if (strip.whole())
    outputs<S, R>(strip.sums.acc, strip.sums.ld, strip.carry, strip.keep, strip.weights, strip.tiles->v, head_dim, 0, kGroup);
  else
    ragged_outputs<S, R>(strip, head_dim);
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
