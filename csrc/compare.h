// Comparisons of sixteen lanes, as one bit a lane.
#pragma once
#include "simd.h"

namespace octavo {
namespace OCTAVO_PATH {

#if defined(__AVX512F__)
static inline uint32_t bits_above(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
static inline uint32_t bits_nan(F16 a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
// a where bits are set, 0 elsewhere
static inline F16 keep_bits(F16 a, uint32_t bits) { return {_mm512_maskz_mov_ps(__mmask16(bits), a.v)}; }
#elif defined(__AVX2__)
static inline uint32_t bits_above(F16 x, F16 y) {
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)) | _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)) << 8);
}
static inline uint32_t bits_nan(F16 x) {
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)) |
                  _mm256_movemask_ps(_mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)) << 8);
}
static inline __m256 keep_bits_8(__m256 a, uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(bits)), lane), lane);
  return _mm256_and_ps(a, _mm256_castsi256_ps(set));
}
static inline F16 keep_bits(F16 x, uint32_t bits) { return {keep_bits_8(x.a, bits), keep_bits_8(x.b, bits >> 8)}; }
#else
static inline uint32_t bits_above(F16 a, F16 b) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; i++) bits |= uint32_t(a.x[i] > b.x[i]) << i;
  return bits;
}
static inline uint32_t bits_nan(F16 a) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; i++) bits |= uint32_t(a.x[i] != a.x[i]) << i;
  return bits;
}
static inline F16 keep_bits(F16 a, uint32_t bits) {
  for (int i = 0; i < kLanes; i++) a.x[i] = bits >> i & 1 ? a.x[i] : 0.f;
  return a;
}
#endif

}  // namespace OCTAVO_PATH
}  // namespace octavo
