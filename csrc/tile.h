// The micro-kernel of the matrix products: R rows of x against V vectors (16 columns each) of one packed panel.
//
// Every sum is made of chains over k, each of S::chain steps in order and starting at 0, added up in order, whatever R and V are.  So the
// bits of an output depend on its own row of x and its own column of w, and on nothing else; and short chains keep the rounding error
// near that of a pairwise sum (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
#pragma once
#include "simd.h"

namespace octavo {
namespace OCTAVO_PATH {

constexpr int kPanel = 64;                       // columns of a panel
constexpr int kPanelVectors = kPanel / kLanes;

// How many rows and vectors a tile may have, so that its sums stay in registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTileVectors = 4;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int kTileRows = 6, kTileVectors = 1;
#else
constexpr int kTileRows = 2, kTileVectors = 1;
#endif

// What a step of a chain is, for each dtype of the weights: one k for float32, two neighbouring k for bfloat16.  A chain's part of a panel
// fits into the first-level cache or, for bfloat16, whose own rounding outweighs that of the sums, the second.
struct FloatProduct {
  typedef float Element;
  typedef F16 Columns;
  static constexpr int pair = 1, chain = 96;
  static inline F16 broadcast(const float* x) { return set1(*x); }
  static inline F16 columns(const float* w) { return load(w); }
  static inline F16 step(F16 sum, F16 x, F16 w) { return fma(x, w, sum); }
};

struct BFloatProduct {
  typedef half_t Element;
  typedef Pairs Columns;
  static constexpr int pair = 2, chain = 256;
  static inline Pairs broadcast(const half_t* x) { return set1_pair(x); }
  static inline Pairs columns(const half_t* w) { return load_pairs(w); }
  static inline F16 step(F16 sum, Pairs x, Pairs w) { return dot_bf16(sum, x, w); }
};

// Memory that will be read next: `lines` cache lines of it are fetched into the second-level cache at every step.
struct Ahead {
  const char* at;
  int lines;
};

// sums [R, 64] (V vectors of it) = (more ? sums : 0) + x [R, steps] * w [steps, 64], for one chain.
// x and w point at the first step, w at the first of the V vectors; ldx in elements.
template <class S, int R, int V>
static void tile(const typename S::Element* x, int64_t ldx, const typename S::Element* w, int steps, bool more, float* sums,
                 Ahead ahead) {
  F16 sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = zero();
  for (int s = 0; s < steps; s++, x += S::pair, w += kPanel * S::pair) {
    for (int line = 0; line < ahead.lines; line++, ahead.at += 64) __builtin_prefetch(ahead.at, 0, 2);
    typename S::Columns column[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) column[v] = S::columns(w + v * kLanes * S::pair);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      auto value = S::broadcast(x + r * ldx);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sum[r][v] = S::step(sum[r][v], value, column[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      float* to = sums + r * kPanel + v * kLanes;
      store(to, more ? add(load(to), sum[r][v]) : sum[r][v]);
    }
}

template <class S>
using Tile = void (*)(const typename S::Element*, int64_t, const typename S::Element*, int, bool, float*, Ahead);

// The tile for `rows` (1 to kTileRows) and V vectors.
template <class S, int V>
static Tile<S> tile_for(int rows) {
  if constexpr (kTileRows > 2) {
    static constexpr Tile<S> tiles[] = {tile<S, 1, V>, tile<S, 2, V>, tile<S, 3, V>, tile<S, 4, V>, tile<S, 5, V>, tile<S, 6, V>};
    return tiles[rows - 1];
  } else {
    return rows == 1 ? tile<S, 1, V> : tile<S, 2, V>;
  }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
