// Sums over one row, in one fixed order: four vectors of partial sums that take the row's vectors in turn, then a tree.
#pragma once
#include "simd.h"

namespace octavo {
namespace OCTAVO_PATH {

static inline F16 load_upto(const float* p, int count) { return count >= kLanes ? load(p) : load_first(p, count); }
static inline void store_upto(float* p, F16 a, int count) {
  if (count >= kLanes)
    store(p, a);
  else
    store_first(p, a, count);
}

// Sum of term(x[i]) for i < width; term(0) is not counted past the end because the missing lanes are kept out.
template <class Term>
static inline float sum_over(const float* x, int width, Term term) {
  F16 sum[4] = {zero(), zero(), zero(), zero()};
  int turn = 0;
  for (int i = 0; i < width; i += kLanes, turn = (turn + 1) % 4) {
    F16 t = term(load_upto(x + i, width - i));
    sum[turn] = add(sum[turn], width - i >= kLanes ? t : keep_first(t, width - i, 0.f));
  }
  return reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

// 1 / sqrt(mean(x^2) + eps): RMSNorm (Zhang & Sennrich 2019, equation 4)
static inline float inverse_rms(const float* x, int width, float eps) {
  float sum = sum_over(x, width, [](F16 v) { return mul(v, v); });
  return 1.f / std::sqrt(sum / float(width) + eps);
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
