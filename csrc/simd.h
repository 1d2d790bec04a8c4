// Sixteen float lanes, whatever the machine: the one vocabulary that every kernel is written in.
//
// A source file that includes this is compiled once per instruction path (see CMakeLists.txt) with OCTAVO_PATH set to the name of
// that path's namespace.  The number of lanes is fixed at 16 on all of them, so layouts and tile shapes are the same everywhere; only
// the bits may differ between paths (a fused multiply-add here is a rounded multiply and an add there), never within one.
// Nothing here relies on contraction or on relaxed arithmetic: the build uses -ffp-contract=off and no fast-math.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace octavo {
namespace OCTAVO_PATH {

// Fetch a line into the first-level cache, or into the second: its queue of misses is longer, so for data from memory that isn't
// read in one stream `prefetch_far` is the faster.  As assembly, because GCC takes a function that only prefetches for one that does
// nothing, and removes the call.
#if defined(__x86_64__)
static inline void prefetch(const void* p) { __asm__ volatile("prefetcht0 %0" : : "m"(*(const char*)p)); }
static inline void prefetch_far(const void* p) { __asm__ volatile("prefetcht1 %0" : : "m"(*(const char*)p)); }
#elif defined(__aarch64__)
static inline void prefetch(const void* p) { __asm__ volatile("prfm pldl1keep, [%0]" : : "r"(p)); }
static inline void prefetch_far(const void* p) { __asm__ volatile("prfm pldl2keep, [%0]" : : "r"(p)); }
#else
static inline void prefetch(const void*) {}
static inline void prefetch_far(const void*) {}
#endif

constexpr int kLanes = 16;
typedef uint16_t half_t;  // the storage of bfloat16 and float16

static inline float bf16_to_float(half_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
static inline half_t float_to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return half_t((bits >> 16) | 0x40);
  return half_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512F__)

struct F16 {
  __m512 v;
};
static inline F16 zero() { return {_mm512_setzero_ps()}; }
static inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
static inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
static inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
static inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F16 round_nearest(F16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
// p * 2^n for whole n; underflows to 0
static inline F16 scale_pow2(F16 p, F16 n) { return {_mm512_scalef_ps(p.v, n.v)}; }
// the first `count` lanes of a, `fill` in the others
static inline F16 keep_first(F16 a, int count, float fill) {
  __mmask16 m = count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
  return {_mm512_mask_blend_ps(m, _mm512_set1_ps(fill), a.v)};
}
// `fill` in the first `count` lanes, a in the others
static inline F16 drop_first(F16 a, int count, float fill) {
  __mmask16 m = count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
  return {_mm512_mask_blend_ps(m, a.v, _mm512_set1_ps(fill))};
}
static inline F16 load_first(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), p)};  // count < 16
}
static inline void store_first(float* p, F16 a, int count) { _mm512_mask_storeu_ps(p, __mmask16((1u << count) - 1), a.v); }
// Trees of fixed shape: the same lanes always meet in the same order.
static inline float reduce_add(F16 a) { return _mm512_reduce_add_ps(a.v); }
static inline float reduce_max(F16 a) { return _mm512_reduce_max_ps(a.v); }

static inline F16 if_greater(F16 a, F16 b, F16 then, F16 otherwise) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), otherwise.v, then.v)};
}
static inline unsigned greater_lanes(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }  // a bit for each lane
// Lane i of the result is reduce_max(x[i]), for 8 vectors.
static inline F16 reduce_max_each(const F16* x) {
  __m512 pair[4], four[2];  // in each quarter of a register: two vectors with two lanes each, then four with one
  for (int i = 0; i < 4; i++)
    pair[i] = _mm512_max_ps(_mm512_unpacklo_ps(x[2 * i].v, x[2 * i + 1].v), _mm512_unpackhi_ps(x[2 * i].v, x[2 * i + 1].v));
  for (int i = 0; i < 2; i++)
    four[i] = _mm512_max_ps(_mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0x44), _mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0xee));
  __m512 m = _mm512_max_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x44), _mm512_shuffle_f32x4(four[0], four[1], 0xee));
  m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0xb1));
  return {_mm512_shuffle_f32x4(m, m, 0x08)};
}

