// Single elements between the float formats, for what is done once at load.
#pragma once
#include <cstring>

#include "abi.h"

namespace octavo {

static inline float from_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

static inline float from_f16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | (fraction << 13));
  if (exponent) return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float size = float(fraction) * 0x1p-24f;
  return sign ? -size : size;
}

static inline float read_element(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[at];
  const uint16_t h = static_cast<const uint16_t*>(data)[at];
  return dtype == DType::bf16 ? from_bits(uint32_t(h) << 16) : from_f16(h);
}

// To nearest, ties to even; a NaN stays a NaN.
static inline uint16_t to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace octavo
