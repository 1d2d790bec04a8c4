// The few functions that activations need, over sixteen lanes; relative error below 3e-7 where the result is a normal number.
// Constants are least-squares fits made for this file (the relative error minimised at 400 Chebyshev nodes).
#pragma once
#include "abi.h"
#include "simd.h"

namespace octavo {
namespace OCTAVO_PATH {

// e^x; 0 below -104, inf above 89, 1 at 0 exactly, NaN for NaN.
static inline F16 exponential(F16 x) {
  x = min(set1(89.f), max(set1(-120.f), x));  // keeps a NaN, being the second operand
  F16 n = round_nearest(mul(x, set1(1.44269504f)));
  F16 r = fma(n, set1(-0.693145752f), x);  // ln 2 in two parts, the first with trailing zeros: n * it is exact
  r = fma(n, set1(-1.42860677e-6f), r);
  F16 p = set1(1.3888889e-3f);
  p = fma(p, r, set1(8.3333333e-3f));
  p = fma(p, r, set1(4.1666667e-2f));
  p = fma(p, r, set1(1.6666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.f));
  p = fma(p, r, set1(1.f));
  return scale_pow2(p, n);
}

static inline F16 negative(F16 x) { return sub(zero(), x); }

// 1 / (1 + e^-x)
static inline F16 sigmoid(F16 x) { return div(set1(1.f), add(set1(1.f), exponential(negative(x)))); }

// The mass of the standard normal distribution above z, for z >= 0: e^(-z*z/2) times a polynomial in 1 / (1 + 0.21 z).
static inline F16 normal_tail(F16 z) {
  F16 t = div(set1(1.f), fma(set1(0.21f), z, set1(1.f)));
  F16 q = set1(-0.07165631f);
  q = fma(q, t, set1(0.2835886f));
  q = fma(q, t, set1(-0.33025345f));
  q = fma(q, t, set1(0.34940109f));
  q = fma(q, t, set1(-0.09392527f));
  q = fma(q, t, set1(0.12487276f));
  q = fma(q, t, set1(0.06919216f));
  q = fma(q, t, set1(0.08506886f));
  q = fma(q, t, set1(0.08371158f));
  F16 square = mul(z, z);
  F16 lost = fma(z, z, negative(square));  // what rounding took from the square matters: it is an exponent
  F16 e = exponential(mul(square, set1(-0.5f)));
  return mul(mul(q, t), fma(e, mul(lost, set1(-0.5f)), e));
}

static inline F16 activate(Activation kind, F16 x) {
  switch (kind) {
    case Activation::relu:
      return max(zero(), x);
    case Activation::silu:  // Elfwing et al. 2017
      return mul(x, sigmoid(x));
    case Activation::gelu: {  // Hendrycks & Gimpel 2016: x * Phi(x), and Phi(x) = 1 - tail(x) for x > 0, tail(-x) below
      F16 size = max(negative(x), x);
      return sub(max(zero(), x), mul(size, normal_tail(min(set1(15.f), size))));
    }
    case Activation::gelu_tanh: {  // the same with tanh: (1 + tanh u) / 2 = sigmoid(2 u)
      F16 u = mul(x, fma(mul(x, x), set1(0.044715f * 1.59576912f), set1(1.59576912f)));
      return mul(x, sigmoid(u));
    }
    default:
      return x;
  }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