static inline F16 load_bf16(const half_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
static inline F16 load_fp16(const half_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
static inline void store_fp16(half_t* p, F16 a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, 0)); }
static inline void store_bf16(half_t* p, F16 a) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v));
#else
  __m512i b = _mm512_castps_si512(a.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd), 16);
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(b, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
#endif
}

// Sixteen pairs of 16-bit values: lane i holds elements 2i (low half) and 2i + 1 (high half).
struct Pairs {
  __m512i v;
};
static inline Pairs load_pairs(const half_t* p) { return {_mm512_loadu_si512(p)}; }
static inline Pairs load_half_pairs(const half_t* p) {  // lanes 0 to 7; the others are zero
  return {_mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i*)p))};
}
static inline Pairs set1_pair(const half_t* p) {
  int x;
  std::memcpy(&x, p, 4);
  return {_mm512_set1_epi32(x)};
}
static inline Pairs only_low(Pairs a) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(0xffff))}; }
static inline Pairs only_high(Pairs a) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(int(0xffff0000u)))}; }
static inline F16 bf16_low(Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
static inline F16 bf16_high(Pairs a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(int(0xffff0000u))))};
}
static inline F16 fp16_low(Pairs a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a.v))}; }
static inline F16 fp16_high(Pairs a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(a.v, 16)))}; }

#elif defined(__AVX2__)

struct F16 {
  __m256 a, b;
};
static inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
static inline F16 add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline F16 sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline F16 mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline F16 div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline F16 round_nearest(F16 x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
static inline __m256 scale_pow2_8(__m256 p, __m256 n) {
  // 2^n in two factors, so that results down to the smallest normal come out right; below about 2^-150 the result is 0
  __m256i k = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(n, _mm256_set1_ps(254.f)), _mm256_set1_ps(-252.f)));
  __m256i k1 = _mm256_srai_epi32(k, 1), k2 = _mm256_sub_epi32(k, k1);
  __m256i bias = _mm256_set1_epi32(127);
  __m256 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k1, bias), 23));
  __m256 f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k2, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, f1), f2);
}
static inline F16 scale_pow2(F16 p, F16 n) { return {scale_pow2_8(p.a, n.a), scale_pow2_8(p.b, n.b)}; }
static inline __m256i first_mask8(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline F16 keep_first(F16 x, int count, float fill) {
  __m256 f = _mm256_set1_ps(fill);
  return {_mm256_blendv_ps(f, x.a, _mm256_castsi256_ps(first_mask8(count))),
          _mm256_blendv_ps(f, x.b, _mm256_castsi256_ps(first_mask8(count - 8)))};
}
static inline F16 drop_first(F16 x, int count, float fill) {
  __m256 f = _mm256_set1_ps(fill);
  return {_mm256_blendv_ps(x.a, f, _mm256_castsi256_ps(first_mask8(count))),
          _mm256_blendv_ps(x.b, f, _mm256_castsi256_ps(first_mask8(count - 8)))};
}
static inline F16 load_first(const float* p, int count) {
  return {_mm256_maskload_ps(p, first_mask8(count)), _mm256_maskload_ps(p + 8, first_mask8(count - 8))};
}
static inline void store_first(float* p, F16 x, int count) {
  _mm256_maskstore_ps(p, first_mask8(count), x.a);
  _mm256_maskstore_ps(p + 8, first_mask8(count - 8), x.b);
}
static inline float reduce_add(F16 x) {
  __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1)));
}
static inline float reduce_max(F16 x) {
  __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_max_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_max_ss(t, _mm_shuffle_ps(t, t, 1)));
}
static inline F16 if_greater(F16 a, F16 b, F16 then, F16 otherwise) {
  return {_mm256_blendv_ps(otherwise.a, then.a, _mm256_cmp_ps(a.a, b.a, _CMP_GT_OQ)),
          _mm256_blendv_ps(otherwise.b, then.b, _mm256_cmp_ps(a.b, b.b, _CMP_GT_OQ))};
}
static inline unsigned greater_lanes(F16 a, F16 b) {
  return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a.a, b.a, _CMP_GT_OQ))) |
         unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a.b, b.b, _CMP_GT_OQ))) << 8;
}
static inline F16 reduce_max_each(const F16* x) {
  float each[16] = {};
  for (int i = 0; i < 8; i++) each[i] = reduce_max(x[i]);
  return load(each);
}
static inline __m256 load_bf16_8(const half_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline F16 load_bf16(const half_t* p) { return {load_bf16_8(p), load_bf16_8(p + 8)}; }
static inline F16 load_fp16(const half_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
static inline void store_fp16(half_t* p, F16 x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, 0));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, 0));
}
static inline void store_bf16(half_t* p, F16 x) {
  float t[16];
  store(t, x);
  for (int i = 0; i < 16; i++) p[i] = float_to_bf16(t[i]);
}
struct Pairs {
  __m256i a, b;
};
static inline Pairs load_pairs(const half_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 16))};
}
static inline Pairs load_half_pairs(const half_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_setzero_si256()};
}
static inline Pairs set1_pair(const half_t* p) {
  int x;
  std::memcpy(&x, p, 4);
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
static inline Pairs only_low(Pairs x) {
  __m256i m = _mm256_set1_epi32(0xffff);
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
static inline Pairs only_high(Pairs x) {
  __m256i m = _mm256_set1_epi32(int(0xffff0000u));
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
static inline F16 bf16_low(Pairs x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}
static inline F16 bf16_high(Pairs x) {
  __m256i m = _mm256_set1_epi32(int(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(x.a, m)), _mm256_castsi256_ps(_mm256_and_si256(x.b, m))};
}
static inline __m256 fp16_low8(__m256i x) {
  x = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}
static inline F16 fp16_low(Pairs x) { return {fp16_low8(x.a), fp16_low8(x.b)}; }
static inline F16 fp16_high(Pairs x) { return {fp16_low8(_mm256_srli_epi32(x.a, 16)), fp16_low8(_mm256_srli_epi32(x.b, 16))}; }

#else
#include "simd_portable.inc"
#endif

// acc + low * low + high * high over sixteen pairs of bfloat16.
static inline F16 dot_bf16(F16 acc, Pairs x, Pairs y) {
#if defined(__AVX512BF16__)
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)x.v, (__m512bh)y.v)};
#else
  return fma(bf16_high(x), bf16_high(y), fma(bf16_low(x), bf16_low(y), acc));
#endif
}

// 2^x for x <= 0 (-inf gives 0, 0 gives exactly 1); relative error below 2e-7.  NaN stays NaN.
static inline F16 exp2_nonpositive(F16 x) {
#if defined(__AVX512DQ__)
  // VREDUCE is x - floor(x), and 0 for an infinity; VSCALEF takes the floor itself.  A minimax fit on [0, 1) with p(0) = 1.
  F16 r = {_mm512_reduce_ps(x.v, 1)};
  F16 p = set1(1.86713005e-3f);
  p = fma(p, r, set1(9.01703071e-3f));
  p = fma(p, r, set1(5.57999127e-2f));
  p = fma(p, r, set1(2.40164444e-1f));
  p = fma(p, r, set1(6.93151295e-1f));
  p = fma(p, r, set1(1.f));
  return scale_pow2(p, x);
#else
  F16 n = round_nearest(max(set1(-160.f), x));  // max keeps a NaN in its second operand
  F16 r = sub(max(set1(-160.f), x), n);
  F16 p = set1(1.5403530e-4f);
  p = fma(p, r, set1(1.3333558e-3f));
  p = fma(p, r, set1(9.6181291e-3f));
  p = fma(p, r, set1(5.5504109e-2f));
  p = fma(p, r, set1(2.4022651e-1f));
  p = fma(p, r, set1(6.9314718e-1f));
  p = fma(p, r, set1(1.f));
  return scale_pow2(p, n);
#endif
}

#if defined(__AVX512BF16__)
// The same to a relative 9e-5, a twentieth of what rounding to bfloat16 takes: for weights that are rounded so next.
static inline F16 exp2_nonpositive_coarse(F16 x) {
  F16 r = {_mm512_reduce_ps(x.v, 1)};
  F16 p = set1(7.70670399e-2f);
  p = fma(p, r, set1(2.27644995e-1f));
  p = fma(p, r, set1(6.95116758e-1f));
  p = fma(p, r, set1(1.f));
  return scale_pow2(p, x);
}

// Thirty-two floats in order, rounded to nearest even: lane i holds elements 2i and 2i + 1 of (first, second).
static inline void store_bf16_pairs(half_t* p, F16 first, F16 second) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(second.v, first.v));
}
#endif

}  // namespace OCTAVO_PATH
}  // namespace octavo
